"""Training and evaluation as pure functions: one seed, one agent; `vmap` gives many."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxcredit.agents.agent import Agent, TrainState
from jaxcredit.agents.rollout import start
from jaxcredit.core.statistics import Mean

COUNTERS = ("total_steps", "valid_steps", "episodes")


def train(
    agent: Agent, key: jax.Array, num_iterations: int, *, num_points: int = 128
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Train one seed from scratch.  Pure: jit it (`static_argnums=2`), vmap it over keys and over agents.

    Args:
      agent: what to train, on which environment, with which credit.
      key: typed random key of the seed (`jax.random.key`).
      num_iterations: number of collected batches, static.
      num_points: most points of a curve, static; memory does not grow with training beyond it.
    Returns:
      the final state, and the curves of `advance`.
    """
    return advance(agent, agent.init(key), num_iterations, num_points=num_points)


def advance(
    agent: Agent, state: TrainState, num_iterations: int, *, num_points: int = 128
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Continue training for `num_iterations`.

    Returns:
      the new state, and metrics `[P]` with P <= num_points: each point averages ceil(num_iterations / num_points)
      iterations (the last may hold fewer).  `episode_return`, `episode_length` and the agent's `log_info` are means
      over the episodes that ended there, NaN if none did; `total_steps`, `valid_steps` and `episodes` are counts at
      its end.
    Raises:
      ValueError: num_iterations or num_points below 1.
    """
    for name, number in (("num_iterations", num_iterations), ("num_points", num_points)):
        if not isinstance(number, int) or number < 1:
            raise ValueError(
                f"{name}={number!r} is not allowed; give a whole number of at least 1 "
                "(under jit, name it in static_argnums)."
            )
    width = -(-num_iterations // num_points)
    points = -(-num_iterations // width)
    zeros = jnp.zeros(points)
    sums = {name: Mean(zeros, zeros) for name in jax.eval_shape(_step, agent, state)[1]}
    counts = {name: jnp.zeros(points, jnp.int32) for name in COUNTERS}

    def iteration(carry: Any, _: None) -> tuple[Any, None]:
        # `i` starts from a Python int: it stays one scalar however many seeds run, and indexing stays a slice
        i, state, sums, counts = carry
        state, metrics = _step(agent, state)
        point = i // width
        sums = {
            name: Mean(sums[name].total.at[point].add(new.total), sums[name].count.at[point].add(new.count))
            for name, new in metrics.items()
        }
        counts = {name: counts[name].at[point].set(getattr(state, name)) for name in COUNTERS}
        return (i + 1, state, sums, counts), None

    (_, state, sums, counts), _ = jax.lax.scan(iteration, (0, state, sums, counts), length=num_iterations)
    return state, {name: mean.value for name, mean in sums.items()} | counts


@partial(jax.jit, inline=True)
def _step(agent: Agent, state: TrainState) -> tuple[TrainState, dict[str, Mean]]:
    """`agent.step`, traced once for its shapes and for the loop, in every program of a process."""
    return agent.step(state)


def evaluate(agent: Agent, state: TrainState, key: jax.Array, num_episodes: int = 256) -> dict[str, jax.Array]:
    """Run the sampled policy on fresh episodes, without learning.

    Args:
      agent: the agent that `state` belongs to.
      state: a training state; only its parameters and observation moments are used.
      key: random key, independent of training.
      num_episodes: how many episodes, run side by side; static.
    Returns:
      means over the episodes of `episode_return`, `episode_length` and the agent's `log_info`, each a scalar; all NaN
      if the parameters are not finite (training diverged).
    Raises:
      ValueError: neither the agent nor the environment says how long an episode may last.
    """
    horizon = agent.horizon or getattr(agent.env, "horizon", None)
    if horizon is None:
        raise ValueError("evaluate() needs to know how long an episode may last: give the agent horizon=N.")
    reset_key, run_key = jax.random.split(key)
    runner = start(agent.env, agent.env_params, reset_key, num_episodes, agent.policy.initial_carry(num_episodes))
    _, _, means = agent.play(run_key, state.params, state.moments, runner, int(horizon), episodic=True)
    sound = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params)]).all()
    return {name: jnp.where(sound, mean.value, jnp.nan) for name, mean in means.items()}
