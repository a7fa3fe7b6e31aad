"""HCA: would I have done this, knowing where it led, or how much came of it?

Where the answer h(a | s, outcome) is no different from the policy, the action did not matter.  Two outcomes: a later
state, which gives every action credit for the rewards met there, and the return.

    state:   Q(s, a) = r(s, a) + E[ sum_{k>=1} gamma^k h(a | s, S_k) / pi(a|s) R_k ]
    return:  A(s, a) = E[ (1 - pi(a|s) / h(a | s, Z)) Z | s, a ] = E[ (h(a | s, Z) / pi(a|s) - 1) Z | s ]

The middle form holds where every return of the state can follow the action (`return_hindsight_advantage`).  The first,
less the mean over the actions, is contribution credit whose outcomes are states:
`contribution_credit(hindsight_coefficient(h, pi), reward, ...)`; with TD errors in the place of rewards, delta-HCA.
The state must be the one that the reward comes with: a reward for leaving a state that looks the same whatever was done
before has h = pi, and no credit.

Reference: Harutyunyan et al. (2019), "Hindsight Credit Assignment", arXiv:1912.02503.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jaxcredit.core.estimator import Context, Metrics
from jaxcredit.core.fields import choice, within
from jaxcredit.core.recurrence import backward_recurrence
from jaxcredit.core.statistics import RunningMoments
from jaxcredit.core.trajectory import Trajectory, masked_mean, over_columns, require, zero_padding
from jaxcredit.hindsight.cocoa import ContributionCredit, Outcomes
from jaxcredit.hindsight.ratios import HindsightRatios, RatioState, hindsight_loss, hindsight_ratio
from jaxcredit.networks.mlp import flatten_observation

Paid = Literal["reward", "td_error"]
PAID = ("reward", "td_error")
Actions = Literal["all", "taken"]
ACTIONS = ("all", "taken")


def hindsight_coefficient(hindsight: Float[Array, "*O A"], probability: Float[Array, "*P A"]) -> Float[Array, "*O A"]:
    """How much likelier an action is in hindsight:  w = h(a | s, outcome) / pi(a|s) - 1.

    Args:
      hindsight: h, probability of each action, knowing the outcome; `[T, T, A]` for all pairs of steps.
      probability: pi, of a shape that `hindsight` broadcasts with: `[T, 1, A]`.
    Returns:
      w, without unit, from -1 to 1 / pi - 1; exactly 0 for actions that the policy never takes.
    """
    possible = probability > 0
    return jnp.where(possible, hindsight / jnp.where(possible, probability, 1) - 1, 0)


def return_hindsight_credit(
    hindsight: Float[Array, "T A"], probability: Float[Array, "T A"], total: Float[Array, "T"], mask: Bool[Array, "T"]
) -> Float[Array, "T A"]:
    """Credit of every action, taken or not:  (h(a | s_t, Z_t) / pi(a|s_t) - 1) Z_t.

    Args:
      hindsight: h, probability of each action, knowing the return.
      probability: pi(a|s_t).
      total: Z_t, return from step t on (reward units), discounted or not as h was.
      mask: True on the episode's own steps; padded steps get exactly 0.
    Returns:
      Credit in reward units and in the return's dtype; its mean over the policy is 0.
    """
    coefficient = hindsight_coefficient(hindsight, probability).astype(total.dtype)
    return jnp.where(mask[:, None], coefficient, 0) * jnp.where(mask, total, 0)[:, None]


def return_hindsight_advantage(
    hindsight: Float[Array, "T A"],
    probability: Float[Array, "T A"],
    action: Int[Array, "T"],
    total: Float[Array, "T"],
    mask: Bool[Array, "T"],
) -> Float[Array, "T"]:
    """Credit of the action taken:  (1 - pi(A_t|s_t) / h(A_t | s_t, Z_t)) Z_t.

    Its mean is the advantage only where every return that may follow the state may follow the action:  E[pi/h Z | s, a]
    sums over the returns of this action alone, and so falls short of V by those that other actions bring.
    `return_hindsight_credit` has no such condition.

    Args, see `return_hindsight_credit`, and
      action: A_t, int.
    Returns:
      Advantage in reward units and in the return's dtype; not bounded where h is small, and 0 where it is 0, which an
      exact h of an action that was taken never is.
    """
    taken, expected = (jnp.take_along_axis(x, action[:, None], axis=1)[:, 0] for x in (hindsight, probability))
    known = mask & (taken > 0)
    ratio = (jnp.where(known, expected, 1) / jnp.where(known, taken, 1)).astype(total.dtype)
    return (1 - ratio) * jnp.where(known, total, 0)


@struct.dataclass
class StateHCA(ContributionCredit):
    """State-conditional HCA ("HCA+"): the outcome of a step is the state that it is in, with the reward it brings.

    Pairs of all steps are evaluated, so work and memory grow as T^2.

    Attributes:
      pays: static; "reward", or "td_error" (delta-HCA): r_k + gamma V(s_{k+1}) - V(s_k), which is less noisy where the
        critic is good. Its target is then written too: the discounted return, and beyond a time limit the value.
    """

    pays: Paid = choice("reward", PAID)

    def outcomes(self, known: Any, trajectory: Trajectory) -> Outcomes:
        del known
        mask = trajectory.mask
        state = jnp.where(mask[..., None], flatten_observation(trajectory.observation, lead=2), 0)
        step = jnp.broadcast_to(jnp.arange(mask.shape[0])[:, None], mask.shape)
        return Outcomes(state, jnp.where(mask, step, -1))

    def paid(self, trajectory: Trajectory) -> jax.Array:
        if self.pays == "reward":
            return trajectory.reward
        reward, value, next_value = require(zero_padding(trajectory), "StateHCA", "reward", "value", "next_value")
        return reward + jnp.asarray(self.gamma, reward.dtype) * next_value - value

    def assign(
        self, key: jax.Array, state: RatioState, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        assigned = super().assign(key, state, trajectory, context=context)
        if self.pays == "td_error":
            value = zero_padding(trajectory).value
            assigned = assigned.replace(value_target=value + _discounted_sums(self.paid(trajectory), self.gamma))
        return assigned


@struct.dataclass
class ReturnHCA(HindsightRatios):
    """Return-conditional HCA: what counts is how much likelier an action is, now that the return is known.

    Attributes:
      credits: static; "all" actions, see `return_hindsight_credit`, or only the one "taken", see
        `return_hindsight_advantage`.
      least_ratio: that h / pi of the action taken is thought to have, since its inverse has no bound.
    """

    credits: Actions = choice("all", ACTIONS)
    least_ratio: float = within(0, 1, 0.01)

    def init(self, key: jax.Array, trajectory: Trajectory) -> RatioState:
        decision = jnp.zeros(jax.eval_shape(self.decision_features, trajectory).shape[-1])
        params = self.network(trajectory).init(key, decision, jnp.zeros(1))
        return self.start(params, RunningMoments.zeros(()))

    def update(
        self, key: jax.Array, state: RatioState, trajectory: Trajectory, *, context: Context | None = None
    ) -> tuple[RatioState, Metrics]:
        del context
        trajectory = jax.lax.stop_gradient(trajectory)
        total = _returns(trajectory, self.gamma).astype(jnp.float32)
        moments = state.known.update(total, trajectory.mask)
        probability = jnp.exp(self.log_policy(trajectory))

        def loss(params: Any, key: jax.Array) -> jax.Array:
            del key
            logit = self._logits(params, moments, trajectory, total)
            return masked_mean(hindsight_loss(logit, probability, trajectory.action, form=self.form), trajectory.mask)

        return self.fitted(key, state, loss, moments)

    def assign(
        self, key: jax.Array, state: RatioState, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, context
        total, probability = _returns(trajectory, self.gamma), jnp.exp(self.log_policy(trajectory))
        logit = self._logits(state.params, state.known, trajectory, total)
        ratio = hindsight_ratio(logit, probability, form=self.form)
        if self.credits == "all":
            credit = over_columns(return_hindsight_credit, probability * ratio, probability, total, trajectory.mask)
            return trajectory.replace(action_advantage=credit)
        hindsight = probability * jnp.maximum(ratio, self.least_ratio)
        return trajectory.replace(
            advantage=over_columns(
                return_hindsight_advantage, hindsight, probability, trajectory.action, total, trajectory.mask
            )
        )

    def _logits(self, params: Any, moments: RunningMoments, trajectory: Trajectory, total: jax.Array) -> jax.Array:
        """f of every step and its own return, `[T, B, A]`."""
        outcome = jnp.where(trajectory.mask, moments.normalise(total.astype(jnp.float32)), 0)[..., None]
        return jnp.asarray(self.network(trajectory).apply(params, self.decision_features(trajectory), outcome))


def _returns(trajectory: Trajectory, gamma: Any) -> jax.Array:
    """Discounted reward to go `[T, B]`; where a time limit cuts an episode off, nothing more is counted."""
    return _discounted_sums(zero_padding(trajectory).reward, gamma)


def _discounted_sums(x: jax.Array, gamma: Any) -> jax.Array:
    """sum_{k>=t} gamma^{k-t} x_k  of whole episodes, one per column `[T, B]`."""
    return backward_recurrence(jnp.full_like(x, jnp.asarray(gamma, x.dtype)), x, jnp.zeros(x.shape[1:], x.dtype))
