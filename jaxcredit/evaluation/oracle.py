"""Exact values of small decision processes by dynamic programming: gathers over sparse tables, nothing else."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxcredit.core.mdp import TabularMDP


def action_values(mdp: TabularMDP, value: Float[Array, "S"], gamma: ArrayLike = 1.0) -> Float[Array, "S A"]:
    """Look one step ahead:  Q(s, a) = sum_k p_k (r_k + gamma (1 - terminal_k) V(s'_k)).

    Args:
      mdp: the table.
      value: V of the following states, in reward units.
      gamma: discount per step.
    Returns:
      Q, in reward units; the advantage is `action_values(mdp, value) - value[:, None]`.
    """
    following = jnp.where(mdp.terminal, 0, jnp.asarray(gamma, value.dtype) * value[mdp.successor])
    return (mdp.probability * (mdp.reward + following)).sum(axis=-1)


def optimal_values(mdp: TabularMDP, gamma: ArrayLike = 1.0) -> Float[Array, "S"]:
    """Value of every state under the best policy, with `mdp.horizon` steps to go:  V(s) = max_a Q(s, a).

    Where the state contains the time, this is the exact value of every state.

    Args:
      mdp: the table.
      gamma: discount per step.
    Returns:
      V, in reward units.  The optimum of the task is `mdp.initial @ optimal_values(mdp)`.
    """
    return _backward_induction(mdp, gamma, lambda q: q.max(axis=1))


def policy_values(mdp: TabularMDP, policy: Float[Array, "S A"], gamma: ArrayLike = 1.0) -> Float[Array, "S"]:
    """Value of every state under a policy, with `mdp.horizon` steps to go:  V(s) = sum_a pi(a|s) Q(s, a).

    Args:
      mdp: the table.
      policy: probability of every action in every state; rows sum to 1.
      gamma: discount per step.
    Returns:
      V, in reward units.
    """
    return _backward_induction(mdp, gamma, lambda q: (policy * q).sum(axis=1))


def _backward_induction(mdp: TabularMDP, gamma: ArrayLike, backup: Callable[[Array], Array]) -> Array:
    def step(value: Array, _: None) -> tuple[Array, None]:
        return backup(action_values(mdp, value, gamma)), None

    nothing = jnp.zeros(mdp.num_states, mdp.reward.dtype)
    return jax.lax.scan(step, nothing, length=mdp.horizon)[0]
