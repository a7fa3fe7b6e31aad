"""What fitted rewards share: sums, padding, causality, units; and where each method puts the credit of a decision."""

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
from jaxcredit.redistribution.fitted_rewards import RESTS

KEY = jax.random.key(0)
SMALL = {"fits": 2, "fit_batch": 4, "capacity": 8}
METHODS = {
    "RewardDecomposition": jc.RewardDecomposition(hidden=(2,), **SMALL),
    "SequenceModelling": jc.SequenceModelling(width=4, heads=1, **SMALL),
    "Diaster": jc.Diaster(units=2, hidden=(2,), **SMALL),
}


class Fitted:
    """An estimator with its programs, each compiled once, and its state after two batches."""

    def __init__(self, name):
        self.estimator = estimator = jc.as_arrays(METHODS[name])
        self.update = jax.jit(lambda state, episodes: estimator.update(KEY, state, episodes)[0])
        self.start = jax.jit(estimator.init)(KEY, batch())
        self.state = self.after(self.start, batch(0), batch(1))

        @jax.jit
        def written(state, episodes):
            rests = {rest: estimator.replace(residual=rest).assign(KEY, state, episodes) for rest in RESTS}
            return {rest: assigned.reward for rest, assigned in rests.items()}

        self.written, self.predicted = written, jax.jit(estimator.predicted_return)

    def after(self, state, *batches):
        for episodes in batches:
            state = self.update(state, episodes)
        return state


@pytest.fixture(scope="module", params=list(METHODS))
def fitted(request):
    return Fitted(request.param)


lengths = arrays(np.int32, 3, elements=st.integers(0, 6))
rewards = arrays(np.float32, (6, 3), elements=st.floats(-100, 100, width=32))


@given(length=lengths, reward=rewards, rest=st.sampled_from(["end", "spread"]))
def test_with_the_residual_rewards_sum_to_the_return(fitted, length, reward, rest):
    mask = np.arange(6)[:, None] < length
    episodes = poisoned(batch().replace(mask=jnp.asarray(mask), reward=jnp.asarray(reward)))
    got, own = np.asarray(fitted.written(fitted.state, episodes)[rest]), np.where(mask, reward, 0)
    size = np.maximum(np.abs(own).sum(axis=0), np.abs(got).sum(axis=0))
    assert (np.abs(got.sum(axis=0) - own.sum(axis=0)) <= 1e-4 * np.maximum(size, 1)).all()
    assert (got[~mask] == 0).all()


def test_the_residual_goes_to_the_last_step_or_to_all(fitted):
    none, end, spread = (np.asarray(fitted.written(fitted.state, batch(3))[rest]) for rest in RESTS)
    missing = np.asarray(batch(3).reward).sum(axis=0) - none.sum(axis=0)
    for column, length in enumerate((3, 4, 6)):
        np.testing.assert_allclose(end[: length - 1, column], none[: length - 1, column], atol=1e-6)
        share = spread[:length, column] - none[:length, column]
        np.testing.assert_allclose(share, missing[column] / length, atol=1e-5)


def test_padding_changes_nothing_in_fitting_nor_in_use(fitted):
    clean, spoilt = (fitted.after(fitted.state, episodes) for episodes in (batch(5), poisoned(batch(5))))
    jax.tree.map(np.testing.assert_array_equal, spoilt, clean)
    clean, spoilt = (fitted.written(fitted.state, episodes) for episodes in (batch(5), poisoned(batch(5))))
    jax.tree.map(np.testing.assert_array_equal, spoilt, clean)


def test_an_episode_is_rewarded_alike_with_and_without_padding(fitted):
    """Released code of RUDDER's descendants trains with padding and uses none."""
    apply, features = jax.jit(fitted.estimator.network.apply), fitted.estimator.features(batch(5))
    padded = apply(fitted.state.params, features, batch(5).mask)
    alone = apply(fitted.state.params, features[:3], batch(5).mask[:3])
    np.testing.assert_allclose(alone, padded[:3], atol=1e-5)


def test_rewards_look_only_at_the_past(fitted):
    changed = batch(3).replace(observation=batch(3).observation.at[4, 2].add(1.0))
    before, after = (fitted.predicted(fitted.state, episodes) for episodes in (batch(3), changed))
    np.testing.assert_array_equal(after[:4], before[:4])
    assert (after[4:, 2] != before[4:, 2]).all()


def test_rewards_have_the_unit_of_the_return(fitted):
    """Ten times the return, ten times the rewards: nothing in the fit knows of units."""
    large = (batch(seed).replace(reward=10 * batch(seed).reward) for seed in range(2))
    state = fitted.after(fitted.start, *large)
    ours, theirs = (fitted.written(s, batch(3))["none"] for s in (state, fitted.state))
    np.testing.assert_allclose(ours, 10 * theirs, rtol=1e-3, atol=1e-3)


def test_errors_of_two_episodes_do_not_cancel():
    """mean(err^2), not mean(err)^2: returns of +1 and -1 explained by nothing are a loss of 1, not of 0."""
    estimator = METHODS["SequenceModelling"]
    features, mask = jnp.zeros((2, 2, 1)), jnp.ones((2, 2), bool)
    shapes = jax.eval_shape(estimator.network.init, KEY, features, mask)
    params = jax.tree.map(lambda x: jnp.zeros(x.shape), shapes)
    loss = jax.jit(estimator.loss)(params, KEY, features, mask, jnp.array([1.0, -1.0]))
    np.testing.assert_allclose(loss, 1.0, rtol=1e-6)


def test_an_unknown_residual_is_refused():
    with pytest.raises(ValueError, match="none, end, spread"):
        jc.Diaster(residual="start")


# One decision, paid three steps later ------------------------------------------------------------------------------

DEPTH = 3


def gains(estimator):
    """Mean reward of each step with the key, less that without, on fresh episodes: median of 3 seeds, `[DEPTH + 1]`."""
    env, params = envs.make("CreditMaze", depth=DEPTH, breadth=0, visible=0.0)
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


def test_diaster_pays_the_decision_alone():
    gain = gains(jc.Diaster(units=8, hidden=(16,), learning_rate=1e-2, fits=30))
    np.testing.assert_allclose(gain, [1, 0, 0, 0], atol=0.1)


def test_sequence_modelling_pays_the_decision_most():
    """Its loss asks for the sum alone: later steps, which remember the decision, are paid for it, too."""
    gain = gains(jc.SequenceModelling(width=8, learning_rate=5e-3, fits=30, residual="none"))
    assert gain.argmax() == 0
    np.testing.assert_allclose(gain.sum(), 1, atol=0.1)


def test_arel_pays_all_steps_from_the_decision_on_alike():
    gain = gains(jc.AREL(width=8, readout=(8,), learning_rate=5e-3, fits=30))
    np.testing.assert_allclose(gain, 1 / (DEPTH + 1), atol=0.05)
