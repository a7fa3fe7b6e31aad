"""The network of Synthetic Returns: what a step will be worth later, and whether now is the time.

Reference: Raposo et al. (2021), "Synthetic Returns for Long-Term Credit Assignment", arXiv:2102.12425, and its public
code.
"""

from __future__ import annotations

import jax
from flax import linen as nn

from jaxcredit.networks.mlp import MLP


class SyntheticReturnNetwork(nn.Module):
    """Three networks of each step: contribution c to later rewards, gate g in (0, 1), baseline b of the reward itself.

    Contribution and baseline start at 0, so that nothing is credited before there was a reward.

    Attributes:
      hidden: widths of the hidden layers of each.
    """

    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Map features `[..., D]` to c, g and b, `[...]` each."""
        contribution = MLP(self.hidden, 1, scale=0.0, name="contribution")(x)[..., 0]
        gate = nn.sigmoid(MLP(self.hidden, 1, name="gate")(x)[..., 0])
        baseline = MLP(self.hidden, 1, scale=0.0, name="baseline")(x)[..., 0]
        return contribution, gate, baseline
