"""DelayedEffect: the first action decides the end, and nothing on the way tells which one was taken.

Reference: the delayed-effect task of Harutyunyan et al. (2019), "Hindsight Credit Assignment", arXiv:1912.02503.
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
from envs.finite import FiniteEnvironment, certain, normal

GOOD = 0
MIN_LENGTH = 1


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time` (also the position), `rewarding` (the end will be the good one); both int32 `()`."""

    time: Any
    rewarding: Any


@struct.dataclass
class Params:
    """Every number is traced.

    Attributes:
      length: number of aliased states between the first action and the end, at least 1 and at most the environment's
        static `max_length` (depth); an episode has length + 2 steps.
      sigma: standard deviation of the normal noise that the aliased states pay, in reward units.
      reward: what the good end pays, and the bad one takes, in reward units.
    """

    length: int = 4
    sigma: float = 0.0
    reward: float = 1.0


@dataclasses.dataclass(frozen=True)
class DelayedEffect(SizedEnvironment, FiniteEnvironment):
    """Choose the end in step 0 (action 0 the good one, action 1 the bad one), cross a chain, act once more at the end.

    Steps 1 .. length: the chain; it looks the same after both first actions, and pays N(0, sigma) noise whatever the
    agent does. Step length + 1: the end, a state of its own that the agent sees and in which it acts once; that action,
    either of them, is paid +reward or -reward and terminates the episode. Never truncated.

    So the reward belongs to a step whose state shows which end it is. Were it paid for leaving the chain instead, it
    would come with a state that says nothing of the first action, and hindsight that is conditioned on states would
    give that action no credit at all.

    Observation `[5]` float32: kind of state (first, chain, good end, bad end) one-hot, t / (length + 2). Two actions.
    `info["decisive"]` bool marks step 0.

    The optimum is `reward`, the uniform policy's return 0.

    `noise` is a Gauss-Hermite quadrature of the normal noise, exact in mean and variance; episodes draw the true one.

    Assumption: the place on the chain is shown; only what the first action was is hidden.

    Attributes:
      max_length: static bound on `params.length`; sizes the table.
    """

    max_length: int = 4
    min_length: ClassVar[int] = MIN_LENGTH
    params_type: ClassVar[Any] = Params

    @property
    def num_actions(self) -> int:
        return 2

    @property
    def horizon(self) -> int:
        return self.max_length + 2

    @property
    def state_sizes(self) -> State:
        return State(time=self.max_length + 2, rewarding=2)

    def noise(self, params: Params) -> tuple[Array, Float[Array, "K"]]:
        """Standard normal."""
        del params
        return normal()

    def sample_noise(self, key: jax.Array, params: Params) -> Array:
        del params
        return jax.random.normal(key)

    def initial(self, params: Params) -> tuple[State, Float[Array, "1"]]:
        del params
        return certain(State(time=0, rewarding=0))

    def transition(
        self, state: State, action: Array, noise: Array, params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        first, last = state.time == 0, state.time == params.length + 1
        on_chain = (state.time > 0) & (state.time <= params.length)
        reward = last * params.reward * (2 * state.rewarding - 1) + on_chain * params.sigma * noise
        successor = State(
            time=state.time + 1, rewarding=jnp.where(first, (action == GOOD).astype(jnp.int32), state.rewarding)
        )
        return successor, jnp.asarray(reward, jnp.float32), last, {"decisive": first}

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "5"]:
        del key
        length = self.max_length if params is None else params.length
        first, end = state.time == 0, state.time > length
        parts = [first, ~(first | end), end & (state.rewarding == 1), end & (state.rewarding == 0)]
        return jnp.stack([jnp.asarray(part, jnp.float32) for part in [*parts, state.time / (length + 2)]])
