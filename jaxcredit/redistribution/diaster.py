"""Diaster: the reward of a step is by how much it changes the reward of the sub-trajectory that it completes.

Reference: Lin, Wu, Xie, Zhou, Zhang and Li (2024), "Episodic Return Decomposition by Difference of Implicitly Assigned
Sub-Trajectory Reward", arXiv:2312.10642, and its public code.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jaxcredit.core.fields import static, whole
from jaxcredit.core.trajectory import masked_mean
from jaxcredit.networks.actor_critic import ResettingGRU
from jaxcredit.networks.initializers import orthogonal
from jaxcredit.redistribution.contribution import redistribute_differences
from jaxcredit.redistribution.decomposition import MarkovReward
from jaxcredit.redistribution.fitted_rewards import FittedRewards


def sub_trajectory_loss(
    prediction: Float[Array, "T"], cut: Int[Array, ""], episode_return: Float[Array, ""], mask: Bool[Array, "T"]
) -> Float[Array, ""]:
    """The rewards of both parts of an episode must sum to its return:  (R_sub(0..c) + R_sub(c+1..L-1) - R)^2.

    Args:
      prediction: reward of the part that step t completes, in reward units: of steps 0 .. t up to the cut, of steps
        c + 1 .. t behind it; padded steps may hold anything.
      cut: c, the last step of the first part.  If it is the last of the episode, the other part is empty and worth 0.
      episode_return: undiscounted return R of the episode, in reward units.
      mask: True on the L steps of the episode, which come first.
    Returns:
      The loss; 0 for an empty mask.

    >>> parts = jnp.array([1.0, 3.0, 2.0])  # of steps 0; 0, 1; and 2 alone
    >>> float(sub_trajectory_loss(parts, jnp.array(1), jnp.array(4.0), jnp.ones(3, bool)))
    1.0
    """
    prediction = jnp.where(mask, prediction, 0)
    last = jnp.maximum(mask.sum() - 1, 0)
    behind = jnp.where(cut < last, prediction[last], 0)
    return jnp.where(mask.any(), jnp.square(prediction[cut] + behind - episode_return), 0)


def choose_cut(key: jax.Array, mask: Bool[Array, "T"]) -> Int[Array, ""]:
    """Draw the last step of an episode's first part, uniformly from all of its steps."""
    return jax.random.randint(key, (), 0, jnp.maximum(mask.sum(), 1))


class PartsAndSteps(nn.Module):
    """A GRU that rewards sub-trajectories, and beside it a network that rewards steps.

    Attributes:
      units: of the GRU.
      hidden: widths of the other network.
    """

    units: int
    hidden: tuple[int, ...]

    def setup(self) -> None:
        self.memory = ResettingGRU(self.units)
        self.readout = nn.Dense(1, kernel_init=orthogonal(0.01))
        self.step = MarkovReward(self.hidden)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """r(s_t, a_t) `[T, B]` of x `[T, B, D]`."""
        if self.is_initializing():
            self.of_part(x, jnp.zeros_like(mask))
        return self.step(x, mask)

    def of_part(self, x: jax.Array, first: jax.Array) -> jax.Array:
        """Reward `[T, B]` of the steps since the last one that was `first` `[T, B]`, up to each step."""
        _, memory = self.memory(jnp.zeros((x.shape[1], self.units)), x, first)
        return self.readout(memory)[..., 0]


@struct.dataclass
class Diaster(FittedRewards):
    """Replace `reward` by a learned r(s, a), fitted to the differences of a learned reward of sub-trajectories.

    Episodes are cut in two at random; a GRU's rewards of both parts must sum to the return (`sub_trajectory_loss`).
    What r(s_t, a_t) regresses are its differences  d_t = R_sub(0..t) - R_sub(0..t-1),  R_sub(0..L-1) := R,  so that
    they sum to the return (`redistribute_differences`).

    Rewrites `reward` only: chain it with an estimator that computes advantages, `chain(Diaster(), GAE())`.  Rewards sum
    to an episode's return only if what is missing is handed out (`residual`), which the reference does not do.  A batch
    joins the replay before it is assigned credit.

    Attributes:
      learning_rate, residual, fits, fit_batch, capacity: of the fitting, see `FittedRewards`.
      units: of the GRU.
      hidden: widths of the network that rewards steps.

    Assumption: one cut per episode and gradient step, drawn from all of its steps; both networks are fitted side by
    side with one learning rate.  Returns are standardised by running moments of the return per step.
    """

    units: int = whole(16)
    hidden: tuple[int, ...] = static((32, 32))

    @property
    def network(self) -> PartsAndSteps:
        return PartsAndSteps(self.units, self.hidden)

    def loss(self, params: Any, key: jax.Array, features: jax.Array, mask: jax.Array, excess: jax.Array) -> jax.Array:
        cut = jax.vmap(choose_cut, (0, 1))(jax.random.split(key, excess.shape[0]), mask)
        starts = jnp.arange(mask.shape[0])[:, None] == cut + 1
        parts = self._of_part(params, features, starts)
        loss = jax.vmap(sub_trajectory_loss, (1, 0, 0, 1))(parts, cut, excess, mask).mean()
        whole_episode = jax.lax.stop_gradient(self._of_part(params, features, jnp.zeros_like(starts)))
        difference = jax.vmap(redistribute_differences, (1, 0, 1), 1)(whole_episode, excess, mask)
        reward: Any = self.network.apply(params, features, mask)
        return loss + masked_mean(jnp.square(reward - difference), mask)

    def _of_part(self, params: Any, features: jax.Array, first: jax.Array) -> Any:
        return self.network.apply(params, features, first, method="of_part")
