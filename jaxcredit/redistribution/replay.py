"""Past episodes to fit on, which the learned methods of this room share."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Episodes:
    """N past episodes, in the form a model reads.

    Attributes:
      features: `[N, T, D]`, see `step_features`.
      mask: `[N, T]` bool.
      reward: `[N, T]`, 0 on padded steps.
    """

    features: jax.Array
    mask: jax.Array
    reward: jax.Array

    @classmethod
    def of(cls, features: jax.Array, mask: jax.Array, reward: jax.Array) -> Episodes:
        """From time-major arrays `[T, N, ...]`."""
        reward = jnp.where(mask, reward, 0).astype(jnp.float32)
        return cls(*(jnp.swapaxes(x, 0, 1) for x in (features, mask, reward)))

    @classmethod
    def empty(cls, capacity: int, features: tuple[int, ...]) -> Episodes:
        """Room for `capacity` episodes that come in batches with features of this shape `[T, B, D]`.

        Raises:
          ValueError: a batch does not fit.
        """
        steps, episodes, width = features
        if capacity < episodes:
            raise ValueError(f"capacity={capacity} cannot hold one batch of {episodes} episodes; make it larger.")
        shape = (capacity, steps)
        return cls(jnp.zeros((*shape, width)), jnp.zeros(shape, bool), jnp.zeros(shape))

    @property
    def time_major(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Features `[T, N, D]`, mask and reward `[T, N]`."""
        return jnp.swapaxes(self.features, 0, 1), self.mask.T, self.reward.T

    def __getitem__(self, slots: jax.Array) -> Episodes:
        return jax.tree.map(lambda x: x[slots], self)


@struct.dataclass
class EpisodeReplay:
    """A ring of the most recent episodes, drawn uniformly.

    Attributes:
      episodes: C of them.
      added: `[]` int32, episodes added so far, the same for all seeds (unbatched under `vmap`).
    """

    episodes: Episodes
    added: jax.Array

    @classmethod
    def empty(cls, capacity: int, features: tuple[int, ...]) -> EpisodeReplay:
        """See `Episodes.empty`."""
        return cls(Episodes.empty(capacity, features), jnp.zeros((), jnp.int32))

    def add(self, episodes: Episodes) -> EpisodeReplay:
        """Write some over the oldest ones."""
        number, capacity = episodes.mask.shape[0], self.episodes.mask.shape[0]
        slots = (self.added + jnp.arange(number)) % capacity
        stored = jax.tree.map(lambda old, new: old.at[slots].set(new), self.episodes, episodes)
        return EpisodeReplay(stored, self.added + number)

    def sample(self, key: jax.Array, number: int) -> Episodes:
        """Draw episodes uniformly with replacement."""
        stored = jnp.minimum(self.added, self.episodes.mask.shape[0])
        return self.episodes[jax.random.randint(key, (number,), 0, stored)]


@struct.dataclass
class LessonsBuffer:
    """The episodes that a model gets most wrong, drawn the more often the worse they are predicted.

    A full buffer replaces its episode of least loss by a new one of larger loss, again and again: what stays are the
    largest losses of all.  Episodes are drawn with probability  softmax(loss).

    Attributes:
      episodes: C of them.
      loss: `[C]` of each when it was last looked at; -inf where there is none yet.
    Reference: the lessons buffer of the code of Arjona-Medina et al. (2019), arXiv:1806.07857.
    """

    episodes: Episodes
    loss: jax.Array

    @classmethod
    def empty(cls, capacity: int, features: tuple[int, ...]) -> LessonsBuffer:
        """See `Episodes.empty`."""
        return cls(Episodes.empty(capacity, features), jnp.full(capacity, -jnp.inf))

    def add(self, episodes: Episodes, loss: Callable[[Episodes], jax.Array]) -> LessonsBuffer:
        """Let some in whose loss is large enough.  `loss` gives that of every episode, `[N]`, stored ones anew."""
        joined = jax.tree.map(lambda old, new: jnp.concatenate([old, new]), self.episodes, episodes)
        there = joined.mask.any(axis=1)
        largest, slots = jax.lax.top_k(jnp.where(there, loss(joined), -jnp.inf), self.loss.shape[0])
        return LessonsBuffer(joined[slots], largest)

    def sample(self, key: jax.Array, number: int) -> Episodes:
        """Draw episodes with replacement."""
        return self.episodes[jax.random.categorical(key, self.loss, shape=(number,))]
