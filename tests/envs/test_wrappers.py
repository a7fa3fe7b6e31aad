import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs

STEPS = 40
ACTIONS = np.arange(STEPS) // 3 % 2


@pytest.mark.parametrize(("angle", "end"), [(0.2, "truncated"), (0.06, "terminated")])
def test_delayed_reward_pays_the_return_at_the_end(rollout, angle, end):
    env, params = envs.make("CartPole-v1", max_steps_in_episode=5, theta_threshold_radians=angle)
    delayed = envs.DelayedReward(env)
    plain = rollout(env, params, ACTIONS)
    late = rollout(delayed, delayed.wrap(params), ACTIONS)
    ends = np.asarray(plain["terminated"] | plain["truncated"])
    assert np.any(plain[end])
    for reward, paid, end in zip(*map(np.asarray, (plain["reward"], late["reward"], ends)), strict=True):
        expected = np.zeros(STEPS)
        expected[end] = np.diff(np.cumsum(reward)[end], prepend=0)
        np.testing.assert_allclose(paid, expected)
    for name in ("observation", "terminated", "truncated"):
        np.testing.assert_array_equal(late[name], plain[name])


def test_delayed_reward_pays_every_k_steps_and_counts_anew_in_each_episode(rollout):
    env, params = envs.make("CartPole-v1", max_steps_in_episode=5)
    delayed = envs.DelayedReward(env)
    reward = rollout(delayed, delayed.wrap(params, every=3), ACTIONS)["reward"]
    np.testing.assert_array_equal(reward[0], [0, 0, 3, 0, 2] * (STEPS // 5))


def test_delayed_reward_pays_at_a_terminal_time_limit(rollout):
    env, params = envs.make("CartPole-v1", max_steps_in_episode=5, time_limit="terminal")
    delayed = envs.DelayedReward(env)
    record = rollout(delayed, delayed.wrap(params), ACTIONS)
    np.testing.assert_array_equal(record["reward"][0], [0, 0, 0, 0, 5] * (STEPS // 5))
    np.testing.assert_array_equal(record["terminated"][0], [False, False, False, False, True] * (STEPS // 5))


def test_noisy_reward_changes_nothing_but_the_reward(rollout):
    env, params = envs.make("ProbeDelay", reward=2.0)
    noisy = envs.NoisyReward(env)
    record = rollout(noisy, noisy.wrap(params, scale=0.5), np.zeros(2, np.int32))
    noise = np.asarray(record["reward"]) - np.array([0.0, 2.0])
    assert abs(noise.mean()) < 0.05 and abs(noise.std() - 0.5) < 0.03
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.1
    silent = rollout(noisy, noisy.wrap(params, scale=0.0), np.zeros(2, np.int32))["reward"]
    np.testing.assert_array_equal(silent[0], [0, 2])


def test_the_knobs_are_traced(rollout):
    env, params = envs.make("ProbeDelay")
    actions = np.zeros(2, np.int32)
    noisy = envs.NoisyReward(env)
    rollout(noisy, noisy.wrap(params, scale=1.0), actions)
    compiled = rollout.compiled()
    rollout(envs.NoisyReward(env), noisy.wrap(params, scale=2), actions)
    assert rollout.compiled() == compiled


def test_flatten_observation():
    env, params = envs.make("Breakout-MinAtar")
    flat = envs.FlattenObservation(env)
    observation, state = jax.eval_shape(flat.reset, jax.random.key(0), flat.wrap(params))
    stepped, *_, info = jax.eval_shape(flat.step, jax.random.key(0), state, jnp.array(0), params)
    assert observation.shape == stepped.shape == info["final_observation"].shape == (400,)
    assert flat.observation_space(params).shape == (400,)
    assert flat.horizon == env.horizon == 1000


def test_wrappers_compare_by_class_and_wrapped_environment():
    env, _ = envs.make("CartPole-v1")
    other, _ = envs.make("Acrobot-v1")
    assert envs.DelayedReward(env) == envs.DelayedReward(env) != envs.NoisyReward(env)
    assert hash(envs.DelayedReward(env)) == hash(envs.DelayedReward(env))
    assert envs.DelayedReward(env) != envs.DelayedReward(other)
    nested = envs.NoisyReward(envs.DelayedReward(env))
    assert nested == envs.NoisyReward(envs.DelayedReward(env))
    assert nested.default_params.inner.every == 2**31 - 1
