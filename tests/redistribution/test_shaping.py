import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import envs
import jaxcredit as jc
from contract_table import batch, poisoned
from jaxcredit.evaluation.oracle import action_values, optimal_values

GAMMA = 0.9
POTENTIAL = jnp.array([2.0, -1.0, 0.5, 4.0])


def discounted_sum(x):
    return float((GAMMA ** np.arange(len(x)) * np.asarray(x)).sum())


def test_shaping_cancels_along_an_episode_up_to_its_start():
    following = jnp.concatenate([POTENTIAL[1:], jnp.array([jnp.nan])])
    added = jc.shaping_reward(POTENTIAL, following, jnp.arange(4) == 3, gamma=GAMMA)
    np.testing.assert_allclose(discounted_sum(added), -2.0, rtol=1e-6)


def test_a_time_limit_keeps_the_potential_of_what_followed():
    following = jnp.concatenate([POTENTIAL[1:], jnp.array([7.0])])
    added = jc.shaping_reward(POTENTIAL, following, jnp.zeros(4, bool), gamma=GAMMA)
    np.testing.assert_allclose(discounted_sum(added), GAMMA**4 * 7.0 - 2.0, rtol=1e-6)


def test_look_back_cancels_along_each_episode_up_to_its_end():
    added = jc.look_back_reward(POTENTIAL, jnp.array([True, False, True, False]), gamma=GAMMA)
    np.testing.assert_allclose(added, [2.0, -1.0 - 2.0 / GAMMA, 0.5, 4.0 - 0.5 / GAMMA], rtol=1e-6)
    np.testing.assert_allclose(discounted_sum(added[:2]), GAMMA * -1.0, rtol=1e-6)


def test_shaping_changes_no_optimal_policy():
    """On Taxi-like and maze-like tables: the shaped optimum is V - Phi, so every advantage stays."""
    for name, settings in (("CreditMaze", {"depth": 5, "breadth": 3}), ("KeyToDoor", {"length": 6})):
        env, params = envs.make(name, **settings)
        mdp = env.mdp(params)
        potential = jnp.asarray(np.random.default_rng(0).normal(size=mdp.num_states), jnp.float32)
        flat = mdp.successor.reshape(-1)
        here = jnp.broadcast_to(potential[:, None, None], mdp.successor.shape).reshape(-1)
        added = jc.shaping_reward(here, potential[flat], mdp.terminal.reshape(-1), gamma=GAMMA)
        shaped = mdp.replace(reward=mdp.reward + added.reshape(mdp.reward.shape))
        before, after = optimal_values(mdp, GAMMA), optimal_values(shaped, GAMMA)
        reached = np.asarray(jc.enumerate_mdp(env, params).code)
        np.testing.assert_allclose(after[reached], (before - potential)[reached], atol=1e-5)
        a, b = (action_values(m, v, GAMMA) - v[:, None] for m, v in ((mdp, before), (shaped, after)))
        np.testing.assert_allclose(np.asarray(b)[reached], np.asarray(a)[reached], atol=1e-5)


# The estimator -----------------------------------------------------------------------------------------------------

STEPS, ACTIONS, OUTCOMES = 3, 2, 2
KEY = jax.random.key(0)


@struct.dataclass
class Told(jc.CreditEstimator):
    """Predicts whatever the trajectory says."""

    needs_episodes = property(lambda self: True)

    def predicted_return(self, state, trajectory):
        return trajectory.extras["prediction"]


def every_episode(seed):
    """A random process of three steps, two actions and two outcomes: a column for every course, `[3, 64]`.

    Rewards, ends and the prediction after each step are random functions of the history; the prediction does not know
    the outcome of its own step.
    """
    rng = np.random.default_rng(seed)
    branch = ACTIONS * OUTCOMES
    courses = np.stack(np.unravel_index(np.arange(branch**STEPS), (branch,) * STEPS))
    reward, prediction, end = np.zeros((3, *courses.shape))
    for t in range(STEPS):
        history = tuple(courses[: t + 1])
        reward[t] = rng.normal(size=(branch,) * (t + 1))[history]
        prediction[t] = 5 * rng.normal(size=(branch,) * t + (ACTIONS,))[(*history[:-1], history[-1] // OUTCOMES)]
        end[t] = (rng.uniform(size=(branch,) * (t + 1)) < 0.3)[history] | (t == STEPS - 1)
    ended = np.cumsum(end, axis=0)
    mask = jnp.asarray(ended - end == 0)
    zeros = jnp.zeros(mask.shape, bool)
    return jc.Trajectory(
        observation=jnp.zeros((*mask.shape, 1)),
        action=jnp.asarray(courses // OUTCOMES, jnp.int32),
        reward=jnp.where(mask, jnp.asarray(reward, jnp.float32), 0),
        terminated=mask & jnp.asarray(end > 0),
        truncated=zeros,
        first=zeros.at[0].set(True),
        mask=mask,
        extras={"prediction": jnp.where(mask, jnp.asarray(prediction, jnp.float32), jnp.nan)},
    )


def advantages(reward, gamma, policy):
    """Exact advantage of every action after every history, by dynamic programming on the tree of courses."""
    chance = np.array([0.3, 0.7])
    value, found = np.zeros((ACTIONS, OUTCOMES) * STEPS), []
    for t in reversed(range(STEPS)):
        later = (slice(None),) * (2 * t + 2) + (0,) * (2 * (STEPS - t - 1))
        payment = np.asarray(reward[t]).reshape((ACTIONS, OUTCOMES) * STEPS)[later]
        q = ((payment + gamma * value) * chance).sum(axis=-1)
        value = q.max(axis=-1) if policy is None else q @ policy
        found.append(q - value[..., None])
    return found


@pytest.mark.parametrize("policy", [None, np.array([0.2, 0.8])], ids=["optimal", "given"])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_a_random_prediction_changes_no_advantage_of_any_history(gamma, policy):
    for seed in range(3):
        episodes = every_episode(seed)
        shaped = jc.Shaping(Told(), gamma=gamma).assign(KEY, (), episodes)
        assert (jnp.abs(shaped.reward - episodes.reward)[0] > 0.1).any()
        for before, after in zip(*(advantages(e.reward, gamma, policy) for e in (episodes, shaped)), strict=True):
            np.testing.assert_allclose(after, before, atol=1e-5)


def test_a_prediction_that_knows_the_end_would_mislead():
    """What `Shaping` guards against: with its own return as potential, an episode's last action is worth nothing."""
    episodes = every_episode(0)
    known = jnp.broadcast_to(episodes.reward.sum(axis=0), episodes.mask.shape)
    shaped = jc.Shaping(Told()).assign(KEY, (), episodes.replace(extras={"prediction": known}))
    before, after = (advantages(e.reward, 1.0, None)[0] for e in (episodes, shaped))
    assert np.abs(after - before).max() > 0.1


@pytest.fixture(scope="module")
def predictors():
    """Estimators fitted on two batches, with their states."""
    small = {"fits": 2, "fit_batch": 4, "capacity": 8}
    fitted = {}
    for predictor in (jc.RUDDER(hidden=2, min_quality=-2.0, residual="end", **small), jc.RewardDecomposition(**small)):
        credit = jc.as_arrays(predictor)
        state, update = jax.jit(credit.init)(KEY, batch()), jax.jit(credit.update)
        for seed in range(2):
            state, _ = update(KEY, state, batch(seed))
        fitted[type(predictor).__name__] = credit, state
    return fitted


@pytest.mark.parametrize("name", ["RUDDER", "RewardDecomposition"])
def test_returns_stay_and_time_limits_keep_the_potential(predictors, name):
    """Column 0 terminates at step 2, column 1 is cut at step 3, column 2 at the window's end."""
    credit, state = predictors[name]
    episodes = poisoned(batch(3))
    added = jc.Shaping(credit).assign(KEY, state, episodes).reward - batch(3).reward
    predicted = credit.predicted_return(state, batch(3))
    np.testing.assert_allclose(added.sum(axis=0), [0, predicted[3, 1], predicted[5, 2]], atol=1e-5)
    np.testing.assert_allclose(added[0], predicted[0], atol=1e-5)
    assert (added[~batch(3).mask] == 0).all()


def test_with_all_reward_at_the_end_it_is_rudder(predictors):
    credit, state = predictors["RUDDER"]
    end = batch(3).terminated | batch(3).truncated
    at_end = batch(3).replace(reward=jnp.where(end, 2.0, 0.0), terminated=end, truncated=jnp.zeros_like(end))
    shaped, replaced = (estimator.assign(KEY, state, at_end).reward for estimator in (jc.Shaping(credit), credit))
    np.testing.assert_allclose(shaped, replaced, atol=1e-5)


def test_an_episode_is_shaped_before_it_is_fitted(predictors):
    credit, state = predictors["RUDDER"]
    shaping = jc.Shaping(credit)
    new_state, shaped, metrics = jax.jit(shaping.update_and_assign)(KEY, state, batch(4))
    np.testing.assert_allclose(shaped.reward, shaping.assign(KEY, state, batch(4)).reward, atol=1e-6)
    assert jnp.abs(shaped.reward - shaping.assign(KEY, new_state, batch(4)).reward).max() > 1e-4
    assert {"loss", "quality"} <= metrics.keys()


def test_an_estimator_that_predicts_no_return_is_refused():
    with pytest.raises(ValueError, match="no potential"):
        jax.eval_shape(lambda t: jc.Shaping(jc.IRCR()).assign(KEY, jc.IRCR().init(KEY, t), t), batch())
