"""Checkpoints of a run: complete or absent, checked when read, arrays only (reading one runs no code).

Orbax writes them in the background and makes them appear at once.  What it does not see, a disk that changed a byte, is
found by a checksum of every array.
"""

from __future__ import annotations

import json
import math
import shutil
import warnings
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Arrays = dict[str, np.ndarray]
FOLDER = "checkpoints"


class Checkpoint(NamedTuple):
    """What was saved.

    Attributes:
      point: how many points of the curve were reached.
      arrays: every array by its name.
      by_seed: names of the arrays whose axis 0 are the seeds.
    """

    point: int
    arrays: Arrays
    by_seed: list[str]


class Checkpoints:
    """The saved states of one run: the latest `keep`, and the one with the best score.

    Args:
      directory: where they are; made if missing.
      keep: how many of the latest stay, at least 1.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        import orbax.checkpoint as ocp
        from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

        directory.mkdir(parents=True, exist_ok=True)
        self._args = ocp.args
        self._manager = ocp.CheckpointManager(
            directory.resolve(),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=AnyPreservationPolicy([LatestN(keep), BestN(get_metric_fn=_score, n=1)]),
                best_fn=_score,
                cleanup_tmp_directories=True,
                create=False,
                # each process keeps its own seeds' checkpoints and waits for no other one
                multiprocessing_options=ocp.options.MultiprocessingOptions(
                    primary_host=None,
                    active_processes={jax.process_index()},
                    barrier_sync_key_prefix=f"process_{jax.process_index()}",
                ),
            ),
        )

    def save(self, point: int, arrays: Arrays, by_seed: list[str], score: float) -> None:
        """Begin to write; returns once the arrays may change again."""
        checksums = {name: _checksum(x) for name, x in arrays.items()}
        self._manager.save(
            point,
            args=self._args.Composite(
                # Orbax refuses arrays without elements; the shape of such a one says all about it
                state=self._args.StandardSave({name: x for name, x in arrays.items() if x.size}),
                info=self._args.JsonSave({"checksums": checksums, "by_seed": by_seed}),
            ),
            metrics={"score": -math.inf if math.isnan(score) else float(score)},
        )

    def close(self) -> None:
        """Wait until everything is on the disk."""
        self._manager.wait_until_finished()
        self._manager.close()


def newest(directory: Path) -> Checkpoint | None:
    """The latest undamaged checkpoint, None if nothing was saved yet.  Damaged ones are set aside, with a warning.

    Raises:
      ValueError: there are checkpoints, and all are damaged.
    """
    damaged = []
    for point in reversed(points(directory)):
        try:
            found = read(directory, point)
        except ValueError as error:
            damaged.append(point)
            warnings.warn(f"{error} Looking for an earlier one.", stacklevel=2)
        else:
            for bad in damaged:
                _set_aside(directory / str(bad))
            return found
    if damaged:
        raise ValueError(
            f"Every checkpoint in {directory} is damaged (points {', '.join(map(str, damaged))}). Nothing was changed; "
            "give another directory to start anew."
        )
    return None


def best(directory: Path) -> Checkpoint:
    """The checkpoint with the best score.

    Raises:
      ValueError: nothing saved, or the best one is damaged.
    """
    scores = {
        point: json.loads((directory / str(point) / "metrics/metrics").read_text()) for point in points(directory)
    }
    if not scores:
        raise ValueError(f"{directory} holds no checkpoint.")
    return read(directory, max(scores, key=lambda point: (_score(scores[point]), point)))


def points(directory: Path) -> list[int]:
    """The points at which there is a complete checkpoint, rising."""
    return sorted(int(path.name) for path in directory.glob("*") if path.name.isdigit())


def read(directory: Path, point: int) -> Checkpoint:
    """Read one checkpoint and compare every array with its checksum.

    Raises:
      ValueError: it is damaged.
    """
    import orbax.checkpoint as ocp

    path = directory.resolve() / str(point)
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
            saved = reader.restore(
                path, ocp.args.Composite(state=ocp.args.StandardRestore(), info=ocp.args.JsonRestore())
            )
        json.loads((path / "metrics/metrics").read_text())["score"]
        checksums = saved["info"]["checksums"]
        arrays = {name: np.asarray(x) for name, x in saved["state"].items()}
        wrong = [name for name, x in arrays.items() if checksums[name] != _checksum(x)]
        missing = [name for name, checksum in checksums.items() if name not in arrays and checksum != EMPTY]
    except Exception as error:  # a damaged file shows as whatever its reader trips over
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"The checkpoint {path} cannot be read ({reason:.200}).") from error
    if wrong or missing:
        raise ValueError(f"The checkpoint {path} is damaged ({', '.join((wrong + missing)[:3])}).")
    return Checkpoint(point, arrays, saved["info"]["by_seed"])


# Names for the arrays of a pytree ----------------------------------------------------------------------------------


def named_arrays(tree: Any) -> Arrays:
    """Copies of all leaves on the host, by their path, for example `params.params.actor.kernel`."""
    return {name: np.array(_raw(leaf)) for name, leaf in named_leaves(tree)}


def from_named_arrays(like: Any, arrays: Arrays) -> Any:
    """The pytree of the shape of `like` (arrays or ShapeDtypeStructs) with the named arrays as leaves.

    Raises:
      ValueError: names, shapes or dtypes differ.
    """
    names = dict(named_leaves(like))
    wanted = {name: jax.eval_shape(_raw, leaf) for name, leaf in names.items()}
    have = arrays | {name: np.zeros(x.shape, x.dtype) for name, x in wanted.items() if not np.prod(x.shape)}
    odd = sorted(wanted.keys() ^ have.keys()) or [
        name for name, x in wanted.items() if (x.shape, x.dtype) != (have[name].shape, have[name].dtype)
    ]
    if odd:
        raise ValueError(f"The saved state is of another form than this run's: {', '.join(odd[:5])}.")
    leaves = [_like(leaf, have[name]) for name, leaf in names.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """All leaves with their names."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in leaves]


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _like(leaf: Any, array: np.ndarray) -> jax.Array:
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.array(array), impl=_key_impl(leaf))
    return jnp.array(array)  # a copy: training will use this memory up


def _key_impl(leaf: Any) -> Any:
    """The kind of random key, also of a mere shape: a tracer knows it."""
    impl = []
    jax.eval_shape(lambda key: impl.append(jax.random.key_impl(key)), leaf)
    return impl[0]


def _checksum(x: np.ndarray) -> int:
    if not x.size:
        return EMPTY
    form = zlib.crc32(f"{x.dtype} {x.shape}".encode())
    return zlib.crc32(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data, form)


def _score(metrics: Any) -> float:
    return metrics["score"]


def _read_score(path: Path) -> float:
    return float(_score(json.loads((path / "metrics/metrics").read_text())))


def _set_aside(path: Path) -> None:
    target = path.with_name(f"damaged_{path.name}")
    shutil.rmtree(target, ignore_errors=True)
    path.rename(target)


EMPTY = 0  # checksum of an array without elements
