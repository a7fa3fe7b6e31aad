"""How programs are timed: compiled apart, then in turns within one process, so that a slow hour slows all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxcredit.training.programs import bytes_in_use

OTHER_SCHEDULER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"


class Compiled(NamedTuple):
    """A program ready to run.

    Attributes:
      call: runs it and returns arrays.
      work: how much one call does, in the unit of its task (environment steps, elements).
      compile_seconds: spent on tracing, lowering and compiling.
      megabytes: its arguments, results and temporary memory; NaN where the peer does not tell.
    """

    call: Callable[[], Any]
    work: float
    compile_seconds: float
    megabytes: float


def compile_jax(function: Callable[..., Any], *arguments: Any, work: float) -> Compiled:
    """Compile a JAX function for its arguments.

    Raises:
      RuntimeError: a vmapped LAPACK call, which can wait for ever for a thread on a machine with few cores.
    """
    began = time.perf_counter()
    lowered = jax.jit(function).lower(*arguments)
    waits = jax.default_backend() == "cpu" and "lapack" in lowered.as_text()
    if waits and OTHER_SCHEDULER not in os.environ.get("XLA_FLAGS", ""):
        raise RuntimeError(
            f"its LAPACK calls can wait for ever on few cores; set XLA_FLAGS={OTHER_SCHEDULER} to time it"
        )
    program = lowered.compile()
    seconds = time.perf_counter() - began
    return Compiled(lambda: program(*arguments), work, seconds, bytes_in_use(program) / 2**20)


def in_turns(programs: Mapping[str, Compiled], repeats: int) -> list[dict[str, Any]]:
    """Run all programs `repeats` times in turns.

    Args:
      programs: by the name of their variant; ratios are relative to the first.
      repeats: runs of each, at least 1; one more comes first and is not counted.
    Returns:
      one row per program: `variant`, `rate` (work per second: median, `rate.low`, `rate.high`), `ratio` (median over
      turns of the first program's seconds per work by this one's; above 1 is faster, `ratio.low`, `ratio.high`),
      `compile_seconds`, `megabytes`.
    """
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(repeats + 1):
        for name, program in programs.items():
            began = time.perf_counter()
            jax.block_until_ready(program.call())
            if turn:
                seconds[name].append(time.perf_counter() - began)
    name, program = next(iter(programs.items()))
    first = np.array(seconds[name]) / program.work
    rows = []
    for name, program in programs.items():
        own = np.array(seconds[name])
        rate = program.work / own
        rows.append(
            {"variant": name, "repeats": repeats}
            | _median_and_range("rate", rate)
            | _median_and_range("ratio", first * rate)
            | {"compile_seconds": program.compile_seconds, "megabytes": program.megabytes}
        )
    return rows


def _median_and_range(name: str, values: np.ndarray) -> dict[str, float]:
    return {name: float(np.median(values)), f"{name}.low": float(values.min()), f"{name}.high": float(values.max())}
