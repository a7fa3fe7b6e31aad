"""Eligibility traces: TD(lambda) that learns at every step, for values linear in features, as a body for `lax.scan`.

    learn = partial(online_td_lambda, gamma=0.99, lam=0.9, learning_rate=0.1)
    state, td_error = jax.lax.scan(learn, init_trace(weights), steps)

References:
  Singh and Sutton (1996), "Reinforcement Learning with Replacing Eligibility Traces".
  van Seijen et al. (2016), "True Online Temporal-Difference Learning", arXiv:1512.04087.
"""

from __future__ import annotations

import difflib
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

TraceKind = Literal["accumulating", "replacing", "dutch"]
TRACE_KINDS = ("accumulating", "replacing", "dutch")


class TraceState(NamedTuple):
    """What an online learner of linear values carries from step to step.

    Attributes:
      weights: `[D]`, the value of features x is weights . x, in reward units.
      trace: `[D]`, eligibility of each weight; 0 at the start of an episode.
      previous_value: `[]`, value of the present observation before the last update of the weights.
    """

    weights: jax.Array
    trace: jax.Array
    previous_value: jax.Array


class FeatureStep(NamedTuple):
    """One step of experience in features; `lax.scan` takes leaves with a leading time axis.

    Attributes:
      feature: `[D]`, x_t of the observation before action t.
      reward: `[]`, r_t, follows action t.
      next_feature: `[D]`, x of what followed action t, before any reset.
      terminated: `[]` bool, the episode ended naturally after action t.
      truncated: `[]` bool, a time limit cut the episode after action t.
    """

    feature: jax.Array
    reward: jax.Array
    next_feature: jax.Array
    terminated: jax.Array
    truncated: jax.Array


def init_trace(weights: Float[Array, "D"]) -> TraceState:
    """State before the first step: the given weights and an empty trace."""
    weights = jnp.asarray(weights)
    if not jnp.issubdtype(weights.dtype, jnp.floating):
        raise ValueError(f"weights have dtype {weights.dtype}; what is learned must be floats: weights.astype(float).")
    return TraceState(weights, jnp.zeros_like(weights), jnp.zeros((), weights.dtype))


def mark_trace(
    trace: Float[Array, "D"],
    feature: Float[Array, "D"],
    *,
    decay: ScalarLike,
    learning_rate: ScalarLike,
    kind: TraceKind,
) -> Float[Array, "D"]:
    """Let an eligibility trace decay and mark the features of the present step in it.

    accumulating: z <- d z + x;   replacing: z_i <- x_i where feature i is active (not 0), else d z_i;
    dutch: z <- d z + (1 - alpha d z . x) x.

    Args:
      trace: z after the previous step; 0 at the start of an episode.
      feature: x_t of the present observation.
      decay: d = gamma lam.
      learning_rate: alpha, the learner's step size; only the dutch trace reads it.
      kind: "accumulating", "replacing" or "dutch".
    Returns:
      The new trace, in the old one's dtype.
    Raises:
      ValueError: unknown `kind`.
    Reference: Sutton and Barto (2018), sections 12.2 and 12.5.
    Assumption: replacing traces are defined for binary features; an active feature of another size marks its own size.

    >>> z, x = jnp.array([1.0, 1.0]), jnp.array([1.0, 0.0])
    >>> mark_trace(z, x, decay=0.5, learning_rate=0.5, kind="accumulating").tolist()
    [1.5, 0.5]
    >>> mark_trace(z, x, decay=0.5, learning_rate=0.5, kind="replacing").tolist()
    [1.0, 0.5]
    >>> mark_trace(z, x, decay=0.5, learning_rate=0.5, kind="dutch").tolist()
    [1.25, 0.5]
    """
    if kind not in TRACE_KINDS:
        near = difflib.get_close_matches(str(kind), TRACE_KINDS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"kind={kind!r} is not known; choose one of {', '.join(TRACE_KINDS)}.{hint}")
    feature = feature.astype(trace.dtype)
    decayed = jnp.asarray(decay, trace.dtype) * trace
    if kind == "accumulating":
        return decayed + feature
    if kind == "replacing":
        return jnp.where(feature != 0, feature, decayed)
    return decayed + (1 - jnp.asarray(learning_rate, trace.dtype) * (decayed @ feature)) * feature


def online_td_lambda(
    state: TraceState,
    step: FeatureStep,
    *,
    gamma: ScalarLike,
    lam: ScalarLike,
    learning_rate: ScalarLike,
    kind: TraceKind = "dutch",
) -> tuple[TraceState, Float[Array, ""]]:
    """One online update of linear values by TD(lambda); with the dutch trace, true online TD(lambda).

    delta = r_t + gamma (1 - terminated_t) w . x_{t+1} - w . x_t,  z as in `mark_trace`,
    w <- w + alpha delta z,  and with the dutch trace further  + alpha (w . x_t - v_old) (z - x_t),
    where v_old is the value of x_t before the previous update. After an end of either kind the trace is empty; at a
    time limit the step bootstraps first, from the observation before the reset.

    Args:
      state: weights, trace and v_old, from `init_trace` or the previous step.
      step: features, reward and ends of step t.
      gamma: discount in [0, 1].
      lam: trace decay in [0, 1].
      learning_rate: alpha, the step size.
      kind: "dutch" equals the online lambda-return algorithm exactly; "accumulating" and "replacing" are the classic
        forms, which approach it as alpha goes to 0.
    Returns:
      The new state and the TD error delta, in reward units; everything in the weights' dtype.
    Raises:
      ValueError: unknown `kind`.
    Reference: van Seijen et al. (2016), arXiv:1512.04087, Algorithm 1.
    """
    weights, trace, previous_value = state
    dtype = weights.dtype
    gamma, lam, alpha = (jnp.asarray(x, dtype) for x in (gamma, lam, learning_rate))
    reward, feature, next_feature = (x.astype(dtype) for x in (step.reward, step.feature, step.next_feature))

    value, next_value = weights @ feature, weights @ next_feature
    td_error = reward + jnp.where(step.terminated, 0, gamma * next_value) - value
    trace = mark_trace(trace, feature, decay=gamma * lam, learning_rate=alpha, kind=kind)
    weights = weights + alpha * td_error * trace
    if kind == "dutch":
        weights = weights + alpha * (value - previous_value) * (trace - feature)

    goes_on = ~(step.terminated | step.truncated)
    return TraceState(weights, jnp.where(goes_on, trace, 0), jnp.where(goes_on, next_value, 0)), td_error
