import jax
import jax.numpy as jnp
import pytest

BATCH = 1000


def play(env, params, key, actions, batch):
    """Step `batch` copies of `env` through the actions `[T]`.

    Returns a dict of `[batch, T]` arrays; observations are those before the action.
    """

    def step(carry, inputs):
        observation, state = carry
        key, action = inputs
        new_observation, state, reward, terminated, truncated, info = env.step(key, state, action, params)
        record = {"reward": reward, "terminated": terminated, "truncated": truncated, "info": info}
        return (new_observation, state), {"observation": observation, **record}

    def episode(key):
        reset_key, steps_key = jax.random.split(key)
        step_keys = jax.random.split(steps_key, actions.shape[0])
        return jax.lax.scan(step, env.reset(reset_key, params), (step_keys, actions))[1]

    return jax.vmap(episode)(jax.random.split(key, batch))


def follow_policy(env, params, key, policy, batch):
    """Play `policy(key, state, phase) -> action` for `env.horizon` steps in `batch` copies.

    Returns a dict of `[batch, T]` arrays; state and observation are those before the action.
    """

    def step(carry, key):
        observation, state = carry
        act_key, step_key = jax.random.split(key)
        phase = env.phase(state.time, params)
        action = policy(act_key, state, phase)
        following, after, reward, terminated, truncated, info = env.step(step_key, state, action, params)
        ends = {"terminated": terminated, "truncated": truncated}
        seen = {"observation": observation, "state": state, "phase": phase}
        return (following, after), {**seen, "action": action, "reward": reward, "info": info, **ends}

    def episode(key):
        reset_key, steps_key = jax.random.split(key)
        keys = jax.random.split(steps_key, env.horizon)
        return jax.lax.scan(step, env.reset(reset_key, params), keys)[1]

    return jax.vmap(episode)(jax.random.split(key, batch))


@pytest.fixture(scope="session")
def follow():
    """follow(env, params, policy) plays a policy of states; `follow.compiled()` counts the programs so far."""
    options = {"xla_backend_optimization_level": "0"}
    compiled = jax.jit(follow_policy, static_argnames=("env", "policy", "batch"), compiler_options=options)

    def follow(env, params, policy, batch=200):
        return compiled(env, params, jax.random.key(1), policy, batch)

    follow.compiled = compiled._cache_size
    return follow


@pytest.fixture(scope="session")
def rollout():
    """rollout(env, params, actions); `rollout.compiled()` counts the programs so far.

    They are compiled quickly rather than well, and shared by tests that use the same environment and number of steps.
    """
    options = {"xla_backend_optimization_level": "0"}
    compiled = jax.jit(play, static_argnames=("env", "batch"), compiler_options=options)

    def rollout(env, params, actions):
        return compiled(env, params, jax.random.key(0), jnp.asarray(actions), BATCH)

    rollout.compiled = compiled._cache_size
    return rollout
