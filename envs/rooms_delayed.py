"""FourRoomsDelayed, EightRoomsDelayed: through doors from one of twenty first rooms to a goal, the only reward.

Reference: the artificial tasks of Patil et al. (2022), "Align-RUDDER: Learning From Few Demonstrations by Reward
Redistribution", arXiv:2009.14108, and its public code.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment
from jaxtyping import Array, Float, Int

from envs.base import SizedEnvironment
from envs.finite import FiniteEnvironment
from envs.grid import DOWN, LEFT, MOVES, RIGHT, UP

SIZE = 6
START_ROW, START_COLUMN = 3, 3
GOAL_ROW, GOAL_COLUMN = 4, 4
FIRST_ROOMS = 20
# The wall in which each first room has its door, and the cell of the door in that wall.
DOORS = [UP, DOWN, LEFT, UP, RIGHT, DOWN, RIGHT, DOWN, UP, DOWN]
DOORS += [RIGHT, LEFT, DOWN, DOWN, LEFT, DOWN, DOWN, DOWN, RIGHT, UP]
DOOR_CELLS = {UP: (0, 3), DOWN: (5, 3), LEFT: (3, 0), RIGHT: (3, 5)}
# How many of the first rooms the way back can lead to, by the number of rooms.
ROOMS_BACK = {4: 15, 8: 20}
EAST_DOORS = ("mended", "released")
NOTHING = 4  # no action: none is replaced, or no door


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time`, `row`, `column`, `room` (0 .. 19 are the first rooms); all int32 `()`."""

    time: Any
    row: Any
    column: Any
    room: Any


@struct.dataclass
class Params:
    """Every number is traced; rewards are in reward units.

    Attributes:
      length: steps after which the time is up, at least 1 and at most the environment's static `max_length`.
      replaced_probability: chance that a uniformly random action (possibly the same) takes the place of the action.
      goal_reward: what the goal pays, less `step_cost` for every step up to and with the one that reaches it.
      step_cost: what a step takes from the goal's reward.
      timeout_reward: what the last step pays if it does not reach the goal.
    """

    length: int = 200
    replaced_probability: float = 0.01
    goal_reward: float = 3 + 53.32 / 200
    step_cost: float = 1 / 200
    timeout_reward: float = 1.0


@dataclasses.dataclass(frozen=True)
class RoomsDelayed(SizedEnvironment, FiniteEnvironment):
    """Start in cell (3, 3) of one of 20 rooms, pass a fixed sequence of later rooms, reach cell (4, 4) of the last.

    Rooms are 6 x 6 with walls, so cells 1 .. 4 are free. Each of the first rooms has a door in one wall; all lead to
    cell (0, 3) of room 20. From there each room leads to cell (0, 3) of the next, through a door in its right (rooms
    20, 22, ..) or left wall, at (3, 5) or (3, 0). A door is a cell in the wall that is walked onto like any other;
    moving outwards from it takes one step to the partner door. Up from (0, 3) of a later room leads back to the door of
    the room before; from room 20 to that of a random one of the first 15 (Four) or 20 (Eight) first rooms.
    One action in a hundred is replaced by a uniformly random one.

    Step t = 1, 2, .. that reaches the goal pays  3 - t / 200 + 53.32 / 200;  if the goal is not reached by then, step
    200 pays 1. Both ends are `terminated`: the time-out is part of the task, it pays and is seen coming. Never
    truncated: `time_limit` changes nothing.

    Observation `[3 + R]` float32: row / 5, column / 5, t / L, room one-hot (R = 23 or 27). Four actions: up, down,
    left, right. `info["decisive"]` bool marks the steps on a door that leads on and beside the goal.

    In the released code the right doors of the first rooms never open, so that rooms 4, 6, 10 and 18 are traps.
    Optimal mean return, and that of the optimal policy with a tenth of its actions random, as evaluated there:

        Four     mended 3.159, 3.145    released 2.726, 2.705
        Eight    mended 3.027, 2.997    released 2.621, 2.588

    Assumption: who goes back into a trap stands on its door, which does not open; the time is shown. The table has
    millions of entries: `mdp` refuses it unless `max_length` is small, `jc.enumerate_mdp` builds it in some 15 s.

    Attributes:
      rooms: static, 4 or 8: the first room and those after it.
      east_doors: static, "mended" or "released".
      max_length: static bound on `params.length`; sizes the episodic scan and the table.
    """

    rooms: int = 4
    east_doors: str = "mended"
    max_length: int = 200
    min_length: ClassVar[int] = 1
    params_type: ClassVar[Any] = Params

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rooms not in ROOMS_BACK:
            raise ValueError(f"rooms={self.rooms!r} is not allowed: choose {' or '.join(map(str, ROOMS_BACK))}.")
        if self.east_doors not in EAST_DOORS:
            raise ValueError(f"east_doors={self.east_doors!r} is not known; choose one of {', '.join(EAST_DOORS)}.")

    @property
    def name(self) -> str:
        return next(name for name, make in ROOMS.items() if make().rooms == self.rooms)

    @property
    def num_actions(self) -> int:
        return 4

    @property
    def last_room(self) -> int:
        return FIRST_ROOMS + self.rooms - 2

    @functools.cached_property
    def exits(self) -> np.ndarray:
        """Row, column and action `[R, 3]` of the door that leads on from every room; -1, -1 and none in the last."""
        walls = [*DOORS, *(RIGHT if i % 2 == 0 else LEFT for i in range(self.rooms - 2))]
        exits = np.array([(*DOOR_CELLS[wall], wall) for wall in walls] + [(-1, -1, NOTHING)], np.int32)
        if self.east_doors == "released":
            exits[:FIRST_ROOMS, 2] = np.where(np.equal(DOORS, RIGHT), NOTHING, DOORS)
        return exits

    @property
    def state_sizes(self) -> State:
        return State(time=self.max_length, row=SIZE, column=SIZE, room=self.last_room + 1)

    def noise(self, params: Params) -> tuple[tuple[Array, Array], Float[Array, "K"]]:
        """The action that replaces the agent's (or none), and the room that the way back leads to from room 20.

        The second matters only on a move up, which left, right and down cannot be: they come once each.
        """
        back = ROOMS_BACK[self.rooms]
        p = jnp.asarray(params.replaced_probability, jnp.float32)
        replaced = np.repeat([NOTHING, UP, DOWN, LEFT, RIGHT], [back, back, 1, 1, 1]).astype(np.int32)
        room = np.concatenate([np.arange(back), np.arange(back), np.zeros(3)]).astype(np.int32)
        chances = [jnp.full(back, (1 - p) / back), jnp.full(back, p / 4 / back), jnp.full(3, p / 4)]
        return (jnp.asarray(replaced), jnp.asarray(room)), jnp.concatenate(chances)

    def initial(self, params: Params) -> tuple[State, Float[Array, "N"]]:
        del params
        room = jnp.arange(FIRST_ROOMS, dtype=jnp.int32)
        zero = jnp.zeros_like(room)
        state = State(time=zero, row=zero + START_ROW, column=zero + START_COLUMN, room=room)
        return state, jnp.full(FIRST_ROOMS, 1 / FIRST_ROOMS)

    def transition(
        self, state: State, action: Array, noise: tuple[Array, Array], params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        replaced, room_back = noise
        action = jnp.where(replaced == NOTHING, action, replaced)
        here, exits = jnp.stack([state.row, state.column]), jnp.asarray(self.exits)
        entrance, way_out = jnp.array(DOOR_CELLS[UP], jnp.int32), exits[state.room]
        later = state.room >= FIRST_ROOMS
        step = here + jnp.asarray(MOVES)[action]
        on_door = _same(step, way_out[:2]) | (later & _same(step, entrance))
        place = jnp.where(((step >= 1) & (step <= SIZE - 2)).all() | on_door, step, here)

        leads_on = _same(here, way_out[:2]) & (way_out[2] != NOTHING)
        forward = leads_on & (action == way_out[2])
        back = later & _same(here, entrance) & (action == UP)
        previous = jnp.where(state.room == FIRST_ROOMS, room_back, state.room - 1)
        place = jnp.where(forward, entrance, jnp.where(back, exits[previous, :2], place))
        following = jnp.maximum(state.room + 1, FIRST_ROOMS)
        room = jnp.where(forward, following, jnp.where(back, previous, state.room))

        successor = State(time=state.time + 1, row=place[0], column=place[1], room=room)
        goal = jnp.array([GOAL_ROW, GOAL_COLUMN], jnp.int32)
        reached = (room == self.last_room) & _same(place, goal)
        timeout = successor.time == params.length
        unreached = jnp.where(timeout, params.timeout_reward, 0)
        reward = jnp.where(reached, params.goal_reward - params.step_cost * successor.time, unreached)
        beside = (state.room == self.last_room) & (jnp.abs(here - goal).sum() == 1)
        info = {"decisive": leads_on | beside}
        return successor, jnp.asarray(reward, jnp.float32), reached | timeout, info

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "D"]:
        del key
        length = self.max_length if params is None else params.length
        parts = [state.row / (SIZE - 1), state.column / (SIZE - 1), state.time / length]
        place = jnp.stack([jnp.asarray(part, jnp.float32) for part in parts])
        return jnp.concatenate([place, jax.nn.one_hot(state.room, self.last_room + 1, dtype=jnp.float32)])


def _same(a: Int[Array, "2"], b: Int[Array, "2"]) -> Array:
    return (a == b).all()


ROOMS: dict[str, Callable[..., RoomsDelayed]] = {
    "FourRoomsDelayed": functools.partial(RoomsDelayed, rooms=4),
    "EightRoomsDelayed": functools.partial(RoomsDelayed, rooms=8),
}
