"""Trajectory-wise control variates: the luck of every later decision is subtracted, not only that of the present one.

Reference: Cheng, Yan and Boots (2019), "Trajectory-wise Control Variates for Variance Reduction in Policy Gradient
Methods", arXiv:1908.03263.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from jaxcredit.core.recurrence import Form, backward_recurrence
from jaxcredit.core.trajectory import bootstrap_discount, continues
from jaxcredit.time_centric.action_values import check_action_table
from jaxcredit.time_centric.returns import conform


def trajectory_control_variate(
    reward: Float[Array, "T"],
    action: Int[Array, "T"],
    action_value: Float[Array, "T A"],
    next_value: Float[Array, "T"],
    probability: Float[Array, "T A"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
    *,
    gamma: ScalarLike,
    form: Form = "auto",
) -> Float[Array, "T A"]:
    """Credit of every action:  Q(s_t, a) + 1(a = A_t) / pi(A_t|s_t) sum_{k>=t} gamma^{k-t} delta_k,

    delta_k = r_k + gamma (1 - terminated_k) V(s_{k+1}) - Q(s_k, A_k);  the sum ends with the episode.  Unbiased for any
    Q with V(s) = sum_a pi(a|s) Q(s, a); without variance but that of the environment where Q is exact.

    Args:
      reward: r_t, follows action t.
      action: action taken, int.
      action_value: Q(s_t, .), in reward units.
      next_value: V of what followed action t *before any reset*.
      probability: pi(a|s_t).
      terminated: the episode ended naturally after action t.
      truncated: a time limit cut the episode after action t.
      gamma: discount in [0, 1].
      form: see `backward_recurrence`.
    Returns:
      Credit of every action in reward units, to be weighed by the policy:  gradient = sum_a grad pi(a|s) credit(a).
    Raises:
      ValueError: arrays that do not fit one trajectory.
    """
    (next_value,) = conform(reward, terminated, truncated, next_value=next_value)
    check_action_table(reward, action_value=action_value, probability=probability)
    own = jax.nn.one_hot(action, probability.shape[-1], dtype=reward.dtype)
    taken_value, taken = ((own * table.astype(reward.dtype)).sum(axis=-1) for table in (action_value, probability))
    discount = bootstrap_discount(gamma, terminated, reward.dtype)
    error = reward + jnp.where(terminated, 0, discount * next_value) - taken_value
    decay = jnp.asarray(gamma, reward.dtype) * continues(terminated, truncated).astype(reward.dtype)
    surprise = backward_recurrence(decay, error, jnp.zeros((), reward.dtype), form=form)
    weight = jnp.where(taken > 0, 1 / jnp.where(taken > 0, taken, 1), 0)
    return action_value.astype(reward.dtype) + own * (weight * surprise)[:, None]
