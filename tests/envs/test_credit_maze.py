import jax.numpy as jnp
import numpy as np
import pytest

import envs
from jaxcredit.evaluation.oracle import action_values, optimal_values, policy_values

KNOBS = {"depth": 6, "breadth": 3, "density": 0.5, "noise": 2.0, "treasure": 3.0}


@pytest.mark.parametrize("takes_key", [True, False])
def test_the_key_is_paid_depth_steps_later_with_the_given_density(rollout, takes_key):
    env, params = envs.make("CreditMaze", **KNOBS)
    actions = [0 if takes_key else 2, 1, 1, 1, 1, 1, 1]
    record = rollout(env, params, actions)
    assert record["terminated"][0].tolist() == [False] * 6 + [True]
    # 3 irrelevant decisions on 6 steps: in every second one, the last included
    reward = np.asarray(record["reward"])
    np.testing.assert_array_equal(reward[:, [0, 1, 3, 5]], 0)
    np.testing.assert_array_equal(np.abs(reward[:, [2, 4]]), 2.0)
    assert set(np.unique(reward[:, 6])) == ({-2.0, 2.0, 1.0, 5.0} if takes_key else {-2.0, 2.0})
    paid = np.isin(reward[:, 6], [1.0, 5.0]).mean()
    assert abs(paid - 0.5 * takes_key) < 0.06
    np.testing.assert_array_equal(record["info"]["treasure"][0], [0.0] * 6 + [float(takes_key)])
    np.testing.assert_array_equal(record["info"]["decisive"][0], [True] + [False] * 6)
    expected = [[1, 0, 0, 0, 0], [0, 0, 1 / 6, takes_key, not takes_key], [0, 1, 2 / 6, takes_key, not takes_key]]
    np.testing.assert_allclose(record["observation"][0, :3], np.array(expected, float), rtol=1e-6)


def test_an_irrelevant_decision_turns_its_own_luck(rollout):
    env, params = envs.make("CreditMaze", depth=2, breadth=2)
    even, odd = (rollout(env, params, [1, a, a])["reward"] for a in (2, 3))
    np.testing.assert_array_equal(even, -np.asarray(odd))
    assert abs(np.mean(even[:, 1:])) < 0.04


def test_a_hidden_key_is_not_seen(rollout):
    env, params = envs.make("CreditMaze", depth=2, visible=0.0)
    np.testing.assert_array_equal(rollout(env, params, [0, 0, 0])["observation"][..., 3:], 0)


@pytest.mark.parametrize("breadth", [0, 1, 5, 6])
def test_exact_credit_is_the_documented_one(breadth):
    env, params = envs.make("CreditMaze", **{**KNOBS, "breadth": breadth})
    mdp = env.mdp(params)
    fork = int(jnp.argmax(mdp.initial))
    policy = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(4), size=mdp.num_states), jnp.float32)
    value = policy_values(mdp, policy)
    credit = np.asarray(action_values(mdp, value) - value[:, None])
    take = policy[fork, 0]
    np.testing.assert_allclose(credit[fork], 1.5 * (np.eye(4)[0] - take), atol=1e-5)
    np.testing.assert_allclose(value[fork], 1.5 * take, rtol=1e-5)
    later = np.asarray(mdp.observation[:, 0] == 0)
    np.testing.assert_allclose(credit[later], 0, atol=1e-5)
    np.testing.assert_allclose(optimal_values(mdp)[fork], 1.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 0}, "depth"),
        ({"depth": 9, "max_depth": 8}, "max_depth"),
        ({"depth": 4, "breadth": 5}, "breadth"),
        ({"density": 1.5}, "density"),
        ({"max_depth": 0}, "max_depth"),
    ],
)
def test_bad_knobs_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make("CreditMaze", **settings)
