import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcredit.core.mdp import TabularMDP
from jaxcredit.evaluation.oracle import action_values, optimal_values, policy_values

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
