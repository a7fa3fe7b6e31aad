"""Small exact decision processes: sparse tables that dynamic programming reads by gathering."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.core import Tracer
from jaxtyping import Array, Bool, Int

from jaxcredit.core.frozen import Frozen

MAX_OUTCOMES = 60_000_000
CHUNK = 65_536  # outcomes of one compiled call of the enumeration


@struct.dataclass
class TabularMDP(Frozen):
    """A finite decision process whose every (state, action) leads to at most K outcomes.

    Outcome k of (s, a) happens with `probability[s, a, k]`, pays `reward[s, a, k]` and moves to `successor[s, a, k]`,
    unless it is `terminal`: then the episode ends naturally and the successor means nothing.

    Attributes:
      initial: `[S]` float, distribution of the first state.
      successor: `[S, A, K]` int32, index of the following state.
      probability: `[S, A, K]` float, sums to 1 over k.
      reward: `[S, A, K]` float, follows the action.
      terminal: `[S, A, K]` bool, the outcome ends the episode.
      observation: `[S, ...]` what the agent sees; distinct states may look the same.
      horizon: static bound on the number of steps of an episode.
      code: `[S]` int32, ascending: what the environment's `encode` calls each state; None for a table without one.
      decisive: `[S]` bool, the action there decides the return (the environment's `info["decisive"]`), or None.
    """

    initial: Any
    successor: Any
    probability: Any
    reward: Any
    terminal: Any
    observation: Any
    horizon: int = struct.field(pytree_node=False)
    code: Any = None
    decisive: Any = None

    @property
    def num_states(self) -> int:
        return self.successor.shape[0]

    @property
    def num_actions(self) -> int:
        return self.successor.shape[1]

    def row(self, code: Int[Array, "..."]) -> Int[Array, "..."]:
        """Index of a state by what the environment's `encode` calls it.

        A traced code is not looked up: one that the table does not hold gives the index of another state, or S.

        Raises:
          ValueError: no such state in the table (where the code is concrete), or a table without codes.
        """
        if self.code is None:
            raise ValueError("This table does not say what an environment calls its states: give it a code.")
        index = jnp.searchsorted(self.code, code).astype(jnp.int32)
        if not isinstance(index, Tracer):
            missing = np.setdiff1d(code, self.code).tolist()
            if missing:
                raise ValueError(
                    f"The table has no state of code {missing[0]}: it cannot be reached with these params, or the "
                    "code is of an environment of other sizes."
                )
        return index

    def astype(self, dtype: Any) -> TabularMDP:
        """The same table in another precision; probabilities are normalised anew, so that they sum to 1 in it."""

        def distribution(x: Any) -> jax.Array:
            x = jnp.asarray(x, dtype)
            return x / x.sum(axis=-1, keepdims=True)

        return self.replace(
            initial=distribution(self.initial),
            probability=distribution(self.probability),
            reward=jnp.asarray(self.reward, dtype),
        )


def enumerate_mdp(env: Any, params: Any) -> TabularMDP:
    """Build the table of those states that can be reached, by running the environment's own `transition`.

    Outcomes that do the same are merged, so K is the largest number of different ones.  Runs on the host and needs
    concrete params; the environment's `mdp` is the traceable form, which holds every combination of the state's fields.

    Args:
      env: an environment with `noise`, `initial`, `transition`, `encode` and `decode` (`envs.FiniteEnvironment`).
      params: its params.
    Returns:
      The table; its rows are in the order of `encode`.
    Raises:
      ValueError: an environment that is not finite, or one with more than `MAX_OUTCOMES` outcomes or numbers in its
        observations; params that are traced, or hold several values to `vmap` over.
    """
    if not all(hasattr(env, name) for name in ("noise", "initial", "transition", "encode", "decode")):
        raise ValueError(
            f"{getattr(env, 'name', env)} cannot be enumerated: it is not given by `transition` and `noise`. "
            "Subclasses of envs.FiniteEnvironment are; envs.names() lists the environments."
        )
    if env.num_states > np.iinfo(np.int32).max:
        raise ValueError(
            f"{getattr(env, 'name', env)} has {env.num_states:,} combinations of its state's fields, more than "
            "int32 can number. Choose a smaller one."
        )
    require_one_task(env, params, "enumerate_mdp")
    noise, chance = env.noise(params)
    chance = np.asarray(chance)
    first_states, first_chance = jax.tree.map(np.asarray, env.initial(params))
    first = np.asarray(jax.vmap(env.encode)(first_states))
    per_state = env.num_actions * len(chance)
    outcomes = jax.jit(lambda codes: outcomes_of(env, params, noise, codes))
    chunk = max(1, CHUNK // per_state)
    seen = math.prod(env.observation_space(params).shape)
    known, parts = np.unique(first[first_chance > 0]), []
    frontier = known
    while len(frontier):
        if len(known) * per_state > MAX_OUTCOMES:
            raise ValueError(
                f"{getattr(env, 'name', env)} has more than {MAX_OUTCOMES:,} outcomes (states x actions x noise: at "
                f"least {len(known):,} x {env.num_actions} x {len(chance):,}), too many to enumerate. Choose a "
                "smaller one."
            )
        if len(known) * seen > MAX_OUTCOMES:
            raise ValueError(
                f"The observations of {getattr(env, 'name', env)} hold {seen:,} numbers in each of at least "
                f"{len(known):,} states, more than {MAX_OUTCOMES:,} in all. Choose a smaller one."
            )
        new = []
        for codes in np.split(frontier, range(chunk, len(frontier), chunk)):
            found = outcomes(np.resize(codes, chunk))  # always the same size, so compiled once
            new.append(_merged(codes, chance, *(np.asarray(x)[: len(codes)] for x in found)))
        parts += new
        follows = np.unique(np.concatenate([part["successor"][~part["terminal"]] for part in new]))
        frontier = np.setdiff1d(follows, known, assume_unique=True)
        known = np.union1d(known, frontier)
    initial = np.zeros(len(known), first_chance.dtype)
    starts = first_chance > 0
    np.add.at(initial, np.searchsorted(known, first[starts]), first_chance[starts])
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return _table(env, params, known, initial, columns)


def require_one_task(env: Any, params: Any, caller: str) -> None:
    """Refuse params that are traced, or of several tasks."""
    if any(isinstance(x, Tracer) for x in (jnp.zeros(()), *jax.tree.leaves(params))):
        raise ValueError(
            f"{caller} looks at its results on the host: call it outside of jit, vmap and grad, with concrete params. "
            "The environment's own `mdp` can be traced."
        )
    usual = jax.tree.leaves(env.default_params)
    for (path, x), one in zip(jax.tree_util.tree_leaves_with_path(params), usual, strict=False):
        if np.shape(x) != np.shape(one):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ValueError(
                f"{name}={np.asarray(x).tolist()} is of several tasks, and {caller} takes one: call it for each. The "
                "environment's own `mdp` can be mapped."
            )


def decisive_states(env: Any, params: Any, noise: Any, states: Any) -> Bool[Array, "S"] | None:
    """Which of the stacked states the environment calls decisive, or None if it never says."""
    value = jax.tree.map(lambda x: x[0], noise)

    def info(state: Any) -> dict[str, Any]:
        return env.transition(state, jnp.zeros((), jnp.int32), value, params)[3]

    if "decisive" not in jax.eval_shape(info, jax.tree.map(lambda x: x[0], states)):
        return None
    return jax.vmap(lambda state: info(state)["decisive"])(states)


def outcomes_of(env: Any, params: Any, noise: Any, codes: Array) -> tuple[Array, Array, Array]:
    """What follows N states: code of the successor, reward and terminal, `[N, A, K]`."""

    def outcome(code: Array, action: Array, value: Any) -> tuple[Array, Array, Array]:
        successor, reward, terminal, _ = env.transition(env.decode(code), action, value, params)
        return env.encode(successor), reward, terminal

    over_noise = jax.vmap(outcome, (None, None, 0))
    over_actions = jax.vmap(over_noise, (None, 0, None))
    actions = jnp.arange(env.num_actions, dtype=jnp.int32)
    return jax.vmap(over_actions, (0, None, None))(jnp.asarray(codes, jnp.int32), actions, noise)


def _merged(
    codes: np.ndarray, chance: np.ndarray, successor: np.ndarray, reward: np.ndarray, terminal: np.ndarray
) -> dict[str, np.ndarray]:
    """The possible outcomes of some states as flat columns, in the order of states and actions; equal ones added up."""
    shape = successor.shape
    columns = {
        "code": np.broadcast_to(codes[:, None, None], shape),
        "action": np.broadcast_to(np.arange(shape[1])[:, None], shape),
        "terminal": terminal,
        "successor": np.where(terminal, 0, successor),
        "reward": reward,
        "probability": np.broadcast_to(chance.astype(np.float64), shape),
    }
    columns = {name: x[np.broadcast_to(chance > 0, shape)] for name, x in columns.items()}
    alike = [columns[name] for name in ("code", "action", "terminal", "successor", "reward")]
    order = np.lexsort(alike[::-1])
    differs = np.any([np.diff(x[order]) != 0 for x in alike], axis=0)
    begins = np.flatnonzero(np.concatenate([[True], differs]))
    probability = np.add.reduceat(columns["probability"][order], begins)
    return {name: x[order][begins] for name, x in columns.items()} | {"probability": probability}


def _table(
    env: Any, params: Any, known: np.ndarray, initial: np.ndarray, outcomes: dict[str, np.ndarray]
) -> TabularMDP:
    """Lay flat columns of outcomes out as `[S, A, K]`; places without an outcome are terminal, with probability 0."""
    pair = np.searchsorted(known, outcomes["code"]) * env.num_actions + outcomes["action"]
    order = np.argsort(pair, kind="stable")
    pair = pair[order]
    begins = np.searchsorted(pair, np.arange(len(known) * env.num_actions))
    place = np.arange(len(pair)) - begins[pair]
    shape = (len(known) * env.num_actions, int(place.max()) + 1)

    def laid_out(x: np.ndarray, empty: Any) -> jax.Array:
        table = np.full(shape, empty, x.dtype)
        table[pair, place] = x[order]
        return jnp.asarray(table.reshape(len(known), env.num_actions, shape[1]))

    successor = np.where(outcomes["terminal"], 0, np.searchsorted(known, outcomes["successor"]))
    states = jax.vmap(env.decode)(jnp.asarray(known, jnp.int32))
    return TabularMDP(
        initial=jnp.asarray(initial),
        successor=laid_out(successor.astype(np.int32), 0),
        probability=laid_out(outcomes["probability"].astype(initial.dtype), 0),
        reward=laid_out(outcomes["reward"], 0),
        terminal=laid_out(outcomes["terminal"], True),
        observation=jax.vmap(lambda state: env.get_obs(state, params))(states),
        horizon=env.horizon,
        code=jnp.asarray(known, jnp.int32),
        decisive=decisive_states(env, params, env.noise(params)[0], states),
    )
