"""Running moments inside compiled training, and the reward scaling built on them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxcredit.core.estimator import Context, CreditEstimator, Metrics
from jaxcredit.core.fields import within
from jaxcredit.core.trajectory import Trajectory


@struct.dataclass
class RunningMoments:
    """Count, mean and sum of squared deviations of everything seen, per element.

    Attributes:
      count: `[]` float32, number of samples.
      mean: `[...]`.
      deviation: `[...]`, sum of squared deviations from the mean.
    """

    count: jax.Array
    mean: jax.Array
    deviation: jax.Array

    @classmethod
    def zeros(cls, shape: tuple[int, ...]) -> RunningMoments:
        return cls(count=jnp.zeros(()), mean=jnp.zeros(shape), deviation=jnp.zeros(shape))

    @property
    def std(self) -> jax.Array:
        """Population standard deviation; 1 before anything varied."""
        variance = self.deviation / jnp.maximum(self.count, 1)
        return jnp.sqrt(jnp.where(variance > 1e-12, variance, 1))

    def update(self, x: jax.Array, mask: jax.Array) -> RunningMoments:
        """Add the unmasked samples: x `[N..., ...]`, mask `[N...]` (parallel form of Welford's recursion)."""
        axes = tuple(range(mask.ndim))
        weight = mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
        x = jnp.where(weight, x, 0)
        count = mask.sum().astype(self.count.dtype)
        mean = x.sum(axes) / jnp.maximum(count, 1)
        deviation = jnp.where(weight, jnp.square(x - mean), 0).sum(axes)
        total = jnp.maximum(self.count + count, 1)
        shift = mean - self.mean
        return RunningMoments(
            count=self.count + count,
            mean=self.mean + shift * count / total,
            deviation=self.deviation + deviation + jnp.square(shift) * self.count * count / total,
        )

    def normalise(self, x: jax.Array, clip: float = 10.0) -> jax.Array:
        """(x - mean) / std, clipped to +-`clip`."""
        return jnp.clip((x - self.mean) / self.std, -clip, clip)


@struct.dataclass
class ScaleReward(CreditEstimator):
    """Divide rewards by the running standard deviation of the discounted return so far.

    g_t = gamma g_{t-1} (1 - first_t) + r_t;   r_t <- r_t / std(g).   Rewards are scaled, never shifted: a shift would
    change which policy is optimal.  Its place in a `chain` says whether redistribution sees scaled rewards.

    Attributes:
      gamma: discount of the running return.
    Reference: Engstrom et al. (2020), "Implementation Matters in Deep RL", arXiv:2005.12729.
    """

    gamma: float = within(0, 1, 0.99)

    def init(self, key: jax.Array, trajectory: Trajectory) -> Any:
        del key
        return RunningMoments.zeros(()), jnp.zeros(trajectory.reward.shape[1:])

    def update(
        self, key: jax.Array, state: Any, trajectory: Trajectory, *, context: Context | None = None
    ) -> tuple[Any, Metrics]:
        del key, context
        moments, running = state
        gamma = jnp.asarray(self.gamma, running.dtype)

        def step(running: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            reward, first, mask = inputs
            running = jnp.where(first, 0, gamma * running) + jnp.where(mask, reward, 0)
            return running, running

        running, returns = jax.lax.scan(step, running, (trajectory.reward, trajectory.first, trajectory.mask))
        moments = moments.update(returns, trajectory.mask)
        return (moments, running), {"reward_scale": moments.std}

    def assign(
        self, key: jax.Array, state: Any, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, context
        return trajectory.replace(reward=trajectory.reward / state[0].std.astype(trajectory.reward.dtype))


@struct.dataclass
class Mean:
    """A mean in the making: metrics travel as totals and counts, so that any number of them merge exactly.

    Attributes:
      total: `[...]` sum of the samples.
      count: `[...]` number of samples, as float32.
    """

    total: jax.Array
    count: jax.Array

    @classmethod
    def of(cls, x: Any, mask: Any = True) -> Mean:
        """Gather all unmasked entries of `x` (everything, for a scalar without mask)."""
        x = jnp.asarray(x, jnp.float32)
        mask = jnp.broadcast_to(jnp.asarray(mask), x.shape)
        return cls(total=jnp.where(mask, x, 0).sum(), count=mask.sum().astype(jnp.float32))

    def __add__(self, other: Mean) -> Mean:
        return Mean(total=self.total + other.total, count=self.count + other.count)

    @property
    def value(self) -> jax.Array:
        """total / count; NaN where nothing was counted."""
        return jnp.where(self.count > 0, self.total / jnp.maximum(self.count, 1), jnp.nan)
