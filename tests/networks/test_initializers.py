"""Orthogonal initialisation without LAPACK."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcredit.networks.initializers import orthogonal, polar_factor


def test_the_worst_of_a_thousand_draws_is_orthogonal() -> None:
    gaussian = jax.random.normal(jax.random.key(0), (1000, 64, 64))
    factor = jax.jit(jax.vmap(polar_factor))(gaussian)
    error = jnp.abs(jnp.swapaxes(factor, 1, 2) @ factor - jnp.eye(64)).max()
    assert error < 1e-2


@pytest.mark.parametrize("shape", [(3, 8), (8, 3), (5, 1), (2, 3, 4)])
def test_rows_or_columns_are_orthonormal(shape: tuple[int, ...]) -> None:
    matrix = orthogonal(2.0)(jax.random.key(1), shape).reshape(-1, shape[-1])
    small = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
    np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-4)


def test_the_polar_factor_is_the_nearest_orthogonal_matrix() -> None:
    matrix = np.random.default_rng(0).normal(size=(6, 4))
    u, _, v = np.linalg.svd(matrix, full_matrices=False)
    np.testing.assert_allclose(polar_factor(jnp.asarray(matrix, jnp.float32)), u @ v, atol=1e-4)
