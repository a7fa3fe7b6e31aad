"""The network that says how an outcome changes the odds of actions."""

from __future__ import annotations

import jax
from flax import linen as nn

from jaxcredit.networks.initializers import orthogonal


class HindsightNetwork(nn.Module):
    """f(s, u, .) = MLP(A s + B u): of every action, how much the outcome u speaks for it, 0 before anything is learned.

    States and outcomes broadcast against each other behind the first, linear layer, so all pairs of T states and K
    outcomes cost T + K products of that layer.

    Attributes:
      hidden: widths of the hidden layers, at least one.
      num_actions: A, outputs.
    """

    hidden: tuple[int, ...]
    num_actions: int

    @nn.compact
    def __call__(self, state: jax.Array, outcome: jax.Array) -> jax.Array:
        """Map states `[..., D]` and outcomes `[..., U]`, for example `[T, 1, D]` and `[1, K, U]`, to f `[..., A]`."""
        first, *others = self.hidden
        from_state = nn.Dense(first, kernel_init=orthogonal(2**0.5), name="state")(state)
        from_outcome = nn.Dense(first, kernel_init=orthogonal(2**0.5), use_bias=False, name="outcome")(outcome)
        x = nn.relu(from_state + from_outcome)
        for width in others:
            x = nn.relu(nn.Dense(width, kernel_init=orthogonal(2**0.5))(x))
        return nn.Dense(self.num_actions, kernel_init=nn.initializers.zeros)(x)
