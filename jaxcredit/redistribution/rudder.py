"""RUDDER: a sequence model predicts the return; each step is paid what it changed in the prediction.

Reference: Arjona-Medina, Gillhofer, Widrich, Unterthiner, Brandstetter and Hochreiter (2019), "RUDDER: Return
Decomposition for Delayed Rewards", arXiv:1806.07857.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float

from jaxcredit.core.estimator import Context, CreditEstimator, Metrics
from jaxcredit.core.fields import INFINITY, choice, static, whole, within
from jaxcredit.core.statistics import RunningMoments
from jaxcredit.core.trajectory import Trajectory, episode_returns, masked_mean
from jaxcredit.networks.reduced_lstm import GATES, Gate, ReturnPredictor
from jaxcredit.redistribution.replay import EpisodeReplay, fit, step_features

Residual = Literal["end", "spread"]
RESIDUALS = ("end", "spread")


def redistribute_differences(
    prediction: Float[Array, "T"],
    episode_return: Float[Array, ""],
    mask: Bool[Array, "T"],
    *,
    residual: Residual = "end",
    baseline: float | Float[Array, ""] = 0.0,
) -> Float[Array, "T"]:
    """Pay each step the change it caused in the predicted return, and hand out what the prediction missed.

    R_t = g_t - g_{t-1},  g_{-1} = baseline;  then  episode_return - sum_t R_t  goes to the last step or to all equally.

    Args:
      prediction: g_t, the return predicted after action t, in reward units; padded steps may hold anything.
      episode_return: undiscounted return of the episode, in reward units.
      mask: True on the episode's own steps, which come first; padded steps get exactly 0.
      residual: "end" adds the missing part to the last step, "spread" an equal part to every step.
      baseline: g_{-1}, the prediction before anything happened, in reward units.
    Returns:
      Redistributed rewards; they sum to `episode_return`.  All 0 for an empty mask.
    Raises:
      ValueError: unknown `residual`.

    >>> g, mask = jnp.array([0.0, 2.0, 3.0]), jnp.array([True, True, True])
    >>> redistribute_differences(g, jnp.array(4.0), mask).tolist()
    [0.0, 2.0, 2.0]
    """
    if residual not in RESIDUALS:
        raise ValueError(f"residual={residual!r} is not known; choose one of {', '.join(RESIDUALS)}.")
    prediction = jnp.where(mask, prediction, 0)
    before = jnp.concatenate([jnp.asarray(baseline, prediction.dtype)[None], prediction[:-1]])
    reward = jnp.where(mask, prediction - before, 0)
    missing = episode_return - reward.sum()
    if residual == "spread":
        share = missing / jnp.maximum(mask.sum(), 1).astype(reward.dtype)
        return reward + jnp.where(mask, share, 0)
    is_last = mask & ~jnp.concatenate([mask[1:], jnp.zeros(1, bool)])
    return reward + jnp.where(is_last, missing, 0)


def return_loss(
    prediction: Float[Array, "T B"],
    target: Float[Array, "B"],
    mask: Bool[Array, "T B"],
    *,
    continuous_weight: float | Float[Array, ""] = 0.5,
) -> Float[Array, ""]:
    """Two-part loss:  mean_b (g_T - G)^2 + continuous_weight mean_{t,b} (g_t - G)^2.

    Args:
      prediction: g_t of each episode; on padded steps the last prediction repeated.
      target: returns G, in the units of the prediction.
      mask: True on the episodes' own steps.
      continuous_weight: weight of the second part, which asks for the return as early as it can be known.
    Returns:
      The loss, a scalar.
    """
    error = jnp.square(prediction - target)
    return error[-1].mean() + continuous_weight * masked_mean(error, mask)


@struct.dataclass
class RUDDERState:
    """State of `RUDDER`.

    Attributes:
      params: parameters of the return predictor.
      opt_state: its optimiser's state.
      replay: past episodes.
      returns: running moments of the episode returns, in reward units; predictions are in their standard units.
      quality: `[]` running share of the returns' variance that was predicted *before* the episodes were fitted.
    """

    params: Any
    opt_state: Any
    replay: EpisodeReplay
    returns: RunningMoments
    quality: jax.Array


@struct.dataclass
class RUDDER(CreditEstimator):
    """Fit a return predictor on past episodes, then replace `reward` by the differences of its predictions.

    Rewrites `reward` only: chain it with an estimator that computes advantages, `chain(RUDDER(), GAE(gamma=1.0))`.
    Redistributed rewards sum to each episode's undiscounted return.  Inputs at step t are the observation, the action
    and, optionally, the reward that came before it and the sum of all such rewards.  A batch joins the replay before it
    is assigned credit, so its own episodes are among those the predictor was fitted on; `quality` is measured before.

    Attributes:
      learning_rate: step size of Adam.
      weight_decay: decoupled weight decay.
      continuous_weight: weight of the loss's second part, see `return_loss`.
      min_quality: the redistribution is used once the running quality exceeds this; before, rewards stay as they are.
        Quality is 1 - error / variance of the returns, of new episodes before they are fitted: 0 is no better than
        predicting their mean, 1 is perfect.
      hidden, gate, readout: size and kind of the predictor, see `ReturnPredictor`.
      fits: gradient steps per batch.
      fit_batch: episodes per gradient step.
      capacity: episodes kept for fitting.
      residual: where the part goes that the prediction missed, see `redistribute_differences`.
      past_rewards: feed earlier rewards to the predictor; wanted where rewards come along the way.

    Assumption: the paper fits until a loss threshold holds; a fixed number of steps per batch here, so that the
    program's shape is fixed.  Targets are standardised by running moments, and the prediction before the first
    step is the mean return, so that the first step is not paid the average of all.
    """

    learning_rate: float = within(0, INFINITY, 3e-2)
    weight_decay: float = within(0, INFINITY, 1e-6)
    continuous_weight: float = within(0, INFINITY, 0.1)
    min_quality: float = within(-INFINITY, INFINITY, 0.0)
    hidden: int = whole(16)
    gate: Gate = choice("input", GATES)
    readout: int = whole(0, least=0)
    fits: int = whole(30)
    fit_batch: int = whole(32)
    capacity: int = whole(4096)
    residual: Residual = choice("spread", RESIDUALS)
    past_rewards: bool = static(False)

    @property
    def needs_episodes(self) -> bool:
        return True

    @property
    def predictor(self) -> ReturnPredictor:
        return ReturnPredictor(self.hidden, self.gate, self.readout)

    def init(self, key: jax.Array, trajectory: Trajectory) -> RUDDERState:
        features = jax.eval_shape(lambda t: self.features(t, jnp.ones(())), trajectory)
        steps, _, width = features.shape
        blank = jnp.zeros((steps, 1, width))
        params = self.predictor.init(key, blank, jnp.ones((steps, 1), bool))
        replay = EpisodeReplay.empty(self.capacity, features.shape)
        return RUDDERState(params, self._optimizer().init(params), replay, RunningMoments.zeros(()), jnp.zeros(()))

    def features(self, trajectory: Trajectory, reward_scale: jax.Array) -> jax.Array:
        """What the predictor sees at each step, `[T, B, D]`; padded steps are 0."""
        if not self.past_rewards:
            return step_features(trajectory, "RUDDER")
        reward = jnp.where(trajectory.mask, trajectory.reward, 0) / reward_scale
        before = jnp.concatenate([jnp.zeros_like(reward[:1]), reward[:-1]])
        return step_features(trajectory, "RUDDER", jnp.stack([before, jnp.cumsum(before, axis=0)], axis=-1))

    def update(
        self, key: jax.Array, state: RUDDERState, trajectory: Trajectory, *, context: Context | None = None
    ) -> tuple[RUDDERState, Metrics]:
        del context
        trajectory = jax.lax.stop_gradient(trajectory)
        episode_return = episode_returns(trajectory.reward, trajectory.mask).astype(jnp.float32)
        some = trajectory.mask.any(axis=0)
        returns = state.returns.update(episode_return, some)
        features = self.features(trajectory, returns.std)
        quality = self._quality(state, features, trajectory.mask, episode_return)
        replay = state.replay.add(features, trajectory.mask, episode_return)

        def loss(params: Any, key: jax.Array) -> jax.Array:
            features, mask, episode_return = replay.sample(key, self.fit_batch)
            target = (episode_return - returns.mean) / returns.std
            prediction = self._standard_prediction(params, features, mask)
            return return_loss(prediction, target, mask, continuous_weight=self.continuous_weight)

        learner, value = fit(loss, self._optimizer(), (state.params, state.opt_state), key, self.fits)
        state = RUDDERState(*learner, replay, returns, 0.9 * state.quality + 0.1 * quality)
        return state, {"loss": value, "quality": quality}

    def assign(
        self, key: jax.Array, state: RUDDERState, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, context
        mask, dtype = trajectory.mask, trajectory.reward.dtype
        prediction = self._predict(state, self.features(trajectory, state.returns.std), mask).astype(dtype)
        redistributed = jax.vmap(
            lambda g, total, mask: redistribute_differences(
                g, total, mask, residual=self.residual, baseline=state.returns.mean
            ),
            in_axes=(1, 0, 1),
            out_axes=1,
        )(prediction, episode_returns(trajectory.reward, mask), mask)
        return trajectory.replace(
            reward=jnp.where(state.quality > self.min_quality, redistributed, jnp.where(mask, trajectory.reward, 0))
        )

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.adamw(self.learning_rate, weight_decay=self.weight_decay)

    def _standard_prediction(self, params: Any, features: jax.Array, mask: jax.Array) -> Any:
        """Predicted returns `[T, B]` in standard units."""
        return self.predictor.apply(params, features, mask)

    def _predict(self, state: RUDDERState, features: jax.Array, mask: jax.Array) -> jax.Array:
        """Predicted returns `[T, B]` in reward units."""
        return state.returns.mean + state.returns.std * self._standard_prediction(state.params, features, mask)

    def _quality(self, state: RUDDERState, features: jax.Array, mask: jax.Array, target: jax.Array) -> jax.Array:
        """1 - squared error / variance of the returns, on episodes the predictor has not seen, at least -1."""
        error = jnp.square(self._predict(state, features, mask)[-1] - target).mean()
        variance = jnp.square(target - target.mean()).mean()
        return jnp.maximum(1 - error / jnp.maximum(variance, 1e-8), -1)
