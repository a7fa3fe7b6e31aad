import numpy as np

import envs

LENGTH = 50


def test_action_values_are_those_of_the_published_task():
    env, params = envs.make("WatchRepair")
    values = env.action_values(params)
    np.testing.assert_allclose(values[:, 0], [-1.5, 3.5, 3.5, -1.5], atol=1e-5)
    np.testing.assert_array_equal(values[:, 1], 0)
    np.testing.assert_array_equal(values.argmax(1), [1, 0, 0, 1])
    np.testing.assert_allclose(values.max(1).mean(), 1.75, atol=1e-5)
    assert env.horizon == LENGTH


def test_repairing_pays_its_action_value_on_average(rollout):
    env, params = envs.make("WatchRepair")
    record = rollout(env, params, np.zeros(LENGTH, np.int32))
    reward = np.asarray(record["reward"])
    assert not reward[:, 1:-1].any()
    np.testing.assert_array_equal(record["terminated"][0], [False] * (LENGTH - 1) + [True])
    assert np.flatnonzero(record["info"]["decisive"][0]).tolist() == [0]
    brand = np.asarray(record["observation"])[:, 0, 3:7].argmax(-1)
    for b, expected in enumerate(env.action_values(params)[:, 0]):
        returns = reward[brand == b].sum(1)
        # Spread of the return of a repaired watch: 11.1, of which the flat tyres make 7 sqrt(50 * .05 * .95) = 10.8.
        assert 10 < returns.std() < 12.5
        assert abs(returns.mean() - expected) < 4 * returns.std() / np.sqrt(len(returns))


def test_repairing_later_does_nothing(rollout):
    env, params = envs.make("WatchRepair")
    record = rollout(env, params, (np.arange(LENGTH) == 0).astype(np.int32))
    assert not np.any(record["reward"])
