"""Checkpoints of a run: complete or absent, checked when read, arrays only (reading one runs no code).

Orbax makes them appear at once and keeps the latest and the best.  The arrays of one lie in a `.npz` file: Orbax's own
format is for arrays that all processes share, and here each process has seeds of its own.  Beside it lies its digest,
so a changed byte is noticed wherever it is.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import warnings
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcredit.training.logging import CHECKPOINTS

Arrays = dict[str, np.ndarray]
FOLDER = CHECKPOINTS
ITEM, FILE, DIGEST, BY_SEED = "arrays", "arrays.npz", "arrays.npz.sha256", "by_seed"


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

        from jaxcredit.training.npz import NpzHandler, NpzSave

        directory.mkdir(parents=True, exist_ok=True)
        # each process keeps its own seeds' checkpoints and waits for no other one
        process = jax.process_index()
        by_itself = ocp.options.MultiprocessingOptions(process, {process}, f"process_{process}")
        self._save = NpzSave
        self._composite = ocp.args.Composite
        self._manager = ocp.CheckpointManager(
            directory.resolve(),
            item_handlers={ITEM: NpzHandler()},
            options=ocp.CheckpointManagerOptions(
                preservation_policy=AnyPreservationPolicy([LatestN(keep), BestN(get_metric_fn=_score, n=1)]),
                best_fn=_score,
                cleanup_tmp_directories=True,
                create=False,
                enable_async_checkpointing=False,  # training goes on beside the thread below
                multiprocessing_options=by_itself,
            ),
        )
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._writing: Future[Any] | None = None

    def save(self, point: int, arrays: Arrays, by_seed: Iterable[str], score: float) -> None:
        """Write in the background, once the one before is written; the arrays must stay as they are."""
        self.wait()
        item = self._save(arrays | {BY_SEED: np.asarray(list(by_seed))})
        metrics = {"score": -math.inf if math.isnan(score) else float(score)}
        self._writing = self._writer.submit(
            self._manager.save, point, args=self._composite(**{ITEM: item}), metrics=metrics
        )

    def wait(self) -> None:
        """Return once everything is on the disk; raise what came in the way, once."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Wait, and let go of the threads."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()
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
            # a score that cannot be read would stop Orbax from counting the others
            unscored = [
                earlier for earlier in points(directory) if earlier < point and not _has_score(directory, earlier)
            ]
            for bad in damaged + unscored:
                _set_aside(directory / str(bad))
            return found
    if damaged:
        raise ValueError(
            f"Every checkpoint in {directory} is damaged (points {', '.join(map(str, damaged))}). Nothing was changed; "
            "give another directory to start anew."
        )
    return None


def best(directory: Path) -> Checkpoint:
    """The undamaged checkpoint with the best score; damaged ones before it are told by a warning.

    Raises:
      ValueError: there is none.
    """
    scored = [point for point in points(directory) if _has_score(directory, point)]
    return _first_undamaged(
        directory, sorted(scored, key=lambda point: (_read_score(directory / str(point)), point), reverse=True)
    )


def latest(directory: Path) -> Checkpoint:
    """The latest undamaged checkpoint; damaged ones after it are told by a warning, and stay where they are.

    Raises:
      ValueError: there is none.
    """
    return _first_undamaged(directory, points(directory)[::-1])


def _first_undamaged(directory: Path, candidates: list[int]) -> Checkpoint:
    for point in candidates:
        try:
            return read(directory, point)
        except ValueError as error:
            warnings.warn(f"{error} Looking for another one.", stacklevel=3)
    state = "only damaged checkpoints" if points(directory) else "no checkpoint"
    raise ValueError(f"{directory} holds {state}.")


def points(directory: Path) -> list[int]:
    """The points at which there is a complete checkpoint, rising."""
    return sorted(int(path.name) for path in directory.glob("*") if path.name.isdigit())


def read(directory: Path, point: int) -> Checkpoint:
    """Read one checkpoint.

    Raises:
      ValueError: it is damaged.
    """
    path = directory / str(point)
    try:
        _read_score(path)
        if digest_of(path / ITEM / FILE) != (path / ITEM / DIGEST).read_text():
            raise ValueError(f"{FILE} is not what was written")
        with (path / ITEM / FILE).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        by_seed = arrays.pop(BY_SEED).tolist()
    except Exception as error:  # a damaged file shows as whatever its reader trips over
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"The checkpoint {path} is damaged ({reason:.200}).") from error
    return Checkpoint(point, arrays, by_seed)


def digest_of(file: Path) -> str:
    """SHA-256 of all that is in a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


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
    have = {name: _named_dtype(x, wanted[name].dtype) if name in wanted else x for name, x in arrays.items()}
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


def _named_dtype(x: np.ndarray, dtype: Any) -> np.ndarray:
    """NumPy's files know the size of JAX's extra dtypes (bfloat16), but not their name."""
    return x.view(dtype) if x.dtype.kind == "V" else x


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


def _score(metrics: Any) -> float:
    return metrics["score"]


def _read_score(path: Path) -> float:
    return float(_score(json.loads((path / "metrics/metrics").read_text())))


def _has_score(directory: Path, point: int) -> bool:
    try:
        _read_score(directory / str(point))
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def _set_aside(path: Path) -> None:
    target = path.with_name(f"damaged_{path.name}")
    shutil.rmtree(target, ignore_errors=True)
    path.rename(target)
