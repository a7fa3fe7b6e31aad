"""Small exact decision processes: sparse tables that dynamic programming reads by gathering."""

from __future__ import annotations

from typing import Any

from flax import struct


@struct.dataclass
class TabularMDP:
    """A finite decision process whose every (state, action) leads to at most K outcomes.

    Outcome k of (s, a) happens with `probability[s, a, k]`, pays `reward[s, a, k]` and moves to `successor[s, a, k]`,
    unless it is `terminal`: then the episode ends naturally and the successor means nothing.

    Attributes:
      initial: `[S]` float, distribution of the first state.
      successor: `[S, A, K]` int32, index of the following state.
      probability: `[S, A, K]` float, sums to 1 over k.
      reward: `[S, A, K]` float, follows the action.
      terminal: `[S, A, K]` bool, the outcome ends the episode.
      observation: `[S, ...]` what the agent sees; distinct states may look the same.
      horizon: static bound on the number of steps of an episode.
    """

    initial: Any
    successor: Any
    probability: Any
    reward: Any
    terminal: Any
    observation: Any
    horizon: int = struct.field(pytree_node=False)

    @property
    def num_states(self) -> int:
        return self.successor.shape[0]

    @property
    def num_actions(self) -> int:
        return self.successor.shape[1]
