"""Discounted, n-step and lambda-returns, TD(lambda), GAE.

All functions take the arrays of ONE trajectory. Two flags decide what lies behind step t: nothing has value beyond a
natural end (`terminated`), while a time limit (`truncated`) bootstraps; neither lets credit into the next episode. The
window's end is treated like a time limit.

References:
  Sutton and Barto (2018), "Reinforcement Learning: An Introduction", 2nd edition, chapters 3, 7 and 12.
  Schulman et al. (2016), "High-Dimensional Continuous Control Using Generalized Advantage Estimation",
    arXiv:1506.02438.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, ScalarLike

from jaxcredit.core.estimator import Context, CreditEstimator, State
from jaxcredit.core.fields import choice, static, whole, within
from jaxcredit.core.recurrence import FORMS, Form, backward_recurrence_of
from jaxcredit.core.trajectory import Trajectory, bootstrap_discount, continues, over_columns, require, zero_padding

PerStep = ScalarLike | Float[Array, "T"]


def check_steps(reward: Any, **arrays: Any) -> None:
    """Raise a ValueError unless `reward` is floating, `[T]` with T >= 1, and every other array has its shape."""
    if not jnp.issubdtype(reward.dtype, jnp.floating):
        raise ValueError(f"reward has dtype {reward.dtype}; rewards must be floating: reward.astype(jnp.float32).")
    if reward.ndim != 1 or reward.size == 0:
        raise ValueError(
            f"reward has shape {reward.shape}; one trajectory [T] with T >= 1 is allowed. "
            "Map batches [T, B] with jax.vmap(..., in_axes=1, out_axes=1)."
        )
    for name, array in arrays.items():
        if array.shape != reward.shape:
            raise ValueError(
                f"{name} has shape {array.shape}, reward {reward.shape}; both must hold the T steps of one trajectory."
            )
        if name in ("terminated", "truncated") and array.dtype != jnp.bool_:
            raise ValueError(f"{name} has dtype {array.dtype}; it must be bool: {name}.astype(bool).")


def conform(reward: Any, terminated: Any, truncated: Any, **values: Any) -> list[Any]:
    """Check the arrays of one trajectory and return the values in the reward's dtype, in the order given."""
    check_steps(reward, terminated=terminated, truncated=truncated, **values)
    return [jnp.asarray(value).astype(reward.dtype) for value in values.values()]


def trace_factor(
    lam: ScalarLike | Float[Array, "*T"], terminated: Bool[Array, "*T"], truncated: Bool[Array, "*T"], dtype: Any
) -> Float[Array, "*T"]:
    """Factor on what follows step t through the trace: lam (1 - (terminated | truncated)).

    A product: under `vmap` over axis 1 a `where` with scalar branches becomes batch-major, and the scan pays for it.
    """
    return jnp.asarray(lam, dtype) * continues(terminated, truncated).astype(dtype)


def following(x: Float[Array, "T"]) -> Float[Array, "T"]:
    """x_{t+1} at index t, 0 behind the window."""
    return jnp.pad(x[1:], (0, 1))


def lambda_returns(
    reward: Float[Array, "T"],
    next_value: Float[Array, "T"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
    *,
    gamma: PerStep,
    lam: PerStep,
    form: Form = "auto",
) -> Float[Array, "T"]:
    """Mix the n-step returns of all n with weights that fall as lam^n.

    G_t = r_t + gamma (1 - terminated_t) [(1 - l_t) v_{t+1} + l_t G_{t+1}],  G_T = v_T behind the window,
    l_t = lam (1 - (terminated_t | truncated_t)).

    Args:
      reward: r_t, follows action t.
      next_value: v_{t+1}, value of what followed action t *before any reset*, in reward units.
      terminated: the episode ended naturally after action t.
      truncated: a time limit cut the episode after action t.
      gamma: discount in [0, 1], one for all or one per step.
      lam: mixing in [0, 1], one for all or one per step: 0 is TD(0), 1 the discounted return.
      form: how the recursion is computed, see `backward_recurrence`.
    Returns:
      G_t in reward units and in the reward's dtype.
    Raises:
      ValueError: integer rewards, flags that are not bool, shapes other than one common `[T]`, unknown `form`.
    Reference: Sutton and Barto (2018), Eq. 12.18.

    >>> reward, next_value = jnp.array([1.0, 2.0]), jnp.array([10.0, 20.0])
    >>> ends = jnp.array([False, True]), jnp.array([False, False])
    >>> lambda_returns(reward, next_value, *ends, gamma=1.0, lam=0.5).tolist()
    [7.0, 2.0]
    """
    (next_value,) = conform(reward, terminated, truncated, next_value=next_value)

    def coefficients(reward: Any, next_value: Any, terminated: Any, truncated: Any, gamma: Any, lam: Any) -> Any:
        discount = bootstrap_discount(gamma, terminated, reward.dtype)
        trace = trace_factor(lam, terminated, truncated, reward.dtype)
        return discount * trace, reward + discount * (1 - trace) * next_value

    steps = reward, next_value, terminated, truncated, gamma, lam
    return backward_recurrence_of(coefficients, steps, next_value[-1], form=form)


def discounted_returns(
    reward: Float[Array, "T"],
    next_value: Float[Array, "T"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
    *,
    gamma: PerStep,
    form: Form = "auto",
) -> Float[Array, "T"]:
    """Sum the discounted rewards up to the end of the episode; bootstrap only where a time limit or the window cuts it.

    G_t = r_t + gamma (1 - terminated_t) (v_{t+1} if truncated_t else G_{t+1}),  G_T = v_T behind the window.

    Args:
      reward: r_t, follows action t.
      next_value: v_{t+1}, value of what followed action t *before any reset*, in reward units.
      terminated: the episode ended naturally after action t.
      truncated: a time limit cut the episode after action t.
      gamma: discount in [0, 1], one for all or one per step.
      form: how the recursion is computed, see `backward_recurrence`.
    Returns:
      G_t in reward units and in the reward's dtype.
    Raises:
      ValueError: as `lambda_returns`.
    Reference: Sutton and Barto (2018), Eq. 3.9.

    >>> reward, next_value = jnp.array([1.0, 2.0, 3.0]), jnp.array([9.0, 9.0, 8.0])
    >>> ends = jnp.array([False, True, False]), jnp.array([False, False, True])
    >>> discounted_returns(reward, next_value, *ends, gamma=0.5).tolist()
    [2.0, 2.0, 7.0]
    """
    return lambda_returns(reward, next_value, terminated, truncated, gamma=gamma, lam=1.0, form=form)


def td_lambda(
    reward: Float[Array, "T"],
    value: Float[Array, "T"],
    next_value: Float[Array, "T"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
    *,
    gamma: PerStep,
    lam: PerStep,
    form: Form = "auto",
) -> Float[Array, "T"]:
    """Error of the value against the lambda-return:  G_t^lam - v_t.

    It equals `gae` where the v_{t+1} of a step is the v_t of the next one, as with one set of critic parameters.
    No gradient is stopped: differentiate through `value` alone for semi-gradient TD(lambda).

    Args:
      reward: r_t, follows action t.
      value: v_t, value of the observation before action t, in reward units.
      next_value: v_{t+1}, value of what followed action t *before any reset*, in reward units.
      terminated: the episode ended naturally after action t.
      truncated: a time limit cut the episode after action t.
      gamma: discount in [0, 1], one for all or one per step.
      lam: mixing in [0, 1], one for all or one per step.
      form: how the recursion is computed, see `backward_recurrence`.
    Returns:
      The error of step t in reward units and in the reward's dtype.
    Raises:
      ValueError: as `lambda_returns`.
    Reference: Sutton and Barto (2018), section 12.1.
    """
    (value,) = conform(reward, terminated, truncated, value=value)
    return lambda_returns(reward, next_value, terminated, truncated, gamma=gamma, lam=lam, form=form) - value


def gae(
    reward: Float[Array, "T"],
    value: Float[Array, "T"],
    next_value: Float[Array, "T"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
    *,
    gamma: PerStep,
    lam: PerStep,
    form: Form = "auto",
) -> Float[Array, "T"]:
    """Generalised advantage estimation: the sum of this and later TD errors, discounted by gamma lam.

    A_t = delta_t + gamma lam (1 - (terminated_t | truncated_t)) A_{t+1},
    delta_t = r_t + gamma (1 - terminated_t) v_{t+1} - v_t.

    Args:
      reward: r_t, follows action t.
      value: v_t, value of the observation before action t, in reward units.
      next_value: v_{t+1}, value of what followed action t *before any reset*, in reward units.
      terminated: the episode ended naturally after action t.
      truncated: a time limit cut the episode after action t.
      gamma: discount in [0, 1], one for all or one per step.
      lam: trace decay in [0, 1], one for all or one per step: 0 is the TD error, 1 the discounted return minus v_t.
      form: how the recursion is computed, see `backward_recurrence`.
    Returns:
      A_t in reward units and in the reward's dtype.
    Raises:
      ValueError: as `lambda_returns`.
    Reference: Schulman et al. (2016), arXiv:1506.02438, Eq. 16, cut at the window's end.

    >>> reward, value, next_value = jnp.array([1.0, 1.0]), jnp.array([2.0, 4.0]), jnp.array([4.0, 8.0])
    >>> ends = jnp.array([False, False]), jnp.array([False, True])
    >>> gae(reward, value, next_value, *ends, gamma=0.5, lam=0.5).tolist()
    [1.25, 1.0]
    """
    value, next_value = conform(reward, terminated, truncated, value=value, next_value=next_value)

    def coefficients(
        reward: Any, value: Any, next_value: Any, terminated: Any, truncated: Any, gamma: Any, lam: Any
    ) -> Any:
        discount = bootstrap_discount(gamma, terminated, reward.dtype)
        trace = trace_factor(lam, terminated, truncated, reward.dtype)
        return discount * trace, reward + discount * next_value - value

    steps = reward, value, next_value, terminated, truncated, gamma, lam
    return backward_recurrence_of(coefficients, steps, jnp.zeros((), reward.dtype), form=form)


def check_n(n: Any) -> None:
    """Raise a ValueError unless `n` is a Python int of at least 1."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ValueError(f"n={n!r} is not allowed; the number of steps is static, a Python int of at least 1.")


def n_step_returns(
    reward: Float[Array, "T"],
    next_value: Float[Array, "T"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
    *,
    gamma: PerStep,
    n: int,
) -> Float[Array, "T"]:
    """Sum n discounted rewards, then bootstrap; sooner where a time limit or the window cuts the episode.

    G_t^1 = r_t + gamma (1 - terminated_t) v_{t+1},
    G_t^k = r_t + gamma (1 - terminated_t) (v_{t+1} if truncated_t or t = T - 1 else G_{t+1}^{k-1}).

    Args:
      reward: r_t, follows action t.
      next_value: v_{t+1}, value of what followed action t *before any reset*, in reward units.
      terminated: the episode ended naturally after action t.
      truncated: a time limit cut the episode after action t.
      gamma: discount in [0, 1], one for all or one per step.
      n: number of rewards, at least 1, static; from T on the discounted return.
    Returns:
      G_t^n in reward units and in the reward's dtype.
    Raises:
      ValueError: `n` below 1 or no Python int; else as `lambda_returns`.
    Reference: Sutton and Barto (2018), Eq. 7.1.

    >>> reward, next_value = jnp.array([1.0, 1.0, 1.0]), jnp.array([8.0, 16.0, 32.0])
    >>> ends = jnp.array([False, False, False]), jnp.array([False, False, False])
    >>> n_step_returns(reward, next_value, *ends, gamma=0.5, n=2).tolist()
    [5.5, 9.5, 17.0]
    """
    check_n(n)
    (next_value,) = conform(reward, terminated, truncated, next_value=next_value)
    discount = bootstrap_discount(gamma, terminated, reward.dtype)
    goes_on = continues(terminated, truncated) & (jnp.arange(reward.size) < reward.size - 1)

    def lengthen(_: Any, returns: Array) -> Array:
        return reward + discount * jnp.where(goes_on, following(returns), next_value)

    return jax.lax.fori_loop(1, min(n, reward.size), lengthen, reward + discount * next_value)


def assign_returns(trajectory: Trajectory, user: str, returns: Callable[..., Array]) -> Trajectory:
    """Write a return as `value_target` and its distance from the value as `advantage`."""
    reward, value, next_value, terminated, truncated = require(
        zero_padding(trajectory), user, "reward", "value", "next_value", "terminated", "truncated"
    )
    target = over_columns(returns, reward, next_value, terminated, truncated)
    return trajectory.replace(advantage=target - value.astype(target.dtype), value_target=target)


@struct.dataclass
class MonteCarlo(CreditEstimator):
    """Estimator form of `discounted_returns`: advantage = return - value, value target = return.

    With `baseline=False` there is no critic: the advantage is the return itself, no value target is written, and
    nothing is bootstrapped, whatever values the trajectory holds, since nobody trains them. It then asks for whole
    episodes, and an episode cut by a time limit counts for the rewards it collected.

    Attributes:
      gamma: discount.
      baseline: static; subtract the value, and bootstrap where a time limit or the window cuts the episode.
      form: static; how the recursion is computed, see `backward_recurrence`.
    Reference: Williams (1992), "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement
      Learning".
    """

    gamma: float = within(0, 1, 0.99)
    baseline: bool = static(True)
    form: Form = choice("auto", FORMS)

    @property
    def needs_episodes(self) -> bool:
        return not self.baseline

    def assign(
        self, key: jax.Array, state: State, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, state, context
        returns = partial(discounted_returns, gamma=self.gamma, form=self.form)
        if self.baseline:
            return assign_returns(trajectory, "MonteCarlo", returns)
        steps = zero_padding(trajectory)
        nothing = jnp.zeros_like(steps.reward)
        advantage = over_columns(returns, steps.reward, nothing, steps.terminated, steps.truncated)
        return trajectory.replace(advantage=advantage)


@struct.dataclass
class NStep(CreditEstimator):
    """Estimator form of `n_step_returns`: advantage = n-step return - value, value target = n-step return.

    Attributes:
      gamma: discount.
      n: static; number of rewards before bootstrapping, at least 1.
    """

    gamma: float = within(0, 1, 0.99)
    n: int = whole(5)

    def assign(
        self, key: jax.Array, state: State, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, state, context
        return assign_returns(trajectory, "NStep", partial(n_step_returns, gamma=self.gamma, n=self.n))


@struct.dataclass
class TDLambda(CreditEstimator):
    """Estimator form of `td_lambda`: advantage = lambda-return - value, value target = lambda-return.

    Attributes:
      gamma: discount.
      lam: mixing of the n-step returns.
      form: static; how the recursion is computed, see `backward_recurrence`.
    """

    gamma: float = within(0, 1, 0.99)
    lam: float = within(0, 1, 0.95)
    form: Form = choice("auto", FORMS)

    def assign(
        self, key: jax.Array, state: State, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, state, context
        returns = partial(lambda_returns, gamma=self.gamma, lam=self.lam, form=self.form)
        return assign_returns(trajectory, "TDLambda", returns)


@struct.dataclass
class GAE(CreditEstimator):
    """Estimator form of `gae`: value target = advantage + value.

    Attributes:
      gamma: discount.
      lam: trace decay.
      form: static; how the recursion is computed, see `backward_recurrence`.
    Reference: Schulman et al. (2016), arXiv:1506.02438.
    """

    gamma: float = within(0, 1, 0.99)
    lam: float = within(0, 1, 0.95)
    form: Form = choice("auto", FORMS)

    def assign(
        self, key: jax.Array, state: State, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, state, context
        reward, value, next_value, terminated, truncated = require(
            zero_padding(trajectory), "GAE", "reward", "value", "next_value", "terminated", "truncated"
        )
        estimate = partial(gae, gamma=self.gamma, lam=self.lam, form=self.form)
        advantage = over_columns(estimate, reward, value, next_value, terminated, truncated)
        return trajectory.replace(advantage=advantage, value_target=advantage + value.astype(advantage.dtype))
