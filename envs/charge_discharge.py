"""ChargeDischarge: a small reward now, or ten times as much that is paid at the end and needs a step without any.

Reference: artificial task IV of Arjona-Medina et al. (2019), "RUDDER: Return Decomposition for Delayed Rewards",
arXiv:1806.07857 (appendix).
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

CHARGE, DISCHARGE = 0, 1
MIN_LENGTH = 3


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time`, `charged` (state C, else D), `discharges` of a charged battery so far; all int32 `()`."""

    time: Any
    charged: Any
    discharges: Any


@struct.dataclass
class Params:
    """Every number is traced.

    Attributes:
      length: steps per episode, at least 3 and at most the environment's static `max_length` (depth).
      immediate_reward: what discharging an empty battery pays at once, in reward units.
      delayed_reward: what discharging a charged one pays, in the last step, in reward units.
    """

    length: int = 13
    immediate_reward: float = 1.0
    delayed_reward: float = 10.0


@dataclasses.dataclass(frozen=True)
class ChargeDischarge(SizedEnvironment, FiniteEnvironment):
    """Charge (action 0) or discharge (action 1) a battery that is charged (C) or not (D).

    Discharging in D pays 1 at once. Discharging in C adds 10 to an account that is paid in the last step, after which
    the episode terminates. Charging pays nothing. Never truncated: `time_limit` changes nothing.

    Observation `[3]` float32: state one-hot (C, D), t / L. The account is not shown, and no policy needs it. Two
    actions. `info["decisive"]` bool: every step is.

    Every 10 costs two steps, a 1 costs one, so the optimum alternates: charge, discharge, ... It is
    10 floor(L / 2) + (L mod 2): with an odd number of steps one is left for a 1, before, between or after.

    Assumption: charging leads to C and discharging to D, with certainty; the battery is empty (D) at the start.

    Attributes:
      max_length: static bound on `params.length`; sizes the episodic scan and the table.
    """

    max_length: int = 13
    min_length: ClassVar[int] = MIN_LENGTH
    params_type: ClassVar[Any] = Params

    @property
    def num_actions(self) -> int:
        return 2

    @property
    def state_sizes(self) -> State:
        return State(time=self.max_length, charged=2, discharges=self.max_length // 2 + 1)

    def initial(self, params: Params) -> tuple[State, Float[Array, "1"]]:
        del params
        return certain(State(time=0, charged=0, discharges=0))

    def transition(
        self, state: State, action: Array, noise: Array, params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        del noise
        last, discharges = state.time == params.length - 1, action == DISCHARGE
        successor = State(
            time=state.time + 1,
            charged=(action == CHARGE).astype(jnp.int32),
            discharges=state.discharges + (discharges & (state.charged == 1)),
        )
        immediate = params.immediate_reward * (discharges & (state.charged == 0))
        reward = immediate + last * params.delayed_reward * successor.discharges
        return successor, jnp.asarray(reward, jnp.float32), last, {"decisive": jnp.ones((), bool)}

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "3"]:
        del key
        length = self.max_length if params is None else params.length
        parts = [state.charged, 1 - state.charged, state.time / length]
        return jnp.stack([jnp.asarray(part, jnp.float32) for part in parts])
