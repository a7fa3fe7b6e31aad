"""Hindsight against exact answers: what it is worth on average is the advantage."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
import jaxcredit as jc
from jaxcredit.evaluation.hindsight import (
    expected_contribution_credit,
    future_outcomes,
    hindsight_distribution,
    return_distribution,
    state_outcomes,
)
from jaxcredit.evaluation.oracle import action_values, policy_values

PROBABILITY = jnp.array([[0.5, 0.3, 0.2]] * 4)
HINDSIGHT = jnp.array([[0.5, 0.3, 0.2], [0.8, 0.1, 0.1], [0.0, 0.5, 0.5], [0.2, 0.2, 0.6]])
ACTION, TOTAL, MASK = jnp.array([0, 1, 0, 2]), jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.array([True, True, True, False])
EVERYWHERE = jnp.ones(2, bool)


@pytest.fixture(scope="module")
def tree():
    """Four choices with whole rewards, and a policy that is not uniform."""
    env: Any
    env, params = envs.make("Tree", overlap=4, branching=5)
    mdp = env.mdp(params)
    chances = np.random.default_rng(0).dirichlet(np.ones(mdp.num_actions), size=mdp.num_states)
    policy = jnp.asarray(chances, jnp.float32)
    value = policy_values(mdp, policy)
    return mdp, policy, np.asarray(action_values(mdp, value) - value[:, None])


def test_return_hindsight_is_worth_the_advantage(tree):
    """For all actions, averaged over the returns that follow the state; for the one taken, over those that follow both,
    which lacks the returns that cannot follow it."""
    mdp, policy, advantage = tree
    low, number = -8.0, 17
    chance = return_distribution(mdp, policy, low, 1.0, number)
    hindsight = jnp.swapaxes(hindsight_distribution(chance, policy), 1, 2)
    total, everywhere = low + jnp.arange(number), jnp.ones(number, bool)

    def worth(chance, hindsight, policy):
        probability = jnp.broadcast_to(policy, hindsight.shape)
        of_all = jc.return_hindsight_credit(hindsight, probability, total, everywhere)
        of_taken = jax.vmap(
            lambda action: jc.return_hindsight_advantage(
                hindsight, probability, jnp.full(number, action), total, everywhere
            )
        )(jnp.arange(mdp.num_actions))
        lacking = jnp.where(chance == 0, policy @ chance * total, 0).sum(axis=1)
        return policy @ chance @ of_all, (chance * of_taken).sum(axis=1), lacking

    of_all, of_taken, lacking = jax.jit(jax.vmap(worth))(chance, hindsight, policy)
    np.testing.assert_allclose(of_all, advantage, atol=1e-4)
    np.testing.assert_allclose(of_taken - lacking, advantage, atol=1e-4)
    assert np.abs(lacking).max() > 0.1


@pytest.mark.parametrize("gamma", [1.0, 0.8])
def test_state_hindsight_is_worth_the_advantage_where_the_state_determines_the_reward(tree, gamma):
    mdp, policy, _ = tree
    mdp = mdp.replace(reward=jnp.broadcast_to(mdp.reward[:, :1], mdp.reward.shape))
    outcome = state_outcomes(mdp)
    future = future_outcomes(mdp, policy, outcome, mdp.num_states, gamma)
    hindsight = jnp.moveaxis(hindsight_distribution(future, policy), 1, 2)
    coefficient = jnp.moveaxis(jc.hindsight_coefficient(hindsight, policy[:, None]), 2, 1)
    credit = np.asarray(expected_contribution_credit(mdp, policy, coefficient, outcome, gamma))
    value = policy_values(mdp, policy, gamma)
    advantage = np.asarray(action_values(mdp, value, gamma) - value[:, None])
    np.testing.assert_allclose(credit - (policy * credit).sum(1, keepdims=True), advantage, atol=1e-4)


@pytest.mark.parametrize(("end_shows_it", "expected"), [(True, [1.0, -1.0]), (False, [0.0, 0.0])])
def test_a_reward_must_come_with_the_state_that_tells_why(end_shows_it, expected):
    """First action, aliased step, end that pays 1 or -1: the reward counts where the state differs, else not at all."""
    policy = jnp.full((2, 2), 0.5)
    hindsight = jnp.array([1.0, 0.0]) if end_shows_it else policy[0]  # of the first decision; action 0 was taken
    coefficient = jnp.zeros((2, 2, 2)).at[0, 1].set(jc.hindsight_coefficient(hindsight, policy[0]))
    credit = jc.contribution_credit(coefficient, jnp.array([0.0, 1.0]), jnp.zeros(2, int), policy, EVERYWHERE)
    np.testing.assert_allclose(credit[0], expected)


def test_against_a_plain_loop():
    of_all = jc.return_hindsight_credit(HINDSIGHT, PROBABILITY, TOTAL, MASK)
    of_taken = jc.return_hindsight_advantage(HINDSIGHT, PROBABILITY, ACTION, TOTAL, MASK)
    for t in range(4):
        for a in range(3):
            expected = (HINDSIGHT[t, a] / PROBABILITY[t, a] - 1) * TOTAL[t] if MASK[t] else 0
            np.testing.assert_allclose(of_all[t, a], expected, rtol=1e-5, atol=1e-6)
        h = HINDSIGHT[t, ACTION[t]]
        expected = (1 - PROBABILITY[t, ACTION[t]] / h) * TOTAL[t] if MASK[t] and h > 0 else 0
        np.testing.assert_allclose(of_taken[t], expected, rtol=1e-5, atol=1e-6)


def test_padding_says_nothing_and_takes_no_gradient():
    nothing = jnp.where(MASK[:, None], 0, jnp.nan)

    def credit(hindsight, total):
        of_all = jc.return_hindsight_credit(hindsight, PROBABILITY, total, MASK)
        return of_all, jc.return_hindsight_advantage(hindsight, PROBABILITY, ACTION, total, MASK)

    clean, spoilt = credit(HINDSIGHT, TOTAL), credit(HINDSIGHT + nothing, TOTAL + nothing[:, 0])
    for x, y in zip(clean, spoilt, strict=True):
        np.testing.assert_array_equal(x, y)
        np.testing.assert_array_equal(y[3], 0)
    sums = jax.grad(lambda *x: sum(part.sum() for part in credit(*x)), (0, 1))(
        HINDSIGHT + nothing, TOTAL + nothing[:, 0]
    )
    assert all(np.isfinite(x).all() for x in sums)


def test_one_action_is_never_to_blame():
    one = jnp.ones((4, 1))
    assert not jc.return_hindsight_credit(one, one, TOTAL, MASK).any()
    assert not jc.return_hindsight_advantage(one, one, jnp.zeros(4, int), TOTAL, MASK).any()


def test_impossible_actions_leave_values_and_gradients_finite():
    impossible = jnp.array([[1.0, 0.0, 0.0]] * 4)

    def total(hindsight, probability):
        credit = jc.return_hindsight_credit(hindsight, probability, TOTAL, MASK).sum()
        return credit + jc.return_hindsight_advantage(hindsight, probability, ACTION, TOTAL, MASK).sum()

    for arguments in ((HINDSIGHT, impossible), (impossible, HINDSIGHT), (jnp.zeros((4, 3)), impossible)):
        assert np.isfinite(total(*arguments))
        assert all(np.isfinite(x).all() for x in jax.grad(total, (0, 1))(*arguments))
    assert not jc.hindsight_coefficient(HINDSIGHT, impossible)[:, 1:].any()
