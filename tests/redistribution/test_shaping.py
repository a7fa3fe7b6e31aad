import jax.numpy as jnp
import numpy as np

import envs
import jaxcredit as jc
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
