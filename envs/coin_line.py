"""CoinLine: walk along a line; every visit of the coin's cell is paid for, but only in the last step.

Reference: the one-dimensional task of the RUDDER tutorial by the authors of Arjona-Medina et al. (2019), "RUDDER:
Return Decomposition for Delayed Rewards", arXiv:1806.07857.
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
from envs.finite import FiniteEnvironment, certain

NUM_POSITIONS = 13
START, COIN = 7, 9
MIN_LENGTH = 3


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time`, `position`, `visits` of the coin before now; all int32 `()`."""

    time: Any
    position: Any
    visits: Any


@struct.dataclass
class Params:
    """Every number is traced.

    Attributes:
      length: steps per episode, at least 3 and at most the environment's static `max_length` (depth).
      coin: what one visit pays, in reward units.
    """

    length: int = 50
    coin: float = 1.0


@dataclasses.dataclass(frozen=True)
class CoinLine(SizedEnvironment, FiniteEnvironment):
    """Step left (action 0) or right (action 1) on the positions 0 .. 12, from 7; the coin lies on 9.

    A visit is a time t = 0 .. L-1 at which position 9 is held, just before the action of step t: the start counts, what
    the last action leads to does not, so the last action does nothing. The last step pays the number of visits, and the
    episode terminates; it is never truncated: `time_limit` changes nothing. At the ends of the line a step outwards
    stays.

    Observation `[14]` float32: position one-hot (13), t / L. The visits so far are not shown, and no policy needs them.
    Two actions. `info["decisive"]` bool marks all steps but the last.

    Away from the ends a step always moves, so the coin is held at every other time at most, from t = 2 on: the optimum
    is floor((L - 1) / 2), 24 for L = 50 (t = 2, 4, .., 48).

    Assumption: the time is shown; the tutorial feeds the position and leaves the time to the sequence model.

    Attributes:
      max_length: static bound on `params.length`; sizes the episodic scan and the table.
    """

    max_length: int = 50
    min_length: ClassVar[int] = MIN_LENGTH
    params_type: ClassVar[Any] = Params

    @property
    def num_actions(self) -> int:
        return 2

    @property
    def state_sizes(self) -> State:
        return State(time=self.max_length, position=NUM_POSITIONS, visits=self.max_length // 2 + 1)

    def initial(self, params: Params) -> tuple[State, Float[Array, "1"]]:
        del params
        return certain(State(time=0, position=START, visits=0))

    def transition(
        self, state: State, action: Array, noise: Array, params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        del noise
        last = state.time == params.length - 1
        successor = State(
            time=state.time + 1,
            position=jnp.clip(state.position + 2 * action - 1, 0, NUM_POSITIONS - 1),
            visits=state.visits + (state.position == COIN),
        )
        reward = last * params.coin * successor.visits
        return successor, jnp.asarray(reward, jnp.float32), last, {"decisive": ~last}

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "14"]:
        del key
        length = self.max_length if params is None else params.length
        time = jnp.asarray(state.time / length, jnp.float32)
        return jnp.concatenate([jax.nn.one_hot(state.position, NUM_POSITIONS, dtype=jnp.float32), time[None]])
