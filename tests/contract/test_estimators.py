"""What every estimator promises.  One compiled program per estimator serves all its rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcredit as jc
from contract_table import BOOTSTRAPS, ESTIMATORS, REWRITERS, STEPS, VARIANTS, batch, credit_of, poisoned
from episode_tree import best_choices, episode_tree, value_of

KEY = jax.random.key(0)


class Compiled:
    """An estimator with the one program that all its rows share; the estimator is an argument, so floats are traced."""

    def __init__(self, name: str) -> None:
        self.name, self.estimator = name, jc.as_arrays(ESTIMATORS[name])
        self.program = jax.jit(self.credit)

    @staticmethod
    def credit(estimator: jc.CreditEstimator, key: jax.Array, trajectory: jc.Trajectory) -> dict[str, jax.Array]:
        state = estimator.init(key, trajectory)
        return credit_of(estimator.update_and_assign(key, state, trajectory)[1])

    def __call__(self, trajectory: jc.Trajectory, estimator: jc.CreditEstimator | None = None) -> dict[str, jax.Array]:
        return self.program(self.estimator if estimator is None else estimator, KEY, trajectory)


@pytest.fixture(scope="module", params=list(ESTIMATORS))
def compiled(request: pytest.FixtureRequest) -> Compiled:
    return Compiled(request.param)


def assert_same(a: dict[str, jax.Array], b: dict[str, jax.Array], atol: float = 1e-5) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], atol=atol, rtol=1e-5, err_msg=name)


def skip_variants(compiled: Compiled) -> None:
    """Rows that cost a compilation run for the first of several variants of one estimator."""
    if compiled.name in VARIANTS:
        pytest.skip("a variant of an estimator which runs this row")


def test_jit_equals_eager(compiled: Compiled) -> None:
    skip_variants(compiled)
    assert_same(compiled(batch()), Compiled.credit(compiled.estimator, KEY, batch()))


def test_vmap_equals_loop(compiled: Compiled) -> None:
    skip_variants(compiled)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), batch(1), batch(2))
    together = jax.jit(jax.vmap(Compiled.credit, (None, None, 0)))(compiled.estimator, KEY, stacked)
    for i, seed in enumerate((1, 2)):
        assert_same({name: x[i] for name, x in together.items()}, compiled(batch(seed)))


def test_no_recompilation(compiled: Compiled) -> None:
    compiled(batch())
    before = compiled.program._cache_size()
    changed = jax.tree.map(lambda x: (x * 0.5).astype(x.dtype), compiled.estimator)
    compiled(batch(3))
    compiled(batch(3), changed)
    assert compiled.program._cache_size() == before


def test_floats_are_traced(compiled: Compiled) -> None:
    """Python floats, ints and arrays in float fields give one program after `as_arrays`; what holds many stays."""
    ones = jax.tree.map(lambda x: x if np.ndim(x) else 1, ESTIMATORS[compiled.name])
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), jc.as_arrays(ones))
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), compiled.estimator)


def test_zero_in_zero_out(compiled: Compiled) -> None:
    nothing = batch()
    zero = jnp.zeros_like(nothing.reward)
    credit = compiled(nothing.replace(reward=zero, value=zero, next_value=zero))
    for name, x in credit.items():
        if compiled.name in (*REWRITERS, "chain"):
            if name == "reward":
                np.testing.assert_allclose(x.sum(0), 0, atol=1e-5)
        else:
            np.testing.assert_array_equal(x, 0, err_msg=name)


def test_poisoned_padding_changes_nothing(compiled: Compiled) -> None:
    clean, spoilt = compiled(batch()), compiled(poisoned(batch()))
    mask = batch().mask
    for name in clean:
        np.testing.assert_array_equal(jnp.where(mask, clean[name], 0), jnp.where(mask, spoilt[name], 0), err_msg=name)
    if "advantage" in spoilt:
        np.testing.assert_array_equal(jnp.where(mask, 0, spoilt["advantage"]), 0)


KEEPS_RETURN = ("RUDDER", "SequenceModelling", "AlignRUDDER", "chain")


def test_rewriters_keep_the_return(compiled: Compiled) -> None:
    if not compiled.name.startswith(KEEPS_RETURN):
        pytest.skip("does not redistribute")
    trajectory = batch(4)
    np.testing.assert_allclose(compiled(trajectory)["reward"].sum(0), trajectory.reward.sum(0), atol=1e-5)


def fitted_then_assigned(estimator: jc.CreditEstimator, key: jax.Array, trajectory: jc.Trajectory) -> jax.Array:
    state, _ = estimator.update(key, estimator.init(key, trajectory), trajectory)
    return estimator.assign(key, state, trajectory).reward


def test_the_optimal_policy_stays(compiled: Compiled) -> None:
    """Backward induction over all episodes of small decision processes; after shaping, returns differ by a constant."""
    if not compiled.name.startswith((*KEEPS_RETURN, "Shaping")):
        pytest.skip("does not promise it")
    fitted = jax.jit(fitted_then_assigned)
    for seed in range(5):
        trajectory, chances = episode_tree(seed)
        reward = np.asarray(fitted(compiled.estimator, KEY, trajectory), np.float64)
        assert np.abs(reward - trajectory.reward).max() > 1e-3
        total = np.asarray(trajectory.reward, np.float64).sum(0)
        optimum = value_of(best_choices(total, chances), total, chances)
        chosen = best_choices(reward.sum(0), chances)
        np.testing.assert_allclose(value_of(chosen, total, chances), optimum, atol=1e-5)


# The truncation suite ----------------------------------------------------------------------------------------------


def shifted(trajectory: jc.Trajectory, field: str, step: int, column: int) -> jc.Trajectory:
    x = getattr(trajectory, field)
    return trajectory.replace(**{field: x.at[step, column].add(100.0)})


def advantage(compiled: Compiled, trajectory: jc.Trajectory) -> jax.Array:
    credit = compiled(trajectory)
    if "advantage" not in credit:
        pytest.skip("writes no advantage")
    return credit["advantage"]


def test_nothing_has_value_beyond_a_natural_end(compiled: Compiled) -> None:
    """Column 0 terminates at step 2: the value of what followed must not be read."""
    np.testing.assert_array_equal(
        advantage(compiled, batch()), advantage(compiled, shifted(batch(), "next_value", 2, 0))
    )


@pytest.mark.parametrize(("step", "column"), [(3, 1), (STEPS - 1, 2)])
def test_a_time_limit_bootstraps(compiled: Compiled, step: int, column: int) -> None:
    """Columns 1 and 2 are truncated: the value of what followed, before the reset, belongs to the return."""
    if compiled.name not in BOOTSTRAPS:
        pytest.skip("has no critic")
    trajectory = batch()
    change = advantage(compiled, shifted(trajectory, "next_value", step, column)) - advantage(compiled, trajectory)
    gain = jnp.minimum(jnp.exp(trajectory.log_prob - trajectory.behaviour_log_prob), 1.0)[step, column]
    expected = 0.9 * 100.0 * (gain if compiled.name == "VTrace" else 1.0)
    np.testing.assert_allclose(change[step, column], expected, rtol=1e-4)


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_credit_stays_inside_its_episode(compiled: Compiled, end: str) -> None:
    """Two episodes in one window: what happens in the second must not change the credit of the first."""
    if ESTIMATORS[compiled.name].needs_episodes:
        pytest.skip("one episode per column by contract")
    window = batch().replace(mask=jnp.ones_like(batch().mask))
    none = jnp.zeros_like(window.mask)
    ends = {"terminated": none, "truncated": none} | {end: none.at[2].set(True)}
    window = window.replace(**ends, first=none.at[0].set(True).at[3].set(True))
    later = shifted(shifted(shifted(window, "reward", 3, 0), "value", 3, 0), "next_value", 4, 0)
    np.testing.assert_array_equal(advantage(compiled, window)[:3], advantage(compiled, later)[:3])


# Shapes, dtypes, gradients -----------------------------------------------------------------------------------------


def test_single_step(compiled: Compiled) -> None:
    credit = jax.jit(Compiled.credit)(compiled.estimator, KEY, batch(steps=1))
    assert all(x.shape == (1, 3) and np.isfinite(x).all() for x in credit.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtype_is_kept(compiled: Compiled, dtype: str) -> None:
    credit = jax.eval_shape(Compiled.credit, compiled.estimator, KEY, batch(dtype=dtype))
    assert {name: str(x.dtype) for name, x in credit.items()} == dict.fromkeys(credit, dtype)


def test_gradients_are_finite(compiled: Compiled) -> None:
    def total(reward: jax.Array) -> jax.Array:
        return sum(x.sum() for x in compiled.program(compiled.estimator, KEY, batch().replace(reward=reward)).values())

    assert np.isfinite(jax.grad(total)(batch().reward)).all()
    assert np.isfinite(jax.grad(total)(jnp.zeros_like(batch().reward))).all()


def test_no_lapack(compiled: Compiled) -> None:
    text = jax.jit(Compiled.credit).lower(compiled.estimator, KEY, batch()).as_text()
    assert "lapack" not in text and "cusolver" not in text
