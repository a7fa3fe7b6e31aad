import jax.numpy as jnp
import numpy as np
import pytest

import envs
from jaxcredit.evaluation.oracle import action_values, policy_values

# Apples and gradient norms: the reference's layouts, and its exact gradient in the logits of the first state under the
# uniform policy (arXiv:2306.16803, public code).
REFERENCE = [(23, 16, 0.01083), (43, 27, 0.00579), (63, 44, 0.00395), (83, 59, 0.00300), (103, 77, 0.00242)]
LENGTH = 8


@pytest.mark.parametrize(("length", "apples", "norm"), REFERENCE)
def test_layout_and_gradient_are_those_of_the_reference(length, apples, norm):
    env, params = envs.make("KeyToDoor", length=length, max_length=103)
    assert np.isin(env.layout[: length - 2], [1, 2]).sum() == apples
    mdp = env.mdp(params)
    value = policy_values(mdp, jnp.full((mdp.num_states, 4), 0.25))
    start = int(jnp.argmax(mdp.initial))
    gradient = 0.25 * (action_values(mdp, value)[start] - value[start])
    np.testing.assert_allclose(jnp.linalg.norm(gradient), norm, atol=6e-6)


@pytest.mark.parametrize("takes_key", [True, False])
def test_perfect_play_collects_every_apple_and_the_treasure_if_the_key_is_held(rollout, takes_key):
    env, params = envs.make("KeyToDoor", length=LENGTH, apple_probability=1.0)
    apple = np.isin(env.layout, [1, 2])
    actions = np.where(apple, env.layout, 0)
    actions[0], actions[-2] = (0 if takes_key else 1), 3
    record = rollout(env, params, actions)
    expected = apple * 0.9
    expected[-1] = 0.2 * takes_key
    np.testing.assert_allclose(record["reward"][0], expected * 23 / LENGTH, rtol=1e-5)
    np.testing.assert_array_equal(record["info"]["treasure"][0], [0.0] * (LENGTH - 1) + [float(takes_key)])
    assert np.flatnonzero(record["info"]["decisive"][0]).tolist() == [0, LENGTH - 2]
    np.testing.assert_array_equal(record["observation"][0, :, 8], [0.0] + [float(takes_key)] * (LENGTH - 1))
    assert record["observation"][0, -1, 6] == takes_key


def test_reward_noise_has_the_given_deviation_and_no_mean(rollout):
    env, params = envs.make("KeyToDoor", length=LENGTH, reward_noise=0.3)
    reward = rollout(env, params, np.full(LENGTH, 3))["reward"]
    np.testing.assert_allclose(np.abs(reward), 0.3, rtol=1e-5)
    assert abs(np.mean(reward)) < 0.02
