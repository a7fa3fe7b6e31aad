import jax.numpy as jnp
import numpy as np
import pytest

import envs
from jaxcredit.evaluation.oracle import optimal_values, policy_values


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(("crossover", "optimum"), [(0.1, 1.9), (0.3, 1.7), (0.8, 1.8)])
def test_values_are_those_of_the_task(hidden, crossover, optimum):
    env, params = envs.make("AmbiguousBandit", hidden=hidden, crossover_probability=crossover)
    mdp = env.mdp(params)
    uniform = jnp.full((mdp.num_states, 2), 0.5)
    values = mdp.initial @ optimal_values(mdp), mdp.initial @ policy_values(mdp, uniform)
    np.testing.assert_allclose(values, [optimum, 1.5], rtol=1e-6)
    mean = (mdp.probability * mdp.reward).sum(-1)
    variance = (mdp.probability * mdp.reward**2).sum(-1) - mean**2
    np.testing.assert_allclose(variance[2:], 1.5**2, rtol=1e-5)


@pytest.mark.parametrize(("actions", "state", "reward"), [([0, 0], [0, 1, 0], 2.0), ([1, 0], [0, 0, 1], 1.0)])
def test_episodes_without_chance(rollout, actions, state, reward):
    env, params = envs.make("AmbiguousBandit", crossover_probability=0, deviation=0)
    record = rollout(env, params, actions)
    np.testing.assert_array_equal(record["observation"][0], [[1, 0, 0], state])
    np.testing.assert_array_equal(record["reward"][0], [0, reward])
    np.testing.assert_array_equal(record["terminated"][0], [False, True])
    np.testing.assert_array_equal(record["info"]["decisive"][0], [True, False])
    assert not np.any(record["truncated"])


def test_states_cross_over_and_pay_normal_rewards(rollout):
    env, params = envs.make("AmbiguousBandit")
    record = rollout(env, params, [0, 1])
    high = np.asarray(record["observation"])[:, 1, 1] == 1
    assert abs(high.mean() - 0.9) < 4 * 0.3 / np.sqrt(high.size)
    deviate = (np.asarray(record["reward"])[:, 1] - np.where(high, 2, 1)) / 1.5
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        assert abs(np.mean(deviate**power) - moment) < 5 * np.std(deviate**power) / np.sqrt(high.size)
    assert np.abs(deviate).max() > 2.5  # a quadrature of three nodes ends at the root of 3


def test_hidden_states_look_the_same(rollout):
    env, params = envs.make("AmbiguousBandit", hidden=True)
    observation = np.asarray(rollout(env, params, [0, 1])["observation"])
    np.testing.assert_array_equal(observation, np.tile([[1, 0, 0], [0, 0, 0]], (len(observation), 1, 1)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"crossover_probability": 1.2}, "crossover_probability=1.2"), ({"hidden": 2}, "hidden=2.*True or False")],
)
def test_bad_input_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make("AmbiguousBandit", **settings)
