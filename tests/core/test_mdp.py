import jax
import jax.numpy as jnp

from jaxcredit.core.mdp import TabularMDP


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
