"""Synthetic Returns: later rewards are regressed on the steps before them, and steps are paid their share at once.

Reference: Raposo et al. (2021), "Synthetic Returns for Long-Term Credit Assignment", arXiv:2102.12425, and its public
code.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, ScalarLike

from jaxcredit.core.estimator import Context, CreditEstimator, Metrics
from jaxcredit.core.fields import INFINITY, static, whole, within
from jaxcredit.core.trajectory import Trajectory, episode_starts, masked_mean, over_columns, zero_padding
from jaxcredit.networks.fitting import fit, step_features
from jaxcredit.networks.synthetic_return import SyntheticReturnNetwork


def synthetic_return(
    contribution: Float[Array, "T"],
    gate: Float[Array, "T"],
    baseline: Float[Array, "T"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
    *,
    capacity: int = 300,
) -> Float[Array, "T"]:
    """Explain the reward of step t by the steps before it:  g_t sum_{t - capacity <= k < t} c_k + b_t.

    The sum runs over steps of the same episode.

    Args:
      contribution: c_k, what step k adds to later rewards, in reward units.
      gate: g_t in [0, 1], whether what was added is paid in step t.
      baseline: b_t, the part of the reward that step t explains by itself, in reward units.
      terminated, truncated: the episode ended after step t.  Padded steps must be marked as ends (`zero_padding`).
      capacity: steps that are remembered, static.
    Returns:
      Predicted r_t, in reward units.

    >>> ones, ends = jnp.ones(4), jnp.array([False, False, True, False])
    >>> synthetic_return(ones, ones, 0 * ones, ends, 0 > ones).tolist()
    [0.0, 1.0, 2.0, 0.0]
    """
    step = jnp.arange(contribution.size)
    oldest = jnp.maximum(jnp.maximum(episode_starts(terminated, truncated), step - capacity), 0)
    before = jnp.concatenate([jnp.zeros_like(contribution[:1]), jnp.cumsum(contribution)])
    return gate * (before[step] - before[oldest]) + baseline


def augmented_reward(
    contribution: Float[Array, "T"], reward: Float[Array, "T"], *, alpha: ScalarLike = 0.3, beta: ScalarLike = 1.0
) -> Float[Array, "T"]:
    """Pay each step what it will be worth later:  alpha c_t + beta r_t.

    Args:
      contribution: c_t, in reward units; no gradient flows into it.
      reward: r_t, follows action t.
      alpha: weight of the contribution.
      beta: weight of the reward.
    Returns:
      New reward of each step, in reward units and in the reward's dtype.

    >>> augmented_reward(jnp.array([2.0, 0.0]), jnp.array([0.0, 1.0]), alpha=0.5).tolist()
    [1.0, 1.0]
    """
    alpha, beta = (jnp.asarray(x, reward.dtype) for x in (alpha, beta))
    return alpha * jax.lax.stop_gradient(contribution).astype(reward.dtype) + beta * reward


@struct.dataclass
class SyntheticReturnsState:
    """Attributes: `params`, `opt_state` of the network."""

    params: Any
    opt_state: Any


@struct.dataclass
class SyntheticReturns(CreditEstimator):
    """Replace `reward` by the `augmented_reward`, with contributions fitted so that `synthetic_return` is the reward.

    Rewrites `reward` only: chain it with an estimator that computes advantages, `chain(SyntheticReturns(), GAE())`.
    Rewards do not sum to the return.  A batch is fitted before it is assigned credit.  What a step contributes does not
    depend on the policy's other actions: it is an association, not an effect.

    Attributes:
      alpha, beta: weights of contribution and reward, see `augmented_reward`.
      learning_rate: step size of Adam.
      capacity: steps that are remembered.
      fits: gradient steps on each batch.
      hidden: widths of the hidden layers of each of the three networks.

    Assumption: the source regresses on the agent's recurrent state, in one gradient step per batch, and sums the
    squared error over steps; here on each step's observation and action, since a reward follows its action, in `fits`
    steps, and the error is averaged.
    """

    alpha: float = within(-INFINITY, INFINITY, 0.3)
    beta: float = within(-INFINITY, INFINITY, 1.0)
    learning_rate: float = within(0, INFINITY, 1e-3)
    capacity: int = whole(300)
    fits: int = whole(10)
    hidden: tuple[int, ...] = static((128, 128))

    @property
    def needs_episodes(self) -> bool:
        return True

    @property
    def network(self) -> SyntheticReturnNetwork:
        return SyntheticReturnNetwork(self.hidden)

    def init(self, key: jax.Array, trajectory: Trajectory) -> SyntheticReturnsState:
        width = jax.eval_shape(self._features, trajectory).shape[-1]
        params = self.network.init(key, jnp.zeros((1, width)))
        return SyntheticReturnsState(params, self._optimizer().init(params))

    def update(
        self, key: jax.Array, state: SyntheticReturnsState, trajectory: Trajectory, *, context: Context | None = None
    ) -> tuple[SyntheticReturnsState, Metrics]:
        del context
        steps = jax.lax.stop_gradient(zero_padding(trajectory))
        features = self._features(steps)
        explain = partial(synthetic_return, capacity=self.capacity)

        def loss(params: Any, key: jax.Array) -> jax.Array:
            del key
            parts: Any = self.network.apply(params, features)
            error = over_columns(explain, *parts, steps.terminated, steps.truncated) - steps.reward
            return masked_mean(0.5 * jnp.square(error), steps.mask)

        learner, value = fit(loss, self._optimizer(), (state.params, state.opt_state), key, self.fits)
        return SyntheticReturnsState(*learner), {"loss": value}

    def assign(
        self, key: jax.Array, state: SyntheticReturnsState, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, context
        augment = partial(augmented_reward, alpha=self.alpha, beta=self.beta)
        reward = over_columns(augment, self.contribution(state, trajectory), trajectory.reward)
        return trajectory.replace(reward=jnp.where(trajectory.mask, reward, 0))

    def contribution(self, state: SyntheticReturnsState, trajectory: Trajectory) -> jax.Array:
        """c_t `[T, B]`, in reward units."""
        parts: Any = self.network.apply(state.params, self._features(trajectory))
        return jnp.where(trajectory.mask, parts[0], 0)

    def _features(self, trajectory: Trajectory) -> jax.Array:
        return step_features(trajectory, "SyntheticReturns")

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)
