"""Orthogonal initialisation from matrix products alone.

A QR decomposition inside a vmapped program is a LAPACK custom call that can hang a machine with few cores; the polar
factor of a Gaussian matrix has the same (Haar) distribution and needs only products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

ITERATIONS = 32


def polar_factor(matrix: Float[Array, "m n"], iterations: int = ITERATIONS) -> Float[Array, "m n"]:
    """Nearest matrix with orthonormal columns (rows, where m < n), by the quintic Newton-Schulz iteration.

    X <- 15/8 X - 5/4 X G + 3/8 X G^2  with  G = X^T X,  started from the matrix divided by its Frobenius norm.

    Args:
      matrix: any full-rank matrix; a Gaussian one gives a Haar-distributed factor.
      iterations: number of steps.  The smallest singular value of a square Gaussian has a heavy tail: 32 steps bring
        the worst of a thousand draws at 64 x 64 below 1e-3.
    Returns:
      The factor, same shape and dtype.
    Reference: Bjorck and Bowie (1971), "An iterative algorithm for computing the best estimate of an orthogonal
      matrix".
    """
    wide = matrix.shape[0] < matrix.shape[1]
    x = matrix.T if wide else matrix
    x = x / jnp.linalg.norm(x)

    def refine(_: Any, x: Array) -> Array:
        gram = x.T @ x
        return 1.875 * x - x @ (1.25 * gram - 0.375 * gram @ gram)

    x = jax.lax.fori_loop(0, iterations, refine, x)
    return x.T if wide else x


def orthogonal(scale: float = 1.0) -> Callable[..., Array]:
    """Initialiser in flax's form: `scale` times a random orthogonal matrix of shape (all but last axes, last axis)."""

    def init(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32, out_sharding: Any = None) -> Array:
        del out_sharding
        rows = 1
        for size in shape[:-1]:
            rows *= size
        gaussian = jax.random.normal(key, (rows, shape[-1]), jnp.float32)
        return (scale * polar_factor(gaussian)).reshape(shape).astype(dtype)

    return init
