"""The tasks of bsuite that gymnax brings: what they pay, how they end, and where they differ from what they say."""

import jax.numpy as jnp
import numpy as np
import pytest

import envs


def ends(record):
    """Steps of the first copy that end an episode, by termination and by truncation."""
    return tuple(np.flatnonzero(record[name][0]).tolist() for name in ("terminated", "truncated"))


def test_deep_sea_pays_for_right_all_the_way(rollout):
    size = 6
    env, params = envs.make("DeepSea-bsuite", size=size, randomize_actions=False)
    assert env.horizon == size and env.observation_space(params).shape == (size * size,)
    record = rollout(env, params, [1] * size)
    # The moves cost 0.01 in all, the treasure pays 1.
    np.testing.assert_allclose(record["reward"][0], [-0.01 / size] * (size - 1) + [1 - 0.01 / size], rtol=1e-5)
    cells = np.asarray(record["observation"])[0].argmax(1)
    assert cells.tolist() == [row * size + row for row in range(size)]
    record = rollout(env, params, [1] * (size - 1) + [0])
    np.testing.assert_allclose(record["reward"][0].sum(), -0.01 * (size - 1) / size, rtol=1e-5)


def test_deep_sea_takes_the_action_that_its_mapping_calls_right(rollout):
    size = 6
    env, params = envs.make("DeepSea-bsuite", size=size)
    mapping = np.diag(env.env.action_mapping)
    assert set(mapping) == {0, 1}
    np.testing.assert_allclose(rollout(env, params, mapping)["reward"].sum(1), 0.99, rtol=1e-5)
    # the other action goes left, which costs nothing
    assert not np.any(rollout(env, params, [1 - mapping[0]] + [0] * (size - 1))["reward"][:, 0])


def test_deep_sea_is_terminated_and_truncated_at_once(rollout):
    env, params = envs.make("DeepSea-bsuite", size=6)
    assert ends(rollout(env, params, [0] * 6)) == ([5], [5])


def test_umbrella_chain_pays_for_the_first_action_at_its_end(rollout):
    env, params = envs.make("UmbrellaChain-bsuite", chain_length=4, n_distractor=2)
    assert env.observation_space(params).shape == (5,)
    for first in (0, 1):
        record = rollout(env, params, [first, 0, 1, 0])
        observation = np.asarray(record["observation"])
        needed = observation[:, 0, 0]
        assert set(needed) == {0, 1}
        np.testing.assert_array_equal(record["reward"][:, 3], np.where(needed == first, 1, -1))
        np.testing.assert_array_equal(np.abs(record["reward"]), 1)
        assert np.all(np.abs(np.mean(record["reward"][:, :3], axis=0)) < 0.15)  # noise on the way
        np.testing.assert_array_equal(observation[:, 1:, 1], first)  # the umbrella, whatever is done later
        np.testing.assert_allclose(observation[0, :, 2], [1, 0.75, 0.5, 0.25])
        assert ends(record) == ([3], [])


def test_umbrella_chain_longer_than_its_time_limit_of_100_never_pays(rollout):
    env, params = envs.make("UmbrellaChain-bsuite", chain_length=102)
    assert ends(rollout(env, params, [1] * 102)) == ([], [99])
    env, params = envs.make("UmbrellaChain-bsuite", chain_length=102, max_steps_in_episode=102)
    record = rollout(env, params, [1] * 102)
    needed = np.asarray(record["observation"])[:, 0, 0]
    np.testing.assert_array_equal(record["reward"][:, 101], 2 * needed - 1)
    assert ends(record) == ([101], [101])


@pytest.mark.parametrize(("action", "pays_in"), [(0, 1), (1, 3), (2, 10), (3, 30), (4, 100)])
def test_discounting_chain_pays_a_tenth_more_for_the_best_action(rollout, action, pays_in):
    best = 3
    env, params = envs.make("DiscountingChain-bsuite", mapping_seed=best)
    record = rollout(env, params, [action] + [(action + 1) % 5] * 99)
    expected = np.zeros(100, np.float32)
    expected[pays_in - 1] = 1.1 if action == best else 1
    np.testing.assert_array_equal(record["reward"][0], expected)
    assert ends(record) == ([99], [])


def test_discounting_chain_truncates_where_its_time_limit_is_asked_to(rollout):
    env, params = envs.make("DiscountingChain-bsuite", time_limit="bootstrap", max_steps_in_episode=4)
    assert ends(rollout(env, params, [1] * 8)) == ([], [3, 7])


def test_memory_chain_asks_in_its_last_step_for_one_bit_of_the_first(rollout):
    length, bits = 3, 4
    env, params = envs.make("MemoryChain-bsuite", memory_length=length, num_bits=bits)
    assert env.observation_space(params).shape == (2 + bits,)
    for action in (0, 1):
        record = rollout(env, params, [0] * length + [action])
        observation = np.asarray(record["observation"])
        context, query = observation[:, 0, 2:], observation[:, length, 1].astype(int)
        assert set(context.ravel()) == {-1, 1} and set(query) == set(range(bits))
        asked = np.take_along_axis(context, query[:, None], axis=1)[:, 0]
        np.testing.assert_array_equal(record["reward"][:, length], np.where(asked == 2 * action - 1, 1, -1))
        assert not np.any(record["reward"][:, :length])
        assert ends(record) == ([length], [])


def test_memory_chain_shows_its_context_twice_and_outside_of_its_space(rollout):
    # bsuite, too, observes before it counts the step, so that every observation is one step late.
    env, params = envs.make("MemoryChain-bsuite", memory_length=3)
    record = rollout(env, params, [0] * 4)
    shown = np.asarray(record["observation"])[:, :, 2]
    np.testing.assert_array_equal(np.abs(shown), np.broadcast_to([1, 1, 0, 0], shown.shape))
    np.testing.assert_array_equal(shown[:, 0], shown[:, 1])
    np.testing.assert_allclose(record["observation"][0, :, 0], [1, 1, 2 / 3, 1 / 3], rtol=1e-6)
    space = env.observation_space(params)
    assert shown.min() == -1 and jnp.min(space.low) == 0


@pytest.mark.parametrize("settings", [{"mapping_seed": 5}, {"mapping_seed": -1}, {"mapping_seed": 3, "n_actions": 3}])
def test_discounting_chain_without_a_best_action_is_refused(settings):
    with pytest.raises(ValueError, match=r"mapping_seed=-?\d is not allowed.* from 0 to n_actions - 1"):
        envs.make("DiscountingChain-bsuite", **settings)
