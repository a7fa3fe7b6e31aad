import numpy as np
import pytest

import envs
from jaxcredit.evaluation.oracle import action_values, optimal_values

LENGTH = 12


@pytest.mark.parametrize(("action", "probability"), [(0, 0.6), (1, 0.4)])
def test_leaf_pays_all_shares_of_the_chosen_subtree(rollout, action, probability):
    env, params = envs.make("Choice", length=LENGTH, share=2.0)
    # Later actions choose the other subtree, in vain.
    record = rollout(env, params, [action, *[1 - action] * (LENGTH - 1)])
    reward, observation = np.asarray(record["reward"]), np.asarray(record["observation"])
    assert not reward[:, :-1].any()
    np.testing.assert_array_equal(record["terminated"][0], [False] * (LENGTH - 1) + [True])
    assert not np.any(record["truncated"])
    assert np.flatnonzero(record["info"]["decisive"][0]).tolist() == [0]
    np.testing.assert_array_equal(observation[0, 0], [1, 0, 0, 0, 0])
    np.testing.assert_array_equal(observation[0, 1:, 1 + action], 1)
    # All nodes but the leaf are seen before the last action; the leaf may carry one more share.
    leaf = reward[:, -1] - 2 * observation[:, 1:, 3].sum(1)
    assert set(leaf.tolist()) == {0.0, 2.0}
    deviation = 2 * np.sqrt(LENGTH * probability * (1 - probability))
    assert abs(reward.sum(1).mean() - 2 * LENGTH * probability) < 4 * deviation / np.sqrt(len(reward))
    assert abs(reward.sum(1).std() / deviation - 1) < 0.1


@pytest.mark.parametrize(("length", "first", "second"), [(50, 0.6, 0.4), (7, 0.2, 0.7)])
def test_optimum_is_the_mean_of_the_better_subtree(length, first, second):
    env, params = envs.make(
        "Choice", length=length, max_length=50, first_probability=first, second_probability=second, share=0.5
    )
    mdp = env.mdp(params)
    value = optimal_values(mdp)
    np.testing.assert_allclose(mdp.initial @ value, 0.5 * length * max(first, second), rtol=1e-5)
    root = np.argmax(mdp.initial)
    expected = [0.5 * length * first, 0.5 * length * second]
    np.testing.assert_allclose(action_values(mdp, value)[root], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"length": 1}, "length"), ({"length": 9, "max_length": 8}, "length"), ({"first_probability": -0.1}, "first_pro")],
)
def test_bad_input_is_refused(settings, named):
    with pytest.raises(ValueError, match=named):
        envs.make("Choice", **settings)
