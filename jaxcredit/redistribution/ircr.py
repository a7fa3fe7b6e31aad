"""IRCR: every step of an episode is paid the episode's return, scaled between the worst and the best one seen.

Reference: Gangwani, Zhou and Peng (2020), "Learning Guidance Rewards with Trajectory-space Smoothing",
arXiv:2010.12718, and its public code.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from jaxcredit.core.estimator import Context, CreditEstimator, Metrics
from jaxcredit.core.fields import choice
from jaxcredit.core.trajectory import Trajectory, episode_returns

Form = Literal["mean", "sum"]
FORMS = ("mean", "sum")


def ircr_reward(
    episode_return: Float[Array, ""],
    mask: Bool[Array, "T"],
    lowest: Float[Array, ""],
    highest: Float[Array, ""],
    *,
    form: Form = "mean",
) -> Float[Array, "T"]:
    """Pay each step  (x - lowest) / (highest - lowest),  x = R / L in the mean form, x = R in the sum form.

    The expectation of this reward over the episodes that hold (s, a) is the guidance reward of (s, a).

    Args:
      episode_return: undiscounted return R of the episode, in reward units.
      mask: True on the L steps of the episode; padded steps get exactly 0.
      lowest, highest: smallest and largest x among the episodes seen, in reward units (per step, in the mean form).
      form: "mean", as in the reference's code, or "sum", as in the code of RRD; they differ in episodes of different
        length.
    Returns:
      Rewards without unit, from 0 to 1 for episodes within the bounds; all 0 while both bounds are equal.
    Raises:
      ValueError: unknown `form`.

    >>> mask = jnp.array([True, True, False])
    >>> ircr_reward(jnp.array(3.0), mask, jnp.array(0.0), jnp.array(2.0)).tolist()
    [0.75, 0.75, 0.0]
    """
    x = _score(episode_return, mask, form)
    spread = highest - lowest
    scaled = jnp.where(spread > 0, (x - lowest) / jnp.where(spread > 0, spread, 1), 0)
    return jnp.where(mask, scaled, 0)


def _score(episode_return: Array, mask: Array, form: Form) -> Array:
    if form not in FORMS:
        raise ValueError(f"form={form!r} is not known; choose one of {', '.join(FORMS)}.")
    if form == "sum":
        return episode_return
    return episode_return / jnp.maximum(mask.sum(axis=0), 1).astype(episode_return.dtype)


@struct.dataclass
class IRCRState:
    """Attributes: `lowest`, `highest` `[]`, bounds of the episodes seen; infinite before the first."""

    lowest: jax.Array
    highest: jax.Array


@struct.dataclass
class IRCR(CreditEstimator):
    """Replace `reward` by `ircr_reward`.  Nothing is learned but the bounds.

    Rewrites `reward` only: chain it with an estimator that computes advantages, `chain(IRCR(), GAE())`.  Rewards do not
    sum to the return.

    Attributes:
      form: static; "mean" or "sum".

    Assumption: the reference samples (s, a) from a buffer of recent and of best episodes; here every episode is paid as
    it is collected, and the bounds are those of all episodes so far.
    """

    form: Form = choice("mean", FORMS)

    @property
    def needs_episodes(self) -> bool:
        return True

    def init(self, key: jax.Array, trajectory: Trajectory) -> IRCRState:
        del key, trajectory
        return IRCRState(lowest=jnp.asarray(jnp.inf), highest=jnp.asarray(-jnp.inf))

    def update(
        self, key: jax.Array, state: IRCRState, trajectory: Trajectory, *, context: Context | None = None
    ) -> tuple[IRCRState, Metrics]:
        del key, context
        mask = trajectory.mask
        total = episode_returns(trajectory.reward, mask).astype(jnp.float32)
        x, some = _score(total, mask, self.form), mask.any(axis=0)
        lowest = jnp.minimum(state.lowest, jnp.where(some, x, jnp.inf).min())
        highest = jnp.maximum(state.highest, jnp.where(some, x, -jnp.inf).max())
        return IRCRState(lowest, highest), {}

    def assign(
        self, key: jax.Array, state: IRCRState, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, context
        mask, dtype = trajectory.mask, trajectory.reward.dtype
        lowest, highest = state.lowest.astype(dtype), state.highest.astype(dtype)

        def of_episode(total: jax.Array, mask: jax.Array) -> jax.Array:
            return ircr_reward(total, mask, lowest, highest, form=self.form)

        reward = jax.vmap(of_episode, (0, 1), 1)(episode_returns(trajectory.reward, mask), mask)
        return trajectory.replace(reward=reward)
