"""Classifiers that say, after each step of an episode, whether its return will be high, and which steps told them so.

Reference: the self-attention of Yeh (2020), "Temporal reward transport", https://www.efavdb.com/ltca, and its code.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, ScalarLike

from jaxcredit.core.trajectory import masked_mean
from jaxcredit.networks.attention import attention_weights
from jaxcredit.networks.initializers import orthogonal


class ReturnClassifier(nn.Module):
    """Says how likely the return is high:  logit_t = MLP(sum_{i <= t} w_{ti} V x_i),  from the steps of the episode.

    w_t = softmax_i(Q x_t . K x_i / sqrt(D)),  one head without biases, over an embedding x of each step.  Only what is
    looked at reaches the logit, so the weights say what it rests on.

    Attributes:
      width: D, of embeddings, queries, keys and values.
      hidden: units of the layer between what was looked at and the logit.

    Assumption: the source embeds with the agent's own convolutions and LSTM, without gradient, which an estimator does
    not have; here a layer of the classifier does, and nothing tells it the time.
    """

    width: int
    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array, allowed: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Map features x `[T, B, D]`, where `allowed` `[B, T, T]`, to logits `[T, B]` and weights `[B, T, T]`."""
        x = jnp.moveaxis(nn.relu(nn.Dense(self.width, kernel_init=orthogonal(2**0.5))(x)), 1, 0)
        query, key, value = jnp.split(nn.Dense(3 * self.width, use_bias=False)(x), 3, axis=-1)
        weight = attention_weights(query[..., None, :], key[..., None, :], allowed)[:, 0]
        hidden = nn.relu(nn.Dense(self.hidden)(weight @ value))
        return nn.Dense(1)(hidden)[..., 0].T, weight


def high_return_loss(
    logit: Float[Array, "*T"], high: Bool[Array, "*T"], mask: Bool[Array, "*T"], *, positive_weight: ScalarLike
) -> Float[Array, ""]:
    """Weighted cross-entropy, averaged over unmasked steps:  -(positive_weight y log p + (1 - y) log(1 - p)).

    Args:
      logit: log-odds of p, of any shape.
      high: y, the label.
      mask: True on steps that count; others may hold anything.
      positive_weight: of the steps with y = 1.
    """
    logit = jnp.where(mask, logit, 0)
    missed = jnp.asarray(positive_weight, logit.dtype) * jax.nn.softplus(-logit)
    return masked_mean(jnp.where(high, missed, jax.nn.softplus(logit)), mask)
