"""COCOA: an action is paid, for every later reward, by how much more of its outcome it brings than the policy.

The outcome of a reward is what the coefficients condition on: its value (COCOA-reward), the state it came in ("HCA+",
see `StateHCA`), or a learned feature.

Reference: Meulemans et al. (2023), "Would I have gotten that reward? Long-term credit assignment by counterfactual
contribution analysis", arXiv:2306.16803.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from jaxcredit.core.estimator import Context, Metrics
from jaxcredit.core.fields import choice, whole
from jaxcredit.core.trajectory import Trajectory, masked_mean
from jaxcredit.hindsight.ratios import HindsightRatios, RatioState, hindsight_loss, hindsight_ratio, later_sums
from jaxcredit.networks.mlp import MLP

Immediate = Literal["sampled", "learned"]
IMMEDIATE = ("sampled", "learned")


def contribution_credit(
    coefficient: Float[Array, "T K A"],
    reward: Float[Array, "T"],
    action: Int[Array, "T"],
    probability: Float[Array, "T A"],
    mask: Bool[Array, "T"],
    *,
    gamma: ScalarLike = 1.0,
    immediate: Float[Array, "T A"] | None = None,
    group: Int[Array, "T"] | None = None,
) -> Float[Array, "T A"]:
    """Credit of every action in every step:  rho_t(a) + sum_{k>t} gamma^{k-t} w(s_t, a, u_k) r_k,

    rho_t(a) = 1(a = A_t) r_t / pi(A_t|s_t),  or a model of the reward. Unbiased, up to a part that is the same for all
    actions, where the outcome determines the reward. With discounting w must be that of outcomes at a distance of k - t
    steps, or of outcomes counted with the same discount (`future_outcomes`).

    Args:
      coefficient: w of step t (first axis) for the outcome of step k (second axis) and every action; read for k > t.
        With `group` the second axis holds every outcome once.
      reward: r_t, follows action t.
      action: action taken, int.
      probability: pi(a|s_t).
      mask: True on the episode's own steps; padded steps get and give exactly 0.
      gamma: discount per step, in [0, 1].
      immediate: rho, what every action is expected to be paid at once, in reward units; None samples it.
      group: u_k as a number from 0 to K - 1, for outcomes that come again: then nothing of size T x T is computed. The
        rewards of steps with other numbers are left out.
    Returns:
      Credit of every action in reward units, to be weighed by the policy:  gradient = sum_a grad pi(a|s) credit(a).
    Raises:
      ValueError: a coefficient that is not `[T, T, A]`, or with `group` not `[T, K, A]`.
    """
    steps = reward.shape[0]
    number = steps if group is None else coefficient.shape[min(1, coefficient.ndim - 1)]
    if coefficient.shape != (steps, number, probability.shape[-1]):
        raise ValueError(
            f"coefficient has shape {coefficient.shape}; with {steps} steps and {probability.shape[-1]} actions "
            f"{(steps, number, probability.shape[-1])} is needed: decisions, outcomes, actions."
        )
    if group is not None:
        paid = later_sums(reward, group, mask, number=number, gamma=gamma)
        contributed = jnp.einsum("tk,tka->ta", paid, coefficient.astype(reward.dtype))
        immediate = jax.vmap(_immediate)(reward, action, probability) if immediate is None else immediate
        return jnp.where(mask[:, None], immediate.astype(reward.dtype) + contributed, 0)

    def of_step(step: Array, coefficient: Array, action: Array, probability: Array, immediate: Array | None) -> Array:
        return decision_credit(
            coefficient, reward, action, probability, mask, step, gamma=gamma, immediate=immediate
        )  # fmt: skip

    return jax.vmap(of_step)(jnp.arange(steps), coefficient, action, probability, immediate)


def decision_credit(
    coefficient: Float[Array, "T A"],
    reward: Float[Array, "T"],
    action: Int[Array, ""],
    probability: Float[Array, "A"],
    mask: Bool[Array, "T"],
    step: Int[Array, ""],
    *,
    gamma: ScalarLike = 1.0,
    immediate: Float[Array, "A"] | None = None,
) -> Float[Array, "A"]:
    """`contribution_credit` of the one decision in `step`; `coefficient` holds w for the outcome of every step."""
    coefficient, probability = coefficient.astype(reward.dtype), probability.astype(reward.dtype)
    reward = jnp.where(mask, reward, 0)
    ahead = jnp.arange(reward.shape[0]) - step
    later = mask & (ahead > 0)
    discount = jnp.asarray(gamma, reward.dtype) ** jnp.where(later, ahead, 0)
    contributed = ((discount * jnp.where(later, reward, 0))[:, None] * jnp.where(later[:, None], coefficient, 0)).sum(0)
    immediate = _immediate(reward[step], action, probability) if immediate is None else immediate
    return jnp.where(mask[step], immediate.astype(reward.dtype) + contributed, 0)


def _immediate(reward: Array, action: Array, probability: Array) -> Array:
    """1(a = A) r / pi(A), `[A]`."""
    taken = probability[action].astype(reward.dtype)
    sampled = jnp.where(taken > 0, reward / jnp.where(taken > 0, taken, 1), 0)
    return jnp.where(jnp.arange(probability.shape[0]) == action, sampled, 0)


@struct.dataclass
class Outcomes:
    """What the steps of a batch came to.

    Attributes:
      value: what the network sees of every outcome, `[K, U]` the same for all columns, or `[K, B, U]`.
      index: `[T, B]` int, the outcome of each step; -1 where there is none.
    """

    value: Any
    index: Any

    @property
    def axes(self) -> Any:
        """The axes of the columns, for `vmap`."""
        return Outcomes(value=1 if self.value.ndim == 3 else None, index=1)


@struct.dataclass
class Steps:
    """What pairs need of the earlier step: features `[T, D]`, probability `[T, A]`, action and mask `[T]`."""

    features: jax.Array
    probability: jax.Array
    action: jax.Array
    mask: jax.Array


@struct.dataclass
class ContributionCredit(HindsightRatios):
    """Base of estimators that credit every action by learned coefficients; subclasses say what an outcome is.

    The network is fitted on all pairs of a step and a later outcome, counted gamma^{k-t} times, so that what it learns
    does not depend on when the outcome comes.

    Attributes:
      immediate: static; "sampled" pays the reward of the step itself to the action that was taken, "learned" pays every
        action what a network expects of it.
    """

    immediate: Immediate = choice("sampled", IMMEDIATE)

    # What subclasses say --------------------------------------------------------------------------------------------

    def outcomes(self, known: Any, trajectory: Trajectory) -> Outcomes:
        """What the steps came to."""
        raise NotImplementedError

    def learn_outcomes(self, known: Any, trajectory: Trajectory) -> Any:
        """What is known of the outcomes after this batch."""
        del trajectory
        return known

    def nothing_known(self) -> Any:
        """What is known of the outcomes before any batch."""
        return ()

    def paid(self, trajectory: Trajectory) -> jax.Array:
        """What is credited, `[T, B]`; padded steps may hold anything."""
        return trajectory.reward

    # What they share ------------------------------------------------------------------------------------------------

    def init(self, key: jax.Array, trajectory: Trajectory) -> RatioState:
        ratio_key, reward_key = jax.random.split(key)
        known = self.nothing_known()
        outcome, decision = (
            jnp.zeros(jax.eval_shape(f, trajectory).shape[-1])
            for f in (lambda trajectory: self.outcomes(known, trajectory).value, self.decision_features)
        )
        params = {"ratio": self.network(trajectory).init(ratio_key, decision, outcome)}
        if self.immediate == "learned":
            params["reward"] = self._reward_network(trajectory).init(reward_key, decision)
        return self.start(params, known)

    def update(
        self, key: jax.Array, state: RatioState, trajectory: Trajectory, *, context: Context | None = None
    ) -> tuple[RatioState, Metrics]:
        del context
        trajectory = jax.lax.stop_gradient(trajectory)
        known = self.learn_outcomes(state.known, trajectory)
        outcomes = self.outcomes(known, trajectory)
        paid = jnp.where(trajectory.mask, self.paid(trajectory), 0).astype(jnp.float32)

        def of_column(params: Any, outcomes: Outcomes, steps: Steps) -> tuple[jax.Array, jax.Array]:
            logit = self._logits(params, trajectory, outcomes, steps)
            action = jnp.broadcast_to(steps.action[:, None], logit.shape[:2])
            often = later_sums(
                jnp.ones(logit.shape[0]), outcomes.index, steps.mask, number=logit.shape[1], gamma=self.gamma
            )
            return (
                often * hindsight_loss(logit, steps.probability[:, None], action, form=self.form)
            ).sum(), often.sum()

        def loss(params: Any, key: jax.Array) -> jax.Array:
            del key
            total, number = jax.vmap(of_column, (None, outcomes.axes, 1))(params, outcomes, self._steps(trajectory))
            value = total.sum() / jnp.maximum(number.sum(), 1)
            if self.immediate == "learned":
                expected = self._expected(params, trajectory)
                taken = jnp.take_along_axis(expected, trajectory.action[..., None], axis=-1)[..., 0]
                value = value + masked_mean(jnp.square(taken - paid), trajectory.mask)
            return value

        return self.fitted(key, state, loss, known)

    def assign(
        self, key: jax.Array, state: RatioState, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, context
        outcomes, paid = self.outcomes(state.known, trajectory), self.paid(trajectory)
        immediate = self._expected(state.params, trajectory) if self.immediate == "learned" else None

        def of_column(outcomes: Outcomes, steps: Steps, paid: jax.Array, immediate: jax.Array | None) -> jax.Array:
            logit = self._logits(state.params, trajectory, outcomes, steps)
            coefficient = hindsight_ratio(logit, steps.probability[:, None], form=self.form) - 1
            return contribution_credit(
                coefficient, paid, steps.action, steps.probability, steps.mask,
                gamma=self.gamma, immediate=immediate, group=outcomes.index,
            )  # fmt: skip

        columns = jax.vmap(of_column, (outcomes.axes, 1, 1, 1), 1)
        return trajectory.replace(action_advantage=columns(outcomes, self._steps(trajectory), paid, immediate))

    def _logits(self, params: Any, trajectory: Trajectory, outcomes: Outcomes, steps: Steps) -> jax.Array:
        """f of every step of one column and every outcome, `[T, K, A]`."""
        network = self.network(trajectory)
        return jnp.asarray(network.apply(params["ratio"], steps.features[:, None], outcomes.value[None]))

    def _expected(self, params: Any, trajectory: Trajectory) -> jax.Array:
        """Expected reward of every action, `[T, B, A]`."""
        return jnp.asarray(self._reward_network(trajectory).apply(params["reward"], self.decision_features(trajectory)))

    def _reward_network(self, trajectory: Trajectory) -> MLP:
        return MLP(self.hidden, self.logits(trajectory).shape[-1], scale=0.0)

    def _steps(self, trajectory: Trajectory) -> Steps:
        probability = jnp.exp(self.log_policy(trajectory))
        return Steps(self.decision_features(trajectory), probability, trajectory.action, trajectory.mask)


@struct.dataclass
class COCOA(ContributionCredit):
    """COCOA-reward: the outcome of a step is the value of its reward.

    Unbiased with exact coefficients, and its noise does not grow with the delay: all that matters of the future is
    which rewards it holds.  Rewards are told apart by value, up to rounding; a value that comes for the first time, or
    after `num_outcomes` others, is not credited to earlier actions, and the metric `unknown` says how many rewards
    were not.  A reward of 0 is no outcome.

    Attributes:
      num_outcomes: how many different rewards there may be, other than 0.
    """

    num_outcomes: int = whole(16)

    def nothing_known(self) -> jax.Array:
        return jnp.full(self.num_outcomes, jnp.nan)

    def learn_outcomes(self, known: jax.Array, trajectory: Trajectory) -> jax.Array:
        reward = self.paid(trajectory).astype(known.dtype)
        fresh = trajectory.mask & (reward != 0) & (self.outcomes(known, trajectory).index < 0)
        fresh = jnp.unique(jnp.where(fresh, reward, jnp.nan), size=known.size, fill_value=jnp.nan)
        place = jnp.isfinite(known).sum() + jnp.arange(known.size)
        return known.at[place].set(fresh, mode="drop")

    def unknown(self, known: jax.Array, trajectory: Trajectory) -> jax.Array:
        """Share of the rewards, other than 0, that are no outcome."""
        paid = trajectory.mask & (self.paid(trajectory) != 0)
        return masked_mean((self.outcomes(known, trajectory).index < 0).astype(known.dtype), paid)

    def update(
        self, key: jax.Array, state: RatioState, trajectory: Trajectory, *, context: Context | None = None
    ) -> tuple[RatioState, Metrics]:
        unknown = self.unknown(state.known, trajectory)
        state, metrics = super().update(key, state, trajectory, context=context)
        return state, metrics | {"unknown": unknown}

    def outcomes(self, known: jax.Array, trajectory: Trajectory) -> Outcomes:
        reward = self.paid(trajectory).astype(known.dtype)
        same = jnp.isclose(reward[..., None], known, rtol=1e-4, atol=0)
        found = trajectory.mask & same.any(axis=-1)
        return Outcomes(jnp.eye(known.size), jnp.where(found, same.argmax(axis=-1), -1))
