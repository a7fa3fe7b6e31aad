"""Weights & Biases, for those who want it: the extra `wandb`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcredit.training.logging import scalars

if TYPE_CHECKING:
    import pandas


class Tracker:
    """Sends what TensorBoard gets to a project of Weights & Biases.  A context manager; leaving it ends the run.

    The run's name there is made of its settings, so a run that is resumed goes on in its own curves.

    Args:
      project: name of the project.
      config: every setting; its `label` names the group.
      directory: where Weights & Biases keeps its own files; None takes its default.
    Raises:
      ValueError: the package is not installed.
    """

    def __init__(self, project: str, config: dict[str, Any], directory: Path | None) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ValueError(
                f"wandb={project!r} needs the package wandb: pip install 'jaxcredit[wandb]', or leave it out."
            ) from error
        name = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]
        self._run = wandb.init(
            project=project, group=config["label"], id=name, resume="allow", config=config, dir=directory
        )

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *error: object) -> None:
        self._run.finish()

    def add(self, rows: pandas.DataFrame) -> None:
        """Send one point."""
        step, values = scalars(rows)
        self._run.log(values, step=step)

    def finish(self, summary: pandas.DataFrame) -> None:
        """Send the final evaluation, averaged over seeds."""
        final = summary.filter(like="eval.").mean()
        self._run.summary.update({str(name): float(value) for name, value in final.items()})
