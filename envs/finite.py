"""Environments with finitely many states: written once, stepped by sampling, enumerated for exact answers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from gymnax.environments import spaces
from jaxtyping import Array, Float
from numpy.polynomial.hermite_e import hermegauss

from envs.base import EpisodicEnvironment
from jaxcredit.core.mdp import TabularMDP, decisive_states, outcomes_of

PyTree = Any

MAX_TABLE_ENTRIES = 4_000_000


class FiniteEnvironment(EpisodicEnvironment):
    """An environment given by two pure functions, `noise` and `transition`.

    Subclasses write the members below that raise `NotImplementedError`, besides `horizon`, `num_actions` and
    `default_params`; `noise` where something is left to chance, `observation_space` where numbers leave [0, 1].
    """

    @property
    def state_sizes(self) -> PyTree:
        """A state whose every (int32) field holds the number of values, from 0, that the field takes.

        A field of size 1 is ignored by the table, as the time may be where it decides nothing but the truncation.
        """
        raise NotImplementedError

    def noise(self, params: PyTree) -> tuple[PyTree, Float[Array, "K"]]:
        """The K values that chance takes at every step, stacked on the leading axis, and their probabilities.

        By default nothing is left to chance.
        """
        del params
        return certain(jnp.zeros(()))

    def sample_noise(self, key: jax.Array, params: PyTree) -> PyTree:
        """Draw what chance takes in one step.  Overridden where it is normal: `noise` is then a quadrature of it."""
        return draw(key, *self.noise(params))

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

    def observation_space(self, params: PyTree) -> spaces.Box:
        shape = jax.eval_shape(lambda: self.get_obs(self.decode(jnp.zeros((), jnp.int32)), params)).shape
        return spaces.Box(0.0, 1.0, shape, jnp.float32)

    def step_env(
        self, key: jax.Array, state: PyTree, action: Array, params: PyTree
    ) -> tuple[Array, PyTree, Array, Array, dict]:
        noise = self.sample_noise(key, params)
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
          The table, with `S = num_states` rows. States that cannot be reached are in it and do no harm. Its horizon is
          the environment's, also where a smaller number in the params is the time limit.
        Raises:
          ValueError: the table would hold more than `MAX_TABLE_ENTRIES` entries.
        """
        values, probability = self.noise(params)
        shape = (self.num_states, self.num_actions, probability.shape[0])
        seen = math.prod(self.observation_space(params).shape)  # numbers
        entries = max(math.prod(shape), self.num_states * seen)
        if entries > MAX_TABLE_ENTRIES:
            raise ValueError(
                f"The table of {self} would hold {' x '.join(map(str, shape))} (states x actions x noise) entries and "
                f"observations of {seen} numbers; at most {MAX_TABLE_ENTRIES:,} are enumerated. Choose static sizes "
                f"that make it {math.ceil(entries / MAX_TABLE_ENTRIES)} times smaller, a shorter length say. In "
                "Python, jc.enumerate_mdp leaves out what cannot be reached."
            )
        codes = jnp.arange(self.num_states, dtype=jnp.int32)
        successor, reward, terminal = outcomes_of(self, params, values, codes)
        states = self.decode(codes)
        first_states, first_probability = self.initial(params)
        return TabularMDP(
            initial=jnp.zeros(self.num_states).at[jax.vmap(self.encode)(first_states)].add(first_probability),
            successor=successor,
            probability=jnp.broadcast_to(probability, shape),
            reward=reward,
            terminal=terminal,
            observation=jax.vmap(lambda state: self.get_obs(state, params))(states),
            horizon=self.horizon,
            code=codes,
            decisive=decisive_states(self, params, values, states),
        )


def certain(value: PyTree) -> tuple[PyTree, Float[Array, "1"]]:
    """A chance with one value only, such as the one first state of an environment: its ints become int32."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.int32 if isinstance(x, int) else None)[None], value), jnp.ones(1)


def independent(*factors: tuple[PyTree, Array]) -> tuple[tuple[PyTree, ...], Array]:
    """Join independent chances `(values[K_i], probability[K_i])` into one: all combinations, the last varying fastest.

    >>> (a, b), p = independent((jnp.arange(2), jnp.array([0.25, 0.75])), (jnp.arange(3), jnp.full(3, 1 / 3)))
    >>> a.tolist(), b.tolist()
    ([0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2])
    """
    sizes = [probability.shape[0] for _, probability in factors]
    places = jnp.unravel_index(jnp.arange(math.prod(sizes)), tuple(sizes))
    values = tuple(jax.tree.map(lambda x, i=i: x[i], value) for (value, _), i in zip(factors, places, strict=True))
    chances = [probability[i] for (_, probability), i in zip(factors, places, strict=True)]
    return values, math.prod(chances[1:], start=chances[0])


def bernoulli(probability: Any) -> tuple[Array, Float[Array, "2"]]:
    """A chance that is 1 (int32) with this probability, else 0."""
    p = jnp.asarray(probability, jnp.float32)
    return jnp.arange(2, dtype=jnp.int32), jnp.stack([1 - p, p])


def uniform(number: int) -> tuple[Array, Float[Array, "N"]]:
    """A chance that is each of 0 .. number - 1 (int32) equally often."""
    return jnp.arange(number, dtype=jnp.int32), jnp.full(number, 1 / number)


def normal(nodes: int = 3) -> tuple[Array, Float[Array, "K"]]:
    """A standard normal chance as a Gauss-Hermite quadrature: its moments up to the (2 nodes - 1)th are the true ones.

    For the `noise` of an environment whose `sample_noise` draws the normal itself.
    """
    values, weight = hermegauss(nodes)
    return jnp.asarray(values, jnp.float32), jnp.asarray(weight / weight.sum(), jnp.float32)


def draw(key: jax.Array, values: PyTree, probability: Float[Array, "K"]) -> PyTree:
    """Draw one of K values, stacked on the leading axis, by inverting the distribution function."""
    if probability.shape[0] == 1:
        return jax.tree.map(lambda value: value[0], values)
    index = (jax.random.uniform(key) >= jnp.cumsum(probability)[:-1]).sum()
    return jax.tree.map(lambda value: value[index], values)
