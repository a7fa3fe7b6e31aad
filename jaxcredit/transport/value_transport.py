"""Temporal Value Transport: a strong read of the memory pays the steps that are read with the value of the reader.

Reference: Hung et al. (2019), "Optimizing agent behavior over long time scales by transporting value",
arXiv:1810.06721, and its public code.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from jaxcredit.core.estimator import Context, CreditEstimator, State
from jaxcredit.core.fields import INFINITY, choice, whole, within
from jaxcredit.core.trajectory import Trajectory, episode_starts, over_columns, require, zero_padding

Rounding = Literal["exact", "released"]
ROUNDINGS = ("exact", "released")
UNDISCOUNTED_WINDOW = 25
# int(1 / (1 - gamma)) as doubles give it, for gamma = 0.000, 0.001, ..., 0.999
RELEASED_WINDOWS = np.array([int(1 / (1 - k / 1000)) for k in range(1000)], np.int32)


def discount_window(gamma: ScalarLike, *, rounding: Rounding = "exact") -> Int[Array, ""]:
    """How many steps back value spreads by itself:  int(1 / (1 - gamma)),  and 25 without discount.

    Evaluated as written, 0.96 gives 24, since 1 / (1 - 0.96) is 24.999... in floating point.  "exact" takes a quotient
    for whole that lies within the rounding error of gamma of a whole number.  `gamma` may be traced.

    Args:
      gamma: discount in [0, 1].
      rounding: "exact", 0.96 -> 25 and 0.99 -> 100; or "released", what the public code computes in doubles, 0.96 -> 24
        and 0.99 -> 99, for discounts of up to three decimals.
    Returns:
      Number of steps.
    Raises:
      ValueError: unknown `rounding`.

    >>> int(discount_window(0.96)), int(discount_window(0.96, rounding="released")), int(discount_window(1.0))
    (25, 24, 25)
    """
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding={rounding!r} is not known; choose one of {', '.join(ROUNDINGS)}.")
    gamma = jnp.asarray(gamma, jnp.result_type(gamma, float))
    discounted = gamma < 1
    quotient = 1 / jnp.where(discounted, 1 - gamma, 1)
    # gamma is off by at most eps / 4, the quotient by eps / 4 times its square, and by a rounding of its own
    window = jnp.floor(quotient + jnp.minimum(jnp.finfo(gamma.dtype).eps / 2 * jnp.square(quotient), 0.5))
    if rounding == "released":
        thousandths = gamma * 1000
        listed = jnp.abs(thousandths - jnp.round(thousandths)) < 1e-3
        window = jnp.where(listed, jnp.asarray(RELEASED_WINDOWS)[jnp.round(thousandths).astype(jnp.int32)], window)
    return jnp.where(discounted, window, UNDISCOUNTED_WINDOW).astype(jnp.int32)


def read_events(
    read_weights: Float[Array, "T K"],
    read_strengths: Float[Array, "T"],
    read_index: Int[Array, "T K"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
    *,
    window: ScalarLike,
    threshold: ScalarLike = 2.0,
) -> Bool[Array, "T"]:
    """Steps in which one head remembers: the strongest step of every run of strong, distant reads.

    Step t reads strongly where  beta_t > threshold  and the row it weighs most is more than `window` steps old.  Of the
    strong reads that follow each other within an episode, also of those in progress when it ends, the one of greatest
    beta_t is the event; of several such the earliest.

    Args:
      read_weights: how much step t reads each of K rows of the memory, from 0 to 1.
      read_strengths: beta_t, without unit.
      read_index: the step that wrote each row, as a step of this window; negative for steps before the window.
      terminated, truncated: the episode ended after step t.  Padded steps must be marked as ends (`zero_padding`).
      window: age, in steps, beyond which a read counts; see `discount_window`.
      threshold: strength above which a read counts.
    Returns:
      True at the events.

    Assumption: a step whose weights are all 0, or that reads another episode most, remembers nothing.
    """
    distant = _distant(read_weights, read_index, terminated, truncated, window)
    most = read_weights.argmax(axis=1, keepdims=True)
    strong = jnp.take_along_axis(distant, most, axis=1)[:, 0] & (read_strengths > threshold)
    # the first step of an episode has nothing to read, so that no run crosses an end
    goes_on = jnp.concatenate([jnp.zeros(1, bool), strong[:-1]])
    run = jnp.cumsum(strong & ~goes_on)
    return _earliest_greatest(jnp.where(strong, read_strengths, -jnp.inf), run) & strong


def transport_value(
    read_weights: Float[Array, "T H K"],
    read_strengths: Float[Array, "T H"],
    read_index: Int[Array, "T H K"],
    value: Float[Array, "T"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
    *,
    window: ScalarLike,
    threshold: ScalarLike = 2.0,
    alpha: ScalarLike = 0.9,
    top_rows: int = 50,
) -> Float[Array, "T"]:
    """What to add to the rewards: each read event t2 of each head pays every step t1 that it reads

    alpha w_{t2,t1} V_{t2},  where t2 - t1 > window and w_{t2,t1} is among the `top_rows` largest such weights.

    The value is not discounted for the steps between.  What several events and heads pay to a step adds up.

    Args:
      read_weights, read_strengths, read_index: of H heads, see `read_events`.
      value: V_t, value of the observation before action t, in reward units; 0 on padded steps.
      terminated, truncated: the episode ended after step t.  Padded steps must be marked as ends (`zero_padding`).
      window, threshold: which reads are events, see `read_events`.
      alpha: share of the value that is paid.
      top_rows: rows that one event pays at most, static.
    Returns:
      Transported value of each step, in reward units and in the value's dtype.  Steps before the window get nothing.
    """

    def of_head(weights: Array, strengths: Array, index: Array) -> Array:
        distant = _distant(weights, index, terminated, truncated, window)
        event = read_events(
            weights, strengths, index, terminated, truncated, window=window, threshold=threshold
        )  # fmt: skip
        paid = jnp.where(distant & event[:, None], weights, 0).astype(value.dtype)
        paid, chosen = jax.lax.top_k(paid, min(top_rows, paid.shape[1]))
        reader = jnp.where(event, value, 0)[:, None]
        row = jnp.take_along_axis(index, chosen, axis=1)
        inside = jnp.where((paid > 0) & (row >= 0), row, value.shape[0])  # beyond the window: dropped
        return jnp.zeros_like(value).at[inside].add(jnp.asarray(alpha, value.dtype) * paid * reader, mode="drop")

    return jax.vmap(of_head, in_axes=1)(read_weights, read_strengths, read_index).sum(axis=0)


def _distant(weights: Array, index: Array, terminated: Array, truncated: Array, window: ScalarLike) -> Array:
    """Rows `[T, K]` that step t reads from its own episode, more than `window` steps back."""
    step = jnp.arange(index.shape[0])[:, None]
    own = index >= episode_starts(terminated, truncated)[:, None]
    return own & (step - index > window) & (weights > 0)


def _earliest_greatest(x: Array, group: Array) -> Array:
    """Where each of the groups 0 .. T of neighbouring entries has its (first) maximum."""
    step, groups = jnp.arange(x.size), x.size + 1
    greatest = x == jax.ops.segment_max(x, group, groups)[group]
    return step == jax.ops.segment_min(jnp.where(greatest, step, x.size), group, groups)[group]


@struct.dataclass
class TemporalValueTransport(CreditEstimator):
    """Add `transport_value` to `reward`, for policies with a memory that is read by content (`MemoryActorCritic`).

    Reads `read_weights` `[T, B, H, K]`, `read_strengths` `[T, B, H]` and `read_index` `[T, B, H, K]` from
    `trajectory.extras`, as the network leaves them there, and `value`.  Nothing is learned here.

    Rewrites `reward` only, so that policy gradient and value targets both see it: chain it with an estimator that
    computes advantages, `chain(TemporalValueTransport(gamma=0.96), GAE(gamma=0.96))`.  Steps before the window get
    nothing: windows should hold whole episodes where what is remembered may lie far back (`episodic=True`).

    Attributes:
      gamma: discount of the agent, which sets the window of reads that are too recent to be paid.
      alpha: share of the reader's value that is paid.
      threshold: strength above which a read counts.
      rounding: static; how the window is computed, see `discount_window`.
      top_rows: static; rows that one event pays at most.
    Raises:
      ValueError: no reads in `extras`.
    """

    gamma: float = within(0, 1, 0.96)
    alpha: float = within(0, INFINITY, 0.9)
    threshold: float = within(0, INFINITY, 2.0)
    rounding: Rounding = choice("exact", ROUNDINGS)
    top_rows: int = whole(50)

    def assign(
        self, key: jax.Array, state: State, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, state, context
        user = "TemporalValueTransport (which needs a network that reads a memory: network=MemoryActorCritic(...))"
        names = ("read_weights", "read_strengths", "read_index", "value", "terminated", "truncated")
        transport = partial(
            transport_value,
            window=discount_window(self.gamma, rounding=self.rounding),
            threshold=self.threshold,
            alpha=self.alpha,
            top_rows=self.top_rows,
        )
        transported = over_columns(transport, *require(zero_padding(trajectory), user, *names))
        return trajectory.replace(reward=trajectory.reward + transported.astype(trajectory.reward.dtype))
