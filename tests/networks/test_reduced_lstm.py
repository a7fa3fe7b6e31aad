"""The reduced LSTM against its equations in NumPy, its padding, and reading in chunks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcredit.networks.reduced_lstm import GATES, PARTS, ReducedLSTM, ReturnPredictor, in_chunks, joined

KEY = jax.random.key(0)


@pytest.mark.parametrize("gate", GATES)
def test_padding_holds_the_memory_still(gate: Any) -> None:
    mask = jnp.array([[True, True], [True, True], [True, False], [True, False]])
    x = jnp.where(mask[..., None], jax.random.normal(KEY, (4, 2, 3)), jnp.nan)
    network = ReducedLSTM(units=2, gate=gate)
    params = network.init(KEY, x, mask)
    hidden = network.apply(params, x, mask).hidden
    np.testing.assert_allclose(hidden[2:, 1], jnp.stack([hidden[1, 1]] * 2), rtol=1e-6)
    np.testing.assert_allclose(hidden[:2], network.apply(params, x[:2], mask[:2]).hidden, rtol=1e-5)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("gate", GATES)
def test_against_its_equations(gate: Any) -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 1, 2)), jnp.float32)
    network = ReducedLSTM(units=2, gate=gate)
    params = network.init(KEY, x, jnp.ones((3, 1), bool))
    p = jax.tree.map(np.asarray, params["params"])
    cell, hidden = np.zeros(2), np.zeros(2)
    for t in range(3):
        forward = np.asarray(x[t, 0]) @ p["forward"]["kernel"] + p["forward"]["bias"]
        i, o, f = np.ones((3, 2))
        if gate == "input":
            z, i = np.tanh(forward[:2]), sigmoid(forward[2:])
        else:
            back = hidden @ p["backward"]
            content = forward
            if gate == "full":
                content, back = forward + back[:2], back[2:] + x[t, 0] @ p["forward_gates"]["kernel"]
            z = np.tanh(content)
            gates = dict(zip(PARTS[gate], sigmoid(back + p["gate_bias"]).reshape(-1, 2), strict=True))
            i, o, f = (gates.get(name, np.ones(2)) for name in "iof")
        cell = f * cell + i * z
        hidden = o * cell
    ours = network.apply(params, x, jnp.ones((3, 1), bool))
    np.testing.assert_allclose(ours.hidden[-1, 0], hidden, rtol=1e-5)


@pytest.mark.parametrize("steps", [5, 6, 7, 8, 9, 16])
def test_chunks_cover_every_step_once(steps: int) -> None:
    x = jnp.arange(2 * steps).reshape(steps, 2)
    chunks = in_chunks(x, 4)
    assert chunks.shape[0] == 4
    np.testing.assert_array_equal(joined(chunks, steps), x)
    np.testing.assert_array_equal(chunks[:, 2:4], jnp.pad(x, ((0, 4), (0, 0)))[2:6])  # the second one


def test_chunks_change_nothing_where_nothing_recurs() -> None:
    x, mask = jax.random.normal(KEY, (11, 2, 3)), jnp.arange(11)[:, None] < jnp.array([11, 7])
    whole, cut = ReturnPredictor(4), ReturnPredictor(4, chunk=4)
    params = whole.init(KEY, x, mask)
    np.testing.assert_allclose(
        cut.apply(params, x, mask).total, whole.apply(params, x, mask).total, rtol=1e-4, atol=1e-6
    )


def test_a_chunk_knows_at_least_half_a_chunk_of_the_past() -> None:
    """The recurrent gate sees the last steps of the past, and none that lies a whole chunk back."""
    x, mask = jax.random.normal(KEY, (12, 1, 3)), jnp.ones((12, 1), bool)
    network = ReturnPredictor(4, "recurrent", chunk=4)
    params = network.init(KEY, x, mask)

    def change(x: jax.Array) -> Any:
        return jnp.diff(network.apply(params, x, mask).total[:, 0])[8]  # of step 9

    seen = jnp.abs(jax.grad(change)(x)).sum(axis=(1, 2))
    assert (seen[6:10] > 0).all()
    np.testing.assert_allclose(np.delete(seen, range(6, 10)), 0, atol=1e-6)
