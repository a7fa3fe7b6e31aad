"""Small linear systems in plain JAX: no LAPACK, whose batched calls can hang a machine with few cores."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def solve(matrix: Float[Array, "N N"], right: Float[Array, "N M"]) -> Float[Array, "N M"]:
    """Solve  matrix x = right  by Gauss-Jordan elimination with partial pivoting.

    Maps, jits and differentiates, forwards and in reverse; a derivative is one more system, not a way back through the
    elimination. About 2 N^2 (N + M) operations in N steps: for systems of up to a few hundred unknowns.

    Args:
      matrix: the coefficients.
      right: right-hand sides, one per column, of the same dtype.
    Returns:
      x, one solution per column. Where elimination meets a pivot of exactly 0 the matrix is singular, and no number of
      x is finite (nan or infinite), also where other solutions would do.

    >>> solve(jnp.array([[0.0, 2.0], [1.0, 1.0]]), jnp.array([[4.0], [5.0]])).ravel().tolist()
    [3.0, 2.0]
    """
    return jax.lax.custom_linear_solve(
        lambda x: jnp.matmul(matrix, x, precision="highest"),
        right,
        solve=lambda _, b: _eliminate(matrix, b),
        transpose_solve=lambda _, b: _eliminate(matrix.T, b),
    )


def _eliminate(matrix: Array, right: Array) -> Array:
    size = matrix.shape[0]
    rows = jnp.arange(size)

    def step(k: Array, system: Array) -> Array:
        largest = jnp.where(rows >= k, jnp.abs(system[:, k]), -1).argmax()
        pivot = system[largest] / system[largest, k]
        system = system.at[largest].set(system[k])
        factor = jnp.where(rows == k, 0, system[:, k])
        return (system - factor[:, None] * pivot).at[k].set(pivot)

    return jax.lax.fori_loop(0, size, step, jnp.concatenate([matrix, right], axis=1))[:, size:]
