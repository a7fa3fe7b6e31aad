"""One type for experience, and the few helpers that read its masks and ends.

Step t holds the observation, the action taken on it and the reward that *followed* the action. A natural end
(`terminated`) and a time limit (`truncated`) are never merged: the first forbids bootstrapping, both cut traces.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jaxcredit.core.frozen import Frozen

PyTree = Any
BEFORE = -(2**31)  # the start of an episode that began before the window


@struct.dataclass
class Trajectory(Frozen):
    """Experience of one environment, `[T, ...]`, or of a batch, `[T, B, ...]`.  Fields not yet written are None.

    Attributes:
      observation: pytree `[T, ...]`, what the agent saw before action t.
      action: `[T]` int32 (discrete) or `[T, D]` float32 (continuous).
      reward: `[T]` float, follows action t.
      terminated: `[T]` bool, the episode ended naturally after action t: no value beyond it.
      truncated: `[T]` bool, a time limit cut the episode after action t: bootstrap, but cut the trace.
      first: `[T]` bool, step t starts an episode.
      mask: `[T]` bool, False on padding behind the end of an episode.
      behaviour_log_prob: `[T]` float, log-probability of the action under the policy that collected it.
      next_observation: pytree `[T, ...]`, what followed action t *before* any reset; only when asked for.
      log_prob: `[T]` float, log-probability of the action under the current policy.
      logits: pytree `[T, ...]`, parameters of the current policy's distribution.
      value: `[T]` float, V(observation_t); 0 where `mask` is False.
      next_value: `[T]` float, V of what followed action t before any reset; 0 behind a natural end and padding.
      action_value: `[T, A]` float, Q(observation_t, .).
      next_action_value: `[T, A]` float, Q of what followed action t before any reset.
      advantage: `[T]` float, credit of the action taken.
      action_advantage: `[T, A]` float, credit of every action.
      value_target: `[T]` float, regression target of the critic.
      extras: further named arrays `[T, ...]`.
    """

    observation: PyTree
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    first: Any
    mask: Any
    behaviour_log_prob: Any = None
    next_observation: PyTree = None
    log_prob: Any = None
    logits: PyTree = None
    value: Any = None
    next_value: Any = None
    action_value: Any = None
    next_action_value: Any = None
    advantage: Any = None
    action_advantage: Any = None
    value_target: Any = None
    extras: dict[str, Any] = struct.field(default_factory=dict)


def require(trajectory: Trajectory, user: str, *names: str) -> tuple[Any, ...]:
    """Fetch fields (or `extras`) by name, with an error that says who needs what and how to provide it.

    Args:
      trajectory: the trajectory to read.
      user: name of the method that asks, for the message.
      *names: field names; a name that is no field is looked up in `extras`.
    Returns:
      The arrays, in the order asked for.
    Raises:
      ValueError: a field is None, or an extra is missing.
    """
    found = [
        getattr(trajectory, n, None) if n in trajectory.__dataclass_fields__ else trajectory.extras.get(n)
        for n in names
    ]
    missing = [n for n, x in zip(names, found, strict=True) if x is None]
    if missing:
        raise ValueError(
            f"{user} needs {', '.join(missing)}, which this trajectory does not hold. Agents write log_prob, logits, "
            "value and next_value; next_observation is collected when the agent has needs_next_observation=True; other "
            "names belong into trajectory.extras."
        )
    return tuple(found)


def continues(terminated: Bool[Array, "*T"], truncated: Bool[Array, "*T"]) -> Bool[Array, "*T"]:
    """True where step t + 1 belongs to the same episode: not (terminated or truncated).  Traces live only there."""
    return ~(terminated | truncated)


def bootstrap_discount(gamma: Any, terminated: Bool[Array, "*T"], dtype: Any) -> Float[Array, "*T"]:
    """Factor on the value of what followed: gamma (1 - terminated).  A time limit does not remove it."""
    # a product, not a `where` of scalars: under `vmap` over columns that one would turn the coefficients batch-major
    return jnp.asarray(gamma, dtype) * (~terminated).astype(dtype)


def episode_ids(first: Bool[Array, "*T"]) -> Int[Array, "*T"]:
    """Number the episodes of one trajectory 0, 1, ... along time, from the flags that start them.

    >>> episode_ids(jnp.array([False, False, True, False])).tolist()
    [0, 0, 1, 1]
    """
    started = first.astype(jnp.int32)
    return jnp.cumsum(started, axis=0) - started[0]


def episode_starts(terminated: Bool[Array, "T"], truncated: Bool[Array, "T"]) -> Int[Array, "T"]:
    """Step of the window in which the episode of each step started; `BEFORE` for the one that the window starts in.

    Step k <= t belongs to the episode of step t where  k >= start_t.  That holds for negative k too, steps before the
    window.

    >>> episode_starts(jnp.array([False, False, True, False]), jnp.zeros(4, bool)).tolist()[2:]
    [-2147483648, 3]
    """
    step = jnp.arange(terminated.shape[0])
    begins = jnp.concatenate([jnp.zeros(1, bool), ~continues(terminated, truncated)[:-1]])
    return jax.lax.cummax(jnp.where(begins, step, BEFORE))


def episode_returns(reward: Float[Array, "*T"], mask: Bool[Array, "*T"]) -> Float[Array, "..."]:
    """Undiscounted return of one whole episode per column: sum of the unmasked rewards, `[T, ...] -> [...]`."""
    return jnp.where(mask, reward, 0).sum(axis=0)


def masked_mean(x: Float[Array, "*n"], mask: Bool[Array, "*n"]) -> Float[Array, ""]:
    """Mean of `x` over the unmasked entries; 0 if there are none.  Masked entries may hold anything, NaN included."""
    count = jnp.maximum(mask.sum(), 1).astype(x.dtype)
    return jnp.where(mask, x, 0).sum() / count


def masked_std(x: Float[Array, "*n"], mask: Bool[Array, "*n"]) -> Float[Array, ""]:
    """Population standard deviation over the unmasked entries; 0, with gradient 0, where nothing varies."""
    variance = masked_mean(jnp.square(x - masked_mean(x, mask)), mask)
    positive = variance > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1)), 0)


def standardise(x: Float[Array, "*n"], mask: Bool[Array, "*n"], eps: float = 1e-8) -> Float[Array, "*n"]:
    """(x - mean) / (std + eps) over the unmasked entries; masked entries become exactly 0."""
    scaled = (jnp.where(mask, x, 0) - masked_mean(x, mask)) / (masked_std(x, mask) + jnp.asarray(eps, x.dtype))
    return jnp.where(mask, scaled, 0)


def zero_padding(trajectory: Trajectory) -> Trajectory:
    """Set reward, value and next_value to 0 on padded steps and mark those steps as ends, whatever they held.

    Marked as ends, padded steps neither bootstrap nor pass a trace on, so estimators need no further masks.
    """
    mask = trajectory.mask

    def clean(x: Any) -> Any:
        return None if x is None else jnp.where(mask, x, jnp.zeros((), x.dtype))

    return trajectory.replace(
        reward=clean(trajectory.reward),
        value=clean(trajectory.value),
        next_value=clean(trajectory.next_value),
        terminated=trajectory.terminated | ~mask,
        truncated=trajectory.truncated & mask,
    )


def over_columns(function: Any, *arrays: Any) -> Any:
    """Apply a one-trajectory function `[T] -> [T]` to every column of a batch `[T, B]` (axis 1 in, axis 1 out)."""
    return jax.vmap(function, in_axes=1, out_axes=1)(*arrays)
