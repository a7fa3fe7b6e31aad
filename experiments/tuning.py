"""One grid for every method of an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax

import jaxcredit as jc
from jaxcredit.evaluation.statistics import iqm


def tuned(
    agent: jc.OnPolicyAgent,
    values: Mapping[str | tuple[str, ...], Sequence[float]],
    keys: jax.Array,
    episodes: int,
    measure: str,
) -> tuple[jc.OnPolicyAgent, dict[str, float]]:
    """The agent with the point of a grid that is best over training: interquartile mean of the seeds.

    Args:
      agent: the agent.
      values: path -> values, as in `sweep`; a tuple of paths shares them.
      keys: of seeds that are not judged later.
      episodes: of training per seed.
      measure: the metric.
    Returns:
      The agent, and what was chosen: last part of the (first) path -> value.
    """
    iterations = max(1, episodes // agent.num_envs)
    frame = jc.sweep(agent, values, keys, num_iterations=iterations, summary="mean", batch_points=2)
    paths = [(path,) if isinstance(path, str) else path for path in values]
    first = [path[0] for path in paths]
    best = frame.groupby(first)[measure].agg(iqm).idxmax()
    chosen = dict(zip(paths, (float(x) for x in best), strict=True))  # type: ignore[arg-type]
    for shared, value in chosen.items():
        for path in shared:
            agent = jc.replace_at(agent, path, value)
    return agent, {path[0].split(".")[-1]: value for path, value in chosen.items()}
