"""Episodes of an enumerated environment under a policy that is a table: what estimators are judged on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

from jaxcredit.core.mdp import TabularMDP
from jaxcredit.core.trajectory import Trajectory
from jaxcredit.evaluation.oracle import action_values, optimal_values


def tabular_episodes(
    env: Any, params: Any, mdp: TabularMDP, policy: Float[Array, "S A"], key: jax.Array, number: int
) -> Trajectory:
    """Play whole episodes from fresh starts by the environment's own `step_env`.

    Args:
      env, params: an enumerated environment (`envs.FiniteEnvironment`).
      mdp: its table, which numbers the states.
      policy: probability of every action in every state.
      key: random key.
      number: how many episodes, static.
    Returns:
      The trajectory `[T, number]` over `mdp.horizon` steps, padded behind the end of each episode, with `log_prob`,
      `logits` (log-probabilities), `next_observation`, and in `extras`: `state`, `next_state` (before any reset; equal
      to `state` where the episode terminated) and `decisive`.  An episode open at the horizon is truncated there.
    """

    def step(carry: tuple[Any, Array, Array], inputs: tuple[Array, Array]) -> Any:
        env_state, state, alive = carry
        key, is_last = inputs
        action_key, step_key = jax.random.split(key)
        action = _choose(action_key, policy[state])
        _, following, reward, terminated, info = env.step_env(step_key, env_state, action, params)
        truncated = (env.is_truncated(following, params) | is_last) & ~terminated
        next_state = jnp.where(terminated, state, mdp.row(env.encode(following)))
        decisive = jnp.asarray(info.get("decisive", False), bool)
        record = state, next_state, action, jnp.where(alive, reward, 0), terminated, truncated, alive, decisive
        return (following, next_state, alive & ~(terminated | truncated)), record

    def episode(key: jax.Array) -> tuple[Array, ...]:
        reset_key, steps_key = jax.random.split(key)
        _, env_state = env.reset_env(reset_key, params)
        is_last = jnp.arange(mdp.horizon) == mdp.horizon - 1
        start = (env_state, mdp.row(env.encode(env_state)), jnp.ones((), bool))
        return jax.lax.scan(step, start, (jax.random.split(steps_key, mdp.horizon), is_last))[1]

    played = jax.vmap(episode, out_axes=1)(jax.random.split(key, number))
    state, next_state, action, reward, terminated, truncated, mask, decisive = played
    log_policy = jnp.log(policy)
    log_prob = log_policy[state, action]
    return Trajectory(
        observation=mdp.observation[state],
        action=action,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        first=jnp.broadcast_to(jnp.arange(mdp.horizon)[:, None] == 0, mask.shape),
        mask=mask,
        behaviour_log_prob=log_prob,
        next_observation=mdp.observation[next_state],
        log_prob=log_prob,
        logits=log_policy[state],
        extras={"state": state, "next_state": next_state, "decisive": decisive},
    )


def demonstrate(
    env: Any, params: Any, key: jax.Array, number: int, *, noise: ScalarLike = 0.0, gamma: ScalarLike = 1.0
) -> Trajectory:
    """Let the optimal policy of an enumerated environment play, for methods that learn from demonstrations.

    Args:
      env, params: an enumerated environment (`envs.FiniteEnvironment`).
      key: random key.
      number: how many episodes, static.
      noise: share of random actions, from 0 (the optimum) to 1 (all are random).
      gamma: discount that the optimal policy optimises.
    Returns:
      The trajectory of `tabular_episodes`.
    """
    mdp = env.mdp(params)
    action_value = action_values(mdp, optimal_values(mdp, gamma), gamma)
    best = jax.nn.one_hot(action_value.argmax(axis=1), mdp.num_actions, dtype=action_value.dtype)
    share = jnp.asarray(noise, best.dtype)
    return tabular_episodes(env, params, mdp, (1 - share) * best + share / mdp.num_actions, key, number)


def _choose(key: jax.Array, probability: Float[Array, "A"]) -> Array:
    """Draw an action by inverting the distribution function."""
    above = jax.random.uniform(key, dtype=probability.dtype) >= jnp.cumsum(probability)[:-1]
    return above.sum().astype(jnp.int32)
