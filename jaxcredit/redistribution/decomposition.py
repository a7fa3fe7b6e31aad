"""RD and RRD: rewards r(s, a) that add up to the return, fitted on whole episodes or on random steps of them.

Reference: Ren et al. (2022), "Learning Long-Term Reward Redistribution via Randomized Return Decomposition",
arXiv:2111.13485, and its public code; plain return decomposition: Efroni et al. (2021), arXiv:2007.06437.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float

from jaxcredit.core.estimator import Context, CreditEstimator, Metrics
from jaxcredit.core.fields import INFINITY, static, whole, within
from jaxcredit.core.statistics import RunningMoments
from jaxcredit.core.trajectory import Trajectory, episode_returns
from jaxcredit.networks.mlp import MLP
from jaxcredit.redistribution.replay import EpisodeReplay, Episodes, fit, step_features


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


@struct.dataclass
class DecompositionState:
    """State of `RewardDecomposition`.

    Attributes:
      params, opt_state: of the reward network.
      replay: past episodes.
      rewards: running moments of the episodes' mean rewards R / L, in reward units.
    """

    params: Any
    opt_state: Any
    replay: EpisodeReplay
    rewards: RunningMoments


@struct.dataclass
class RewardDecomposition(CreditEstimator):
    """Replace `reward` by a learned r(s, a) whose mean over an episode is fitted to the episode's (RD, RRD).

    Rewrites `reward` only: chain it with an estimator that computes advantages, `chain(RewardDecomposition(), GAE())`.
    Rewards are predicted anew whenever credit is assigned; they need not sum to an episode's return.  A batch joins the
    replay before it is assigned credit.

    Attributes:
      learning_rate: step size of Adam.
      hidden: widths of the reward network.
      subset: K, random steps per episode and gradient step (RRD); 0 takes all of them (RD).
      unbiased: take the variance of the random steps out of the loss, see `decomposition_loss`.
      fits: gradient steps per batch.
      fit_batch: episodes per gradient step.
      capacity: episodes kept for fitting.

    Assumption: the reference draws steps with replacement from episodes shorter than K; all of their steps here.
    Targets are standardised by running moments.
    """

    learning_rate: float = within(0, INFINITY, 3e-3)
    hidden: tuple[int, ...] = static((64, 64))
    subset: int = whole(0, least=0)
    unbiased: bool = static(False)
    fits: int = whole(10)
    fit_batch: int = whole(32)
    capacity: int = whole(4096)

    @property
    def needs_episodes(self) -> bool:
        return True

    @property
    def network(self) -> MLP:
        return MLP(self.hidden, outputs=1)

    def init(self, key: jax.Array, trajectory: Trajectory) -> DecompositionState:
        features = jax.eval_shape(lambda t: step_features(t, "RewardDecomposition"), trajectory)
        params = self.network.init(key, jnp.zeros((1, features.shape[-1])))
        replay = EpisodeReplay.empty(self.capacity, features.shape)
        return DecompositionState(params, self._optimizer().init(params), replay, RunningMoments.zeros(()))

    def update(
        self, key: jax.Array, state: DecompositionState, trajectory: Trajectory, *, context: Context | None = None
    ) -> tuple[DecompositionState, Metrics]:
        del context
        trajectory = jax.lax.stop_gradient(trajectory)
        mask = trajectory.mask
        rewards = state.rewards.update(_mean_reward(trajectory.reward, mask), mask.any(axis=0))
        features = step_features(trajectory, "RewardDecomposition")
        replay = state.replay.add(Episodes.of(features, mask, trajectory.reward))

        def loss(params: Any, key: jax.Array) -> jax.Array:
            episode_key, step_key = jax.random.split(key)
            features, mask, reward = replay.sample(episode_key, self.fit_batch).time_major
            target = (_mean_reward(reward, mask) - rewards.mean) / rewards.std
            return self._loss(params, step_key, features, mask, target)

        learner, value = fit(loss, self._optimizer(), (state.params, state.opt_state), key, self.fits)
        return DecompositionState(*learner, replay, rewards), {"loss": value}

    def assign(
        self, key: jax.Array, state: DecompositionState, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, context
        standard = self.network.apply(state.params, step_features(trajectory, "RewardDecomposition"))
        # while all episodes were alike there is nothing to tell apart
        scale = jnp.where(state.rewards.deviation > 0, state.rewards.std, 0)
        reward = state.rewards.mean + scale * jnp.asarray(standard)[..., 0]
        return trajectory.replace(reward=jnp.where(trajectory.mask, reward, 0).astype(trajectory.reward.dtype))

    def _loss(self, params: Any, key: jax.Array, features: jax.Array, mask: jax.Array, target: jax.Array) -> jax.Array:
        reward = jnp.asarray(self.network.apply(params, features))[..., 0]
        number = self.subset or mask.shape[0]

        def of_episode(key: jax.Array, reward: jax.Array, mask: jax.Array, target: jax.Array) -> jax.Array:
            chosen = choose_steps(key, mask, number) if self.subset else mask
            length = mask.sum().astype(reward.dtype)
            return decomposition_loss(reward, target, chosen, length, unbiased=self.unbiased)

        keys = jax.random.split(key, target.shape[0])
        return jax.vmap(of_episode, (0, 1, 1, 0))(keys, reward, mask, target).mean()

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)


def _mean_reward(reward: jax.Array, mask: jax.Array) -> jax.Array:
    """R / L of each episode, `[T, B] -> [B]`."""
    return episode_returns(reward, mask).astype(jnp.float32) / jnp.maximum(mask.sum(axis=0), 1)
