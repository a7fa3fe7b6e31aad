import itertools

import numpy as np
import pytest

import envs
from jaxcredit.evaluation.oracle import optimal_values


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ([0, 1, 0, 1, 1], [0, 0, 0, 0, 1 + 20]),  # c d c d, and one more d in D
        ([1, 0, 1, 0, 1], [1, 0, 0, 0, 20]),
        ([1, 1, 1, 1, 1], [1, 1, 1, 1, 1]),
        ([0, 0, 0, 0, 1], [0, 0, 0, 0, 10]),  # the last step's own discharge is paid with the others
        ([0, 1, 1, 0, 0], [0, 0, 1, 0, 10]),
    ],
)
def test_episodes_worked_by_hand(rollout, actions, expected):
    env, params = envs.make("ChargeDischarge", length=5)
    record = rollout(env, params, actions)
    np.testing.assert_array_equal(record["reward"][0], expected)
    np.testing.assert_array_equal(record["terminated"][0], [False] * 4 + [True])
    assert not np.any(record["truncated"]) and np.all(record["info"]["decisive"])
    charged = [0, *(1 - a for a in actions[:-1])]
    np.testing.assert_array_equal(record["observation"][0, :, 0], charged)


def paid(actions):
    """The return of a sequence of actions, by the rules of the reference."""
    before = [1, *actions[:-1]]
    return sum((10 if b == 0 else 1) for b, a in zip(before, actions, strict=True) if a == 1)


@pytest.mark.parametrize("length", range(3, 14))
def test_optimum_is_the_best_of_all_sequences_and_the_closed_form(length):
    env, params = envs.make("ChargeDischarge", length=length, max_length=13)
    mdp = env.mdp(params)
    optimum = mdp.initial @ optimal_values(mdp)
    assert optimum == max(map(paid, itertools.product([0, 1], repeat=length))) == 10 * (length // 2) + length % 2
    assert env.horizon == 13


@pytest.mark.parametrize("settings", [{"length": 2}, {"length": 14, "max_length": 13}])
def test_impossible_lengths_are_refused(settings):
    with pytest.raises(ValueError, match="length"):
        envs.make("ChargeDischarge", **settings)
