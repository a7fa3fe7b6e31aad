"""ActiveVisualMatch: a colour seen in the first room tells which of three is worth something in the last.

Reference: the active visual match task of Hung et al. (2019), "Optimizing agent behavior over long time scales by
transporting value", arXiv:1810.06721, in the pycolab form of its public code.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from envs.phased import EXPLORE, REWARD
from envs.phased_board import (
    BLUE,
    DISTRACTOR_ROOM,
    FLOOR,
    GREEN,
    MARGIN,
    RED,
    WALL,
    BoardParams,
    BoardState,
    PhasedBoard,
    cells,
    kinds,
)

EXPLORE_ROOM = (
    "..#######..",
    "..#.....#..",
    "..#.....#..",
    "..##...##..",
    "..#PPPPP#..",
    "..#PPPPP#..",
    "..#######..",
)
REWARD_ROOM = (
    "###########",
    "#.R..G..B.#",
    "#.........#",
    "#.........#",
    "####...####",
    "...#.P.#...",
    "...#####...",
)
COLOURS = {"R": RED, "G": GREEN, "B": BLUE}
SCENES = np.stack([kinds(EXPLORE_ROOM, {}), kinds(DISTRACTOR_ROOM, {}), kinds(REWARD_ROOM, COLOURS)])
BLOCK_CELLS = cells(EXPLORE_ROOM, "#")

UNTOUCHED, WRONG, RIGHT = range(3)


@struct.dataclass
class State(BoardState):
    """Attributes: those of `BoardState` and, int32 `()`, `target`, the colour that counts (0, 1, 2: red, green, blue);
    `block`, the number of the wall cell that shows it; `seen`, it has been in view; `choice`, which colour has been
    touched in the last room: none (0), a wrong one (1) or the right one (2)."""

    target: Any
    block: Any
    seen: Any
    choice: Any


@dataclasses.dataclass(frozen=True)
class ActiveVisualMatch(PhasedBoard):
    """Find the coloured block, eat apples, walk onto the cell of its colour: 15, 90 and 15 steps by default.

    Explore: the two joined rooms of `PhasedKeyToDoor`, without a key; one of their 26 wall cells is a block of the
    target colour, red, green or blue. It has to come into view to be known. Distractor: the apples of
    `PhasedKeyToDoor`. Reward: a wide room with a red, a green and a blue cell, in this order from west to east. Walking
    onto the target colour pays 10, onto another 0; either way all three are gone. The timer alone ends a phase. The end
    of the last one is `terminated`: nothing follows, and a learner bootstraps with 0. Never truncated, so `time_limit`
    changes nothing here.

    Observation `[5, 5, 3]` float32 in [0, 1]: the colours of the cells around the player, who is in the middle; beyond
    the board they are those of the floor. Neither the time nor the target is shown later on: a policy needs memory.
    Four actions: north, south, west, east. In `info`, float32: "seen", 1 once the block has been in an observation;
    "apples", number eaten so far; "treasure" and "last_phase_reward", 1 and the prize in the last step if the target
    was touched, else 0. `info["decisive"]` bool marks the steps of which some action brings the unseen block into view,
    and those beside the colours of the last room.

    Who touches a colour without knowing gets 10 / 3 on average; who looks around first gets 10.

    Assumption: the places of the colours in the last room are the same in every episode, as within a run of the public
    code, which draws them anew for every run. Every wall cell is equally likely to be the block, so that it is often
    in view at the start. The player is drawn above everything else. The public code's apple cells are the 18 here and
    four more in the player's row.
    """

    explore_starts: ClassVar[np.ndarray] = cells(EXPLORE_ROOM, "P")
    reward_start: ClassVar[np.ndarray] = cells(REWARD_ROOM, "P")[0]

    def begin(self, key: jax.Array, params: BoardParams) -> State:
        board_key, target_key, block_key = jax.random.split(key, 3)
        return State(
            **self.begin_board(board_key, params),
            target=jax.random.randint(target_key, (), 0, len(COLOURS), jnp.int32),
            block=jax.random.randint(block_key, (), 0, len(BLOCK_CELLS), jnp.int32),
            seen=jnp.zeros((), jnp.int32),
            choice=jnp.full((), UNTOUCHED, jnp.int32),
        )

    def act(
        self, key: jax.Array, state: State, action: Array, phase: Array, params: BoardParams
    ) -> tuple[State, Float[Array, ""]]:
        visible = (phase == EXPLORE) & _sees(state.row, state.column, state.block)
        return super().act(key, dataclasses.replace(state, seen=state.seen | visible), action, phase, params)

    def scene(self, state: State, phase: Array) -> Int[Array, "7 11"]:
        row, column = jnp.asarray(BLOCK_CELLS)[state.block]
        block = jnp.where(phase == EXPLORE, RED + state.target, FLOOR)
        scene = jnp.asarray(SCENES)[phase]
        scene = jnp.where((scene >= RED) & (state.choice != UNTOUCHED), FLOOR, scene)
        return scene.at[row, column].max(block)

    def blocks(self, state: State, kind: Array, phase: Array) -> Bool[Array, ""]:
        del state
        return (kind == WALL) | ((kind >= RED) & (phase == EXPLORE))

    def touch(self, state: State, kind: Array) -> State:
        choice = jnp.where(kind == RED + state.target, RIGHT, WRONG)
        return dataclasses.replace(state, choice=jnp.where(kind >= RED, choice, state.choice).astype(jnp.int32))

    def won(self, state: State) -> Bool[Array, ""]:
        return state.choice == RIGHT

    def report(self, before: State, after: State, phase: Array, params: BoardParams) -> dict[str, Array]:
        row, column = self.reachable(before, phase)
        stays = self.phase(before.time + 1, params) == EXPLORE
        unseen = (phase == EXPLORE) & stays & (after.seen == 0)
        looks = unseen & _sees(row, column, before.block).any()
        chooses = (phase == REWARD) & (self.room(before, phase)[row, column] >= RED).any()
        return {
            "seen": after.seen.astype(jnp.float32),
            "apples": after.apples.astype(jnp.float32),
            "decisive": looks | chooses,
        }

    def caption(self, state: State, params: BoardParams) -> str:
        return f"{super().caption(state, params)}, target {('red', 'green', 'blue')[int(state.target)]}"


def _sees(row: Int[Array, "..."], column: Int[Array, "..."], block: Int[Array, ""]) -> Bool[Array, "..."]:
    """Whether the block is within view of the cell."""
    place = jnp.asarray(BLOCK_CELLS)[block]
    return (jnp.abs(row - place[0]) <= MARGIN) & (jnp.abs(column - place[1]) <= MARGIN)
