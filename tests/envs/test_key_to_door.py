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


@pytest.mark.parametrize(("take_at", "treasure"), [([0, 3], True), ([0], False), ([3], False)])
def test_several_keys_are_all_needed(rollout, take_at, treasure):
    env, params = envs.make("KeyToDoor", length=LENGTH, num_keys=2)
    actions = np.full(LENGTH, 3)
    actions[take_at] = 0
    record = rollout(env, params, actions)
    observation = np.asarray(record["observation"])[0]
    assert observation.shape == (LENGTH, 10) == (LENGTH, *env.observation_space(params).shape)
    assert np.flatnonzero(observation[:, 4]).tolist() == [0, 3]
    held = [sum(cell < time for cell in take_at) for time in range(LENGTH)]
    np.testing.assert_array_equal(observation[:, 7:], np.eye(3)[held])
    np.testing.assert_array_equal(record["info"]["treasure"][0], [0.0] * (LENGTH - 1) + [float(treasure)])
    np.testing.assert_allclose(record["reward"][0, -1], treasure * 0.2 * 23 / LENGTH, rtol=1e-6)
    assert np.flatnonzero(record["info"]["decisive"][0]).tolist() == [0, 3, LENGTH - 2]
    assert record["terminated"][0].tolist() == [False] * (LENGTH - 1) + [True]


@pytest.mark.parametrize("length", [5, 9, 23])
def test_places_of_keys_follow_the_length(length):
    env, params = envs.make("KeyToDoor", length=length, max_length=23, num_keys=3)
    seen = env.mdp(params).observation.reshape(23, 4, 2, -1)[:length, 0, 0, 4]
    assert np.flatnonzero(seen).tolist() == [int(i * (length - 2) / 3) for i in range(3)]


@pytest.mark.parametrize("takes_key", [True, False])
def test_an_ignored_door_opens_by_itself_to_who_holds_the_key(rollout, takes_key):
    env, params = envs.make("KeyToDoor", length=LENGTH, ignore_door=1)
    record = rollout(env, params, [0 if takes_key else 1] + [2] * (LENGTH - 1))
    assert record["info"]["treasure"][0, -1] == takes_key
    assert np.flatnonzero(record["info"]["decisive"][0]).tolist() == [0]


def test_the_treasure_changes_sign_without_compiling_anew(rollout):
    env, params = envs.make("KeyToDoor", length=LENGTH)
    actions = [0] * (LENGTH - 2) + [3, 0]
    before = rollout(env, params, actions)["reward"]
    compiled = rollout.compiled()
    after = rollout(env, envs.make("KeyToDoor", length=LENGTH, treasure=-0.2, ignore_door=1)[1], actions)["reward"]
    assert rollout.compiled() == compiled
    np.testing.assert_allclose([before[0, -1], after[0, -1]], [0.2 * 23 / LENGTH, -0.2 * 23 / LENGTH], rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_keys": 0}, "num_keys=0"),
        ({"num_keys": 1.5}, "num_keys=1.5"),
        ({"num_keys": 4, "max_length": 5}, "num_keys=4.*from 1 to"),
        ({"num_keys": 4, "length": 5, "max_length": 6}, "length=5.*at least 6"),
        ({"ignore_door": 2}, "ignore_door=2.*0 or 1"),
    ],
)
def test_bad_input_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make("KeyToDoor", **settings)
