"""Taxi: fetch a passenger and bring them where they want to go: one task made of subtasks.

Reference: the taxi of Dietterich (2000), "Hierarchical Reinforcement Learning with the MAXQ Value Function
Decomposition", JAIR 13, arXiv:cs/9905014, with the rewards and state numbers of Gymnasium's Taxi.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment
from jaxtyping import Array, Float

from envs.base import TimeLimitedEnvironment
from envs.finite import FiniteEnvironment

SIZE = 5
SOUTH, NORTH, EAST, WEST, PICK_UP, PUT_DOWN = range(6)
# Rows and columns that each move adds.
MOVES = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], np.int32)
# Where each move leads if it does not slip, and to either side if it does.
DIRECTIONS = np.array([[SOUTH, EAST, WEST], [NORTH, EAST, WEST], [EAST, NORTH, SOUTH], [WEST, NORTH, SOUTH]], np.int32)
LANDMARKS = ((0, 0), (0, 4), (4, 0), (4, 3))  # R, G, Y, B
NUM_LANDMARKS = len(LANDMARKS)
ABOARD = NUM_LANDMARKS  # where the passenger is when at no landmark
NOWHERE = -1
# Walls on the right side of a cell; the border is one as well.
WALLS = ((0, 1), (1, 1), (3, 0), (3, 2), (4, 0), (4, 2))
STARTS = ("different", "all")


def _cells() -> tuple[np.ndarray, np.ndarray]:
    """Row and column `[5, 5, 4, 2]` after a move from every cell, and the landmark there `[5, 5]`."""
    follows = np.zeros((SIZE, SIZE, len(MOVES), 2), np.int32)
    for row, column, move in np.ndindex(SIZE, SIZE, len(MOVES)):
        blocked = (move == EAST and (row, column) in WALLS) or (move == WEST and (row, column - 1) in WALLS)
        step = np.array([row, column]) + (0 if blocked else MOVES[move])
        follows[row, column, move] = np.clip(step, 0, SIZE - 1)
    landmark = np.full((SIZE, SIZE), NOWHERE, np.int32)
    landmark[tuple(np.transpose(LANDMARKS))] = np.arange(NUM_LANDMARKS)
    return follows, landmark


FOLLOWS, LANDMARK = _cells()


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time`, `row`, `column`, `passenger` (landmark, or 4 aboard), `destination`; all int32 `()`."""

    time: Any
    row: Any
    column: Any
    passenger: Any
    destination: Any


@struct.dataclass
class Params:
    """Every number is traced; rewards are in reward units.

    Attributes:
      length: time limit in steps, at least 1 and at most the environment's static `max_length`.
      slip_probability: chance that a move goes to one of its sides instead, half of it to each.
      step_reward: what a step pays that is not paid otherwise.
      delivery_reward: what putting the passenger down at the destination pays, in place of `step_reward`.
      illegal_reward: what picking up nobody, or putting down nobody or nowhere pays, in place of `step_reward`.
    """

    length: int = 200
    slip_probability: float = 0.0
    step_reward: float = -1.0
    delivery_reward: float = 20.0
    illegal_reward: float = -10.0


@dataclasses.dataclass(frozen=True)
class Taxi(TimeLimitedEnvironment, FiniteEnvironment):
    """Drive to the passenger, who waits at one of four landmarks, pick them up and put them down at another one.

    The grid is 5 x 5 with walls; landmarks R (0, 0), G (0, 4), Y (4, 0), B (4, 3). A move into a wall stays. The taxi
    starts in any cell, with the passenger at a landmark that is not the destination (300 starts) or at any (400).
    Every step pays -1; picking up where the passenger is not, or putting down without a passenger or away from the
    landmarks, pays -10 and does nothing; putting down at the destination pays 20 and terminates the episode. Putting
    down at another landmark is allowed. The time limit, which the agent cannot see, truncates.

    Observation `[19]` float32: row (5), column (5), passenger (R, G, Y, B, aboard) and destination (4), each one-hot.
    Six actions: south, north, east, west, pick up, put down. `info["decisive"]` bool marks the steps where the
    passenger waits in the cell, or is aboard at the destination. `encode` gives Gymnasium's number of a state,
    ((row 5 + column) 5 + passenger) 4 + destination.

    Mean optimal return from 300 starts 7.93 (3 to 15), from 400 starts 9.555 (3 to 19); with `slip_probability` 0.2
    (0.8 forward, 0.1 to each side) 3.95 and 6.15.

    Assumption: a move slips to the side whether or not the way forward is blocked; Gymnasium's rainy taxi slips only
    where it is free. Dietterich's reward for the delivery is 20 besides the step's -1: `delivery_reward=19`.

    Attributes:
      starts: static, "different": the passenger never starts at the destination; "all": at any landmark.
      max_length: static bound on `params.length`; sizes the episodic scan.
    """

    starts: str = "different"
    max_length: int = 200
    min_length: ClassVar[int] = 1
    params_type: ClassVar[Any] = Params

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.starts not in STARTS:
            raise ValueError(f"starts={self.starts!r} is not known; choose one of {', '.join(STARTS)}.")

    @property
    def num_actions(self) -> int:
        return 6

    @property
    def state_sizes(self) -> State:
        return State(time=1, row=SIZE, column=SIZE, passenger=NUM_LANDMARKS + 1, destination=NUM_LANDMARKS)

    def noise(self, params: Params) -> tuple[Array, Float[Array, "3"]]:
        """Where a move goes: 0 forward, 1 and 2 to the sides."""
        slip = jnp.asarray(params.slip_probability, jnp.float32)
        return jnp.arange(3, dtype=jnp.int32), jnp.stack([1 - slip, slip / 2, slip / 2])

    def initial(self, params: Params) -> tuple[State, Float[Array, "N"]]:
        del params
        starts = np.indices((SIZE, SIZE, NUM_LANDMARKS, NUM_LANDMARKS), np.int32).reshape(4, -1)
        if self.starts == "different":
            starts = starts[:, starts[2] != starts[3]]
        row, column, passenger, destination = (jnp.asarray(x) for x in starts)
        state = State(time=jnp.zeros_like(row), row=row, column=column, passenger=passenger, destination=destination)
        return state, jnp.full(starts.shape[1], 1 / starts.shape[1])

    def transition(
        self, state: State, action: Array, noise: Array, params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        moves = action < PICK_UP
        direction = jnp.asarray(DIRECTIONS)[jnp.minimum(action, WEST), noise]
        follows = jnp.asarray(FOLLOWS)[state.row, state.column, direction]
        landmark = jnp.asarray(LANDMARK)[state.row, state.column]
        waits, aboard = state.passenger == landmark, state.passenger == ABOARD
        arrived = aboard & (landmark == state.destination)

        picked_up = (action == PICK_UP) & waits
        put_down = (action == PUT_DOWN) & aboard & (landmark != NOWHERE)
        delivered = (action == PUT_DOWN) & arrived
        allowed = moves | picked_up | put_down
        reward = jnp.where(allowed, params.step_reward, params.illegal_reward)
        reward = jnp.where(delivered, params.delivery_reward, reward)
        successor = State(
            time=state.time + 1,
            row=jnp.where(moves, follows[0], state.row),
            column=jnp.where(moves, follows[1], state.column),
            passenger=jnp.where(picked_up, ABOARD, jnp.where(put_down, landmark, state.passenger)),
            destination=state.destination,
        )
        return successor, jnp.asarray(reward, jnp.float32), delivered, {"decisive": waits | arrived}

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "19"]:
        del params, key
        kinds = [(state.row, SIZE), (state.column, SIZE)]
        kinds += [(state.passenger, NUM_LANDMARKS + 1), (state.destination, NUM_LANDMARKS)]
        return jnp.concatenate([jax.nn.one_hot(kind, number, dtype=jnp.float32) for kind, number in kinds])
