"""Adapters: other libraries' environments with float32 observations and rewards, stable types and honest ends."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces
from gymnax.environments.environment import Environment
from jaxtyping import Array

PyTree = Any

BRAX_NAMES = (
    "ant",
    "fast",
    "halfcheetah",
    "hopper",
    "humanoid",
    "humanoidstandup",
    "inverted_double_pendulum",
    "inverted_pendulum",
    "pusher",
    "reacher",
    "swimmer",
    "walker2d",
)
BRAX_BACKENDS = ("generalized", "spring", "positional", "mjx")


def strong(tree: PyTree) -> PyTree:
    """Turn every number of a pytree into an array with a fixed (not weak) dtype, so that values never recompile."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype=jnp.result_type(x)), tree)


def cast_like(tree: PyTree, example: PyTree) -> PyTree:
    """Give every leaf the dtype of the leaf in `example`, so that a scan can carry the result."""
    return jax.tree.map(lambda x, e: jnp.asarray(x, dtype=jnp.result_type(e)), tree, example)


@dataclasses.dataclass(frozen=True)
class GymnaxEnvironment(Environment):
    """A registered gymnax environment with the types that a compiled training loop needs.

    Rewards are float32; observations are float32 vectors `[D]`, or images `[H, W, C]` where gymnax gives images; an
    observation from a `Discrete` space becomes one-hot, any other shape is ravelled. State leaves have the same dtype
    after `step` as after `reset`.

    Attributes:
      env: the gymnax environment.
      horizon: static number of steps after which the episode is truncated at the latest; None if unknown.
    """

    env: Environment
    horizon: int | None = None

    @property
    def default_params(self) -> PyTree:
        return strong(self.env.default_params)

    @property
    def name(self) -> str:
        return self.env.name

    @property
    def num_actions(self) -> int:
        return self.env.num_actions

    def action_space(self, params: PyTree) -> spaces.Space:
        return self.env.action_space(params)

    def observation_space(self, params: PyTree) -> spaces.Box:
        space = self.env.observation_space(params)
        if isinstance(space, spaces.Discrete):
            return spaces.Box(0.0, 1.0, (space.n,), jnp.float32)
        shape = _observation_shape(space.shape)
        low, high = (jnp.broadcast_to(jnp.asarray(x, jnp.float32), space.shape) for x in (space.low, space.high))
        return spaces.Box(low.reshape(shape), high.reshape(shape), shape, jnp.float32)

    def step_env(
        self, key: jax.Array, state: PyTree, action: Array, params: PyTree
    ) -> tuple[Array, PyTree, Array, Array, dict]:
        observation, new_state, reward, terminated, info = self.env.step_env(key, state, action, params)
        return (
            self._observation(observation, params),
            cast_like(new_state, state),
            jnp.asarray(reward, jnp.float32).reshape(()),
            jnp.asarray(terminated, bool).reshape(()),
            info,
        )

    def reset_env(self, key: jax.Array, params: PyTree) -> tuple[Array, PyTree]:
        observation, state = self.env.reset_env(key, params)
        return self._observation(observation, params), strong(state)

    def is_truncated(self, state: PyTree, params: PyTree) -> Array:
        return jnp.asarray(self.env.is_truncated(state, params), bool)

    def is_terminated(self, state: PyTree, params: PyTree) -> Array:
        return jnp.asarray(self.env.is_terminated(state, params), bool)

    def _observation(self, observation: Array, params: PyTree) -> Array:
        space = self.env.observation_space(params)
        if isinstance(space, spaces.Discrete):
            return jax.nn.one_hot(observation, space.n, dtype=jnp.float32)
        return jnp.asarray(observation, jnp.float32).reshape(_observation_shape(jnp.shape(observation)))


def _observation_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) in (1, 3) else (math.prod(shape),)


@struct.dataclass
class BraxState(environment.EnvState):
    """Attributes: `time` int32 `()`, steps since the reset; `brax`, brax's own state."""

    time: Any
    brax: Any


@struct.dataclass
class BraxParams:
    """Attributes: `max_steps_in_episode` int32, the (traced) time limit, at most the environment's `horizon`."""

    max_steps_in_episode: int = 1000


@dataclasses.dataclass(frozen=True)
class BraxEnvironment(Environment):
    """A brax environment, without brax's own episode and auto-reset wrappers.

    Those return to one cached first state and lose the final observation. Here every episode starts afresh,
    `terminated` is the natural end alone, the time limit truncates, and `info["final_observation"]` holds what was
    observed before the reset. Actions are `[D]` in [-1, 1].

    Attributes:
      env: the bare brax environment.
      horizon: static time limit.
    """

    env: Any
    horizon: int = 1000

    @property
    def default_params(self) -> BraxParams:
        return strong(BraxParams(max_steps_in_episode=self.horizon))

    @property
    def name(self) -> str:
        return f"brax:{type(self.env).__name__}"

    @property
    def num_actions(self) -> int:
        return self.env.action_size

    def action_space(self, params: BraxParams | None = None) -> spaces.Box:
        del params
        return spaces.Box(-1.0, 1.0, (self.env.action_size,), jnp.float32)

    def observation_space(self, params: BraxParams | None = None) -> spaces.Box:
        del params
        return spaces.Box(-jnp.inf, jnp.inf, (self.env.observation_size,), jnp.float32)

    def step_env(
        self, key: jax.Array, state: BraxState, action: Array, params: BraxParams
    ) -> tuple[Array, BraxState, Array, Array, dict]:
        del key, params
        # brax writes into the dictionaries of the state that it is given: step on a copy.
        stepped = self.env.step(jax.tree.map(jnp.asarray, state.brax), jnp.clip(action, -1.0, 1.0))
        brax = cast_like(stepped, state.brax)
        state = BraxState(time=state.time + 1, brax=brax)
        return jnp.asarray(brax.obs, jnp.float32), state, jnp.asarray(brax.reward, jnp.float32), brax.done > 0.5, {}

    def reset_env(self, key: jax.Array, params: BraxParams) -> tuple[Array, BraxState]:
        del params
        brax = strong(self.env.reset(key))
        return jnp.asarray(brax.obs, jnp.float32), BraxState(time=jnp.zeros((), jnp.int32), brax=brax)


def make_brax(name: str, *, backend: str | None = None, episode_length: int = 1000, **settings: Any) -> BraxEnvironment:
    """Build a brax environment by its own name (`hopper`), importing brax only now.

    Args:
      name: one of `BRAX_NAMES`.
      backend: one of `BRAX_BACKENDS`; None keeps the environment's own default.
      episode_length: static time limit in steps.
      **settings: passed to the brax class.
    Returns:
      The adapted environment; its horizon is `episode_length`.
    Raises:
      ValueError: unknown backend or setting, or an episode without a step.
    """
    if episode_length < 1:
        raise ValueError(f"episode_length={episode_length} is not allowed: an episode has at least one step.")
    if backend is not None:
        if backend not in BRAX_BACKENDS:
            raise ValueError(f"backend={backend!r} is not known; brax has {', '.join(BRAX_BACKENDS)}.")
        settings["backend"] = backend
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        # brax and what it imports announce that they are no longer maintained, and print what they did not find
        warnings.simplefilter("ignore")
        import brax.envs

        try:
            env = brax.envs.get_environment(name, **settings)
        except TypeError as error:
            raise ValueError(f"brax:{name} does not take these settings ({', '.join(settings)}): {error}.") from error
    return BraxEnvironment(env, horizon=episode_length)
