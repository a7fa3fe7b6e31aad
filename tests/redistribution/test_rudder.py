"""Redistribution by differences, against hand-worked cases; the predictor against what it must be able to do."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import jaxcredit as jc
from contract_table import batch
from jaxcredit.networks.reduced_lstm import ReducedLSTM
from jaxcredit.redistribution.rudder import EpisodeReplay

KEY = jax.random.key(0)
finite = st.floats(-100, 100, width=32)


def test_hand_worked() -> None:
    g, mask = jnp.array([1.0, 4.0, 3.0, 9.0]), jnp.array([True, True, True, False])
    total = jnp.array(5.0)
    assert jc.redistribute_differences(g, total, mask).tolist() == [1.0, 3.0, 1.0, 0.0]
    spread = jc.redistribute_differences(g, total, mask, residual="spread", baseline=1.0)
    np.testing.assert_allclose(spread, [1.0, 4.0, 0.0, 0.0], atol=1e-6)


@given(arrays(np.float32, 5, elements=finite), finite, st.integers(1, 5), st.sampled_from(["end", "spread"]), finite)
def test_the_return_is_kept(g: Any, total: float, length: int, residual: str, baseline: float) -> None:
    mask = jnp.arange(5) < length
    poisoned = jnp.where(mask, g, jnp.nan)
    reward = jc.redistribute_differences(poisoned, jnp.float32(total), mask, residual=residual, baseline=baseline)
    np.testing.assert_allclose(reward.sum(), total, atol=2e-3)
    assert (reward[length:] == 0).all()


def test_an_empty_episode_gets_nothing() -> None:
    nothing = jc.redistribute_differences(jnp.ones(3), jnp.float32(2), jnp.zeros(3, bool), residual="spread")
    assert nothing.tolist() == [0.0, 0.0, 0.0]


def test_two_part_loss() -> None:
    prediction = jnp.array([[0.0, 1.0], [2.0, 1.0]])  # the second episode has one step
    mask = jnp.array([[True, True], [True, False]])
    loss = jc.return_loss(prediction, jnp.array([1.0, 3.0]), mask, continuous_weight=0.5)
    np.testing.assert_allclose(loss, (1 + 4) / 2 + 0.5 * (1 + 1 + 4) / 3, rtol=1e-6)


@pytest.mark.parametrize("gate", ["input", "recurrent", "full"])
def test_padding_holds_the_memory_still(gate: Any) -> None:
    x = jax.random.normal(KEY, (4, 2, 3))
    mask = jnp.array([[True, True], [True, True], [True, False], [True, False]])
    network = ReducedLSTM(units=2, gate=gate)
    params = network.init(KEY, x, mask)
    cell = network.apply(params, x, mask)
    np.testing.assert_array_equal(cell[2:, 1], jnp.stack([cell[1, 1]] * 2))
    np.testing.assert_allclose(cell[:2], network.apply(params, x[:2], mask[:2]), rtol=1e-5)


def test_reduced_lstm_against_its_equations() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 1, 2)), jnp.float32)
    network = ReducedLSTM(units=2, gate="recurrent")
    params = network.init(KEY, x, jnp.ones((3, 1), bool))
    p = jax.tree.map(np.asarray, params["params"])
    c = np.zeros(2)
    for t in range(3):
        z = np.tanh(x[t, 0] @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"])
        c = c + z / (1 + np.exp(-(c @ p["gate"] + p["gate_bias"])))
    np.testing.assert_allclose(network.apply(params, x, jnp.ones((3, 1), bool))[-1, 0], c, rtol=1e-5)


def test_replay_is_a_ring_that_keeps_episodes_whole() -> None:
    replay = EpisodeReplay(jnp.zeros((4, 2, 1)), jnp.zeros((4, 2), bool), jnp.zeros(4), jnp.zeros((), jnp.int32))
    for i in range(3):  # six episodes into four places
        number = jnp.array([2.0 * i, 2.0 * i + 1])
        replay = replay.add(jnp.broadcast_to(number, (2, 2))[..., None], jnp.ones((2, 2), bool), number)
    assert sorted(replay.episode_return.tolist()) == [2.0, 3.0, 4.0, 5.0]
    features, mask, returns = replay.sample(KEY, 16)
    np.testing.assert_array_equal(features[..., 0], jnp.broadcast_to(returns, (2, 16)))
    assert mask.all()


def test_only_stored_episodes_are_sampled() -> None:
    replay = EpisodeReplay(jnp.zeros((8, 1, 1)), jnp.zeros((8, 1), bool), jnp.zeros(8), jnp.zeros((), jnp.int32))
    replay = replay.add(jnp.ones((1, 2, 1)), jnp.ones((1, 2), bool), jnp.array([7.0, 7.0]))
    assert (replay.sample(KEY, 32)[2] == 7).all()


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
    [("gate", "output", "input, recurrent, full"), ("residual", "start", "end, spread"), ("fits", 0, "at least 1")],
)
def test_bad_settings(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jc.RUDDER(**{field: value})


def test_replay_must_hold_a_batch() -> None:
    with pytest.raises(ValueError, match="cannot hold one batch of 3 episodes"):
        jc.RUDDER(capacity=2).init(KEY, batch())
