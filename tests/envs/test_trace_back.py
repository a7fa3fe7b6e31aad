import numpy as np
import pytest

import envs
from jaxcredit.evaluation.oracle import action_values, optimal_values

LENGTH = 6


@pytest.mark.parametrize(
    ("actions", "second", "last"),
    [([0, 3], -50.0, 150.0), ([3, 0], 50.0, 0.0), ([0, 0], 50.0, 0.0), ([1, 3], 50.0, 0.0), ([2, 2], 50.0, 0.0)],
)
def test_only_up_and_then_right_is_paid_at_the_end(rollout, actions, second, last):
    env, params = envs.make("TraceBack", length=LENGTH)
    record = rollout(env, params, [*actions, 0, 3, 0, 3])
    expected = np.zeros(LENGTH)
    expected[1], expected[-1] = second, last
    np.testing.assert_array_equal(record["reward"], np.broadcast_to(expected, record["reward"].shape))
    np.testing.assert_array_equal(record["terminated"][0], [False] * (LENGTH - 1) + [True])
    assert not np.any(record["truncated"])
    assert np.flatnonzero(record["info"]["decisive"][0]).tolist() == [0, 1]


def test_two_moves_are_free_and_the_others_random(rollout):
    env, params = envs.make("TraceBack", length=LENGTH)
    place = np.asarray(rollout(env, params, [0, 3, 3, 3, 3, 3])["observation"])[..., :2] * 14
    np.testing.assert_allclose(place[:, :3], np.broadcast_to([[7, 7], [6, 7], [6, 8]], (len(place), 3, 2)), rtol=1e-5)
    step = (place[:, 3] - place[:, 2]).round().astype(int)
    moves, count = np.unique(step, axis=0, return_counts=True)
    assert moves.tolist() == [[-1, 0], [0, -1], [0, 1], [1, 0]]
    assert count.min() > 200  # of a thousand, 250 expected with a deviation of 14


def test_optimum_is_a_hundred_and_only_the_first_two_actions_have_any_effect():
    env, params = envs.make("TraceBack")
    mdp = env.mdp(params)
    assert env.horizon == 20
    value = optimal_values(mdp)
    np.testing.assert_allclose(mdp.initial @ value, 100)
    q = np.asarray(action_values(mdp, value))
    np.testing.assert_allclose(q[np.argmax(mdp.initial)], [100, 50, 50, 50], rtol=1e-6)
    assert np.ptp(q, axis=1)[~np.asarray(mdp.decisive)].max() == 0


@pytest.mark.parametrize("settings", [{"length": 2}, {"length": 9, "max_length": 8}])
def test_impossible_lengths_are_refused(settings):
    with pytest.raises(ValueError, match="length"):
        envs.make("TraceBack", **settings)
