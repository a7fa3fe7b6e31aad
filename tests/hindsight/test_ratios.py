import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcredit as jc

PROBABILITY = np.array([0.5, 0.3, 0.2, 0.0], np.float32)
FOLLOWS = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.5, 0.5]], np.float32)  # P(u | a)
JOINT = PROBABILITY[:, None] * FOLLOWS
RATIO = FOLLOWS / JOINT.sum(axis=0)


def expected_loss(logit, form):
    """Mean over actions and outcomes; logit `[U, A]`."""
    total = 0.0
    for action in range(4):
        loss = jc.hindsight_loss(logit, jnp.asarray(PROBABILITY), jnp.full(2, action), form=form)
        total = total + (JOINT[action] * loss).sum()
    return total


@pytest.mark.parametrize("form", ["cross_entropy", "contrastive"])
def test_the_loss_is_least_at_the_exact_ratio(form):
    exact = jnp.log(jnp.asarray(RATIO.T))
    np.testing.assert_allclose(jax.grad(expected_loss)(exact, form), 0, atol=1e-6)
    for seed in range(3):
        other = exact + 0.3 * jax.random.normal(jax.random.key(seed), exact.shape)
        assert expected_loss(other, form) > expected_loss(exact, form) + 1e-4
    ratio = jc.hindsight_ratio(exact, jnp.asarray(PROBABILITY), form=form)
    np.testing.assert_allclose(ratio[:, :3], RATIO.T[:, :3], rtol=1e-5)


@pytest.mark.parametrize("form", ["cross_entropy", "contrastive"])
def test_ratios_of_impossible_actions_and_of_collapsed_hindsight_are_finite(form):
    for logit in ([0.0, 0.0, 0.0, 0.0], [80.0, -80.0, 0.0, 80.0], [-90.0, -90.0, -90.0, 90.0]):
        ratio, slope = jax.vmap(
            jax.value_and_grad(lambda x, i: jc.hindsight_ratio(x, jnp.asarray(PROBABILITY), form=form)[i]), (None, 0)
        )(jnp.array(logit), jnp.arange(4))
        assert np.isfinite(slope).all()
        assert ratio[3] == 1
        assert np.all(ratio[:3] >= 0) and np.all(ratio[:3] <= 1 / PROBABILITY[:3] * (1 + 1e-5))
    one = jc.hindsight_ratio(jnp.array([[3.0]]), jnp.ones((1, 1)), form=form)
    np.testing.assert_allclose(one, 1)  # where there is no choice there is nothing to credit


def test_later_sums_equal_a_plain_loop():
    rng = np.random.default_rng(0)
    x, group, mask = rng.normal(size=6).astype(np.float32), rng.integers(-1, 3, size=6), np.arange(6) < 5
    expected = np.zeros((6, 3))
    for t in range(6):
        for k in range(t + 1, 5):
            if group[k] >= 0:
                expected[t, group[k]] += 0.7 ** (k - t) * x[k]
    spoilt = jnp.where(mask, x, jnp.nan)
    got = jc.later_sums(spoilt, jnp.asarray(group), jnp.asarray(mask), number=3, gamma=0.7)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
