"""A2C: synchronous advantage actor-critic.

Reference: Mnih et al. (2016), "Asynchronous Methods for Deep Reinforcement Learning", arXiv:1602.01783.
"""

from __future__ import annotations

from flax import struct

from jaxcredit.agents.on_policy import OnPolicyAgent
from jaxcredit.core.fields import INFINITY, static, within


@struct.dataclass
class A2C(OnPolicyAgent):
    """Minimise  -mean_t A_t log pi(a_t | s_t)  plus critic loss minus entropy bonus, by one step per window.

    Fields: see `OnPolicyAgent`.  Windows are short by default, so that steps are many.
    """

    learning_rate: float = within(0, INFINITY, 7e-4)
    entropy_coefficient: float = within(-INFINITY, INFINITY, 0.01)
    num_steps: int = static(16)
    standardise_advantage: bool = static(False)
