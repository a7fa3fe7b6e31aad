import itertools

import numpy as np
import pytest

import envs
from jaxcredit.core.mdp import enumerate_mdp

# Exact variance of the policy gradient at the uniform policy, in dB, mean over the five seed offsets: of REINFORCE and
# of COCOA with the reward split into 1, 4 and 128 outcomes (computed for the task of arXiv:2306.16803).
VARIANCE = {
    0: (16.03, 11.98, 12.82, 15.54),
    2: (15.92, 11.80, 12.64, 15.22),
    4: (15.85, 11.75, 12.59, 14.82),
    6: (15.14, 11.02, 11.87, 13.54),
}


@pytest.mark.parametrize(("overlap", "states"), list(enumerate([259, 194, 139, 94, 59, 34, 19])))
def test_number_of_states_is_that_of_the_reference(overlap, states):
    env, params = envs.make("Tree", overlap=overlap)
    assert env.num_states == states
    assert enumerate_mdp(env, params).num_states == states  # all of them can be reached


def test_places_and_rewards_worked_out_by_hand(rollout):
    """Overlap 2: nodes 0, 1 + 4, 7 + 19, 33 + 78, on levels of 1, 6, 26 and 106."""
    env, params = envs.make("Tree", overlap=2, seed_offset=1)
    assert env.nodes == (1, 6, 26, 106, 426)
    record = rollout(env, params, [0, 5, 4, 1])
    assert record["observation"][0].argmax(-1).tolist() == [0, 5, 26, 111]
    assert record["observation"][0].sum(-1).tolist() == [1, 1, 1, 1]
    assert record["reward"][0].tolist() == [-1, -1, 2, -2]
    assert record["terminated"][0].tolist() == [False, False, False, True]
    assert not np.any(record["truncated"]) and np.all(record["info"]["decisive"])
    assert not np.any(record["info"]["final_observation"][0, -1])


@pytest.mark.parametrize("overlap", VARIANCE)
def test_variance_of_the_gradient_is_that_of_the_reference(overlap):
    env, params = envs.make("Tree", overlap=overlap)
    found = [variances(env, params.replace(seed_offset=np.int32(offset))) for offset in range(5)]
    np.testing.assert_allclose(np.mean(found, axis=0), VARIANCE[overlap], atol=0.006)


def variances(env, params):
    """Enumerate all 1296 trajectories."""
    mdp = env.mdp(params)
    follows, reward = np.asarray(mdp.successor)[..., 0], np.asarray(mdp.reward)[..., 0]
    actions = np.array(list(itertools.product(range(6), repeat=4)))
    states = np.zeros_like(actions)
    for t in range(3):
        states[:, t + 1] = follows[states[:, t], actions[:, t]]
    rewards = reward[states, actions]
    returns = np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1]
    taken = np.eye(6)[actions]
    advantages = [taken * returns[..., None] * 6]
    for groups in (1, 4, 128):
        code = np.asarray(env.grouping(params, groups))
        weight = contribution(follows, np.asarray(mdp.terminal)[:, 0, 0], code)
        advantage = taken * rewards[..., None] * 6
        for t, k in itertools.combinations(range(4), 2):
            outcome = code[states[:, k], actions[:, k]]
            advantage[:, t] += weight[states[:, t], :, outcome] * rewards[:, k, None]
        advantages.append(advantage)
    return [decibel(states, advantage - advantage.mean(-1, keepdims=True)) for advantage in advantages]


def contribution(follows, last, code):
    """w(s, a, u): how much likelier outcome u is to follow, after s, if a is chosen."""
    outcomes = np.eye(code.max() + 1)
    following = np.zeros((*code.shape, len(outcomes)))
    total = np.zeros((len(code), len(outcomes)))
    for s in reversed(range(len(code))):
        if not last[s]:
            following[s] = total[follows[s]]
        total[s] = (outcomes[code[s]] + following[s]).mean(0)
    mean = following.mean(1, keepdims=True)
    return np.where(mean > 0, following / np.where(mean > 0, mean, 1), 1) - 1


def decibel(states, gradient):
    table = np.zeros((len(states), states.max() + 1, 6))
    table[np.arange(len(states))[:, None], states] = gradient
    mean = table.mean(0)
    return 10 * np.log10(((table - mean) ** 2).sum((1, 2)).mean() / (mean**2).sum())


def test_groupings_split_the_rewards():
    env, params = envs.make("Tree", overlap=3, seed_offset=4)
    reward = env.mdp(params).reward[..., 0]
    np.testing.assert_array_equal(env.grouping(params), reward + 2)
    for groups in (2, 32):
        code = np.asarray(env.grouping(params, groups))
        np.testing.assert_array_equal(code % 5, reward + 2)
        assert code.dtype == np.int32 and 5 * groups > code.max() >= 5
    assert env.grouping(params, 32)[7, 1] == (7 + 9973 + 4) % 160


@pytest.mark.parametrize(
    "settings", [{"overlap": 7}, {"overlap": -1}, {"overlap": 1.5}, {"branching": 1}, {"depth": 0}, {"depth": "deep"}]
)
def test_impossible_trees_are_refused(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=f"{name}={settings[name]!r}.*overlap from 0 to branching"):
        envs.make("Tree", **settings)


def test_a_grouping_has_at_least_one_group():
    env, params = envs.make("Tree")
    with pytest.raises(ValueError, match="groups=0"):
        env.grouping(params, 0)
