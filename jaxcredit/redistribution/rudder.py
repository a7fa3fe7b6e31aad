"""RUDDER: a sequence model predicts the return; each step is paid what it changed in the prediction.

Reference: Arjona-Medina, Gillhofer, Widrich, Unterthiner, Brandstetter and Hochreiter (2019), "RUDDER: Return
Decomposition for Delayed Rewards", arXiv:1806.07857.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float

from jaxcredit.core.estimator import Context, CreditEstimator, Metrics
from jaxcredit.core.fields import INFINITY, choice, static, whole, within
from jaxcredit.core.statistics import RunningMoments
from jaxcredit.core.trajectory import Trajectory, episode_returns, masked_mean, over_columns
from jaxcredit.networks.fitting import fit, step_features
from jaxcredit.networks.mlp import flatten_observation
from jaxcredit.networks.reduced_lstm import GATES, Gate, Prediction, ReturnPredictor
from jaxcredit.redistribution.contribution import (
    RESIDUALS,
    Attribution,
    Residual,
    complete_return,
    integrated_gradients,
)
from jaxcredit.redistribution.replay import EpisodeReplay, Episodes, LessonsBuffer

Analysis = Literal["differences", "gradients", "relevance"]
ANALYSES = ("differences", "gradients", "relevance")
Inputs = Literal["state", "difference"]
INPUTS = ("state", "difference")
Buffer = Literal["recent", "lessons"]
BUFFERS = ("recent", "lessons")
Baseline = Literal["mean", "zero"]
BASELINES = ("mean", "zero")


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


def auxiliary_targets(reward: Float[Array, "T"], mask: Bool[Array, "T"], *, window: int = 10) -> Float[Array, "T 3"]:
    """Three further things to predict after each step, which tell a predictor early what rewards mean.

    1 / window  sum_{k = t+1}^{t + window} r_k,   sum_{k > t} r_k,   sum_{k <= t} r_k.

    Args:
      reward: r_t, follows action t, in reward units; padded steps may hold anything.
      mask: True on the episode's own steps.
      window: how far the first one looks, in steps, static; rewards behind the end count as 0.
    Returns:
      The targets in reward units (per step, the first).
    Reference: code of Arjona-Medina et al. (2019), arXiv:1806.07857.

    >>> auxiliary_targets(jnp.array([1.0, 0.0, 4.0]), jnp.ones(3, bool), window=2).tolist()
    [[2.0, 4.0, 1.0], [2.0, 4.0, 1.0], [0.0, 0.0, 5.0]]
    """
    so_far = jnp.cumsum(jnp.where(mask, reward, 0))
    soon = jnp.concatenate([so_far[window:], jnp.broadcast_to(so_far[-1:], (min(window, so_far.size),))])
    return jnp.stack([(soon - so_far) / window, so_far[-1] - so_far, so_far], axis=-1)


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
    replay: EpisodeReplay | LessonsBuffer
    returns: RunningMoments
    quality: jax.Array


@struct.dataclass
class RUDDER(CreditEstimator):
    """Fit a return predictor on past episodes, then replace `reward` by what each step contributed to its prediction.

    Rewrites `reward` only: chain it with an estimator that computes advantages, `chain(RUDDER(), GAE(gamma=1.0))`.
    Redistributed rewards sum to each episode's undiscounted return.  Inputs at step t are the observation, the action
    and, optionally, the reward that came before it and the sum of all such rewards.  A batch joins the replay before it
    is assigned credit, so its own episodes are among those the predictor was fitted on; `quality` is measured before.

    Attributes:
      learning_rate: step size of Adam.
      weight_decay: decoupled weight decay.
      continuous_weight: weight of the loss's second part, see `return_loss`.
      auxiliary_weight: weight of the squared error of further predictions, see `auxiliary_targets`.
      min_quality: the redistribution is used once the running quality exceeds this; before, rewards stay as they are.
        Quality is 1 - error / variance of the returns, of new episodes before they are fitted: 0 is no better than
        predicting their mean, 1 is perfect.
      temperature: by which losses are divided in the lessons buffer; the lower, the more often the worst are drawn.
      hidden, gate, readout, monotonic, chunk: size and kind of the predictor, see `ReturnPredictor`.
      analysis: "differences" pays each step the change of the prediction, see `redistribute_differences`;
        "gradients" pays `integrated_gradients` of the last prediction, and reports their `completeness` gap;
        "relevance" pays relevance for the last prediction, see `lrp_lstm`.  What is missing to the return is handed out
        in all three.
      path_steps: points on the path of the integrated gradients.
      inputs: "state" shows observations, "difference" what changed in them since the step before (the first one as it
        is): the past can then not be read off the present, and is paid when it happens.
      buffer: what is kept for fitting: the most "recent" episodes, or "lessons", those predicted worst.
      capacity: how many episodes that are.
      fits: gradient steps per batch.
      fit_batch: episodes per gradient step.
      residual: where the part goes that the prediction missed, see `complete_return`.
      baseline: what was predicted before the first step: the "mean" return, which is then handed out like the residual,
        or "zero", as in the reference, with which the first step is paid the mean return as well.
      past_rewards: feed earlier rewards to the predictor; wanted where rewards come along the way.

    Raises:
      ValueError: what `ReturnPredictor` refuses; relevance with a nonlinear read-out.

    Assumption: the paper fits until a loss threshold holds; a fixed number of steps per batch here, so that the
    program's shape is fixed.  Targets are standardised by running moments.  Losses in the lessons buffer are
    computed anew once per batch, not after each use.
    """

    learning_rate: float = within(0, INFINITY, 3e-2)
    weight_decay: float = within(0, INFINITY, 1e-6)
    continuous_weight: float = within(0, INFINITY, 0.1)
    auxiliary_weight: float = within(0, INFINITY, 0.0)
    min_quality: float = within(-INFINITY, INFINITY, 0.0)
    temperature: float = within(1e-3, INFINITY, 1.0)
    hidden: int = whole(16)
    gate: Gate = choice("input", GATES)
    readout: int = whole(0, least=0)
    monotonic: bool = static(False)
    chunk: int = whole(0, least=0)
    analysis: Analysis = choice("differences", ANALYSES)
    path_steps: int = whole(64)
    inputs: Inputs = choice("state", INPUTS)
    buffer: Buffer = choice("recent", BUFFERS)
    capacity: int = whole(4096)
    fits: int = whole(30)
    fit_batch: int = whole(32)
    residual: Residual = choice("spread", RESIDUALS)
    baseline: Baseline = choice("mean", BASELINES)
    past_rewards: bool = static(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.analysis == "relevance" and self.readout:
            raise ValueError(
                f"analysis='relevance' is not defined for the nonlinear read-out that readout={self.readout} adds; "
                "choose readout=0, or another analysis."
            )
        self.predictor  # noqa: B018  (refuses kinds that cannot be)

    @property
    def needs_episodes(self) -> bool:
        return True

    @property
    def predictor(self) -> ReturnPredictor:
        return ReturnPredictor(self.hidden, self.gate, self.readout, self.monotonic, self.chunk)

    def init(self, key: jax.Array, trajectory: Trajectory) -> RUDDERState:
        features = jax.eval_shape(lambda t: self.features(t, jnp.ones(())), trajectory)
        steps, _, width = features.shape
        params = self.predictor.init(key, jnp.zeros((steps, 1, width)), jnp.ones((steps, 1), bool))
        kept = {"recent": EpisodeReplay, "lessons": LessonsBuffer}[self.buffer].empty(self.capacity, features.shape)
        return RUDDERState(params, self._optimizer().init(params), kept, RunningMoments.zeros(()), jnp.zeros(()))

    def features(self, trajectory: Trajectory, reward_scale: jax.Array) -> jax.Array:
        """What the predictor sees at each step, `[T, B, D]`; padded steps are 0."""
        if self.inputs == "difference":
            observation = flatten_observation(trajectory.observation, lead=2)
            change = jnp.concatenate([observation[:1], jnp.diff(observation, axis=0)])
            trajectory = trajectory.replace(observation=change)
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
        mask, total = trajectory.mask, episode_returns(trajectory.reward, trajectory.mask).astype(jnp.float32)
        returns = state.returns.update(total, mask.any(axis=0))
        features = self.features(trajectory, returns.std)
        quality = self._quality(state, features, mask, total)
        kept = self._keep(state, Episodes.of(features, mask, trajectory.reward), returns)

        def loss(params: Any, key: jax.Array) -> jax.Array:
            return self._loss(params, kept.sample(key, self.fit_batch), returns)

        learner, value = fit(loss, self._optimizer(), (state.params, state.opt_state), key, self.fits)
        state = RUDDERState(*learner, kept, returns, 0.9 * state.quality + 0.1 * quality)
        metrics = {"loss": value, "quality": quality}
        if self.analysis == "gradients":
            metrics["completeness"] = self.attribution(state, features, mask).gap.mean()
        return state, metrics

    def assign(
        self, key: jax.Array, state: RUDDERState, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, context
        mask, dtype = trajectory.mask, trajectory.reward.dtype
        contribution = self._contributions(state, self.features(trajectory, state.returns.std), mask)
        if self.baseline == "zero":
            contribution = contribution.at[0].add(state.returns.mean)
        redistributed = jax.vmap(partial(complete_return, residual=self.residual), (1, 0, 1), 1)(
            contribution.astype(dtype), episode_returns(trajectory.reward, mask), mask
        )
        return trajectory.replace(
            reward=jnp.where(state.quality > self.min_quality, redistributed, jnp.where(mask, trajectory.reward, 0))
        )

    def predicted_return(self, state: RUDDERState, trajectory: Trajectory) -> jax.Array:
        """g_t less the mean return `[T, B]`, in reward units: what `Shaping` makes a potential of."""
        features = self.features(trajectory, state.returns.std)
        # while all episodes were alike there is nothing to tell apart
        unit = jnp.where(state.returns.deviation > 0, state.returns.std, 0)
        return unit * self._predict(state.params, features, trajectory.mask).total

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.adamw(self.learning_rate, weight_decay=self.weight_decay)

    def _keep(self, state: RUDDERState, episodes: Episodes, returns: RunningMoments) -> EpisodeReplay | LessonsBuffer:
        if isinstance(state.replay, EpisodeReplay):
            return state.replay.add(episodes)

        def loss(episodes: Episodes) -> jax.Array:
            features, mask, reward = episodes.time_major
            error = self._predict(state.params, features, mask).total[-1] - _standard_return(reward, mask, returns)
            return jnp.square(error) / self.temperature

        return state.replay.add(episodes, loss)

    def _loss(self, params: Any, episodes: Episodes, returns: RunningMoments) -> jax.Array:
        features, mask, reward = episodes.time_major
        target = _standard_return(reward, mask, returns)
        prediction = self._predict(params, features, mask)
        further = over_columns(auxiliary_targets, reward / returns.std, mask)
        error = jnp.square(prediction.auxiliary - further).mean(axis=-1)
        loss = return_loss(prediction.total, target, mask, continuous_weight=self.continuous_weight)
        return loss + self.auxiliary_weight * masked_mean(error, mask)

    def _predict(self, params: Any, features: jax.Array, mask: jax.Array) -> Prediction:
        """In standard units of the returns."""
        return self.predictor.apply(params, features, mask)  # type: ignore[return-value]

    def _contributions(self, state: RUDDERState, features: jax.Array, mask: jax.Array) -> jax.Array:
        """`[T, B]` in reward units."""
        if self.analysis == "gradients":
            return state.returns.std * self.attribution(state, features, mask).contribution
        prediction = self._predict(state.params, features, mask)
        if self.analysis == "relevance":
            assert prediction.relevance is not None  # the read-out is linear
            return state.returns.std * prediction.relevance
        return state.returns.std * jnp.diff(prediction.total, axis=0, prepend=0)

    def attribution(self, state: RUDDERState, features: jax.Array, mask: jax.Array) -> Attribution:
        """Contributions `[T, B]` to the last prediction in standard units, and what they should sum to `[B]`."""

        def of_episode(features: jax.Array, mask: jax.Array) -> Attribution:
            def predict(features: jax.Array) -> jax.Array:
                return self._predict(state.params, features[:, None], mask[:, None]).total[-1, 0]

            return integrated_gradients(predict, features, mask, steps=self.path_steps)

        return jax.vmap(of_episode, 1, Attribution(contribution=1, total=0))(features, mask)  # type: ignore[arg-type]

    def _quality(self, state: RUDDERState, features: jax.Array, mask: jax.Array, target: jax.Array) -> jax.Array:
        """1 - squared error / variance of the returns, on episodes the predictor has not seen, at least -1."""
        standard = self._predict(state.params, features, mask).total[-1]
        error = jnp.square(state.returns.mean + state.returns.std * standard - target).mean()
        variance = jnp.square(target - target.mean()).mean()
        return jnp.maximum(1 - error / jnp.maximum(variance, 1e-8), -1)


def _standard_return(reward: jax.Array, mask: jax.Array, returns: RunningMoments) -> jax.Array:
    """Returns of episodes, `[T, B] -> [B]`, in the standard units of all returns so far."""
    return (episode_returns(reward, mask) - returns.mean) / returns.std
