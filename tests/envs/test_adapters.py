import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import envs

GYMNAX = [name for name in envs.names() if name in gymnax.registered_envs]
BRAX = ["fast", "inverted_pendulum", "reacher", "hopper"]


def specification(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)


def check_types(env, params):
    """One abstract reset and step: types fit a compiled loop, observation and action fit their spaces."""

    def reset_and_step(key):
        observation, state = env.reset_env(key, params)
        action = env.action_space(params).sample(key)
        stepped, next_state, reward, terminated, _ = env.step_env(key, state, action, params)
        return observation, state, stepped, next_state, reward, terminated, env.is_truncated(next_state, params)

    results = jax.eval_shape(reset_and_step, jax.random.key(0))
    observation, state, stepped, next_state, reward, terminated, truncated = results
    assert observation.dtype == jnp.float32 and len(observation.shape) in (1, 3)
    assert observation.shape == env.observation_space(params).shape
    assert specification(observation) == specification(stepped)
    assert specification(state) == specification(next_state)
    assert specification(reward) == ((), jnp.float32, False)
    assert specification(terminated)[:2] == specification(truncated)[:2] == ((), jnp.bool_)


def test_every_registered_gymnax_id_is_offered_but_the_one_that_downloads():
    assert set(gymnax.registered_envs) - set(GYMNAX) == {"MNISTBandit-bsuite"}


@pytest.mark.parametrize("name", GYMNAX)
def test_gymnax_types(name):
    env, params = envs.make(name)
    check_types(env, params)


@pytest.mark.parametrize("name", GYMNAX)
def test_casting_the_state_loses_nothing(name):
    env = gymnax.make(name)[0]
    _, params = envs.make(name)
    key = jax.random.key(0)
    _, state = jax.eval_shape(env.reset_env, key, params)
    action = jax.eval_shape(env.action_space(params).sample, key)
    _, stepped, *_ = jax.eval_shape(env.step_env, key, state, action, params)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(stepped), strict=True):
        assert jnp.promote_types(before.dtype, after.dtype) == before.dtype


@pytest.mark.parametrize(
    ("name", "action"),
    [("FrozenLake-misc", 0), ("UmbrellaChain-bsuite", 1), ("BernoulliBandit-misc", 1), ("Pendulum-v1", [0.5])],
)
def test_gymnax_runs(name, action, rollout):
    env, params = envs.make(name)
    record = rollout(env, params, [action] * 4)
    assert np.isfinite(record["reward"]).all() and np.isfinite(record["observation"]).all()
    if name == "FrozenLake-misc":  # a discrete observation becomes one-hot
        np.testing.assert_array_equal(record["observation"][0, 0], np.eye(16)[0])
        np.testing.assert_array_equal(record["observation"][0].sum(1), 1)


@pytest.mark.filterwarnings("ignore:Accessing:DeprecationWarning")  # brax reads what mujoco is about to move
@pytest.mark.parametrize("name", BRAX)
def test_brax_types(name):
    env, params = envs.make(f"brax:{name}", backend="spring", episode_length=128)
    check_types(env, params)
    assert (env.horizon, int(params.max_steps_in_episode)) == (128, 128)


def test_brax_fast_pays_its_position_and_truncates(rollout):
    env, params = envs.make("brax:fast", episode_length=4)
    record = jax.tree.map(lambda x: x[0], rollout(env, params, np.ones((8, 1), np.float32)))
    # Speed grows by 0.02 per step, position by 0.02 times speed; the reward is the position.
    position = np.cumsum(np.arange(1, 5)) * 0.02**2
    np.testing.assert_allclose(record["reward"], np.tile(position, 2), rtol=1e-5)
    np.testing.assert_array_equal(record["truncated"], [False, False, False, True] * 2)
    assert not np.any(record["terminated"])
    np.testing.assert_allclose(record["info"]["final_observation"][3, 0], position[-1], rtol=1e-5)
    np.testing.assert_array_equal(record["observation"][4], 0)


class Falls:
    """Stands in for a brax environment whose second step ends the episode naturally."""

    action_size = 1
    observation_size = 1

    def reset(self, key):
        state = {"count": jnp.zeros(()), "start": jax.random.uniform(key)}
        return Stub(pipeline_state=state, obs=state["start"][None], reward=0.0, done=jnp.zeros(()))

    def step(self, state, action):
        del action
        count = state.pipeline_state["count"] + 1
        pipeline_state = {**state.pipeline_state, "count": count}
        return state.replace(pipeline_state=pipeline_state, obs=count[None], reward=1.0, done=1.0 * (count >= 2))


@struct.dataclass
class Stub:
    pipeline_state: dict
    obs: jax.Array
    reward: jax.Array
    done: jax.Array


def test_brax_natural_ends_terminate_and_every_episode_starts_afresh(rollout):
    env = envs.BraxEnvironment(Falls(), horizon=10)
    record = jax.tree.map(lambda x: x[0], rollout(env, env.default_params, np.zeros((6, 1), np.float32)))
    np.testing.assert_array_equal(record["terminated"], [False, True] * 3)
    assert not np.any(record["truncated"])
    np.testing.assert_array_equal(record["info"]["final_observation"][:, 0], [1, 2] * 3)
    assert len(set(record["observation"][::2, 0].tolist())) == 3
