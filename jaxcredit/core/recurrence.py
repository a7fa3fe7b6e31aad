"""The one backward recursion of the library: every return, advantage and trace is an instance of it."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Form = Literal["auto", "sequential", "associative"]
FORMS = ("auto", "sequential", "associative")


def backward_recurrence(
    decay: Float[Array, "T *B"], increment: Float[Array, "T *B"], last: Float[Array, "*B"], *, form: Form = "auto"
) -> Float[Array, "T *B"]:
    """Solve  x_t = increment_t + decay_t x_{t+1}  backwards in time, with x_T = `last`.

    Args:
      decay: coefficient of the following step, time-major.
      increment: what step t adds, same shape and dtype.
      last: x_T, the value behind the last step.
      form: "sequential" is a time-major `lax.scan` (fastest on CPU), "associative" a parallel prefix of depth log T
        (for accelerators), "auto" the one that fits the default backend at trace time.
    Returns:
      x_0 .. x_{T-1}, same shape and dtype.
    Raises:
      ValueError: unknown `form`.
    """
    if form not in FORMS:
        raise ValueError(f"form={form!r} is not known; choose one of {', '.join(FORMS)}.")
    if form == "auto":
        form = "sequential" if jax.default_backend() == "cpu" else "associative"
    if form == "associative":
        return _associative(decay, increment, last)
    return _sequential(decay, increment, last)


def _sequential(decay: Array, increment: Array, last: Array) -> Array:
    def step(following: Array, coefficients: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = coefficients
        x = b + a * following
        return x, x

    return jax.lax.scan(step, last, (decay, increment), reverse=True)[1]


def _associative(decay: Array, increment: Array, last: Array) -> Array:
    def compose(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
        (a_later, b_later), (a_earlier, b_earlier) = later, earlier
        return a_earlier * a_later, b_earlier + a_earlier * b_later

    product, offset = jax.lax.associative_scan(compose, (decay, increment), reverse=True)
    return offset + jnp.broadcast_to(last, offset.shape[1:]) * product
