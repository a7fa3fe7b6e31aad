"""TraceBack: the first two of many moves decide; they are punished at once and rewarded at the very end.

Reference: artificial task III of Arjona-Medina et al. (2019), "RUDDER: Return Decomposition for Delayed Rewards",
arXiv:1806.07857.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment
from jaxtyping import Array, Float

from envs.base import SizedEnvironment
from envs.finite import FiniteEnvironment, certain, uniform
from envs.grid import RIGHT, moved

SIZE = 15
START = 7
MIN_LENGTH = 3


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time`, `row`, `column`, `traced` (the episode began up, right); all int32 `()`."""

    time: Any
    row: Any
    column: Any
    traced: Any


@struct.dataclass
class Params:
    """Every number is traced.

    Attributes:
      length: moves per episode, at least 3 and at most the environment's static `max_length` (depth).
      immediate_reward: what the second move pays, in reward units; its negative if the episode began up, right.
      final_reward: what the last move pays if the episode began up, right, in reward units.
    """

    length: int = 20
    immediate_reward: float = 50.0
    final_reward: float = 150.0


@dataclasses.dataclass(frozen=True)
class TraceBack(SizedEnvironment, FiniteEnvironment):
    """Begin up, right on a 15 x 15 grid, and then be carried about at random; only these two moves matter.

    From cell (7, 7) the first two moves go where they are meant to; all later ones go in a random direction, whatever
    the action. The second move pays -50 if the episode began up, right, and the last one then pays 150; otherwise the
    second move pays 50 and the last nothing. The episode terminates and is never truncated: `time_limit` changes
    nothing.

    Observation `[3]` float32: row / 14, column / 14, t / L. How the episode began is not shown after the second move,
    and no policy needs it. Four actions: up, down, left, right; walls stop. `info["decisive"]` bool marks the first two
    steps.

    The optimum is 100; every other begin returns 50.

    Assumption: walls stop a move that would leave the grid, and the position is shown together with the time.

    Attributes:
      max_length: static bound on `params.length`; sizes the episodic scan and the table.
    """

    max_length: int = 20
    min_length: ClassVar[int] = MIN_LENGTH
    params_type: ClassVar[Any] = Params

    @property
    def num_actions(self) -> int:
        return 4

    @property
    def state_sizes(self) -> State:
        return State(time=self.max_length, row=SIZE, column=SIZE, traced=2)

    def noise(self, params: Params) -> tuple[Array, Float[Array, "4"]]:
        """The direction of a random move."""
        del params
        return uniform(4)

    def initial(self, params: Params) -> tuple[State, Float[Array, "1"]]:
        del params
        return certain(State(time=0, row=START, column=START, traced=0))

    def transition(
        self, state: State, action: Array, noise: Array, params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        free, second, last = state.time < 2, state.time == 1, state.time == params.length - 1
        row, column = moved(state.row, state.column, jnp.where(free, action, noise), SIZE)
        went_up = (state.row == START - 1) & (state.column == START)
        begins_right = second & went_up & (action == RIGHT)
        traced = state.traced | begins_right
        reward = second * params.immediate_reward * (1 - 2 * begins_right) + last * params.final_reward * traced
        successor = State(time=state.time + 1, row=row, column=column, traced=traced)
        return successor, jnp.asarray(reward, jnp.float32), last, {"decisive": free}

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "3"]:
        del key
        length = self.max_length if params is None else params.length
        parts = [state.row / (SIZE - 1), state.column / (SIZE - 1), state.time / length]
        return jnp.stack([jnp.asarray(part, jnp.float32) for part in parts])
