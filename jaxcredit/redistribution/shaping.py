"""Potential-based shaping: extra rewards that cancel along every episode, so that the optimal policy stays.

References:
  Ng, Harada and Russell (1999), "Policy invariance under reward transformations".
  Wiewiora, Cottrell and Elkan (2003), "Principled methods for advising reinforcement learning agents" (look-ahead and
    look-back).
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, ScalarLike

from jaxcredit.core.trajectory import bootstrap_discount


def shaping_reward(
    potential: Float[Array, "T"],
    next_potential: Float[Array, "T"],
    terminated: Bool[Array, "T"],
    *,
    gamma: ScalarLike,
) -> Float[Array, "T"]:
    """What to add to the reward of step t:  F_t = gamma (1 - terminated_t) Phi'_t - Phi_t.

    The discounted sum along an episode that ends naturally is  -Phi_0,  whatever the policy.  With potentials of states
    this is reward shaping; with potentials of state-action pairs, Phi'_t = Phi(s_{t+1}, a_{t+1}), look-ahead advice,
    where the policy must act by  argmax_a Q(s, a) + Phi(s, a).

    Args:
      potential: Phi_t of the state (or state and action) of step t, in reward units.
      next_potential: Phi'_t of what followed action t *before any reset*; not read behind a natural end.
      terminated: the episode ended naturally after action t.  A time limit keeps the potential of what followed.
      gamma: discount in [0, 1].
    Returns:
      F_t, in reward units.
    """
    discount = bootstrap_discount(gamma, terminated, potential.dtype)
    return jnp.where(terminated, 0, discount * next_potential) - potential


def look_back_reward(potential: Float[Array, "T"], first: Bool[Array, "T"], *, gamma: ScalarLike) -> Float[Array, "T"]:
    """Look-back advice:  F_t = Phi(s_t, a_t) - Phi(s_{t-1}, a_{t-1}) / gamma,  Phi = 0 before an episode.

    For learners on the policy's own actions (SARSA): unlike look-ahead it needs no bias of the policy.

    Args:
      potential: Phi(s_t, a_t), in reward units.
      first: step t starts an episode.
      gamma: discount, above 0.
    Returns:
      F_t, in reward units.
    """
    before = jnp.concatenate([jnp.zeros_like(potential[:1]), potential[:-1]])
    return potential - jnp.where(first, 0, before / jnp.asarray(gamma, potential.dtype))
