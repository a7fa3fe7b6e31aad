"""Choice: one decision at the root of a tree, told apart from its rival only by an average paid at the leaf.

Reference: after artificial task II of Arjona-Medina et al. (2019), "RUDDER: Return Decomposition for Delayed Rewards",
arXiv:1806.07857. Its depths, probabilities and shares are not known to us: the task below is our own.
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
from envs.finite import FiniteEnvironment, bernoulli, certain, independent

MIN_LENGTH = 2


@struct.dataclass
class State(environment.EnvState):
    """Attributes: `time`, `subtree` chosen (0 or 1; 0 at the root), `paying` (this node carries a share), `account`.

    All int32 `()`; `account` counts the shares so far, this node's included.
    """

    time: Any
    subtree: Any
    paying: Any
    account: Any


@struct.dataclass
class Params:
    """Every number is traced.

    Attributes:
      length: steps per episode = nodes visited below the root; at least 2 and at most the environment's static
        `max_length` (depth).
      first_probability, second_probability: chance that the traversal of the first or second subtree goes to a paying
        node.
      share: what a paying node adds to the account, in reward units.
    """

    length: int = 50
    first_probability: float = 0.6
    second_probability: float = 0.4
    share: float = 1.0


@dataclasses.dataclass(frozen=True)
class Choice(SizedEnvironment, FiniteEnvironment):
    """Choose one of two subtrees at the root (step 0), and be led at random from node to node down to a leaf.

    This task is our own definition, with the structure of the reference's. Below the root every node has children that
    carry a share of 1 and children that carry none; each step goes to a paying one with probability .6 in the first
    subtree (action 0) and .4 in the second (action 1). Later actions do nothing. The last step reaches the leaf and
    pays all shares of the L nodes below the root; the episode terminates. Never truncated: `time_limit` changes
    nothing.

    Observation `[5]` float32: place one-hot (root, first, second subtree), the node carries a share, t / L. The account
    is not shown, and no policy needs it. Two actions. `info["decisive"]` bool marks step 0.

    The optimum is  share * L * max(first_probability, second_probability);  the return of a subtree with probability p
    has the standard deviation  share * sqrt(L p (1 - p)).

    Assumption: everything but the structure (choice at the root, random traversal, shares paid at the leaf) is ours.

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
        return State(time=self.max_length, subtree=2, paying=2, account=self.max_length)

    def noise(self, params: Params) -> tuple[tuple[Array, Array], Float[Array, "4"]]:
        """Whether the next node pays, 0 or 1, if it lies in the first and if it lies in the second subtree."""
        return independent(bernoulli(params.first_probability), bernoulli(params.second_probability))

    def initial(self, params: Params) -> tuple[State, Float[Array, "1"]]:
        del params
        return certain(State(time=0, subtree=0, paying=0, account=0))

    def transition(
        self, state: State, action: Array, noise: tuple[Array, Array], params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        first, last = state.time == 0, state.time == params.length - 1
        subtree = jnp.where(first, action, state.subtree)
        paying = jnp.where(subtree == 0, *noise)
        account = state.account + paying
        successor = State(time=state.time + 1, subtree=subtree, paying=paying, account=account)
        return successor, jnp.asarray(last * params.share * account, jnp.float32), last, {"decisive": first}

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "5"]:
        del key
        length = self.max_length if params is None else params.length
        place = jax.nn.one_hot(jnp.where(state.time == 0, 0, 1 + state.subtree), 3, dtype=jnp.float32)
        rest = [jnp.asarray(part, jnp.float32) for part in (state.paying, state.time / length)]
        return jnp.concatenate([place, jnp.stack(rest)])
