"""Exact hindsight: who led to what, as probabilities and contribution coefficients, from a table and a policy.

Outcomes are numbered by an array `[S, A, K]` beside the table's own: `state_outcomes` and `reward_outcomes` make the
two encodings of the literature, any other is a user's array of codes 0 .. U - 1, with -1 where nothing counts.

References:
  Harutyunyan et al. (2019), "Hindsight Credit Assignment", arXiv:1912.02503.
  Meulemans et al. (2023), "Would I have gotten that reward? Long-term credit assignment by counterfactual contribution
    analysis", arXiv:2306.16803.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from jaxcredit.core.mdp import TabularMDP
from jaxcredit.evaluation.oracle import expected_next


def state_outcomes(mdp: TabularMDP) -> Int[Array, "S A K"]:
    """The outcome of a step is the state it is taken in: coefficients are then those of state-HCA ("HCA+")."""
    return jnp.broadcast_to(jnp.arange(mdp.num_states)[:, None, None], mdp.successor.shape)


def reward_outcomes(mdp: TabularMDP) -> tuple[Int[Array, "S A K"], int]:
    """The outcome of a step is the value of its reward ("COCOA-reward").  Needs a concrete table.

    Returns:
      The codes, in the order of the rewards, and how many there are.
    """
    possible = np.asarray(mdp.probability) > 0
    reward = np.asarray(mdp.reward)
    values = np.unique(reward[possible])
    return jnp.asarray(np.where(possible, np.searchsorted(values, reward), -1).astype(np.int32)), len(values)


def future_outcomes(
    mdp: TabularMDP,
    policy: Float[Array, "S A"],
    outcome: Int[Array, "S A K"],
    num_outcomes: int,
    gamma: ArrayLike = 1.0,
) -> Float[Array, "S A U"]:
    """How often each outcome is to come:  M(s, a, u) = E[ sum_{k>=1} gamma^k 1(U_{t+k} = u) | S_t = s, A_t = a ].

    Args:
      mdp: the table.
      policy: probability of every action in every state.
      outcome: code of every outcome; -1 counts for nothing.
      num_outcomes: static U, above every code.
      gamma: discount per step.
    Returns:
      M, a number of steps (discounted).
    """
    one_hot = jax.nn.one_hot(outcome, num_outcomes, dtype=mdp.reward.dtype)
    return _future(mdp, policy, jnp.einsum("sa,sak,saku->su", policy, mdp.probability, one_hot), gamma)


def contribution_coefficients(future: Float[Array, "S A U"], policy: Float[Array, "S A"]) -> Float[Array, "S A U"]:
    """How much more of an outcome an action brings than the policy:  w = M(s, a, u) / sum_b pi(b|s) M(s, b, u) - 1.

    Args:
      future: M, from `future_outcomes`.
      policy: probability of every action in every state.
    Returns:
      w, without unit; 0 for outcomes that do not follow the state at all.
    """
    mean = jnp.einsum("sa,sau->su", policy, future)[:, None, :]
    comes = mean > 0
    return jnp.where(comes, future / jnp.where(comes, mean, 1) - 1, 0)


def hindsight_distribution(future: Float[Array, "S A U"], policy: Float[Array, "S A"]) -> Float[Array, "S A U"]:
    """Which action was taken, knowing what followed:  h(a | s, u) = pi(a|s) M(s, a, u) / sum_b pi(b|s) M(s, b, u).

    With `state_outcomes` this is h(a | s, s') of HCA; the discount of `future` weighs the times at which s' may follow.
    With a `return_distribution` in the place of M it is h(a | s, G).

    Args, see `contribution_coefficients`.
    Returns:
      h, sums to 1 over the actions; the policy itself for outcomes that do not follow the state.
    """
    return policy[:, :, None] * (1 + contribution_coefficients(future, policy))


def return_distribution(
    mdp: TabularMDP, policy: Float[Array, "S A"], lowest: float, unit: float, number: int
) -> Float[Array, "S A Z"]:
    """Distribution of the undiscounted return:  P(G = lowest + z unit | S_t = s, A_t = a),  z < number.

    Args:
      mdp: the table, concrete; its rewards are multiples of `unit`.
      policy: probability of every action in every state.
      lowest: smallest return to be told apart, a multiple of `unit`; `number`: how many returns.
      unit: distance of neighbouring returns, in reward units.
    Returns:
      The probabilities; they sum to 1 where the range holds every return, else to less.
    Raises:
      ValueError: a `unit` that is not positive, a reward or `lowest` that is no multiple of it.
    """
    if not 0 < unit < np.inf:
        raise ValueError(f"unit={unit!r} is not allowed: it is the distance of neighbouring returns, above 0.")
    possible = np.asarray(mdp.probability) > 0
    reward = np.asarray(mdp.reward) / unit
    steps, start = np.rint(reward), round(lowest / unit)
    if np.abs(reward - steps)[possible].max() > 1e-3 or abs(lowest / unit - start) > 1e-3:
        raise ValueError(
            f"unit={unit}: the rewards of the table and lowest={lowest} must be whole multiples of it. Choose a finer "
            "unit, or round the rewards."
        )
    place = jnp.arange(number) - jnp.asarray(np.where(possible, steps, 0), jnp.int32)[..., None]
    nothing_follows = (jnp.arange(number) + start == 0).astype(mdp.reward.dtype)

    def shifted(later: Float[Array, "S Z"]) -> Float[Array, "S A Z"]:
        follows = jnp.where(mdp.terminal[..., None], nothing_follows, later[mdp.successor])
        moved = jnp.take_along_axis(follows, jnp.clip(place, 0, number - 1), axis=-1)
        inside = (place >= 0) & (place < number)
        return (mdp.probability[..., None] * jnp.where(inside, moved, 0)).sum(axis=2)

    def step(later: Array, _: None) -> tuple[Array, None]:
        return jnp.einsum("sa,saz->sz", policy, shifted(later)), None

    first = jnp.broadcast_to(nothing_follows, (mdp.num_states, number))
    return shifted(jax.lax.scan(step, first, length=mdp.horizon - 1)[0])


def expected_contribution_credit(
    mdp: TabularMDP,
    policy: Float[Array, "S A"],
    coefficient: Float[Array, "S A U"],
    outcome: Int[Array, "S A K"],
    gamma: ArrayLike = 1.0,
) -> Float[Array, "S A"]:
    """What contribution credit is worth on average:  r(s, a) + E[ sum_{k>=1} gamma^k w(s, a, U_k) R_k | s ].

    With exact coefficients of outcomes that determine the reward this is the advantage, up to a part that is the same
    for all actions.

    Args:
      mdp: the table.
      policy: probability of every action in every state.
      coefficient: w of every action for every outcome.
      outcome: code of every outcome; -1 counts for nothing.
      gamma: discount per step.
    Returns:
      Expected credit of every action, in reward units.
    """
    one_hot = jax.nn.one_hot(outcome, coefficient.shape[-1], dtype=mdp.reward.dtype)
    paid = jnp.einsum("sa,sak,sak,saku->su", policy, mdp.probability, mdp.reward, one_hot)
    future_reward = jnp.einsum("sa,sau->su", policy, _future(mdp, policy, paid, gamma))
    return (mdp.probability * mdp.reward).sum(axis=-1) + jnp.einsum("sau,su->sa", coefficient, future_reward)


def _future(
    mdp: TabularMDP, policy: Float[Array, "S A"], now: Float[Array, "S U"], gamma: ArrayLike
) -> Float[Array, "S A U"]:
    """Discounted sum of `now` over the steps that follow every state and action."""
    gamma = jnp.asarray(gamma, now.dtype)

    def step(later: Array, _: None) -> tuple[Array, None]:
        return now + gamma * jnp.einsum("sa,sau->su", policy, expected_next(mdp, later)), None

    later = jax.lax.scan(step, now, length=mdp.horizon - 2)[0] if mdp.horizon > 1 else jnp.zeros_like(now)
    return gamma * expected_next(mdp, later)
