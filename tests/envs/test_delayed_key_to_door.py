import numpy as np
import pytest

import envs
from jaxcredit.evaluation.oracle import optimal_values

LENGTH = 6
WINNING, NO_KEY, NO_DOOR = [0, 1, 1, 1, 1, 3], [1, 0, 0, 0, 0, 3], [0, 1, 1, 1, 1, 2]


@pytest.mark.parametrize(
    ("actions", "event_probability", "expected"),
    [(WINNING, 0.0, 1.0), (WINNING, 1.0, 1.0 - 2.0 * (LENGTH - 2)), (NO_KEY, 0.0, 0.0), (NO_DOOR, 1.0, -8.0)],
)
def test_everything_is_paid_in_the_last_step(rollout, actions, event_probability, expected):
    env, params = envs.make("DelayedKeyToDoor", length=LENGTH, event_probability=event_probability)
    record = rollout(env, params, actions)
    for values, last in (
        (record["reward"], expected),
        (record["terminated"], True),
        (record["info"]["treasure"], float(actions is WINNING)),
    ):
        assert not np.any(values[:, :-1])
        np.testing.assert_allclose(values[:, -1], last, atol=1e-6)
    assert not np.any(record["truncated"])
    assert np.flatnonzero(record["info"]["decisive"][0]).tolist() == [0, LENGTH - 1]


def test_observation_shows_the_events_that_are_paid_for(rollout):
    env, params = envs.make("DelayedKeyToDoor", length=LENGTH, event_probability=0.5)
    record = rollout(env, params, NO_KEY)
    observation = np.asarray(record["observation"])
    cell = np.zeros((LENGTH, 3))
    cell[0, 0] = cell[1:-1, 1] = cell[-1, 2] = 1
    np.testing.assert_array_equal(observation[..., :3], np.broadcast_to(cell, (len(observation), LENGTH, 3)))
    np.testing.assert_allclose(observation[0, :, 3], np.arange(LENGTH) / LENGTH, rtol=1e-6)
    event = observation[..., 4]
    assert not event[:, [0, -1]].any()
    assert 0.4 < event[:, 1:-1].mean() < 0.6
    np.testing.assert_allclose(record["reward"][:, -1], -2 * event.sum(1))


def test_the_key_is_never_shown(rollout):
    env, params = envs.make("DelayedKeyToDoor", length=LENGTH)
    with_key, without = (rollout(env, params, a)["observation"] for a in (WINNING, NO_KEY))
    np.testing.assert_array_equal(with_key, without)


@pytest.mark.parametrize("length", [40, 20])
def test_optimum_is_the_treasure_less_the_expected_costs(length):
    env, params = envs.make("DelayedKeyToDoor", length=length, max_length=40)
    mdp = env.mdp(params)
    assert env.horizon == mdp.horizon == 40
    np.testing.assert_allclose(mdp.initial @ optimal_values(mdp), 1.0 - 2.0 * 0.1 * (length - 2), rtol=1e-5)


@pytest.mark.parametrize("settings", [{"length": 2}, {"length": 41, "max_length": 40}, {"max_length": 2}])
def test_impossible_lengths_are_refused(settings):
    with pytest.raises(ValueError, match="length"):
        envs.make("DelayedKeyToDoor", **settings)
