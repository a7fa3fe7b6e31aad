import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcredit as jc

KEY = jax.random.key(0)
CREDIT = jc.Diaster(units=3, hidden=(2,))
FEATURES = jax.random.normal(KEY, (5, 2, 3))
MASK = jnp.stack([jnp.ones(5, bool), jnp.arange(5) < 3], axis=1)


@pytest.fixture(scope="module")
def params():
    return jax.jit(CREDIT.network.init)(KEY, FEATURES, MASK)


@pytest.mark.parametrize(("cut", "by_hand"), [(0, 1.0 + 5.0), (1, 2.0 + 5.0), (2, 5.0)])
def test_both_parts_make_the_return(cut, by_hand):
    """Three steps; a cut behind the last one leaves nothing for a second part."""
    prediction, mask = jnp.array([1.0, 2.0, 5.0, jnp.nan]), jnp.arange(4) < 3
    loss = jc.sub_trajectory_loss(prediction, jnp.array(cut), jnp.array(4.0), mask)
    np.testing.assert_allclose(loss, (by_hand - 4.0) ** 2, rtol=1e-6)


def test_an_empty_episode_costs_nothing():
    nothing = jnp.zeros(3, bool)
    assert float(jc.sub_trajectory_loss(jnp.ones(3), jc.choose_cut(KEY, nothing), jnp.array(2.0), nothing)) == 0


def test_cuts_are_uniform_over_the_episode():
    cuts = jax.vmap(lambda key: jc.choose_cut(key, MASK[:, 1]))(jax.random.split(KEY, 3000))
    np.testing.assert_allclose(np.bincount(cuts, minlength=5) / 3000, [1 / 3, 1 / 3, 1 / 3, 0, 0], atol=0.03)


def test_a_part_is_rewarded_as_if_it_were_alone(params):
    """The second part knows nothing of the first: the GRU starts anew behind the cut."""
    of_part = jax.jit(CREDIT._of_part)
    starts = jnp.zeros((5, 2), bool).at[2].set(True)
    together = of_part(params, FEATURES, starts)
    for part in (slice(0, 2), slice(2, 5)):
        alone = of_part(params, FEATURES[part], jnp.zeros_like(starts[part]))
        np.testing.assert_allclose(together[part], alone, atol=1e-6)


def test_loss_against_a_loop(params):
    """Both parts of the loss, from the networks' own outputs on each sub-trajectory by itself."""
    excess = np.array([2.0, -1.0], np.float32)
    keys, of_part = jax.random.split(KEY, 2), jax.jit(CREDIT._of_part)
    squares, regress = [], []
    step = np.asarray(CREDIT.network.apply(params, FEATURES, MASK))
    for b, length in enumerate((5, 3)):
        x = FEATURES[:length, b : b + 1]

        def reward_of(part):
            alone = jnp.zeros((5, 1, 3)).at[: len(part)].set(part)  # one shape, one program
            return float(of_part(params, alone, jnp.zeros((5, 1), bool))[len(part) - 1, 0]) if len(part) else 0.0

        cut = int(jc.choose_cut(keys[b], MASK[:, b]))
        squares.append((reward_of(x[: cut + 1]) + reward_of(x[cut + 1 :]) - excess[b]) ** 2)
        prefix = [0.0] + [reward_of(x[: t + 1]) for t in range(length - 1)] + [float(excess[b])]
        difference = np.diff(prefix)
        np.testing.assert_allclose(difference.sum(), excess[b], rtol=1e-5)
        regress += list((step[:length, b] - difference) ** 2)
    loss = jax.jit(CREDIT.loss)(params, KEY, FEATURES, MASK, jnp.asarray(excess))
    np.testing.assert_allclose(loss, np.mean(squares) + np.mean(regress), rtol=1e-4)


def test_the_differences_are_a_target_and_learn_nothing_from_the_steps(params):
    """The GRU's gradient comes from the cuts alone, that of the step network from the differences alone."""

    gradient = jax.jit(jax.grad(CREDIT.loss))

    def with_steps(scale):
        shifted = jax.tree_util.tree_map_with_path(lambda path, x: x + scale * ("step" in str(path)), params)
        return gradient(shifted, KEY, FEATURES, MASK, jnp.array([2.0, -1.0]))["params"]

    a, b = with_steps(0.0), with_steps(0.5)
    for name in ("memory", "readout"):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), a[name], b[name])
