"""What all fitted rewards share: sums, padding, scale; and where each method puts the credit of one decision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import envs
import jaxcredit as jc
from contract_table import batch, poisoned
from jaxcredit.evaluation.episodes import tabular_episodes

KEY = jax.random.key(0)
SMALL = {"fits": 2, "fit_batch": 4, "capacity": 8}
METHODS = {
    "RewardDecomposition": jc.RewardDecomposition(hidden=(2,), **SMALL),
    "SequenceModelling": jc.SequenceModelling(width=4, heads=1, **SMALL),
    "AREL": jc.AREL(width=4, heads=1, readout=(2,), **SMALL),
    "Diaster": jc.Diaster(units=2, hidden=(2,), **SMALL),
}


@pytest.fixture(scope="module", params=list(METHODS))
def fitted(request):
    """An estimator, its state after two batches, and its assignment, compiled once for each residual."""
    estimator = jc.as_arrays(METHODS[request.param])
    update = jax.jit(estimator.update)
    state = estimator.init(KEY, batch())
    for seed in range(2):
        state, _ = update(KEY, state, batch(seed))
    assign = {rest: jax.jit(estimator.replace(residual=rest).assign) for rest in ("none", "end", "spread")}
    return estimator, state, assign


lengths = arrays(np.int32, 3, elements=st.integers(1, 6))
rewards = arrays(np.float32, (6, 3), elements=st.floats(-100, 100, width=32))


@given(length=lengths, reward=rewards, rest=st.sampled_from(["end", "spread"]))
def test_with_the_residual_rewards_sum_to_the_return(fitted, length, reward, rest):
    _, state, assign = fitted
    mask = jnp.arange(6)[:, None] < length
    episodes = poisoned(batch().replace(mask=mask, reward=jnp.asarray(reward)))
    got = assign[rest](KEY, state, episodes).reward
    total = np.where(mask, reward, 0).sum(axis=0)
    size = np.maximum(np.abs(np.where(mask, reward, 0)).sum(axis=0), np.abs(got).sum(axis=0))
    assert (np.abs(got.sum(axis=0) - total) <= 1e-4 * np.maximum(size, 1)).all()
    assert (got[~np.asarray(mask)] == 0).all()


def test_the_residual_goes_to_the_last_step_or_to_all(fitted):
    _, state, assign = fitted
    none, end, spread = (np.asarray(assign[rest](KEY, state, batch(3)).reward) for rest in ("none", "end", "spread"))
    missing = np.asarray(batch(3).reward).sum(axis=0) - none.sum(axis=0)
    for column, length in enumerate((3, 4, 6)):
        np.testing.assert_allclose(end[: length - 1, column], none[: length - 1, column], atol=1e-6)
        share = spread[:length, column] - none[:length, column]
        np.testing.assert_allclose(share, missing[column] / length, atol=1e-5)


def test_what_is_learned_does_not_depend_on_padding(fitted):
    """Poison in training and in use; the released code of RUDDER's descendants trained on padding and used none."""
    estimator, state, _ = fitted
    spoilt, _ = jax.jit(estimator.update)(KEY, state, poisoned(batch(5)))
    clean, _ = jax.jit(estimator.update)(KEY, state, batch(5))
    jax.tree.map(np.testing.assert_array_equal, spoilt, clean)
    longer = jax.tree.map(lambda x: jnp.concatenate([x, jnp.zeros((3, *x.shape[1:]), x.dtype)]), batch(5))
    # the unit of x is that of a full window, so that only what it multiplies is compared
    short, long = (estimator.network.apply(state.params, estimator.features(b), b.mask) for b in (batch(5), longer))
    np.testing.assert_allclose(jnp.where(batch(5).mask, short - long[:6], 0), 0, atol=1e-5)


def test_rewards_look_only_at_the_past(fitted):
    estimator, state, _ = fitted
    predict = jax.jit(estimator.predicted_return)
    changed = batch(3).replace(observation=batch(3).observation.at[4, 2].add(1.0))
    before, after = predict(state, batch(3)), predict(state, changed)
    np.testing.assert_array_equal(after[:4], before[:4])
    assert (after[4:, 2] != before[4:, 2]).all()


def test_rewards_have_the_unit_of_the_return(fitted):
    """Ten times the return, ten times the rewards: nothing in the fit knows of units."""
    estimator, _, assign = fitted

    def rewards(scale):
        state = estimator.init(KEY, batch())
        for seed in range(2):
            episodes = batch(seed)
            state, _ = jax.jit(estimator.update)(KEY, state, episodes.replace(reward=scale * episodes.reward))
        return assign["none"](KEY, state, batch(3)).reward

    np.testing.assert_allclose(rewards(10.0), 10 * rewards(1.0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["SequenceModelling", "AREL"])
def test_errors_of_two_episodes_do_not_cancel(name):
    """mean(err^2), not mean(err)^2: returns of +1 and -1 explained by nothing are a loss of 1, not of 0."""
    estimator = METHODS[name]
    features, mask = jnp.zeros((2, 2, 1)), jnp.ones((2, 2), bool)
    params = jax.tree.map(jnp.zeros_like, estimator.network.init(KEY, features, mask))
    loss = estimator.loss(params, KEY, features, mask, jnp.array([1.0, -1.0]))
    np.testing.assert_allclose(loss, 1.0, rtol=1e-6)


def test_an_unknown_residual_is_refused():
    with pytest.raises(ValueError, match="none, end, spread"):
        jc.Diaster(residual="start")


# One decision, paid three steps later ------------------------------------------------------------------------------

DEPTH = 3
LEARNERS = {
    "SequenceModelling": jc.SequenceModelling(width=8, learning_rate=5e-3, fits=30),
    "AREL": jc.AREL(width=8, readout=(8,), learning_rate=5e-3, fits=30),
    "Diaster": jc.Diaster(units=8, hidden=(16,), learning_rate=1e-2, fits=30),
}


def gains(estimator):
    """Mean reward of each step with the key, less that without, on fresh episodes: median of 3 seeds, `[DEPTH + 1]`."""
    env, params = envs.make("CreditMaze", depth=DEPTH, breadth=0)
    mdp = env.mdp(params)
    policy = jnp.full((mdp.num_states, mdp.num_actions), 1 / mdp.num_actions)

    def of_seed(key):
        fit_key, fresh_key = jax.random.split(key)

        def fit(state, key):
            return estimator.update(key, state, tabular_episodes(env, params, mdp, policy, key, 64))[0], None

        fresh = tabular_episodes(env, params, mdp, policy, fresh_key, 256)
        state = jax.lax.scan(fit, estimator.init(key, fresh), jax.random.split(fit_key, 10))[0]
        reward, taken = estimator.assign(key, state, fresh).reward, fresh.action[0] == 0
        with_key, without = (jnp.where(k, reward, 0).sum(axis=1) / k.sum() for k in (taken, ~taken))
        return with_key - without

    return np.median(jax.jit(jax.vmap(of_seed))(jax.random.split(KEY, 3)), axis=0)


def test_sequence_modelling_pays_the_decision():
    gain = gains(jc.SequenceModelling(width=8, learning_rate=5e-3, fits=30, residual="none"))
    assert gain.argmax() == 0
    np.testing.assert_allclose(gain.sum(), 1, atol=0.2)


def test_diaster_pays_the_decision():
    gain = gains(jc.Diaster(units=8, hidden=(16,), learning_rate=1e-2, fits=30))
    assert gain.argmax() == 0
    np.testing.assert_allclose(gain.sum(), 1, atol=0.2)


def test_arel_spreads_the_payment_over_what_follows_the_decision():
    """Its variance term wants rewards alike: 4 c^2 / 16 against 3 c^2 / 16 for c on one step of four."""
    gain = gains(jc.AREL(width=8, readout=(8,), learning_rate=5e-3, fits=30))
    assert gain.max() < 0.7 and gain.sum() > 0.5
