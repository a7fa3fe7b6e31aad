"""KeyToDoor: a key, a corridor of noisy apples, a door: credit has to cross rewards that have nothing to do with it.

Reference: the linear key-to-door task ("ConveyorTreasure") of Meulemans et al. (2023), "Would I have gotten that
reward? Long-term credit assignment by counterfactual contribution analysis", arXiv:2306.16803, and its public code.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Float

from envs.base import SizedEnvironment
from envs.finite import FiniteEnvironment

MIN_LENGTH = 3
REFERENCE_LENGTH = 23
NUM_CELLS = 6
# Apples carry the number of the action that picks them.
EMPTY, APPLE_LEFT, APPLE_RIGHT, KEY, DOOR, TREASURE = range(NUM_CELLS)
TAKE_KEY, OPEN_DOOR = 0, 3


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time` (also the position), `has_key`, `treasure` (the door was opened); all int32 `()`."""

    time: Any
    has_key: Any
    treasure: Any


@struct.dataclass
class Params:
    """Every number is traced.  Rewards are multiplied by 23 / length, so that the apples of an episode sum to the same.

    Attributes:
      length: cells, and steps per episode; at least 3 and at most the environment's static `max_length` (depth).
      apple_low, apple_high: the two rewards of an apple, before scaling.
      apple_probability: chance that an apple pays `apple_high` (else `apple_low`).
      treasure: reward of the treasure, before scaling.
      reward_noise: standard deviation of the noise on every step's reward: plus or minus this, with equal chance.
    """

    length: int = 40
    apple_low: float = 0.1
    apple_high: float = 0.9
    apple_probability: float = 0.5
    treasure: float = 0.2
    reward_noise: float = 0.0


@dataclasses.dataclass(frozen=True)
class KeyToDoor(SizedEnvironment, FiniteEnvironment):
    """Move one cell per step, whatever the action: key in cell 0, apples between, door in L - 2, treasure in L - 1.

    Cell 0: action 0 takes the key. Cells 1 .. L-3 are empty or hold an apple on the left or right side, which action 1
    or 2 picks. Cell L-2: action 3 opens the door if the key is held. Cell L-1: any action gets the treasure behind an
    open door; the episode terminates. Never truncated, so `time_limit` changes nothing here.
    The layout of the corridor is fixed: the first L - 3 draws of a seeded generator (empty .2, left .4, right .4).

    Observation `[9]` float32: t / L, kind of cell one-hot (empty, left, right, key, door, treasure), key (no, yes)
    one-hot. Four actions. `info["treasure"]` float32 is 1 in the last step if the treasure was obtained, else 0;
    `info["decisive"]` bool marks the steps at the key and at the door.

    Assumption: the order of the cell kinds in the one-hot is ours. The reference adds no reward noise; ours has two
    values, so that the task stays finite.

    Attributes:
      max_length: static bound on `params.length`; sizes the layout, the episodic scan and the table.
    """

    max_length: int = 40
    min_length: ClassVar[int] = MIN_LENGTH
    params_type: ClassVar[Any] = Params

    @property
    def num_actions(self) -> int:
        return 4

    @property
    def state_sizes(self) -> State:
        return State(time=self.max_length, has_key=2, treasure=2)

    @functools.cached_property
    def layout(self) -> np.ndarray:
        """Kind of every cell `[max_length]` of the longest corridor; shorter ones use its beginning."""
        cells = np.random.default_rng(2022).choice(3, size=self.max_length - 3, p=[0.2, 0.4, 0.4])
        return np.concatenate([[KEY], cells, [EMPTY, EMPTY]]).astype(np.int32)

    def noise(self, params: Params) -> tuple[tuple[Array, Array], Float[Array, "4"]]:
        """Whether an apple is a good one (0 or 1), and the sign of the reward noise (-1 or 1)."""
        good = jnp.asarray(params.apple_probability, jnp.float32)
        probability = jnp.stack([1 - good, 1 - good, good, good]) / 2
        return (jnp.array([0, 0, 1, 1]), jnp.array([-1.0, 1.0, -1.0, 1.0])), probability

    def initial(self, params: Params) -> tuple[State, Float[Array, "1"]]:
        del params
        zero = jnp.zeros(1, jnp.int32)
        return State(time=zero, has_key=zero, treasure=zero), jnp.ones(1)

    def transition(
        self, state: State, action: Array, noise: tuple[Array, Array], params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        good, sign = noise
        cell = self._cell(state, params)
        apple = ((cell == APPLE_LEFT) | (cell == APPLE_RIGHT)) & (action == cell)
        treasure = cell == TREASURE
        scaled = apple * jnp.where(good, params.apple_high, params.apple_low) + treasure * params.treasure
        reward = scaled * REFERENCE_LENGTH / params.length + sign * params.reward_noise
        opened = (cell == DOOR) & (state.has_key == 1) & (action == OPEN_DOOR)
        successor = State(
            time=state.time + 1,
            has_key=jnp.where(cell == KEY, (action == TAKE_KEY).astype(jnp.int32), state.has_key),
            treasure=state.treasure | opened,
        )
        info = {"treasure": treasure.astype(jnp.float32), "decisive": (cell == KEY) | (cell == DOOR)}
        return successor, reward.astype(jnp.float32), state.time == params.length - 1, info

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "9"]:
        del key
        settings: Params = self.default_params if params is None else params
        position = jnp.asarray(state.time / settings.length, jnp.float32)
        cell = jax.nn.one_hot(self._cell(state, settings), NUM_CELLS)
        return jnp.concatenate([position[None], cell, jax.nn.one_hot(state.has_key, 2)])

    def observation_space(self, params: Params) -> spaces.Box:
        del params
        return spaces.Box(0.0, 1.0, (1 + NUM_CELLS + 2,), jnp.float32)

    def _cell(self, state: State, params: Params) -> Array:
        corridor = jnp.asarray(self.layout)[state.time]
        last = jnp.where(state.treasure == 1, TREASURE, EMPTY)
        cell = jnp.where(state.time == params.length - 2, DOOR, corridor)
        return jnp.where(state.time >= params.length - 1, last, cell)
