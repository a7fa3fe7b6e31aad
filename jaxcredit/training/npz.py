"""Teaches Orbax to write the arrays of a checkpoint as one `.npz` file.  Imported only where something is saved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from jaxcredit.training.checkpoint import DIGEST, FILE, Arrays, digest_of


class NpzHandler(ocp.CheckpointHandler):
    """Writes and reads named arrays, without pickle."""

    def save(self, directory: Any, args: NpzSave) -> None:
        np.savez(directory / FILE, allow_pickle=False, **args.arrays)  # pyright: ignore[reportArgumentType]
        (directory / DIGEST).write_text(digest_of(Path(directory / FILE)))

    def restore(self, directory: Any, args: NpzRestore | None = None) -> Arrays:
        del args
        with np.load(directory / FILE, allow_pickle=False) as file:
            return dict(file)


@ocp.args.register_with_handler(NpzHandler, for_save=True)
@dataclass
class NpzSave(ocp.args.CheckpointArgs):
    """The arrays to write."""

    arrays: Arrays


@ocp.args.register_with_handler(NpzHandler, for_restore=True)
@dataclass
class NpzRestore(ocp.args.CheckpointArgs):
    """Nothing need be said to read them."""
