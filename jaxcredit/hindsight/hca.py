"""HCA: would I have done this, knowing where it led, or how much came of it?

Where the answer h(a | s, outcome) is no different from the policy, the action did not matter.  Two outcomes: a later
state, which gives every action credit for the rewards met there, and the return.

    state:   Q(s, a) = r(s, a) + E[ sum_{k>=1} gamma^k h(a | s, S_k) / pi(a|s) R_k ]
    return:  A(s, a) = E[ (1 - pi(a|s) / h(a | s, Z)) Z | s, a ] = E[ (h(a | s, Z) / pi(a|s) - 1) Z | s ]

The middle form holds where every return of the state can follow the action (`return_hindsight_advantage`).  The first,
less the mean over the actions, is contribution credit whose outcomes are states:
`contribution_credit(hindsight_coefficient(h, pi), reward, ...)`; with TD errors in the place of rewards, delta-HCA.
The state must be the one that the reward comes with: a reward for leaving a state that looks the same whatever was done
before has h = pi, and no credit.

Reference: Harutyunyan et al. (2019), "Hindsight Credit Assignment", arXiv:1912.02503.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def hindsight_coefficient(hindsight: Float[Array, "*O A"], probability: Float[Array, "*P A"]) -> Float[Array, "*O A"]:
    """How much likelier an action is in hindsight:  w = h(a | s, outcome) / pi(a|s) - 1.

    Args:
      hindsight: h, probability of each action, knowing the outcome; `[T, T, A]` for all pairs of steps.
      probability: pi, of a shape that `hindsight` broadcasts with: `[T, 1, A]`.
    Returns:
      w, without unit, from -1 to 1 / pi - 1; exactly 0 for actions that the policy never takes.
    """
    possible = probability > 0
    return jnp.where(possible, hindsight / jnp.where(possible, probability, 1) - 1, 0)


def return_hindsight_credit(
    hindsight: Float[Array, "T A"], probability: Float[Array, "T A"], total: Float[Array, "T"], mask: Bool[Array, "T"]
) -> Float[Array, "T A"]:
    """Credit of every action, taken or not:  (h(a | s_t, Z_t) / pi(a|s_t) - 1) Z_t.

    Args:
      hindsight: h, probability of each action, knowing the return.
      probability: pi(a|s_t).
      total: Z_t, return from step t on (reward units), discounted or not as h was.
      mask: True on the episode's own steps; padded steps get exactly 0.
    Returns:
      Credit in reward units and in the return's dtype; its mean over the policy is 0.
    """
    coefficient = hindsight_coefficient(hindsight, probability).astype(total.dtype)
    return jnp.where(mask[:, None], coefficient, 0) * jnp.where(mask, total, 0)[:, None]


def return_hindsight_advantage(
    hindsight: Float[Array, "T A"],
    probability: Float[Array, "T A"],
    action: Int[Array, "T"],
    total: Float[Array, "T"],
    mask: Bool[Array, "T"],
) -> Float[Array, "T"]:
    """Credit of the action taken:  (1 - pi(A_t|s_t) / h(A_t | s_t, Z_t)) Z_t.

    Its mean is the advantage only where every return that may follow the state may follow the action:  E[pi/h Z | s, a]
    sums over the returns of this action alone, and so falls short of V by those that other actions bring.
    `return_hindsight_credit` has no such condition.

    Args, see `return_hindsight_credit`, and
      action: A_t, int.
    Returns:
      Advantage in reward units and in the return's dtype; not bounded where h is small, and 0 where it is 0, which an
      exact h of an action that was taken never is.
    """
    taken, expected = (jnp.take_along_axis(x, action[:, None], axis=1)[:, 0] for x in (hindsight, probability))
    known = mask & (taken > 0)
    ratio = (jnp.where(known, expected, 1) / jnp.where(known, taken, 1)).astype(total.dtype)
    return (1 - ratio) * jnp.where(known, total, 0)
