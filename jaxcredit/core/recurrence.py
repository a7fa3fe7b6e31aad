"""The one linear recurrence of the library: every return, advantage, trace and running sum is an instance of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Form = Literal["auto", "sequential", "associative"]
FORMS = ("auto", "sequential", "associative")
Coefficients = Callable[..., tuple[Array, Array]]


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
    return _solve(_given, (decay, increment), last, form, reverse=True)


def backward_recurrence_of(
    coefficients: Coefficients, steps: tuple[Any, ...], last: Float[Array, "*B"], *, form: Form = "auto"
) -> Float[Array, "T *B"]:
    """`backward_recurrence` with coefficients that are computed on the way, not written to memory before.

    Args:
      coefficients: (*steps) -> (decay, increment), elementwise: it sees one step, or all of them at once.
      steps: what it reads, arrays `[T, ...]`; scalars hold for all steps.
      last, form: as `backward_recurrence`.
    Returns, Raises: as `backward_recurrence`.
    """
    return _solve(coefficients, steps, last, form, reverse=True)


def forward_recurrence(
    decay: Float[Array, "T *B"], increment: Float[Array, "T *B"], before: Float[Array, "*B"], *, form: Form = "auto"
) -> Float[Array, "T *B"]:
    """Solve  x_t = increment_t + decay_t x_{t-1}  forwards in time, with x_{-1} = `before`.

    Args, Returns, Raises: as `backward_recurrence`, with `decay` the coefficient of the preceding step.
    """
    return _solve(_given, (decay, increment), before, form, reverse=False)


def shares_of_last(decay: Float[Array, "T *B"], increment: Float[Array, "T *B"]) -> Float[Array, "T *B"]:
    """What is left of every increment at the end of a forward recurrence from 0:  (prod_{k > t} decay_k) increment_t.

    Args:
      decay, increment: as `forward_recurrence`.
    Returns:
      The shares, same shape and dtype; they sum to x_{T-1}.
    """
    later = jnp.concatenate([decay[1:], jnp.ones_like(decay[:1])])
    return jax.lax.cumprod(later, axis=0, reverse=True) * increment


def _given(decay: Array, increment: Array) -> tuple[Array, Array]:
    return decay, increment


def _solve(coefficients: Coefficients, steps: tuple[Any, ...], start: Array, form: Form, *, reverse: bool) -> Array:
    if form not in FORMS:
        raise ValueError(f"form={form!r} is not known; choose one of {', '.join(FORMS)}.")
    if form == "auto":
        form = "sequential" if jax.default_backend() == "cpu" else "associative"
    if form == "associative":
        return _associative(*coefficients(*steps), start, reverse)
    return _sequential(coefficients, steps, start, reverse)


def _sequential(coefficients: Coefficients, steps: tuple[Any, ...], start: Array, reverse: bool) -> Array:
    along_time = [jnp.ndim(x) > 0 for x in steps]

    def step(x: Array, inputs: tuple[Any, ...]) -> tuple[Array, Array]:
        arrays = iter(inputs)
        decay, increment = coefficients(*(next(arrays) if a else s for s, a in zip(steps, along_time, strict=True)))
        x = increment + decay * x
        return x, x

    arrays = tuple(s for s, a in zip(steps, along_time, strict=True) if a)
    return jax.lax.scan(step, start, arrays, reverse=reverse)[1]


def _associative(decay: Array, increment: Array, start: Array, reverse: bool) -> Array:
    def compose(nearer: tuple[Array, Array], farther: tuple[Array, Array]) -> tuple[Array, Array]:
        # `nearer` to the start of the recursion, so it is applied first
        (a_near, b_near), (a_far, b_far) = nearer, farther
        return a_far * a_near, b_far + a_far * b_near

    product, offset = jax.lax.associative_scan(compose, (decay, increment), reverse=reverse)
    return offset + jnp.broadcast_to(start, offset.shape[1:]) * product
