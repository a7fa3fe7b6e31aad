import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.finite import MAX_TABLE_ENTRIES, draw
from jaxcredit.evaluation.oracle import policy_values

# Environment, and the open-loop actions that are compared with the table's policy of the same actions; one action over
# and over where the table does not hold the time.
CASES = {
    "AmbiguousBandit": ({"crossover_probability": 0.3, "deviation": 0.5}, [1, 0]),
    "CreditMaze": ({"depth": 4, "max_depth": 5, "breadth": 2, "density": 0.5}, [0, 1, 2, 1, 3, 0]),
    "DelayedEffect": ({"length": 2, "max_length": 3, "sigma": 0.5}, [0, 1, 1, 0, 0]),
    "DelayedKeyToDoor": ({"length": 5, "max_length": 6, "event_probability": 0.3}, [0, 1, 2, 1, 3, 0]),
    "KeyToDoor": (
        {"length": 7, "max_length": 8, "reward_noise": 0.5, "apple_probability": 0.2},
        [0, 2, 2, 1, 2, 3, 0, 0],
    ),
    "ChargeDischarge": ({"length": 5, "max_length": 6}, [1, 0, 1, 0, 1, 1]),
    "Choice": ({"length": 6, "max_length": 7, "first_probability": 0.7}, [0] * 7),
    "CoinLine": ({"length": 7, "max_length": 8}, [1, 1, 0, 1, 0, 1, 0, 0]),
    "FourRoomsDelayed": ({"length": 4, "max_length": 5}, [1, 1, 1, 1, 1]),
    "FourRooms": ({"dynamics": "option-critic", "goal": 20, "length": 6}, [1] * 6),
    "GridBomb": ({"distance": 4}, [1, 1, 1, 1, 0, 2]),
    "TraceBack": ({"length": 5, "max_length": 6}, [0, 3, 0, 0, 0, 0]),
    "ProbeDelay": ({}, [0, 0]),
    "ProbeObservationAction": ({}, [1]),
    "Shortcut": ({"size": 6, "random_start_probability": 0.5}, [1] * 5),
    "StochasticChain": ({"size": 4, "length": 8}, [1] * 8),
    "TaskInterleaving": ({"length": 12}, [1] * 12),
    "Taxi": ({"length": 6, "slip_probability": 0.4}, [4] * 6),
    "Tree": ({"overlap": 4, "branching": 5, "seed_offset": 2}, [3] * 4),
}


@pytest.mark.parametrize("name", CASES)
def test_environment_pays_what_its_own_table_says(name, rollout):
    settings, actions = CASES[name]
    env, params = envs.make(name, **settings)
    mdp = env.mdp(params)
    np.testing.assert_allclose(mdp.probability.sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(mdp.initial.sum(), 1, rtol=1e-6)
    time = jax.vmap(env.decode)(mdp.code).time
    policy = jax.nn.one_hot(jnp.array(actions)[jnp.minimum(time, len(actions) - 1)], mdp.num_actions)
    value = mdp.initial @ policy_values(mdp, policy)

    record = rollout(env, params, actions)
    done = np.asarray(record["terminated"] | record["truncated"])
    assert done.any(axis=1).all()
    first_episode = np.cumsum(done, axis=1) - done == 0
    returns = (np.asarray(record["reward"]) * first_episode).sum(1)
    assert abs(returns.mean() - value) < 4 * returns.std() / np.sqrt(len(returns)) + 1e-6


@pytest.mark.parametrize("name", CASES)
def test_states_and_indices_are_two_names_of_the_same(name):
    env, _ = envs.make(name, **CASES[name][0])
    index = jnp.arange(env.num_states)
    np.testing.assert_array_equal(jax.vmap(lambda i: env.encode(env.decode(i)))(index), index)


def test_table_follows_traced_params():
    env, params = envs.make("DelayedKeyToDoor", length=5)
    worst = jax.vmap(lambda cost: env.mdp(params.replace(event_cost=cost)).reward.min())(jnp.array([1.0, 3.0]))
    np.testing.assert_allclose(worst, [-3.0, -9.0])


def test_too_large_a_table_is_refused():
    env, params = envs.make("DelayedKeyToDoor", length=600)
    with pytest.raises(ValueError, match=f"{MAX_TABLE_ENTRIES:,}"):
        env.mdp(params)


def test_draw_follows_the_distribution():
    probability = jnp.array([0.2, 0.0, 0.5, 0.3])
    drawn = jax.vmap(lambda key: draw(key, jnp.arange(4), probability))(jax.random.split(jax.random.key(0), 4096))
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 4096, probability, atol=0.03)


def test_equal_settings_are_equal_environments():
    assert envs.KeyToDoor(max_length=9) == envs.KeyToDoor(max_length=9)
    assert hash(envs.KeyToDoor(max_length=9)) == hash(envs.KeyToDoor(max_length=9))
    assert envs.KeyToDoor(max_length=9) != envs.KeyToDoor(max_length=8)
    assert envs.KeyToDoor(max_length=9) != envs.DelayedKeyToDoor(max_length=9)
    with pytest.raises(dataclasses.FrozenInstanceError):
        envs.KeyToDoor().max_length = 3
