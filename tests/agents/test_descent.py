"""Shuffles of minibatches, and the gradient steps against a plain loop."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxcredit as jc
from jaxcredit.agents.descent import descend, shuffled

SIZES = [1, 7, 12, 64, 97, 512, 960, 2_048]


@pytest.mark.parametrize("number", SIZES)
def test_a_shuffle_holds_every_number_once(number: int) -> None:
    orders = jax.jit(jax.vmap(partial(shuffled, number=number)))(jax.random.split(jax.random.key(0), 20))
    np.testing.assert_array_equal(jnp.sort(orders), jnp.broadcast_to(jnp.arange(number), orders.shape))
    assert orders.dtype == jnp.int32
    assert number < 10 or len(np.unique(orders, axis=0)) == 20


def test_any_number_lands_anywhere_and_any_two_meet_by_chance() -> None:
    """64 = 8 x 8 is the worst mixed size; 20,000 shuffles; bounds of more than five standard errors."""
    draws = 20_000
    orders = jax.jit(jax.vmap(partial(shuffled, number=64)))(jax.random.split(jax.random.key(1), draws))
    places = np.argsort(np.asarray(orders), axis=1)
    for number in (0, 1, 37):
        share = np.bincount(places[:, number], minlength=64) / draws
        np.testing.assert_allclose(share, 1 / 64, atol=5.5 * np.sqrt(1 / 64 / draws))
    minibatch = places // 16
    # neighbours in a row, in a column, on a diagonal, far apart
    for one, other in ((0, 1), (0, 8), (0, 9), (3, 60), (20, 21)):
        together = (minibatch[:, one] == minibatch[:, other]).mean()
        assert abs(together - 15 / 63) < 5.5 * np.sqrt(0.25 * 0.75 / draws), (one, other)


def test_a_sort_does_what_the_network_cannot() -> None:
    """A prime has no two halves."""
    key = jax.random.key(0)
    np.testing.assert_array_equal(shuffled(key, 97), jax.random.permutation(key, 97))


def test_gradient_steps_are_those_of_a_plain_loop() -> None:
    """Two epochs of four minibatches of a linear regression, against NumPy."""
    columns, rate = 64, 0.1
    x, y = jnp.asarray(np.random.default_rng(0).normal(size=(2, columns)), jnp.float32)
    zero = jnp.zeros((1, columns))
    batch = jc.Trajectory(
        observation=x[None], action=zero, reward=y[None], terminated=zero, truncated=zero, first=zero, mask=zero
    )

    def loss(weight: jax.Array, carry: Any, batch: jc.Trajectory) -> Any:
        error = jnp.square(weight * batch.observation - batch.reward).mean()
        return error, {"error": error}

    optimizer, key, weight = optax.sgd(rate), jax.random.key(3), jnp.float32(0.0)
    (found, _), losses = descend(
        loss, optimizer, key, (weight, optimizer.init(weight)), (), batch, epochs=2, minibatches=4
    )
    expected, errors = 0.0, []
    for epoch in jax.random.split(key, 2):
        for choice in np.asarray(shuffled(epoch, columns)).reshape(4, 16):
            error = expected * x[choice] - y[choice]
            errors.append(np.square(error).mean())
            expected -= rate * 2 * (error * x[choice]).mean()
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(losses["error"], np.mean(errors), rtol=1e-5)
