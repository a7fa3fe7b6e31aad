"""Self-attention over the steps of an episode, and among the agents of one step.

References:
  Vaswani et al. (2017), "Attention Is All You Need", arXiv:1706.03762.
  Xiong et al. (2020), "On Layer Normalization in the Transformer Architecture", arXiv:2002.04745 (normalised before
    every layer, so that no warm-up is needed).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float


def attention_weights(
    query: Float[Array, "*B Q H D"], key: Float[Array, "*B K H D"], allowed: Bool[Array, "*#B Q K"]
) -> Float[Array, "*B H Q K"]:
    """How much each query looks at each key:  softmax over the allowed k of  q . k / sqrt(D),  for each of H heads.

    Args:
      query, key: of every position and head.
      allowed: whether position q may look at position k.
    Returns:
      Weights that sum to 1 over k, exactly 0 where not allowed; all 0, with gradient 0, where nothing is allowed.
    """
    score = jnp.einsum("...qhd,...khd->...hqk", query, key) / query.shape[-1] ** 0.5
    allowed = allowed[..., None, :, :]
    top = jax.lax.stop_gradient(jnp.where(allowed, score, -jnp.inf).max(axis=-1, keepdims=True))
    below = jnp.where(allowed, score - jnp.where(jnp.isfinite(top), top, 0), 0)
    weight = jnp.where(allowed, jnp.exp(below), 0)
    total = weight.sum(axis=-1, keepdims=True)
    return weight / jnp.where(total > 0, total, 1)


def causal_steps(mask: Bool[Array, "T *B"]) -> Bool[Array, "*B T T"]:
    """Let every step look at itself and at what came before it, and none at padding: `allowed` for attention in time.

    >>> causal_steps(jnp.array([True, True, False])).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 0]]
    """
    past = jnp.tril(jnp.ones((mask.shape[0], mask.shape[0]), bool))
    return past & jnp.moveaxis(mask, 0, -1)[..., None, :]


def time_encoding(steps: int, width: int) -> Float[Array, "T D"]:
    """Sines and cosines of the time step t at wave lengths from 2 pi to 20,000 pi, which tell the steps apart."""
    half = -(-width // 2)
    rate = 10_000.0 ** (-jnp.arange(half) / half)
    phase = jnp.arange(steps)[:, None] * rate
    return jnp.concatenate([jnp.sin(phase), jnp.cos(phase)], axis=-1)[:, :width]


class Attention(nn.Module):
    """Multi-head self-attention.  Its weights `[..., H, L, L]` can be read: `apply(..., mutable="intermediates")`.

    It starts by mixing nothing in: what a position shows by itself is learned before what others have to do with it.

    Attributes:
      heads: H; the width must be a multiple of it.
    """

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array, allowed: jax.Array) -> jax.Array:
        """Mix the positions of x `[..., L, D]`, where `allowed` `[..., L, L]`."""
        width = x.shape[-1]
        if width % self.heads:
            raise ValueError(f"width={width} cannot be split among heads={self.heads}; make it a multiple of them.")
        split = nn.Dense(3 * width, name="project")(x).reshape(*x.shape[:-1], 3 * self.heads, width // self.heads)
        query, key, value = jnp.split(split, 3, axis=-2)
        if self.is_mutable_collection("intermediates"):
            self.sow("intermediates", "weight", attention_weights(query, key, allowed))
        mixed = mixture(query, key, value, allowed).reshape(x.shape)
        return nn.Dense(width, kernel_init=nn.initializers.zeros, name="mix")(mixed)


def mixture(
    query: Float[Array, "*B Q H D"],
    key: Float[Array, "*B K H D"],
    value: Float[Array, "*B K H D"],
    allowed: Bool[Array, "*#B Q K"],
) -> Float[Array, "*B Q H D"]:
    """Values averaged by `attention_weights`; a first axis of episodes is the same in all four.

    Weights are computed anew for the gradient, and on CPU one episode at a time: those of all of them at once are read
    and written through memory a dozen times, which takes twice as long.
    """

    @jax.checkpoint
    def mix(inputs: tuple[jax.Array, jax.Array, jax.Array, jax.Array]) -> jax.Array:
        query, key, value, allowed = inputs
        return jnp.einsum("...hqk,...khd->...qhd", attention_weights(query, key, allowed), value)

    one_by_one = query.ndim > 3 and jax.default_backend() == "cpu"
    inputs = query, key, value, allowed
    return jax.lax.map(mix, inputs) if one_by_one else mix(inputs)


class AttentionBlock(nn.Module):
    """Attention, then a hidden layer of twice the width at every position; each adds to what was there.

    Attributes:
      heads: of the attention.
    """

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array, allowed: jax.Array) -> jax.Array:
        """Map x `[..., L, D]`, where `allowed` `[..., L, L]`, to the same shape."""
        x = x + Attention(self.heads)(nn.LayerNorm()(x), allowed)
        hidden = nn.relu(nn.Dense(2 * x.shape[-1])(nn.LayerNorm()(x)))
        return x + nn.Dense(x.shape[-1])(hidden)


class CausalTransformer(nn.Module):
    """Describes every step by what happened up to it, and every agent by what all of them did until then.

    With an axis of agents, blocks that look back in time take turns with blocks that look around among the agents of
    the same step.  Agents are not numbered: another order gives the same descriptions in that order.

    Attributes:
      width: of the descriptions; a multiple of `heads`.
      heads: of the attention.
      depth: how many times it looks back (and around).
    """

    width: int
    heads: int
    depth: int

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Map x `[T, B, D]` or `[T, B, N, D]` of N agents, mask `[T, B]`, to `[T, B, width]` or `[T, B, N, width]`.

        Padded steps may hold anything: no step looks at them.
        """
        agents = x.ndim == 4
        x = jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - 2)), x, 0)
        x = jnp.moveaxis(nn.Dense(self.width)(x), 0, -2) + time_encoding(x.shape[0], self.width)
        earlier = causal_steps(mask)
        if agents:
            earlier = earlier[:, None]
        for _ in range(self.depth):
            x = AttentionBlock(self.heads)(x, earlier)
            if agents:
                x = self._look_around(x, mask)
        return jnp.moveaxis(nn.LayerNorm()(x), -2, 0)

    def _look_around(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """x `[B, N, T, width]` after a block that attends over the agents."""
        agents = x.shape[1]
        together = jnp.broadcast_to(mask.T[:, :, None, None], (*mask.T.shape, agents, agents))
        return jnp.swapaxes(AttentionBlock(self.heads)(jnp.swapaxes(x, 1, 2), together), 1, 2)
