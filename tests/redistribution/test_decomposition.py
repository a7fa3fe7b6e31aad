import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcredit as jc

LENGTH, PADDED = 5, 7
REWARD = jnp.array([0.5, -1.0, 2.0, 0.0, 3.0, 9.0, 9.0])
MEAN = jnp.array(1.5)


def losses(number, unbiased):
    """The loss of every way to choose so many steps of the episode."""
    for steps in itertools.combinations(range(LENGTH), number):
        chosen = jnp.zeros(PADDED, bool).at[jnp.array(steps)].set(True)
        yield float(jc.decomposition_loss(REWARD, MEAN, chosen, jnp.array(float(LENGTH)), unbiased=unbiased))


def full_loss():
    return (1.5 - np.mean(REWARD[:LENGTH])) ** 2


@pytest.mark.parametrize("number", [2, 3, 5])
def test_unbiased_loss_of_random_steps_is_on_average_that_of_all(number):
    np.testing.assert_allclose(np.mean(list(losses(number, True))), full_loss(), rtol=1e-5)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_plain_loss_of_random_steps_also_holds_the_variance_of_their_mean(number):
    variance = np.var(REWARD[:LENGTH], ddof=1) * (1 - number / LENGTH) / number
    np.testing.assert_allclose(np.mean(list(losses(number, False))), full_loss() + variance, rtol=1e-5)


def test_nothing_chosen_costs_nothing():
    nothing = jnp.zeros(PADDED, bool)
    assert float(jc.decomposition_loss(REWARD, MEAN, nothing, jnp.array(0.0), unbiased=True)) == 0
    gradient = jax.grad(lambda r: jc.decomposition_loss(r, MEAN, nothing, jnp.array(0.0), unbiased=True))(REWARD)
    np.testing.assert_array_equal(gradient, 0)


def test_steps_are_chosen_without_replacement_and_alike():
    mask = jnp.arange(PADDED) < LENGTH
    chosen = jax.vmap(lambda key: jc.choose_steps(key, mask, 2))(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_array_equal(chosen.sum(axis=1), 2)
    np.testing.assert_allclose(chosen.mean(axis=0), np.where(mask, 2 / LENGTH, 0), atol=0.03)
    np.testing.assert_array_equal(jc.choose_steps(jax.random.key(0), mask, 6), mask)


@pytest.mark.parametrize("subset", [0, 2])
def test_what_each_action_is_worth_is_found_from_returns_alone(subset):
    """Action 1 is worth 1, action 0 nothing, but the whole sum is paid in the last step."""
    credit = jc.RewardDecomposition(hidden=(), learning_rate=0.03, subset=subset, unbiased=True, fits=100, capacity=64)
    action = jax.random.randint(jax.random.key(1), (6, 64), 0, 2)
    none, last = jnp.zeros((6, 64), bool), jnp.zeros((6, 64), bool).at[-1].set(True)
    trajectory = jc.Trajectory(
        observation=jnp.zeros((6, 64, 1)),
        action=action,
        reward=jnp.zeros((6, 64)).at[-1].set(action.sum(axis=0).astype(jnp.float32)),
        terminated=last,
        truncated=none,
        first=none.at[0].set(True),
        mask=~none,
        logits=jnp.zeros((6, 64, 2)),
    )

    @jax.jit
    def rewards(credit, key):
        state = credit.init(key, trajectory)
        for i in range(3):
            state, _ = credit.update(jax.random.fold_in(key, i), state, trajectory)
        return credit.assign(key, state, trajectory).reward

    np.testing.assert_allclose(rewards(jc.as_arrays(credit), jax.random.key(2)), action, atol=0.1)
