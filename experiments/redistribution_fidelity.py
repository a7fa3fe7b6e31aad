"""How well learned redistributions order the steps of an episode, against the exact one, while they see more episodes.

    python -m experiments.redistribution_fidelity             writes experiments/results/redistribution_fidelity
    python -m experiments.redistribution_fidelity --quick     tiny sizes, written to runs/redistribution_fidelity

Episodes of a uniformly random policy on `KeyToDoor` and `CreditMaze`.  The exact redistribution pays each step what it
changed in the expected return, by dynamic programming (`optimal_redistribution`).  Each method is fitted on batches of
16 episodes; at every power of two it is held against the exact one on fresh episodes, several seeds at once.

Two rank correlations over all steps of all fresh episodes:  "spearman", where steps that the exact redistribution pays
alike share a rank, so that a method which pays them within a hair of each other reaches no more than "most";  "somers",
the share of pairs of steps in the right order less that in the wrong one, of all pairs that the exact one pays
differently.
"""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro

import envs
import jaxcredit as jc
from jaxcredit.core.trajectory import over_columns
from jaxcredit.evaluation.episodes import tabular_episodes
from jaxcredit.evaluation.fidelity import known
from jaxcredit.evaluation.oracle import optimal_redistribution
from jaxcredit.evaluation.plots import learning_curves
from jaxcredit.evaluation.statistics import bootstrap_interval
from jaxcredit.training.logging import print_table, provenance

BATCH = 16
TASKS: dict[str, dict[str, Any]] = {
    "KeyToDoor": {"length": 12},
    "CreditMaze": {"depth": 12, "breadth": 4, "noise": 0.3},
}
# as the exact redistribution does it, the first step is paid from 0 on, and what nobody could predict in the last one
RUDDER = jc.RUDDER(past_rewards=True, residual="end", baseline="zero")
METHODS: dict[str, jc.CreditEstimator] = {
    "RUDDER": RUDDER,
    "RUDDER, recurrent gate": RUDDER.replace(gate="recurrent"),
    "RUDDER, integrated gradients": RUDDER.replace(analysis="gradients"),
    "RUDDER, lessons": RUDDER.replace(buffer="lessons"),
    "RRD": jc.RewardDecomposition(subset=8, unbiased=True),
    "RD": jc.RewardDecomposition(),
    "IRCR": jc.IRCR(),
    "sequence modelling": jc.SequenceModelling(),
    "AREL": jc.AREL(),
    "Diaster": jc.Diaster(),
}


@partial(jax.jit, static_argnames=("env", "fresh"))
def redistributed(
    estimator: jc.CreditEstimator, env: Any, params: Any, batches: jax.Array, keys: jax.Array, *, fresh: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rewards of fresh episodes after each further number of `batches` `[N]`, `[seeds, N, T, fresh]`; the exact ones
    and the mask, `[seeds, T, fresh]`."""
    mdp = env.mdp(params)
    exact = known(mdp)

    def of_seed(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        init_key, fit_key, fresh_key = jax.random.split(key, 3)
        judged = tabular_episodes(env, params, mdp, exact.policy, fresh_key, fresh)
        action_value = exact.action_value[judged.extras["state"], judged.action]
        best = over_columns(optimal_redistribution, action_value, judged.reward, judged.mask)

        def fit(i: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
            state, key = carry
            key, play_key, credit_key = jax.random.split(jax.random.fold_in(key, i), 3)
            episodes = tabular_episodes(env, params, mdp, exact.policy, play_key, BATCH)
            return estimator.update(credit_key, state, episodes)[0], key

        def segment(carry: tuple[Any, jax.Array], number: jax.Array) -> tuple[tuple[Any, jax.Array], jax.Array]:
            carry = jax.lax.fori_loop(0, number, fit, carry)
            return carry, estimator.assign(key, carry[0], judged).reward

        example = jax.eval_shape(lambda key: tabular_episodes(env, params, mdp, exact.policy, key, BATCH), key)
        start = estimator.init(init_key, example), fit_key
        return jax.lax.scan(segment, start, batches)[1], best, judged.mask

    return jax.vmap(of_seed)(keys)


def spearman(ours: np.ndarray, exact: np.ndarray) -> float:
    """Correlation of ranks, equal values sharing one."""
    a, b = (pd.Series(np.round(x, 6)).rank().to_numpy(float) for x in (ours, exact))
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else 0.0


def most(exact: np.ndarray) -> float:
    """The Spearman correlation of what pays all steps in the right order, and no two alike."""
    return spearman(pd.Series(np.round(exact, 6)).rank(method="first").to_numpy(float), exact)


def somers(ours: np.ndarray, exact: np.ndarray) -> float:
    """Of all pairs that `exact` tells apart: the share in the right order less that in the wrong one."""
    ours, exact = (np.sign(np.round(x[:, None] - x, 6)).astype(np.int8) for x in (ours, exact))
    return float((ours * exact).sum(dtype=float) / max(np.abs(exact).sum(dtype=float), 1))


def measure(task: str, method: str, episodes: np.ndarray, seeds: int, fresh: int) -> list[dict[str, Any]]:
    """A row per seed and number of episodes."""
    env, params = envs.make(task, **TASKS[task])
    batches = jnp.asarray(np.diff(episodes // BATCH, prepend=0))
    keys = jax.random.split(jax.random.key(7), seeds)
    rewards, exact, mask = jax.tree.map(
        np.asarray, redistributed(jc.as_arrays(METHODS[method]), env, params, batches, keys, fresh=fresh)
    )
    return [
        {
            "task": task, "method": method, "seed": seed, "episodes": int(number),
            **{f.__name__: f(rewards[seed, i][mask[seed]], exact[seed][mask[seed]]) for f in (spearman, somers)},
            "most": most(exact[seed][mask[seed]]),
        }
        for seed in range(seeds) for i, number in enumerate(episodes)
    ]  # fmt: skip


def main(
    quick: bool = False, methods: tuple[str, ...] = tuple(METHODS), seeds: int = 8, directory: Path | None = None
) -> None:
    """Measure the curves.

    Args:
      quick: tiny sizes: does everything run?
      methods: which.
      seeds: side by side.
      directory: where to write.
    """
    episodes = 2 ** np.arange(4, 6 if quick else 14)
    seeds, fresh = (2, 8) if quick else (seeds, 128)
    directory = directory or Path("runs" if quick else "experiments/results") / "redistribution_fidelity"
    directory.mkdir(parents=True, exist_ok=True)
    began, rows = time.perf_counter(), []
    jobs = [(task, method) for task in TASKS for method in methods]
    for i, (task, method) in enumerate(jobs):
        rows += measure(task, method, episodes, seeds, fresh)
        passed = time.perf_counter() - began
        left = passed / (i + 1) * (len(jobs) - i - 1)
        print(f"{task}, {method}: {i + 1} of {len(jobs)} after {passed:.0f} s, about {left:.0f} s left", flush=True)
    write(pd.DataFrame(rows), directory, time.perf_counter() - began)


def write(frame: pd.DataFrame, directory: Path, seconds: float) -> None:
    """A row per task, method and number of episodes; a picture per task; what was run."""
    rows, episodes = [], np.unique(frame["episodes"])
    for (task, method, number), here in frame.groupby(["task", "method", "episodes"], sort=False):  # type: ignore[misc]
        row: dict[str, Any] = {"task": task, "method": method, "episodes": number}
        for name in ("spearman", "somers"):
            interval = bootstrap_interval(here[name], np.median)
            row |= {name: interval.estimate, f"{name}.low": interval.low, f"{name}.high": interval.high}
        row["most"] = np.median(here["most"])
        rows.append(row)
    table = pd.DataFrame(rows)
    table.to_csv(directory / "correlation.csv", index=False, float_format="%.4g")
    for task, here in frame.groupby("task", sort=False):
        curves = {
            str(method): (
                episodes,
                runs.pivot(index="seed", columns="episodes", values="somers").to_numpy(),
            )
            for method, runs in here.groupby("method", sort=False)
        }
        learning_curves(
            curves, directory / f"{task}.png", ylabel="rank correlation (Somers' D)", xlabel="episodes seen", logx=True,
            threshold=0.9, title=f"{task}: is every step paid in the right order?",
        )  # fmt: skip
    about = {"seconds": round(seconds), "tasks": TASKS, "seeds": len(np.unique(frame["seed"])), **provenance()}
    (directory / "about.json").write_text(json.dumps(about, indent=2) + "\n")
    most = int(episodes[-1])
    last = pd.DataFrame(table[table["episodes"] == most])
    cells = [
        (row["task"], row["method"], *(f"{row[n]:.2f} [{row[f'{n}.low']:.2f}, {row[f'{n}.high']:.2f}]" for n in
         ("spearman", "somers")), f"{row['most']:.2f}")
        for row in last.to_dict("records")
    ]  # fmt: skip
    print_table(f"After {most:,} episodes", cells, ["task", "method", "Spearman", "Somers' D", "most"])


if __name__ == "__main__":
    tyro.cli(main)
