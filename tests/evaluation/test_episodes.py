import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from jaxcredit.evaluation.episodes import tabular_episodes
from jaxcredit.evaluation.oracle import policy_values, visits

EPISODES = 2048


@pytest.fixture(scope="module")
def played():
    env, params = envs.make("CreditMaze", depth=3, max_depth=5, breadth=2, density=0.5, noise=1.0)
    mdp = env.mdp(params)
    policy = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(4), size=mdp.num_states), jnp.float32)
    play = jax.jit(lambda key: tabular_episodes(env, params, mdp, policy, key, EPISODES))
    return mdp, policy, play(jax.random.key(0))


def test_oracle_agrees_with_monte_carlo(played):
    mdp, policy, episodes = played
    returns = np.asarray(episodes.reward.sum(axis=0))
    value = float(mdp.initial @ policy_values(mdp, policy))
    assert abs(returns.mean() - value) < 4 * returns.std() / np.sqrt(EPISODES)
    counts = np.bincount(np.asarray(episodes.extras["state"])[np.asarray(episodes.mask)], minlength=mdp.num_states)
    np.testing.assert_allclose(counts / EPISODES, visits(mdp, policy), atol=0.05)


def test_episodes_are_whole_and_padded(played):
    mdp, _, episodes = played
    assert episodes.reward.shape == (mdp.horizon, EPISODES) == (6, EPISODES)
    np.testing.assert_array_equal(episodes.mask[:, 0], np.arange(6) < 4)
    np.testing.assert_array_equal(episodes.terminated[:4, 0], np.arange(4) == 3)
    np.testing.assert_array_equal(episodes.first[:, 0], np.arange(6) == 0)
    np.testing.assert_array_equal(np.where(episodes.mask, 0, episodes.reward), 0)
    np.testing.assert_array_equal(episodes.extras["decisive"][:, 0], np.arange(6) == 0)


def test_states_observations_and_probabilities_belong_together(played):
    mdp, policy, episodes = played
    state, following = episodes.extras["state"], episodes.extras["next_state"]
    np.testing.assert_array_equal(episodes.observation, mdp.observation[state])
    inside = np.asarray(episodes.mask & ~episodes.terminated)[:-1]
    np.testing.assert_array_equal(np.asarray(following)[:-1][inside], np.asarray(state)[1:][inside])
    expected = np.log(policy[state, episodes.action])
    np.testing.assert_allclose(episodes.log_prob, expected, rtol=1e-5)
    taken = np.bincount(np.asarray(episodes.action)[0], minlength=4) / EPISODES
    np.testing.assert_allclose(taken, policy[int(jnp.argmax(mdp.initial))], atol=0.05)
