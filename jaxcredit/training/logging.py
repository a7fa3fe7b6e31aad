"""What a run shows and writes while it trains: progress on the screen, files that hold every point reached so far."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import math
import platform
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxcredit.evaluation.plots import curves_from_frame, learning_curves
from jaxcredit.evaluation.statistics import Interval, bootstrap_interval, iqm

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

if TYPE_CHECKING:
    import pandas

PACKAGES = ("jaxcredit", "jax", "jaxlib", "flax", "optax", "gymnax", "numpy")
INDEX = ("seed", "point", "iteration", "total_steps", "valid_steps", "episodes")
SECONDS_BETWEEN_LINES = 10
LOCK = ".lock"
METRICS = "metrics.csv"
RESULTS = ("metrics.parquet", "summary.csv", "curves.png")
CONFIG, CHECKPOINTS, PARTS = "config.json", "checkpoints", "seeds_*"


class Report(NamedTuple):
    """How far a run is; one is sent before compiling (`done` 0) and one after every point.

    Attributes:
      label: name of the run.
      done, total: points reached, points in all.
      restored: points of them that an earlier call had reached.
      seconds: since this call began its first point, compilation left out.
      rate: valid environment steps per second, all seeds together.
      episode_return: interquartile mean over seeds of the latest point, in reward units; NaN where no episode ended.
    """

    label: str
    done: int
    total: int
    restored: int
    seconds: float
    rate: float
    episode_return: float


class Progress:
    """Shows how a row of runs gets on: a bar in a terminal or a notebook, elsewhere a line every ten seconds.

    A context manager that is called with every `Report`; each report with `done == total` ends one run of the row.
    """

    def __init__(self, runs: int = 1) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        self._runs = runs
        self._finished: list[float] = []
        self._bar: Any = None

    def __enter__(self) -> Progress:
        self._began = self._spoke = time.monotonic()
        if self._console.is_terminal or self._console.is_jupyter:
            from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            label, status = TextColumn("{task.description}"), TextColumn("{task.fields[status]}")
            columns = (SpinnerColumn(), label, BarColumn(), TaskProgressColumn(), status, TimeElapsedColumn())
            self._bar = Bar(*columns, console=self._console)
            self._task = self._bar.add_task("", total=self._runs, status="")
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, report: Report) -> None:
        status = self._status(report)
        completed = len(self._finished) + report.done / report.total
        if report.done == report.total:
            now = time.monotonic()
            self._finished.append(now - self._began)
            self._began = now
        if self._bar is not None:
            self._bar.update(self._task, description=report.label, completed=completed, status=status)
        elif time.monotonic() - self._spoke >= SECONDS_BETWEEN_LINES:
            self._spoke = time.monotonic()
            print(f"{report.label}  {completed / self._runs:4.0%}  {status}", file=sys.stderr, flush=True)

    def _status(self, report: Report) -> str:
        if report.done == report.restored:
            return "compiling"
        left = _duration(self._remaining(report))
        return f"{report.rate:,.0f} steps/s  return {report.episode_return:.3g}  {left} left"

    def _remaining(self, report: Report) -> float:
        """Seconds left: of this run by this call's pace, of each later one by the mean of those that are complete."""
        this = report.seconds / (report.done - report.restored) * (report.total - report.done)
        complete = self._finished or [time.monotonic() - self._began + this]
        return this + (self._runs - len(self._finished) - 1) * sum(complete) / len(complete)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def scalars(rows: pandas.DataFrame) -> tuple[int, dict[str, float]]:
    """One point over all seeds: the mean of their valid steps, and of every metric that has a number `NAME/iqm` and
    `NAME/mean`."""
    values = {}
    for name in rows.columns.difference(INDEX, sort=False):
        column = rows[name].to_numpy()
        if np.isfinite(column).any():
            values |= {f"{name}/iqm": finite_iqm(column), f"{name}/mean": float(np.nanmean(column))}
    return int(rows["valid_steps"].to_numpy().mean()), values


class RunFiles:
    """The files of one run.

    At once `config.json`; after every point the rows of `metrics.csv` and TensorBoard events (interquartile mean and
    mean over seeds, by valid steps); at the end `metrics.parquet`, `summary.csv` and `curves.png`.

    Raises:
      ValueError: the directory already holds a run (with `resume`: one of other settings).
    """

    def __init__(self, directory: Path, config: dict[str, Any], *, resume: bool = False) -> None:
        self.directory = claim(directory, config, resume=resume)
        self._label = config["label"]
        self._events: Events | None = None

    def begin(self, points: Sequence[pandas.DataFrame]) -> None:
        """Open the files with the points that are known already; what may stand there beyond them is dropped."""
        import pandas as pd

        remove_results(self.directory)
        path = self.directory / METRICS
        path.unlink(missing_ok=True)
        if points:
            write_whole(path, pd.concat(points).to_csv(index=False))
        after = int(points[-1]["valid_steps"].to_numpy().mean()) + 1 if points else None
        self._events = Events(self.directory, after)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()

    def append(self, rows: pandas.DataFrame) -> None:
        """Add one point: a row per seed."""
        path = self.directory / METRICS
        rows.to_csv(path, mode="a", header=not path.exists(), index=False)
        if self._events is not None:
            self._events.add(*scalars(rows))

    def finish(self, frame: pandas.DataFrame, summary: pandas.DataFrame) -> None:
        """Write what is made of all points."""
        write_results(self.directory, frame, summary, self._label)


class Events:
    """A file for TensorBoard, written at once: what goes wrong is raised, as it is not by tensorboardX's thread.

    Args:
      directory: where.
      after: the step from which on TensorBoard is to forget what earlier files say, or None.
    """

    def __init__(self, directory: Path, after: int | None) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        self._of, self._summary = event_pb2, summary_pb2
        self._writer = EventsWriter(str(directory / "events"))
        if after is not None:
            self._write(after, session_log=self._of.SessionLog(status=self._of.SessionLog.START))

    def add(self, step: int, values: dict[str, float]) -> None:
        """Write one point."""
        value = [self._summary.Summary.Value(tag=name, simple_value=x) for name, x in values.items()]
        self._write(step, summary=self._summary.Summary(value=value))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write(self, step: int, **what: Any) -> None:
        self._writer.write_event(self._of.Event(wall_time=time.time(), step=step, **what))


def write_results(directory: Path, frame: pandas.DataFrame, summary: pandas.DataFrame, label: str) -> None:
    """Write `metrics.parquet`, `summary.csv` and `curves.png` (RESULTS)."""
    frame.to_parquet(directory / "metrics.parquet", index=False)
    summary.to_csv(directory / "summary.csv", index=False)
    curves = curves_of(frame.assign(method=label), "episode_return", x="valid_steps")
    if curves:
        path = directory / "curves.png"
        learning_curves(curves, path, ylabel="episode return", xlabel="environment steps", title=label)


def remove_results(directory: Path) -> None:
    """Remove what `write_results` wrote when the run was stopped, for it would be older than `metrics.csv`."""
    for name in RESULTS:
        (directory / name).unlink(missing_ok=True)


def claim(directory: str | Path, config: dict[str, Any], *, resume: bool = False) -> Path:
    """Make a directory for a run and write its `config.json`, the mark that it is taken.

    Args:
      directory: where; parents are made.
      config: every setting.
      resume: accept a directory that holds a run of the same settings, and leave its `config.json` as it is.
    Returns:
      Its absolute path.
    Raises:
      ValueError: it already holds a run (with `resume`: one of other settings, or whose settings are lost).
    """
    directory = Path(directory).absolute()
    if not resume:
        require_free(directory)
    elif require_same(directory, config):
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(directory / CONFIG, json.dumps(config | provenance(), indent=2) + "\n")
    return directory


@contextmanager
def writing(what: str, directory: Path) -> Iterator[None]:
    """Say what of a run could not be written where, and how it goes on.

    Raises:
      OSError: made of the one that comes, which is its cause.
    """
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{directory}: {what} could not be written ({error}). Mend that, then go on from the last checkpoint there "
            "by resume=True (--resume), or give another directory."
        ) from error


@contextmanager
def locked(directory: Path | None) -> Iterator[None]:
    """Keep a directory to this run while it is alive, where the file system can; None is nobody's.

    Raises:
      ValueError: another live run has it.
      OSError: it cannot be written.
    """
    if directory is None or fcntl is None:
        yield
        return
    with writing("settings", directory):
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / LOCK).open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"{directory} is being written by another run that is still alive. Nothing was changed; wait for it or "
                "stop it, or give another directory."
            ) from error
        except OSError:  # a file system without locks
            pass
        yield


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there completely or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def require_free(directory: str | Path) -> Path:
    """Raise a ValueError if the directory already holds a run."""
    directory = Path(directory)
    require_possible(directory)
    if (directory / CONFIG).exists():
        raise ValueError(
            f"{directory} already holds a run ({CONFIG}): choose another directory, delete this one, or go on with it "
            "by resume=True (--resume)."
        )
    _require_nothing_saved(directory)
    return directory


def require_nothing_lost(directory: Path) -> None:
    """Raise a ValueError if a run that has no checkpoint left would be lost by beginning anew.

    Not where it was killed before its first checkpoint: that is only said.
    """
    checkpoints, metrics = directory / CHECKPOINTS, directory / METRICS
    missing = f"no checkpoint to go on from in {checkpoints}"
    lost = [path.name for path in (metrics, *(directory / name for name in RESULTS)) if path.exists()]
    if lost == [METRICS] and checkpoints.exists():
        warnings.warn(f"There is {missing}: the run in {directory} begins anew.", stacklevel=2)
    elif lost:
        raise ValueError(
            f"{directory} holds what a run wrote ({', '.join(lost)}), but {missing}. Nothing of it was changed; put "
            "the checkpoints back, delete the directory to train from the start, or give another one."
        )


def require_possible(directory: Path) -> None:
    """Raise a ValueError if the directory is a file or lies below one."""
    for path in (directory, *directory.parents):
        if path.exists() and not path.is_dir():
            raise ValueError(f"The directory {directory} cannot be made, for {path} is a file: give another directory.")


def _require_nothing_saved(directory: Path) -> None:
    """Raise a ValueError if there are checkpoints or batches of seeds, of which nobody knows the settings."""
    saved = [directory / CHECKPOINTS, *sorted(directory.glob(PARTS))]
    found = [path.name for path in saved if path.is_dir()]
    if found:
        raise ValueError(
            f"{directory} holds what a run saved ({', '.join(found[:3])}), but no {CONFIG} that tells its settings. "
            "Nothing was changed; put that file back, delete the directory, or give another one."
        )


def require_same(directory: Path, config: dict[str, Any]) -> bool:
    """Whether the directory holds a run; raise a ValueError if it is one of other settings, and say which differ."""
    require_possible(directory)
    path = directory / CONFIG
    if not path.exists():
        _require_nothing_saved(directory)
        return False
    try:
        there = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}). Nothing was changed; give another directory.") from error
    now = json.loads(json.dumps(config))
    differences = list(_differences({name: there.get(name) for name in now}, now))
    if there.get("seeds_at_a_time") != now.get("seeds_at_a_time", there.get("seeds_at_a_time")):
        differences.insert(0, "memory_limit (--memory-limit), or the devices' memory, asks for other batches of seeds")
    if differences:
        raise ValueError(
            f"{directory} holds a run of other settings: {'; '.join(differences[:5])}. Nothing was changed; give the "
            "settings that it was begun with, or another directory."
        )
    versions = list(_differences(there["versions"], provenance()["versions"]))
    if versions:
        warnings.warn(f"{directory} was begun with other versions: {'; '.join(versions)}.", stacklevel=2)
    devices = provenance()["devices"]
    if there.get("devices", devices) != devices:
        warnings.warn(
            f"{directory} was begun on {_counted(there['devices'])}, and this is {_counted(devices)}: it goes on, but "
            "results may differ by rounding from a run that stayed there.",
            stacklevel=2,
        )
    return True


def require_alike(configs: Sequence[str]) -> None:
    """Raise a ValueError if the processes of a run were given different settings (JSON), and say which differ."""
    first, *others = map(json.loads, configs)
    for process, other in enumerate(others, start=1):
        differences = list(_differences(first, other))
        if differences:
            raise ValueError(
                f"Process {process} was given other settings than process 0: {'; '.join(differences[:5])} (there is "
                f"process 0, here process {process}). Start all with the same."
            )


def _differences(there: Any, now: Any, path: str = "") -> Iterator[str]:
    """Where two JSON values differ, one line each."""
    if isinstance(there, dict) and isinstance(now, dict):
        for name in there | now:
            yield from _differences(there.get(name), now.get(name), f"{path}.{name}" if path else name)
    elif there != now and path == "keys" and isinstance(there, list) and isinstance(now, list):
        if len(there) == len(now):
            yield "keys is of other random keys there and here"
        else:
            yield f"keys is of {len(there)} seeds there and of {len(now)} seeds here"
    elif there != now:
        yield f"{path} is {_brief(there)} there and {_brief(now)} here"


def _counted(devices: Sequence[str]) -> str:
    """Kinds of devices and how many there are of each."""
    return ", ".join(f"{devices.count(kind)} x {kind}" for kind in sorted(set(devices)))


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def part_name(seeds: np.ndarray) -> str:
    """The folder of a batch of seeds of a run that is too large for one, or that several processes share."""
    return f"seeds_{seeds[0]:05}-{seeds[-1]:05}"


def provenance() -> dict[str, Any]:
    """Where results come from: versions, devices, command and time."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES if _installed(name)}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "devices": [str(device.device_kind) for device in jax.devices()],
        "command": [_program(), *sys.argv[1:]],
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _program() -> str:
    """What is run, without the folders of this machine: relative to the current one, else its name alone."""
    path = Path(sys.argv[0])
    path = path.parent if path.name == "__main__.py" else path  # python -m jaxcredit
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def describe(x: Any) -> Any:
    """A configuration as JSON can hold it: dataclasses become dicts with their `type`, arrays lists."""
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return {"type": type(x).__qualname__} | {f.name: describe(getattr(x, f.name)) for f in dataclasses.fields(x)}
    if isinstance(x, jax.Array | np.ndarray | np.generic):
        return describe(np.asarray(x).tolist())
    if isinstance(x, list | tuple):
        return [describe(item) for item in x]
    if isinstance(x, dict):
        return {str(key): describe(value) for key, value in x.items()}
    if isinstance(x, float) and not math.isfinite(x):
        return str(x)
    if x is None or isinstance(x, bool | int | float | str):
        return x
    if isinstance(x, type) or callable(x) or not hasattr(x, "__dict__"):
        return getattr(x, "__qualname__", type(x).__qualname__)
    plain = {
        name: value for name, value in vars(x).items() if value is None or isinstance(value, bool | int | float | str)
    }
    return {"type": type(x).__qualname__} | describe(plain)


def finite_iqm(values: Any) -> float:
    """Interquartile mean of the values that are numbers; NaN if none is."""
    values = np.asarray(values, dtype=np.float64)
    values = values[np.isfinite(values)]
    return float(iqm(values)) if values.size else math.nan


def finite_interval(values: Any) -> Interval:
    """Interquartile mean with its 95 % bootstrap interval, of the values that are numbers; NaN if none is."""
    values = np.asarray(values, dtype=np.float64)
    values = values[np.isfinite(values)]
    return bootstrap_interval(values) if values.size else Interval(math.nan, math.nan, math.nan)


def show_interval(interval: Interval) -> str:
    """For a table: `0.98 [0.97, 0.99]`, or a dash for NaN.

    >>> show_interval(Interval(1344.0, 1200.0, 1500.0))
    '1,344 [1,200, 1,500]'
    """
    if math.isnan(interval.estimate):
        return "-"
    return "{} [{}, {}]".format(*(f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}" for x in interval))


def print_table(title: str, rows: Sequence[Sequence[Any]], columns: Sequence[str] = ()) -> None:
    """Print rows under a title, with headings if there are any."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD if columns else None, show_header=bool(columns))
    for column in columns or rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(title, style="bold", markup=False)
    console.print(table)


def spinner(message: str) -> Any:
    """A context manager that turns a wheel in a terminal, and does nothing elsewhere."""
    from rich.console import Console

    return Console(stderr=True).status(message)


def read_metrics(directory: Path) -> pandas.DataFrame:
    """Read what a run or a comparison wrote, also while it is still going on; its parts are merged.

    Raises:
      ValueError: nothing there.
    """
    import pandas as pd

    if (directory / "metrics.parquet").exists():
        return pd.read_parquet(directory / "metrics.parquet")
    if (directory / METRICS).exists():
        return pd.read_csv(directory / METRICS)
    begun = [part for part in sorted(directory.glob(PARTS)) if _has_metrics(part)]
    if begun:
        return pd.concat([read_metrics(part) for part in begun], ignore_index=True)
    raise ValueError(f"{directory} holds neither metrics.parquet nor metrics.csv: name what train or compare wrote to.")


def _has_metrics(directory: Path) -> bool:
    return any((directory / name).exists() for name in ("metrics.parquet", "metrics.csv"))


def curves_of(frame: pandas.DataFrame, y: str, *, x: str) -> dict[str, Any]:
    """Learning curves `[seeds, N]` of every method in a table, without gaps.

    A point at which no episode ended has no value: it is interpolated between its neighbours, and left out for all
    seeds before the first and after the last one that has; so are points that only some seeds reached.  Seeds without
    any value (they diverged) and methods without any such seed are left out.

    Args:
      frame: one row per `method`, `seed` and `point`.
      y, x: columns.
    Returns:
      what `learning_curves` takes.
    """
    runs = frame.loc[:, ["method", "seed", "point", x, y]].sort_values(by="point", kind="stable")
    runs = runs[np.isfinite(runs.groupby(["method", "seed"], sort=False)[y].transform("max"))]
    by_run = runs.groupby(["method", "seed"], sort=False)[y]
    runs = runs.assign(**{y: by_run.transform(lambda curve: curve.interpolate(limit_area="inside"))})
    seeds = runs.groupby("method")["seed"].transform("nunique")
    known = runs.groupby(["method", "point"])[y].transform("count") == seeds
    return curves_from_frame(runs[known], y, x=x)
