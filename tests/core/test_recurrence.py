"""The linear recurrence against a plain loop, in both directions and both forms."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxcredit.core.recurrence import backward_recurrence, backward_recurrence_of, forward_recurrence

RNG = np.random.default_rng(0)
DECAY, INCREMENT, START = RNG.random((7, 3)), RNG.normal(size=(7, 3)), RNG.normal(size=3)


@pytest.mark.parametrize("form", ["auto", "sequential", "associative"])
def test_against_a_loop(form: str) -> None:
    backward, forward = np.zeros((7, 3)), np.zeros((7, 3))
    behind, before = START, START
    for t in reversed(range(7)):
        behind = backward[t] = INCREMENT[t] + DECAY[t] * behind
    for t in range(7):
        before = forward[t] = INCREMENT[t] + DECAY[t] * before
    arrays = [jnp.asarray(x, jnp.float32) for x in (DECAY, INCREMENT, START)]
    np.testing.assert_allclose(backward_recurrence(*arrays, form=form), backward, rtol=1e-5)
    np.testing.assert_allclose(forward_recurrence(*arrays, form=form), forward, rtol=1e-5)

    def coefficients(decay: Any, half: Any, factor: Any) -> Any:
        return decay, factor * half

    decay, increment, last = arrays
    on_the_way = backward_recurrence_of(coefficients, (decay, increment / 2, 2.0), last, form=form)
    np.testing.assert_allclose(on_the_way, backward, rtol=1e-5)


def test_unknown_form() -> None:
    with pytest.raises(ValueError, match="choose one of auto, sequential, associative"):
        backward_recurrence(jnp.ones(2), jnp.ones(2), jnp.ones(()), form="parallel")
