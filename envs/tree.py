"""Tree: four choices whose states tell all of the past, or less and less of it as the branches overlap.

Reference: the tree environment of Meulemans et al. (2023), "Would I have gotten that reward? Long-term credit
assignment by counterfactual contribution analysis", arXiv:2306.16803, and its public code.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment
from jaxtyping import Array, Float, Int

from envs.finite import FiniteEnvironment, certain

NUM_REWARDS = 5
LOWEST_REWARD = -2
ACTION_STRIDE = 9973


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time` (also the level), `node`, counted level by level from the root; both int32 `()`."""

    time: Any
    node: Any


@struct.dataclass
class Params:
    """Attributes: `seed_offset`, shifts all rewards round their cycle of 5 (traced); 0 to 4 are all there is."""

    seed_offset: int = 0


@dataclasses.dataclass(frozen=True)
class Tree(FiniteEnvironment):
    """Descend from the root to a leaf, with a reward from -2 to 2 for every (node, action).

    Action a in place p of level i leads to place  (p (b - o) + a - floor((b - o) / 2)) mod N  of the N on the level
    below, and pays  (node + 9973 a + seed_offset) mod 5 - 2.  With overlap o = 0 every path has its own node, so that a
    state reveals all earlier actions; with o = b all actions of a level lead to the same b nodes from everywhere.

    Observation `[num_states]` float32: node one-hot; zeros in a leaf. `branching` actions. The episode terminates in
    step `depth`, at a leaf, and is never truncated. Nothing is left to chance. `info["decisive"]` bool is always True:
    every action is paid for.

    Attributes:
      overlap: static o, 0 to `branching`; how many places the children of neighbouring nodes share.
      branching: static b, at least 2 actions (breadth).
      depth: static number of decisions, at least 1.
    """

    overlap: int = 0
    branching: int = 6
    depth: int = 4

    def __post_init__(self) -> None:
        static = (self.overlap, self.branching, self.depth)
        whole = all(isinstance(number, int) for number in static)
        if not whole or self.depth < 1 or self.branching < 2 or not 0 <= self.overlap <= self.branching:
            raise ValueError(
                f"overlap={self.overlap!r}, branching={self.branching!r}, depth={self.depth!r} is not allowed: they "
                "are whole numbers, branching at least 2, depth at least 1, overlap from 0 to branching."
            )
        if self.num_states > np.iinfo(np.int32).max:
            raise ValueError(
                f"{self} has {self.num_states:.2g} nodes, more than int32 can number. "
                "Give a smaller depth or branching."
            )

    @functools.cached_property
    def nodes(self) -> tuple[int, ...]:
        """Number of nodes on every level, the root's first, the leaves' last: `depth + 1` numbers."""
        b, apart, levels = self.branching, self.branching - self.overlap, range(self.depth + 1)
        if apart == 1:
            return tuple(1 + self.overlap * level for level in levels)
        return tuple(((b - 1) * apart**level - self.overlap) // (apart - 1) for level in levels)

    @property
    def num_actions(self) -> int:
        return self.branching

    @property
    def horizon(self) -> int:
        return self.depth

    @property
    def default_params(self) -> Params:
        return Params()

    @property
    def state_sizes(self) -> State:
        return State(time=1, node=sum(self.nodes[:-1]))

    def initial(self, params: Params) -> tuple[State, Float[Array, "1"]]:
        del params
        return certain(State(time=0, node=0))

    def transition(
        self, state: State, action: Array, noise: Array, params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        del noise
        begins = jnp.asarray(np.cumsum((0, *self.nodes)), jnp.int32)  # first node of every level
        level = (state.node >= begins[1:-1]).sum()
        apart = self.branching - self.overlap
        place = (state.node - begins[level]) * apart + action - apart // 2
        following = begins[level + 1] + place % jnp.asarray(self.nodes, jnp.int32)[level + 1]
        reward = _outcome(state.node, action, params) % NUM_REWARDS + LOWEST_REWARD
        info = {"decisive": jnp.ones((), bool)}
        return State(time=state.time + 1, node=following), reward.astype(jnp.float32), level == self.depth - 1, info

    def grouping(self, params: Params, groups: int = 1) -> Int[Array, "S A"]:
        """Encode the outcome of every (node, action):  (node + 9973 a + seed_offset) mod (5 groups).

        Args:
          params: the environment's params; may be traced.
          groups: static; into how many outcomes each reward is split.
        Returns:
          int32 codes from 0 to 5 groups - 1; the reward is  code mod 5 - 2, so with one group code and reward say the
          same.
        Raises:
          ValueError: groups below 1.
        Reference: the outcome encodings of arXiv:2306.16803, whose numbers are ours less 2.
        """
        if not isinstance(groups, int) or groups < 1:
            raise ValueError(f"groups={groups!r} is not allowed: it is a whole number of at least 1.")
        nodes = jnp.arange(self.num_states, dtype=jnp.int32)[:, None]
        return _outcome(nodes, jnp.arange(self.num_actions, dtype=jnp.int32), params) % (NUM_REWARDS * groups)

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "S"]:
        del params, key
        return jax.nn.one_hot(state.node, self.num_states, dtype=jnp.float32)


def _outcome(node: Array, action: Array, params: Params) -> Array:
    return node + ACTION_STRIDE * action + params.seed_offset
