"""The plain feed-forward network, and the flattening of observations it starts from."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxcredit.networks.initializers import orthogonal


def flatten_observation(observation: Any, lead: int) -> jax.Array:
    """Concatenate all leaves of an observation, each flattened behind its first `lead` axes, as float32 `[..., D]`."""
    leaves = jax.tree.leaves(observation)
    flat = [jnp.asarray(x, jnp.float32).reshape(*x.shape[:lead], int(np.prod(x.shape[lead:]))) for x in leaves]
    return jnp.concatenate(flat, axis=-1)


class MLP(nn.Module):
    """tanh layers of the given widths, then a linear layer.

    Attributes:
      hidden: width of each hidden layer.
      outputs: width of the linear output layer.
      scale: gain of the output layer's orthogonal initialiser (small for policies: a nearly uniform start).
    """

    hidden: tuple[int, ...]
    outputs: int
    scale: float = 1.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        # matrices of rows multiply faster than arrays with more axes
        rows = x.reshape(-1, x.shape[-1])
        for width in self.hidden:
            rows = nn.tanh(nn.Dense(width, kernel_init=orthogonal(2**0.5))(rows))
        rows = nn.Dense(self.outputs, kernel_init=orthogonal(self.scale))(rows)
        return rows.reshape(*x.shape[:-1], self.outputs)
