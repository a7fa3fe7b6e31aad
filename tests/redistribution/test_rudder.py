"""RUDDER: its loss, what its predictor sees, and whether credit moves to where it belongs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcredit as jc
from contract_table import batch

KEY = jax.random.key(0)


def test_two_part_loss() -> None:
    prediction = jnp.array([[0.0, 1.0], [2.0, 1.0]])  # the second episode has one step
    mask = jnp.array([[True, True], [True, False]])
    loss = jc.return_loss(prediction, jnp.array([1.0, 3.0]), mask, continuous_weight=0.5)
    np.testing.assert_allclose(loss, (1 + 4) / 2 + 0.5 * (1 + 1 + 4) / 3, rtol=1e-6)


def test_auxiliary_targets_look_ahead_and_back() -> None:
    reward, mask = jnp.array([1.0, 2.0, 0.0, 5.0, jnp.nan]), jnp.arange(5) < 4
    targets = jc.auxiliary_targets(reward, mask, window=2)
    np.testing.assert_allclose(targets[:4, 0], [1.0, 2.5, 2.5, 0.0])
    np.testing.assert_allclose(targets[:4, 1], [7.0, 5.0, 5.0, 0.0])
    np.testing.assert_allclose(targets[:4, 2], [1.0, 3.0, 3.0, 8.0])


# Faults of released code that must not come back --------------------------------------------------------------------


def test_the_loss_is_no_square_of_a_mean_error() -> None:
    """Errors of +1 and -1 do not cancel."""
    prediction, mask = jnp.array([[1.0, -1.0]]), jnp.ones((1, 2), bool)
    assert jc.return_loss(prediction, jnp.zeros(2), mask, continuous_weight=0.0) == 1.0


def test_the_last_difference_is_paid() -> None:
    """A prediction that only changes in the last step pays it there, at full length as in a padded episode."""
    for length in (3, 4):
        mask = jnp.arange(4) < length
        g = jnp.where(jnp.arange(4) == length - 1, 5.0, 0.0)
        reward = jc.redistribute_differences(g, jnp.float32(5), mask, residual="spread")
        np.testing.assert_allclose(reward, g, atol=1e-6)


def test_padding_changes_neither_the_fit_nor_its_use() -> None:
    """Episodes with further padding behind them are fitted, and paid, as without it."""
    short = batch()
    rudder = jc.RUDDER(hidden=2, fits=2, fit_batch=2, capacity=3, min_quality=-2.0)

    def padded(x: jax.Array) -> jax.Array:
        return jnp.pad(x, [(0, 3)] + [(0, 0)] * (x.ndim - 1), constant_values=1)

    long = jax.tree.map(padded, short)
    long = long.replace(mask=long.mask & (jnp.arange(9)[:, None] < 6))
    results = []
    for trajectory in (short, long):
        state, metrics = rudder.update(KEY, rudder.init(KEY, trajectory), trajectory)
        results.append((metrics["loss"], rudder.assign(KEY, state, trajectory).reward[:6]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *results)


def delayed_choice(key: jax.Array, episodes: int = 32) -> jc.Trajectory:
    """Five steps; the return, paid at the end, is 1 if action 1 was taken in step 1."""
    action = jax.random.bernoulli(key, shape=(5, episodes)).astype(jnp.int32)
    last = jnp.broadcast_to(jnp.arange(5)[:, None] == 4, (5, episodes))
    return jc.Trajectory(
        observation=jnp.broadcast_to(jnp.eye(5)[:, None], (5, episodes, 5)),
        action=action,
        reward=jnp.where(last, action[1].astype(jnp.float32), 0),
        terminated=last,
        truncated=jnp.zeros_like(last),
        first=jnp.flip(last, 0),
        mask=jnp.ones_like(last),
        logits=jnp.zeros((5, episodes, 2)),
    )


@pytest.fixture(scope="module")
def fitted() -> tuple[jax.Array, jax.Array]:
    """Redistributed rewards of fresh episodes after fitting on others, for four seeds, and the fresh actions."""
    rudder = jc.RUDDER(hidden=8, fits=20, learning_rate=1e-2)

    def fit(key: jax.Array) -> Any:
        state = rudder.init(key, jax.eval_shape(delayed_choice, key))
        for_fitting = jax.random.split(jax.random.fold_in(key, 1), 20)
        state, _ = jax.lax.scan(lambda s, k: rudder.update(k, s, delayed_choice(k)), state, for_fitting)
        fresh = delayed_choice(jax.random.fold_in(key, 2))
        return rudder.assign(key, state, fresh).reward, fresh.action

    return jax.jit(jax.vmap(fit))(jax.random.split(KEY, 4))


def test_credit_moves_to_the_decisive_step(fitted: tuple[jax.Array, jax.Array]) -> None:
    reward, action = fitted
    chosen = action[:, 1] == 1
    gain = (
        jnp.where(chosen[:, None], reward, 0).sum((0, 2)) / chosen.sum()
        - jnp.where(chosen[:, None], 0, reward).sum((0, 2)) / (~chosen).sum()
    )
    assert gain[1] > 0.8
    assert jnp.abs(gain.at[1].set(0)).max() < 0.15


def test_gate_keeps_the_reward_until_predictions_are_good() -> None:
    trajectory = batch()
    strict = jc.RUDDER(hidden=2, fits=1, fit_batch=2, capacity=3, min_quality=2.0)
    assigned = jax.jit(lambda t: strict.update_and_assign(KEY, strict.init(KEY, t), t)[1])(trajectory)
    np.testing.assert_array_equal(assigned.reward, trajectory.reward)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("gate", "none", "input, recurrent, output, forget, full"),
        ("residual", "start", "end, spread"),
        ("fits", 0, "at least 1"),
        ("chunk", 5, "give an even number"),
        ("analysis", "shapley", "differences, gradients, relevance"),
    ],
)
def test_bad_settings(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jc.RUDDER(**{field: value})


@pytest.mark.parametrize("settings", [{"gate": "forget"}, {"readout": 4}])
def test_nothing_may_lower_a_monotonic_prediction(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not monotonic"):
        jc.RUDDER(monotonic=True, **settings)


def test_relevance_needs_a_linear_readout() -> None:
    with pytest.raises(ValueError, match="choose readout=0"):
        jc.RUDDER(analysis="relevance", readout=4)


def test_the_mean_return_is_paid_in_the_first_step_or_with_the_residual() -> None:
    trajectory = batch()
    rudder = jc.RUDDER(hidden=2, fits=1, fit_batch=2, capacity=3, min_quality=-2.0, residual="end")
    state = rudder.update(KEY, rudder.init(KEY, trajectory), trajectory)[0]
    late = rudder.assign(KEY, state, trajectory).reward
    early = rudder.replace(baseline="zero").assign(KEY, state, trajectory).reward
    total = jnp.where(trajectory.mask, trajectory.reward, 0).sum(axis=0)
    np.testing.assert_allclose(early[0] - late[0], total.mean(), rtol=1e-5)
    np.testing.assert_allclose(early.sum(axis=0), total, rtol=1e-5)


def test_differences_show_what_changed() -> None:
    """The first observation as it is; the action as it is; padding shows nothing."""
    trajectory = batch()
    features = jc.RUDDER(inputs="difference").features(trajectory, jnp.ones(()))
    observation = np.asarray(trajectory.observation)
    np.testing.assert_allclose(features[0, :, :3], observation[0])
    np.testing.assert_allclose(features[2, 0, :3], observation[2, 0] - observation[1, 0], rtol=1e-6)
    np.testing.assert_array_equal(features[2, 0, 3:], np.eye(2)[trajectory.action[2, 0]])
    assert (features[3:, 0] == 0).all()


def test_replay_must_hold_a_batch() -> None:
    with pytest.raises(ValueError, match="cannot hold one batch of 3 episodes"):
        jc.RUDDER(capacity=2).init(KEY, batch())
