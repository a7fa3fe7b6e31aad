"""TaskInterleaving: questions of several contexts in any order, each answered for later, when its context returns.

Reference: the task-interleaving environment of Meulemans et al. (2023), "Would I have gotten that reward? Long-term
credit assignment by counterfactual contribution analysis", arXiv:2306.16803, and its public code (after the task of
Mesnard et al., 2021, arXiv:2011.09464).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment
from jaxtyping import Array, Float

from envs.base import TimeLimitedEnvironment
from envs.finite import FiniteEnvironment, independent, uniform
from jaxcredit.core.mdp import TabularMDP, enumerate_mdp

NUM_CONTEXTS = 5
MAX_OPEN = 3
NUM_OBJECTS = 4  # kinds of objects; in each context two of them are rewarded
NUM_VARIANTS = 8  # of a query: which of two rewarded objects, which of two unrewarded ones, on which side
QUERY, ANSWER = 0, 1
CLOSED, OPEN, OPEN_WITH_KEY = range(3)
# With m contexts open, each is next with chance 1/3, each closed one with (1 - m/3) / (5 - m) = 1/5, 1/6 or 1/9: all of
# these are multiples of 1/90.
NUM_LOTS = 90


@struct.dataclass
class State(environment.EnvState):
    """Attributes, all int32 `()`.

    `time`; `status`, those of the five contexts (0 closed, 1 open, 2 open with its key) as digits to the base 3,
    context 0 the lowest; `room` (0 query, 1 answer); `context` of the room; `variant` of a query (0 in an answer room):
    bits 0 and 1 choose the rewarded and the unrewarded object, bit 2 is the side of the rewarded one.
    """

    time: Any
    status: Any
    room: Any
    context: Any
    variant: Any


@struct.dataclass
class Params:
    """Every number is traced.

    Attributes:
      length: time limit in steps, at least 1 and at most the environment's static `max_length`.
      die_probability: chance that the episode ends after a step.
      lowest_reward, highest_reward: what the first and the last context pay for a key, in reward units; those between
        are evenly spaced.
    """

    length: int = 100
    die_probability: float = 0.05
    lowest_reward: float = 0.2
    highest_reward: float = 1.0


@dataclasses.dataclass(frozen=True)
class TaskInterleaving(TimeLimitedEnvironment, FiniteEnvironment):
    """Five contexts, of which at most three are open: each is asked, and later answered, in the order of chance.

    Query room: two objects, one of them rewarded in this context, on sides drawn at random. Action 0 chooses the left,
    action 1 the right one; the rewarded one gives the context's key. The context is then open, in either case. Answer
    room: any action; the context pays its reward if its key is held, loses the key and closes.
    With m contexts open, the next room is with probability m / 3 the answer of one of them, else the query of a closed
    one; both uniformly. The first room is a query.

    Observation `[24]` float32: context one-hot (5), answer room (1), object on the left and on the right one-hot (4
    each; zeros in an answer room), context is open (5), key is held (5). Two actions. `info["decisive"]` bool marks the
    query rooms.

    Dying ends the episode naturally (terminated), after the step's reward; the time limit, which the agent cannot see,
    truncates.

    `mdp` enumerates the 1650 states that can be reached, so it needs concrete params.

    Assumption: all contexts share the same four kinds of objects, and which two of them a context rewards is drawn once
    by a seeded generator of ours; it shows in the observation only. The reference has one kind of end for dying and for
    the time limit.

    Attributes:
      max_length: static bound on `params.length`.
    """

    max_length: int = 100
    min_length: ClassVar[int] = 1
    params_type: ClassVar[Any] = Params

    @property
    def num_actions(self) -> int:
        return 2

    @property
    def state_sizes(self) -> State:
        return State(time=1, status=3**NUM_CONTEXTS, room=2, context=NUM_CONTEXTS, variant=NUM_VARIANTS)

    @functools.cached_property
    def objects(self) -> np.ndarray:
        """Kinds of objects `[5, 4]` per context: two rewarded ones, then two unrewarded ones."""
        kinds = np.tile(np.arange(NUM_OBJECTS, dtype=np.int32), (NUM_CONTEXTS, 1))
        return np.random.default_rng(2020).permuted(kinds, axis=1)

    def noise(self, params: Params) -> tuple[tuple[Array, Array, Array], Float[Array, "K"]]:
        """The lot that picks the next room, the variant of its query, and whether the agent dies (0 or 1)."""
        (lot, variant), chance = independent(uniform(NUM_LOTS), uniform(NUM_VARIANTS))
        die = jnp.asarray(params.die_probability, jnp.float32)
        # Nothing follows death, so that one value of it is enough.
        values = jnp.append(lot, 0), jnp.append(variant, 0), jnp.append(jnp.zeros_like(lot), 1)
        return values, jnp.append((1 - die) * chance, die)

    def sample_noise(self, key: jax.Array, params: Params) -> tuple[Array, Array, Array]:
        """Draw the factors apart, which is cheaper than one of their combinations."""
        lot, variant, dies = jax.random.uniform(key, (3,))
        return (
            (lot * NUM_LOTS).astype(jnp.int32),
            (variant * NUM_VARIANTS).astype(jnp.int32),
            (dies < params.die_probability).astype(jnp.int32),
        )

    def initial(self, params: Params) -> tuple[State, Float[Array, "N"]]:
        del params
        (context, variant), probability = independent(uniform(NUM_CONTEXTS), uniform(NUM_VARIANTS))
        zero = jnp.zeros_like(context)
        return State(time=zero, status=zero, room=zero, context=context, variant=variant), probability

    def transition(
        self, state: State, action: Array, noise: tuple[Array, Array, Array], params: Params
    ) -> tuple[State, Array, Array, dict[str, Array]]:
        lot, variant, dies = noise
        query = state.room == QUERY
        before = _digits(state.status)[state.context]
        step = (params.highest_reward - params.lowest_reward) / (NUM_CONTEXTS - 1)
        pays = ~query & (before == OPEN_WITH_KEY)
        reward = pays * (params.lowest_reward + step * state.context)

        chosen = jnp.where(action == state.variant // 4, OPEN_WITH_KEY, OPEN)
        after = jnp.where(query, chosen, CLOSED)
        status = state.status + (after - before) * 3**state.context
        opened = _digits(status) != CLOSED
        number = opened.sum()
        per_open = NUM_LOTS // MAX_OPEN
        answers = lot < per_open * number
        of_closed = (lot - per_open * number) * (NUM_CONTEXTS - number)
        rank = jnp.where(answers, lot // per_open, of_closed // jnp.maximum(NUM_LOTS - per_open * number, 1))
        eligible = opened == answers
        context = jnp.argmax(eligible & (jnp.cumsum(eligible) == rank + 1))
        successor = State(
            time=state.time + 1,
            status=status.astype(jnp.int32),
            room=jnp.where(answers, ANSWER, QUERY).astype(jnp.int32),
            context=context.astype(jnp.int32),
            variant=jnp.where(answers, 0, variant).astype(jnp.int32),
        )
        return successor, jnp.asarray(reward, jnp.float32), dies == 1, {"decisive": query}

    def mdp(self, params: Params) -> TabularMDP:
        """The table of the states that can be reached (`jc.enumerate_mdp`); its horizon is `max_length`."""
        return enumerate_mdp(self, params)

    def get_obs(self, state: State, params: Params | None = None, key: jax.Array | None = None) -> Float[Array, "24"]:
        del params, key
        status, query = _digits(state.status), state.room == QUERY
        objects = jnp.asarray(self.objects)[state.context]
        rewarded, unrewarded = objects[state.variant % 2], objects[2 + state.variant // 2 % 2]
        right = state.variant // 4 == 1
        left_object = jnp.where(right, unrewarded, rewarded)
        right_object = jnp.where(right, rewarded, unrewarded)
        parts = (
            jax.nn.one_hot(state.context, NUM_CONTEXTS),
            ~query[None],
            query * jax.nn.one_hot(left_object, NUM_OBJECTS),
            query * jax.nn.one_hot(right_object, NUM_OBJECTS),
            status != CLOSED,
            status == OPEN_WITH_KEY,
        )
        return jnp.concatenate([jnp.asarray(part, jnp.float32) for part in parts])


def _digits(status: Array) -> Array:
    """Status of every context `[5]`."""
    return status // 3 ** jnp.arange(NUM_CONTEXTS, dtype=jnp.int32) % 3
