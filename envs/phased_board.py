"""What PhasedKeyToDoor and ActiveVisualMatch share: the board, the view of it, and the room of apples.

Reference: the pycolab tasks of Hung et al. (2019), "Optimizing agent behavior over long time scales by transporting
value", arXiv:1810.06721, and their public code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Bool, Float, Int

from envs.drawn import plain_tiles
from envs.grid import MOVES
from envs.phased import DISTRACTOR, PhasedEnvironment

ROWS, COLUMNS = 7, 11
VIEW = 5  # cells a side of what the agent sees
MARGIN = VIEW // 2

FLOOR, WALL, PLAYER, APPLE, KEY, DOOR, INDICATOR, RED, GREEN, BLUE = range(10)
PALETTE = (
    (204, 204, 204),
    (25, 25, 25),
    (229, 149, 110),
    (140, 178, 0),
    (160, 82, 45),
    (135, 206, 235),
    (255, 255, 255),
    (255, 0, 0),
    (0, 255, 0),
    (0, 0, 255),
)

DISTRACTOR_ROOM = (
    "###########",
    "#A.A.A.A.A#",
    "#.A.A.A.A.#",
    "#A.A.A.A.A#",
    "#.A.A.A.A.#",
    "#....P....#",
    "###########",
)
APPLE_VALUES = ("per episode", "per apple")
NEVER = 2**31 - 1  # frames until an apple appears in a cell that has none


def cells(room: Sequence[str], symbol: str) -> np.ndarray:
    """Row and column `[N, 2]` of every cell of a room that holds the symbol."""
    return np.argwhere(np.array([list(row) for row in room]) == symbol).astype(np.int32)


def kinds(room: Sequence[str], symbols: dict[str, int]) -> np.ndarray:
    """Kind of every cell `[7, 11]` of a room: walls `#`, what `symbols` names, and floor."""
    return np.array([[{"#": WALL, **symbols}.get(symbol, FLOOR) for symbol in row] for row in room], np.int32)


APPLE_CELLS = cells(DISTRACTOR_ROOM, "A")
NUM_APPLE_CELLS = len(APPLE_CELLS)
APPLES_START = cells(DISTRACTOR_ROOM, "P")[0]


@struct.dataclass
class BoardState(environment.EnvState):
    """Attributes: int32 `()`, unless said otherwise.

    `time`; `row` and `column` of the player; `apple_wait` `[18]`, frames until a cell has an apple (0: it has one);
    `rich`, the apples of this episode have the higher value; `apples` picked up so far.
    """

    time: Any
    row: Any
    column: Any
    apple_wait: Any
    rich: Any
    apples: Any


@struct.dataclass
class BoardParams:
    """Every number is traced; rewards are in reward units.

    Attributes:
      explore_length, distractor_length, reward_length: steps of each phase, up to the environment's static maxima.
      num_apples: cells of the distractor room with an apple, 0 to 18 (density of the distraction).
      respawn: frames after that of its picking in which an apple is away, at least 0; it is back in the next one.
      apple_low, apple_high: the two values of an apple, or the range of its value.
      prize: reward of the last phase.
    """

    explore_length: int = 15
    distractor_length: int = 90
    reward_length: int = 15
    num_apples: int = 10
    respawn: int = 20
    apple_low: float = 1.0
    apple_high: float = 10.0
    prize: float = 10.0


@dataclasses.dataclass(frozen=True)
class PhasedBoard(PhasedEnvironment):
    """A player on a board of 7 x 11 cells who sees the 5 x 5 around; apples to eat in the second phase.

    Subclasses write `scene`, `blocks` and `touch`, besides what phases ask for and their two `starts`.

    Attributes:
      apple_value: static, "per episode": all apples of an episode are worth `apple_low`, or all `apple_high`, equally
        likely; "per apple": each is worth a uniform number from `apple_low` up to `apple_high`.
    """

    apple_value: str = "per episode"
    params_type: ClassVar[Any] = BoardParams
    glyphs: ClassVar[str] = ".#@aKD!RGB"
    tiles: ClassVar[np.ndarray] = plain_tiles(PALETTE)
    explore_starts: ClassVar[np.ndarray]
    reward_start: ClassVar[np.ndarray]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.apple_value not in APPLE_VALUES:
            raise ValueError(
                f"apple_value={self.apple_value!r} is not known; choose one of {', '.join(map(repr, APPLE_VALUES))}."
            )

    def check(self, params: BoardParams) -> None:
        super().check(params)
        number, respawn = np.asarray(params.num_apples), np.asarray(params.respawn)
        if not (number.min() >= 0 and number.max() <= NUM_APPLE_CELLS):
            raise ValueError(
                f"num_apples={number.tolist()} is not allowed: the room has cells for 0 to {NUM_APPLE_CELLS} apples."
            )
        if respawn.min() < 0:
            raise ValueError(
                f"respawn={respawn.tolist()} is not allowed: give the frames that an apple is away, at least 0."
            )

    @property
    def num_actions(self) -> int:
        return len(MOVES)

    def observation_space(self, params: BoardParams) -> spaces.Box:
        del params
        return spaces.Box(0.0, 1.0, (VIEW, VIEW, 3), jnp.float32)

    def scene(self, state: Any, phase: Array) -> Int[Array, "7 11"]:
        """Kind of every cell of the room of a phase, without apples and player."""
        raise NotImplementedError

    def blocks(self, state: Any, kind: Array, phase: Array) -> Bool[Array, ""]:
        """Whether the player cannot walk onto a cell of this kind."""
        raise NotImplementedError

    def touch(self, state: Any, kind: Array) -> Any:
        """The state after the player has come to stand on (or has stayed on) a cell of this kind."""
        raise NotImplementedError

    def prize(self, state: Any, params: BoardParams) -> Float[Array, ""]:
        return self.won(state) * jnp.asarray(params.prize, jnp.float32)

    def begin_board(self, key: jax.Array, params: BoardParams) -> dict[str, Array]:
        """The fields of `BoardState` at time 0."""
        start_key, apples_key, value_key = jax.random.split(key, 3)
        place = jax.random.choice(start_key, jnp.asarray(self.explore_starts))
        order = jax.random.permutation(apples_key, jnp.arange(NUM_APPLE_CELLS, dtype=jnp.int32))
        return {
            "time": jnp.zeros((), jnp.int32),
            "row": place[0],
            "column": place[1],
            "apple_wait": jnp.where(order < params.num_apples, 0, NEVER).astype(jnp.int32),
            "rich": jax.random.bernoulli(value_key).astype(jnp.int32),
            "apples": jnp.zeros((), jnp.int32),
        }

    def enter(self, state: Any, phase: Array) -> Any:
        place = jnp.where(phase == DISTRACTOR, jnp.asarray(APPLES_START), jnp.asarray(self.reward_start))
        return dataclasses.replace(state, row=place[0], column=place[1])

    def act(
        self, key: jax.Array, state: Any, action: Array, phase: Array, params: BoardParams
    ) -> tuple[Any, Float[Array, ""]]:
        row, column = self.moved(state, action, phase)
        kind = self.room(state, phase)[row, column]
        here = (jnp.asarray(APPLE_CELLS) == jnp.stack([row, column])).all(axis=1)
        picked = kind == APPLE
        wait = jnp.where(state.apple_wait == NEVER, NEVER, jnp.maximum(state.apple_wait - 1, 0))
        wait = jnp.where(here & picked, params.respawn + 1, wait).astype(jnp.int32)
        wait = jnp.where(phase == DISTRACTOR, wait, state.apple_wait)
        after = dataclasses.replace(state, row=row, column=column, apple_wait=wait, apples=state.apples + picked)
        return self.touch(after, kind), picked * self._value_of_apple(key, state, params)

    def moved(self, state: Any, action: Array, phase: Array) -> tuple[Array, Array]:
        """Row and column after an action: where it leads to, or here if that is blocked or off the board."""
        step = jnp.asarray(MOVES)[action]
        row, column = jnp.clip(state.row + step[0], 0, ROWS - 1), jnp.clip(state.column + step[1], 0, COLUMNS - 1)
        blocked = self.blocks(state, self.room(state, phase)[row, column], phase)
        return jnp.where(blocked, state.row, row), jnp.where(blocked, state.column, column)

    def reachable(self, state: Any, phase: Array) -> tuple[Int[Array, "4"], Int[Array, "4"]]:
        """Rows and columns after each of the four actions."""
        return jax.vmap(lambda action: self.moved(state, action, phase))(jnp.arange(len(MOVES)))

    def room(self, state: Any, phase: Array) -> Int[Array, "7 11"]:
        """Kind of every cell of the room of a phase, with its apples but without the player."""
        apple = (phase == DISTRACTOR) & (state.apple_wait == 0)
        return self.scene(state, phase).at[tuple(APPLE_CELLS.T)].max(jnp.where(apple, APPLE, FLOOR))

    def board(self, state: Any, params: BoardParams) -> Int[Array, "7 11"]:
        return self.room(state, self.phase(state.time, params)).at[state.row, state.column].set(PLAYER)

    def get_obs(
        self, state: Any, params: BoardParams | None = None, key: jax.Array | None = None
    ) -> Float[Array, "5 5 3"]:
        del key
        board = self.board(state, self.default_params if params is None else params)
        around = jnp.pad(board, MARGIN, constant_values=FLOOR)
        view = jax.lax.dynamic_slice(around, (state.row, state.column), (VIEW, VIEW))
        return jnp.asarray(PALETTE, jnp.float32)[view] / 255

    def _value_of_apple(self, key: jax.Array, state: Any, params: BoardParams) -> Float[Array, ""]:
        low, high = jnp.asarray(params.apple_low, jnp.float32), jnp.asarray(params.apple_high, jnp.float32)
        share = state.rich if self.apple_value == "per episode" else jax.random.uniform(key, dtype=jnp.float32)
        return low + (high - low) * share
