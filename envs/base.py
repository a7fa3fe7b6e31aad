"""What our own environments share: discrete actions, natural ends, a static horizon, checked params."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces
from gymnax.environments.environment import Environment
from jaxtyping import Array

PyTree = Any


class EpisodicEnvironment(Environment):
    """A gymnax environment with discrete actions whose episodes end naturally within `horizon` steps.

    Subclasses are frozen dataclasses: their fields are the static settings, by which they compare and hash, so that
    equal environments share compiled programs.
    """

    @property
    def horizon(self) -> int:
        """Static bound on the number of steps of an episode."""
        raise NotImplementedError

    def check(self, params: PyTree) -> None:
        """Raise a ValueError where (concrete) params contradict the static settings."""
        del params

    def is_truncated(self, state: PyTree, params: PyTree) -> Array:
        """Never: the end is part of the task."""
        del state, params
        return jnp.zeros((), bool)

    def action_space(self, params: PyTree | None = None) -> spaces.Discrete:
        del params
        return spaces.Discrete(self.num_actions)


def check_length(length: Any, *, minimum: int, maximum: int) -> None:
    """Raise a ValueError unless minimum <= length <= maximum, for a number or an array of them."""
    if np.min(length) < minimum or np.max(length) > maximum:
        raise ValueError(
            f"length={np.asarray(length).tolist()} is not allowed: it must lie between {minimum} and "
            f"max_length={maximum}. Pass a larger static max_length to make it longer."
        )


def check_max_length(max_length: int, *, minimum: int) -> None:
    """Raise a ValueError unless the static maximum leaves room for the shortest episode."""
    if max_length < minimum:
        raise ValueError(f"max_length={max_length} is not allowed: an episode has at least {minimum} steps.")
