"""Collecting experience inside compiled programs: windows with auto-reset, or whole padded episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcredit.core.statistics import Mean
from jaxcredit.core.trajectory import Trajectory

Act = Callable[[jax.Array, Any, Any, jax.Array], tuple[Any, jax.Array]]


@struct.dataclass
class Runner:
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
    runner: Runner,
    num_steps: int,
    *,
    episodic: bool,
    to_env: Callable[[jax.Array], jax.Array] = lambda action: action,
    log_info: tuple[str, ...] = (),
) -> tuple[Runner, Trajectory, dict[str, Mean]]:
    """Run the policy for `num_steps` in every environment.

    Args:
      env: gymnax environment; env_params: its parameters.
      act: (key, carry, observation, first) -> (carry, action), batched over environments.
      key: random key of the window.
      runner: where the environments stand; at a reset when `episodic`.
      num_steps: length T of the window, static.
      episodic: keep only the first episode of every environment, `mask` False behind it; one still open at T is marked
        truncated there.
      to_env: maps the policy's actions to the environment's.
      log_info: names of `info` entries to average over the last steps of episodes.
    Returns:
      the runner after the window, the trajectory `[T, B]` with `next_observation` (before any reset), and the means of
      `episode_return`, `episode_length` and `log_info` over the episodes that ended in it.
    """
    num_envs = runner.first.shape[0]
    names = ("episode_return", "episode_length", *log_info)

    def step(state: tuple[Runner, jax.Array, dict[str, Mean]], inputs: tuple[jax.Array, jax.Array]) -> Any:
        runner, alive, means = state
        key, is_last = inputs
        action_key, env_key = jax.random.split(key)
        carry, action = act(action_key, runner.carry, runner.observation, runner.first)
        observation, env_state, reward, terminated, truncated, info = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
            jax.random.split(env_key, num_envs), runner.env_state, to_env(action), env_params
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
            next_observation=info["final_observation"],
        )
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
    inputs = (jax.random.split(key, num_steps), jnp.arange(num_steps) == num_steps - 1)
    (runner, _, means), trajectory = jax.lax.scan(step, state, inputs)
    return runner, trajectory, means
