"""Learned hindsight: how much likelier was an action, now that an outcome is known?  What HCA and COCOA share.

    ratio(s, a, u) = h(a | s, u) / pi(a|s),   h(a | s, u) = pi(a|s) exp f(s, u, a) / sum_b pi(b|s) exp f(s, u, b)

f starts at 0, so that h = pi and no action is credited for anything before there was evidence, and h follows the policy
as it moves.  f is fitted by telling which action was taken, knowing an outcome that followed.

References:
  Harutyunyan et al. (2019), "Hindsight Credit Assignment", arXiv:1912.02503.
  Meulemans et al. (2023), "Would I have gotten that reward? Long-term credit assignment by counterfactual contribution
    analysis", arXiv:2306.16803.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from jaxcredit.core.estimator import FittedAfterwards, Metrics
from jaxcredit.core.fields import INFINITY, choice, static, whole, within
from jaxcredit.core.recurrence import backward_recurrence
from jaxcredit.core.trajectory import Trajectory, require
from jaxcredit.networks.fitting import fit
from jaxcredit.networks.hindsight_ratio import HindsightNetwork
from jaxcredit.networks.mlp import flatten_observation

Form = Literal["cross_entropy", "contrastive"]
FORMS = ("cross_entropy", "contrastive")
LOWEST_LOG_PROB = -10.0  # that the network is shown


def hindsight_ratio(
    logit: Float[Array, "*N A"], probability: Float[Array, "*P A"], *, form: Form = "cross_entropy"
) -> Float[Array, "*N A"]:
    """h(a | s, u) / pi(a|s), from what a network says.

    Args:
      logit: f(s, u, a), finite.
      probability: pi(a|s), of a shape that broadcasts with `logit`.
      form: "cross_entropy": exp f(a) / sum_b pi(b) exp f(b), whose mean over the policy is 1; "contrastive":
        exp f(a), at most 1 / pi(a), which no h exceeds.
    Returns:
      The ratio, from 0 to 1 / pi(a); exactly 1 for actions that the policy never takes, so that w = ratio - 1 is 0.
    """
    possible = probability > 0
    ceiling = -jnp.log(jnp.where(possible, probability, 1))
    log_ratio = logit - _log_mean_exp(logit, probability) if form == "cross_entropy" else logit
    return jnp.where(possible, jnp.exp(jnp.minimum(log_ratio, ceiling)), 1)


def hindsight_loss(
    logit: Float[Array, "*N A"],
    probability: Float[Array, "*P A"],
    action: Int[Array, "*N"],
    *,
    form: Form = "cross_entropy",
) -> Float[Array, "*N"]:
    """Loss whose minimum over f gives the exact ratio, where actions come from the policy and outcomes follow them.

    "cross_entropy":  -log h(A | s, u) / pi(A|s);   "contrastive":  -log sigma(f(A)) - sum_b pi(b) log(1 - sigma(f(b))).

    Args, see `hindsight_ratio`, and
      action: the one that was taken, int.
    Returns:
      The loss of every pair, in nats.
    """
    taken = jnp.take_along_axis(logit, action[..., None], axis=-1)[..., 0]
    if form == "cross_entropy":
        return _log_mean_exp(logit, probability)[..., 0] - taken
    return jax.nn.softplus(-taken) + (probability * jax.nn.softplus(logit)).sum(-1)


def _log_mean_exp(logit: Array, probability: Array) -> Array:
    return jax.nn.logsumexp(logit, b=probability, axis=-1, keepdims=True)


def later_sums(
    x: Float[Array, "T"], group: Int[Array, "T"], mask: Bool[Array, "T"], *, number: int, gamma: ScalarLike = 1.0
) -> Float[Array, "T K"]:
    """What is still to come of each group:  D_t(j) = sum_{k>t} gamma^{k-t} x_k 1(g_k = j).

    Args:
      x: what is summed, for example rewards, or ones to count.
      group: g_k, from 0; steps of any other group are left out.
      mask: True on the episode's own steps.
      number: K, static.
      gamma: discount per step, in [0, 1].
    Returns:
      D, in the unit and dtype of x.
    """
    one_hot = jax.nn.one_hot(jnp.where(mask, group, -1), number, dtype=x.dtype)
    decay = jnp.full_like(one_hot, jnp.asarray(gamma, x.dtype))
    from_now = backward_recurrence(decay, jnp.where(mask, x, 0)[:, None] * one_hot, jnp.zeros(number, x.dtype))
    return decay * jnp.concatenate([from_now[1:], jnp.zeros_like(from_now[:1])])


@struct.dataclass
class RatioState:
    """State of `HindsightRatios`.

    Attributes:
      params, opt_state: of the network.
      known: what has been learned about the outcomes themselves.
    """

    params: Any
    opt_state: Any
    known: Any = ()


@struct.dataclass
class HindsightRatios(FittedAfterwards):
    """Base of estimators that learn h: it is fitted on a batch after the batch has been assigned its credit.

    Attributes:
      learning_rate: step size of Adam.
      gamma: discount of the rewards, in [0, 1].
      form: static; "cross_entropy" or "contrastive", see `hindsight_ratio`.
      fits: gradient steps on each batch.
      hidden: widths of the network's hidden layers.
    """

    learning_rate: float = within(0, INFINITY, 3e-3)
    gamma: float = within(0, 1, 1.0)
    form: Form = choice("cross_entropy", FORMS)
    fits: int = whole(1)
    hidden: tuple[int, ...] = static((256,))

    @property
    def needs_episodes(self) -> bool:
        return True

    def start(self, params: Any, known: Any = ()) -> RatioState:
        """The state before any batch."""
        return RatioState(params, self._optimizer().init(params), known)

    def fitted(
        self, key: jax.Array, state: RatioState, loss: Callable[[Any, jax.Array], jax.Array], known: Any = ()
    ) -> tuple[RatioState, Metrics]:
        """The state after the gradient steps on  loss(params, key)."""
        learner, value = fit(loss, self._optimizer(), (state.params, state.opt_state), key, self.fits)
        return RatioState(*learner, known), {"loss": value}

    def network(self, trajectory: Trajectory) -> HindsightNetwork:
        return HindsightNetwork(self.hidden, self.logits(trajectory).shape[-1])

    def logits(self, trajectory: Trajectory) -> Any:
        name = type(self).__name__
        (logits,) = require(trajectory, f"{name} (which needs the probability of each action)", "logits")
        if not jnp.issubdtype(trajectory.action.dtype, jnp.integer):
            raise ValueError(f"{name} asks which of several actions was taken, so it needs discrete actions.")
        return logits

    def log_policy(self, trajectory: Trajectory) -> jax.Array:
        """log pi, `[T, B, A]`; of padded steps the uniform one."""
        logits = jnp.where(trajectory.mask[..., None], self.logits(trajectory), 0)
        return jax.nn.log_softmax(logits.astype(jnp.float32))

    def decision_features(self, trajectory: Trajectory) -> jax.Array:
        """Observation and policy, `[T, B, D]`: what the network knows of a decision; padded steps are 0."""
        log_policy = jnp.maximum(self.log_policy(trajectory), LOWEST_LOG_PROB)
        flat = flatten_observation([trajectory.observation, log_policy], lead=2)
        return jnp.where(trajectory.mask[..., None], flat, 0)

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)
