"""Shortcut: a long costly path and a way out at every step; the outcome looks the same whichever was taken.

Reference: the shortcut task of Harutyunyan et al. (2019), "Hindsight Credit Assignment", arXiv:1912.02503, with the
rewards of C. Yeh's public re-run.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment
from jaxtyping import Array, Float

from envs.finite import FiniteEnvironment, bernoulli

SHORTCUT, LONG = 0, 1
MIN_SIZE = 2


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time`, `position` on the path; both int32 `()`."""

    time: Any
    position: Any


@struct.dataclass
class Params:
    """Every number is traced.

    Attributes:
      long_probability: chance that the long path leads to the next state (else it ends the episode as well).
      step_reward: reward of every step, the last one included, in reward units.
      final_reward: what reaching the terminal state adds, in reward units.
      random_start_probability: chance that an episode starts in any of the acting states, all equally likely; else it
        starts at the beginning of the path.
    """

    long_probability: float = 0.9
    step_reward: float = -1.0
    final_reward: float = 1.0
    random_start_probability: float = 0.0


@dataclasses.dataclass(frozen=True)
class Shortcut(FiniteEnvironment):
    """Walk along a path of `size` states, the last of which is terminal, or leave it at once.

    Action 0, the shortcut, leads to the terminal state. Action 1, the long path, leads to the next state with
    probability `long_probability`, else to the terminal state. Every step costs; arriving pays once, so that by default
    a step along the path pays -1 and the last step -1 + 1 = 0. The episode terminates there and is never truncated.

    Observation `[size - 1]` float32: position one-hot; zeros in the terminal state. Two actions. `info["decisive"]`
    bool marks every state but the last acting one, from where both actions arrive.

    The optimum is  step_reward + final_reward  (take the shortcut) where steps cost, whatever the start.

    Assumption: two published versions differ; here the terminal state is not acted in, and arriving pays the cost of
    the step as well.

    Attributes:
      size: static number of states, at least 2 (depth); size - 1 of them act, which bounds the steps of an episode.
    """

    size: int = 5

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < MIN_SIZE:
            raise ValueError(
                f"size={self.size!r} is not allowed: it is static, a whole number of at least {MIN_SIZE} states."
            )

    @property
    def num_actions(self) -> int:
        return 2

    @property
    def horizon(self) -> int:
        return self.size - 1

    @property
    def default_params(self) -> Params:
        return Params()

    @property
    def state_sizes(self) -> State:
        return State(time=1, position=self.size - 1)

    def noise(self, params: Params) -> tuple[Array, Float[Array, "2"]]:
        """Whether the long path goes on: 0 or 1."""
        return bernoulli(params.long_probability)

    def initial(self, params: Params) -> tuple[State, Float[Array, "N"]]:
        position = jnp.arange(self.size - 1, dtype=jnp.int32)
        random = jnp.asarray(params.random_start_probability, jnp.float32)
        probability = random / (self.size - 1) + (1 - random) * (position == 0)
        return State(time=jnp.zeros_like(position), position=position), probability

    def transition(
        self, state: State, action: Array, noise: Array, params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        following = jnp.where((action == LONG) & (noise == 1), state.position + 1, self.size - 1)
        arrived = following >= self.size - 1
        reward = jnp.asarray(params.step_reward + arrived * params.final_reward, jnp.float32)
        info = {"decisive": state.position < self.size - 2}
        return State(time=state.time + 1, position=following), reward, arrived, info

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "N"]:
        del params, key
        return jax.nn.one_hot(state.position, self.size - 1, dtype=jnp.float32)
