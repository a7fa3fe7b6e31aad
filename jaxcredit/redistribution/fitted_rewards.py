"""Rewards of steps that explain whole returns: the fitting that RD, RRD, sequence models, AREL and Diaster share."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from jaxcredit.core.estimator import Context, CreditEstimator, Metrics
from jaxcredit.core.fields import INFINITY, choice, whole, within
from jaxcredit.core.statistics import RunningMoments
from jaxcredit.core.trajectory import Trajectory, episode_returns
from jaxcredit.networks.fitting import fit, step_features
from jaxcredit.redistribution.contribution import RESIDUALS, complete_return
from jaxcredit.redistribution.replay import EpisodeReplay, Episodes

Rest = Literal["none", "end", "spread"]
RESTS = ("none", *RESIDUALS)


@struct.dataclass
class FittedState:
    """State of `FittedRewards`.

    Attributes:
      params, opt_state: of the network that rewards steps.
      replay: past episodes.
      rewards: running moments of the episodes' mean rewards R / L, in reward units.
    """

    params: Any
    opt_state: Any
    replay: EpisodeReplay
    rewards: RunningMoments


@struct.dataclass
class FittedRewards(CreditEstimator):
    """Fit rewards  r_t = m + u x_t  on past episodes, then put them in the place of `reward`.

    m is the mean of the episodes' R / L so far, u a unit taken from how it varies between them, x_t what a network
    makes of the steps up to t.  Subclasses say which network, and by which loss its rewards must explain the returns.
    A batch joins the replay before it is assigned credit, so its own episodes are among those that were fitted.

    Attributes:
      learning_rate: step size of Adam.
      residual: where the part of the return goes that the rewards do not add up to, see `complete_return`; "none"
        leaves it out.
      fits: gradient steps per batch.
      fit_batch: episodes per gradient step.
      capacity: episodes kept for fitting.
    """

    learning_rate: float = within(0, INFINITY, 3e-3)
    residual: Rest = choice("none", RESTS)
    fits: int = whole(10)
    fit_batch: int = whole(32)
    capacity: int = whole(4096)

    @property
    def needs_episodes(self) -> bool:
        return True

    # What subclasses say --------------------------------------------------------------------------------------------

    @property
    def network(self) -> nn.Module:
        """Maps features `[T, B, D]` and mask `[T, B]` to x `[T, B]`."""
        raise NotImplementedError

    def loss(self, params: Any, key: jax.Array, features: jax.Array, mask: jax.Array, excess: jax.Array) -> jax.Array:
        """How badly the rewards x of some episodes explain `excess` `[B]`, their returns beyond L m, in units of u."""
        raise NotImplementedError

    def features(self, trajectory: Trajectory) -> jax.Array:
        """What the network sees, `[T, B, D]`; padded steps are 0."""
        return step_features(trajectory, type(self).__name__)

    def unit(self, rewards: RunningMoments, steps: int) -> jax.Array:
        """u, in reward units: the deviation of the returns of episodes that fill the window of `steps`."""
        return rewards.std * steps

    # What they share ------------------------------------------------------------------------------------------------

    def init(self, key: jax.Array, trajectory: Trajectory) -> FittedState:
        shape = jax.eval_shape(self.features, trajectory).shape
        steps, _, width = shape
        params = self.network.init(key, jnp.zeros((steps, 1, width)), jnp.ones((steps, 1), bool))
        replay = EpisodeReplay.empty(self.capacity, shape)
        return FittedState(params, self._optimizer().init(params), replay, RunningMoments.zeros(()))

    def update(
        self, key: jax.Array, state: FittedState, trajectory: Trajectory, *, context: Context | None = None
    ) -> tuple[FittedState, Metrics]:
        del context
        trajectory = jax.lax.stop_gradient(trajectory)
        mask, total = trajectory.mask, episode_returns(trajectory.reward, trajectory.mask).astype(jnp.float32)
        rewards = state.rewards.update(total / jnp.maximum(mask.sum(axis=0), 1), mask.any(axis=0))
        replay = state.replay.add(Episodes.of(self.features(trajectory), mask, trajectory.reward))
        unit = self.unit(rewards, mask.shape[0])

        def loss(params: Any, key: jax.Array) -> jax.Array:
            episode_key, loss_key = jax.random.split(key)
            features, mask, reward = replay.sample(episode_key, self.fit_batch).time_major
            excess = (reward.sum(axis=0) - mask.sum(axis=0) * rewards.mean) / unit
            return self.loss(params, loss_key, features, mask, excess)

        learner, value = fit(loss, self._optimizer(), (state.params, state.opt_state), key, self.fits)
        return FittedState(*learner, replay, rewards), {"loss": value}

    def assign(
        self, key: jax.Array, state: FittedState, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, context
        reward = self.fitted_rewards(state, trajectory).astype(trajectory.reward.dtype)
        if self.residual != "none":
            total = episode_returns(trajectory.reward, trajectory.mask)
            complete = partial(complete_return, residual=self.residual)
            reward = jax.vmap(complete, (1, 0, 1), 1)(reward, total, trajectory.mask)
        return trajectory.replace(reward=reward)

    def fitted_rewards(self, state: FittedState, trajectory: Trajectory) -> jax.Array:
        """r_t `[T, B]`, in reward units, without the residual: of the steps up to t alone."""
        standard: Any = self.network.apply(state.params, self.features(trajectory), trajectory.mask)
        # while all episodes were alike there is nothing to tell apart
        unit = jnp.where(state.rewards.deviation > 0, self.unit(state.rewards, trajectory.mask.shape[0]), 0)
        return jnp.where(trajectory.mask, state.rewards.mean + unit * standard, 0)

    def predicted_return(self, state: FittedState, trajectory: Trajectory) -> jax.Array:
        """sum_{k <= t} r_k  `[T, B]`, in reward units: what `Shaping` makes a potential of."""
        return jnp.cumsum(self.fitted_rewards(state, trajectory), axis=0)

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)
