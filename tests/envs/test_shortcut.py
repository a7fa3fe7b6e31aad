import jax.numpy as jnp
import numpy as np
import pytest

import envs
from jaxcredit.evaluation.oracle import optimal_values, policy_values


def values_of(size, random_start_probability):
    """Return from the start under the uniform policy, under "always the long path", and at best."""
    env, params = envs.make("Shortcut", size=size, random_start_probability=random_start_probability)
    mdp = env.mdp(params)
    rows = jnp.ones((mdp.num_states, 1))
    policies = [policy_values(mdp, rows * jnp.array(policy)) for policy in ([0.5, 0.5], [0.0, 1.0])]
    return [float(mdp.initial @ value) for value in (*policies, optimal_values(mdp))]


def test_values_are_those_of_the_published_task():
    np.testing.assert_allclose(values_of(5, 0.0), [-0.7436, -2.439, 0], atol=6e-5)
    np.testing.assert_allclose(values_of(5, 1.0)[::2], [-0.4615, 0], atol=6e-5)


def test_values_of_the_smallest_paths():
    """Three states: -1 for going on with chance .9, which the uniform policy tries half of the time; two: nothing."""
    np.testing.assert_allclose(values_of(3, 0.0), [-0.45, -0.9, 0], rtol=1e-6)
    np.testing.assert_allclose(values_of(2, 0.0), [0, 0, 0])


@pytest.mark.parametrize(
    ("actions", "long_probability", "rewards"),
    [
        ([1, 1, 1, 1], 1.0, [-1, -1, -1, 0]),
        ([1, 1, 1, 1], 0.0, [0]),
        ([1, 1, 0, 1], 1.0, [-1, -1, 0]),
        ([0, 1, 1, 1], 1.0, [0]),
    ],
)
def test_episodes(rollout, actions, long_probability, rewards):
    env, params = envs.make("Shortcut", long_probability=long_probability)
    record = rollout(env, params, actions)
    steps = len(rewards)
    np.testing.assert_array_equal(record["reward"][0, :steps], rewards)
    assert record["terminated"][0, :steps].tolist() == [False] * (steps - 1) + [True]
    assert not np.any(record["truncated"])
    np.testing.assert_array_equal(record["observation"][0, :steps], np.eye(4)[:steps])
    assert not np.any(record["info"]["final_observation"][0, steps - 1])
    assert record["info"]["decisive"][0, :steps].tolist() == [True, True, True, False][:steps]


def test_start_is_the_beginning_or_anywhere(rollout):
    for chance, expected in ((0.0, [1, 0, 0, 0]), (1.0, [0.25] * 4), (0.4, [0.7, 0.1, 0.1, 0.1])):
        env, params = envs.make("Shortcut", random_start_probability=chance)
        first = np.asarray(rollout(env, params, [0, 0, 0, 0])["observation"])[:, 0]
        np.testing.assert_allclose(first.mean(0), expected, atol=0.06)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 1}, "size=1 is not allowed.*at least 2"),
        ({"size": 4.0}, "size=4.0"),
        ({"random_start_probability": 1.5}, "random_start_probability=1.5"),
        ({"long_probability": -0.1}, "long_probability=-0.1"),
    ],
)
def test_bad_input_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make("Shortcut", **settings)
