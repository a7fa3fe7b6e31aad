"""StochasticChain: out to the far end of a chain and back, against a current; the near end pays almost nothing.

Reference: the six-state chain of Kulkarni et al. (2016), "Hierarchical Deep Reinforcement Learning: Integrating
Temporal Abstraction and Intrinsic Motivation", arXiv:1604.06057.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment
from jaxtyping import Array, Float

from envs.base import TimeLimitedEnvironment
from envs.finite import FiniteEnvironment, bernoulli, certain

MIN_SIZE = 3
START = 1
LEFT, RIGHT = range(2)


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time`, `position` (0 to size - 1), `visited` (the far end, in this episode); all int32 `()`."""

    time: Any
    position: Any
    visited: Any


@struct.dataclass
class Params:
    """Every number is traced; rewards are in reward units.

    Attributes:
      length: time limit in steps, at least 1 and at most the environment's static `max_length`.
      right_probability: chance that a move to the right succeeds (else it goes to the left).
      far_reward: what the end of the episode pays if the far end was visited.
      near_reward: what it pays otherwise.
      visible: what the observation shows of the visit is multiplied by this; 0 hides it.
    """

    length: int = 200
    right_probability: float = 0.5
    far_reward: float = 1.0
    near_reward: float = 0.01
    visible: float = 0.0


@dataclasses.dataclass(frozen=True)
class StochasticChain(TimeLimitedEnvironment, FiniteEnvironment):
    """Begin in the second state of a chain; the first one ends the episode, and pays for a visit of the last one.

    Action 0 moves left. Action 1 moves right with probability 1/2, else left as well; from the last state both move
    left. Reaching the first state terminates the episode and pays 1 if the last one was visited, else 0.01. The time
    limit, which the agent cannot see, truncates.

    Observation `[size + 1]` float32: position one-hot, then whether the last state was visited, times `visible`. Two
    actions. `info["decisive"]` bool marks the steps before the visit.

    Always right is optimal whether the visit is shown or not, since after it nothing matters. With 6 states and without
    a time limit it visits the last one with probability 1/5 and returns 0.208, in 9 steps on average; with a tenth of
    the actions random 0.170; the uniform policy returns 0.018, always left 0.01.

    Assumption: the observation of the reference is the position alone, and it names no time limit.

    Attributes:
      size: static number of states, at least 3 (density: the visit becomes rarer as 1 / (size - 1)).
      max_length: static bound on `params.length`; sizes the episodic scan.
    """

    size: int = 6
    max_length: int = 200
    min_length: ClassVar[int] = 1
    params_type: ClassVar[Any] = Params

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.size, int) or self.size < MIN_SIZE:
            raise ValueError(
                f"size={self.size!r} is not allowed: it is static, a whole number of at least {MIN_SIZE} states."
            )

    @property
    def num_actions(self) -> int:
        return 2

    @property
    def state_sizes(self) -> State:
        return State(time=1, position=self.size, visited=2)

    def noise(self, params: Params) -> tuple[Array, Float[Array, "2"]]:
        """Whether a move to the right succeeds: 0 or 1."""
        return bernoulli(params.right_probability)

    def initial(self, params: Params) -> tuple[State, Float[Array, "1"]]:
        del params
        return certain(State(time=0, position=START, visited=0))

    def transition(
        self, state: State, action: Array, noise: Array, params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        last = self.size - 1
        right = (action == RIGHT) & (noise == 1) & (state.position < last)
        position = jnp.maximum(state.position + jnp.where(right, 1, -1), 0)
        ended = position == 0
        paid = jnp.where(state.visited == 1, params.far_reward, params.near_reward)
        successor = State(time=state.time + 1, position=position, visited=state.visited | (position == last))
        return successor, jnp.asarray(ended * paid, jnp.float32), ended, {"decisive": state.visited == 0}

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "N"]:
        del key
        settings: Params = self.default_params if params is None else params
        visited = jnp.asarray(state.visited * settings.visible, jnp.float32)
        return jnp.append(jax.nn.one_hot(state.position, self.size, dtype=jnp.float32), visited)
