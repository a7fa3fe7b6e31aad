"""A trained policy, apart from the agent that trained it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxcredit.core.frozen import Frozen
from jaxcredit.core.statistics import RunningMoments
from jaxcredit.networks.mlp import flatten_observation

NamedShapes = tuple[tuple[str, tuple[int, ...]], ...]


def apply_normalised(
    network: Any, params: Any, moments: RunningMoments | None, carry: Any, observation: Any, first: jax.Array
) -> Any:
    """The network on observations `[T, B, ...]`, scaled by their moments if there are any."""
    if moments is not None:
        observation = moments.normalise(flatten_observation(observation, 2))
    return network.apply(params, carry, observation, first)


def into_bounds(action: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """Scale an action `[..., D]` from [-1, 1] to its bounds, where both are finite, and clip it there."""
    low, high = jnp.broadcast_arrays(jnp.asarray(low), jnp.asarray(high))
    bounded = jnp.isfinite(low) & jnp.isfinite(high)
    centre, half = jnp.where(bounded, (low + high) / 2, 0), jnp.where(bounded, (high - low) / 2, 1)
    return jnp.clip(centre + half * action, low, high)


def named_shapes(observation: Any) -> NamedShapes:
    """Name and shape of every leaf; an observation that is one array has one without a name."""
    leaves = jax.tree_util.tree_leaves_with_path(observation)
    return tuple((jax.tree_util.keystr(path, simple=True, separator="."), jnp.shape(leaf)) for path, leaf in leaves)


def _show(shapes: NamedShapes) -> str:
    return ", ".join(f"{name} {shape}".strip() for name, shape in shapes)


@struct.dataclass(eq=False)  # jit asks for the hash of what it compiles: the object's own, for arrays have none
class Policy(Frozen):
    """A policy for use outside of training: `policy(key, observation)` samples an action.  Pure; jit and vmap it.

    Attributes:
      params: of the network.
      moments: by which observations are scaled, or None.
      bounds: least and greatest action `[D]` each, or None for discrete actions.
      shapes: of the observations it was trained on, see `named_shapes`.
      network: `apply(params, carry, observation, first) -> (carry, distribution, value, extras)`.
    """

    params: Any
    moments: RunningMoments | None
    bounds: tuple[jax.Array, jax.Array] | None
    shapes: NamedShapes = struct.field(pytree_node=False)
    network: Any = struct.field(pytree_node=False)

    def __call__(self, key: jax.Array, observation: Any) -> jax.Array:
        """Sample an action for one observation.

        Raises:
          ValueError: the policy has memory (use `step`), or the observation has another shape than in training.
        """
        if self.network.recurrent:
            raise ValueError("This policy has memory: call step(key, carry, observation, first), from initial_carry().")
        return self.step(key, (), observation, jnp.zeros((), bool))[1]

    def initial_carry(self) -> Any:
        """Hidden state at the start of an episode; `()` without memory."""
        return jax.tree.map(lambda x: x[0], self.network.initial_carry(1))

    def step(self, key: jax.Array, carry: Any, observation: Any, first: jax.Array) -> tuple[Any, jax.Array]:
        """Sample an action, and carry the hidden state on.

        Args:
          key: random key.
          carry: hidden state before this step.
          observation: pytree, of one environment.
          first: `[]` bool, the step starts an episode.
        Returns:
          the hidden state after it, and the environment's action.
        Raises:
          ValueError: the observation has another shape than in training.
        """
        given = named_shapes(observation)
        if given != self.shapes:
            raise ValueError(
                f"This policy was trained on observations {_show(self.shapes)}, and was given {_show(given)}. It takes "
                "that of one environment; vmap it over several."
            )
        carries = jax.tree.map(lambda x: x[None], carry)
        sequence = jax.tree.map(lambda x: jnp.asarray(x)[None, None], observation)
        carries, distribution, _, _ = apply_normalised(
            self.network, self.params, self.moments, carries, sequence, jnp.asarray(first).reshape(1, 1)
        )
        action = distribution.sample(seed=key)[0, 0]
        if self.bounds is not None:
            action = into_bounds(action.reshape(jnp.shape(self.bounds[0])), *self.bounds)
        return jax.tree.map(lambda x: x[0], carries), action
