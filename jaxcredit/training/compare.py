"""Several agents on one task: trained one after the other, all seeds of each at once, and put into one table."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcredit.agents.agent import PICTURE, TrainState, outside_training
from jaxcredit.agents.on_policy import OnPolicyAgent
from jaxcredit.agents.rollout import environment_name, start
from jaxcredit.core.trajectory import Trajectory
from jaxcredit.evaluation.plots import credit_picture, learning_curves
from jaxcredit.evaluation.statistics import Crossing, Interval, bootstrap_interval, bootstrap_ratio, iqm, threshold_step
from jaxcredit.training.logging import (
    Progress,
    Report,
    claim,
    curves_of,
    describe,
    finite_interval,
    show_interval,
)
from jaxcredit.training.programs import CALLED_ONCE, init
from jaxcredit.training.run import RunResult, run
from jaxcredit.training.sweep import as_arrays, check_keys

if TYPE_CHECKING:
    import pandas

SMOOTHING = 160  # episodes over which a curve is averaged before it is held against the threshold
UNKNOWN = Interval(math.nan, math.nan, math.nan)
PICTURED, CANDIDATES = 3, 256  # episodes in the credit picture, and episodes among which they are chosen


@dataclass(frozen=True)
class Comparison:
    """What `compare` returns.

    Attributes:
      table: one row per method.  `return`, and every `log_info` of the agents, is the interquartile mean over seeds of
        the final evaluation, between `.low` and `.high` (95 % bootstrap interval); `failed` counts seeds that ended in
        NaN and are left out.  With a threshold: `episodes` until it is reached (interquartile mean), `censored` seeds
        that never got there (they enter with the budget), and `ratio` of `episodes` to those of the best method, with
        its interval (NaN where the best did not get there either).  While at most a quarter of the seeds is censored,
        the budget does not change `episodes`.
      frame: the rows of all runs, with a column `method`.
      results: method -> its `RunResult`.
      directory: where the files are, or None.
    """

    table: pandas.DataFrame
    frame: pandas.DataFrame
    results: dict[str, RunResult]
    directory: Path | None

    def printable(self) -> tuple[str, list[list[str]], list[str]]:
        """Title, rows and headings of the table for a screen; ">" marks what never got to the threshold."""
        measures = [name.removesuffix(".low") for name in self.table.columns if name.endswith(".low")]
        failed = ["failed"] if self.table["failed"].to_numpy().any() else []
        columns = ["method", *measures, *failed, "compile s", "run s"]
        rows = [
            [
                row["method"],
                *(_cell(row, name) for name in measures),
                *(str(row[name]) for name in failed),
                f"{row['compile_seconds']:.1f}",
                f"{row['run_seconds']:.1f}",
            ]
            for row in self.table.to_dict("records")
        ]
        title = f"{self.table['seeds'].iloc[0]} seeds: interquartile mean [95 % interval]"
        return title, rows, columns


def compare(
    agents: Mapping[str, OnPolicyAgent],
    keys: jax.Array,
    *,
    episodes: int,
    eval_episodes: int = 256,
    measure: str = "episode_return",
    threshold: float | None = None,
    stop_early: bool = False,
    directory: str | Path | None = None,
    num_points: int = 128,
    progress: bool | Callable[[Report], None] = True,
) -> Comparison:
    """Train every agent with every seed for the same number of episodes, then evaluate all of them.

    Args:
      agents: method -> agent, in the order of the table; all collect whole episodes.
      keys: typed random keys of the seeds, `[S]`; every method gets the same.
      episodes: valid episodes per seed after which training stops (rounded up to whole chunks, see `run`).
      eval_episodes: fresh episodes per seed for the final evaluation of the sampled policy.
      measure: metric of the curves and of the threshold: "episode_return", or one of the agents' `log_info`.
      threshold: level of `measure` to reach; the question is in how many episodes.
      stop_early: stop a method once every seed has reached the threshold.  Final evaluations then come after different
        numbers of episodes; only the episodes until the threshold can be compared.
      directory: where to write: `metrics.parquet`, `summary.csv`, `curves.png`, `credit.png`, `config.json`, and one
        folder per method as `run` writes it; None writes nothing.
      num_points: most points of a curve.
      progress: as in `run`, for the whole comparison.
    Returns:
      A `Comparison`.
    Raises:
      ValueError: no agents, one that does not collect whole episodes, an unknown measure, sizes below 1, or a directory
        that already holds a run.
    """
    check_keys(keys)
    if stop_early and threshold is None:
        raise ValueError("stop_early=True needs a threshold to stop at: give threshold=.")
    _check(agents, keys, measure, episodes=episodes, eval_episodes=eval_episodes)
    if directory is not None:
        directory = claim(
            directory,
            {
                "label": "comparison",
                "episodes": episodes,
                "eval_episodes": eval_episodes,
                "measure": measure,
                "threshold": threshold,
                "keys": jax.random.key_data(keys).tolist(),
                "agents": describe(dict(agents)),
            },
        )
    show = progress if callable(progress) else Progress(len(agents)) if progress else None
    until = None if threshold is None or not stop_early else partial(_all_crossed, measure=measure, threshold=threshold)
    results = {}
    with show if isinstance(show, Progress) else nullcontext():
        for method, agent in agents.items():
            results[method] = run(
                agent,
                keys,
                -(-episodes // agent.num_envs) * agent.num_envs * agent.window,
                directory=None if directory is None else directory / re.sub(r"[^\w.+-]+", "_", method),
                num_points=num_points,
                eval_episodes=eval_episodes,
                progress=show or False,
                label=method,
                until=until,
                checkpoint_seconds=math.inf,
            )
    frame = _concat({method: result.frame for method, result in results.items()})
    table = tabulate(results, agents, measure, threshold)
    if directory is not None:
        frame.to_parquet(directory / "metrics.parquet", index=False)
        table.to_csv(directory / "summary.csv", index=False)
        _draw(agents, results, frame, measure, threshold, directory)
    return Comparison(table, frame, results, directory)


def tabulate(
    results: Mapping[str, RunResult], agents: Mapping[str, OnPolicyAgent], measure: str, threshold: float | None
) -> pandas.DataFrame:
    """The table of a `Comparison`."""
    import pandas as pd

    crossings = {} if threshold is None else {m: _crossing(r.frame, measure, threshold) for m, r in results.items()}
    best = min(crossings.values(), key=lambda crossing: iqm(crossing.step), default=None)
    rows = []
    for method, result in results.items():
        summary = result.summary
        failed = int((~np.isfinite(summary["eval.episode_return"])).sum())
        row: dict[str, Any] = {"method": method, "seeds": len(summary), "failed": failed}
        for name in ("episode_return", *agents[method].log_info):
            row |= _columns(name.removeprefix("episode_"), finite_interval(summary[f"eval.{name}"]))
        if best is not None:
            crossing = crossings[method]
            row |= _columns("episodes", bootstrap_interval(crossing.step)) | {"censored": int(crossing.censored.sum())}
            row |= _columns(
                "ratio",
                UNKNOWN
                if mostly_censored(best.censored.sum(), best.censored.size)
                else bootstrap_ratio(crossing.step, best.step),
            )
        rows.append(row | {"compile_seconds": result.compile_seconds, "run_seconds": result.run_seconds})
    return pd.DataFrame(rows)


class CreditTrace(NamedTuple):
    """A few episodes with their credit, all arrays `[T, E]`: what `credit_picture` draws.

    Attributes:
      reward: what the environment paid, in reward units; redistributed: what the estimator made of it.
      advantage: the credit of the action taken.
      decisive: the steps that decide the return, if the environment marks them by `info["decisive"]`; else all False.
      mask: False on padding.
    """

    reward: jax.Array
    redistributed: jax.Array
    advantage: jax.Array
    decisive: jax.Array
    mask: jax.Array


def fresh_episodes(
    agent: OnPolicyAgent, state: TrainState, key: jax.Array, num_episodes: int, keep_info: tuple[str, ...] = ()
) -> Trajectory:
    """Whole episodes of a trained policy, annotated as estimators need them.  Pure.

    Args:
      agent: the agent, state: its training state, of one seed.
      key: random key.
      num_episodes: E, static.
      keep_info: entries of `info` to keep in `extras`, where there are such.
    Returns:
      A trajectory `[T, E]`.
    """
    agent = dataclasses.replace(agent, num_envs=num_episodes, group_size=1, episodic=True)
    start_key, run_key = jax.random.split(key)
    carry = agent.policy.initial_carry(num_episodes)
    runner = start(agent.env, agent.env_params, start_key, num_episodes, carry)
    _, trajectory, _ = agent.play(
        run_key, state.params, state.moments, runner, agent.window, episodic=True, keep_info=keep_info
    )
    return agent.annotate(state.params, state.moments, carry, trajectory)


def credit_trace(agent: OnPolicyAgent, state: TrainState, key: jax.Array, num_episodes: int) -> CreditTrace:
    """Collect whole episodes with a trained policy and let the trained estimator assign their credit.  Pure.

    Args:
      agent: the agent, state: its training state, of one seed.
      key: random key.
      num_episodes: E, static.
    Returns:
      A `CreditTrace`.
    """
    play_key, credit_key = jax.random.split(key)
    trajectory = fresh_episodes(agent, state, play_key, num_episodes, ("decisive",))
    decisive = jnp.asarray(trajectory.extras.get("decisive", jnp.zeros_like(trajectory.mask)), bool)
    assigned = agent.credit.assign(credit_key, state.credit, trajectory, context=agent.context(state.params))
    advantage = assigned.advantage
    if assigned.action_advantage is not None:
        advantage = jnp.take_along_axis(assigned.action_advantage, trajectory.action[..., None], axis=-1)[..., 0]
    return CreditTrace(trajectory.reward, assigned.reward, advantage, decisive, trajectory.mask)


def rewrites_reward(agent: OnPolicyAgent, state: TrainState) -> bool:
    """Whether the agent's estimator puts other rewards in the place of the environment's; nothing is computed."""
    found = []

    def assign(state: TrainState) -> None:
        _, trajectory, _, _ = agent.gather(jax.random.key(0), state.params, state.moments, state.runner)
        context = agent.context(state.params)
        assigned = agent.credit.assign(jax.random.key(0), state.credit, trajectory, context=context)
        found.append(assigned.reward is not trajectory.reward)

    jax.eval_shape(assign, state)
    return found[0]


def _draw(
    agents: Mapping[str, OnPolicyAgent],
    results: Mapping[str, RunResult],
    frame: pandas.DataFrame,
    measure: str,
    threshold: float | None,
    directory: Path,
) -> None:
    curves = curves_of(frame, measure, x="episodes")
    if curves:
        title = environment_name(next(iter(agents.values())).env)
        ylabel = measure.replace("_", " ")
        learning_curves(curves, directory / "curves.png", ylabel=ylabel, threshold=threshold, title=title)
    rewriting = (method for method, agent in agents.items() if rewrites_reward(agent, results[method].state_of(0)))
    method = next(rewriting, next(iter(agents)))
    agent, result = agents[method], results[method]
    middle = int(result.summary[f"eval.{measure}"].argsort().iloc[len(result.summary) // 2])
    arguments = as_arrays(agent), result.state_of(middle), outside_training(result.state_of(middle).key, PICTURE)
    traced = jax.jit(partial(credit_trace, num_episodes=CANDIDATES)).lower(*arguments).compile(CALLED_ONCE)
    trace = traced(*arguments)
    total = np.where(trace.mask, trace.reward, 0).sum(axis=0)
    # episodes that differ in what is decisive, as the estimator sees it, show most
    seen = np.where(trace.mask & trace.decisive, trace.redistributed, 0).sum(axis=0) if trace.decisive.any() else total
    chosen = np.argsort(seen, kind="stable")[np.linspace(0, CANDIDATES - 1, PICTURED).round().astype(int)]
    shown = jax.tree.map(lambda x: np.asarray(x)[:, chosen], trace)
    credit_picture(
        directory / "credit.png",
        reward=shown.reward,
        redistributed=shown.redistributed,
        advantage=shown.advantage,
        decisive={"decisive step": shown.decisive} if shown.decisive.any() else {},
        mask=shown.mask,
        labels=[f"return {total[i]:.3g}" for i in chosen],
        title=f"Where {method} puts the credit, after training",
    )


def _all_crossed(frame: pandas.DataFrame, *, measure: str, threshold: float) -> bool:
    return bool(frame["episodes"].max() >= SMOOTHING) and not _crossing(frame, measure, threshold).censored.any()


def _crossing(frame: pandas.DataFrame, measure: str, threshold: float) -> Crossing:
    """Valid episodes until each seed's curve reaches the threshold."""
    by_point = frame.pivot(index="point", columns="seed", values=[measure, "episodes"])
    steps = by_point["episodes"].mean(axis=1).to_numpy()
    # a point without a number (diverged, or no episode ended) is a point at which the threshold is not reached
    curve = by_point[measure].fillna(-np.finfo(np.float64).max / len(steps)).to_numpy().T
    window = min(len(steps), max(1, round(SMOOTHING / steps[0])))
    return threshold_step(curve, steps, threshold, window)


def mostly_censored(censored: Any, seeds: Any) -> Any:
    """Whether more than a quarter of the seeds never got there: then the interquartile mean depends on the budget."""
    return censored > seeds / 4


def _columns(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.estimate, f"{name}.low": interval.low, f"{name}.high": interval.high}


def _cell(row: dict[str, Any], name: str) -> str:
    """An entry of the printed table; ">" where the budget, which stands for "never", has moved the estimate."""
    text = show_interval(Interval(row[name], row[f"{name}.low"], row[f"{name}.high"]))
    if name not in ("episodes", "ratio") or not row["censored"] or math.isnan(row[name]):
        return text
    if mostly_censored(row["censored"], row["seeds"]):
        text = f"> {row[name]:,.3g}" if name == "ratio" else f"> {row[name]:,.0f}"
    return text if name == "ratio" else f"{text} ({row['censored']} never)"


def _concat(frames: Mapping[str, pandas.DataFrame]) -> pandas.DataFrame:
    import pandas as pd

    return pd.concat(frames, names=["method"]).reset_index("method").reset_index(drop=True)


def _check(agents: Mapping[str, OnPolicyAgent], keys: jax.Array, measure: str, **sizes: int) -> None:
    """Find what is wrong with any of the agents now, not when its turn comes."""
    if not agents:
        raise ValueError("compare() needs at least one agent: {'gae': PPO(...), 'rudder': PPO(..., credit=...)}.")
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name}={size!r} is not allowed; give a whole number of at least 1.")
    for method, agent in agents.items():
        if not agent.is_episodic:
            raise ValueError(f"compare() counts episodes: build the agent of {method} with episodic=True.")
        known = ("episode_return", *agent.log_info)
        if measure not in known:
            raise ValueError(
                f"{method} does not report measure={measure!r}; choose {' or '.join(known)}, or add it to log_info."
            )
        jax.eval_shape(init, as_arrays(agent), keys[0])
