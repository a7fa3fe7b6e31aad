"""FourRooms: four rooms joined by four hallways, with a goal that may move; the home of options.

References: the rooms of Sutton, Precup and Singh (1999), "Between MDPs and semi-MDPs: A framework for temporal
abstraction in reinforcement learning", Artificial Intelligence 112; Bacon, Harb and Precup (2017), "The Option-Critic
Architecture", arXiv:1609.05140, and its public code.
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
from envs.grid import MOVES

# Free cells are numbered row by row.
LAYOUT = (
    "#############",
    "#.....#.....#",
    "#.....#.....#",
    "#...........#",
    "#.....#.....#",
    "#.....#.....#",
    "##.####.....#",
    "#.....###.###",
    "#.....#.....#",
    "#.....#.....#",
    "#...........#",
    "#.....#.....#",
    "#############",
)
CELLS = np.argwhere(np.array([list(row) for row in LAYOUT]) == ".").astype(np.int32)  # row and column [104, 2]
NUM_CELLS = len(CELLS)
NUMBER = {(int(row), int(column)): cell for cell, (row, column) in enumerate(CELLS)}

# The four hallways: north, west, east, south.
HALLWAYS = tuple(NUMBER[place] for place in ((3, 6), (6, 2), (7, 9), (10, 6)))
NORTH, WEST, EAST, SOUTH = HALLWAYS
UPPER_LEFT, UPPER_RIGHT, LOWER_LEFT, LOWER_RIGHT = range(4)
# The room of every cell [104]; -1 in a hallway.
ROOM = np.array(
    [
        -1 if cell in HALLWAYS else 2 * (row > (5 if column < 6 else 6)) + (column > 6)
        for cell, (row, column) in enumerate(CELLS)
    ],
    np.int32,
)
# The eight hallway options, two per room: the room that it starts in, the hallway through which it leaves, and the
# room's other hallway, where it may start as well. It follows a shortest way and ends in the hallway.
HALLWAY_OPTIONS = (
    (UPPER_LEFT, NORTH, WEST),
    (UPPER_LEFT, WEST, NORTH),
    (UPPER_RIGHT, NORTH, EAST),
    (UPPER_RIGHT, EAST, NORTH),
    (LOWER_LEFT, WEST, SOUTH),
    (LOWER_LEFT, SOUTH, WEST),
    (LOWER_RIGHT, EAST, SOUTH),
    (LOWER_RIGHT, SOUTH, EAST),
)
DYNAMICS = ("deterministic", "slip", "option-critic")
# A number that every number of free neighbours (2, 3, 4) divides, so that one lot picks any of them equally often.
NUM_LOTS = 12


def _follows() -> dict[str, np.ndarray]:
    """The cell `[104, 4, K]` that follows each cell, action and value of chance, per dynamics."""
    move = [[NUMBER.get((r + i, c + j), cell) for i, j in MOVES] for cell, (r, c) in enumerate(CELLS)]
    move = np.array(move, np.int32)
    free = [np.setdiff1d(followers, [cell]) for cell, followers in enumerate(move)]
    further = np.stack([np.resize(cells, NUM_LOTS) for cells in free]).astype(np.int32)
    stays = move == np.arange(NUM_CELLS)[:, None]
    return {
        "deterministic": move[:, :, None],
        "slip": np.stack([np.roll(move, -turn, axis=1) for turn in range(4)], axis=2),
        "option-critic": np.concatenate(
            [move[:, :, None], np.where(stays[:, :, None], move[:, :, None], further[move])], axis=2
        ),
    }


FOLLOWS = _follows()


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time`, `cell`, the number of the cell; both int32 `()`."""

    time: Any
    cell: Any


@struct.dataclass
class Params:
    """Every number is traced.

    Attributes:
      length: time limit in steps, at least 1 and at most the environment's static `max_length`.
      goal: number of the goal's cell, 0 to 103. It may change between two calls of `jc.advance` without compiling anew.
      slip_probability: "slip": chance that a move goes in one of the three other directions, equally likely;
        "option-critic": chance that a random step follows; without effect in "deterministic".
    """

    length: int = 1000
    goal: int = EAST
    slip_probability: float = 1 / 3


@dataclasses.dataclass(frozen=True)
class FourRooms(TimeLimitedEnvironment, FiniteEnvironment):
    """Walk from any cell to the goal, through hallways one cell wide; entering the goal pays 1 and terminates.

    104 free cells on a 13 x 13 map, numbered row by row; a move into a wall stays. The start is any cell but the goal,
    which is not shown. By default the goal is the east hallway, cell 62 at (7, 9). The time limit, which the agent
    cannot see, truncates. What a move does is `dynamics`:

    "deterministic": it succeeds.
    "slip": it succeeds with probability 2/3, and goes in each other direction with 1/9.
    "option-critic": it succeeds; with probability 1/3 a step to a random free neighbour follows at once, unless a wall
    stopped the move. Only where the agent comes to stand counts as entering.

    Observation `[104]` float32: cell one-hot. Four actions: up, down, left, right. `info["decisive"]` bool marks the
    steps beside the goal. This module's HALLWAYS, ROOM and HALLWAY_OPTIONS name the parts that options are made of.

    Shortest ways to the default goal, mean and greatest over all starts, in expected steps: deterministic 7.59 and 14,
    slip 15.01 and 26.1, option-critic 8.39 and 14.8. The uniform policy takes 502, 502 and 430 without a time limit.

    Assumption: the option-critic's dynamics are those of its public code; the paper names the slip of 1999. gymnax's
    FourRooms-misc is another environment: by default its start and goal are fixed.

    Attributes:
      dynamics: static, "deterministic", "slip" or "option-critic".
      max_length: static bound on `params.length`; sizes the episodic scan.
    """

    dynamics: str = "slip"
    max_length: int = 1000
    min_length: ClassVar[int] = 1
    params_type: ClassVar[Any] = Params

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dynamics not in DYNAMICS:
            raise ValueError(f"dynamics={self.dynamics!r} is not known; choose one of {', '.join(DYNAMICS)}.")

    def check(self, params: Params) -> None:
        super().check(params)
        if np.min(params.goal) < 0 or np.max(params.goal) >= NUM_CELLS:
            raise ValueError(
                f"goal={np.asarray(params.goal).tolist()} is not allowed: it is the number of a free cell, from 0 to "
                f"{NUM_CELLS - 1}; envs.four_rooms.NUMBER gives that of a row and column."
            )

    @property
    def num_actions(self) -> int:
        return 4

    @property
    def state_sizes(self) -> State:
        return State(time=1, cell=NUM_CELLS)

    def noise(self, params: Params) -> tuple[Array, Float[Array, "K"]]:
        """0: the move succeeds; then how far the direction turns (slip), or the lot of the step that follows."""
        others = FOLLOWS[self.dynamics].shape[2] - 1
        slip = jnp.asarray(params.slip_probability if others else 0, jnp.float32)
        probability = jnp.append(1 - slip, jnp.full(others, slip / max(others, 1)))
        return jnp.arange(1 + others, dtype=jnp.int32), probability

    def initial(self, params: Params) -> tuple[State, Float[Array, "N"]]:
        cell = jnp.arange(NUM_CELLS - 1, dtype=jnp.int32)
        cell = cell + (cell >= params.goal)  # all but the goal
        return State(time=jnp.zeros_like(cell), cell=cell), jnp.full(NUM_CELLS - 1, 1 / (NUM_CELLS - 1))

    def transition(
        self, state: State, action: Array, noise: Array, params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        cell = jnp.asarray(FOLLOWS[self.dynamics])[state.cell, action, noise]
        entered = cell == params.goal
        beside = (jnp.asarray(FOLLOWS["deterministic"])[state.cell] == params.goal).any()
        info = {"decisive": beside & (state.cell != params.goal)}
        return State(time=state.time + 1, cell=cell), jnp.asarray(entered, jnp.float32), entered, info

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "104"]:
        del params, key
        return jax.nn.one_hot(state.cell, NUM_CELLS, dtype=jnp.float32)
