"""The host loop: compiled chunks of training, with progress, logs and files between them."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from jaxcredit.agents.on_policy import OnPolicyAgent, TrainState
from jaxcredit.training.logging import Progress, Report, RunFiles, describe, finite_iqm, require_free
from jaxcredit.training.sweep import EVALUATION_STREAM, as_arrays
from jaxcredit.training.train import COUNTERS, advance, evaluate

if TYPE_CHECKING:
    import pandas

# most of the time that compiling takes goes into making programs fast; those that are called once need not be
CALLED_ONCE: Any = {"xla_backend_optimization_level": 1}


@dataclass(frozen=True)
class RunResult:
    """What `run` returns.

    Attributes:
      state: the final training state of all seeds; leaves that differ between seeds have them on axis 0.
      frame: one row per seed and point: `seed`, `point`, `iteration`, the counters, and every metric of `train`.
      summary: one row per seed: the final counters, every metric averaged over the last tenth of the points, and the
        final evaluation as `eval.*`.
      directory: where the files are, or None.
      compile_seconds, run_seconds: spent on compiling, and on everything after it.
      axes: the seed axis of every leaf of `state`, see `seed_axes`.
    """

    state: TrainState
    frame: pandas.DataFrame
    summary: pandas.DataFrame
    directory: Path | None
    compile_seconds: float
    run_seconds: float
    axes: Any

    def state_of(self, seed: int) -> TrainState:
        """The training state of one seed, as `train` would have returned it."""
        return jax.tree.map(
            lambda axis, leaf: leaf if axis is None else leaf[seed], self.axes, self.state, is_leaf=lambda x: x is None
        )


def run(
    agent: OnPolicyAgent,
    keys: jax.Array,
    total_steps: int,
    *,
    directory: str | Path | None = None,
    num_points: int = 128,
    eval_episodes: int = 0,
    progress: bool | Callable[[Report], None] = True,
    label: str | None = None,
    until: Callable[[pandas.DataFrame], bool] | None = None,
) -> RunResult:
    """Train many seeds side by side in one compiled program, chunk by chunk, and write down what happens.

    The same training as `jit(vmap(train))`: one chunk is compiled once and called until `total_steps` are collected.
    Ctrl-C ends the run after the current chunk with all files written; a second one ends it at once.

    Args:
      agent: what to train.
      keys: typed random keys, one per seed, `[S]`.
      total_steps: environment steps (slots) to collect per seed; rounded up to whole chunks, which is at most one
        iteration, or one part in `num_points`, more.
      directory: where to write (see `RunFiles`); None writes nothing.
      num_points: most points of a curve, hence most chunks.
      eval_episodes: if positive, evaluate every final policy on so many fresh episodes.
      progress: True shows a bar (without a terminal, a line every ten seconds), False nothing; or a function that is
        called with a `Report` after every point.
      label: name of the run in progress, files and figures; None takes the names of agent and environment.
      until: called after every point with all rows so far; once it returns True, training stops early.
    Returns:
      A `RunResult`.
    Raises:
      ValueError: keys that are no `[S]` typed keys, sizes below 1, a directory that already holds a run, or whatever
        `OnPolicyAgent.init` and `evaluate` object to.
      KeyboardInterrupt: after Ctrl-C, once the files are written.
    """
    import pandas as pd

    check_keys(keys)
    for name, size in (("total_steps", total_steps), ("num_points", num_points)):
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name}={size!r} is not allowed; give a whole number of at least 1.")
    label = label or f"{type(agent).__name__} on {getattr(agent.env, 'name', agent.env)}"
    directory = None if directory is None else require_free(directory)
    agent = as_arrays(agent)
    iterations = -(-total_steps // (agent.num_envs * agent.window))
    per_chunk = -(-iterations // num_points)
    chunks = -(-iterations // per_chunk)
    config = {
        "label": label,
        "total_steps": total_steps,
        "num_points": num_points,
        "iterations": chunks * per_chunk,
        "eval_episodes": eval_episodes,
        "keys": jax.random.key_data(keys).tolist(),
        "agent": describe(agent),
    }
    with _display(progress) as show:
        show(Report(label, 0, chunks, 0.0, 0.0, math.nan))
        began = time.perf_counter()
        programs = _compile(agent, keys, per_chunk, eval_episodes)
        compiled = time.perf_counter()
        with _files(directory, config) as files, _interrupts() as interrupted:
            state = programs.init(agent, keys)
            points = []
            for point in range(chunks):
                state, metrics = programs.chunk(agent, state)
                points.append(_rows(jax.device_get(metrics), point, iteration=(point + 1) * per_chunk))
                if files is not None:
                    files.append(points[-1])
                seconds = time.perf_counter() - compiled
                rate = points[-1]["valid_steps"].sum() / seconds
                show(Report(label, point + 1, chunks, seconds, rate, finite_iqm(points[-1]["episode_return"])))
                if interrupted.is_set() or (until is not None and until(pd.concat(points, ignore_index=True))):
                    break
            evaluation = {}
            if programs.evaluate is not None and not interrupted.is_set():
                evaluation = jax.device_get(programs.evaluate(agent, state, keys))
            frame = pd.concat(points, ignore_index=True)
            summary = summarise(frame, evaluation)
            if files is not None:
                files.finish(frame, summary)
    if interrupted.is_set():
        where = "" if directory is None else f"; its files are in {directory}"
        raise KeyboardInterrupt(f"{label} was stopped after {len(points)} of {chunks} points{where}")
    seconds = time.perf_counter() - compiled
    return RunResult(state, frame, summary, directory, compiled - began, seconds, programs.axes)


# One seed's part of the programs.  Being jitted they are traced once, however many programs are made of them.


@jax.jit
def init(agent: OnPolicyAgent, key: jax.Array) -> TrainState:
    """The state at the start of one seed's training."""
    return agent.init(key)


@partial(jax.jit, static_argnums=2)
def _chunk(agent: OnPolicyAgent, state: TrainState, iterations: int) -> tuple[TrainState, dict[str, jax.Array]]:
    return advance(agent, state, iterations, num_points=1)


def _evaluate(agent: OnPolicyAgent, state: TrainState, key: jax.Array, episodes: int) -> dict[str, jax.Array]:
    return evaluate(agent, state, jax.random.fold_in(key, EVALUATION_STREAM), episodes)


@dataclass(frozen=True)
class _Programs:
    """Everything a run calls, compiled for all seeds, and the seed axes of the training state."""

    init: Callable[..., TrainState]
    chunk: Callable[..., tuple[TrainState, dict[str, jax.Array]]]
    evaluate: Callable[..., dict[str, jax.Array]] | None
    axes: Any


def _compile(agent: OnPolicyAgent, keys: jax.Array, iterations: int, eval_episodes: int) -> _Programs:
    axes = seed_axes(lambda key: _chunk(agent, init(agent, key), iterations)[0], keys)
    begin = jax.jit(jax.vmap(init, (None, 0), axes))
    chunk = jax.vmap(lambda agent, state: _chunk(agent, state, iterations), (None, axes), (axes, 0))
    final = jax.vmap(partial(_evaluate, episodes=eval_episodes), (None, axes, 0))
    state = jax.eval_shape(begin, agent, keys)
    return _Programs(
        init=begin.lower(agent, keys).compile(CALLED_ONCE),
        chunk=jax.jit(chunk, donate_argnums=1).lower(agent, state).compile(),
        evaluate=jax.jit(final).lower(agent, state, keys).compile(CALLED_ONCE) if eval_episodes else None,
        axes=axes,
    )


def seed_axes(state_of: Callable[[jax.Array], TrainState], keys: jax.Array) -> Any:
    """For every leaf of the state of many seeds: 0 where seeds differ, None where they share one value.

    Shared are the counters that a `lax.cond` reads (they must not become one per seed, or the branch becomes a select),
    and whatever else training does not make depend on the key.  Found by tracing: vmap itself is asked.

    Args:
      state_of: key -> state, after the training loop: what is constant at first may depend on the seed later.
      keys: `[S]` typed random keys.
    Returns:
      A state of 0 and None, which `vmap` takes as `in_axes` and `out_axes`.
    """
    found = []

    @custom_vmap
    def witness(state: TrainState) -> TrainState:
        return state

    @witness.def_vmap
    def note(axis_size: int, in_batched: list[Any], state: TrainState) -> tuple[TrainState, Any]:
        del axis_size
        found.append(in_batched[0])
        return state, in_batched[0]

    jax.eval_shape(jax.vmap(lambda key: witness(state_of(key))), keys)
    return jax.tree.map(lambda batched: 0 if batched else None, found[0])


def summarise(frame: pandas.DataFrame, evaluation: dict[str, np.ndarray]) -> pandas.DataFrame:
    """One row per seed: final counters, metrics averaged over the last tenth of the points, evaluation as `eval.*`."""
    points = frame["point"].to_numpy() + 1
    late = frame.loc[points > points.max() - max(1, points.max() // 10)].groupby("seed").mean()
    last = frame.loc[points == points.max(), list(COUNTERS)]
    summary = late.drop(columns=["point", "iteration"]).assign(**{name: last[name].to_numpy() for name in COUNTERS})
    return summary.assign(**{f"eval.{name}": value for name, value in evaluation.items()}).reset_index()


def check_keys(keys: jax.Array) -> None:
    """Raise a ValueError unless `keys` are typed random keys, one per seed."""
    if not (isinstance(keys, jax.Array) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key) and keys.ndim == 1):
        raise ValueError(
            "keys must be typed random keys, one per seed, [S]: for example jax.random.split(jax.random.key(0), 8); "
            f"got {getattr(keys, 'dtype', type(keys).__name__)}{list(getattr(keys, 'shape', ()))}."
        )


def _rows(metrics: dict[str, np.ndarray], point: int, *, iteration: int) -> pandas.DataFrame:
    """One point of all seeds; metrics are `[S, 1]`."""
    import pandas as pd

    columns = {name: metrics[name][:, 0] for name in (*COUNTERS, *metrics)}
    seeds = np.arange(len(columns["episodes"]))
    return pd.DataFrame({"seed": seeds, "point": point, "iteration": iteration, **columns})


def _display(progress: bool | Callable[[Report], None]) -> AbstractContextManager[Callable[[Report], None]]:
    if callable(progress):
        return nullcontext(progress)
    return Progress() if progress else nullcontext(lambda report: None)


def _files(directory: str | Path | None, config: dict[str, Any]) -> AbstractContextManager[RunFiles | None]:
    return nullcontext() if directory is None else RunFiles(directory, config)


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event, so that a chunk is never cut; the second one acts as usual."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    usual = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> None:
        del number, frame
        event.set()
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, usual)
