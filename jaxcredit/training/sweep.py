"""Hyperparameter sweeps in one compiled program: a `vmap` over the float leaves of an agent, and over seeds."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxcredit.agents.agent import EVALUATION, Agent, outside_training
from jaxcredit.core.estimator import Chain, CreditEstimator
from jaxcredit.training.train import COUNTERS, evaluate, train

if TYPE_CHECKING:
    import pandas

Path = str | tuple[str, ...]
Summary = Literal["last", "mean"]


def as_arrays(agent: Any) -> Any:
    """Turn every traced number of a configuration into a strongly typed array, so that no later value recompiles.

    Raises:
      ValueError: an estimator inside is no pytree.
    """

    def strong(x: Any) -> Any:
        if isinstance(x, CreditEstimator):
            raise ValueError(
                f"{type(x).__name__} is an estimator, but no pytree: its floats could not be traced. Write "
                "@flax.struct.dataclass above its class."
            )
        if isinstance(x, jax.Array | np.ndarray | bool | int | float):
            x = jnp.asarray(x)
            return jax.lax.convert_element_type(x, x.dtype)
        return x

    return jax.tree.map(strong, agent)


def leaf_paths(agent: Any) -> list[str]:
    """Dotted paths of every traced number of an agent: what `sweep` can vary without recompiling."""
    paths = jax.tree_util.tree_flatten_with_path(agent)[0]
    names = [
        [str(getattr(key, "name", getattr(key, "idx", getattr(key, "key", key)))) for key in path] for path, _ in paths
    ]
    return [".".join(part for part in path if part != "members") for path in names]


def field_at(agent: Any, path: str) -> Any:
    """Return the field of a (nested) configuration at a dotted path.

    Args:
      agent: the configuration.
      path: for example "learning_rate", "credit.lam", or "credit.1.lam" for the second member of a chain.
    Raises:
      ValueError: no such path; the message names the nearest ones.
    """
    for part in path.split("."):
        agent = _parts(agent, part)[part]
    return agent


def replace_at(agent: Any, path: str, value: Any) -> Any:
    """Return a copy of a (nested) configuration with the field at a dotted path replaced.

    Args:
      agent: the configuration.
      path: as in `field_at`.
      value: what to put there.
    Raises:
      ValueError: no such path; the message names the nearest ones.
    """
    head, _, rest = path.partition(".")
    parts = _parts(agent, head)
    changed = replace_at(parts[head], rest, value) if rest else value
    if isinstance(agent, Chain):
        return agent.replace(members=tuple((parts | {head: changed}).values()))
    copy = agent.clone if isinstance(agent, nn.Module) else agent.replace
    return copy(**{head: changed})


def _parts(agent: Any, wanted: str) -> dict[str, Any]:
    """The fields of a configuration (the members of a chain) by name; complains if `wanted` is not among them."""
    if isinstance(agent, Chain):
        parts = {str(i): member for i, member in enumerate(agent.members)}
    else:
        parts = {name: getattr(agent, name) for name in getattr(agent, "__dataclass_fields__", ())}
    if wanted not in parts:
        near = difflib.get_close_matches(wanted, parts, n=3, cutoff=0.5) or list(parts)
        raise ValueError(f"{type(agent).__name__} has no field {wanted!r}; did you mean {', '.join(near)}?")
    return parts


def sweep(
    agent: Agent,
    values: Mapping[Path, Sequence[float]],
    keys: jax.Array,
    *,
    num_iterations: int = 100,
    mode: Literal["grid", "zip"] = "grid",
    summary: Summary = "last",
    eval_episodes: int = 0,
    batch_points: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pandas.DataFrame:
    """Train every point of a sweep with every seed, in one compiled program.

    Args:
      agent: the configuration around which to sweep.
      values: dotted path -> values, for example {"learning_rate": [1e-4, 1e-3], "credit.1.lam": [0.0, 0.9]}.  A tuple
        of paths shares one value.  Only traced fields (floats, and numbers in `env_params`) can be swept.
      keys: typed random keys of the seeds, `[S]`.
      num_iterations: collected batches per training run.
      mode: "grid" takes all combinations, "zip" the i-th value of every path together.
      summary: a metric's number per run: "last" is its mean over the last tenth of training, "mean" over all of it.
      eval_episodes: if positive, also evaluate the final policy on so many fresh episodes (columns `eval.*`).
      batch_points: train so many points at a time (must divide their number), to bound memory; None: all at once.
      progress: called with (points done, points in all) after each batch of points.
    Returns:
      A data frame with one row per point and seed: one column per path, `seed` (index into keys), one per metric.
    Raises:
      ValueError: an unknown or static path, no values, lengths that do not match, sizes that do not divide.
    """
    if summary not in ("last", "mean"):
        raise ValueError(f"summary={summary!r} is not known; choose last or mean.")
    agent, points, arrays = _prepare(agent, values, keys, mode)
    batch = batch_points or len(points)
    if len(points) % batch:
        raise ValueError(f"batch_points={batch} does not divide the {len(points)} points; choose sizes that divide.")
    program = jax.jit(
        partial(_train_points, num_iterations=num_iterations, summary=summary, eval_episodes=eval_episodes)
    )
    results = []
    for begin in range(0, len(points), batch):
        chosen = {path: jnp.asarray(x[begin : begin + batch]) for path, x in arrays.items()}
        results.append(jax.device_get(program(agent, chosen, keys)))
        if progress is not None:
            progress(begin + batch, len(points))
    return _frame(points, {name: np.concatenate([r[name] for r in results]) for name in results[0]})


def sweep_metrics(
    agent: Agent, values: Mapping[Path, Sequence[float]], keys: jax.Array, *, mode: str, eval_episodes: int
) -> list[str]:
    """The metrics that `sweep` would report; what it would object to is raised, and nothing is computed."""
    agent, _, arrays = _prepare(agent, values, keys, mode)
    chosen = {path: jnp.asarray(x) for path, x in arrays.items()}
    program = partial(_train_points, num_iterations=1, summary="last", eval_episodes=eval_episodes)
    return list(jax.eval_shape(program, agent, chosen, keys))


def _prepare(
    agent: Agent, values: Mapping[Path, Sequence[float]], keys: jax.Array, mode: str
) -> tuple[Agent, list[dict[str, Any]], dict[str, np.ndarray]]:
    """Check everything; the agent with array leaves, the points, and the values of every path over them."""
    check_keys(keys)
    points = _points(values, mode)
    agent = as_arrays(agent)
    arrays = {path: np.asarray([point[path] for point in points]) for path in points[0]}
    _check_paths(agent, arrays)
    return agent, points, arrays


def check_keys(keys: jax.Array) -> None:
    """Raise a ValueError unless `keys` are typed random keys, one per seed."""
    if not (isinstance(keys, jax.Array) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key) and keys.ndim == 1):
        raise ValueError(
            "keys must be typed random keys, one per seed, [S]: for example jax.random.split(jax.random.key(0), 8); "
            f"got {getattr(keys, 'dtype', type(keys).__name__)}{list(getattr(keys, 'shape', ()))}."
        )


def _points(values: Mapping[Path, Sequence[float]], mode: str) -> list[dict[str, Any]]:
    """All points as dicts path -> value, shared paths written out."""
    if mode not in ("grid", "zip"):
        raise ValueError(f"mode={mode!r} is not known; choose grid or zip.")
    for path, numbers in values.items():
        if np.ndim(numbers) != 1 or not np.issubdtype(np.asarray(numbers).dtype, np.number):
            raise ValueError(f"{path}={numbers!r} cannot be swept; give a list of numbers, for example [1e-4, 1e-3].")
    columns = [list(np.asarray(v).tolist()) for v in values.values()]
    if not columns or not all(columns):
        raise ValueError(
            "sweep() needs at least one path with at least one value, e.g. {'learning_rate': [1e-4, 1e-3]}."
        )
    if mode == "zip" and len({len(c) for c in columns}) > 1:
        raise ValueError(f"mode='zip' needs equally many values per path; got {[len(c) for c in columns]}.")
    rows = itertools.product(*columns) if mode == "grid" else zip(*columns, strict=True)
    paths = [(path,) if isinstance(path, str) else path for path in values]
    return [{p: v for shared, v in zip(paths, row, strict=True) for p in shared} for row in rows]


def _check_paths(agent: Any, arrays: Mapping[str, np.ndarray]) -> None:
    known = leaf_paths(agent)
    for path in arrays:
        field_at(agent, path)
        if path not in known:
            near = difflib.get_close_matches(path, known, n=3, cutoff=0.3)
            raise ValueError(
                f"{path!r} shapes the program and cannot be swept in one compile; build one agent per value. "
                f"Traced paths near it: {', '.join(near)}."
            )
        dtype = jax.tree.leaves(field_at(agent, path))[0].dtype
        numbers = arrays[path]
        if jnp.issubdtype(dtype, jnp.integer) and (numbers != numbers.astype(dtype)).any():
            raise ValueError(f"{path} takes whole numbers; got {numbers.tolist()}.")
    params = agent.env_params
    for path in arrays:
        if path.startswith("env_params."):
            params = replace_at(params, path.removeprefix("env_params."), arrays[path])
    if hasattr(agent.env, "check"):
        agent.env.check(params)


def _train_points(
    agent: Any,
    chosen: dict[str, jax.Array],
    keys: jax.Array,
    *,
    num_iterations: int,
    summary: Summary,
    eval_episodes: int,
) -> dict[str, jax.Array]:
    """Metrics `[points, seeds]` of one program over points and seeds."""

    def one(point: dict[str, jax.Array], key: jax.Array) -> dict[str, jax.Array]:
        configured = agent
        for path, value in point.items():
            leaf = jax.tree.leaves(field_at(agent, path))[0]
            configured = replace_at(configured, path, value.astype(leaf.dtype))
        state, metrics = train(configured, key, num_iterations, num_points=100)
        result = {name: _summarise(curve, name, summary) for name, curve in metrics.items()}
        if eval_episodes:
            final = evaluate(configured, state, outside_training(key, EVALUATION), eval_episodes)
            result |= {f"eval.{name}": value for name, value in final.items()}
        return result

    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(chosen, keys)


def _summarise(curve: jax.Array, name: str, summary: Summary) -> jax.Array:
    if name in COUNTERS:
        return curve[-1]
    if summary == "last":
        curve = curve[-max(1, curve.shape[0] // 10) :]
    return jnp.nanmean(curve)


def _frame(points: list[dict[str, Any]], metrics: dict[str, np.ndarray]) -> pandas.DataFrame:
    import pandas as pd

    seeds = next(iter(metrics.values())).shape[1]
    index = pd.DataFrame([point | {"seed": seed} for point in points for seed in range(seeds)])
    return pd.concat([index, pd.DataFrame({name: x.reshape(-1) for name, x in metrics.items()})], axis=1)
