"""Statistics over seeds and tasks: interquartile mean, stratified bootstrap, probability of improvement.

Everything here runs on the host: anything that NumPy reads comes in, NumPy comes out.  The last axis holds seeds, the
one before it tasks.  Intervals are percentile intervals of a bootstrap that is stratified by task: the seeds of a task
are resampled among themselves, so that no resample loses a task.

Reference: Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the Statistical Precipice",
arXiv:2108.13264.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

Statistic = Callable[..., Any]

ENTRIES_AT_ONCE = 1 << 22  # resampled entries in memory at a time, 32 MiB


class Interval(NamedTuple):
    """A statistic of the data with the ends of its confidence interval; one number or one array each."""

    estimate: Any
    low: Any
    high: Any


class Crossing(NamedTuple):
    """When each curve reached a threshold: `step` in the unit of the steps, `censored` where it never did."""

    step: np.ndarray
    censored: np.ndarray


def iqm(x: ArrayLike, axis: int | None = -1) -> Any:
    """Interquartile mean: the mean of the middle half of the sorted values.

    With n values, sorted value i covers [i, i + 1] and weighs as much as of that lies within [n/4, 3n/4].  For n
    divisible by 4 this is `scipy.stats.trim_mean(x, 0.25)`; otherwise the two border values count by their fraction,
    so the result does not jump with n (trimming would keep 71 % of 7 values, this keeps half).

    Args:
      x: values, any unit, no NaN.
      axis: axis to reduce; None for all values together.
    Returns:
      `x` without that axis, same unit.
    Raises:
      ValueError: NaN or infinite values, or none.

    >>> float(iqm([0.0, 1.0, 2.0, 100.0]))
    1.5
    """
    values = _finite(x, "x")
    values = np.sort(values.ravel() if axis is None else np.moveaxis(values, axis, -1), axis=-1)
    n = values.shape[-1]
    edges = np.clip(np.arange(n + 1), n / 4, 3 * n / 4)
    return values @ np.diff(edges) / (n / 2)


def expanded_tails(confidence: float, n: int) -> tuple[float, float]:
    """Quantiles of the resampled means of n values that hold their true mean with this confidence, also if n is small.

    Resampled means spread by  sqrt((n - 1) / n)  of what the mean does, and leave out that this is Student's and not
    normal.  Both are mended by taking quantiles further out:  Phi(+-sqrt(n / (n - 1)) t),  with t the quantile of
    Student's distribution with n - 1 degrees of freedom (by its expansion in 1 / (n - 1), within a percent from n = 4).

    Args:
      confidence: probability that the interval is to cover, between 0 and 1.
      n: number of values, at least 2.
    Returns:
      The two quantiles, from 0 to 1; for many values  (1 -+ confidence) / 2.

    Reference: Hesterberg (2014), "What Teachers Should Know about the Bootstrap", arXiv:1411.5279 (expanded percentile
    interval); Abramowitz & Stegun (1964), 26.7.5 (the expansion).
    """
    z, m = NormalDist().inv_cdf((1 + confidence) / 2), n - 1
    t = z + (z**3 + z) / (4 * m) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * m**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * m**3)
    low = NormalDist().cdf(-math.sqrt(n / m) * t)
    return low, 1 - low


def bootstrap_interval(
    x: ArrayLike,
    statistic: Statistic = iqm,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Confidence interval of a statistic over all tasks and seeds, by the stratified bootstrap.

    Args:
      x: `[seeds]`, `[tasks, seeds]` or `[..., tasks, seeds]`; leading axes (the points of a learning curve) are
        separate statistics of the same resampled seeds.
      statistic: called as `statistic(values, axis=-1)` on `[..., tasks * seeds]`: `iqm`, `np.mean`, `np.median`, ...
      confidence: probability that the interval is to cover, between 0 and 1.
      resamples: number of bootstrap samples.
      seed: of the resampling; the same seed gives the same interval.
    Returns:
      `Interval` of numbers, or of arrays `[...]`.  With one seed it has width 0 and says nothing.
    Raises:
      ValueError: NaN or infinite values, no values, or `confidence` or `resamples` out of range.
    """
    return _bootstrap(lambda x: _pooled(statistic, x), [_strata(x, "x")], confidence, resamples, seed)


def bootstrap_ratio(
    a: ArrayLike,
    b: ArrayLike,
    statistic: Statistic = iqm,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Confidence interval of  statistic(a) / statistic(b)  of two independent samples, both resampled.

    Meant for "episodes that a rival needs / episodes that we need".  Seeds that never got there enter with the cap
    (see `threshold_step`): censored seeds in `a` then make the ratio a lower bound, in `b` an upper bound.  While at
    most a quarter of the seeds are censored, the estimate by interquartile means does not depend on the cap.

    Args:
      a: numerator, `[seeds_a]` or `[tasks, seeds_a]`, any unit.
      b: denominator, `[seeds_b]` or `[tasks, seeds_b]`, same unit, positive.
      statistic: called as `statistic(values, axis=-1)`.
      confidence: probability that the interval is to cover, between 0 and 1.
      resamples: number of bootstrap samples.
      seed: of the resampling.
    Returns:
      `Interval` of the ratio, without unit.
    Raises:
      ValueError: as `bootstrap_interval`, or a value of `b` that is not positive.
    """
    numerator, denominator = _strata(a, "a"), _strata(b, "b")
    if (denominator <= 0).any():
        raise ValueError(f"b is a denominator and must be positive; its smallest value is {denominator.min()}.")

    def ratio(a: np.ndarray, b: np.ndarray) -> Any:
        return _pooled(statistic, a) / _pooled(statistic, b)

    return _bootstrap(ratio, [numerator, denominator], confidence, resamples, seed)


def probability_of_improvement(
    a: ArrayLike, b: ArrayLike, *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Probability that a random run of `a` beats a random run of `b`:  P(A > B) + P(A = B) / 2.

    The Mann-Whitney U statistic over the number of pairs, averaged over tasks.

    Args:
      a: scores, higher is better, `[seeds_a]` or `[tasks, seeds_a]`.
      b: scores of the rival, `[seeds_b]` or `[tasks, seeds_b]`, the same tasks in the same order.
      confidence: probability that the interval is to cover, between 0 and 1.
      resamples: number of bootstrap samples.
      seed: of the resampling.
    Returns:
      `Interval` of the probability; 0.5 means no difference.
    Raises:
      ValueError: as `bootstrap_interval`, or different numbers of tasks.
    """
    ours, theirs = _strata(a, "a"), _strata(b, "b")
    if ours.shape[:-1] != theirs.shape[:-1]:
        raise ValueError(
            f"a and b must hold the same tasks; a has shape {ours.shape}, b {theirs.shape}. "
            "Pass [tasks, seeds] for both; only the number of seeds may differ."
        )

    def share_of_pairs_won(a: np.ndarray, b: np.ndarray) -> Any:
        difference = a[..., :, None] - b[..., None, :]
        return (0.5 + 0.5 * np.sign(difference)).mean(axis=(-3, -2, -1))

    return _bootstrap(share_of_pairs_won, [ours, theirs], confidence, resamples, seed)


def threshold_step(
    curve: ArrayLike, steps: ArrayLike, threshold: float, window: int = 1, *, cap: float | None = None
) -> Crossing:
    """First step at which the trailing mean of a curve over `window` points reaches a threshold.

    Args:
      curve: `[..., N]`, one curve per seed.
      steps: `[N]`, increasing: the number of episodes (or steps) at which each point was measured.
      threshold: level to reach, in the unit of the curve.
      window: points to average, the current one and those before it; a window not yet full reaches nothing.
      cap: value of the seeds that never get there, at least the last step (the default).
    Returns:
      `Crossing` of arrays `[...]`: the step of the window's last point, and whether it is the cap instead.
    Raises:
      ValueError: NaN or infinite values, shapes that do not match, `steps` that do not increase, `window` outside
        1 .. N, or a cap below the last step.

    >>> threshold_step([[0.0, 0.5, 1.0], [0.0, 0.0, 0.1]], [10, 20, 30], 0.5).step.tolist()
    [20.0, 30.0]
    """
    curve, steps = _finite(curve, "curve"), _finite(steps, "steps")
    if steps.ndim != 1 or curve.shape[-1:] != steps.shape or (np.diff(steps) <= 0).any():
        raise ValueError(
            f"steps must be one increasing number per point of the curve; curve has shape {curve.shape}, "
            f"steps has shape {steps.shape}."
        )
    if not 1 <= window <= len(steps):
        raise ValueError(f"window={window} must lie between 1 and the number of points, {len(steps)}.")
    cap = float(steps[-1]) if cap is None else float(cap)
    if cap < steps[-1]:
        raise ValueError(f"cap={cap} lies below the last step, {steps[-1]}: seeds may reach the threshold later.")
    smooth = np.lib.stride_tricks.sliding_window_view(curve, window, axis=-1).mean(axis=-1)
    reached = smooth >= threshold
    censored = ~reached.any(axis=-1)
    return Crossing(np.where(censored, cap, steps[window - 1 :][reached.argmax(axis=-1)]), censored)


def _bootstrap(
    statistic: Statistic, samples: list[np.ndarray], confidence: float, resamples: int, seed: int
) -> Interval:
    """Percentile interval of `statistic(*samples)`, each sample `[..., tasks, seeds]` resampled on its own."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must lie strictly between 0 and 1, for example 0.95.")
    if resamples < 1:
        raise ValueError(f"resamples={resamples} must be at least 1; 2000 is usual.")
    rng = np.random.default_rng(seed)
    first, *others = samples
    combinations = first.size * math.prod(sample.shape[-1] for sample in others)  # a statistic may compare all pairs
    at_once = max(1, ENTRIES_AT_ONCE // combinations)
    sizes = [min(at_once, resamples - done) for done in range(0, resamples, at_once)]
    draws = np.concatenate([statistic(*(_resample(rng, sample, n) for sample in samples)) for n in sizes])
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
    return Interval(statistic(*samples), low, high)


def _resample(rng: np.random.Generator, x: np.ndarray, n: int) -> np.ndarray:
    """Draw seeds with replacement within each task: `[..., tasks, seeds] -> [n, ..., tasks, seeds]`."""
    index = rng.integers(x.shape[-1], size=(n, *(1,) * (x.ndim - 2), *x.shape[-2:]))
    return np.take_along_axis(x[None], index, axis=-1)


def _pooled(statistic: Statistic, x: np.ndarray) -> Any:
    return statistic(x.reshape(*x.shape[:-2], -1), axis=-1)


def _strata(x: ArrayLike, name: str) -> np.ndarray:
    """Read values as `[..., tasks, seeds]`; a vector is one task."""
    values = _finite(x, name)
    return values[None] if values.ndim == 1 else values


def _finite(x: ArrayLike, name: str) -> np.ndarray:
    values = np.asarray(x, dtype=np.float64)
    if values.ndim == 0 or values.size == 0:
        raise ValueError(f"{name} must be an array with at least one value; its shape is {values.shape}.")
    bad = np.count_nonzero(~np.isfinite(values))
    if bad:
        raise ValueError(
            f"{name} holds {bad} NaN or infinite values of {values.size}. Leave out seeds that failed and say so; "
            "enter the cap for seeds that never reached a threshold."
        )
    return values
