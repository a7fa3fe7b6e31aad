import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from jaxcredit.core.mdp import TabularMDP
from jaxcredit.evaluation.hindsight import (
    contribution_coefficients,
    expected_contribution_credit,
    future_outcomes,
    hindsight_distribution,
    return_distribution,
    reward_outcomes,
)
from jaxcredit.evaluation.oracle import (
    action_values,
    expected_lambda_advantages,
    optimal_redistribution,
    optimal_values,
    policy_gradient,
    policy_values,
    redistributed_mdp,
    stationary_values,
    visits,
)

STATES, ACTIONS, OUTCOMES, HORIZON = 5, 3, 2, 4


@pytest.fixture(scope="module")
def mdp() -> TabularMDP:
    rng = np.random.default_rng(0)
    shape = (STATES, ACTIONS, OUTCOMES)
    return TabularMDP(
        initial=jnp.full(STATES, 1 / STATES),
        successor=jnp.asarray(rng.integers(STATES, size=shape), jnp.int32),
        probability=jnp.asarray(rng.dirichlet(np.ones(OUTCOMES), size=shape[:2]), jnp.float32),
        reward=jnp.asarray(rng.normal(size=shape), jnp.float32),
        terminal=jnp.asarray(rng.random(shape) < 0.2),
        observation=jnp.eye(STATES),
        horizon=HORIZON,
    )


def recurse(mdp, gamma, choose, state, steps):
    """Value by plain recursion over the tree of outcomes."""
    if steps == 0:
        return 0.0
    q = np.zeros(ACTIONS)
    for a in range(ACTIONS):
        for k in range(OUTCOMES):
            p, r = float(mdp.probability[state, a, k]), float(mdp.reward[state, a, k])
            follows = 0.0
            if not mdp.terminal[state, a, k]:
                follows = recurse(mdp, gamma, choose, int(mdp.successor[state, a, k]), steps - 1)
            q[a] += p * (r + gamma * follows)
    return choose(state, q)


def test_optimal_values_equal_the_recursion(mdp):
    table = jax.tree.map(np.asarray, mdp)
    expected = [recurse(table, 0.9, lambda s, q: q.max(), s, HORIZON) for s in range(STATES)]
    np.testing.assert_allclose(optimal_values(mdp, 0.9), expected, rtol=1e-5)


def test_policy_values_equal_the_recursion(mdp):
    table = jax.tree.map(np.asarray, mdp)
    policy = np.random.default_rng(1).dirichlet(np.ones(ACTIONS), size=STATES)
    expected = [recurse(table, 0.9, lambda s, q: policy[s] @ q, s, HORIZON) for s in range(STATES)]
    np.testing.assert_allclose(policy_values(mdp, jnp.asarray(policy, jnp.float32), 0.9), expected, rtol=1e-4)


def test_a_terminal_outcome_has_no_future(mdp):
    ends = mdp.replace(terminal=jnp.ones_like(mdp.terminal))
    q = action_values(ends, jnp.full(STATES, jnp.nan))
    np.testing.assert_allclose(q, (mdp.probability * mdp.reward).sum(-1), rtol=1e-6)


def walks(mdp, policy, gamma=1.0):
    """Every way an episode can go: its probability and its steps (state, action, outcome, reward), by plain loops."""
    table = jax.tree.map(np.asarray, mdp)

    def follow(state, probability, steps):
        if len(steps) == mdp.horizon:
            yield probability, steps
            return
        for a, k in np.ndindex(*table.probability.shape[1:]):
            p = probability * policy[state, a] * table.probability[state, a, k]
            taken = [*steps, (state, a, k, table.reward[state, a, k])]
            if table.terminal[state, a, k]:
                yield p, taken
            elif p > 0:
                yield from follow(int(table.successor[state, a, k]), p, taken)

    for state in np.flatnonzero(table.initial):
        yield from follow(int(state), table.initial[state], [])


@pytest.fixture(scope="module")
def policy() -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).dirichlet(np.ones(ACTIONS), size=STATES), jnp.float32)


@pytest.fixture(scope="module")
def episodes(mdp, policy):
    return list(walks(mdp, policy))


def test_visits_equal_those_of_all_episodes(mdp, policy, episodes):
    expected = np.zeros(STATES)
    for probability, steps in episodes:
        for t, (state, *_) in enumerate(steps):
            expected[state] += probability * 0.9**t
    np.testing.assert_allclose(visits(mdp, policy, 0.9), expected, rtol=1e-5)


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_stationary_values_solve_the_equation_of_numpy(mdp, policy, gamma):
    # some outcomes never happen: they neither pay nor lead anywhere
    never = np.zeros((STATES, ACTIONS, OUTCOMES), bool)
    never[1:3, 0, 1] = True
    probability = np.where(never, 0, mdp.probability)
    probability = probability / probability.sum(-1, keepdims=True)
    table = mdp.replace(probability=jnp.asarray(probability), reward=jnp.where(never, jnp.inf, mdp.reward))
    reward, onwards = np.zeros(STATES), np.zeros((STATES, STATES))
    for s, a, k in zip(*np.nonzero(~never), strict=True):
        weight = policy[s, a] * probability[s, a, k]
        reward[s] += weight * mdp.reward[s, a, k]
        onwards[s, mdp.successor[s, a, k]] += weight * (1 - mdp.terminal[s, a, k])
    expected = np.linalg.solve(np.eye(STATES) - gamma * onwards, reward)
    np.testing.assert_allclose(stationary_values(table, policy, gamma), expected, rtol=1e-4)


def test_stationary_values_are_those_of_a_distant_horizon(mdp, policy):
    expected = policy_values(mdp.replace(horizon=400), policy, 0.9)
    np.testing.assert_allclose(stationary_values(mdp, policy, 0.9), expected, rtol=1e-4)


def test_stationary_values_are_nan_where_an_episode_may_never_end(mdp, policy):
    """Action 0 of state 0 leads to a state that ends, action 1 to one that stays for ever."""
    terminal = jnp.zeros_like(mdp.terminal).at[1].set(True)
    successor = jnp.full_like(mdp.successor, 2).at[0, 0].set(1).at[3:].set(1)
    table = mdp.replace(terminal=terminal, successor=successor)
    values = stationary_values(table, policy)
    assert np.isnan(values[jnp.array([0, 2])]).all() and np.isfinite(values[jnp.array([1, *range(3, STATES)])]).all()
    apart = jnp.zeros_like(policy).at[:, 0].set(1)  # never goes there
    np.testing.assert_array_equal(np.isnan(stationary_values(table, apart)), np.arange(STATES) == 2)
    assert np.isfinite(stationary_values(table, policy, 0.9)).all()


def test_stationary_values_are_not_finite_where_an_episode_cannot_end(mdp, policy):
    endless = mdp.replace(terminal=jnp.zeros_like(mdp.terminal), successor=jnp.zeros_like(mdp.successor))
    endless = endless.replace(probability=jnp.full_like(mdp.probability, 0.5))
    uniform = jnp.full_like(policy, 1 / 4).at[:, 0].set(1 / 2)  # sums to 1 without rounding
    assert not np.isfinite(stationary_values(endless, uniform)).any()


def test_policy_gradient_equals_the_score_function_over_all_episodes(mdp, policy, episodes):
    expected = np.zeros((STATES, ACTIONS))
    for probability, steps in episodes:
        total = sum(0.9**t * step[-1] for t, step in enumerate(steps))
        for state, action, *_ in steps:
            expected[state] += probability * total * (np.eye(ACTIONS)[action] - policy[state])
    np.testing.assert_allclose(policy_gradient(mdp, jnp.log(policy), 0.9), expected, atol=1e-5)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_expected_lambda_advantages_equal_the_recursion_over_steps(mdp, policy, lam):
    value = np.random.default_rng(2).normal(size=STATES).astype(np.float32)
    error = np.asarray(action_values(mdp, jnp.asarray(value), 0.9)) - value[:, None]
    table = jax.tree.map(np.asarray, mdp)

    def recurse(state, action, steps):
        total = error[state, action]
        if steps > 1:
            for k in range(OUTCOMES):
                if not table.terminal[state, action, k]:
                    follows = int(table.successor[state, action, k])
                    later = sum(policy[follows, b] * recurse(follows, b, steps - 1) for b in range(ACTIONS))
                    total += 0.9 * lam * table.probability[state, action, k] * later
        return total

    expected = [[recurse(s, a, HORIZON) for a in range(ACTIONS)] for s in range(STATES)]
    np.testing.assert_allclose(
        expected_lambda_advantages(mdp, policy, jnp.asarray(value), 0.9, lam), expected, atol=1e-5
    )


# Redistribution ----------------------------------------------------------------------------------------------------

TASKS = {
    "CreditMaze": {"depth": 4, "breadth": 2, "density": 0.5},
    "KeyToDoor": {"length": 5},
}


def some_policy(mdp, seed):
    rows = np.random.default_rng(seed).dirichlet(np.ones(mdp.num_actions), size=mdp.num_states)
    return jnp.asarray(rows, jnp.float32)


@pytest.fixture(scope="module", params=list(TASKS))
def task(request):
    """A task's table, a random policy on it and the exact action values."""
    env, params = envs.make(request.param, **TASKS[request.param])
    mdp = env.mdp(params)
    policy = some_policy(mdp, 3)
    return mdp, policy, action_values(mdp, policy_values(mdp, policy))


def test_after_optimal_redistribution_nothing_is_left_to_expect(task):
    mdp, policy, q = task
    redistributed = redistributed_mdp(mdp, q)
    carried = np.concatenate([np.arange(mdp.num_states), np.asarray(mdp.successor).ravel()])
    value = policy_values(redistributed, policy[carried])
    # what a state with a past still expects, beyond the payment of its own action
    own = np.asarray(action_values(redistributed, jnp.zeros_like(value)))
    left = np.asarray(action_values(redistributed, value)) - own
    reached = np.asarray(visits(redistributed, policy[carried])) > 0
    np.testing.assert_allclose(left[reached], 0, atol=1e-5)
    # and with any other action values there is something left
    other = redistributed_mdp(mdp, 1.1 * q)
    wrong = action_values(other, policy_values(other, policy[carried])) - action_values(other, jnp.zeros_like(value))
    assert np.abs(wrong[reached]).max() > 1e-3


def test_optimal_redistribution_keeps_values_and_the_optimal_policy(task):
    mdp, policy, q = task
    redistributed = redistributed_mdp(mdp, q)
    carried = np.concatenate([np.arange(mdp.num_states), np.asarray(mdp.successor).ravel()])
    for some in (policy, some_policy(mdp, 4)):
        expected = mdp.initial @ policy_values(mdp, some)
        np.testing.assert_allclose(
            redistributed.initial @ policy_values(redistributed, some[carried]), expected, atol=1e-5
        )
    best = mdp.initial @ optimal_values(mdp)
    np.testing.assert_allclose(redistributed.initial @ optimal_values(redistributed), best, atol=1e-5)
    greedy = jnp.eye(mdp.num_actions)[action_values(redistributed, optimal_values(redistributed)).argmax(1)]
    np.testing.assert_allclose(redistributed.initial @ policy_values(redistributed, greedy), best, atol=1e-5)


def test_optimal_redistribution_of_an_episode_is_that_of_the_table(task):
    mdp, _, q = task
    rng = np.random.default_rng(5)
    redistributed = redistributed_mdp(mdp, q)
    state = pair = int(jnp.argmax(mdp.initial))
    values, rewards, paid = [], [], []
    for _ in range(mdp.horizon):
        a, k = rng.integers(mdp.num_actions), rng.integers(mdp.probability.shape[2])
        values.append(q[state, a])
        rewards.append(mdp.reward[state, a, k])
        paid.append(redistributed.reward[pair, a, k])
        state, pair, ended = (
            int(mdp.successor[state, a, k]),
            int(redistributed.successor[pair, a, k]),
            mdp.terminal[state, a, k],
        )
        if ended:
            break
    values, rewards = jnp.array(values), jnp.array(rewards)
    credit = optimal_redistribution(values, rewards, jnp.ones(len(rewards), bool))
    np.testing.assert_allclose(credit, paid, atol=1e-5)
    np.testing.assert_allclose(credit.sum(), rewards.sum(), atol=1e-5)


# Hindsight ---------------------------------------------------------------------------------------------------------


def counted(episodes, outcome, number, gamma):
    """Discounted number of later outcomes, `[S, A, U]`, given state and action in step 0."""
    total, weight = np.zeros((STATES, ACTIONS, number)), np.zeros((STATES, ACTIONS))
    for probability, steps in episodes:
        state, action, *_ = steps[0]
        weight[state, action] += probability
        for t, (s, a, k, _) in enumerate(steps[1:], 1):
            if outcome[s, a, k] >= 0:
                total[state, action, outcome[s, a, k]] += probability * gamma**t
    return total / weight[..., None]


def test_future_outcomes_are_counted_as_over_all_episodes(mdp, policy, episodes):
    outcome = np.random.default_rng(6).integers(-1, 3, size=(STATES, ACTIONS, OUTCOMES))
    expected = counted(episodes, outcome, 3, 0.9)
    future = future_outcomes(mdp, policy, jnp.asarray(outcome), 3, 0.9)
    np.testing.assert_allclose(future, expected, atol=1e-5)
    mean = np.einsum("sa,sau->su", policy, expected)
    np.testing.assert_allclose(
        contribution_coefficients(future, policy), expected / mean[:, None] - 1, rtol=1e-4, atol=1e-5
    )
    hindsight = hindsight_distribution(future, policy)
    np.testing.assert_allclose(hindsight.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(hindsight, policy[..., None] * expected / mean[:, None], rtol=1e-4)


def test_an_outcome_that_never_comes_says_nothing(mdp, policy):
    future = future_outcomes(mdp, policy, jnp.zeros((STATES, ACTIONS, OUTCOMES), jnp.int32), 2)
    np.testing.assert_array_equal(contribution_coefficients(future, policy)[..., 1], 0)
    np.testing.assert_allclose(hindsight_distribution(future, policy)[..., 1], policy, rtol=1e-6)


def test_credit_by_the_reward_itself_is_the_advantage_up_to_the_same_for_all_actions(mdp, policy):
    rounded = mdp.replace(reward=jnp.round(mdp.reward))
    outcome, number = reward_outcomes(rounded)
    coefficient = contribution_coefficients(future_outcomes(rounded, policy, outcome, number), policy)
    credit = np.asarray(expected_contribution_credit(rounded, policy, coefficient, outcome))
    q = np.asarray(action_values(rounded, _with_steps_to_go(rounded, policy, HORIZON - 1)))
    np.testing.assert_allclose(
        credit - (policy * credit).sum(1, keepdims=True), q - (policy * q).sum(1, keepdims=True), atol=1e-5
    )


def _with_steps_to_go(mdp, policy, steps):
    return policy_values(mdp.replace(horizon=steps), policy)


def test_return_distribution_is_that_of_all_episodes(mdp, policy):
    rounded = mdp.replace(reward=jnp.round(2 * mdp.reward) / 2)
    low, unit, number = -12.0, 0.5, 49
    expected, weight = np.zeros((STATES, ACTIONS, number)), np.zeros((STATES, ACTIONS))
    for probability, steps in walks(rounded, policy):
        state, action, *_ = steps[0]
        weight[state, action] += probability
        expected[state, action, round((sum(step[-1] for step in steps) - low) / unit)] += probability
    distribution = return_distribution(rounded, policy, low, unit, number)
    np.testing.assert_allclose(distribution, expected / weight[..., None], atol=1e-6)
    came = expected.sum(axis=1, keepdims=True) > 1e-6
    hindsight = np.where(came, expected, 0) / np.where(came, expected.sum(axis=1, keepdims=True), 1)
    got = np.where(came, hindsight_distribution(distribution, policy), 0)
    np.testing.assert_allclose(got, hindsight, atol=1e-3)
    with pytest.raises(ValueError, match="multiples"):
        return_distribution(mdp, policy, low, unit, number)
    for wrong in (0.0, -0.5, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"unit=.* above 0"):
            return_distribution(rounded, policy, low, wrong, number)
