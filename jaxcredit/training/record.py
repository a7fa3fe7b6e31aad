"""What a batch of seeds leaves on the disk: files that people open, and checkpoints to go on from."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jaxcredit.training import checkpoint
from jaxcredit.training.checkpoint import FOLDER, Checkpoints, from_named_arrays, named_arrays
from jaxcredit.training.logging import INDEX, RunFiles, finite_iqm

if TYPE_CHECKING:
    import pandas

State = TypeVar("State")
STATE, CURVES = "state.", "curves."


class Record:
    """Files and checkpoints in one folder.  A context manager; leaving it waits until all is written.

    Args:
      directory: the folder.
      config: what `config.json` holds.
      resume: go on with what is there, if anything is.
      every: seconds between checkpoints; infinite: none are written.
      keep: how many of the latest checkpoints stay.
      best: the metric by which one more stays.
    Raises:
      ValueError: the folder holds a run (resume: of other settings, or whose checkpoints are all damaged).
    """

    def __init__(
        self, directory: Path, config: dict[str, Any], *, resume: bool, every: float, keep: int, best: str
    ) -> None:
        self._saved = checkpoint.newest(directory / FOLDER) if resume else None
        self._files = RunFiles(directory, config, resume=resume)
        self._checkpoints = Checkpoints(directory / FOLDER, keep) if every < math.inf else None
        self._every, self._best = every, best
        self._last_time, self._last_point = time.monotonic(), self._saved.point if self._saved else 0

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *error: object) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close()
        self._files.close()

    def restore(self, like: State) -> tuple[State, list[pandas.DataFrame]] | None:
        """The saved state and points, None if there are none; the files then hold these points and no later one."""
        import pandas as pd

        if self._saved is None:
            self._files.begin([])
            return None
        arrays, self._saved = self._saved.arrays, None
        state = from_named_arrays(like, _without_prefix(STATE, arrays))
        curves = _without_prefix(CURVES, arrays)
        frame = pd.DataFrame({name: curves[name] for name in (*INDEX, *sorted(curves.keys() - set(INDEX)))})
        points = [rows.reset_index(drop=True) for _, rows in frame.groupby("point")]
        self._files.begin(points)
        return state, points

    def add(self, points: Sequence[pandas.DataFrame], state: Any) -> None:
        """Write the latest point, and a checkpoint if it is time."""
        self._files.append(points[-1])
        if time.monotonic() - self._last_time >= self._every:
            self.save(points, state)

    def save(self, points: Sequence[pandas.DataFrame], state: Any) -> None:
        """Write a checkpoint, unless this point has one."""
        if self._checkpoints is None or len(points) == self._last_point:
            return
        import pandas as pd

        frame = pd.concat(points, ignore_index=True)
        curves = {CURVES + str(name): column.to_numpy(copy=True) for name, column in frame.items()}
        arrays = {STATE + name: x for name, x in named_arrays(state).items()}
        self._checkpoints.save(len(points), arrays | curves, finite_iqm(points[-1][self._best]))
        self._last_time, self._last_point = time.monotonic(), len(points)

    def finish(self, frame: pandas.DataFrame, summary: pandas.DataFrame) -> None:
        self._files.finish(frame, summary)


def _without_prefix(prefix: str, arrays: checkpoint.Arrays) -> checkpoint.Arrays:
    return {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}
