"""GridBomb: a bomb to defuse, paid by a lottery at the end, while every step rewards running away from it.

Reference: artificial task I of Arjona-Medina et al. (2019), "RUDDER: Return Decomposition for Delayed Rewards",
arXiv:1806.07857.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment
from jaxtyping import Array, Float

from envs.finite import FiniteEnvironment, bernoulli, certain
from envs.grid import moved

SIZE = 31
BOMB_ROW, BOMB_COLUMN = 30, 15
MIN_DISTANCE, MAX_DISTANCE = 2, BOMB_ROW
METRICS = ("hamming", "manhattan")


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time`, `row`, `column`, `visited` (the bomb has been reached); all int32 `()`."""

    time: Any
    row: Any
    column: Any
    visited: Any


@struct.dataclass
class Params:
    """Every number is traced; rewards are in reward units.

    Attributes:
      distance: rows between start and bomb, d; from 2 to the environment's static `max_distance`. The episode has
        floor(1.5 d) steps (depth).
      bomb_reward: what the lottery pays in the last step to who has visited the bomb.
      bomb_probability: chance that it pays.
      toward_cost: cost of a step towards the bomb, per unit of time and distance.
      away_reward: reward of any other step, per unit of time and distance.
    """

    distance: int = 15
    bomb_reward: float = 1000.0
    bomb_probability: float = 0.5
    toward_cost: float = 0.09
    away_reward: float = 0.1


@dataclasses.dataclass(frozen=True)
class GridBomb(FiniteEnvironment):
    """Walk down to the bomb in cell (30, 15) of a 31 x 31 grid, from d rows above it, within T = floor(1.5 d) steps.

    Step t = 1 .. T pays  c t h,  with h the distance to the bomb after the move, c = -.09 if the move came nearer to
    it and +.1 if not. The last step also pays 1000 with probability .5 if the bomb was visited by then. The episode
    terminates there and is never truncated: `time_limit` changes nothing.

    Observation `[4]` float32: row / 30, column / 30, t / T, visited. Four actions: up, down, left, right; walls stop.
    `info["decisive"]` bool marks the steps at which the bomb is not visited yet and can still be reached in time.

    Optimum: straight to the bomb, then away from it,

        hamming      500 - .045 d (d - 1)   + .1 (T (T + 1) - (d + 1)^2)
        manhattan    500 - .015 d (d^2 - 1) + .1 sum_{k = 1}^{T - d} k (d + k)      for d < 14,

    but with the Manhattan distance running away from the start,  .1 sum_{t = 1}^{T} t (d + t),  is better from d = 14
    on (654.5 and 759.0 for d = 14, 15), against the design of the task; from d = 19 on walls stop it.

    Assumption: the reference says "Hamming distance", the number of coordinates that differ (0, 1 or 2); `metric`
    offers the Manhattan distance as well. That t counts from 1, that h is taken after the move, and that a move comes
    nearer if the Manhattan distance falls (under both metrics) is what gives the optima known for the two readings.

    Attributes:
      max_distance: static bound on `params.distance`; sizes the episodic scan and the table.
      metric: static, "hamming" or "manhattan": the distance that multiplies the reward of a step.
    """

    max_distance: int = 15
    metric: str = "hamming"

    def __post_init__(self) -> None:
        if not isinstance(self.max_distance, int) or not MIN_DISTANCE <= self.max_distance <= MAX_DISTANCE:
            raise ValueError(
                f"max_distance={self.max_distance!r} is not allowed: it is static, a whole number from {MIN_DISTANCE} "
                f"to {MAX_DISTANCE}, the rows above the bomb."
            )
        if self.metric not in METRICS:
            raise ValueError(f"metric={self.metric!r} is not known; choose one of {', '.join(METRICS)}.")

    @property
    def num_actions(self) -> int:
        return 4

    @property
    def horizon(self) -> int:
        return 3 * self.max_distance // 2

    @property
    def default_params(self) -> Params:
        return Params(distance=self.max_distance)

    def check(self, params: Params) -> None:
        super().check(params)
        if np.min(params.distance) < MIN_DISTANCE or np.max(params.distance) > self.max_distance:
            raise ValueError(
                f"distance={np.asarray(params.distance).tolist()} is not allowed: it must lie between {MIN_DISTANCE} "
                f"and max_distance={self.max_distance}. Pass a larger static max_distance to start further away."
            )

    @property
    def state_sizes(self) -> State:
        return State(time=self.horizon, row=SIZE, column=SIZE, visited=2)

    def noise(self, params: Params) -> tuple[Array, Float[Array, "2"]]:
        """Whether the lottery pays: 0 or 1."""
        return bernoulli(params.bomb_probability)

    def initial(self, params: Params) -> tuple[State, Float[Array, "1"]]:
        return certain(State(time=0, row=BOMB_ROW - params.distance, column=BOMB_COLUMN, visited=0))

    def transition(
        self, state: State, action: Array, noise: Array, params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        length = _length(params)
        row, column = moved(state.row, state.column, action, SIZE)
        before, after = _manhattan(state.row, state.column), _manhattan(row, column)
        successor = State(time=state.time + 1, row=row, column=column, visited=state.visited | (after == 0))
        coordinates = (row != BOMB_ROW).astype(jnp.int32) + (column != BOMB_COLUMN)
        distance = after if self.metric == "manhattan" else coordinates
        factor = jnp.where(after < before, -params.toward_cost, params.away_reward)
        last = successor.time == length
        lottery = last * successor.visited * noise * params.bomb_reward
        reward = factor * successor.time * distance + lottery
        info = {"decisive": (state.visited == 0) & (before <= length - state.time)}
        return successor, jnp.asarray(reward, jnp.float32), last, info

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "4"]:
        del key
        settings: Params = self.default_params if params is None else params
        parts = [state.row / (SIZE - 1), state.column / (SIZE - 1), state.time / _length(settings), state.visited]
        return jnp.stack([jnp.asarray(part, jnp.float32) for part in parts])


def _length(params: Params) -> Any:
    return 3 * params.distance // 2


def _manhattan(row: Array, column: Array) -> Array:
    return jnp.abs(row - BOMB_ROW) + jnp.abs(column - BOMB_COLUMN)
