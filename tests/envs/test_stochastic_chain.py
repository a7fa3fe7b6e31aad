import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from jaxcredit.evaluation.oracle import optimal_values, stationary_values, visits

LEFT, RIGHT = range(2)
# Return of a policy by its probability of "right", with 6 states and no time limit: 0.95 is always right with a tenth
# of the actions random (computed exactly for the facts of the task).
KNOWN = {1.0: 0.208, 0.95: 0.170, 0.5: 0.018, 0.0: 0.01}


def policy(mdp, right):
    return jnp.broadcast_to(jnp.array([1 - right, right]), (mdp.num_states, 2))


def test_known_returns():
    env, params = envs.make("StochasticChain")
    mdp = env.mdp(params)
    right = jnp.array(list(KNOWN))
    values = jax.vmap(lambda right: mdp.initial @ stationary_values(mdp, policy(mdp, right)))(right)
    np.testing.assert_allclose(values, list(KNOWN.values()), atol=6e-4)
    # The gambler's ruin: from state 2 the sixth is reached before the first with (r - 1) / (r^5 - 1),  r = q / p.
    for p, value in zip(np.array(list(KNOWN)) / 2, values, strict=True):
        reached = 1 / 5 if p == 1 / 2 else 0 if p == 0 else ((1 - p) / p - 1) / (((1 - p) / p) ** 5 - 1)
        np.testing.assert_allclose(value, 0.01 + 0.99 * reached, rtol=1e-4)


def test_always_right_is_optimal_and_its_visits_are_known():
    env, params = envs.make("StochasticChain", max_length=1000)
    mdp = env.mdp(params)
    np.testing.assert_allclose(mdp.initial @ optimal_values(mdp), 0.208, rtol=1e-4)
    visited = np.asarray(visits(mdp, policy(mdp, 1.0))).reshape(6, 2)
    np.testing.assert_allclose(visited.sum(1), [0, 2, 2, 2, 2, 1], atol=1e-3)
    steps = stationary_values(mdp.replace(reward=jnp.ones_like(mdp.reward)), policy(mdp, 1.0))
    np.testing.assert_allclose(mdp.initial @ steps, 9, rtol=1e-4)
    never = envs.make("StochasticChain", near_reward=0.0)[1]
    np.testing.assert_allclose(mdp.initial @ stationary_values(env.mdp(never), policy(mdp, 1.0)), 0.2, rtol=1e-4)


@pytest.mark.parametrize("size", [3, 9])
def test_the_visit_is_rarer_in_longer_chains(size):
    env, params = envs.make("StochasticChain", size=size, near_reward=0.0)
    mdp = env.mdp(params)
    value = mdp.initial @ stationary_values(mdp, policy(mdp, 1.0))
    np.testing.assert_allclose(value, 1 / (size - 1), rtol=1e-4)


@pytest.mark.parametrize("visible", [0.0, 1.0])
def test_there_and_back(rollout, visible):
    env, params = envs.make("StochasticChain", right_probability=1.0, visible=visible)
    # right to the last state, where right means left; back, and out again
    record = rollout(env, params, [RIGHT] * 6 + [LEFT] * 4)
    observation = np.asarray(record["observation"])[0]
    assert observation[:, :6].argmax(1).tolist() == [1, 2, 3, 4, 5, 4, 5, 4, 3, 2]
    np.testing.assert_array_equal(observation[:, 6], [0] * 4 + [visible] * 6)
    assert np.flatnonzero(record["info"]["decisive"][0]).tolist() == [0, 1, 2, 3]
    assert not np.any(record["reward"]) and not np.any(record["terminated"] | record["truncated"])
    record = rollout(env, params, [RIGHT] * 4 + [LEFT] * 6)
    np.testing.assert_array_equal(record["reward"][0], np.float32([0] * 8 + [1, 0.01]))
    np.testing.assert_array_equal(record["terminated"][0], [False] * 8 + [True, True])
    assert not np.any(record["truncated"])


def test_the_time_limit_truncates_without_paying(rollout):
    env, params = envs.make("StochasticChain", length=3, max_length=5, right_probability=1.0)
    record = rollout(env, params, [RIGHT] * 6)
    np.testing.assert_array_equal(record["truncated"][0], [False, False, True] * 2)
    assert not np.any(record["terminated"]) and not np.any(record["reward"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 2}, "size=2.*at least 3"),
        ({"size": 6.0}, "size=6.0"),
        ({"right_probability": 1.1}, "right_probability"),
        ({"length": 0}, "length=0"),
    ],
)
def test_bad_input_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make("StochasticChain", **settings)
