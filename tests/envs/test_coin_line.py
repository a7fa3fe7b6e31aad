import numpy as np
import pytest

import envs
from jaxcredit.evaluation.oracle import optimal_values

LENGTH = 50


def visits(actions):
    """Visits of position 9 at t = 0 .. L-1, by the rules of the tutorial."""
    position, count = 7, 0
    for action in actions:
        count += position == 9
        position = min(max(position + (1 if action == 1 else -1), 0), 12)
    return count


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ([1, 1] + [0, 1] * 24, 24),  # on the coin at t = 2, 4, .., 48
        ([1] * LENGTH, 1),  # once across it, then into the wall at 12
        ([1] * 8 + [0] * (LENGTH - 8), 2),  # three steps into the wall change nothing, then back across it
        ([0] * LENGTH, 0),
        ([0, *[1, 1, 1], *[0] * 46], 1),  # 7 6 7 8 9 8 ..
        ([0, 1] * 24 + [1, 1], 0),  # 8 at t = 49; what the last action leads to is not counted
    ],
)
def test_visits_are_paid_in_the_last_step(rollout, actions, expected):
    env, params = envs.make("CoinLine")
    record = rollout(env, params, actions)
    assert not np.any(record["reward"][:, :-1])
    np.testing.assert_array_equal(record["reward"][:, -1], expected)
    assert expected == visits(actions)
    np.testing.assert_array_equal(record["terminated"][0], [False] * (LENGTH - 1) + [True])
    assert not np.any(record["truncated"])
    np.testing.assert_array_equal(record["info"]["decisive"][0], [True] * (LENGTH - 1) + [False])
    assert record["observation"][0, 0].argmax() == 7 and record["observation"][0, 0, 13] == 0


@pytest.mark.parametrize("length", [50, 11, 4, 3])
def test_optimum_is_every_other_step(length):
    env, params = envs.make("CoinLine", length=length, max_length=LENGTH, coin=0.5)
    mdp = env.mdp(params)
    assert mdp.initial @ optimal_values(mdp) == 0.5 * ((length - 1) // 2)
    assert env.horizon == LENGTH


@pytest.mark.parametrize("settings", [{"length": 2}, {"length": 51, "max_length": 50}])
def test_impossible_lengths_are_refused(settings):
    with pytest.raises(ValueError, match="length"):
        envs.make("CoinLine", **settings)
