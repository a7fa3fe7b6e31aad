"""What our own environments share: discrete actions, natural ends, a static horizon, checked params."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces
from gymnax.environments.environment import Environment
from jaxtyping import Array

PyTree = Any

# how the names of params end
PROBABILITIES = ("probability", "density")
DEVIATIONS = ("deviation", "sigma", "noise")


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
        """Raise a ValueError where (concrete) params contradict the static settings, or what their names say.

        A probability, or density, is from 0 to 1; a deviation, sigma or noise is not negative.
        """
        for field in dataclasses.fields(params):
            if field.name.endswith(PROBABILITIES):
                check_probability(field.name, getattr(params, field.name))
            elif field.name.endswith(DEVIATIONS):
                check_deviation(field.name, getattr(params, field.name))

    def is_truncated(self, state: PyTree, params: PyTree) -> Array:
        """Never: the end is part of the task."""
        del state, params
        return jnp.zeros((), bool)

    def action_space(self, params: PyTree | None = None) -> spaces.Discrete:
        del params
        return spaces.Discrete(self.num_actions)


class SizedEnvironment(EpisodicEnvironment):
    """One whose params hold a traced `length`, up to the static field `max_length`, by which its arrays are sized."""

    max_length: int
    min_length: ClassVar[int]
    params_type: ClassVar[Callable[..., Any]]

    def __post_init__(self) -> None:
        if not isinstance(self.max_length, int):
            raise ValueError(f"max_length={self.max_length!r} is not allowed: it is static, a whole number.")
        if self.max_length < self.min_length:
            raise ValueError(f"max_length={self.max_length} is not allowed: it must be at least {self.min_length}.")

    @property
    def horizon(self) -> int:
        return self.max_length

    @property
    def default_params(self) -> PyTree:
        return self.params_type(length=self.max_length)

    def check(self, params: PyTree) -> None:
        super().check(params)
        if np.min(params.length) < self.min_length or np.max(params.length) > self.max_length:
            raise ValueError(
                f"length={np.asarray(params.length).tolist()} is not allowed: it must lie between {self.min_length} "
                f"and max_length={self.max_length}. Pass a larger static max_length to make it longer."
            )


class TimeLimitedEnvironment(SizedEnvironment):
    """One whose `length` is a time limit that the state does not show: it truncates, and decides nothing else."""

    def time_limit(self, params: PyTree) -> Array:
        """Steps after which an episode is cut."""
        return params.length

    def is_truncated(self, state: PyTree, params: PyTree) -> Array:
        return jnp.asarray(state.time >= self.time_limit(params))


def check_probability(name: str, probability: Any) -> None:
    """Raise a ValueError unless 0 <= probability <= 1, for a number or an array of them."""
    if not (np.min(probability) >= 0 and np.max(probability) <= 1):
        raise ValueError(f"{name}={np.asarray(probability).tolist()} is not allowed: a probability is from 0 to 1.")


def check_deviation(name: str, deviation: Any) -> None:
    """Raise a ValueError unless deviation >= 0, for a number or an array of them."""
    if not np.min(deviation) >= 0:
        raise ValueError(f"{name}={np.asarray(deviation).tolist()} is not allowed: a standard deviation is at least 0.")
