"""What learned estimators share: what a model sees of a step, and the gradient steps that fit it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

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
