import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcredit.core.linear import solve


def system(size, columns, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(size, size)).astype(np.float32), rng.normal(size=(size, columns)).astype(np.float32)


@pytest.mark.parametrize(("size", "columns"), [(1, 1), (2, 3), (5, 1), (30, 4)])
def test_solutions_are_numpys(size, columns):
    matrix, right = system(size, columns)
    expected = np.linalg.solve(matrix.astype(np.float64), right.astype(np.float64))
    np.testing.assert_allclose(solve(jnp.asarray(matrix), jnp.asarray(right)), expected, rtol=1e-3, atol=1e-3)


def test_double_precision_is_kept():
    matrix, right = (x.astype(np.float64) for x in system(30, 2))
    with jax.enable_x64(True):
        solution = solve(jnp.asarray(matrix), jnp.asarray(right))
        assert solution.dtype == jnp.float64
        np.testing.assert_allclose(solution, np.linalg.solve(matrix, right), rtol=1e-10)


@pytest.mark.parametrize(
    ("matrix", "right", "expected"),
    [
        ([[0, 1], [1, 0]], [3, 4], [4, 3]),  # the first pivot is 0
        ([[1, 2, 3], [2, 4, 1], [1, 1, 1]], [14, 13, 6], [1, 2, 3]),  # the second one becomes 0
        ([[1e-8, 1], [1, 1]], [1, 2], [1, 1]),  # without rows exchanged float32 loses all digits of the first
    ],
)
def test_rows_are_exchanged_where_the_pivot_is_small(matrix, right, expected):
    solution = solve(jnp.array(matrix, jnp.float32), jnp.array(right, jnp.float32)[:, None])
    np.testing.assert_allclose(solution[:, 0], expected, rtol=1e-5)


def test_a_batch_is_solved_one_by_one():
    systems = [system(4, 2, seed) for seed in range(3)]
    matrices, rights = (jnp.stack([jnp.asarray(s[i]) for s in systems]) for i in (0, 1))
    one_by_one = jnp.stack([solve(matrix, right) for matrix, right in zip(matrices, rights, strict=True)])
    np.testing.assert_allclose(jax.jit(jax.vmap(solve))(matrices, rights), one_by_one, rtol=1e-4)


def test_derivatives_are_finite_differences():
    matrix, right = (x.astype(np.float64) for x in system(4, 2))
    weight = np.random.default_rng(1).normal(size=(4, 2))

    def loss(matrix, right):
        return (weight * solve(matrix, right)).sum()

    def difference(of):
        steps = np.stack([np.eye(of.size)[i].reshape(of.shape) * 1e-6 for i in range(of.size)])
        changed = [(of + s, of - s) for s in steps]
        values = [[(weight * np.linalg.solve(*pair(x))).sum() for x in both] for both in changed]
        return (np.subtract(*np.transpose(values)) / 2e-6).reshape(of.shape)

    with jax.enable_x64(True):
        for argument, of in enumerate((matrix, right)):

            def pair(x, argument=argument):
                return (x, right) if argument == 0 else (matrix, x)

            expected = difference(of)
            for derivative in (jax.grad, jax.jacfwd):
                found = jax.jit(derivative(loss, argument))(jnp.asarray(matrix), jnp.asarray(right))
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("matrix", [[[0]], [[1, 2], [2, 4]], [[1, 0], [0, 0]], [[2, 1, 1], [4, 2, 2], [1, 1, 1]]])
def test_a_singular_matrix_gives_no_finite_number(matrix):
    size = len(matrix)
    right = jnp.stack([jnp.zeros(size), jnp.ones(size)], axis=1)
    assert not np.isfinite(jax.jit(solve)(jnp.array(matrix, jnp.float32), right)).any()


def test_no_lapack_is_called():
    arguments = jnp.ones((2, 3, 3)), jnp.ones((2, 3, 1))
    gradient = jax.grad(lambda matrix, right: jax.vmap(solve)(matrix, right).sum())
    for function in (jax.vmap(solve), gradient):
        text = jax.jit(function).lower(*arguments).as_text().lower()
        assert "lapack" not in text and "custom_call" not in text
    assert "custom_call" in jax.jit(jnp.linalg.solve).lower(jnp.ones((3, 3)), jnp.ones((3, 1))).as_text()
