"""PhasedKeyToDoor: a key in the first room opens the door in the last; between them lies a room full of apples.

Reference: the key-to-door task of Hung et al. (2019), "Optimizing agent behavior over long time scales by transporting
value", arXiv:1810.06721, in the pycolab form of its public code.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int

from envs.phased import EXPLORE
from envs.phased_board import (
    DISTRACTOR_ROOM,
    DOOR,
    FLOOR,
    INDICATOR,
    KEY,
    WALL,
    BoardParams,
    BoardState,
    PhasedBoard,
    cells,
    kinds,
)

EXPLORE_ROOM = (
    "..#######..",
    "..#KKKKK#..",
    "..#KKKKK#..",
    "..##...##..",
    "..#PPPPP#..",
    "..#PPPPP#..",
    "..#######..",
)
REWARD_ROOM = (
    "...........",
    "...##D##...",
    "...#...#...",
    "...#.P.#...",
    "...#...#...",
    "...#####...",
    "...........",
)
SCENES = np.stack([kinds(EXPLORE_ROOM, {}), kinds(DISTRACTOR_ROOM, {}), kinds(REWARD_ROOM, {"D": DOOR})])
KEY_CELLS = cells(EXPLORE_ROOM, "K")
INDICATOR_CELL = (0, 5)

UNTAKEN, HELD, USED = range(3)


@struct.dataclass
class State(BoardState):
    """Attributes: those of `BoardState` and, int32 `()`, `key_cell`, the number of the cell that the key is in at the
    start; `key`, untaken (0), held (1) or used (2); `indicator`, the key was taken in the last step."""

    key_cell: Any
    key: Any
    indicator: Any


@dataclasses.dataclass(frozen=True)
class PhasedKeyToDoor(PhasedBoard):
    """Take the key, eat apples, open the door: 15, 90 and 15 steps by default, in three rooms of a 7 x 11 board.

    Explore: two rooms of 2 x 5 joined by a gap of three cells. The player starts in one of the ten cells of the lower
    one, the key lies in one of the ten of the upper one. Walking onto it takes it, which pays nothing; a white cell
    shows in the upper wall for one frame. Distractor: apples hang in 10 of 18 cells; walking onto one eats it, and it
    is back in the 21st frame after that. Whether they pay 1 or 10 is the same for all apples of an episode. Reward: a
    room of 3 x 3, whose door is closed to who has no key; the first to walk onto it with the key gets 10, which uses
    the key up. The timer alone ends a phase. The end of the last one is `terminated`: nothing follows, and a learner
    bootstraps with 0. Never truncated, so `time_limit` changes nothing here.

    Observation `[5, 5, 3]` float32 in [0, 1]: the colours of the cells around the player, who is in the middle; beyond
    the board they are those of the floor. Neither the time, nor the key once taken, is shown: a policy needs memory.
    Four actions: north, south, west, east. In `info`, float32: "key", 1 once the key has been taken; "apples", number
    eaten so far; "treasure" and "last_phase_reward", 1 and the prize in the last step if the door was opened, else 0.
    `info["decisive"]` bool marks the steps beside the key, and those beside the door with the key in hand.

    The key and the door are always within reach: the last phase of the best policy pays 10. It pays 0 without the key.

    Assumption: the player is drawn above everything else. The public code's apple cells are these 18 and four more in
    the player's row. There, too, the door stays open once it was opened, and the open door leads off the room.
    """

    explore_starts: ClassVar[np.ndarray] = cells(EXPLORE_ROOM, "P")
    reward_start: ClassVar[np.ndarray] = cells(REWARD_ROOM, "P")[0]

    def begin(self, key: jax.Array, params: BoardParams) -> State:
        board_key, cell_key = jax.random.split(key)
        return State(
            **self.begin_board(board_key, params),
            key_cell=jax.random.randint(cell_key, (), 0, len(KEY_CELLS), jnp.int32),
            key=jnp.full((), UNTAKEN, jnp.int32),
            indicator=jnp.zeros((), jnp.int32),
        )

    def scene(self, state: State, phase: Array) -> Int[Array, "7 11"]:
        row, column = jnp.asarray(KEY_CELLS)[state.key_cell]
        exploring = phase == EXPLORE
        key = jnp.where(exploring & (state.key == UNTAKEN), KEY, FLOOR)
        indicator = jnp.where(exploring & (state.indicator == 1), INDICATOR, FLOOR)
        return jnp.asarray(SCENES)[phase].at[row, column].max(key).at[INDICATOR_CELL].max(indicator)

    def blocks(self, state: State, kind: Array, phase: Array) -> Bool[Array, ""]:
        del phase
        return (kind == WALL) | (kind == INDICATOR) | ((kind == DOOR) & (state.key == UNTAKEN))

    def touch(self, state: State, kind: Array) -> State:
        taken = kind == KEY
        used = (kind == DOOR) & (state.key == HELD)
        key = jnp.where(taken, HELD, jnp.where(used, USED, state.key))
        return dataclasses.replace(state, key=key.astype(jnp.int32), indicator=taken.astype(jnp.int32))

    def won(self, state: State) -> Bool[Array, ""]:
        return state.key == USED

    def report(self, before: State, after: State, phase: Array, params: BoardParams) -> dict[str, Array]:
        del params
        ahead = self.room(before, phase)[self.reachable(before, phase)]
        return {
            "key": (after.key != UNTAKEN).astype(jnp.float32),
            "apples": after.apples.astype(jnp.float32),
            "decisive": ((ahead == KEY) | ((ahead == DOOR) & (before.key == HELD))).any(),
        }

    def caption(self, state: State, params: BoardParams) -> str:
        return f"{super().caption(state, params)}, key {('untaken', 'held', 'used')[int(state.key)]}"
