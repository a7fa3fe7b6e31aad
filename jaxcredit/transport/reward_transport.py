"""Temporal Reward Transport: steps that a classifier of high returns looks at are paid what comes beyond the horizon.

Reference: Yeh (2020), "Temporal reward transport", https://www.efavdb.com/ltca, and its public code.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, ScalarLike

from jaxcredit.core.estimator import Context, CreditEstimator, FittedAfterwards, Metrics
from jaxcredit.core.fields import INFINITY, choice, whole, within
from jaxcredit.core.recurrence import backward_recurrence
from jaxcredit.core.trajectory import Trajectory, continues, episode_starts, over_columns, require, zero_padding
from jaxcredit.networks.fitting import fit, step_features
from jaxcredit.networks.return_classifier import ReturnClassifier, high_return_loss

Critic = Literal["original", "transported"]
CRITICS = ("original", "transported")


def attention_importance(
    weight: Float[Array, "T T"], terminated: Bool[Array, "T"], truncated: Bool[Array, "T"]
) -> Float[Array, "T"]:
    """How much a step is looked at by itself and the later steps of its episode, on average:  mean_{j >= i} w_{ji}.

    Args:
      weight: w_{ji} of query j (first axis) and key i, from 0 to 1.
      terminated, truncated: the episode ended after the step.  Padded steps must be marked as ends (`zero_padding`).
    Returns:
      Importance of each step, from 0 to 1.  Few steps look at the last ones, which makes them seem important.

    >>> nothing = jnp.zeros(2, bool)
    >>> attention_importance(jnp.array([[1.0, 0.0], [0.75, 0.25]]), nothing, nothing).tolist()
    [0.875, 0.25]
    """
    looks = _past_of_episode(terminated, truncated)
    return jnp.where(looks, weight, 0).sum(axis=0) / looks.sum(axis=0).astype(weight.dtype)


def reward_to_go(
    reward: Float[Array, "T"],
    next_value: Float[Array, "T"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
) -> Float[Array, "T"]:
    """Undiscounted G_t = r_t + (1 - terminated_t) (v_{t+1} if truncated_t or at the window's end else G_{t+1}).

    Args:
      reward: r_t, follows action t.
      next_value: v_{t+1}, value of what followed action t *before any reset*, in reward units.
      terminated, truncated: the episode ended after action t.
    Returns:
      G_t, in reward units.
    """
    cut = truncated & ~terminated
    decay = continues(terminated, truncated).astype(reward.dtype)
    return backward_recurrence(decay, reward + jnp.where(cut, next_value, 0), next_value[-1])


def transport_reward(
    importance: Float[Array, "T"],
    reward: Float[Array, "T"],
    next_value: Float[Array, "T"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
    *,
    horizon: ScalarLike,
    alpha: ScalarLike = 0.5,
    threshold: ScalarLike = 0.15,
) -> Float[Array, "T"]:
    """What to add to the rewards:  alpha importance_t G_{t+tau}  where  importance_t > threshold.

    G is the `reward_to_go`, tau the horizon, within which rewards reach step t by themselves; the source has that of
    the discount, 1 / (1 - gamma).  Nothing is added where step t + tau is in another episode or behind the end of its
    own.  Where the window cuts an episode that goes on, its last step stands for those beyond it.

    Args:
      importance: of step t, without unit; see `attention_importance`.
      reward: r_t, follows action t.
      next_value: v_{t+1}, value of what followed action t *before any reset*, in reward units.
      terminated, truncated: the episode ended after action t.  Padded steps must be marked as ends (`zero_padding`).
      horizon: tau in steps, rounded; at least 0.
      alpha: share of the reward to go that is paid.
      threshold: importance above which a step is paid.
    Returns:
      Transported reward of each step, in reward units and in the reward's dtype.

    Assumption: the source takes its window's last frame for steps beyond it also where an episode ends just there, so
    that one episode of a window is paid for its last reward; here that is behind the end, as for every other episode.
    """
    importance, next_value = importance.astype(reward.dtype), next_value.astype(reward.dtype)
    to_go = reward_to_go(reward, next_value, terminated, truncated)
    step, steps = jnp.arange(reward.size), reward.size
    later = step + jnp.minimum(jnp.round(horizon), steps).astype(jnp.int32)
    ahead = jnp.minimum(later, steps - 1)
    start = episode_starts(terminated, truncated)
    open_end = continues(terminated, truncated)[-1]
    beyond = jnp.where((start[ahead] == start) & ((later < steps) | open_end), to_go[ahead], 0)
    paid = jnp.asarray(alpha, reward.dtype) * importance * beyond
    return jnp.where(importance > jnp.asarray(threshold, reward.dtype), paid, 0)


def _past_of_episode(terminated: Array, truncated: Array) -> Array:
    """Whether step j, the first axis, belongs to the same episode as step i and does not come before it."""
    start = episode_starts(terminated, truncated)
    return jnp.tril(start[:, None] == start)


@struct.dataclass
class RewardTransportState:
    """State of `TemporalRewardTransport`.

    Attributes:
      params, opt_state: of the classifier.
      level: `[]`, the reward to go above which a step counts as high, in reward units.
      credit: of the estimator inside.
    """

    params: Any
    opt_state: Any
    level: jax.Array
    credit: Any


@struct.dataclass
class TemporalRewardTransport(FittedAfterwards):
    """Compute advantages of rewards to which `transport_reward` has been added, by the estimator inside.

    A `ReturnClassifier` learns whether the reward to go of a step exceeds a level, which follows the best return of
    each batch; the steps it looks at are important.  As in the source a batch is credited before the classifier is
    fitted on it, and the critic's target is made of the *original* reward; with `critic="transported"` both see the new
    one.

        TemporalRewardTransport(GAE(gamma=0.99, lam=0.95), horizon=100)

    Only steps more than a horizon before the end of their episode can be paid: of 150 the first 50.

    Attributes:
      credit: estimator that writes `advantage` and `value_target`, for example `GAE()`.
      horizon: steps within which the inner estimator needs no help, such as 1 / (1 - gamma) of its discount.
      alpha: share of the reward to go that is paid.
      threshold: importance above which a step is paid.
      level_rate: how fast the level follows the best returns.
      positive_weight: of high returns in the classifier's loss.
      learning_rate: step size of RMSprop.
      critic: static; "original" or "transported", the rewards that the value target is made of.
      fits: gradient steps on each batch.
      width, hidden: sizes of the classifier.

    Assumption: the best return of a batch is the largest reward to go of those of its steps that start an episode;
    where none starts the level stays.  It moves before the batch is labelled.
    """

    credit: CreditEstimator
    horizon: float = within(0, INFINITY, 100.0)
    alpha: float = within(0, INFINITY, 0.5)
    threshold: float = within(0, 1, 0.15)
    level_rate: float = within(0, 1, 0.03)
    positive_weight: float = within(0, INFINITY, 2.0)
    learning_rate: float = within(0, INFINITY, 1e-3)
    critic: Critic = choice("original", CRITICS)
    fits: int = whole(1)
    width: int = whole(64)
    hidden: int = whole(64)

    @property
    def needs_episodes(self) -> bool:
        return self.credit.needs_episodes

    @property
    def needs_next_observation(self) -> bool:
        return self.credit.needs_next_observation

    @property
    def network(self) -> ReturnClassifier:
        return ReturnClassifier(self.width, self.hidden)

    def init(self, key: jax.Array, trajectory: Trajectory) -> RewardTransportState:
        network_key, credit_key = jax.random.split(key)
        width = jax.eval_shape(self._features, trajectory).shape[-1]
        params = self.network.init(network_key, jnp.zeros((1, 1, width)), jnp.ones((1, 1, 1), bool))
        credit = self.credit.init(credit_key, trajectory)
        return RewardTransportState(params, self._optimizer().init(params), jnp.zeros(()), credit)

    def update(
        self, key: jax.Array, state: RewardTransportState, trajectory: Trajectory, *, context: Context | None = None
    ) -> tuple[RewardTransportState, Metrics]:
        fit_key, credit_key = jax.random.split(key)
        trajectory = jax.lax.stop_gradient(trajectory)
        transported = self.transported(state, trajectory)
        credit, metrics = self.credit.update(credit_key, state.credit, transported, context=context)
        to_go = over_columns(reward_to_go, *self._rewards(trajectory)).astype(jnp.float32)
        starts = trajectory.first & trajectory.mask
        best = jnp.where(starts, to_go, -jnp.inf).max()
        level = jnp.where(starts.any(), state.level + self.level_rate * (best - state.level), state.level)
        features, allowed = self._features(trajectory), self._allowed(trajectory)

        def loss(params: Any, key: jax.Array) -> jax.Array:
            del key
            logit: Any = self.network.apply(params, features, allowed)[0]
            return high_return_loss(logit, to_go > level, trajectory.mask, positive_weight=self.positive_weight)

        learner, value = fit(loss, self._optimizer(), (state.params, state.opt_state), fit_key, self.fits)
        return RewardTransportState(*learner, level, credit), metrics | {"loss": value, "level": level}

    def assign(
        self, key: jax.Array, state: RewardTransportState, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        assign = partial(self.credit.assign, key, state.credit, context=context)
        assigned = assign(self.transported(state, trajectory))
        if self.critic == "original":
            assigned = assigned.replace(value_target=assign(trajectory).value_target)
        return assigned

    def transported(self, state: RewardTransportState, trajectory: Trajectory) -> Trajectory:
        """The trajectory with what is transported added to its reward."""
        steps = zero_padding(trajectory)
        importance = over_columns(
            attention_importance, self.weights(state, trajectory), steps.terminated, steps.truncated
        )
        transport = partial(transport_reward, horizon=self.horizon, alpha=self.alpha, threshold=self.threshold)
        return trajectory.replace(reward=steps.reward + over_columns(transport, importance, *self._rewards(trajectory)))

    def weights(self, state: RewardTransportState, trajectory: Trajectory) -> jax.Array:
        """How much step j looks at step i, `[T, B, T]`: j first, i last."""
        weight: Any = self.network.apply(state.params, self._features(trajectory), self._allowed(trajectory))[1]
        return jnp.moveaxis(weight, 0, 1)

    def _rewards(self, trajectory: Trajectory) -> tuple[Any, ...]:
        names = ("reward", "next_value", "terminated", "truncated")
        return require(zero_padding(trajectory), "TemporalRewardTransport", *names)

    def _features(self, trajectory: Trajectory) -> jax.Array:
        return step_features(trajectory, "TemporalRewardTransport")

    def _allowed(self, trajectory: Trajectory) -> jax.Array:
        steps = zero_padding(trajectory)
        return jax.vmap(_past_of_episode, in_axes=1)(steps.terminated, steps.truncated)

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.rmsprop(self.learning_rate, decay=0.99, eps=1e-8, eps_in_sqrt=False)
