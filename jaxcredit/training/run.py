"""The host loop: compiled chunks of training, with progress, logs, checkpoints and files between them."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcredit.agents.agent import Agent, TrainState
from jaxcredit.agents.rollout import environment_name
from jaxcredit.training.logging import (
    Progress,
    Report,
    claim,
    describe,
    finite_iqm,
    locked,
    part_name,
    remove_results,
    require_alike,
    require_free,
    require_same,
    write_results,
    writing,
)
from jaxcredit.training.mesh import seeds_of_process, texts_of_processes, wait_for_processes
from jaxcredit.training.programs import Programs, compile_programs, over_axes
from jaxcredit.training.record import Record, Saving
from jaxcredit.training.sweep import as_arrays, check_keys
from jaxcredit.training.tracking import Tracker
from jaxcredit.training.train import COUNTERS

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class RunResult:
    """What `run` returns; with several processes, of the seeds of this one.

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
        return over_axes(lambda leaf: leaf[seed], self.axes, self.state)


def run(
    agent: Agent,
    keys: jax.Array,
    total_steps: int,
    *,
    directory: str | Path | None = None,
    resume: bool = False,
    num_points: int = 128,
    eval_episodes: int = 0,
    progress: bool | Callable[[Report], None] = True,
    label: str | None = None,
    until: Callable[[pandas.DataFrame], bool] | None = None,
    checkpoint_seconds: float = 60.0,
    keep: int = 2,
    best: str = "episode_return",
    memory_limit: float | None = None,
    wandb: str | None = None,
) -> RunResult:
    """Train many seeds side by side in one compiled program, chunk by chunk, and write down what happens.

    The same training as `jit(vmap(train))`: one chunk is compiled once and called until `total_steps` are collected.
    The seeds are laid over all devices; what does not fit into memory follows in batches of the same program.
    Killed at any instant and called again with `resume=True`, it ends like a run that was never killed, on CPU to the
    last bit.  Ctrl-C (or SIGTERM) ends it after the current chunk with everything saved; a second one ends it at once.

    Args:
      agent: what to train.
      keys: typed random keys, one per seed, `[S]`.
      total_steps: environment steps (slots) to collect per seed; rounded up to whole chunks, which is at most one
        iteration, or one part in `num_points`, more.
      directory: where to write (see `RunFiles`), checkpoints included; None writes nothing.  A relative path is one
        from where the process is now.
      resume: go on with the run in `directory`, if there is one; it must have been called with the same settings.
      num_points: most points of a curve, hence most chunks.
      eval_episodes: if positive, evaluate every final policy on so many fresh episodes.
      progress: True shows a bar (without a terminal, a line every ten seconds), False nothing; or a function that is
        called with a `Report` after every point.
      label: name of the run in progress, files and figures; None takes the names of agent and environment.
      until: called after every point with all rows so far; once it returns True, training stops early.
      checkpoint_seconds: save after the first point that comes so many seconds after the last save, and at the end;
        infinite: never.
      keep: how many of the latest checkpoints stay.
      best: the metric of whose interquartile mean over seeds the best saved checkpoint stays too.
      memory_limit: GiB per device; seeds that need more are trained in batches.  None takes what the device has, where
        it says so.
      wandb: a project of Weights & Biases that gets what TensorBoard gets (needs the extra `wandb`).
    Returns:
      A `RunResult`.
    Raises:
      ValueError: keys that are no `[S]` typed keys, sizes below 1, processes that were given different settings, a
        directory that already holds a run (or, with `resume`, a run that is alive, of other settings, or whose
        checkpoints are all damaged or gone), or whatever `Agent.init` and `evaluate` object to.
      OSError: something cannot be written (a full disk, say); the run goes on by `resume=True` once it can.
      KeyboardInterrupt: after Ctrl-C or SIGTERM, once everything is written.
    """
    check_keys(keys)
    for name, size in (("total_steps", total_steps), ("num_points", num_points), ("keep", keep)):
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name}={size!r} is not allowed; give a whole number of at least 1.")
    if memory_limit is not None and not memory_limit > 0:  # NaN too
        raise ValueError(f"memory_limit={memory_limit!r} is not allowed; give GiB per device above 0, or None.")
    if resume and directory is None:
        raise ValueError("resume=True needs the directory of the run to go on with: give directory=.")
    label = label or f"{type(agent).__name__} on {environment_name(agent.env)}"
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
        "best": best,
        "keys": jax.random.key_data(keys).tolist(),
        "agent": describe(agent),
        "policy": {"network": describe(agent.policy), "bounds": describe(agent.bounds)},
    }
    require_alike(texts_of_processes(json.dumps(config)))
    directory = None if directory is None else Path(directory).absolute()  # wherever the process goes meanwhile
    if directory is not None:
        if not resume:
            require_free(directory)
        elif require_same(directory, config) and jax.process_index() == 0:
            with locked(directory):
                pass  # whether it is alive is known before anything is compiled
    if agent.split_environments and jax.process_count() > 1:
        raise ValueError("split_environments=True lays a seed over the devices of one process; start one process only.")
    saving = Saving(resume, checkpoint_seconds, keep, best)
    mine = seeds_of_process(len(keys))
    with _display(progress) as show, _interrupts() as interrupted, ExitStack() as held:
        show(Report(label, 0, chunks, 0, 0.0, 0.0, math.nan))
        began = time.perf_counter()
        programs = compile_programs(agent, keys[mine], per_chunk, eval_episodes, memory_limit)
        if best not in programs.metrics:
            raise ValueError(f"best={best!r} is no metric of this run; choose one of {', '.join(programs.metrics)}.")
        parts = [mine[i : i + programs.size] for i in range(0, len(mine), programs.size)]
        alone = len(parts) == jax.process_count() == 1
        config["seeds_at_a_time"] = programs.size
        if directory is not None and jax.process_index() == 0:
            held.enter_context(locked(directory))
            if not alone:
                with writing("settings", directory):
                    remove_results(claim(directory, config, resume=resume))
        wait_for_processes("claimed")  # before others put their seeds' folders there
        training = _Training(programs, chunks, per_chunk, interrupted, until, _Teller(show, label, len(parts) * chunks))
        compiled = time.perf_counter()
        results = []
        for part in parts:
            if interrupted.is_set() and results:
                break
            folder = directory if alone or directory is None else directory / part_name(part)
            settings = config | {"seeds": part.tolist()}
            with (
                _record(folder, settings, saving, programs.axes) as record,
                _tracker(wandb, settings, folder) as tracker,
            ):
                results.append(training.train(keys, part, record, tracker))
    state, frame, summary = _merge(results, programs.axes)
    if directory is not None and len(parts) > 1 and jax.process_count() == 1:
        with writing("results", directory):
            write_results(directory, frame, summary, label)
    if interrupted.is_set():
        go_on = "; go on with resume=True (--resume)" if checkpoint_seconds < math.inf else ""
        where = "" if directory is None else f"{go_on}; its files are in {directory}"
        points = frame.groupby("seed").size().sum() // len(keys)
        raise KeyboardInterrupt(f"{label} was stopped after {points} of {chunks} points{where}")
    seconds = time.perf_counter() - compiled
    return RunResult(state, frame, summary, directory, compiled - began, seconds, programs.axes)


class _Teller:
    """Counts what this call trains, and reports it."""

    def __init__(self, show: Callable[[Report], None], label: str, total: int) -> None:
        self._show, self._label, self._total = show, label, total
        self._done = self._restored = self._steps = 0
        self._began = time.perf_counter()

    def restored(self, points: int) -> None:
        self._done += points
        self._restored += points

    def trained(self, rows: pandas.DataFrame, before: pandas.DataFrame | None) -> None:
        self._done += 1
        self._steps += _valid_steps(rows) - (0 if before is None else _valid_steps(before))
        seconds = time.perf_counter() - self._began
        latest = finite_iqm(rows["episode_return"])
        self._show(Report(self._label, self._done, self._total, self._restored, seconds, self._steps / seconds, latest))


def _valid_steps(rows: pandas.DataFrame) -> int:
    return int(rows["valid_steps"].to_numpy().sum())


class _Part(NamedTuple):
    state: TrainState
    frame: pandas.DataFrame
    summary: pandas.DataFrame


@dataclass(frozen=True)
class _Training:
    """How every batch of seeds is trained."""

    programs: Programs
    chunks: int
    per_chunk: int
    interrupted: threading.Event
    until: Callable[[pandas.DataFrame], bool] | None
    teller: _Teller

    def train(self, keys: jax.Array, seeds: np.ndarray, record: Record | None, tracker: Tracker | None) -> _Part:
        """Train some of the seeds, from the start or from what was saved of them."""
        import pandas as pd

        programs = self.programs
        keys = keys[np.resize(seeds, programs.size)]  # the last batch is filled up with seeds that are then left out
        points: list[pandas.DataFrame] = []
        saved = None if record is None else record.restore(programs.like)
        if saved is None:
            state = programs.init(keys)
        else:
            state, points = programs.place(saved[0]), saved[1]
            self.teller.restored(len(points))
        while len(points) < self.chunks and not self._enough(points):
            state, metrics = programs.chunk(state)
            iteration = (len(points) + 1) * self.per_chunk
            points.append(_rows(jax.device_get(metrics), seeds, len(points), iteration))
            if record is not None:
                record.add(points, state)
            if tracker is not None:
                tracker.add(points[-1])
            self.teller.trained(points[-1], points[-2] if len(points) > 1 else None)
        if record is not None:
            record.save(points, state)
        evaluation = {}
        # a complete run has its evaluation in the summary, also if it is stopped while it is resumed
        complete = len(points) == self.chunks
        if programs.evaluate is not None and (complete or not self.interrupted.is_set()):
            evaluation = jax.device_get(programs.evaluate(state, keys))
        frame = pd.concat(points, ignore_index=True)
        summary = summarise(frame, {name: values[: len(seeds)] for name, values in evaluation.items()})
        if record is not None:
            record.finish(frame, summary)
        if tracker is not None:
            tracker.finish(summary)
        if len(seeds) < programs.size:
            state = over_axes(lambda leaf: leaf[: len(seeds)], programs.axes, state)
        return _Part(state, frame, summary)

    def _enough(self, points: list[pandas.DataFrame]) -> bool:
        import pandas as pd

        if self.interrupted.is_set() and points:
            return True
        return self.until is not None and bool(points) and self.until(pd.concat(points, ignore_index=True))


def _merge(parts: list[_Part], axes: Any) -> _Part:
    """The batches of seeds as one; with more than one, the states come to the host."""
    import pandas as pd

    if len(parts) == 1:
        return parts[0]
    host = jax.local_devices(backend="cpu")[0]
    state = over_axes(
        lambda *leaves: jnp.concatenate(leaves), axes, *(jax.device_put(part.state, host) for part in parts)
    )
    frame = pd.concat([part.frame for part in parts], ignore_index=True)
    return _Part(state, frame, pd.concat([part.summary for part in parts], ignore_index=True))


def summarise(frame: pandas.DataFrame, evaluation: dict[str, np.ndarray]) -> pandas.DataFrame:
    """One row per seed: final counters, metrics averaged over the last tenth of the points, evaluation as `eval.*`."""
    points = frame["point"].to_numpy() + 1
    late = frame.loc[points > points.max() - max(1, points.max() // 10)].groupby("seed").mean()
    last = frame.loc[points == points.max(), list(COUNTERS)]
    summary = late.drop(columns=["point", "iteration"]).assign(**{name: last[name].to_numpy() for name in COUNTERS})
    return summary.assign(**{f"eval.{name}": value for name, value in evaluation.items()}).reset_index()


def _rows(metrics: dict[str, np.ndarray], seeds: np.ndarray, point: int, iteration: int) -> pandas.DataFrame:
    """One point of all seeds; metrics are `[size, 1]`, and those behind the last seed are left out."""
    import pandas as pd

    columns = {name: metrics[name][: len(seeds), 0] for name in (*COUNTERS, *metrics)}
    return pd.DataFrame({"seed": seeds, "point": point, "iteration": iteration, **columns})


def _display(progress: bool | Callable[[Report], None]) -> AbstractContextManager[Callable[[Report], None]]:
    if callable(progress):
        return nullcontext(progress)
    return Progress() if progress else nullcontext(lambda report: None)


def _record(
    folder: Path | None, config: dict[str, Any], saving: Saving, axes: Any
) -> AbstractContextManager[Record | None]:
    return nullcontext() if folder is None else Record(folder, config, saving, axes)


def _tracker(
    project: str | None, config: dict[str, Any], folder: Path | None
) -> AbstractContextManager[Tracker | None]:
    return nullcontext() if project is None else Tracker(project, config, folder)


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C or SIGTERM into an event, so that a chunk is never cut; the second one acts as usual."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)

    def note(number: int, frame: Any) -> None:
        del number, frame
        event.set()
        restore()

    for number in usual:
        signal.signal(number, note)
    try:
        yield event
    finally:
        restore()
