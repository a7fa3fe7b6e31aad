"""PPO: several epochs per batch under a clipped ratio.

Reference: Schulman et al. (2017), "Proximal Policy Optimization Algorithms", arXiv:1707.06347.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from jaxcredit.agents.on_policy import OnPolicyAgent
from jaxcredit.core.fields import INFINITY, whole, within


@struct.dataclass
class PPO(OnPolicyAgent):
    """Minimise  -mean_t min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps) A_t),  rho_t = pi(a_t | s_t) / pi_old(a_t | s_t).

    Fields: see `OnPolicyAgent`, and

    Attributes:
      clip: eps, the range in which the ratio still moves the loss.
      epochs: passes over each batch.
      minibatches: gradient steps per pass; must divide the batch (environments, for a recurrent policy).
    """

    clip: float = within(0, INFINITY, 0.2)
    epochs: int = whole(4)
    minibatches: int = whole(4)

    @property
    def passes(self) -> tuple[int, int]:
        return self.epochs, self.minibatches

    def policy_loss(self, log_ratio: jax.Array, advantage: jax.Array) -> jax.Array:
        ratio = jnp.exp(log_ratio)
        clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
        return -jnp.minimum(ratio * advantage, clipped * advantage)
