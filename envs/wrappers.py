"""Wrappers: any environment with its rewards delayed, made noisy, its observation flattened or its limit final.

A wrapper is a frozen dataclass: it compares and hashes by its class, the wrapped environment and its static settings.
Its numbers are params: `params = wrapper.wrap(params, scale=0.5)` puts them around those of the wrapped environment.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment
from jax.typing import ArrayLike
from jaxtyping import Array

PyTree = Any

NEVER = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Wrapper(Environment):
    """Forwards everything to the wrapped environment; the base of all wrappers.

    Attributes:
      env: the wrapped environment.
    """

    env: Environment

    def wrap(self, params: PyTree) -> PyTree:
        """This wrapper's params around those of the wrapped environment."""
        return params

    def inner_state(self, state: PyTree) -> PyTree:
        return state

    def inner_params(self, params: PyTree) -> PyTree:
        return params

    @property
    def horizon(self) -> int | None:
        return getattr(self.env, "horizon", None)

    @property
    def default_params(self) -> PyTree:
        return self.wrap(self.env.default_params)

    @property
    def name(self) -> str:
        return self.env.name

    @property
    def num_actions(self) -> int:
        return self.env.num_actions

    def action_space(self, params: PyTree) -> spaces.Space:
        return self.env.action_space(self.inner_params(params))

    def observation_space(self, params: PyTree) -> spaces.Space:
        return self.env.observation_space(self.inner_params(params))

    def step_env(
        self, key: jax.Array, state: PyTree, action: Array, params: PyTree
    ) -> tuple[Array, PyTree, Array, Array, dict]:
        return self.env.step_env(key, self.inner_state(state), action, self.inner_params(params))

    def reset_env(self, key: jax.Array, params: PyTree) -> tuple[Array, PyTree]:
        return self.env.reset_env(key, self.inner_params(params))

    def is_truncated(self, state: PyTree, params: PyTree) -> Array:
        return self.env.is_truncated(self.inner_state(state), self.inner_params(params))

    def is_terminated(self, state: PyTree, params: PyTree) -> Array:
        return self.env.is_terminated(self.inner_state(state), self.inner_params(params))


@dataclasses.dataclass(frozen=True)
class TerminalTimeLimit(Wrapper):
    """Makes the time limit part of the task: where the wrapped environment truncates, the episode terminates."""

    def step_env(
        self, key: jax.Array, state: PyTree, action: Array, params: PyTree
    ) -> tuple[Array, PyTree, Array, Array, dict]:
        observation, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        return observation, state, reward, terminated | self.env.is_truncated(state, params), info

    def is_truncated(self, state: PyTree, params: PyTree) -> Array:
        del state, params
        return jnp.zeros((), bool)

    def is_terminated(self, state: PyTree, params: PyTree) -> Array:
        return self.env.is_terminated(state, params) | self.env.is_truncated(state, params)


@struct.dataclass
class DelayedRewardState:
    """Attributes: `inner` state; `owed` float32, reward not yet paid; `waited` int32, steps since the last payment."""

    inner: Any
    owed: Any
    waited: Any


@struct.dataclass
class DelayedRewardParams:
    """Attributes: `inner` params; `every` int32, steps between payments (traced)."""

    inner: Any
    every: Any


@dataclasses.dataclass(frozen=True)
class DelayedReward(Wrapper):
    """Pays the reward accumulated so far at the end of the episode, or every k steps, and 0 in between.

    What is owed is paid at termination *and* at truncation, so that every episode keeps its return. It is not shown to
    the agent: the delayed task is no longer Markov in the observation.
    """

    def wrap(self, params: PyTree, every: ArrayLike = NEVER) -> DelayedRewardParams:
        """Params around the inner ones; `every`: steps between payments (default: only at the end)."""
        return DelayedRewardParams(inner=params, every=jnp.asarray(every, jnp.int32))

    def inner_state(self, state: DelayedRewardState) -> PyTree:
        return state.inner

    def inner_params(self, params: DelayedRewardParams) -> PyTree:
        return params.inner

    def step_env(
        self, key: jax.Array, state: DelayedRewardState, action: Array, params: DelayedRewardParams
    ) -> tuple[Array, DelayedRewardState, Array, Array, dict]:
        observation, inner, reward, terminated, info = self.env.step_env(key, state.inner, action, params.inner)
        owed, waited = state.owed + reward, state.waited + 1
        # gymnax's `step_env` does not know of time limits, hence the question to the wrapped environment.
        pays = terminated | self.env.is_truncated(inner, params.inner) | (waited >= params.every)
        state = DelayedRewardState(inner=inner, owed=jnp.where(pays, 0, owed), waited=jnp.where(pays, 0, waited))
        return observation, state, jnp.where(pays, owed, 0), terminated, info

    def reset_env(self, key: jax.Array, params: DelayedRewardParams) -> tuple[Array, DelayedRewardState]:
        observation, inner = self.env.reset_env(key, params.inner)
        nothing = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
        return observation, DelayedRewardState(inner, *nothing)


@struct.dataclass
class NoisyRewardParams:
    """Attributes: `inner` params; `scale` float32, standard deviation of the noise in reward units (traced)."""

    inner: Any
    scale: Any


@dataclasses.dataclass(frozen=True)
class NoisyReward(Wrapper):
    """Adds independent Gaussian noise to the reward of every step."""

    def wrap(self, params: PyTree, scale: ArrayLike = 1.0) -> NoisyRewardParams:
        """Params around the inner ones; `scale`: standard deviation of the noise, in reward units."""
        return NoisyRewardParams(inner=params, scale=jnp.asarray(scale, jnp.float32))

    def inner_params(self, params: NoisyRewardParams) -> PyTree:
        return params.inner

    def step_env(
        self, key: jax.Array, state: PyTree, action: Array, params: NoisyRewardParams
    ) -> tuple[Array, PyTree, Array, Array, dict]:
        step_key, noise_key = jax.random.split(key)
        observation, state, reward, terminated, info = self.env.step_env(step_key, state, action, params.inner)
        noise = params.scale * jax.random.normal(noise_key, dtype=jnp.float32)
        return observation, state, reward + noise, terminated, info


@dataclasses.dataclass(frozen=True)
class FlattenObservation(Wrapper):
    """Ravels the observation into one float32 vector `[D]`."""

    def observation_space(self, params: PyTree) -> spaces.Box:
        space = self.env.observation_space(params)
        low, high = (jnp.broadcast_to(jnp.asarray(x, jnp.float32), space.shape) for x in (space.low, space.high))
        return spaces.Box(low.ravel(), high.ravel(), (math.prod(space.shape),), jnp.float32)

    def step_env(
        self, key: jax.Array, state: PyTree, action: Array, params: PyTree
    ) -> tuple[Array, PyTree, Array, Array, dict]:
        observation, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        return jnp.ravel(observation).astype(jnp.float32), state, reward, terminated, info

    def reset_env(self, key: jax.Array, params: PyTree) -> tuple[Array, PyTree]:
        observation, state = self.env.reset_env(key, params)
        return jnp.ravel(observation).astype(jnp.float32), state


@dataclasses.dataclass(frozen=True)
class PreviousAction(FlattenObservation):
    """Appends the previous action, one-hot, to the flattened observation; zeros at the start of an episode.

    What a policy with memory needs where an action has consequences that the observation does not show.

    Raises:
      ValueError: the actions are not discrete.
    """

    def __post_init__(self) -> None:
        if not hasattr(self.env.action_space(self.env.default_params), "n"):
            raise ValueError(
                f"PreviousAction encodes discrete actions, but those of {self.env.name} are continuous. Use an "
                "environment with discrete actions."
            )

    def observation_space(self, params: PyTree) -> spaces.Box:
        space = super().observation_space(params)
        low = jnp.concatenate([space.low, jnp.zeros(self.num_actions, jnp.float32)])
        high = jnp.concatenate([space.high, jnp.ones(self.num_actions, jnp.float32)])
        return spaces.Box(low, high, low.shape, jnp.float32)

    def step_env(
        self, key: jax.Array, state: PyTree, action: Array, params: PyTree
    ) -> tuple[Array, PyTree, Array, Array, dict]:
        observation, state, reward, terminated, info = super().step_env(key, state, action, params)
        shown = jnp.concatenate([observation, jax.nn.one_hot(action, self.num_actions, dtype=jnp.float32)])
        return shown, state, reward, terminated, info

    def reset_env(self, key: jax.Array, params: PyTree) -> tuple[Array, PyTree]:
        observation, state = super().reset_env(key, params)
        return jnp.concatenate([observation, jnp.zeros(self.num_actions, jnp.float32)]), state
