"""Rewards explained by earlier steps, and what these are paid for it."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import jaxcredit as jc
from contract_table import batch, poisoned
from jaxcredit.networks.synthetic_return import SyntheticReturnNetwork

KEY = jax.random.key(0)

predict = jax.jit(jc.synthetic_return, static_argnames="capacity")


def test_by_hand():
    """A gated sum over at most two earlier steps of the same episode, and the baseline."""
    contribution, gate = jnp.array([1.0, 2.0, 4.0, 8.0, 16.0]), jnp.array([1.0, 1.0, 0.5, 1.0, 0.25])
    no, end = jnp.zeros(5, bool), jnp.zeros(5, bool).at[3].set(True)
    baseline = jnp.array([0.0, 10.0, 0.0, 0.0, 20.0])
    np.testing.assert_allclose(predict(contribution, gate, baseline, no, no, capacity=2), [0, 11, 1.5, 6, 23])
    for ends in ((end, no), (no, end)):
        np.testing.assert_allclose(predict(contribution, gate, baseline, *ends, capacity=2), [0, 11, 1.5, 6, 20])
    np.testing.assert_allclose(predict(contribution, gate, 0 * baseline, no, no), [0, 1, 1.5, 7, 3.75])


@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_against_a_loop(seed, capacity):
    """Memories longer than the episode, too."""
    rng = np.random.default_rng(seed)
    contribution, gate, baseline = rng.normal(size=(3, 6))
    terminated, truncated = rng.random((2, 6)) < 0.2
    by_hand, remembered = [], []
    for t in range(6):
        by_hand.append(gate[t] * sum(remembered[-capacity:]) + baseline[t])
        remembered = [] if terminated[t] or truncated[t] else [*remembered, contribution[t]]
    arrays = [jnp.asarray(x, jnp.float32) for x in (contribution, gate, baseline)]
    found = predict(*arrays, jnp.asarray(terminated), jnp.asarray(truncated), capacity=capacity)
    np.testing.assert_allclose(found, by_hand, atol=1e-5)


def test_a_single_step_has_nothing_before_it():
    one, no = jnp.ones(1), jnp.zeros(1, bool)
    np.testing.assert_array_equal(predict(one, one, 3 * one, no, no), 3)


def test_augmented_rewards_by_hand_and_without_gradient_into_contributions():
    contribution, reward = jnp.array([1.0, -2.0]), jnp.array([10.0, 0.0])
    np.testing.assert_allclose(jc.augmented_reward(contribution, reward), [10.3, -0.6], rtol=1e-6)
    np.testing.assert_allclose(jc.augmented_reward(contribution, reward, alpha=2.0, beta=0.5), [7, -4])
    gradient = jax.grad(lambda c: jc.augmented_reward(c, reward).sum())(contribution)
    np.testing.assert_array_equal(gradient, 0)


def test_the_network_starts_with_no_contribution_and_gates_between_0_and_1():
    x = 100 * jax.random.normal(KEY, (4, 3))
    (contribution, gate, baseline), _ = SyntheticReturnNetwork((2,)).init_with_output(KEY, x)
    np.testing.assert_array_equal(contribution, 0)
    np.testing.assert_array_equal(baseline, 0)
    assert ((gate >= 0) & (gate <= 1)).all() and len(np.unique(gate)) > 1


def key_and_door(steps=5, episodes=32):
    """The first action takes a key or not; the last step pays 1 with it.  Steps between pay noise."""
    key, noise_key, reward_key = jax.random.split(KEY, 3)
    taken = jax.random.bernoulli(key, shape=(episodes,)).astype(jnp.int32)
    last = jnp.zeros((steps, episodes), bool).at[-1].set(True)
    noise = 0.3 * jax.random.normal(reward_key, (steps, episodes)).at[0].set(0.0)
    return jc.Trajectory(
        observation=jnp.broadcast_to(jnp.eye(steps)[:, None], (steps, episodes, steps)),
        action=jax.random.randint(noise_key, (steps, episodes), 0, 2).at[0].set(taken),
        reward=jnp.where(last, taken.astype(jnp.float32), noise), terminated=last, truncated=last & False,
        first=jnp.zeros_like(last).at[0].set(True), mask=jnp.ones_like(last), logits=jnp.zeros((steps, episodes, 2)),
    )  # fmt: skip


def test_the_step_that_opens_the_door_is_paid_at_once():
    trajectory = key_and_door()
    estimator = jc.SyntheticReturns(alpha=1.0, beta=0.0, hidden=(16,), fits=200, learning_rate=1e-2)
    state, metrics = jax.jit(estimator.update)(KEY, estimator.init(KEY, trajectory), trajectory)
    paid = estimator.assign(KEY, state, trajectory).reward
    effect = [np.diff([paid[t][trajectory.action[t] == a].mean() for a in (0, 1)])[0] for t in range(len(paid))]
    # nothing comes after the last step, so that its contribution is never fitted
    assert effect[0] > 0.5 and effect[0] > 4 * np.abs(effect[1:-1]).max()
    assert metrics["loss"] < 0.1


def test_the_estimator_augments_by_its_weights():
    """Contributions that are not 0: the last layer's bias is their value everywhere."""
    estimator = jc.SyntheticReturns(alpha=2.0, beta=0.5, hidden=(2,))
    state = estimator.init(KEY, batch())
    params = jax.tree_util.tree_map(lambda x: x, state.params)
    params["params"]["contribution"]["Dense_1"]["bias"] = jnp.array([3.0])
    paid = estimator.assign(KEY, state.replace(params=params), poisoned(batch())).reward
    np.testing.assert_allclose(paid, jnp.where(batch().mask, 6 + 0.5 * batch().reward, 0), rtol=1e-5)


def test_the_loss_is_half_the_squared_error_over_unmasked_steps():
    """Before the first gradient step, when nothing is predicted."""
    estimator = jc.SyntheticReturns(hidden=(2,), fits=1)
    spoilt = poisoned(batch())
    _, metrics = estimator.update(KEY, estimator.init(KEY, spoilt), spoilt)
    np.testing.assert_allclose(metrics["loss"], 0.5 * np.square(batch().reward)[batch().mask].mean(), rtol=1e-5)


def test_nothing_but_padding():
    nothing = poisoned(batch()).replace(mask=jnp.zeros_like(batch().mask))
    estimator = jc.SyntheticReturns(hidden=(2,), fits=2)
    state, credited, _ = estimator.update_and_assign(KEY, estimator.init(KEY, nothing), nothing)
    np.testing.assert_array_equal(credited.reward, 0)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))
