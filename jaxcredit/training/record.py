"""What a batch of seeds leaves on the disk: files that people open, and checkpoints to go on from."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import jax.numpy as jnp
from flax.traverse_util import unflatten_dict

from jaxcredit.core.statistics import RunningMoments
from jaxcredit.networks.actor_critic import ActorCritic
from jaxcredit.networks.policy import Policy
from jaxcredit.training import checkpoint
from jaxcredit.training.checkpoint import FOLDER, Checkpoints, from_named_arrays, named_arrays, named_leaves
from jaxcredit.training.logging import CONFIG, INDEX, PARTS, RunFiles, finite_iqm, require_nothing_lost, writing

if TYPE_CHECKING:
    import pandas

    from jaxcredit.agents.on_policy import OnPolicyAgent

State = TypeVar("State")
STATE, CURVES = "state.", "curves."


class Saving(NamedTuple):
    """When a run is saved.

    Attributes:
      resume: go on with what is there, if anything is.
      every: seconds between checkpoints; infinite: none are written.
      keep: how many of the latest checkpoints stay.
      best: the metric by which one more stays.
    """

    resume: bool
    every: float
    keep: int
    best: str


class Record:
    """Files and checkpoints in one folder.  A context manager; leaving it waits until all is written.

    Args:
      directory: the folder.
      config: what `config.json` holds.
      saving: when to save.
      axes: the seed axis of every leaf of the state.
    Raises:
      ValueError: the folder holds a run (resume: of other settings, or whose checkpoints are all damaged, or whose
        results are there without them).
      OSError: of this and of every method, if something cannot be written.
    """

    def __init__(self, directory: Path, config: dict[str, Any], saving: Saving, axes: Any) -> None:
        self._directory, folder = directory, directory / FOLDER
        with writing("settings", directory):
            self._saved = checkpoint.newest(folder) if saving.resume else None
            self._files = RunFiles(directory, config, resume=saving.resume)  # of other settings is said first
            if saving.resume and self._saved is None:
                require_nothing_lost(directory)
            self._checkpoints = Checkpoints(folder, saving.keep) if saving.every < math.inf else None
        self._saving = saving
        self._by_seed = [STATE + name for name, _ in named_leaves(axes)]
        self._last_time, self._last_point = time.monotonic(), self._saved.point if self._saved else 0

    def __enter__(self) -> Record:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        said = kind is not None and issubclass(kind, OSError)
        with suppress(OSError) if said else writing("checkpoints", self._directory), ExitStack() as closing:
            closing.callback(self._files.close)
            if self._checkpoints is not None:
                closing.callback(self._checkpoints.close)

    def restore(self, like: State) -> tuple[State, list[pandas.DataFrame]] | None:
        """The saved state and points, None if there are none; the files then hold these points and no later one."""
        import pandas as pd

        if self._saved is None:
            self._begin([])
            return None
        arrays, self._saved = self._saved.arrays, None
        state = from_named_arrays(like, _without_prefix(STATE, arrays))
        curves = _without_prefix(CURVES, arrays)
        frame = pd.DataFrame({name: curves[name] for name in (*INDEX, *sorted(curves.keys() - set(INDEX)))})
        points = [rows.reset_index(drop=True) for _, rows in frame.groupby("point")]
        self._begin(points)
        return state, points

    def _begin(self, points: Sequence[pandas.DataFrame]) -> None:
        with writing("metrics", self._directory):
            self._files.begin(points)

    def add(self, points: Sequence[pandas.DataFrame], state: Any) -> None:
        """Write the latest point, and a checkpoint if it is time."""
        with writing("metrics", self._directory):
            self._files.append(points[-1])
        if time.monotonic() - self._last_time >= self._saving.every:
            self.save(points, state)

    def save(self, points: Sequence[pandas.DataFrame], state: Any) -> None:
        """Write a checkpoint, unless this point has one."""
        if self._checkpoints is None or len(points) == self._last_point:
            return
        import pandas as pd

        frame = pd.concat(points, ignore_index=True)
        curves = {CURVES + str(name): column.to_numpy(copy=True) for name, column in frame.items()}
        arrays = {STATE + name: x for name, x in named_arrays(state).items()}
        score = finite_iqm(points[-1][self._saving.best])
        with writing("checkpoints", self._directory):
            self._checkpoints.save(len(points), arrays | curves, self._by_seed, score)
        self._last_time, self._last_point = time.monotonic(), len(points)

    def finish(self, frame: pandas.DataFrame, summary: pandas.DataFrame) -> None:
        """Write what is made of all points, once the checkpoint that goes with it is written."""
        with writing("checkpoints", self._directory):
            if self._checkpoints is not None:
                self._checkpoints.wait()  # a run that has results but no checkpoint is not gone on with
        with writing("results", self._directory):
            self._files.finish(frame, summary)


def load_policy(
    directory: str | Path,
    *,
    seed: int = 0,
    which: Literal["best", "latest"] = "best",
    agent: OnPolicyAgent | None = None,
) -> Policy:
    """The policy of one seed of a run, for use elsewhere: `load_policy("runs/x")(key, observation)`.

    Args:
      directory: what `run` wrote.
      seed: which of its seeds.
      which: of the checkpoint with the best metric over seeds, or of the latest one.
      agent: the agent that was trained, where its network is one of your own, which no file describes.
    Returns:
      A `Policy`: a pytree of arrays, and pure.
    Raises:
      ValueError: nothing there, no such seed, a damaged checkpoint, or a network that needs `agent`.
    """
    folder, place = _folder_of(Path(directory), seed)
    if which not in ("best", "latest"):
        raise ValueError(f"which={which!r} is not known; choose best or latest.")
    points = checkpoint.points(folder / FOLDER)
    if not points:
        raise ValueError(f"{folder} holds no checkpoint (a run with checkpoint_seconds=inf writes none).")
    found = checkpoint.best(folder / FOLDER) if which == "best" else checkpoint.latest(folder / FOLDER)
    arrays = {name: x[place] if name in found.by_seed else x for name, x in found.arrays.items()}
    described = _settings(folder / CONFIG)["policy"]
    moments = {name: jnp.asarray(x) for name, x in _without_prefix(STATE + "moments.", arrays).items()}
    bounds = described["bounds"]
    seen = _without_prefix(STATE + "runner.observation", arrays)  # by every environment of the seed
    return Policy(
        params=unflatten_dict(_without_prefix(STATE + "params.", arrays), sep="."),
        moments=RunningMoments(**moments) if moments else None,
        bounds=None if bounds is None else (jnp.asarray(bounds[0]), jnp.asarray(bounds[1])),
        shapes=tuple((name.removeprefix("."), x.shape[1:]) for name, x in seen.items()),
        network=_network(described["network"]) if agent is None else agent.policy,
    )


def _folder_of(directory: Path, seed: int) -> tuple[Path, int]:
    """The folder that holds a seed, and its place among the seeds there."""
    known: list[int] = []
    for config in [directory / CONFIG, *sorted(directory.glob(f"{PARTS}/{CONFIG}"))]:
        seeds = _settings(config).get("seeds", []) if config.exists() else []
        if seed in seeds:
            return config.parent, seeds.index(seed)
        known += seeds
    if not known:
        raise ValueError(f"{directory} holds no run: name a directory that `run` or `jaxcredit train` wrote.")
    raise ValueError(f"{directory} has no seed {seed}; it has {min(known)} to {max(known)}.")


def _settings(path: Path) -> dict[str, Any]:
    """What a `config.json` says, if it is one of a run."""
    try:
        settings = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): name another run.") from error
    if not isinstance(settings, dict) or not isinstance(settings.get("seeds", []), list):
        raise ValueError(f"{path} is not of a run: name a directory that `run` or `jaxcredit train` wrote.")
    return settings


def _network(described: dict[str, Any]) -> ActorCritic:
    if described["type"] != ActorCritic.__name__:
        raise ValueError(f"The network is a {described['type']}, which no file describes: give load_policy(agent=...).")
    fields = {name: described[name] for name in ("actions", "continuous", "memory")}
    return ActorCritic(hidden=tuple(described["hidden"]), **fields)


def _without_prefix(prefix: str, arrays: checkpoint.Arrays) -> checkpoint.Arrays:
    return {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}
