"""Importance by attention, what lies beyond the horizon, and the classifier behind it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcredit as jc
from contract_table import ESTIMATORS, batch
from jaxcredit.networks.return_classifier import ReturnClassifier, high_return_loss
from jaxcredit.transport.reward_transport import reward_to_go

KEY = jax.random.key(0)
TRANSPORT = ESTIMATORS["TemporalRewardTransport"]

importance_of = jax.jit(jc.attention_importance)
transport = jax.jit(jc.transport_reward)


def flags(steps, *ends):
    return jnp.isin(jnp.arange(steps), jnp.array(ends, int))


# By hand ---------------------------------------------------------------------------------------------------------


def test_importance_is_the_mean_of_a_column_over_its_later_queries():
    """Two episodes, of three steps and one; what the second seems to look at in the first does not count."""
    weight = jnp.array([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.75, 0.25, 0.0, 0], [9, 9, 9, 1.0]])
    np.testing.assert_allclose(importance_of(weight, flags(4, 2), flags(4)), [0.75, 0.375, 0, 1])
    np.testing.assert_allclose(importance_of(weight, flags(4), flags(4, 2)), [0.75, 0.375, 0, 1])
    np.testing.assert_allclose(importance_of(weight, flags(4), flags(4))[0], 11.25 / 4)


def test_reward_to_go_bootstraps_at_time_limits_and_cuts():
    reward, value = jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.array([10.0, 20.0, 30.0, 40.0])
    np.testing.assert_allclose(reward_to_go(reward, value, flags(4, 1), flags(4, 3)), [3, 2, 47, 44])
    np.testing.assert_allclose(reward_to_go(reward, value, flags(4), flags(4, 1)), [23, 22, 47, 44])
    np.testing.assert_allclose(reward_to_go(reward, value, flags(4, 3), flags(4, 3)), [10, 9, 7, 4])


REWARD, NOTHING = jnp.array([1.0, 2.0, 4.0, 8.0, 16.0]), jnp.zeros(5)
IMPORTANCE = jnp.array([0.5, 0.25, 1.0, 1.0, 1.0])


def test_important_steps_are_paid_what_comes_beyond_the_horizon():
    """alpha x importance x G_{t+2}; steps 3 and 4 have nothing beyond."""
    paid = transport(IMPORTANCE, REWARD, NOTHING, flags(5, 4), flags(5), horizon=2, alpha=0.5)
    np.testing.assert_allclose(paid, [0.25 * 28, 0.125 * 24, 0.5 * 16, 0, 0])


def test_importance_must_exceed_the_threshold():
    paid = transport(IMPORTANCE, REWARD, NOTHING, flags(5, 4), flags(5), horizon=2, alpha=0.5, threshold=0.25)
    np.testing.assert_allclose(paid, [0.25 * 28, 0, 0.5 * 16, 0, 0])
    barely = transport(jnp.full(5, 0.15), REWARD, NOTHING, flags(5, 4), flags(5), horizon=2)
    np.testing.assert_array_equal(barely, 0)


@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_nothing_is_paid_from_another_episode(kind):
    """The first episode has three steps: only its first one has a step beyond its horizon."""
    ends = {"terminated": flags(5, 4), "truncated": flags(5)}
    ends[kind] = ends[kind] | flags(5, 2)
    paid = transport(jnp.ones(5), REWARD, NOTHING, **ends, horizon=2, alpha=1.0)
    np.testing.assert_allclose(paid, [4, 0, 0, 0, 0])


def test_where_the_window_cuts_its_last_step_stands_for_those_beyond():
    """Steps 3 and 4 look at step 4, whose reward to go has the value behind the window."""
    value = NOTHING.at[4].set(100.0)
    paid = transport(jnp.ones(5), REWARD, value, flags(5), flags(5), horizon=2, alpha=1.0)
    np.testing.assert_allclose(paid, [128, 124, 116, 116, 116])


def test_horizons():
    """Rounded to whole steps; an infinite one pays nothing, none at all pays what follows the step itself."""
    reward = jnp.zeros(150).at[149].set(1.0)
    for horizon, paid_steps in ((100, 50), (1 / (1 - 0.99), 50), (12.4, 138), (1_000.0, 0), (np.inf, 0), (0, 150)):
        paid = transport(jnp.ones(150), reward, 0 * reward, flags(150, 149), flags(150), horizon=horizon, alpha=1.0)
        np.testing.assert_array_equal(paid, np.arange(150) < paid_steps)


def test_a_single_step_is_paid_nothing():
    one = jnp.ones(1)
    np.testing.assert_array_equal(transport(one, one, one, flags(1, 0), flags(1), horizon=2), 0)


# Against a loop --------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2, 3, 9]))
def test_against_a_loop(seed, horizon):
    rng = np.random.default_rng(seed)
    steps = 7
    reward, value, (terminated, truncated) = *rng.normal(size=(2, steps)), rng.random((2, steps)) < 0.2
    ended = terminated | truncated
    episode = np.cumsum(ended) - ended
    weight = rng.random((steps, steps))
    importance, to_go, paid = np.zeros(steps), np.zeros(steps), np.zeros(steps)
    for i in reversed(range(steps)):
        later = [j for j in range(i, steps) if episode[j] == episode[i]]
        importance[i] = sum(weight[j, i] for j in later) / len(later)
        cut = i == steps - 1 or truncated[i]
        to_go[i] = reward[i] + (0 if terminated[i] else value[i] if cut else to_go[i + 1])
    for i in range(steps):
        ahead = i + horizon
        if ahead >= steps and not ended[-1]:
            ahead = steps - 1
        if ahead < steps and episode[ahead] == episode[i] and importance[i] > 0.4:
            paid[i] = 0.5 * importance[i] * to_go[ahead]
    x = [jnp.asarray(a, jnp.float32) for a in (weight, reward, value)]
    ends = jnp.asarray(terminated), jnp.asarray(truncated)
    found = importance_of(x[0], *ends)
    np.testing.assert_allclose(found, importance, atol=1e-5)
    np.testing.assert_allclose(transport(found, *x[1:], *ends, horizon=horizon, threshold=0.4), paid, atol=1e-5)


# The classifier --------------------------------------------------------------------------------------------------


def test_the_classifier_says_what_its_weights_looked_at():
    """Logits from the weights by hand; where nothing but itself may be seen, only itself matters."""
    x, allowed = jax.random.normal(KEY, (3, 2, 4)), jnp.broadcast_to(jnp.tril(jnp.ones((3, 3), bool)), (2, 3, 3))
    network = ReturnClassifier(width=5, hidden=6)
    (logit, weight), params = jax.jit(lambda x: network.init_with_output(KEY, x, allowed))(x)
    p = jax.tree.map(np.asarray, params["params"])
    embedded = np.maximum(np.asarray(x) @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"], 0)
    query, key, value = np.split(embedded @ p["Dense_1"]["kernel"], 3, axis=-1)
    for b in range(2):
        score = np.where(allowed[b], query[:, b] @ key[:, b].T / np.sqrt(5), -np.inf)
        by_hand = np.exp(score) / np.exp(score).sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(weight[b], by_hand, atol=1e-5)
        hidden = np.maximum(by_hand @ value[:, b] @ p["Dense_2"]["kernel"] + p["Dense_2"]["bias"], 0)
        np.testing.assert_allclose(
            logit[:, b], (hidden @ p["Dense_3"]["kernel"] + p["Dense_3"]["bias"])[:, 0], atol=1e-5
        )


def test_high_returns_weigh_more_and_padding_nothing():
    logit, mask = jnp.array([0.3, -0.2, jnp.nan]), jnp.array([True, True, False])
    p = 1 / (1 + np.exp(-np.array([0.3, -0.2])))
    expected = (-2 * np.log(p[0]) - np.log(1 - p[1])) / 2
    loss = jax.value_and_grad(lambda x: high_return_loss(x, jnp.array([True, False, True]), mask, positive_weight=2.0))
    np.testing.assert_allclose(loss(logit)[0], expected, rtol=1e-5)
    assert np.isfinite(loss(logit)[1]).all()


# The estimator ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    """An estimator's state before a batch, what it did to it, and the state after."""
    state = TRANSPORT.init(KEY, batch())
    return state, *jax.jit(TRANSPORT.update_and_assign)(KEY, state, batch())


def test_a_batch_is_credited_by_the_classifier_from_before_it(fitted):
    before, after, credited, _ = fitted
    moved = jax.tree.map(lambda x, y: bool((x != y).any()), before.params, after.params)
    assert any(jax.tree.leaves(moved))
    np.testing.assert_allclose(credited.reward, TRANSPORT.transported(before, batch()).reward, atol=1e-6)
    assert (credited.reward != batch().reward).any()


@pytest.mark.parametrize("threshold", [0.01, 0.6])
def test_transported_rewards_are_those_of_the_functions(fitted, threshold):
    state = fitted[0]
    paid = TRANSPORT.replace(threshold=threshold).transported(state, batch()).reward
    weight = TRANSPORT.weights(state, batch())
    for b in range(3):
        t = jax.tree.map(lambda x, b=b: x[:, b], batch())
        ends = t.terminated | ~t.mask, t.truncated
        importance = importance_of(weight[:, b], *ends)
        added = transport(importance, t.reward, t.next_value, *ends, horizon=2, threshold=threshold)
        np.testing.assert_allclose(paid[:, b], t.reward + added, atol=1e-5)


def test_the_policy_sees_what_is_transported_and_the_critic_does_not(fitted):
    state, _, credited, _ = fitted
    original = TRANSPORT.credit.assign(KEY, (), batch())
    transported = TRANSPORT.credit.assign(KEY, (), TRANSPORT.transported(state, batch()))
    np.testing.assert_allclose(credited.advantage, transported.advantage, atol=1e-6)
    np.testing.assert_allclose(credited.value_target, original.value_target, atol=1e-6)
    assert (np.abs(transported.value_target - original.value_target) > 1e-3).any()
    both = TRANSPORT.replace(critic="transported").assign(KEY, state, batch())
    np.testing.assert_allclose(both.value_target, transported.value_target, atol=1e-6)


def test_the_level_follows_the_best_return(fitted):
    _, after, _, metrics = fitted
    to_go = jax.vmap(reward_to_go, 1, 1)(
        batch().reward, batch().next_value, batch().terminated | ~batch().mask, batch().truncated
    )
    np.testing.assert_allclose(after.level, 0.03 * to_go[0].max(), rtol=1e-5)
    assert metrics["level"] == after.level
    window = batch().replace(first=jnp.zeros_like(batch().mask))
    np.testing.assert_array_equal(TRANSPORT.update(KEY, after, window)[0].level, after.level)


def test_the_classifier_is_fitted_to_returns_above_the_level(fitted):
    """The loss before its one gradient step."""
    before, after, _, metrics = fitted
    ends = batch().terminated | ~batch().mask, batch().truncated
    to_go = jax.vmap(reward_to_go, 1, 1)(batch().reward, batch().next_value, *ends)
    logit = TRANSPORT.network.apply(before.params, TRANSPORT._features(batch()), TRANSPORT._allowed(batch()))[0]
    loss = high_return_loss(logit, to_go > after.level, batch().mask, positive_weight=2.0)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)


def test_weights_stay_within_the_episode(fitted):
    state = fitted[0]
    trajectory = batch().replace(terminated=batch().terminated.at[1, 2].set(True))
    weight = TRANSPORT.weights(state, trajectory)[:, 2]
    np.testing.assert_array_equal(weight[2:, :2], 0)
    np.testing.assert_array_equal(np.triu(weight, 1), 0)
    np.testing.assert_allclose(weight.sum(axis=-1), 1, atol=1e-5)


def test_the_classifier_learns_which_step_decides():
    """The first action decides the return; in the end the first step is looked at more than any other."""
    steps, episodes = 5, 16
    key, noise_key = jax.random.split(KEY)
    good = jax.random.bernoulli(key, shape=(episodes,))
    last = jnp.zeros((steps, episodes), bool).at[-1].set(True)
    time = jnp.broadcast_to(jnp.eye(steps)[:, None], (steps, episodes, steps))
    action = jax.random.randint(noise_key, (steps, episodes), 0, 2).at[0].set(good.astype(jnp.int32))
    trajectory = jc.Trajectory(
        observation=time, action=action, reward=jnp.where(last, good, 0.0), terminated=last, truncated=last & False,
        first=jnp.zeros_like(last).at[0].set(True), mask=jnp.ones_like(last), logits=jnp.zeros((steps, episodes, 2)),
        value=jnp.zeros((steps, episodes)), next_value=jnp.zeros((steps, episodes)),
    )  # fmt: skip
    estimator = jc.TemporalRewardTransport(jc.GAE(), width=16, hidden=16, fits=200, learning_rate=3e-3)
    state, metrics = jax.jit(estimator.update)(KEY, estimator.init(KEY, trajectory), trajectory)
    weight = estimator.weights(state, trajectory)
    importance = jax.vmap(jc.attention_importance, 1, 1)(weight, last, last & False).mean(axis=1)
    assert metrics["loss"] < 0.4
    assert importance[0] > 0.5 and importance[0] > 1.5 * importance[1:3].max()


def test_episodes_are_collected_where_the_estimator_inside_needs_them():
    assert jc.TemporalRewardTransport(jc.MonteCarlo(baseline=False)).needs_episodes
    assert not jc.TemporalRewardTransport(jc.GAE()).needs_episodes
