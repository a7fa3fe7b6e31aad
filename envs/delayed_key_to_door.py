"""DelayedKeyToDoor: one early decision, paid at the very end, under costs that nobody can help."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment
from jaxtyping import Array, Float

from envs.base import SizedEnvironment
from envs.finite import FiniteEnvironment, bernoulli, certain

TAKE_KEY = 0
OPEN_DOOR = 3
MIN_LENGTH = 3


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time`, `has_key`, `events` so far (this step's included), `event` in this step; all int32 `()`."""

    time: Any
    has_key: Any
    events: Any
    event: Any


@struct.dataclass
class Params:
    """Every number is traced.

    Attributes:
      length: steps per episode, at least 3 and at most the environment's static `max_length` (depth).
      event_probability: chance of a cost event in each of the steps 1 .. length - 2 (breadth).
      event_cost: what one event takes from the final reward, in reward units.
      treasure: what the door pays to who holds the key, in reward units.
    """

    length: int = 40
    event_probability: float = 0.1
    event_cost: float = 2.0
    treasure: float = 1.0


@dataclasses.dataclass(frozen=True)
class DelayedKeyToDoor(SizedEnvironment, FiniteEnvironment):
    """Take an unseen key in step 0, walk, open the door in the last step; the whole reward comes there.

    Step 0: action 0 takes the key. Steps 1 .. L-2: a cost event happens with probability `event_probability`, whatever
    the agent does. Step L-1: action 3 opens the door, the episode terminates and pays

        treasure [key and door]  -  event_cost * (number of events).

    Observation `[5]` float32: kind of cell (start, corridor, door) one-hot, t / L, event in this step. The key is never
    shown. Four actions. The end is natural (never truncated), so `time_limit` changes nothing here.
    `info["treasure"]` float32 is 1 in the last step if the treasure was obtained, else 0; `info["decisive"]` bool marks
    the steps whose action matters (the first and the last).

    The optimum is  treasure - event_cost * event_probability * (L - 2).

    Attributes:
      max_length: static bound on `params.length`; sizes the episodic scan and the table.
    """

    max_length: int = 40
    min_length: ClassVar[int] = MIN_LENGTH
    params_type: ClassVar[Any] = Params

    @property
    def num_actions(self) -> int:
        return 4

    @property
    def state_sizes(self) -> State:
        return State(time=self.max_length, has_key=2, events=self.max_length - 1, event=2)

    def noise(self, params: Params) -> tuple[Array, Float[Array, "2"]]:
        """Whether an event happens: 0 or 1."""
        return bernoulli(params.event_probability)

    def initial(self, params: Params) -> tuple[State, Float[Array, "1"]]:
        del params
        return certain(State(time=0, has_key=0, events=0, event=0))

    def transition(
        self, state: State, action: Array, noise: Array, params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        first, last = state.time == 0, state.time == params.length - 1
        treasure = last & (state.has_key == 1) & (action == OPEN_DOOR)
        reward = treasure * params.treasure - last * params.event_cost * state.events
        event = jnp.where(state.time + 1 <= params.length - 2, noise, 0)
        successor = State(
            time=state.time + 1,
            has_key=jnp.where(first, (action == TAKE_KEY).astype(jnp.int32), state.has_key),
            events=state.events + event,
            event=event,
        )
        info = {"treasure": treasure.astype(jnp.float32), "decisive": first | last}
        return successor, reward.astype(jnp.float32), last, info

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "5"]:
        del key
        settings: Params = self.default_params if params is None else params
        door = state.time >= settings.length - 1
        start = state.time == 0
        parts = [start, ~(start | door), door, state.time / settings.length, state.event]
        return jnp.stack([jnp.asarray(part, jnp.float32) for part in parts])
