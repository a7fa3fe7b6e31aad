"""Probes: five tasks of one or two steps, each of which needs exactly one part of an agent to work.

    ProbeReward               one step, reward 1: the critic learns a constant
    ProbeObservation          one step, reward = observation: the critic reads its input
    ProbeDelay                two steps, reward 1 at the end: rewards travel back in time
    ProbeAction               one step, reward by action: the policy learns
    ProbeObservationAction    one step, reward by observation and action: the policy reads its input

An agent that fails the first of them fails all others; the first failure tells where to look.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Float

from envs.finite import FiniteEnvironment


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time`, `sign` (0 for -1, 1 for +1); both int32 `()`."""

    time: Any
    sign: Any


@struct.dataclass
class Params:
    """Attributes: `reward`, size of the reward (traced)."""

    reward: float = 1.0


@dataclasses.dataclass(frozen=True)
class Probe(FiniteEnvironment):
    """Pays  reward * (observed sign, if signed) * (+-1 by action, if there are two)  in its last step, and terminates.

    Observation `[1]` float32: a sign drawn once per episode if `signed`, else the time in [0, 1].

    Attributes:
      length: static number of steps.
      signed: static; the observation is a random sign and the reward depends on it.
      num_actions: static, 1 or 2; of two, action 1 counts +1 and action 0 counts -1.
    """

    length: int = 1
    signed: bool = False
    num_actions: int = 1

    def __post_init__(self) -> None:
        if self.length < 1 or self.num_actions not in (1, 2):
            raise ValueError(
                f"length={self.length}, num_actions={self.num_actions} is not allowed: a probe has at least one step "
                "and one or two actions."
            )

    @property
    def name(self) -> str:
        return next((name for name, make in PROBES.items() if make() == self), type(self).__name__)

    @property
    def horizon(self) -> int:
        return self.length

    @property
    def default_params(self) -> Params:
        return Params()

    @property
    def state_sizes(self) -> State:
        return State(time=self.length, sign=2)

    def initial(self, params: Params) -> tuple[State, Float[Array, "2"]]:
        del params
        return State(time=jnp.zeros(2, jnp.int32), sign=jnp.arange(2, dtype=jnp.int32)), jnp.full(2, 0.5)

    def transition(
        self, state: State, action: Array, noise: Array, params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        del noise
        last = state.time == self.length - 1
        by_sign = 2 * state.sign - 1 if self.signed else 1
        by_action = 2 * action - 1 if self.num_actions == 2 else 1
        reward = last * params.reward * by_sign * by_action
        return State(time=state.time + 1, sign=state.sign), jnp.asarray(reward, jnp.float32), last, {}

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "1"]:
        del params, key
        seen = 2 * state.sign - 1 if self.signed else state.time / max(self.length - 1, 1)
        return jnp.asarray(seen, jnp.float32)[None]

    def observation_space(self, params: Params) -> spaces.Box:
        del params
        return spaces.Box(-1.0, 1.0, (1,), jnp.float32)


PROBES: dict[str, Callable[..., Probe]] = {
    "ProbeReward": Probe,
    "ProbeObservation": functools.partial(Probe, signed=True),
    "ProbeDelay": functools.partial(Probe, length=2),
    "ProbeAction": functools.partial(Probe, num_actions=2),
    "ProbeObservationAction": functools.partial(Probe, signed=True, num_actions=2),
}
