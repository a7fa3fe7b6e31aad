"""Environments with finitely many states: written once, stepped by sampling, enumerated for exact answers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from envs.base import EpisodicEnvironment
from jaxcredit.core.mdp import TabularMDP

PyTree = Any

MAX_TABLE_ENTRIES = 4_000_000


class FiniteEnvironment(EpisodicEnvironment):
    """An environment given by two pure functions, `noise` and `transition`.

    Subclasses write the members below that raise `NotImplementedError`, besides `horizon`, `num_actions`,
    `default_params` and `observation_space`.
    """

    @property
    def state_sizes(self) -> PyTree:
        """A state whose every (int32) field holds the number of values, from 0, that the field takes."""
        raise NotImplementedError

    def noise(self, params: PyTree) -> tuple[PyTree, Float[Array, "K"]]:
        """The K values that chance takes at every step, stacked on the leading axis, and their probabilities."""
        raise NotImplementedError

    def initial(self, params: PyTree) -> tuple[PyTree, Float[Array, "N"]]:
        """The N possible first states, stacked on the leading axis, and their probabilities."""
        raise NotImplementedError

    def transition(
        self, state: PyTree, action: Array, noise: PyTree, params: PyTree
    ) -> tuple[PyTree, Array, Array, dict]:
        """What follows `action` under one value of the noise: the new state, reward, terminated and info."""
        raise NotImplementedError

    def get_obs(self, state: PyTree, params: PyTree | None = None, key: jax.Array | None = None) -> Array:
        raise NotImplementedError

    def step_env(
        self, key: jax.Array, state: PyTree, action: Array, params: PyTree
    ) -> tuple[Array, PyTree, Array, Array, dict]:
        noise = draw(key, *self.noise(params))
        state, reward, terminated, info = self.transition(state, jnp.asarray(action, jnp.int32), noise, params)
        return self.get_obs(state, params), state, reward, terminated, info

    def reset_env(self, key: jax.Array, params: PyTree) -> tuple[Array, PyTree]:
        state = draw(key, *self.initial(params))
        return self.get_obs(state, params), state

    @property
    def num_states(self) -> int:
        return math.prod(jax.tree.leaves(self.state_sizes))

    def encode(self, state: PyTree) -> Array:
        """Index of a state, row-major in the order of its fields; fields out of range are clipped."""
        sizes = jax.tree.leaves(self.state_sizes)
        return jnp.ravel_multi_index(tuple(jax.tree.leaves(state)), tuple(sizes), mode="clip").astype(jnp.int32)

    def decode(self, index: Array) -> PyTree:
        """The state of an index: the inverse of `encode`."""
        sizes, structure = jax.tree.flatten(self.state_sizes)
        return jax.tree.unflatten(structure, jnp.unravel_index(jnp.asarray(index, jnp.int32), tuple(sizes)))

    @partial(jax.jit, static_argnames=("self",))
    def mdp(self, params: PyTree) -> TabularMDP:
        """Enumerate every state, action and noise value through `transition`, the code that `step` runs.

        Args:
          params: the environment's params; may be traced.
        Returns:
          The table, with `S = num_states` rows. States that cannot be reached are in it and do no harm.
        Raises:
          ValueError: the table would hold more than `MAX_TABLE_ENTRIES` entries.
        """
        values, probability = self.noise(params)
        shape = (self.num_states, self.num_actions, probability.shape[0])
        if math.prod(shape) > MAX_TABLE_ENTRIES:
            raise ValueError(
                f"The table of {self} would hold {' x '.join(map(str, shape))} (states x actions x noise) entries; "
                f"at most {MAX_TABLE_ENTRIES:,} are enumerated. Choose a smaller static size."
            )

        def outcome(state: PyTree, action: Array, noise: PyTree) -> tuple[Array, Array, Array]:
            successor, reward, terminal, _ = self.transition(state, action, noise, params)
            return self.encode(successor), reward, terminal

        states = self.decode(jnp.arange(self.num_states))
        actions = jnp.arange(self.num_actions, dtype=jnp.int32)
        over_noise = jax.vmap(outcome, (None, None, 0))
        over_actions = jax.vmap(over_noise, (None, 0, None))
        successor, reward, terminal = jax.vmap(over_actions, (0, None, None))(states, actions, values)
        first_states, first_probability = self.initial(params)
        return TabularMDP(
            initial=jnp.zeros(self.num_states).at[jax.vmap(self.encode)(first_states)].add(first_probability),
            successor=successor,
            probability=jnp.broadcast_to(probability, shape),
            reward=reward,
            terminal=terminal,
            observation=jax.vmap(lambda state: self.get_obs(state, params))(states),
            horizon=self.horizon,
        )


def draw(key: jax.Array, values: PyTree, probability: Float[Array, "K"]) -> PyTree:
    """Draw one of K values, stacked on the leading axis, by inverting the distribution function."""
    if probability.shape[0] == 1:
        return jax.tree.map(lambda value: value[0], values)
    index = (jax.random.uniform(key) >= jnp.cumsum(probability)[:-1]).sum()
    return jax.tree.map(lambda value: value[index], values)
