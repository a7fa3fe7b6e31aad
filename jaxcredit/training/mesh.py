"""Where seeds run: each process has a block of them, laid over all of its devices, in batches that fit their memory."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

SEEDS = "seeds"
GIB = 2**30
PATIENCE = 30 * 24 * 3600  # seconds that a process waits at its end for slower ones, which would die with it


def local_mesh() -> Mesh:
    """This process's devices in a row; seeds are laid along it."""
    return Mesh(np.asarray(jax.local_devices()), (SEEDS,))


def over_seeds(function: Callable[..., Any], mesh: Mesh, in_axes: Any, out_axes: Any) -> Callable[..., Any]:
    """`function`, already a `vmap` over seeds, run by every device of the mesh on its share of them.

    Seeds never look at each other, so devices don't either: there is no communication.

    Args:
      function: takes and returns pytrees with the seeds on axis 0 of some leaves.
      mesh: of one axis.
      in_axes, out_axes: as for `vmap`: 0 for leaves that have the seed axis, None for those that are shared.
    """
    if mesh.size == 1:
        return function
    return jax.shard_map(function, mesh=mesh, in_specs=_specs(in_axes), out_specs=_specs(out_axes), check_vma=False)


def place(tree: Any, mesh: Mesh, axes: Any) -> Any:
    """Lay arrays (or the shapes of arrays) over the mesh, as `over_seeds` expects them."""
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), _specs(axes))
    flat = jax.tree.broadcast(shardings, tree)
    if all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(tree)):
        return jax.tree.map(lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree, flat)
    return jax.tree.map(jax.device_put, tree, flat)


def _specs(axes: Any) -> Any:
    return jax.tree.map(
        lambda axis: PartitionSpec() if axis is None else PartitionSpec(SEEDS), axes, is_leaf=lambda x: x is None
    )


def seeds_of_process(number: int) -> np.ndarray:
    """The block of seeds 0..number-1 that this process trains; blocks differ by at most one seed.

    Raises:
      ValueError: there are fewer seeds than processes.
    """
    if number < jax.process_count():
        raise ValueError(f"{number} seeds for {jax.process_count()} processes; give at least one seed to each.")
    return np.array_split(np.arange(number), jax.process_count())[jax.process_index()]


def texts_of_processes(text: str) -> list[str]:
    """What each process gave, in their order."""
    if jax.process_count() == 1:
        return [text]
    mine = np.frombuffer(text.encode(), np.uint8)
    sizes = np.ravel(multihost_utils.process_allgather(np.asarray(mine.size)))
    padded = np.pad(mine, (0, int(sizes.max()) - mine.size))
    texts = multihost_utils.process_allgather(padded)
    return [bytes(np.asarray(x[:size], np.uint8)).decode() for x, size in zip(texts, sizes, strict=True)]


def wait_for_processes(name: str) -> None:
    """Return once all processes have called this; `name` tells what for."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def join_processes(coordinator: str | None = None, processes: int | None = None, process: int | None = None) -> None:
    """Make this process one of several that share the seeds of a run; call it before anything else.

    JAX must not have computed anything yet, which `import envs` does (gymnax makes arrays while it is imported).

    Under SLURM (or another launcher that JAX knows) nothing need be given.

    A process that has ended waits for the others, however long they take (with JAX 0.8.0, five minutes).  One that dies
    is noticed within two minutes: JAX ends the others with a message that says so; `resume=True` in all goes on.

    Args:
      coordinator: HOST:PORT of process 0.
      processes: how many there are.
      process: which of them this is, from 0.
    Raises:
      ValueError: only some of the three given, where nothing else tells the rest.
    """
    given = (coordinator, processes, process)
    if any(x is not None for x in given) and any(x is None for x in given):
        raise ValueError(
            f"coordinator={coordinator}, processes={processes}, process={process}: give all three (HOST:PORT of "
            "process 0, how many there are, which one this is), or none of them under SLURM."
        )
    known = inspect.signature(jax.distributed.initialize).parameters
    options: dict[str, Any] = {"shutdown_timeout_seconds": PATIENCE} if "shutdown_timeout_seconds" in known else {}
    jax.distributed.initialize(coordinator, processes, process, **options)


def under_slurm() -> bool:
    """Whether SLURM started this process as one of several."""
    return int(os.environ.get("SLURM_NTASKS", "1")) > 1 and "SLURM_PROCID" in os.environ


def seeds_that_fit(number: int, bytes_needed: int, devices: int, limit: float | None) -> int:
    """How many seeds to train at a time: all, or as many as the memory of the devices holds.

    Args:
      number: seeds in all.
      bytes_needed: memory of one device when all seeds run at once.
      devices: over how many devices the seeds are laid; 1 where each seed uses all of them.
      limit: GiB per device; None takes what the device reports, and no limit where it reports nothing.
    Returns:
      a number of seeds that divides evenly over the devices; the batches are of equal size, as far as that allows.
    Raises:
      ValueError: not even one seed per device fits.
    """
    everything = -(-number // devices) * devices
    limit_bytes = _device_memory() if limit is None else limit * GIB
    if limit_bytes is None or bytes_needed <= limit_bytes:
        return everything
    per_device = int(limit_bytes / bytes_needed * (everything // devices))
    if per_device < 1:
        raise ValueError(
            f"One seed needs {bytes_needed / (everything // devices) / GIB:.3g} GiB, more than the limit of "
            f"{limit_bytes / GIB:.3g} GiB per device. Raise the limit, or make num_envs, num_steps or networks smaller."
        )
    batches = -(-everything // (per_device * devices))
    return -(-everything // (batches * devices)) * devices


def _device_memory() -> int | None:
    statistics = jax.local_devices()[0].memory_stats()
    return None if statistics is None else statistics.get("bytes_limit")
