"""Contribution analysis against hand-worked cases, closed forms and what the methods promise."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import jaxcredit as jc
from jaxcredit.networks.reduced_lstm import GATES, Prediction, ReturnPredictor

KEY = jax.random.key(0)
finite = st.floats(-100, 100, width=32)


def test_hand_worked() -> None:
    g, mask = jnp.array([1.0, 4.0, 3.0, 9.0]), jnp.array([True, True, True, False])
    total = jnp.array(5.0)
    assert jc.redistribute_differences(g, total, mask).tolist() == [1.0, 3.0, 1.0, 0.0]
    spread = jc.redistribute_differences(g, total, mask, residual="spread", baseline=1.0)
    np.testing.assert_allclose(spread, [1.0, 4.0, 0.0, 0.0], atol=1e-6)


@given(arrays(np.float32, 5, elements=finite), finite, st.integers(1, 5), st.sampled_from(["end", "spread"]), finite)
def test_the_return_is_kept(g: Any, total: float, length: int, residual: str, baseline: float) -> None:
    mask = jnp.arange(5) < length
    poisoned = jnp.where(mask, g, jnp.nan)
    reward = jc.redistribute_differences(poisoned, jnp.float32(total), mask, residual=residual, baseline=baseline)
    np.testing.assert_allclose(reward.sum(), total, atol=2e-3)
    assert (reward[length:] == 0).all()


def test_an_empty_episode_gets_nothing() -> None:
    nothing = jc.redistribute_differences(jnp.ones(3), jnp.float32(2), jnp.zeros(3, bool), residual="spread")
    assert nothing.tolist() == [0.0, 0.0, 0.0]


def test_integrated_gradients_of_a_product() -> None:
    """f = x y has IG = x y / 2 for both; what is padded has none, whatever it holds."""
    x, mask = jnp.array([[2.0], [3.0], [jnp.nan]]), jnp.array([True, True, False])
    attribution = jc.integrated_gradients(lambda x: x[0, 0] * x[1, 0] + 1, x, mask, steps=8)
    np.testing.assert_allclose(attribution.contribution, [3.0, 3.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(attribution.total, 6.0)
    assert attribution.gap < 1e-6


def test_integrated_gradients_need_a_path() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        jc.integrated_gradients(jnp.sum, jnp.ones((2, 1)), jnp.ones(2, bool), steps=0)


@given(arrays(np.float32, (4, 2), elements=st.floats(-2, 2, width=32)), arrays(np.float32, (4, 2)))
def test_relevance_against_its_rule(evidence: Any, forget: Any) -> None:
    """Back from the last cell, in proportion to the terms of its sum."""
    evidence = evidence + np.where(evidence < 0, -0.5, 0.5)
    forget = np.abs(np.nan_to_num(np.tanh(forget)))
    weight = np.array([1.5, -0.5])
    cell = [evidence[0]]
    for t in range(1, 4):
        cell.append(forget[t] * cell[-1] + evidence[t])
    if np.abs(cell).min() < 1e-2:
        return  # the rule divides by the cells
    relevance, passed = np.zeros((4, 2)), weight * cell[-1]
    for t in reversed(range(4)):
        relevance[t] = passed * evidence[t] / cell[t]
        passed = passed - relevance[t]
    ours = jc.lrp_lstm(jnp.asarray(evidence), jnp.asarray(forget), jnp.asarray(weight, jnp.float32))
    np.testing.assert_allclose(ours, relevance, rtol=1e-3, atol=1e-3)


def episodes(steps: int = 6) -> tuple[jax.Array, jax.Array]:
    """Features with garbage on the padded steps; two episodes of different length."""
    mask = jnp.arange(steps)[:, None] < jnp.array([steps, steps - 2])
    features = jax.random.normal(KEY, (steps, 2, 3))
    return jnp.where(mask[..., None], features, jnp.nan), mask


def predicted(network: ReturnPredictor, steps: int = 6) -> tuple[Prediction, Any]:
    features, mask = episodes(steps)
    params = network.init(KEY, features, mask)
    return network.apply(params, features, mask), params  # type: ignore[return-value]


@pytest.mark.parametrize("gate", GATES)
def test_relevance_is_conserved(gate: Any) -> None:
    """It sums to the last prediction less what the predictor says before anything is known."""
    prediction, _ = predicted(ReturnPredictor(4, gate))
    np.testing.assert_allclose(
        prediction.relevance.sum(axis=0), prediction.total[-1] - prediction.before, rtol=1e-4, atol=1e-6
    )
    assert (prediction.relevance[4:, 1] == 0).all()


@pytest.mark.parametrize("gate", ["input", "recurrent"])
def test_monotonic_predictions_only_grow(gate: Any) -> None:
    prediction, _ = predicted(ReturnPredictor(4, gate, monotonic=True))
    change = jnp.diff(prediction.total, axis=0, prepend=prediction.before)
    assert (change >= 0).all()
    # without a forget gate relevance and differences are the same thing
    np.testing.assert_allclose(prediction.relevance, change, rtol=1e-4, atol=1e-6)
