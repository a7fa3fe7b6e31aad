import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from jaxcredit.core import mdp as core
from jaxcredit.core.mdp import TabularMDP, enumerate_mdp


def coin() -> TabularMDP:
    """One state, two actions: 0 pays nothing for sure, 1 pays 1 or -1; the episode ends."""
    return TabularMDP(
        initial=jnp.ones(1),
        successor=jnp.zeros((1, 2, 2), jnp.int32),
        probability=jnp.full((1, 2, 2), 0.5),
        reward=jnp.array([[[0.0, 0.0], [1.0, -1.0]]]),
        terminal=jnp.ones((1, 2, 2), bool),
        observation=jnp.zeros((1, 1)),
        horizon=1,
    )


def test_sizes_come_from_the_table():
    assert (coin().num_states, coin().num_actions) == (1, 2)


def test_horizon_is_static_and_everything_else_is_traced():
    leaves, structure = jax.tree.flatten(coin())
    assert len(leaves) == 6  # what an environment adds is None
    assert structure != jax.tree.structure(coin().replace(horizon=2))


@pytest.fixture(scope="module")
def tables():
    """One task enumerated twice: what can be reached, and every combination of the state's fields."""
    env, params = envs.make("KeyToDoor", length=6, max_length=8, apple_probability=0.25)
    return env, enumerate_mdp(env, params), env.mdp(params)


def test_enumeration_holds_exactly_what_can_be_reached(tables):
    _, reachable, full = tables
    reached, frontier = set(), set(np.flatnonzero(full.initial).tolist())
    successor, terminal, probability = (np.asarray(x) for x in (full.successor, full.terminal, full.probability))
    while frontier:
        reached |= frontier
        rows = sorted(frontier)
        follows = successor[rows][~terminal[rows] & (probability[rows] > 0)]
        frontier = set(follows.tolist()) - reached
    assert reachable.code.tolist() == sorted(reached)
    assert reachable.num_states < full.num_states


def test_enumeration_merges_equal_outcomes_and_keeps_their_probability(tables):
    _, reachable, full = tables
    assert reachable.probability.shape[2] == 2 < full.probability.shape[2]  # an apple is good or not
    np.testing.assert_allclose(reachable.probability.sum(-1), 1, rtol=1e-6)
    rows = reachable.code
    np.testing.assert_array_equal(reachable.observation, full.observation[rows])
    np.testing.assert_array_equal(reachable.decisive, full.decisive[rows])
    for power in (1, 2):
        mean = (reachable.probability * reachable.reward**power).sum(-1)
        np.testing.assert_allclose(mean, (full.probability * full.reward**power).sum(-1)[rows], rtol=1e-5)


def test_rows_are_found_by_the_code_of_the_environment(tables):
    env, reachable, _ = tables
    state = env.decode(reachable.code[5])
    assert int(reachable.row(env.encode(state))) == 5


def test_codes_that_the_table_lacks_are_refused_where_they_are_known(tables):
    _, reachable, full = tables
    absent = jnp.setdiff1d(full.code, reachable.code)[:2]
    with pytest.raises(ValueError, match=f"no state of code {absent[0]}:"):
        reachable.row(absent)
    with pytest.raises(ValueError, match=f"no state of code {full.num_states}:"):
        full.row(jnp.array([3, full.num_states]))
    assert jax.jit(reachable.row)(absent).shape == (2,)
    with pytest.raises(ValueError, match="give it a code"):
        coin().row(jnp.array(0))


def test_precision_can_be_raised(tables):
    _, reachable, _ = tables
    with jax.enable_x64(True):
        double = reachable.astype(jnp.float64)
        assert double.reward.dtype == double.initial.dtype == jnp.float64
        np.testing.assert_allclose(double.probability.sum(-1), 1, rtol=1e-15)


def test_starts_that_cannot_happen_are_left_out():
    """Only the first state starts an episode, and nobody gets beyond it."""
    mdp = enumerate_mdp(*envs.make("Shortcut", long_probability=0.0))
    assert mdp.num_states == 1
    np.testing.assert_array_equal(mdp.initial, [1.0])


def test_what_cannot_be_enumerated_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="CartPole"):
        enumerate_mdp(*envs.make("CartPole-v1"))
    monkeypatch.setattr(core, "MAX_OUTCOMES", 100)
    with pytest.raises(ValueError, match=r"at least .* x 4 x 4"):
        enumerate_mdp(*envs.make("KeyToDoor", length=6))
    monkeypatch.setattr(core, "MAX_OUTCOMES", 1_000)
    with pytest.raises(ValueError, match=r"observations of .* numbers in each of at least"):
        enumerate_mdp(*envs.make("Tree", depth=3))


def test_what_is_traced_or_of_several_tasks_is_not_enumerated():
    env, params = envs.make("KeyToDoor", length=[5, 6])
    with pytest.raises(ValueError, match=r"length=\[5, 6\] is of several tasks"):
        enumerate_mdp(env, params)
    axes = jax.tree.map(lambda x: 0 if x.ndim else None, params)
    one = params.replace(length=params.length[0])
    for trace in (
        lambda: jax.vmap(lambda p: enumerate_mdp(env, p), (axes,))(params),
        lambda: jax.jit(lambda p: enumerate_mdp(env, p))(one),
        lambda: jax.jit(lambda: enumerate_mdp(env, one))(),
    ):
        with pytest.raises(ValueError, match="outside of jit, vmap and grad"):
            trace()
