"""WatchRepair: buy and repair a watch, and learn fifty steps later whether it paid.

Reference: the pocket-watch example of Arjona-Medina et al. (2019), "RUDDER: Return Decomposition for Delayed Rewards",
arXiv:1806.07857, with the numbers of the authors' public demonstration code.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces
from jaxtyping import Array, Float

from envs.base import SizedEnvironment

NUM_BRANDS = 4
REPAIR = 0
MIN_LENGTH = 2


def _per_brand(*values: float) -> Any:
    return dataclasses.field(default_factory=lambda: jnp.array(values, jnp.float32))


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time`, `repaired`, `jams` and `flats` so far, `brand`; all int32 `()`."""

    time: Any
    repaired: Any
    jams: Any
    flats: Any
    brand: Any


@struct.dataclass
class Params:
    """Every number is traced; arrays `[4]` hold one value per brand, in reward units.

    Attributes:
      length: steps per episode, at least 2 and at most the environment's static `max_length` (depth).
      repair_cost, repair_deviation: mean and standard deviation of the (normal) cost of repairing, paid at once.
      price: what a repaired watch brings at the end.
      delivery_cost, delivery_deviation: mean and standard deviation of the (normal) cost of delivering it.
      jam_probability, jam_cost: chance of a traffic jam in every step, and what it costs on delivery.
      flat_probability, flat_cost: the same for a flat tyre.
    """

    length: int = 50
    repair_cost: Any = _per_brand(1.0, 4.0, 5.0, 24.5)
    repair_deviation: Any = _per_brand(2.0, 2.0, 2.0, 1.0)
    price: Any = _per_brand(18.0, 28.0, 31.0, 59.0)
    delivery_cost: Any = _per_brand(0.5, 2.5, 4.5, 18.0)
    delivery_deviation: float = 1.5
    jam_probability: float = 0.1
    jam_cost: float = 0.1
    flat_probability: float = 0.05
    flat_cost: float = 7.0


@dataclasses.dataclass(frozen=True)
class WatchRepair(SizedEnvironment):
    """Decide in step 0 whether to repair (action 0) a watch of a random brand, or not (action 1).

    Repairing costs at once; the price, less delivery, jams and flat tyres on the way, comes in the last step. Later
    actions do nothing. The episode terminates in the last step and is never truncated: `time_limit` changes nothing.

    Observation `[8]` float32: repaired, jams / L, flats / L, brand one-hot (4), t / L.
    `info["decisive"]` bool marks step 0.

    By `action_values`, repairing is worth (-1.5, 3.5, 3.5, -1.5), not repairing 0: the optimum is 1.75.

    Attributes:
      max_length: static bound on `params.length`.
    """

    max_length: int = 50
    min_length: ClassVar[int] = MIN_LENGTH
    params_type: ClassVar[Any] = Params

    @property
    def num_actions(self) -> int:
        return 2

    def action_values(self, params: Params) -> Float[Array, "4 2"]:
        """Exact expected return of both actions in step 0, per brand, in reward units."""
        jams = params.length * params.jam_probability * params.jam_cost
        flats = params.length * params.flat_probability * params.flat_cost
        repair = params.price - params.repair_cost - params.delivery_cost - jams - flats
        return jnp.stack([repair, jnp.zeros_like(repair)], axis=1)

    def step_env(
        self, key: jax.Array, state: State, action: Array, params: Params
    ) -> tuple[Array, State, Array, Array, dict[str, Array]]:
        accident_key, cost_key = jax.random.split(key)
        accident = jax.random.uniform(accident_key, (2,))
        # Repair and delivery fall into different steps, so one draw serves whichever is due.
        normal = jax.random.normal(cost_key)
        first, last = state.time == 0, state.time == params.length - 1
        repairs = first & (action == REPAIR)
        state = State(
            time=state.time + 1,
            repaired=state.repaired | repairs,
            jams=state.jams + (accident[0] < params.jam_probability),
            flats=state.flats + (accident[1] < params.flat_probability),
            brand=state.brand,
        )
        repair = params.repair_cost[state.brand] + params.repair_deviation[state.brand] * normal
        delivery = params.delivery_cost[state.brand] + params.delivery_deviation * normal
        accidents = params.jam_cost * state.jams + params.flat_cost * state.flats
        delivered = last & (state.repaired == 1)
        reward = delivered * (params.price[state.brand] - delivery - accidents) - repairs * repair
        return self.get_obs(state, params), state, reward.astype(jnp.float32), last, {"decisive": first}

    def reset_env(self, key: jax.Array, params: Params) -> tuple[Array, State]:
        zero = jnp.zeros((), jnp.int32)
        # One draw; `randint` makes two, and every step of a training loop runs a reset.
        brand = (NUM_BRANDS * jax.random.uniform(key)).astype(jnp.int32)
        state = State(time=zero, repaired=zero, jams=zero, flats=zero, brand=brand)
        return self.get_obs(state, params), state

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "8"]:
        del key
        length = self.max_length if params is None else params.length
        counts = jnp.stack([state.repaired, state.jams / length, state.flats / length]).astype(jnp.float32)
        time = jnp.asarray(state.time / length, jnp.float32)
        return jnp.concatenate([counts, jax.nn.one_hot(state.brand, NUM_BRANDS, dtype=jnp.float32), time[None]])

    def observation_space(self, params: Params) -> spaces.Box:
        del params
        return spaces.Box(0.0, 1.0, (3 + NUM_BRANDS + 1,), jnp.float32)
