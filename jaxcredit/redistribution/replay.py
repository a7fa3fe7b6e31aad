"""What the learned methods of this room share: past episodes to fit on, and what a model sees of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxcredit.core.trajectory import Trajectory, require
from jaxcredit.networks.mlp import flatten_observation


def step_features(trajectory: Trajectory, user: str, *further: Any) -> jax.Array:
    """Observation, action (one-hot if discrete) and whatever else is given, `[T, B, D]`; padded steps are 0."""
    action = trajectory.action
    if jnp.issubdtype(action.dtype, jnp.integer):
        (logits,) = require(trajectory, f"{user} (which one-hot encodes actions)", "logits")
        action = jax.nn.one_hot(action, logits.shape[-1])
    flat = flatten_observation([trajectory.observation, action, *further], lead=2)
    return jnp.where(trajectory.mask[..., None], flat, 0)


def fit(
    loss: Callable[[Any, jax.Array], jax.Array],
    optimizer: optax.GradientTransformation,
    learner: tuple[Any, Any],
    key: jax.Array,
    number: int,
) -> tuple[tuple[Any, Any], jax.Array]:
    """Take `number` gradient steps on  loss(params, key),  each with a key of its own to draw its batch by.

    Args, Returns: `learner` is (parameters, the optimiser's state), before and after; and the mean loss.
    """

    def step(learner: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
        params, opt_state = learner
        value, gradient = jax.value_and_grad(loss)(params, key)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), value

    learner, losses = jax.lax.scan(step, learner, jax.random.split(key, number))
    return learner, losses.mean()


@struct.dataclass
class EpisodeReplay:
    """A ring of past episodes, in the form the return predictor reads.

    Attributes:
      features: `[C, T, D]`.
      mask: `[C, T]` bool.
      episode_return: `[C]`.
      added: `[]` int32, episodes added so far, the same for all seeds (unbatched under `vmap`).
    """

    features: jax.Array
    mask: jax.Array
    episode_return: jax.Array
    added: jax.Array

    @classmethod
    def empty(cls, capacity: int, features: tuple[int, ...]) -> EpisodeReplay:
        """Room for `capacity` episodes, filled in batches with features of this shape `[T, B, D]`.

        Raises:
          ValueError: a batch does not fit.
        """
        steps, episodes, width = features
        if capacity < episodes:
            raise ValueError(f"capacity={capacity} cannot hold one batch of {episodes} episodes; make it larger.")
        return cls(
            features=jnp.zeros((capacity, steps, width)),
            mask=jnp.zeros((capacity, steps), bool),
            episode_return=jnp.zeros(capacity),
            added=jnp.zeros((), jnp.int32),
        )

    def add(self, features: jax.Array, mask: jax.Array, episode_return: jax.Array) -> EpisodeReplay:
        """Write B time-major episodes over the oldest ones."""
        slots = (self.added + jnp.arange(mask.shape[1])) % self.mask.shape[0]
        return EpisodeReplay(
            features=self.features.at[slots].set(jnp.swapaxes(features, 0, 1)),
            mask=self.mask.at[slots].set(mask.T),
            episode_return=self.episode_return.at[slots].set(episode_return),
            added=self.added + mask.shape[1],
        )

    def sample(self, key: jax.Array, number: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Draw episodes uniformly with replacement: features `[T, N, D]`, mask `[T, N]`, returns `[N]`."""
        stored = jnp.minimum(self.added, self.mask.shape[0])
        slots = jax.random.randint(key, (number,), 0, stored)
        return jnp.swapaxes(self.features[slots], 0, 1), self.mask[slots].T, self.episode_return[slots]
