"""Statistics over seeds against scipy, hand-worked values and a plain loop."""

import numpy as np
import pytest
import scipy.stats

from jaxcredit.evaluation import statistics
from jaxcredit.evaluation.statistics import (
    bootstrap_interval,
    bootstrap_ratio,
    expanded_tails,
    iqm,
    probability_of_improvement,
    threshold_step,
)

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("n", [4, 8, 32])
def test_iqm_is_the_trimmed_mean_for_sizes_divisible_by_four(n):
    x = RNG.normal(size=(3, n))
    np.testing.assert_allclose(iqm(x), scipy.stats.trim_mean(x, 0.25, axis=-1), rtol=1e-12)
    np.testing.assert_allclose(iqm(x, axis=0), iqm(x.T), rtol=1e-12)
    np.testing.assert_allclose(iqm(x[:, :4], axis=None), scipy.stats.trim_mean(x[:, :4].ravel(), 0.25), rtol=1e-12)


def test_iqm_weighs_border_values_by_their_fraction():
    assert iqm([5.0]) == 5.0
    assert iqm([1.0, 3.0]) == 2.0
    # Middle half of three values: a quarter of the first, the second, a quarter of the third, over 1.5.
    assert iqm([9.0, 0.0, 3.0]) == pytest.approx((0.25 * 0 + 3 + 0.25 * 9) / 1.5)
    # Of six: half of the second, the third, the fourth, half of the fifth, over 3.
    assert iqm([0, 1, 2, 4, 8, 1000]) == pytest.approx((0.5 * 1 + 2 + 4 + 0.5 * 8) / 3)


def test_bootstrap_interval_agrees_with_scipy():
    x = RNG.exponential(size=40)
    ours = bootstrap_interval(x, np.mean, resamples=4000)
    theirs = scipy.stats.bootstrap((x,), np.mean, n_resamples=4000, method="percentile", rng=1).confidence_interval
    assert ours.estimate == pytest.approx(x.mean())
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.05 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.05 * width)


def test_bootstrap_is_stratified_by_task():
    constant_per_task = np.array([[0.0] * 5, [10.0] * 5])
    assert bootstrap_interval(constant_per_task, np.mean) == (5.0, 5.0, 5.0)
    assert bootstrap_interval(constant_per_task.ravel(), np.mean).high > 6


def test_tasks_are_resampled_independently():
    x = np.arange(8.0)
    interval = bootstrap_interval([x, -x], np.mean)
    assert interval.low < -0.5 < interval.estimate == 0 < 0.5 < interval.high


def test_bootstrap_covers_the_truth_as_often_as_it_says():
    samples = np.random.default_rng(0).normal(size=(400, 1, 32))
    intervals = [bootstrap_interval(x, resamples=300, seed=k) for k, x in enumerate(samples)]
    assert 0.90 <= np.mean([interval.low <= 0 <= interval.high for interval in intervals]) <= 0.98


@pytest.mark.parametrize(("n", "least", "most"), [(4, 0.8, 0.9), (8, 0.9, 0.96), (16, 0.93, 0.97)])
def test_expanded_tails_let_few_values_cover_the_truth(n, least, most):
    """The plain quantiles cover 0.79, 0.88 and 0.92 of the means of 4, 8 and 16 normal values."""
    means = RNG.multinomial(n, np.full(n, 1 / n), size=1000) / n @ RNG.normal(size=(n, 2000))
    low, high = np.quantile(means, expanded_tails(0.95, n), axis=0, method="nearest")
    assert least < np.mean((low < 0) & (high > 0)) < most


@pytest.mark.parametrize("n", [4, 16, 1000])
def test_expanded_tails_are_those_of_students_distribution(n):
    expected = scipy.stats.norm.cdf(np.sqrt(n / (n - 1)) * scipy.stats.t.ppf([0.05, 0.95], n - 1))
    np.testing.assert_allclose(expanded_tails(0.9, n), expected, atol=2e-4)


def test_leading_axes_share_resamples_and_chunks_change_nothing_but_memory(monkeypatch):
    curves = RNG.normal(size=(6, 1, 8))
    together = bootstrap_interval(curves)
    alone = [bootstrap_interval(point) for point in curves]
    assert together.low.shape == (6,)
    np.testing.assert_allclose(together, np.array(alone).T, rtol=1e-12)
    monkeypatch.setattr(statistics, "ENTRIES_AT_ONCE", 7 * curves.size)
    np.testing.assert_allclose(bootstrap_interval(curves), together, rtol=1e-12)


def test_confidence_widens_and_seed_fixes_the_interval():
    x = RNG.normal(size=16)
    narrow, wide = bootstrap_interval(x, confidence=0.5), bootstrap_interval(x, confidence=0.99)
    assert wide.low < narrow.low < narrow.estimate < narrow.high < wide.high
    assert bootstrap_interval(x) == bootstrap_interval(x) != bootstrap_interval(x, seed=1)


def test_ratio_of_known_samples_and_of_censored_ones():
    assert bootstrap_ratio([200.0] * 8, [10.0] * 4) == (20.0, 20.0, 20.0)
    a, b = RNG.lognormal(3, 0.4, size=64), RNG.lognormal(1, 0.4, size=48)
    ratio = bootstrap_ratio(a, b)
    assert ratio.estimate == pytest.approx(iqm(a) / iqm(b))
    assert 1 < ratio.low < ratio.estimate < ratio.high
    # Both samples are resampled: each alone gives a narrower interval.
    for part in (bootstrap_ratio(a, np.full(48, iqm(b))), bootstrap_ratio(np.full(64, iqm(a)), b)):
        assert part.high - part.low < ratio.high - ratio.low
    # Fewer than a quarter at the cap: where the cap lies does not matter.
    few = np.where(np.arange(64) < 15, 1e4, np.sort(a)[0])
    assert bootstrap_ratio(few, b).estimate == bootstrap_ratio(np.where(few == 1e4, 1e6, few), b).estimate


def test_probability_of_improvement_is_the_mann_whitney_statistic():
    a, b = RNG.integers(0, 6, size=12), RNG.integers(0, 5, size=9)
    u = scipy.stats.mannwhitneyu(a, b).statistic
    assert probability_of_improvement(a, b).estimate == pytest.approx(u / (12 * 9))
    tasks = probability_of_improvement([a[:6], a[6:]], [b[:4], b[4:8]])
    halves = [probability_of_improvement(a[:6], b[:4]), probability_of_improvement(a[6:], b[4:8])]
    assert tasks.estimate == pytest.approx(np.mean([half.estimate for half in halves]))
    assert tasks.low <= tasks.estimate <= tasks.high


def test_probability_of_improvement_at_its_ends():
    assert probability_of_improvement([2, 3], [0, 1]) == (1, 1, 1)
    assert probability_of_improvement([0, 1], [2, 3]) == (0, 0, 0)
    assert probability_of_improvement([1, 1], [1, 1]) == (0.5, 0.5, 0.5)


def test_threshold_step_against_a_loop():
    curve, steps, window = RNG.random(size=(20, 30)), np.arange(1, 31) * 16, 4
    step, censored = threshold_step(curve, steps, 0.72, window, cap=1000)
    for seed in range(20):
        means = {steps[i]: curve[seed, i - window + 1 : i + 1].mean() for i in range(window - 1, 30)}
        expected = next((s for s, mean in means.items() if mean >= 0.72), 1000)
        assert (step[seed], censored[seed]) == (expected, expected == 1000)
    assert 0 < censored.sum() < 20


def test_threshold_reached_at_the_last_step_is_not_censored():
    step, censored = threshold_step([[0, 0, 1], [0, 0, 0]], [1, 2, 3], 1.0)
    assert step.tolist() == [3, 3] and censored.tolist() == [False, True]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iqm([1.0, np.nan]), "x holds 1 NaN or infinite values of 2"),
        (lambda: iqm([]), "at least one value"),
        (lambda: bootstrap_interval([1.0, np.inf]), "enter the cap"),
        (lambda: bootstrap_interval([1.0], confidence=95), "strictly between 0 and 1"),
        (lambda: bootstrap_interval([1.0], resamples=0), "at least 1"),
        (lambda: bootstrap_ratio([1.0], [0.0]), "must be positive"),
        (lambda: probability_of_improvement([[1.0], [2.0]], [1.0]), "same tasks"),
        (lambda: threshold_step([[1.0, 2.0]], [1], 1.0), "one increasing number per point"),
        (lambda: threshold_step([[1.0, 2.0]], [2, 1], 1.0), "one increasing number per point"),
        (lambda: threshold_step([[1.0, 2.0]], [1, 2], 1.0, window=3), "between 1 and the number of points, 2"),
        (lambda: threshold_step([[1.0, 2.0]], [1, 2], 1.0, cap=1), "below the last step"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
