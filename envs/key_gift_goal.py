"""KeyGiftGoal: a key fetched in the first room multiplies what the goal in the last one pays; gifts lie between.

Reference: the task of Cathy Yeh (2020), "Temporal Reward Transport", efavdb.com/ltca, and its public code, a fork of
MiniGrid.
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
from jaxtyping import Array, Bool, Float, Int

from envs.phased import DISTRACTOR, EXPLORE, REWARD, PhasedEnvironment

SIZE = 8  # of the board; of which each phase uses the upper left part
ROOM_SIZES = (6, 8, 7)  # walls included
VIEW = 7  # cells a side of what the agent sees
NOWHERE = SIZE * SIZE
START = 1 * SIZE + 1
GOAL_CELL = 5 * SIZE + 5

TURN_LEFT, TURN_RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)
EAST, SOUTH, WEST, NORTH = range(4)
# Rows and columns that a step in each direction adds; a turn to the right leads to the next.
DIRECTIONS = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]], np.int32)

EMPTY, WALL, KEY, GOAL, GIFT, OPENED, AGENT, CARRIER = range(8)
# MiniGrid's numbers of object, colour and state, of every kind but the agent.
CODES = np.array([[1, 0, 0], [2, 5, 0], [5, 4, 0], [8, 1, 0], [11, 0, 1], [11, 5, 0]], np.float32)


def _rooms() -> np.ndarray:
    """Kind of every cell `[3, 8, 8]`; walls reach to the edge of the board."""
    rooms = np.full((len(ROOM_SIZES), SIZE, SIZE), WALL, np.int32)
    for room, size in zip(rooms, ROOM_SIZES, strict=True):
        room[1 : size - 1, 1 : size - 1] = EMPTY
    rooms[REWARD].flat[GOAL_CELL] = GOAL
    return rooms


ROOMS = _rooms()
KEY_CELLS = np.setdiff1d(np.flatnonzero(ROOMS[EXPLORE] == EMPTY), START).astype(np.int32)
GIFT_CELLS = np.flatnonzero(ROOMS[DISTRACTOR] == EMPTY).astype(np.int32)


@struct.dataclass
class State(environment.EnvState):
    """Attributes: int32, `()` unless said otherwise.  Cells are numbered row by row on the board of 8 x 8.

    `time`; `row`, `column` and `direction` (0 .. 3: east, south, west, north) of the agent; `has_key`; `key_cell`,
    where the key lies (64: nowhere); `gift_cell` `[G]`, `opened` `[G]`; `entrance` and `heading`, where the agent
    enters the room of gifts; `arrival`, step of the last phase that first reached the goal (0: none), and
    `key_at_goal`, whether with the key.
    """

    time: Any
    row: Any
    column: Any
    direction: Any
    has_key: Any
    key_cell: Any
    gift_cell: Any
    opened: Any
    entrance: Any
    heading: Any
    arrival: Any
    key_at_goal: Any


@struct.dataclass
class Params:
    """Every number is traced; rewards are in reward units.

    Attributes:
      explore_length, distractor_length, reward_length: steps of each phase, up to the environment's static maxima
        (`distractor_length` is the delay).
      gift_mean, gift_variance: of the reward of a gift, which is uniform: from gift_mean - sqrt(3 gift_variance) to
        gift_mean + sqrt(3 gift_variance).
      goal_reward: what the goal pays.
      key_reward: what it pays in addition to who carries the key.
      step_cost: what the goal pays less for the whole time of the last phase, in proportion to the steps taken.
    """

    explore_length: int = 30
    distractor_length: int = 50
    reward_length: int = 70
    gift_mean: float = 3.0
    gift_variance: float = 0.0
    goal_reward: float = 5.0
    key_reward: float = 15.0
    step_cost: float = 0.9


@dataclasses.dataclass(frozen=True)
class KeyGiftGoal(PhasedEnvironment):
    """Fetch a key, open gifts, reach the goal: 30, 50 and 70 steps by default, in three MiniGrid rooms.

    Explore: 4 x 4 free cells; the agent starts in the upper left one, facing east, the key lies in another one. The key
    is picked up from, and dropped into, the cell in front; that pays nothing. Distractor: 6 x 6 free cells with four
    gifts, all and the agent anywhere; toggling a gift in front opens it for good and pays its reward. Reward: 5 x 5
    free cells; the agent starts in the upper left one, facing east, the goal is the lower right one. Who holds the key
    at the end of the first phase does not see it in the second and has it again in the third. The first arrival at
    the goal in step t of the last phase is worth

        5 + 15 if the key is carried - 0.9 t / 70,

    paid in the last step of the phase; nothing else happens there. The timer alone ends a phase. The end of the last
    one is `terminated`: nothing follows, and a learner bootstraps with 0. Never truncated, so `time_limit` changes
    nothing here.

    Observation `[7, 7, 3]` float32: MiniGrid's numbers of object, colour and state for the cells in front, as the agent
    sees them: it stands in the middle of the last row and looks towards the first. Its own cell shows what it carries.
    Neither time nor direction are shown. Seven actions: turn left, turn right, forward, pick up, drop, toggle, done
    (which does nothing). In `info`, float32: "key", 1 while the agent has the key; "gifts", number opened so far;
    "treasure", 1 in the last step if the goal was reached with the key; "last_phase_reward", what the last step pays.
    `info["decisive"]` bool marks the steps of the first phase in front of the key, and those of the last in front of
    the goal until it is reached.

    With the key the last phase pays at most 20 - 0.9 * 9 / 70 = 19.88, without it 15 less.

    Assumption: rows are the first axis of the observation, MiniGrid's are the second. As in the public code, walls hide
    nothing, cells beyond the room look like walls, and gifts can be walked over; a gift's reward is drawn when it is
    opened.

    Attributes:
      num_gifts: static number of gifts, at least 1 (breadth).
    """

    max_explore_length: int = 30
    max_distractor_length: int = 50
    max_reward_length: int = 70
    num_gifts: int = 4
    params_type: ClassVar[Any] = Params
    glyphs: ClassVar[str] = ".#KG?_" + ">v<^" * 2

    def __post_init__(self) -> None:
        super().__post_init__()
        most = len(GIFT_CELLS) - 1
        if type(self.num_gifts) is not int or not 1 <= self.num_gifts <= most:
            raise ValueError(
                f"num_gifts={self.num_gifts!r} is not allowed: it is static, a whole number from 1 to {most}, as the "
                "agent needs a cell as well."
            )

    def check(self, params: Params) -> None:
        super().check(params)
        if not np.min(params.gift_variance) >= 0:
            given = np.asarray(params.gift_variance).tolist()
            raise ValueError(f"gift_variance={given} is not allowed: a variance is at least 0.")

    @property
    def num_actions(self) -> int:
        return 7

    def observation_space(self, params: Params) -> spaces.Box:
        del params
        return spaces.Box(0.0, CODES.max(), (VIEW, VIEW, 3), jnp.float32)

    @functools.cached_property
    def tiles(self) -> np.ndarray:
        return _tiles()

    def begin(self, key: jax.Array, params: Params) -> State:
        del params
        key_key, cells_key, heading_key = jax.random.split(key, 3)
        cells = jax.random.choice(cells_key, jnp.asarray(GIFT_CELLS), (self.num_gifts + 1,), replace=False)
        zero, one = jnp.zeros((), jnp.int32), jnp.ones((), jnp.int32)
        return State(
            time=zero,
            row=one,
            column=one,
            direction=zero + EAST,
            has_key=zero,
            key_cell=jax.random.choice(key_key, jnp.asarray(KEY_CELLS)),
            gift_cell=cells[1:],
            opened=jnp.zeros(self.num_gifts, jnp.int32),
            entrance=cells[0],
            heading=jax.random.randint(heading_key, (), 0, len(DIRECTIONS), jnp.int32),
            arrival=zero,
            key_at_goal=zero,
        )

    def enter(self, state: State, phase: Array) -> State:
        gifts = phase == DISTRACTOR
        cell = jnp.where(gifts, state.entrance, START)
        return dataclasses.replace(
            state,
            row=cell // SIZE,
            column=cell % SIZE,
            direction=jnp.where(gifts, state.heading, EAST),
            key_cell=jnp.full((), NOWHERE, jnp.int32),
        )

    def act(
        self, key: jax.Array, state: State, action: Array, phase: Array, params: Params
    ) -> tuple[State, Float[Array, ""]]:
        row, column = self._front(state)
        front, kind = row * SIZE + column, self.room(state, phase)[row, column]
        walks = (action == FORWARD) & (kind != WALL) & (kind != KEY)
        arrives = walks & (kind == GOAL) & (state.arrival == 0)
        picks = (action == PICK_UP) & (kind == KEY) & (state.has_key == 0)
        drops = (action == DROP) & (kind == EMPTY) & (self._carries(state, phase) == 1)
        opens = (action == TOGGLE) & (kind == GIFT)
        turn = (action == TURN_RIGHT).astype(jnp.int32) - (action == TURN_LEFT)
        step = state.time + 1 - params.explore_length - params.distractor_length
        after = dataclasses.replace(
            state,
            row=jnp.where(walks, row, state.row),
            column=jnp.where(walks, column, state.column),
            direction=(state.direction + turn) % len(DIRECTIONS),
            has_key=jnp.where(picks, 1, jnp.where(drops, 0, state.has_key)),
            key_cell=jnp.where(picks, NOWHERE, jnp.where(drops, front, state.key_cell)),
            opened=state.opened | (opens & (state.gift_cell == front)),
            arrival=jnp.where(arrives, step, state.arrival).astype(jnp.int32),
            key_at_goal=jnp.where(arrives, state.has_key, state.key_at_goal),
        )
        spread = jnp.sqrt(3 * jnp.asarray(params.gift_variance, jnp.float32))
        gift = params.gift_mean + spread * jax.random.uniform(key, dtype=jnp.float32, minval=-1, maxval=1)
        return after, opens * gift

    def prize(self, state: State, params: Params) -> Float[Array, ""]:
        reward = params.goal_reward + params.key_reward * state.key_at_goal
        cost = params.step_cost * state.arrival / params.reward_length
        return jnp.where(state.arrival > 0, reward - cost, 0).astype(jnp.float32)

    def pays(self, before: State, after: State, last: Array, params: Params) -> Float[Array, ""]:
        """The part of the prize that a step pays: all of it at the end."""
        del before
        return last * self.prize(after, params)

    def won(self, state: State) -> Bool[Array, ""]:
        return state.key_at_goal == 1

    def report(self, before: State, after: State, phase: Array, params: Params) -> dict[str, Array]:
        del params
        ahead = self.room(before, phase)[self._front(before)]
        return {
            "key": after.has_key.astype(jnp.float32),
            "gifts": after.opened.sum().astype(jnp.float32),
            "decisive": ((phase == EXPLORE) & (ahead == KEY)) | ((ahead == GOAL) & (before.arrival == 0)),
        }

    def room(self, state: State, phase: Array) -> Int[Array, "8 8"]:
        """Kind of every cell of the room of a phase, without the agent."""
        gift = jnp.where(state.opened == 1, OPENED, GIFT)
        gift_cell = jnp.where(phase == DISTRACTOR, state.gift_cell, NOWHERE)
        cells = jnp.asarray(ROOMS)[phase].ravel()
        cells = cells.at[gift_cell].set(gift, mode="drop").at[state.key_cell].set(KEY, mode="drop")
        return cells.reshape(SIZE, SIZE)

    def board(self, state: State, params: Params) -> Int[Array, "8 8"]:
        phase = self.phase(state.time, params)
        agent = AGENT + state.direction + len(DIRECTIONS) * self._carries(state, phase)
        return self.room(state, phase).at[state.row, state.column].set(agent)

    def get_obs(
        self, state: State, params: Params | None = None, key: jax.Array | None = None
    ) -> Float[Array, "V V 3"]:
        del key
        phase = self.phase(state.time, self.default_params if params is None else params)
        directions = jnp.asarray(DIRECTIONS)
        forward, right = directions[state.direction], directions[(state.direction + 1) % len(DIRECTIONS)]
        ahead, aside = jnp.arange(VIEW)[::-1, None, None], jnp.arange(VIEW)[None, :, None] - VIEW // 2
        place = jnp.stack([state.row, state.column]) + ahead * forward + aside * right
        inside = ((place >= 0) & (place < SIZE)).all(axis=-1)
        row, column = jnp.moveaxis(jnp.clip(place, 0, SIZE - 1), -1, 0)
        kind = jnp.where(inside, self.room(state, phase)[row, column], WALL)
        own = jnp.where(self._carries(state, phase) == 1, KEY, EMPTY)
        return jnp.asarray(CODES)[kind.at[VIEW - 1, VIEW // 2].set(own)]

    def caption(self, state: State, params: Params) -> str:
        carries = int(self._carries(state, self.phase(state.time, params)))
        return f"{super().caption(state, params)}, {'carrying the key' if carries else 'empty-handed'}"

    def _front(self, state: State) -> tuple[Array, Array]:
        """Row and column of the cell in front of the agent; walls keep it on the board."""
        step = jnp.asarray(DIRECTIONS)[state.direction]
        return state.row + step[0], state.column + step[1]

    def _carries(self, state: State, phase: Array) -> Int[Array, ""]:
        """Whether the key is in the agent's hand: it is out of reach among the gifts."""
        return jnp.where(phase == DISTRACTOR, 0, state.has_key)


def _tiles(size: int = 24) -> np.ndarray:
    """An image of every kind `[14, S, S, 3]`, the agent's and the carrying agent's in all four directions."""
    y, x = (np.mgrid[:size, :size] + 0.5) / size
    gold, red, grey, green = (235, 190, 40), (210, 60, 50), (120, 120, 120), (60, 160, 75)
    edge = (x < 1 / size) | (y < 1 / size)
    floor = np.where(edge[..., None], (55, 55, 55), (30, 30, 30)).astype(np.uint8)

    def drawn(*parts: tuple[np.ndarray, tuple[int, int, int]]) -> np.ndarray:
        tile = floor.copy()
        for where, colour in parts:
            tile[where] = colour
        return tile

    def box(colour: tuple[int, int, int], ribbon: tuple[int, int, int]) -> np.ndarray:
        body = np.maximum(abs(x - 0.5), abs(y - 0.5)) < 0.36
        return drawn((body, colour), (body & (np.minimum(abs(x - 0.5), abs(y - 0.5)) < 0.07), ribbon))

    ring = abs(np.hypot(x - 0.5, y - 0.3) - 0.15) < 0.06
    bit = (abs(y - 0.68) < 0.05) | (abs(y - 0.84) < 0.05)
    key = ring | ((abs(x - 0.5) < 0.05) & (y > 0.4) & (y < 0.9)) | (bit & (x > 0.5) & (x < 0.72))
    arrow = (x > 0.15) & (abs(y - 0.5) < (0.88 - x) * 0.5)
    whole = np.ones_like(edge)
    agents = [
        drawn((np.rot90(arrow, -direction), colour)) for colour in ((90, 140, 240), gold) for direction in range(4)
    ]
    kinds = [
        floor,
        drawn((whole, grey)),
        drawn((key, gold)),
        drawn((whole & ~edge, green)),
        box(red, (250, 250, 250)),
        box((70, 70, 70), grey),
    ]
    return np.stack([*kinds, *agents])
