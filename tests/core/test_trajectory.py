"""Masks, ends and running numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcredit as jc
from contract_table import batch, poisoned
from jaxcredit.core.statistics import Mean, RunningMoments
from jaxcredit.core.trajectory import (
    BEFORE,
    bootstrap_discount,
    continues,
    episode_ids,
    episode_returns,
    episode_starts,
    masked_mean,
    masked_std,
    require,
    standardise,
    zero_padding,
)

FLAGS = jnp.array([False, True, False, True]), jnp.array([False, False, True, True])


def test_ends() -> None:
    assert continues(*FLAGS).tolist() == [True, False, False, False]
    assert bootstrap_discount(0.5, FLAGS[0], jnp.float32).tolist() == [0.5, 0.0, 0.5, 0.0]


def test_episode_ids_of_a_window_that_starts_inside_an_episode() -> None:
    assert episode_ids(jnp.array([False, True, False, True])).tolist() == [0, 1, 1, 2]
    assert episode_ids(jnp.array([True, False, True, False])).tolist() == [0, 0, 1, 1]


def test_episodes_start_behind_the_ends_of_both_kinds() -> None:
    assert episode_starts(*FLAGS).tolist() == [BEFORE, BEFORE, 2, 3]


def test_masked_statistics_ignore_garbage() -> None:
    x, mask = jnp.array([1.0, jnp.nan, 3.0, jnp.inf]), jnp.array([True, False, True, False])
    assert masked_mean(x, mask) == 2.0
    assert masked_std(x, mask) == 1.0
    np.testing.assert_allclose(standardise(x, mask), [-1.0, 0.0, 1.0, 0.0], rtol=1e-6)


def test_nothing_to_average() -> None:
    x, nothing = jnp.array([1.0, 2.0]), jnp.zeros(2, bool)
    assert masked_mean(x, nothing) == 0.0
    assert standardise(x, nothing).tolist() == [0.0, 0.0]


def test_zero_variance_has_a_zero_gradient() -> None:
    gradient = jax.grad(lambda x: standardise(x, jnp.ones(3, bool)).sum())(jnp.ones(3))
    assert np.isfinite(gradient).all()


def test_episode_returns() -> None:
    trajectory = poisoned(batch())
    expected = np.where(trajectory.mask, np.nan_to_num(trajectory.reward), 0).sum(0)
    np.testing.assert_allclose(episode_returns(trajectory.reward, trajectory.mask), expected, rtol=1e-6)


def test_zero_padding_ends_every_padded_step() -> None:
    clean = zero_padding(poisoned(batch()))
    pad = ~batch().mask
    for x in (clean.reward, clean.value, clean.next_value):
        assert (x[pad] == 0).all()
    assert clean.terminated[pad].all() and not clean.truncated[pad].any()


def test_require_says_who_needs_what() -> None:
    with pytest.raises(ValueError, match=r"Shapley needs next_observation, reset_key"):
        require(batch().replace(next_observation=None), "Shapley", "reward", "next_observation", "reset_key")


def test_running_moments_equal_those_of_all_samples() -> None:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(3, 2, size=(5, 4, 2)), rng.random((5, 4)) < 0.6) for _ in range(3)]
    moments = RunningMoments.zeros((2,))
    for x, mask in parts:
        moments = moments.update(jnp.where(mask[..., None], x, jnp.nan), jnp.asarray(mask))
    samples = np.concatenate([x[mask] for x, mask in parts])
    np.testing.assert_allclose(moments.mean, samples.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.std, samples.std(0), rtol=1e-5)


def test_means_merge_exactly() -> None:
    mean = Mean.of(jnp.array([1.0, 2.0, 9.0]), jnp.array([True, True, False])) + Mean.of(6.0)
    assert mean.value == 3.0
    assert jnp.isnan(Mean.of(1.0, False).value)


def test_scale_reward_divides_by_the_running_return() -> None:
    trajectory = batch(7)
    estimator = jc.ScaleReward(gamma=0.5)
    _, scaled, _ = estimator.update_and_assign(
        jax.random.key(0), estimator.init(jax.random.key(0), trajectory), trajectory
    )
    running, returns = np.zeros(3), []
    for t in range(6):
        running = np.where(trajectory.first[t], 0, 0.5 * running) + np.where(
            trajectory.mask[t], trajectory.reward[t], 0
        )
        returns += list(running[np.asarray(trajectory.mask[t])])
    np.testing.assert_allclose(scaled.reward * np.std(returns), trajectory.reward, rtol=1e-4)
