"""CreditMaze: one decision that counts, with the three difficulties of credit assignment as independent knobs.

Ours: no published task lets depth, breadth and density be turned one at a time.
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

from envs.finite import FiniteEnvironment, bernoulli, certain, independent

TAKE_KEY = 0


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time`, `has_key`; both int32 `()`."""

    time: Any
    has_key: Any


@struct.dataclass
class Params:
    """Every number is traced.

    Attributes:
      depth: steps from the decision to its payment; at least 1 and at most the environment's static `max_depth`.
      breadth: irrelevant decisions on the way, spread evenly over it; at most `depth`.
      density: chance that the payment is made at all.
      noise: size of the reward of an irrelevant decision, plus or minus this with equal chance.
      treasure: the payment.
      visible: what the observation shows of the key is multiplied by this; 0 hides it.
    """

    depth: int = 64
    breadth: int = 8
    density: float = 1.0
    noise: float = 0.5
    treasure: float = 1.0
    visible: float = 1.0


@dataclasses.dataclass(frozen=True)
class CreditMaze(FiniteEnvironment):
    """Step 0: action 0 of four takes the key. Then `depth` steps of corridor; the last pays for the key.

    A corridor step t holds an irrelevant decision if  floor(t b / d) > floor((t - 1) b / d):  its reward is
    +-noise by a coin, the other way round for odd actions, so every action is worth 0. The reward of step `depth` adds
    the treasure, if the key was taken and with probability `density`. Then the episode terminates; it is never
    truncated, so `time_limit` changes nothing here.

    Observation `[5]` float32: at the fork, at an irrelevant decision, t / depth, and the key as (taken, missed), from
    step 1 on. `info["treasure"]` float32 is 1 in the last step if the key was taken, else 0; `info["decisive"]` bool
    marks step 0.

    With a treasure of at least 0 the optimum is  density * treasure,  a policy's return
    density * treasure * pi(0 | fork).  Its exact credit is
    density * treasure * (1(a = 0) - pi(0 | fork))  at the fork and 0 everywhere else.

    Attributes:
      max_depth: static bound on `params.depth`.
    """

    max_depth: int = 64

    def __post_init__(self) -> None:
        if type(self.max_depth) is not int or self.max_depth < 1:
            raise ValueError(f"max_depth={self.max_depth!r} is not allowed: it is static, a whole number from 1 up.")

    @property
    def horizon(self) -> int:
        return self.max_depth + 1

    @property
    def num_actions(self) -> int:
        return 4

    @property
    def default_params(self) -> Params:
        return Params(depth=self.max_depth, breadth=min(8, self.max_depth))

    @property
    def state_sizes(self) -> State:
        return State(time=self.horizon, has_key=2)

    def check(self, params: Params) -> None:
        super().check(params)
        depth, breadth = np.asarray(params.depth), np.asarray(params.breadth)
        if not (depth.min() >= 1 and depth.max() <= self.max_depth):
            raise ValueError(
                f"depth={depth.tolist()} is not allowed: it must lie between 1 and max_depth={self.max_depth}. Pass a "
                "larger static max_depth to go deeper."
            )
        if not (breadth.min() >= 0 and np.all(breadth <= depth)):
            raise ValueError(
                f"breadth={breadth.tolist()} is not allowed with depth={depth.tolist()}: the corridor holds from 0 to "
                "depth decisions. Make it deeper, or give a smaller breadth."
            )

    def noise(self, params: Params) -> tuple[tuple[Array, Array], Float[Array, "4"]]:
        """Whether the payment is made (0 or 1), and the coin of the irrelevant decision (0 or 1)."""
        return independent(bernoulli(params.density), bernoulli(0.5))

    def initial(self, params: Params) -> tuple[State, Float[Array, "1"]]:
        del params
        return certain(State(time=0, has_key=0))

    def transition(
        self, state: State, action: Array, noise: tuple[Array, Array], params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        paid, coin = noise
        fork, last = state.time == 0, state.time >= params.depth
        luck = jnp.where((coin + action) % 2 == 0, 1.0, -1.0)
        treasure = last * state.has_key
        reward = self._is_irrelevant(state.time, params) * luck * params.noise + treasure * paid * params.treasure
        has_key = jnp.where(fork, (action == TAKE_KEY).astype(jnp.int32), state.has_key)
        info = {"treasure": treasure.astype(jnp.float32), "decisive": fork}
        return State(time=state.time + 1, has_key=has_key), reward.astype(jnp.float32), last, info

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "5"]:
        del key
        settings: Params = self.default_params if params is None else params
        fork = state.time == 0
        seen = (~fork) * settings.visible
        parts = (
            fork,
            self._is_irrelevant(state.time, settings),
            state.time / settings.depth,
            seen * state.has_key,
            seen * (1 - state.has_key),
        )
        return jnp.stack([jnp.asarray(part, jnp.float32) for part in parts])

    def _is_irrelevant(self, time: Array, params: Params) -> Array:
        before = (time - 1) * params.breadth // params.depth
        return (time > 0) & (time <= params.depth) & (time * params.breadth // params.depth > before)
