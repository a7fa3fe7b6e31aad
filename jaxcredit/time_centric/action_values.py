"""n-step targets for action values: SARSA, expected SARSA, Q-learning.

Each is an n-step return (`jaxcredit.time_centric.returns`) with its own value of what followed the action.

Reference: Sutton and Barto (2018), "Reinforcement Learning: An Introduction", 2nd edition, chapter 7.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcredit.time_centric.returns import PerStep, check_steps, n_step_returns


def check_action_table(reward: Any, **tables: Any) -> None:
    """Raise a ValueError unless every table is `[T, A]` with the reward's T and one common A."""
    shapes = {name: table.shape for name, table in tables.items()}
    fits = all(len(shape) == 2 and shape[:1] == reward.shape for shape in shapes.values())
    if not fits or len(set(shapes.values())) != 1:
        given = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"{given} with reward {reward.shape}: [T, A] is needed, a row per step, a column per action.")


def n_step_sarsa(
    reward: Float[Array, "T"],
    next_action_value: Float[Array, "T A"],
    next_action: Int[Array, "T"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
    *,
    gamma: PerStep,
    n: int,
) -> Float[Array, "T"]:
    """n-step SARSA target for Q(s_t, a_t): `n_step_returns` with v_{t+1} = Q(s_{t+1}, a_{t+1}).

    Args:
      reward: r_t, follows action t.
      next_action_value: Q of what followed action t *before any reset*, for every action, in reward units.
      next_action: a_{t+1}, the action the policy takes there; sample it where the episode or the window was cut.
      terminated: the episode ended naturally after action t.
      truncated: a time limit cut the episode after action t.
      gamma: discount in [0, 1], one for all or one per step.
      n: number of rewards, at least 1, static.
    Returns:
      The target of step t in reward units and in the reward's dtype.
    Raises:
      ValueError: as `n_step_returns`; action values that are not `[T, A]`.
    Reference: Sutton and Barto (2018), Eq. 7.4.
    """
    check_action_table(reward, next_action_value=next_action_value)
    check_steps(reward, next_action=next_action)
    next_value = jnp.take_along_axis(next_action_value, next_action[:, None], axis=1)[:, 0]
    return n_step_returns(reward, next_value, terminated, truncated, gamma=gamma, n=n)


def n_step_expected_sarsa(
    reward: Float[Array, "T"],
    next_action_value: Float[Array, "T A"],
    next_probability: Float[Array, "T A"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
    *,
    gamma: PerStep,
    n: int,
) -> Float[Array, "T"]:
    """n-step expected SARSA target for Q(s_t, a_t): `n_step_returns` with v_{t+1} = E_pi Q(s_{t+1}, .).

    Args:
      reward: r_t, follows action t.
      next_action_value: Q of what followed action t *before any reset*, for every action, in reward units.
      next_probability: pi(. | s_{t+1}) there, rows sum to 1.
      terminated: the episode ended naturally after action t.
      truncated: a time limit cut the episode after action t.
      gamma: discount in [0, 1], one for all or one per step.
      n: number of rewards, at least 1, static.
    Returns:
      The target of step t in reward units and in the reward's dtype.
    Raises:
      ValueError: as `n_step_returns`; tables that are not `[T, A]`.
    Reference: Sutton and Barto (2018), Eq. 7.7.
    """
    check_action_table(reward, next_action_value=next_action_value, next_probability=next_probability)
    next_value = (next_probability * next_action_value).sum(axis=1)
    return n_step_returns(reward, next_value, terminated, truncated, gamma=gamma, n=n)


def n_step_q_learning(
    reward: Float[Array, "T"],
    next_action_value: Float[Array, "T A"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
    *,
    gamma: PerStep,
    n: int,
) -> Float[Array, "T"]:
    """n-step Q-learning target for Q(s_t, a_t): `n_step_returns` with v_{t+1} = max_a Q(s_{t+1}, a).

    Actions among the n that are not greedy are not corrected for. Double Q-learning is `n_step_returns` on the target
    network's value of the online network's best action.

    Args:
      reward: r_t, follows action t.
      next_action_value: Q of what followed action t *before any reset*, for every action, in reward units.
      terminated: the episode ended naturally after action t.
      truncated: a time limit cut the episode after action t.
      gamma: discount in [0, 1], one for all or one per step.
      n: number of rewards, at least 1, static.
    Returns:
      The target of step t in reward units and in the reward's dtype.
    Raises:
      ValueError: as `n_step_returns`; action values that are not `[T, A]`.
    Reference: Mnih et al. (2016), "Asynchronous Methods for Deep Reinforcement Learning", arXiv:1602.01783, section 4.
    """
    check_action_table(reward, next_action_value=next_action_value)
    return n_step_returns(reward, next_action_value.max(axis=1), terminated, truncated, gamma=gamma, n=n)
