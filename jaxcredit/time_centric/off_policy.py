"""Multi-step targets from the experience of another policy: V-trace and Retrace.

Ratios come as logarithms, log_rho_t = log pi(a_t | s_t) - log mu(a_t | s_t), and are clipped before `exp`, so that a
huge ratio gives neither an infinite value nor a NaN gradient.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, ScalarLike

from jaxcredit.core.estimator import Context, CreditEstimator, State
from jaxcredit.core.fields import INFINITY, choice, within
from jaxcredit.core.recurrence import FORMS, Form, backward_recurrence
from jaxcredit.core.trajectory import Trajectory, bootstrap_discount, over_columns, require, zero_padding
from jaxcredit.time_centric.returns import PerStep, conform, following, trace_factor


def clipped_ratio(log_rho: Float[Array, "T"], clip: ScalarLike) -> Float[Array, "T"]:
    """min(clip, rho) from the logarithm of rho."""
    return jnp.exp(jnp.minimum(log_rho, jnp.log(jnp.asarray(clip, log_rho.dtype))))


def vtrace(
    reward: Float[Array, "T"],
    value: Float[Array, "T"],
    next_value: Float[Array, "T"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
    log_rho: Float[Array, "T"],
    *,
    gamma: PerStep,
    lam: PerStep = 1.0,
    clip_rho: ScalarLike = 1.0,
    clip_c: ScalarLike = 1.0,
    form: Form = "auto",
) -> tuple[Float[Array, "T"], Float[Array, "T"]]:
    """V-trace value targets and policy-gradient advantages.

    vs_t - v_t = min(clip_rho, rho_t) delta_t + gamma l_t min(clip_c, rho_t) (vs_{t+1} - v_{t+1}),
    A_t = min(clip_rho, rho_t) (r_t + gamma (1 - terminated_t) [v_{t+1} + l_t (vs_{t+1} - v_{t+1})] - v_t),
    delta_t = r_t + gamma (1 - terminated_t) v_{t+1} - v_t,  l_t = lam (1 - (terminated_t | truncated_t)).

    Args:
      reward: r_t, follows action t.
      value: v_t, value of the observation before action t, in reward units.
      next_value: v_{t+1}, value of what followed action t *before any reset*, in reward units.
      terminated: the episode ended naturally after action t.
      truncated: a time limit cut the episode after action t.
      log_rho: log pi(a_t | s_t) - log mu(a_t | s_t), target policy pi against behaviour policy mu.
      gamma: discount in [0, 1], one for all or one per step.
      lam: trace decay in [0, 1], one for all or one per step.
      clip_rho: largest ratio on a TD error and on an advantage, positive; decides which policy's value is learned.
      clip_c: largest ratio in the trace, positive, at most `clip_rho`; trades variance against speed.
      form: how the recursion is computed, see `backward_recurrence`.
    Returns:
      The value targets vs_t and the advantages A_t, in reward units and in the reward's dtype.
    Raises:
      ValueError: as `lambda_returns`.
    Reference: Espeholt et al. (2018), "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
      Architectures", arXiv:1802.01561, section 4.
    Assumption: lam mixes vs_{t+1} with v_{t+1} in the advantage too; the paper states it for lam = 1 only.
    """
    value, next_value, log_rho = conform(
        reward, terminated, truncated, value=value, next_value=next_value, log_rho=log_rho
    )
    discount = bootstrap_discount(gamma, terminated, reward.dtype)
    trace = discount * trace_factor(lam, terminated, truncated, reward.dtype)
    rho, c = clipped_ratio(log_rho, clip_rho), clipped_ratio(log_rho, clip_c)
    td_error = reward + discount * next_value - value
    correction = backward_recurrence(trace * c, rho * td_error, jnp.zeros((), reward.dtype), form=form)
    return value + correction, rho * (td_error + trace * following(correction))


def retrace(
    reward: Float[Array, "T"],
    taken_value: Float[Array, "T"],
    next_value: Float[Array, "T"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
    log_rho: Float[Array, "T"],
    *,
    gamma: PerStep,
    lam: PerStep = 1.0,
    form: Form = "auto",
) -> Float[Array, "T"]:
    """Retrace(lambda) targets for the value of the action taken.

    G_t = r_t + gamma (1 - terminated_t) [v_{t+1} + l_t min(1, rho_{t+1}) (G_{t+1} - q_{t+1})],
    l_t = lam (1 - (terminated_t | truncated_t)).

    Args:
      reward: r_t, follows action t.
      taken_value: q_t = Q(s_t, a_t), in reward units; the first is not read.
      next_value: v_{t+1} = sum_a pi(a | s_{t+1}) Q(s_{t+1}, a) of what followed action t *before any reset*.
      terminated: the episode ended naturally after action t.
      truncated: a time limit cut the episode after action t.
      log_rho: log pi(a_t | s_t) - log mu(a_t | s_t), target against behaviour policy; the first is not read.
      gamma: discount in [0, 1], one for all or one per step.
      lam: trace decay in [0, 1], one for all or one per step (on the way from step t to t + 1).
      form: how the recursion is computed, see `backward_recurrence`.
    Returns:
      G_t in reward units and in the reward's dtype.
    Raises:
      ValueError: as `lambda_returns`.
    Reference: Munos et al. (2016), "Safe and Efficient Off-Policy Reinforcement Learning", arXiv:1606.02647, section 3.
    """
    taken_value, next_value, log_rho = conform(
        reward, terminated, truncated, taken_value=taken_value, next_value=next_value, log_rho=log_rho
    )
    discount = bootstrap_discount(gamma, terminated, reward.dtype)
    trace = discount * trace_factor(lam, terminated, truncated, reward.dtype) * following(clipped_ratio(log_rho, 1))
    one_step = reward + discount * next_value - trace * following(taken_value)
    return backward_recurrence(trace, one_step, jnp.zeros((), reward.dtype), form=form)


@struct.dataclass
class VTrace(CreditEstimator):
    """Estimator form of `vtrace`, with log_rho = log_prob - behaviour_log_prob.

    Attributes:
      gamma: discount.
      lam: trace decay.
      clip_rho: largest ratio on a TD error and on an advantage.
      clip_c: largest ratio in the trace.
      form: static; how the recursion is computed, see `backward_recurrence`.
    Reference: Espeholt et al. (2018), arXiv:1802.01561.
    """

    gamma: float = within(0, 1, 0.99)
    lam: float = within(0, 1, 1.0)
    clip_rho: float = within(0, INFINITY, 1.0)
    clip_c: float = within(0, INFINITY, 1.0)
    form: Form = choice("auto", FORMS)

    def assign(
        self, key: jax.Array, state: State, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, state, context
        log_prob, behaviour_log_prob = require(trajectory, "VTrace", "log_prob", "behaviour_log_prob")
        arrays = require(zero_padding(trajectory), "VTrace", "reward", "value", "next_value", "terminated", "truncated")
        log_rho = jnp.where(trajectory.mask, log_prob - behaviour_log_prob, 0)
        estimate = partial(
            vtrace, gamma=self.gamma, lam=self.lam, clip_rho=self.clip_rho, clip_c=self.clip_c, form=self.form
        )
        value_target, advantage = over_columns(estimate, *arrays, log_rho)
        return trajectory.replace(advantage=advantage, value_target=value_target)
