"""What each step contributed to a predicted return: differences, integrated gradients, layer-wise relevance.

References:
  Arjona-Medina et al. (2019), "RUDDER: Return Decomposition for Delayed Rewards", arXiv:1806.07857.
  Sundararajan, Taly and Yan (2017), "Axiomatic Attribution for Deep Networks", arXiv:1703.01365.
  Arras et al. (2019), "Explaining and Interpreting LSTMs", arXiv:1909.12114.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxcredit.core.recurrence import shares_of_last

Residual = Literal["end", "spread"]
RESIDUALS = ("end", "spread")


def complete_return(
    reward: Float[Array, "T"],
    episode_return: Float[Array, ""],
    mask: Bool[Array, "T"],
    *,
    residual: Residual = "end",
) -> Float[Array, "T"]:
    """Hand out what is missing,  episode_return - sum_t R_t,  to the last step or to all steps equally.

    Args:
      reward: R_t, in reward units; padded steps may hold anything.
      episode_return: undiscounted return of the episode, in reward units.
      mask: True on the episode's own steps, which come first; padded steps get exactly 0.
      residual: "end" adds the missing part to the last step, "spread" an equal part to every step.
    Returns:
      Rewards that sum to `episode_return`.  All 0 for an empty mask.
    Raises:
      ValueError: unknown `residual`.
    """
    if residual not in RESIDUALS:
        raise ValueError(f"residual={residual!r} is not known; choose one of {', '.join(RESIDUALS)}.")
    reward = jnp.where(mask, reward, 0)
    missing = episode_return - reward.sum()
    if residual == "spread":
        share = missing / jnp.maximum(mask.sum(), 1).astype(reward.dtype)
        return reward + jnp.where(mask, share, 0)
    is_last = mask & ~jnp.concatenate([mask[1:], jnp.zeros(1, bool)])
    return reward + jnp.where(is_last, missing, 0)


def redistribute_differences(
    prediction: Float[Array, "T"],
    episode_return: Float[Array, ""],
    mask: Bool[Array, "T"],
    *,
    residual: Residual = "end",
    baseline: float | Float[Array, ""] = 0.0,
) -> Float[Array, "T"]:
    """Pay each step the change it caused in the predicted return, and hand out what the prediction missed.

    R_t = g_t - g_{t-1},  g_{-1} = baseline;  then `complete_return`.

    Args:
      prediction: g_t, the return predicted after action t, in reward units; padded steps may hold anything.
      episode_return: undiscounted return of the episode, in reward units.
      mask: True on the episode's own steps, which come first; padded steps get exactly 0.
      residual: where the missing part goes, see `complete_return`.
      baseline: g_{-1}, the prediction before anything happened, in reward units.
    Returns:
      Redistributed rewards; they sum to `episode_return`.  All 0 for an empty mask.
    Raises:
      ValueError: unknown `residual`.

    >>> g, mask = jnp.array([0.0, 2.0, 3.0]), jnp.array([True, True, True])
    >>> redistribute_differences(g, jnp.array(4.0), mask).tolist()
    [0.0, 2.0, 2.0]
    """
    prediction = jnp.where(mask, prediction, 0)
    before = jnp.concatenate([jnp.asarray(baseline, prediction.dtype)[None], prediction[:-1]])
    return complete_return(prediction - before, episode_return, mask, residual=residual)


class Attribution(NamedTuple):
    """What `integrated_gradients` returns.

    Attributes:
      contribution: `[T]`, in the unit of the prediction; 0 on padded steps.
      total: `[]`  f(x) - f(0),  what the contributions should sum to.
    """

    contribution: jax.Array
    total: jax.Array

    @property
    def gap(self) -> jax.Array:
        """How far they are from it,  |sum_t contribution_t - total| / |total|;  0 where both are 0."""
        error = jnp.abs(self.contribution.sum(axis=0) - self.total)
        return jnp.where(error > 0, error / jnp.maximum(jnp.abs(self.total), 1e-12), 0)


def integrated_gradients(
    predict: Callable[[Array], Array],
    features: Float[Array, "T D"],
    mask: Bool[Array, "T"],
    *,
    steps: int = 64,
) -> Attribution:
    """Integrate the gradient of the last prediction along the straight path from inputs of zeros to the episode's.

    IG_t = sum_d x_{t,d}  mean_k  df/dx_{t,d}(alpha_k x),  alpha_k = (k + 1/2) / steps,  the midpoint rule.

    Args:
      predict: f, from features `[T, D]` to the return predicted at the end of the episode, `[]`.
      features: x, what the predictor sees in every step.
      mask: True on the episode's own steps; what padded steps hold is not looked at.
      steps: points on the path, static.
    Returns:
      `Attribution`: contributions of the steps, and what they sum to but for the rule's error (its `gap`).
    Raises:
      ValueError: `steps` below 1.

    >>> x, mask = jnp.array([[1.0], [2.0]]), jnp.array([True, True])
    >>> integrated_gradients(lambda x: jnp.square(x).sum(), x, mask).contribution.tolist()
    [1.0, 4.0]
    """
    if steps < 1:
        raise ValueError(f"steps={steps} is not allowed; give the number of points on the path, at least 1.")
    features = jnp.where(mask[:, None], features, 0)
    alphas = (jnp.arange(steps, dtype=features.dtype) + 0.5) / steps

    def add(total: Array, alpha: Array) -> tuple[Array, None]:
        return total + jax.grad(predict)(alpha * features), None

    gradient = jax.lax.scan(add, jnp.zeros_like(features), alphas)[0] / steps
    total = predict(features) - predict(jnp.zeros_like(features))
    return Attribution(jnp.where(mask, (features * gradient).sum(axis=-1), 0), total)


def lrp_lstm(
    evidence: Float[Array, "T *B H"], forget: Float[Array, "T *B H"], weight: Float[Array, "*B H"]
) -> Float[Array, "T *B H"]:
    """Trace a linear read-out  w . c_T  of cells  c_t = f_t c_{t-1} + e_t  back to what each step wrote into them.

    Layer-wise relevance propagation: the relevance w c_T of a cell passes to the two terms of its sum in proportion,
    again and again;  gates, which only multiply, take none.  That comes to

        R_t = w  (prod_{k > t} f_k)  e_t,

    and  sum_t R_t = w c_T  whatever the signs.  Where e and w are positive (a monotonic LSTM), so is every relevance.

    Args:
      evidence: e_t, what step t added to each cell; 0 on padded steps.
      forget: f_t, factor on what the cell held before; 1 where there is no forget gate, and on padded steps.
      weight: w, of each cell in the last prediction, its output gate included.
    Returns:
      R_t of every cell, in the unit of the prediction; summed over the cells it is the step's contribution.

    >>> e = jnp.array([[1.0], [2.0]])
    >>> lrp_lstm(e, jnp.full((2, 1), 0.5), jnp.array([10.0])).tolist()
    [[5.0], [20.0]]
    """
    return weight * shares_of_last(forget, evidence)
