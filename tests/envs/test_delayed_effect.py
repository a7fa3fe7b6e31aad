import jax.numpy as jnp
import numpy as np
import pytest

import envs
from jaxcredit.evaluation.oracle import optimal_values, policy_values

LENGTH = 3
GOOD, BAD = [0, 1, 0, 1, 1], [1, 0, 0, 1, 0]


@pytest.mark.parametrize(("actions", "expected"), [(GOOD, 1.0), (BAD, -1.0)])
def test_the_first_action_is_paid_at_the_end(rollout, actions, expected):
    env, params = envs.make("DelayedEffect", length=LENGTH)
    record = rollout(env, params, actions)
    np.testing.assert_array_equal(record["reward"], np.tile([0, 0, 0, 0, expected], (len(record["reward"]), 1)))
    assert record["terminated"][0].tolist() == [False] * 4 + [True]
    assert not np.any(record["truncated"])
    assert np.flatnonzero(record["info"]["decisive"][0]).tolist() == [0]
    assert env.horizon == LENGTH + 2


def test_only_the_end_tells_which_action_was_taken(rollout):
    env, params = envs.make("DelayedEffect", length=LENGTH)
    good, bad = (np.asarray(rollout(env, params, actions)["observation"][0]) for actions in (GOOD, BAD))
    expected = np.zeros((LENGTH + 2, 5))
    expected[0, 0] = expected[1:-1, 1] = expected[-1, 2] = 1
    expected[:, 4] = np.arange(5) / 5
    np.testing.assert_allclose(good, expected, rtol=1e-6)
    np.testing.assert_array_equal(good[:-1], bad[:-1])
    np.testing.assert_allclose(bad[-1], [0, 0, 0, 1, 0.8])


def test_rewards_on_the_chain_are_normal_noise(rollout):
    env, params = envs.make("DelayedEffect", length=LENGTH, sigma=2.0)
    reward = np.asarray(rollout(env, params, GOOD)["reward"])
    np.testing.assert_array_equal(reward[:, [0, -1]], np.tile([0, 1], (len(reward), 1)))
    noise = reward[:, 1:-1].ravel() / 2
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        assert abs(np.mean(noise**power) - moment) < 5 * np.std(noise**power) / np.sqrt(noise.size)
    assert np.abs(noise).max() > 2.5  # a quadrature of three nodes ends at the root of 3


@pytest.mark.parametrize("length", [1, 4])
def test_values_are_those_of_the_task(length):
    env, params = envs.make("DelayedEffect", length=length, max_length=4, sigma=2.0)
    mdp = env.mdp(params)
    uniform = jnp.full((mdp.num_states, 2), 0.5)
    values = mdp.initial @ optimal_values(mdp), mdp.initial @ policy_values(mdp, uniform)
    np.testing.assert_allclose(values, [1.0, 0.0], atol=1e-6)
    mean = (mdp.probability * mdp.reward).sum(-1)
    variance = (mdp.probability * mdp.reward**2).sum(-1) - mean**2
    on_chain = mdp.observation[:, 1] == 1
    np.testing.assert_allclose(variance[on_chain], 4.0, rtol=1e-5)
    np.testing.assert_allclose(mean[on_chain], 0.0, atol=1e-6)


def test_reward_comes_with_a_state_that_shows_the_end():
    """Or hindsight that is conditioned on states would not credit the first action."""
    env, params = envs.make("DelayedEffect", length=LENGTH)
    mdp = env.mdp(params)
    paid = (mdp.reward != 0).any((1, 2))
    np.testing.assert_array_equal(mdp.observation[paid, 2:4].sum(1), 1)
    assert paid.sum() == 2


@pytest.mark.parametrize("settings", [{"length": 0}, {"length": 5, "max_length": 4}, {"max_length": 0}])
def test_impossible_lengths_are_refused(settings):
    with pytest.raises(ValueError, match="length"):
        envs.make("DelayedEffect", **settings)
