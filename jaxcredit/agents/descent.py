"""Epochs of minibatch gradient steps on one batch of experience."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxcredit.core.trajectory import Trajectory

Learner = tuple[Any, Any]  # parameters, optimiser state
Losses = dict[str, jax.Array]


def descend(
    loss: Callable[[Any, Any, Trajectory], tuple[jax.Array, Losses]],
    optimizer: optax.GradientTransformation,
    key: jax.Array,
    learner: Learner,
    carry: Any,
    batch: Trajectory,
    *,
    epochs: int,
    minibatches: int,
) -> tuple[Learner, Losses]:
    """Pass over a batch `epochs` times, each time in another order, one gradient step per minibatch of columns.

    Args:
      loss: (params, carry, batch) -> (scalar, scalars to report).
      optimizer: turns gradients into updates.
      key: random key; each epoch permutes the columns by its own.
      learner: parameters and optimiser state.
      carry: pytree `[C, ...]`, the policy's hidden state before the first step of each column.
      batch: arrays `[T, C, ...]`.
      epochs, minibatches: static; minibatches must divide C.
    Returns:
      the learner after the last step, and the losses averaged over all steps.
    """

    def gradient_step(learner: Learner, choice: jax.Array | None) -> tuple[Learner, Losses]:
        params, opt_state = learner
        part = (carry, batch)
        if choice is not None:
            part = (jax.tree.map(lambda x: x[choice], carry), jax.tree.map(lambda x: x[:, choice], batch))
        (_, losses), gradient = jax.value_and_grad(loss, has_aux=True)(params, *part)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), losses

    def epoch(learner: Learner, key: jax.Array) -> tuple[Learner, Losses]:
        if minibatches == 1:
            return gradient_step(learner, None)
        choices = shuffled(key, batch.mask.shape[1]).reshape(minibatches, -1)
        learner, losses = jax.lax.scan(gradient_step, learner, choices)
        return learner, jax.tree.map(jnp.mean, losses)

    learner, losses = jax.lax.scan(epoch, learner, jax.random.split(key, epochs))
    return learner, jax.tree.map(jnp.mean, losses)


def shuffled(key: jax.Array, number: int) -> jax.Array:
    """The numbers 0 .. n - 1 in random order, `[n]` int32, without sorting where n = a b with a and b alike.

    A Feistel network on pairs (i, j), i < a and j < b, whose four rounds are drawn at random:

        i <- i + F_k(j) mod a,    j <- j + G_k(i) mod b,    k = 1 .. 4

    Every round can be undone, so all numbers occur once; any two of them land like two of a uniform permutation.  Not
    all n! orders can occur, which shuffles of minibatches do not need.

    Reference: Luby and Rackoff (1988), "How to construct pseudorandom permutations from pseudorandom functions".
    """
    b = max(d for d in range(1, math.isqrt(number) + 1) if number % d == 0)
    a = number // b
    if b < 8 or a > 4 * b:
        # too few or too unequal halves do not mix in four rounds
        return jax.random.permutation(key, number)
    table = jax.random.bits(key, (4, a + b))
    by_j, by_i = (table[:, :b] % a).astype(jnp.int32), (table[:, b:] % b).astype(jnp.int32)
    i, j = jnp.divmod(jnp.arange(number), b)
    for k in range(4):
        i = (i + by_j[k, j]) % a
        j = (j + by_i[k, i]) % b
    return i * b + j
