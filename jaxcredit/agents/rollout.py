"""Collecting experience inside compiled programs: windows with auto-reset, or whole padded episodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcredit.core.frozen import Frozen
from jaxcredit.core.statistics import Mean
from jaxcredit.core.trajectory import Trajectory

Act = Callable[[jax.Array, Any, Any, jax.Array], tuple[Any, jax.Array, Any]]

# starts of episodes up to this size are drawn for a whole window at once, whether needed or not
SMALL_START = 256  # bytes


@struct.dataclass
class Runner(Frozen):
    """Where `B` environments stand between two windows.

    Attributes:
      env_state: pytree `[B, ...]`.
      observation: pytree `[B, ...]`, what the next action will be based on.
      first: `[B]` bool, that action starts an episode.
      carry: pytree `[B, ...]`, the policy's hidden state.
      episode_return: `[B]` float32, undiscounted return of the running episode so far.
      episode_length: `[B]` float32.
    """

    env_state: Any
    observation: Any
    first: jax.Array
    carry: Any
    episode_return: jax.Array
    episode_length: jax.Array


def start(env: Any, env_params: Any, key: jax.Array, num_envs: int, carry: Any, group_size: int = 1) -> Runner:
    """Reset `num_envs` environments; the members of a group share their reset key, hence their start."""
    keys = jnp.repeat(jax.random.split(key, num_envs // group_size), group_size)
    observation, env_state = jax.vmap(env.reset, in_axes=(0, None))(keys, env_params)
    zeros = jnp.zeros(num_envs)
    return Runner(env_state, observation, jnp.ones(num_envs, bool), carry, zeros, zeros)


def environment_name(env: Any) -> str:
    """What an environment is called in messages and figures."""
    return str(getattr(env, "name", env))


def over_devices(tree: Any, axis: int) -> Any:
    """Lay the environments, which are this axis of every array, over the devices of the process; the compiler knows how
    to go on from there."""
    mesh = Mesh(np.asarray(jax.local_devices()), ("environments",))
    sharding = NamedSharding(mesh, PartitionSpec(*(None,) * axis, "environments"))
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, sharding), tree)


def collect(
    env: Any,
    env_params: Any,
    act: Act,
    key: jax.Array,
    noise: jax.Array,
    runner: Runner,
    *,
    episodic: bool,
    to_env: Callable[[jax.Array], jax.Array] = lambda action: action,
    log_info: tuple[str, ...] = (),
    keep_info: tuple[str, ...] = (),
) -> tuple[Runner, Trajectory, dict[str, Mean]]:
    """Run the policy for T steps in every environment.  All that is random is drawn before the first step.

    Args:
      env: gymnax environment; env_params: its parameters.
      act: (noise, carry, observation, first) -> (carry, action, distribution parameters), batched over environments.
      key: random key of the environments in this window.
      noise: `[T, B, ...]`, what `act` draws its actions with; its length is the window's.
      runner: where the environments stand; at a reset when `episodic`.
      episodic: keep only the first episode of every environment: it stands still behind the end, where `mask` is False;
        one still open at T is marked truncated there.  Otherwise another episode starts where one ended.
      to_env: maps the policy's actions to the environment's.
      log_info: names of `info` entries to average over the last steps of episodes.
      keep_info: names of `info` entries to keep for every step, in `extras`; those that there are.
    Returns:
      the runner after the window, the trajectory `[T, B]` with `logits` and `next_observation` (before any reset), and
      the means of `episode_return`, `episode_length` and `log_info` over the episodes that ended in it.
    """
    num_steps, num_envs = noise.shape[:2]
    names = ("episode_return", "episode_length", *log_info)
    advance = jax.vmap(partial(_advance, env), in_axes=(0, 0, 0, None))
    fresh, restart = _restarts(env, env_params, jax.random.fold_in(key, 1), (num_steps, num_envs))

    def step(state: tuple[Runner, jax.Array, dict[str, Mean]], inputs: tuple[Any, ...]) -> Any:
        runner, alive, means = state
        noise, key, fresh, is_last = inputs
        carry, action, logits = act(noise, runner.carry, runner.observation, runner.first)
        (following, env_state), reward, terminated, truncated, info = advance(
            key, runner.env_state, to_env(action), env_params
        )
        if episodic:
            truncated = truncated | (is_last & ~terminated)
        ended = terminated | truncated
        totals = {
            "episode_return": runner.episode_return + reward,
            "episode_length": runner.episode_length + 1,
            **{name: info[name] for name in log_info},
        }
        means = {name: means[name] + Mean.of(totals[name], ended & alive) for name in names}
        transition = Trajectory(
            observation=runner.observation,
            action=action,
            reward=jnp.where(alive, reward, 0),
            terminated=terminated,
            truncated=truncated,
            first=runner.first,
            mask=alive,
            next_observation=following,
            logits=logits,
            extras={name: info[name] for name in keep_info if name in info},
        )
        if episodic:
            observation, env_state = _where(alive, (following, env_state), (runner.observation, runner.env_state))
        else:
            observation, env_state = _where(ended, restart(fresh), (following, env_state))
        runner = Runner(
            env_state,
            observation,
            first=ended,
            carry=carry,
            episode_return=jnp.where(ended, 0, totals["episode_return"]),
            episode_length=jnp.where(ended, 0, totals["episode_length"]),
        )
        return (runner, alive & ~ended if episodic else alive, means), transition

    no_episode = Mean(total=jnp.zeros(()), count=jnp.zeros(()))
    state = (runner, jnp.ones(num_envs, bool), dict.fromkeys(names, no_episode))
    keys = jax.random.split(jax.random.fold_in(key, 0), (num_steps, num_envs))
    inputs = (noise, keys, fresh, jnp.arange(num_steps) == num_steps - 1)
    (runner, _, means), trajectory = jax.lax.scan(step, state, inputs)
    return runner, trajectory, means


def _advance(env: Any, key: jax.Array, env_state: Any, action: jax.Array, env_params: Any) -> tuple[Any, ...]:
    """One step of one environment, without reset."""
    observation, env_state, reward, terminated, info = env.step_env(key, env_state, action, env_params)
    return (observation, env_state), reward, terminated, env.is_truncated(env_state, env_params), info


def _restarts(env: Any, env_params: Any, key: jax.Array, shape: tuple[int, int]) -> tuple[Any, Callable[[Any], Any]]:
    """What an episode that starts at step t of environment b would start with: `[T, B, ...]`, and how to make a start
    of it.  Each has a key of its own; only small starts are made in advance."""
    restart = jax.vmap(lambda key: env.reset_env(key, env_params))
    keys = jax.random.split(key, shape)
    start = jax.eval_shape(restart, keys[0, :1])
    if sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(start)) > SMALL_START:
        return keys, restart
    return jax.vmap(restart)(keys), lambda fresh: fresh


def _where(condition: jax.Array, yes: Any, no: Any) -> Any:
    """Choose between two pytrees `[B, ...]` by a condition `[B]`."""
    return jax.vmap(lambda c, y, n: jax.tree.map(partial(jax.lax.select, c), y, n))(condition, yes, no)
