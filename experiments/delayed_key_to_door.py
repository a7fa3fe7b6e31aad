"""The main claim: on a delayed reward under unavoidable costs, RUDDER needs a fraction of the episodes of its rivals.

    python -m experiments.delayed_key_to_door grid       tune every method by the same grid; writes settings.json
    python -m experiments.delayed_key_to_door headline   episodes until 0.9 of the treasure, with the winners
    python -m experiments.delayed_key_to_door map        where redistribution pays: lengths x costs

Results land in experiments/results/delayed_key_to_door. Methods: RUDDER, GAE, Monte Carlo, and GAE with a recurrent
policy that sees its previous action (the fair rival: the key is hidden).
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro

import jaxcredit as jc
from jaxcredit.cli import Setup, read_settings
from jaxcredit.evaluation.plots import heat_map
from jaxcredit.evaluation.statistics import iqm
from jaxcredit.training.compare import compare, mostly_censored

RESULTS = Path("experiments/results/delayed_key_to_door")
METHODS = ("rudder", "gae", "montecarlo", "gae+gru")

# The main job. At a cost of 2 a tuned Monte Carlo comes within a factor of 1.5 (see the map), so the task is harder.
TASK: dict[str, Any] = {"length": 40, "event_cost": 4.0}

# The same 24 points for every method. Monte Carlo has no lambda, so its points differ in more entropies instead.
GRID = {"learning_rate": [3e-3, 1e-2, 3e-2], "entropy": [0.01, 0.03], "gamma": [0.99, 1.0], "lam": [0.0, 0.95]}
MONTE_CARLO_GRID = GRID | {"entropy": [0.003, 0.01, 0.03, 0.1], "lam": [1.0]}
PATHS = {"learning_rate": "learning_rate", "entropy": "entropy_coefficient"}

LENGTHS, COSTS = (20, 40, 80, 160), (1.0, 2.0, 4.0)

# What all methods share, and what a method's network and predictor look like; the grid tunes the rest.
SHARED: dict[str, Any] = {
    "num_envs": 16, "minibatches": 1, "epochs": 4, "episodic": True, "hidden": (32, 32),
}  # fmt: skip
STATIC: dict[str, dict[str, Any]] = {"gae+gru": {"memory": 32}}


def agent_of(method: str, settings: dict[str, Any], **env_params: Any) -> jc.OnPolicyAgent:
    """The agent of a method, with its settings, on a task of given length and cost."""
    words = tuple(f"{name}={value}" for name, value in env_params.items())
    setup = Setup(env="DelayedKeyToDoor", env_params=words)
    return setup.build(method, SHARED, STATIC.get(method, {}) | settings)


def paths_of(method: str, name: str) -> str:
    """Where a method keeps the setting that the grid calls `name`."""
    return PATHS.get(name, f"credit.1.{name}" if method == "rudder" else f"credit.{name}")


def seeds(first: int, number: int) -> jax.Array:
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(2026), i))(jnp.arange(first, first + number))


def grid(methods: tuple[str, ...] = METHODS, episodes: int = 6400, num_seeds: int = 8) -> None:
    """Tune by the treasure fraction averaged over training: interquartile mean over seeds that are not judged later."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for method in methods:
        began = time.perf_counter()
        points = MONTE_CARLO_GRID if method == "montecarlo" else GRID
        values: dict[str | tuple[str, ...], list[float]] = {
            paths_of(method, name): x for name, x in points.items() if not (method == "montecarlo" and name == "lam")
        }
        agent = agent_of(method, {}, **TASK)
        frame = jc.sweep(
            agent, values, seeds(1000, num_seeds), num_iterations=episodes // agent.num_envs, summary="mean",
            batch_points=6, progress=lambda done, total, m=method: print(f"{m}: {done} of {total} points", flush=True),
        )  # fmt: skip
        best = pd.Series(frame.groupby(list(values))["treasure"].agg(iqm)).sort_values(ascending=False)
        table = best.reset_index()
        table.to_csv(RESULTS / f"grid_{method}.csv", index=False, float_format="%.4g")
        print(f"{method}: {time.perf_counter() - began:.0f} s\n{table.head(5).to_string(index=False)}", flush=True)
        write_winner(method, table.iloc[0].drop("treasure").to_dict())


def write_winner(method: str, winner: dict[str, float]) -> None:
    """Add a method's winning settings to settings.json, in the form that `jaxcredit compare --settings` reads."""
    file = RESULTS / "settings.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    fixed = {"hidden": SHARED["hidden"]} | STATIC.get(method, {})
    known[method] = fixed | {name: float(f"{value:.6g}") for name, value in winner.items()}
    file.write_text(json.dumps(known, indent=2) + "\n")


def winners(method: str) -> dict[str, Any]:
    return read_settings(RESULTS / "settings.json").get(method, {})


def headline(
    methods: tuple[str, ...] = METHODS,
    episodes: int = 20_000,
    num_seeds: int = 32,
    directory: Path = Path("runs/delayed_key_to_door"),
) -> None:
    """Valid episodes until 0.9 of the treasure, censored at `episodes`; each rival against RUDDER."""
    agents = {method: agent_of(method, winners(method), **TASK) for method in methods}
    result = compare(
        agents,
        seeds(0, num_seeds),
        episodes=episodes,
        measure="treasure",
        threshold=0.9,
        stop_early=True,
        directory=directory,
    )
    result.table.to_csv(RESULTS / "headline.csv", index=False, float_format="%.4g")
    for figure in ("curves.png", "credit.png"):
        shutil.copy(directory / figure, RESULTS / figure)
    print(result.table.to_string(index=False))


def map_(
    methods: tuple[str, ...] = METHODS,
    episodes: int = 12_800,
    num_seeds: int = 8,
    lengths: tuple[int, ...] = LENGTHS,
    costs: tuple[float, ...] = COSTS,
) -> None:
    """Episodes until 0.9 of the treasure for every length and cost, with the settings tuned on the main job."""
    for length in lengths:
        for cost in costs:
            agents = {m: agent_of(m, winners(m), length=length, event_cost=cost) for m in methods}
            table = compare(
                agents, seeds(0, num_seeds), episodes=episodes, measure="treasure", threshold=0.9, stop_early=True
            ).table.assign(length=length, cost=cost)
            write_cell(table)
            print(f"length {length}, cost {cost}\n{table.to_string(index=False)}", flush=True)
    draw_map()


def write_cell(table: pd.DataFrame) -> None:
    """Put one length and cost into map.csv, in the place of an earlier result for it."""
    file, cell = RESULTS / "map.csv", ["length", "cost"]
    if file.exists():
        known = pd.read_csv(file)
        others = (known[cell] != table[cell].iloc[0]).any(axis=1)
        table = pd.concat([pd.DataFrame(known[others]), table])
    table.sort_values(cell, kind="stable").to_csv(file, index=False, float_format="%.4g")


def draw_map() -> None:
    """How many times RUDDER's episodes its best rival needs.

    ">": more than a quarter of that rival's seeds never got there, so the number is a lower bound; "-": so it is with
    RUDDER, and there is nothing to compare.
    """
    known = pd.read_csv(RESULTS / "map.csv")
    cells = known.sort_values("episodes", kind="stable").assign(
        bound=mostly_censored(known["censored"], known["seeds"])
    )
    ours = cells["method"] == "rudder"
    best = [pd.DataFrame(cells[who]).groupby(["cost", "length"]).first().to_dict("list") for who in (~ours, ours)]
    bounds = [table["bound"] for table in best]
    ratio = np.where(bounds[1], np.nan, np.divide(best[0]["episodes"], best[1]["episodes"]))
    texts = [
        "-" if ours_bound else f"> {x:.3g}" if bound else f"{x:.3g}"
        for x, bound, ours_bound in zip(ratio, *bounds, strict=True)
    ]
    costs, lengths = (sorted(set(known[name])) for name in ("cost", "length"))
    shape = len(costs), len(lengths)
    heat_map(
        ratio.reshape(shape), lengths, costs, RESULTS / "map.png",
        xlabel="length of an episode (steps)", ylabel="cost of an event", label="best rival / RUDDER",
        title="Episodes until 0.9 of the treasures are found",
        texts=np.reshape(np.array(texts, object), shape).tolist(),
    )  # fmt: skip


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"grid": grid, "headline": headline, "map": map_})
