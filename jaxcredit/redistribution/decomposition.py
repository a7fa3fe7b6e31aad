"""RD and RRD: rewards r(s, a) that add up to the return, fitted on whole episodes or on random steps of them.

Reference: Ren et al. (2022), "Learning Long-Term Reward Redistribution via Randomized Return Decomposition",
arXiv:2111.13485, and its public code; plain return decomposition: Efroni et al. (2021), arXiv:2007.06437.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float

from jaxcredit.core.fields import static, whole
from jaxcredit.core.statistics import RunningMoments
from jaxcredit.networks.mlp import MLP
from jaxcredit.redistribution.fitted_rewards import FittedRewards


def decomposition_loss(
    reward: Float[Array, "T"],
    mean_reward: Float[Array, ""],
    chosen: Bool[Array, "T"],
    length: Float[Array, ""],
    *,
    unbiased: bool = False,
) -> Float[Array, ""]:
    """Squared error of the mean reward of some steps:  (R / L - mean_{t in I} r_t)^2  [ - (1 - K/L) / K var_I(r) ].

    With all K = L steps this is return decomposition (RD).  With K < L random ones (RRD) its expectation also holds the
    variance of the rewards within the episode, which favours even ones; the term in brackets takes that out.

    Args:
      reward: predicted r_t, in the unit of `mean_reward`.
      mean_reward: R / L, the episode's return by its length.
      chosen: I, steps drawn without replacement from those of the episode.
      length: L, number of steps of the episode.
      unbiased: subtract the sample variance's share, so that the expectation is the loss of all steps.
    Returns:
      The loss; 0 where no step is chosen.
    """
    count = chosen.sum().astype(reward.dtype)
    reward = jnp.where(chosen, reward, 0)
    mean = reward.sum() / jnp.maximum(count, 1)
    loss = jnp.square(mean_reward - mean)
    if unbiased:
        variance = jnp.where(chosen, jnp.square(reward - mean), 0).sum() / jnp.maximum(count - 1, 1)
        loss -= (1 - count / jnp.maximum(length, 1)) / jnp.maximum(count, 1) * variance
    return jnp.where(count > 0, loss, 0)


def choose_steps(key: jax.Array, mask: Bool[Array, "T"], number: int) -> Bool[Array, "T"]:
    """Mark `number` random steps of an episode, drawn without replacement; all of a shorter episode."""
    draw = jnp.where(mask, jax.random.uniform(key, mask.shape), -1)
    least = jax.lax.top_k(draw, min(number, mask.size))[0][-1]
    return mask & (draw >= least)


class MarkovReward(nn.Module):
    """A reward r(s_t, a_t) of what a step shows, whatever came before.

    Attributes:
      hidden: widths of the hidden layers.
    """

    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Map x `[T, B, D]` to rewards `[T, B]`."""
        del mask
        return MLP(self.hidden, outputs=1)(x)[..., 0]


@struct.dataclass
class RewardDecomposition(FittedRewards):
    """Replace `reward` by a learned r(s, a) whose mean over an episode is fitted to the episode's (RD, RRD).

    Rewrites `reward` only: chain it with an estimator that computes advantages, `chain(RewardDecomposition(), GAE())`.
    Rewards are predicted anew whenever credit is assigned; they sum to an episode's return only if what is missing is
    handed out (`residual`).  A batch joins the replay before it is assigned credit.

    Attributes:
      learning_rate, residual, fits, fit_batch, capacity: of the fitting, see `FittedRewards`.
      hidden: widths of the reward network.
      subset: K, random steps per episode and gradient step (RRD); 0 takes all of them (RD).
      unbiased: take the variance of the random steps out of the loss, see `decomposition_loss`.

    Assumption: the reference draws steps with replacement from episodes shorter than K; all of their steps here.
    Targets are standardised by running moments.
    """

    hidden: tuple[int, ...] = static((64, 64))
    subset: int = whole(0, least=0)
    unbiased: bool = static(False)

    @property
    def network(self) -> MarkovReward:
        return MarkovReward(self.hidden)

    def unit(self, rewards: RunningMoments, steps: int) -> jax.Array:
        del steps
        return rewards.std

    def loss(self, params: Any, key: jax.Array, features: jax.Array, mask: jax.Array, excess: jax.Array) -> jax.Array:
        reward: Any = self.network.apply(params, features, mask)
        number = self.subset or mask.shape[0]

        def of_episode(key: jax.Array, reward: jax.Array, mask: jax.Array, excess: jax.Array) -> jax.Array:
            chosen = choose_steps(key, mask, number) if self.subset else mask
            length = mask.sum().astype(reward.dtype)
            mean_reward = excess / jnp.maximum(length, 1)
            return decomposition_loss(reward, mean_reward, chosen, length, unbiased=self.unbiased)

        keys = jax.random.split(key, excess.shape[0])
        return jax.vmap(of_episode, (0, 1, 1, 0))(keys, reward, mask, excess).mean()
