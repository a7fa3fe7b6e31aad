"""What the tasks in three phases share: an exploration that decides, a distraction, and a room that pays for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from envs.drawn import DrawnEnvironment

PyTree = Any

EXPLORE, DISTRACTOR, REWARD = range(3)
PHASES = ("explore", "distractor", "reward")
# The distraction may be left out.
LEAST_LENGTHS = (1, 0, 1)


@dataclasses.dataclass(frozen=True)
class PhasedEnvironment(DrawnEnvironment):
    """Three rooms, one after the other; only a timer leads from one to the next, and ends the episode.

    Subclasses write the members below that raise `NotImplementedError`. The lengths of the phases are traced params,
    `explore_length`, `distractor_length` (0 leaves it out) and `reward_length`, up to the static fields here.

    Attributes:
      max_explore_length, max_distractor_length, max_reward_length: static bounds on the lengths of the phases; their
        sum is the horizon.
    """

    max_explore_length: int = 15
    max_distractor_length: int = 90
    max_reward_length: int = 15
    params_type: ClassVar[Callable[..., Any]]

    def __post_init__(self) -> None:
        for phase, least in zip(PHASES, LEAST_LENGTHS, strict=True):
            bound = getattr(self, f"max_{phase}_length")
            if type(bound) is not int or bound < least:
                raise ValueError(
                    f"max_{phase}_length={bound!r} is not allowed: it is static, a whole number of at least {least}."
                )

    @property
    def horizon(self) -> int:
        return self.max_explore_length + self.max_distractor_length + self.max_reward_length

    @property
    def default_params(self) -> PyTree:
        return self.params_type(**{f"{phase}_length": getattr(self, f"max_{phase}_length") for phase in PHASES})

    def check(self, params: PyTree) -> None:
        super().check(params)
        for phase, least in zip(PHASES, LEAST_LENGTHS, strict=True):
            bound = getattr(self, f"max_{phase}_length")
            length = np.asarray(getattr(params, f"{phase}_length"))
            if not (length.min() >= least and length.max() <= bound):
                raise ValueError(
                    f"{phase}_length={length.tolist()} is not allowed: it must lie between {least} and "
                    f"max_{phase}_length={bound}. Pass a larger static max_{phase}_length to make the phase longer."
                )

    def begin(self, key: jax.Array, params: PyTree) -> PyTree:
        """The state at time 0, in the first room; all that is drawn once per episode is drawn here."""
        raise NotImplementedError

    def enter(self, state: PyTree, phase: Array) -> PyTree:
        """The state once the agent has been put into the room of a later phase."""
        raise NotImplementedError

    def act(
        self, key: jax.Array, state: PyTree, action: Array, phase: Array, params: PyTree
    ) -> tuple[PyTree, Float[Array, ""]]:
        """What an action does in the room of its phase, the time apart, and what it earns besides the prize."""
        raise NotImplementedError

    def prize(self, state: PyTree, params: PyTree) -> Float[Array, ""]:
        """What the last phase pays for what has been done in it so far."""
        raise NotImplementedError

    def won(self, state: PyTree) -> Bool[Array, ""]:
        """Whether the prize is the one that takes the first phase to get."""
        raise NotImplementedError

    def pays(self, before: PyTree, after: PyTree, last: Array, params: PyTree) -> Float[Array, ""]:
        """The part of the prize that a step pays: at once, what the step added to it."""
        del last
        return self.prize(after, params) - self.prize(before, params)

    def report(self, before: PyTree, after: PyTree, phase: Array, params: PyTree) -> dict[str, Array]:
        """The task's own entries of `info`, of a step in `phase`."""
        raise NotImplementedError

    def phase(self, time: Array, params: PyTree) -> Int[Array, ""]:
        """The phase of the step at this time."""
        explored = params.explore_length
        later = (time >= explored).astype(jnp.int32)
        return later + (time >= explored + params.distractor_length)

    def step_env(
        self, key: jax.Array, state: PyTree, action: Array, params: PyTree
    ) -> tuple[Array, PyTree, Array, Array, dict]:
        phase, following = self.phase(state.time, params), self.phase(state.time + 1, params)
        after, earned = self.act(key, state, jnp.asarray(action, jnp.int32), phase, params)
        after = dataclasses.replace(after, time=state.time + 1)
        last = after.time >= params.explore_length + params.distractor_length + params.reward_length
        reward = earned + self.pays(state, after, last, params)
        info = {
            "treasure": (last & self.won(after)).astype(jnp.float32),
            "last_phase_reward": jnp.asarray(last * self.prize(after, params), jnp.float32),
            **self.report(state, after, phase, params),
        }
        entered = self.enter(after, following)
        after = jax.tree.map(lambda new, old: jnp.where(following != phase, new, old), entered, after)
        return self.get_obs(after, params), after, jnp.asarray(reward, jnp.float32), last, info

    def reset_env(self, key: jax.Array, params: PyTree) -> tuple[Array, PyTree]:
        state = self.begin(key, params)
        return self.get_obs(state, params), state

    def caption(self, state: PyTree, params: PyTree) -> str:
        phase = int(self.phase(state.time, params))
        lengths = [int(getattr(params, f"{name}_length")) for name in PHASES]
        return f"{PHASES[phase]} room, {int(state.time) - sum(lengths[:phase])} of {lengths[phase]} steps done"
