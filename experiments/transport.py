"""What the experiments on transport share: one grid for all, differences between methods, and where credit lands."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import jaxcredit as jc
from experiments.tuning import tuned
from jaxcredit.evaluation.plots import styled_figure
from jaxcredit.evaluation.statistics import bootstrap_interval
from jaxcredit.training.compare import compare, fresh_episodes
from jaxcredit.training.logging import provenance

MEASURE = "last_phase_reward"
GRID: dict[str | tuple[str, ...], list[float]] = {
    "learning_rate": [3e-4, 1e-3, 3e-3], "entropy_coefficient": [0.01, 0.05],
}  # fmt: skip


class Budget(NamedTuple):
    """Attributes: `episodes` of training per seed; `tuning` episodes per seed and point; `seeds` of each; `judged`
    fresh episodes on which a seed is judged."""

    episodes: int
    tuning: int
    seeds: int
    tuning_seeds: int
    judged: int


QUICK = Budget(episodes=32, tuning=16, seeds=2, tuning_seeds=1, judged=8)


def seeds(first: int, number: int) -> jax.Array:
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(1810), i))(jnp.arange(first, first + number))


class Assigned(NamedTuple):
    """Episodes and what was transported in them, all `[T, E]`.

    Attributes:
      paid: what transport added to the reward.
      took: the step that decided the last phase.
      mask: steps of the episode.
    """

    paid: np.ndarray
    took: np.ndarray
    mask: np.ndarray

    @property
    def share(self) -> float:
        """Of all that was paid in episodes with a decisive step, what that step got."""
        with_key = self.took.any(axis=0)
        total = self.paid[:, with_key].sum()
        return float(self.paid[self.took].sum() / total) if total > 0 else float("nan")

    @property
    def time(self) -> float:
        """One step, as a share of an episode: what credit spread evenly would give it."""
        return float(1 / self.mask.sum(axis=0).mean())


def assigned(
    agent: jc.OnPolicyAgent, state: jc.TrainState, transported: Callable[..., jc.Trajectory], number: int
) -> Assigned:
    """Play fresh episodes with one trained seed and see what is transported; the decisive step is that of the key."""

    @jax.jit
    def play(state: jc.TrainState, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        episodes = fresh_episodes(agent, state, key, number, ("key",))
        paid = transported(agent.credit, state.credit, episodes).reward - episodes.reward
        return jnp.where(episodes.mask, paid, 0), episodes.extras["key"], episodes.mask

    paid, key, mask = (np.asarray(x) for x in play(state, jax.random.key(77)))
    gained = np.diff(key, axis=0, prepend=0) > 0
    return Assigned(paid, gained & (np.cumsum(gained, axis=0) == 1) & mask, mask)


def draw(episodes: Assigned, name: str, title: str, file: Path, shown: int = 6) -> None:
    """What every step of some episodes was paid; a line marks the step on which the key was taken."""
    chosen = np.argsort(~episodes.took.any(axis=0), kind="stable")[:shown]
    with styled_figure(file, title, width=9, height=1.1 * shown + 0.8) as figure:
        for i, (axes, column) in enumerate(zip(figure.subplots(shown, 1, sharex=True), chosen, strict=True)):
            axes.bar(np.arange(len(episodes.paid)), episodes.paid[:, column], width=1.0)
            for step in np.flatnonzero(episodes.took[:, column]):
                axes.axvline(step, color="black", linestyle=":", label="key taken")
                axes.legend(loc="upper right")
            axes.set_ylabel(name if i == shown // 2 else "")
        axes.set_xlabel("step")


def contest(
    agents: Mapping[str, jc.OnPolicyAgent],
    ours: str,
    transported: Callable[..., jc.Trajectory],
    budget: Budget,
    directory: Path,
    results: Path,
    name: str,
) -> pd.DataFrame:
    """Tune and train all methods, judge them on fresh episodes, and compare `ours` with every other.

    Args:
      agents: method -> agent.
      ours: the method that transports.
      transported: (estimator, its state, trajectory) -> the trajectory with what is transported in its reward.
      budget: of everything.
      directory: for the run; results: for table and figures, whose names begin with `name`.
    Returns:
      A row per method: last-phase reward with interval, how far `ours` is above it (of equal seeds, mean and 95 %),
      and for `ours` the share of the credit on the step that takes the key (0 for a seed that transports nothing),
      beside its share of time.
    """
    began = time.perf_counter()
    settings = {}
    agents = dict(agents)
    for method, agent in agents.items():
        unjudged = seeds(1_000, budget.tuning_seeds)
        agents[method], settings[method] = tuned(agent, GRID, unjudged, budget.tuning, MEASURE)
        print(f"{name}: {method} with {settings[method]} after {time.perf_counter() - began:.0f} s", flush=True)
    shutil.rmtree(directory, ignore_errors=True)
    keys = seeds(0, budget.seeds)
    trained = compare(
        agents, keys, episodes=budget.episodes, eval_episodes=budget.judged, measure=MEASURE, directory=directory
    ).results
    final = {method: result.summary[f"eval.{MEASURE}"].to_numpy() for method, result in trained.items()}
    rows = []
    for method, reward in final.items():
        here, above = (bootstrap_interval(x, np.mean) for x in (reward, final[ours] - reward))
        row = {
            "method": method, MEASURE: here.estimate, "low": here.low, "high": here.high, "best_seed": reward.max(),
            "below_ours": above.estimate, "below_low": above.low, "below_high": above.high, "seeds": len(reward),
        }  # fmt: skip
        rows.append(row | settings[method])
    states = [trained[ours].state_of(seed) for seed in range(budget.seeds)]
    seen = [assigned(jc.as_arrays(agents[ours]), state, transported, budget.judged) for state in states]
    share = bootstrap_interval(np.nan_to_num([episodes.share for episodes in seen]), np.mean)
    rows[list(final).index(ours)] |= {
        "on_key": share.estimate, "on_key_low": share.low, "on_key_high": share.high, "key_time": seen[0].time,
    }  # fmt: skip
    middle = int(np.argsort(final[ours], kind="stable")[len(final[ours]) // 2])
    draw(seen[middle], "reward transported", f"{name}: what {ours} pays each step", results / f"{name}_credit.png")
    table = pd.DataFrame(rows)
    results.mkdir(parents=True, exist_ok=True)
    shutil.copy(directory / "curves.png", results / f"{name}_curves.png")
    table.to_csv(results / f"{name}.csv", index=False, float_format="%.4g")
    about = {"seconds": round(time.perf_counter() - began), "budget": budget._asdict(), **provenance()}
    (results / f"{name}.json").write_text(json.dumps(about, indent=2) + "\n")
    print(table.to_string(index=False), flush=True)
    return table
