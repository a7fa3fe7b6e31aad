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
from gymnax.environments import environment
from jaxtyping import Array, Float

from envs.base import SizedEnvironment
from envs.finite import FiniteEnvironment, certain

MIN_LENGTH = 3
REFERENCE_LENGTH = 23
NUM_CELLS = 6
# Apples carry the number of the action that picks them.
EMPTY, APPLE_LEFT, APPLE_RIGHT, KEY, DOOR, TREASURE = range(NUM_CELLS)
TAKE_KEY, OPEN_DOOR = 0, 3


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time` (also the position), `keys_held`, `treasure` (the door was opened); all int32 `()`."""

    time: Any
    keys_held: Any
    treasure: Any


@struct.dataclass
class Params:
    """Every number is traced.  Rewards are multiplied by 23 / length, so that the apples of an episode sum to the same.

    Attributes:
      length: cells, and steps per episode; at least num_keys + 2 and at most the environment's static `max_length`
        (depth).
      apple_low, apple_high: the two rewards of an apple, before scaling.
      apple_probability: chance that an apple pays `apple_high` (else `apple_low`).
      treasure: reward of the treasure, before scaling. As every number here it may change between two calls of
        `jc.advance` without compiling anew: its sign, for a task that turns round in the middle of training.
      reward_noise: standard deviation of the noise on every step's reward: plus or minus this, with equal chance.
      ignore_door: 1 where the door opens by itself to who holds every key, 0 where it takes the action.
    """

    length: int = 40
    apple_low: float = 0.1
    apple_high: float = 0.9
    apple_probability: float = 0.5
    treasure: float = 0.2
    reward_noise: float = 0.0
    ignore_door: int = 0


@dataclasses.dataclass(frozen=True)
class KeyToDoor(SizedEnvironment, FiniteEnvironment):
    """Move one cell per step, whatever the action: key in cell 0, apples between, door in L - 2, treasure in L - 1.

    Cell 0: action 0 takes the key. Cells 1 .. L-3 are empty or hold an apple on the left or right side, which action 1
    or 2 picks. Cell L-2: action 3 opens the door if every key is held. Cell L-1: any action gets the treasure behind an
    open door; the episode terminates. Never truncated, so `time_limit` changes nothing here.
    The layout of the corridor is fixed: the first L - 3 draws of a seeded generator (empty .2, left .4, right .4).
    Of several keys, number i lies in cell  floor(i (L - 2) / num_keys),  in the place of what the layout has there.

    Observation `[8 + num_keys]` float32: t / L, kind of cell one-hot (empty, left, right, key, door, treasure), number
    of keys held one-hot. Four actions. `info["treasure"]` float32 is 1 in the last step if the treasure was obtained,
    else 0; `info["decisive"]` bool marks the steps at the keys, and at the door unless it is ignored.

    Assumption: the order of the cell kinds in the one-hot is ours. The reference adds no reward noise; ours has two
    values, so that the task stays finite. Every key is needed, for the door that is ignored as well.

    Attributes:
      max_length: static bound on `params.length`; sizes the layout, the episodic scan and the table.
      num_keys: static number of keys, at least 1.
    """

    max_length: int = 40
    num_keys: int = 1
    min_length: ClassVar[int] = MIN_LENGTH
    params_type: ClassVar[Any] = Params

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.num_keys, int) or not 1 <= self.num_keys <= self.max_length - 2:
            raise ValueError(
                f"num_keys={self.num_keys!r} is not allowed: it is static, a whole number from 1 to "
                f"max_length - 2 = {self.max_length - 2}, as door and treasure need two cells."
            )

    def check(self, params: Params) -> None:
        super().check(params)
        if np.min(params.length) < self.num_keys + 2:
            raise ValueError(
                f"length={np.asarray(params.length).tolist()} is not allowed with num_keys={self.num_keys}: it must be "
                f"at least {self.num_keys + 2}, as every key, the door and the treasure need a cell."
            )
        if not np.isin(params.ignore_door, [0, 1]).all():
            raise ValueError(f"ignore_door={np.asarray(params.ignore_door).tolist()} is not allowed: it is 0 or 1.")

    @property
    def num_actions(self) -> int:
        return 4

    @property
    def state_sizes(self) -> State:
        return State(time=self.max_length, keys_held=self.num_keys + 1, treasure=2)

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
        return certain(State(time=0, keys_held=0, treasure=0))

    def transition(
        self, state: State, action: Array, noise: tuple[Array, Array], params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        good, sign = noise
        cell = self._cell(state, params)
        apple = ((cell == APPLE_LEFT) | (cell == APPLE_RIGHT)) & (action == cell)
        treasure = cell == TREASURE
        scaled = apple * jnp.where(good, params.apple_high, params.apple_low) + treasure * params.treasure
        reward = scaled * REFERENCE_LENGTH / params.length + sign * params.reward_noise
        ignored = jnp.asarray(params.ignore_door) == 1
        opened = (cell == DOOR) & (state.keys_held == self.num_keys) & ((action == OPEN_DOOR) | ignored)
        # None before cell 0: in those rows of the table, too, that cannot be reached.
        held = jnp.where(state.time == 0, 0, state.keys_held)
        successor = State(
            time=state.time + 1,
            keys_held=held + ((cell == KEY) & (action == TAKE_KEY)),
            treasure=state.treasure | opened,
        )
        info = {"treasure": treasure.astype(jnp.float32), "decisive": (cell == KEY) | ((cell == DOOR) & ~ignored)}
        return successor, reward.astype(jnp.float32), state.time == params.length - 1, info

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "N"]:
        del key
        settings: Params = self.default_params if params is None else params
        position = jnp.asarray(state.time / settings.length, jnp.float32)
        cell = jax.nn.one_hot(self._cell(state, settings), NUM_CELLS, dtype=jnp.float32)
        held = jax.nn.one_hot(state.keys_held, self.num_keys + 1, dtype=jnp.float32)
        return jnp.concatenate([position[None], cell, held])

    def _cell(self, state: State, params: Params) -> Array:
        corridor = jnp.asarray(self.layout)[state.time]
        key_cells = jnp.arange(self.num_keys) * (params.length - 2) // self.num_keys
        cell = jnp.where((state.time == key_cells).any(), KEY, corridor)
        last = jnp.where(state.treasure == 1, TREASURE, EMPTY)
        cell = jnp.where(state.time == params.length - 2, DOOR, cell)
        return jnp.where(state.time >= params.length - 1, last, cell)
