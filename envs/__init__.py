"""Environments behind one interface, gymnax's: ours, every one that gymnax registers, and brax's.

>>> import envs
>>> env, params = envs.make("DelayedKeyToDoor", length=40)
>>> env.horizon
40
>>> env, params = envs.make("CartPole-v1", max_steps_in_episode=200)
>>> env, params = envs.make("brax:fast", episode_length=128)
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments.environment import Environment
from jax.core import Tracer

from envs.active_visual_match import ActiveVisualMatch
from envs.adapters import BRAX_NAMES, BraxEnvironment, GymnaxEnvironment, make_brax, strong
from envs.ambiguous_bandit import AmbiguousBandit
from envs.base import EpisodicEnvironment
from envs.charge_discharge import ChargeDischarge
from envs.choice import Choice
from envs.coin_line import CoinLine
from envs.credit_maze import CreditMaze
from envs.delayed_effect import DelayedEffect
from envs.delayed_key_to_door import DelayedKeyToDoor
from envs.drawn import DrawnEnvironment
from envs.finite import FiniteEnvironment
from envs.four_rooms import FourRooms
from envs.grid_bomb import GridBomb
from envs.key_gift_goal import KeyGiftGoal
from envs.key_to_door import KeyToDoor
from envs.phased_key_to_door import PhasedKeyToDoor
from envs.probes import PROBES, Probe
from envs.rooms_delayed import ROOMS, RoomsDelayed
from envs.shortcut import Shortcut
from envs.stochastic_chain import StochasticChain
from envs.task_interleaving import TaskInterleaving
from envs.taxi import Taxi
from envs.trace_back import TraceBack
from envs.tree import Tree
from envs.watch_repair import WatchRepair
from envs.wrappers import DelayedReward, FlattenObservation, NoisyReward, PreviousAction, TerminalTimeLimit, Wrapper

__all__ = [
    "ActiveVisualMatch",
    "AmbiguousBandit",
    "BraxEnvironment",
    "ChargeDischarge",
    "Choice",
    "CoinLine",
    "CreditMaze",
    "DelayedEffect",
    "DelayedKeyToDoor",
    "DelayedReward",
    "DrawnEnvironment",
    "EpisodicEnvironment",
    "FiniteEnvironment",
    "FlattenObservation",
    "FourRooms",
    "GridBomb",
    "GymnaxEnvironment",
    "KeyGiftGoal",
    "KeyToDoor",
    "NoisyReward",
    "PhasedKeyToDoor",
    "PreviousAction",
    "Probe",
    "RoomsDelayed",
    "Shortcut",
    "StochasticChain",
    "TaskInterleaving",
    "Taxi",
    "TerminalTimeLimit",
    "TraceBack",
    "Tree",
    "WatchRepair",
    "Wrapper",
    "make",
    "names",
]

TIME_LIMITS = ("bootstrap", "terminal")

OURS: dict[str, Callable[..., EpisodicEnvironment]] = {
    "ActiveVisualMatch": ActiveVisualMatch,
    "AmbiguousBandit": AmbiguousBandit,
    "ChargeDischarge": ChargeDischarge,
    "Choice": Choice,
    "CoinLine": CoinLine,
    "CreditMaze": CreditMaze,
    "DelayedEffect": DelayedEffect,
    "DelayedKeyToDoor": DelayedKeyToDoor,
    "FourRooms": FourRooms,
    "GridBomb": GridBomb,
    "KeyGiftGoal": KeyGiftGoal,
    "KeyToDoor": KeyToDoor,
    "PhasedKeyToDoor": PhasedKeyToDoor,
    "Shortcut": Shortcut,
    "StochasticChain": StochasticChain,
    "TaskInterleaving": TaskInterleaving,
    "Taxi": Taxi,
    "TraceBack": TraceBack,
    "Tree": Tree,
    "WatchRepair": WatchRepair,
    **ROOMS,
    **PROBES,
}

# Their observations contain the time, so the limit is part of the task: a value asked beyond it is extrapolated.
TERMINAL_BY_DEFAULT = (
    "DiscountingChain-bsuite",
    "BernoulliBandit-misc",
    "GaussianBandit-misc",
    "PointRobot-misc",
    "MetaMaze-misc",
)
NEEDS_DOWNLOAD = "MNISTBandit-bsuite"


def names() -> list[str]:
    """Every name that `make` knows: ours, then gymnax's (those that need no download), then `brax:NAME`."""
    return [*OURS, *(n for n in gymnax.registered_envs if n != NEEDS_DOWNLOAD), *(f"brax:{n}" for n in BRAX_NAMES)]


def make(name: str, *, time_limit: str | None = None, **settings: Any) -> tuple[Environment, Any]:
    """Build an environment and its params.

    Args:
      name: one of `names()`.
      time_limit: what the end by a time limit means. "bootstrap": the episode is `truncated`, the value of what would
        have followed counts. "terminal": it is `terminated`, nothing follows. None takes the environment's default:
        "terminal" for the gymnax environments whose observation contains the time (DiscountingChain, BernoulliBandit,
        GaussianBandit, PointRobot, MetaMaze), "bootstrap" for all others. Most of ours end naturally: no difference.
      **settings: static constructor arguments (they change shapes or code) and values of params fields. A static
        maximum such as `max_length` follows the `length` that is given, unless it is given itself.
    Returns:
      `(env, params)`. The same name and static settings give the same object, so nothing recompiles; params hold only
      strongly typed arrays, so changing a value never recompiles either. `env.horizon` is the static bound on the
      length of an episode; it follows `max_steps_in_episode` where that is given.
    Raises:
      ValueError: unknown name, setting or `time_limit`; a value that the setting does not take.
    """
    if time_limit is None:
        time_limit = "terminal" if name in TERMINAL_BY_DEFAULT else "bootstrap"
    if time_limit not in TIME_LIMITS:
        raise ValueError(f"time_limit={time_limit!r} is not known; choose one of {', '.join(TIME_LIMITS)} or None.")
    arguments = _arguments(name)
    env = _build(name, **_static(name, settings, arguments))
    fields = [field.name for field in dataclasses.fields(env.default_params)]
    numbers = {key: value for key, value in settings.items() if key in fields}
    _reject_unknown(name, settings, fields, arguments)
    params = _override(name, env.default_params, numbers)
    if isinstance(env, EpisodicEnvironment):
        env.check(params)
    if "max_steps_in_episode" in numbers:
        if np.min(params.max_steps_in_episode) < 1:
            given = numbers["max_steps_in_episode"]
            raise ValueError(f"max_steps_in_episode={given!r} is not allowed: an episode has at least one step.")
        env = _with_horizon(env, int(np.max(numbers["max_steps_in_episode"])))
    return (_terminal(env) if time_limit == "terminal" else env), params


@functools.cache
def _arguments(name: str) -> tuple[str, ...] | None:
    """Names of the static constructor arguments; None where only the constructor itself knows them (brax)."""
    if name == NEEDS_DOWNLOAD:
        raise ValueError(
            f"{name} downloads its data when it is built, so it is not offered; to use it anyway, build it with "
            "gymnax.make and wrap it in envs.GymnaxEnvironment."
        )
    if name in OURS:
        constructor = OURS[name]
    elif name in gymnax.registered_envs:
        constructor = type(gymnax.make(name)[0])
    elif name.removeprefix("brax:") in BRAX_NAMES and name.startswith("brax:"):
        return None
    else:
        raise ValueError(f"There is no environment {name!r}.{_suggest(name, names())} envs.names() lists all of them.")
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name for p in inspect.signature(constructor).parameters.values() if p.kind in named)


def _static(name: str, settings: dict[str, Any], arguments: tuple[str, ...] | None) -> dict[str, Any]:
    """The static part of `settings`, hashable; a maximum follows the value that it bounds."""
    if arguments is None:
        static = {key: value for key, value in settings.items() if key != "max_steps_in_episode"}
    else:
        static = {key: settings[key] for key in arguments if key in settings}
        for argument in set(arguments) - set(static):
            bounded = argument.removeprefix("max_")
            if bounded != argument and bounded in settings:
                largest = np.max(_numbers(name, bounded, settings[bounded]))
                if largest > np.iinfo(np.int32).max:
                    raise ValueError(f"{bounded}={settings[bounded]!r} of {name} is more than an int32 can hold.")
                static[argument] = int(largest)
    static = {key: tuple(value) if isinstance(value, list) else value for key, value in static.items()}
    for key, value in static.items():
        try:
            hash(value)
        except TypeError as error:
            raise ValueError(
                f"{key}={value!r} of {name} is static, so it must be hashable: pass numbers, strings or tuples."
            ) from error
    return dict(sorted(static.items()))


@functools.lru_cache(maxsize=None, typed=True)  # or 4.0 and True would pass as what was built for 4 and 1
def _build(name: str, **static: Any) -> Any:
    if name in OURS:
        return OURS[name](**static)
    if name.startswith("brax:"):
        return make_brax(name.removeprefix("brax:"), **static)
    env, params = _gymnax(name, static)
    if name == "DiscountingChain-bsuite" and not 0 <= env.mapping_seed < env.n_actions:
        raise ValueError(
            f"mapping_seed={env.mapping_seed} is not allowed: it is the best action of {name}, from 0 to "
            f"n_actions - 1 = {env.n_actions - 1}; beyond, gymnax gives all actions the same reward."
        )
    return GymnaxEnvironment(env, horizon=int(params.max_steps_in_episode))


def _gymnax(name: str, static: dict[str, Any]) -> tuple[Any, Any]:
    """Build an environment that checks nothing itself, and see that it can be reset."""
    try:
        env, params = gymnax.make(name, **static)
        jax.eval_shape(env.reset, jax.random.key(0), params)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        if not static:
            raise
        given = ", ".join(f"{key}={value!r}" for key, value in static.items())
        raise ValueError(f"{given} is not allowed: gymnax cannot build {name} with it ({error}).") from error
    return env, params


@functools.cache
def _with_horizon(env: Any, horizon: int) -> Any:
    return dataclasses.replace(env, horizon=horizon)


@functools.cache
def _terminal(env: Environment) -> TerminalTimeLimit:
    return TerminalTimeLimit(env)


def _override(name: str, params: Any, numbers: dict[str, Any]) -> Any:
    """Replace fields of `params` by numbers (or arrays of them, for a `vmap`), in each field's own dtype."""
    params = strong(params)
    for key, value in numbers.items():
        usual = getattr(params, key)
        array = _numbers(name, key, value)
        cast = array.astype(usual.dtype)
        if not (np.issubdtype(usual.dtype, np.floating) or np.array_equal(cast, array)):
            raise ValueError(
                f"{key}={value!r} of {name} must be of type {usual.dtype.name}, a number or an array of them."
            )
        if array.shape[array.ndim - usual.ndim :] != usual.shape:
            raise ValueError(
                f"{key}={value!r} of {name} has shape {array.shape}; it holds {' x '.join(map(str, usual.shape))} "
                "numbers, on the last axes."
            )
        params = params.replace(**{key: jnp.asarray(cast)})
    return params


def _numbers(name: str, key: str, value: Any) -> np.ndarray:
    """The value of a setting as a NumPy array of finite numbers, at least one."""
    if isinstance(value, Tracer):
        raise ValueError(
            f"{key} of {name} is traced, and `make` looks at its settings: build outside of jit, vmap and grad, then "
            f"put it in by params.replace({key}=...)."
        )
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    numeric = np.issubdtype(array.dtype, np.number) or array.dtype == bool
    if not numeric or array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"{key}={value!r} of {name} must be a finite number, or an array of at least one.")
    return array


def _reject_unknown(name: str, settings: dict[str, Any], fields: list[str], arguments: tuple[str, ...] | None) -> None:
    for key in settings:
        if arguments is not None and key not in (*arguments, *fields):
            raise ValueError(
                f"{name} has no setting {key!r}.{_suggest(key, (*arguments, *fields))} Static settings: "
                f"{', '.join(arguments) or 'none'}. Params: {', '.join(fields)}."
            )


def _suggest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.4)
    return f" Did you mean {' or '.join(near)}?" if near else ""
