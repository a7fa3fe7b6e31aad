"""AREL: rewards that add up to the return, alike along the episode, from attention over time and among agents.

Reference: Xiao, Ramasubramanian and Poovendran (2022), "Agent-Temporal Attention for Reward Redistribution in Episodic
Multi-Agent Reinforcement Learning", arXiv:2201.04612, and its public code.
"""

from __future__ import annotations

from typing import Any

import jax
from flax import struct

from jaxcredit.core.fields import INFINITY, choice, static, whole, within
from jaxcredit.core.trajectory import Trajectory
from jaxcredit.networks.fitting import step_features
from jaxcredit.redistribution.fitted_rewards import RESTS, Rest
from jaxcredit.redistribution.sequence_modelling import SequenceModelling, SequenceReward, summed_reward_loss


@struct.dataclass
class AREL(SequenceModelling):
    """Replace `reward` by rewards r_t of attention over time and agents, fitted by `summed_reward_loss`.

    Rewrites `reward` only: chain it with an estimator that computes advantages, `chain(AREL(), GAE())`.  All agents of
    a team share r_t.  Rewards sum to the return only if what is missing is handed out (`residual`), which the reference
    does not do.  A batch joins the replay before it is assigned credit.

    The variance of the rewards is held down, so they are spread over all steps behind a decision rather than paid for
    the decision itself.

    Attributes:
      learning_rate, residual, fits, fit_batch, capacity: of the fitting, see `FittedRewards`.
      variance_weight: of the rewards' variance within an episode, see `summed_reward_loss`.
      width, heads, depth: of the Transformer, see `CausalTransformer`; blocks over agents only with a team.
      agents: N of a team: observations are `[T, B, N, ...]`, actions `[T, B, N]` (`[T, B, N, D]` if continuous); 0 is a
        single agent, without that axis.
      readout: widths of the layers that read each agent's description, before they are added up.

    Raises:
      ValueError: leaves without an axis of `agents` behind the batch.

    Assumption: the reference has 3 blocks of 3 heads, up to 100 wide, a learning rate of 1e-4 and weight decay; smaller
    here, and rewards are standardised by running moments of the return per step, which leaves the ratio of both parts
    of the loss as it is.
    """

    residual: Rest = choice("none", RESTS)
    variance_weight: float = within(0, INFINITY, 20.0)
    agents: int = whole(0, least=0)
    readout: tuple[int, ...] = static((32, 32))

    @property
    def network(self) -> SequenceReward:
        return SequenceReward(self.width, self.heads, self.depth, self.agents, self.readout)

    def features(self, trajectory: Trajectory) -> jax.Array:
        if not self.agents:
            return super().features(trajectory)
        team = {name: getattr(trajectory, name) for name in ("observation", "action", "logits")}
        for leaf in jax.tree.leaves(team):
            if leaf.ndim < 3 or leaf.shape[2] != self.agents:
                raise ValueError(
                    f"AREL(agents={self.agents}) needs observations, actions and logits [T, B, {self.agents}, ...]; "
                    f"one has the shape {leaf.shape}. Set agents to the size of that axis, or to 0 if there is none."
                )

        def of_agent(own: dict[str, Any]) -> jax.Array:
            return step_features(trajectory.replace(**own), "AREL")

        features = jax.vmap(of_agent, in_axes=2, out_axes=2)(team)
        return features.reshape(*features.shape[:2], -1)

    def episode_loss(self, reward: jax.Array, episode_return: jax.Array, mask: jax.Array) -> jax.Array:
        return summed_reward_loss(reward, episode_return, mask, variance_weight=self.variance_weight)
