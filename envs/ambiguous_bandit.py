"""AmbiguousBandit: either action may lead to either state, and the rewards of the two states overlap.

Reference: the ambiguous bandit of Harutyunyan et al. (2019), "Hindsight Credit Assignment", arXiv:1912.02503.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment
from jaxtyping import Array, Float

from envs.finite import FiniteEnvironment, bernoulli, certain, independent, normal

AIMS_HIGH = 0


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time`, `high` (the high state was reached); both int32 `()`."""

    time: Any
    high: Any


@struct.dataclass
class Params:
    """Every number is traced.

    Attributes:
      crossover_probability: chance that an action leads to the other action's state.
      high_mean, low_mean: mean reward of the two states, in reward units.
      deviation: standard deviation of both rewards, in reward units.
    """

    crossover_probability: float = 0.1
    high_mean: float = 2.0
    low_mean: float = 1.0
    deviation: float = 1.5


@dataclasses.dataclass(frozen=True)
class AmbiguousBandit(FiniteEnvironment):
    """Two steps: choose, which pays nothing; then collect the normal reward of the state that was reached.

    Step 0: action 0 leads to the high state, action 1 to the low one, each to the other with probability
    `crossover_probability`. Step 1: either action is paid the reward of the state; the episode terminates, it is never
    truncated.

    Observation `[3]` float32: kind of state (first, high, low) one-hot; if `hidden`, zeros in step 1. Two actions.
    `info["decisive"]` bool marks step 0.

    The optimum is  high_mean - crossover_probability * (high_mean - low_mean)  while that probability is at most 1/2:
    1.9; the uniform policy's return is  (high_mean + low_mean) / 2.

    `noise` holds a Gauss-Hermite quadrature of the normal, exact in mean and variance; episodes draw the true one.

    Assumption: the second number of the source's N(2, 1.5) and N(1, 1.5) is the standard deviation. The reward comes
    one step after the choice, with the state that was reached, so that hindsight can be conditioned on that state.

    Attributes:
      hidden: static; the agent does not see which state it reached.
    """

    hidden: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.hidden, bool):
            raise ValueError(f"hidden={self.hidden!r} is not allowed: it is static, True or False.")

    @property
    def num_actions(self) -> int:
        return 2

    @property
    def horizon(self) -> int:
        return 2

    @property
    def default_params(self) -> Params:
        return Params()

    @property
    def state_sizes(self) -> State:
        return State(time=2, high=2)

    def noise(self, params: Params) -> tuple[tuple[Array, Array], Float[Array, "K"]]:
        """Whether the action leads to the other state (0 or 1), and a standard normal."""
        (crossed, deviate), probability = independent(bernoulli(params.crossover_probability), normal())
        return (crossed, deviate), probability

    def sample_noise(self, key: jax.Array, params: Params) -> tuple[Array, Array]:
        crossed_key, normal_key = jax.random.split(key)
        crossed = jax.random.uniform(crossed_key) < params.crossover_probability
        return crossed.astype(jnp.int32), jax.random.normal(normal_key)

    def initial(self, params: Params) -> tuple[State, Float[Array, "1"]]:
        del params
        return certain(State(time=0, high=0))

    def transition(
        self, state: State, action: Array, noise: tuple[Array, Array], params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        crossed, deviate = noise
        first = state.time == 0
        reached = ((action == AIMS_HIGH) ^ (crossed == 1)).astype(jnp.int32)
        mean = jnp.where(state.high == 1, params.high_mean, params.low_mean)
        reward = jnp.where(first, 0, mean + params.deviation * deviate)
        successor = State(time=state.time + 1, high=jnp.where(first, reached, state.high))
        return successor, reward.astype(jnp.float32), ~first, {"decisive": first}

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "3"]:
        del params, key
        first, shown = state.time == 0, (state.time > 0) & (not self.hidden)
        return jnp.stack([first, shown & (state.high == 1), shown & (state.high == 0)]).astype(jnp.float32)
