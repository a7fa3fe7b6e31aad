"""Sequence modelling: rewards r(s_{<=t}, a_{<=t}) of a causal Transformer that add up to the return.

Reference: Liu, Luo, Zhong, Chen, Liu and Peng (2019), "Sequence Modeling of Temporal Credit Assignment for Episodic
Reinforcement Learning", arXiv:1905.13420.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float

from jaxcredit.core.fields import INFINITY, choice, whole, within
from jaxcredit.core.trajectory import masked_mean
from jaxcredit.networks.attention import CausalTransformer
from jaxcredit.networks.initializers import orthogonal
from jaxcredit.redistribution.fitted_rewards import RESTS, FittedRewards, Rest


def summed_reward_loss(
    reward: Float[Array, "T"],
    episode_return: Float[Array, ""],
    mask: Bool[Array, "T"],
    *,
    variance_weight: float | Float[Array, ""] = 0.0,
) -> Float[Array, ""]:
    """How far the rewards of an episode are from its return:  (R - sum_t r_t)^2 + variance_weight Var_t(r_t).

    Args:
      reward: predicted r_t, in reward units; padded steps may hold anything.
      episode_return: undiscounted return R of the episode, in reward units.
      mask: True on the episode's own steps.
      variance_weight: of the variance of the rewards within the episode (AREL): the larger, the more alike they are.
    Returns:
      The loss of one episode.  Its mean over episodes is a mean of squares, never a square of a mean.

    >>> reward, mask = jnp.array([1.0, 3.0]), jnp.array([True, True])
    >>> float(summed_reward_loss(reward, jnp.array(5.0), mask, variance_weight=20.0))
    21.0
    """
    reward = jnp.where(mask, reward, 0)
    variance = masked_mean(jnp.square(reward - masked_mean(reward, mask)), mask)
    return jnp.square(episode_return - reward.sum()) + jnp.asarray(variance_weight, reward.dtype) * variance


class SequenceReward(nn.Module):
    """Rewards every step for the history up to it: a causal Transformer, then a linear read-out.

    Attributes:
      width, heads, depth: of the Transformer, see `CausalTransformer`.
      agents: N of a team whose features come one after another in a step; 0 for a single agent.  What each of them did
        is read by the same hidden layers, and added up.
      readout: widths of these layers.
    """

    width: int
    heads: int
    depth: int
    agents: int = 0
    readout: tuple[int, ...] = ()

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Map x `[T, B, D]`, mask `[T, B]` to rewards `[T, B]`."""
        if self.agents:
            x = x.reshape(*x.shape[:2], self.agents, -1)
        x = CausalTransformer(self.width, self.heads, self.depth)(x, mask)
        for units in self.readout:
            x = nn.relu(nn.Dense(units)(x))
        if self.agents:
            x = x.sum(axis=2)
        return nn.Dense(1, kernel_init=orthogonal(0.01))(x)[..., 0]


@struct.dataclass
class SequenceModelling(FittedRewards):
    """Replace `reward` by a Transformer's r(s_{<=t}, a_{<=t}), fitted so that every episode's sum is its return.

    Rewrites `reward` only: chain it with an estimator that computes advantages, `chain(SequenceModelling(), GAE())`.
    The residual, R - sum_t r_t, is added to the last step: then what has been paid before step t depends on its past
    alone, is a baseline, and the undiscounted policy gradient stays unbiased whatever the rewards are.  With
    "spread" or "none" that is lost.  A batch joins the replay before it is assigned credit, so its own episodes are
    among those the rewards were fitted on.

    Attributes:
      learning_rate, residual, fits, fit_batch, capacity: of the fitting, see `FittedRewards`.
      width, heads, depth: of the Transformer, see `CausalTransformer`.

    Assumption: sizes and optimiser of the paper were not at hand; they are small here, and rewards are standardised by
    running moments of the return per step.
    """

    learning_rate: float = within(0, INFINITY, 1e-3)
    residual: Rest = choice("end", RESTS)
    width: int = whole(32)
    heads: int = whole(2)
    depth: int = whole(1)

    @property
    def network(self) -> SequenceReward:
        return SequenceReward(self.width, self.heads, self.depth)

    def loss(self, params: Any, key: jax.Array, features: jax.Array, mask: jax.Array, excess: jax.Array) -> jax.Array:
        del key
        reward: Any = self.network.apply(params, features, mask)
        return jax.vmap(self.episode_loss, (1, 0, 1))(reward, excess, mask).mean()

    def episode_loss(self, reward: jax.Array, episode_return: jax.Array, mask: jax.Array) -> jax.Array:
        return summed_reward_loss(reward, episode_return, mask)
