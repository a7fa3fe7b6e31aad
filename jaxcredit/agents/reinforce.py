"""REINFORCE: the score function times the return.

Reference: Williams (1992), "Simple statistical gradient-following algorithms for connectionist reinforcement learning".
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from jaxcredit.agents.on_policy import OnPolicyAgent
from jaxcredit.core.estimator import CreditEstimator
from jaxcredit.core.fields import static
from jaxcredit.time_centric.returns import MonteCarlo


@struct.dataclass
class REINFORCE(OnPolicyAgent):
    """Minimise  -1/B sum_episodes sum_t A_t log pi(a_t | s_t)  by one step per batch of whole episodes.

    Fields: see `OnPolicyAgent`.  By default credit is the Monte Carlo return minus a learned baseline.
    """

    credit: CreditEstimator = struct.field(default_factory=MonteCarlo)
    episodic: bool | None = static(True)
    standardise_advantage: bool = static(False)

    def average(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        return jnp.where(mask, x, 0).sum() / self.num_envs
