"""The credit map: every estimator there is, on one task whose depth, breadth and density are turned one at a time.

    python -m experiments.credit_map --quick     a tiny map, 12 seconds per estimator on 2 cores, in runs/credit_map
    python -m experiments.credit_map             the whole map, written to experiments/results/credit_map
    python -m experiments.credit_map --methods rd rrd     measures these anew; other rows of the same map stay

`CreditMaze` pays a decision `depth` steps later, with `breadth` irrelevant decisions between, with probability
`density`.  Every estimator of `jaxcredit list` but tvt trains PPO in every cell, many seeds at once; each has its
learning rate chosen by the same sweep on other seeds in the middle cell.  Its credit is also held against the exact one
(`fidelity`, uniform policy).  Written: map.png (fraction of the optimal return; 0.25 is chance), cells.csv (a row per
method and cell, with intervals), scores.csv (a row per method, from 0 to 1, higher is better), about.json (the plan,
and of every method the command, the versions and the seconds of one core).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
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
from jaxcredit.cli import ESTIMATORS, Setup, load_estimator, with_discount
from jaxcredit.evaluation.credit_plots import credit_map_picture
from jaxcredit.evaluation.statistics import bootstrap_interval
from jaxcredit.training.logging import print_table, provenance

MAPPED = tuple(name for name in ESTIMATORS if name != "tvt")  # which reads a memory; a table of probabilities has none
KNOBS = ("depth", "breadth", "density")
CHANCE = 0.25
# Compiling takes half as long at level 1, and the programs are no slower; at 0 it takes a fifth, and they are.
FLAGS = "--xla_backend_optimization_level=1"
FLAGS_QUICK = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
MEASURED = (
    "gradient.snr_db", "gradient.variance_db", "gradient.bias", "credit.bias", "credit.cosine", "decisive_share",
    "rank_correlation",
)  # fmt: skip


@dataclass(frozen=True)
class Map:
    """What is measured, and how thoroughly.

    Attributes:
      centre: depth, breadth, density of the middle cell.
      settings: of each knob, the others staying in the middle.
      noise: of the irrelevant decisions.
      learning_rates: among which each method chooses, in the middle cell.
      episodes: of training per seed; seeds: per cell and method.
      eval_episodes: fresh ones on which a seed is judged; 0 judges it on the last tenth of its training.
      fit_episodes, episodes_judged, repeats: of `fidelity`.
      one_program: train all depths in one program (padded to the deepest), else one program per depth.
    """

    centre: tuple[int, int, float]
    settings: dict[str, tuple[float, ...]]
    noise: float
    learning_rates: tuple[float, ...]
    episodes: int
    seeds: int
    eval_episodes: int
    fit_episodes: int
    episodes_judged: int
    repeats: int
    one_program: bool

    def cell(self, knob: str, value: float) -> dict[str, Any]:
        """The middle cell with one knob turned; a corridor that is too short is full of irrelevant decisions."""
        cell: dict[str, Any] = dict(zip(KNOBS, self.centre, strict=True)) | {knob: value}
        return cell | {"breadth": min(cell["breadth"], cell["depth"])}

    def cells(self) -> list[dict[str, Any]]:
        """Every cell once, in the order of the panels."""
        cells = [self.cell(knob, value) for knob, values in self.settings.items() for value in values]
        return [cell for i, cell in enumerate(cells) if cell not in cells[:i]]


FULL = Map(
    centre=(64, 8, 1.0),
    settings={
        "depth": (4, 8, 16, 32, 64, 128, 512),
        "breadth": (0, 2, 4, 8, 16, 32, 64),
        "density": (1.0, 0.5, 0.2, 0.1, 0.05, 0.02),
    },
    noise=2.0,
    learning_rates=(1e-3, 3e-3, 1e-2),
    episodes=960,
    seeds=8,
    eval_episodes=128,
    fit_episodes=480,
    episodes_judged=256,
    repeats=4,
    one_program=False,
)
QUICK = Map(
    centre=(12, 4, 1.0),
    settings={"depth": (4, 12, 20), "breadth": (0, 4, 12), "density": (1.0, 0.3)},
    noise=1.0,
    learning_rates=(1e-2,),
    episodes=160,
    seeds=2,
    eval_episodes=0,  # a third of what there is to compile
    fit_episodes=64,
    episodes_judged=64,
    repeats=2,
    one_program=True,
)


def agent_of(method: str, depth: int, noise: float) -> jc.OnPolicyAgent:
    """PPO with a method's credit, undiscounted, on a maze of at most this depth."""
    fields = {"num_envs": 16, "minibatches": 1, "episodic": True, "hidden": (32, 32), "entropy_coefficient": 0.01}
    agent = Setup(env="CreditMaze", env_params=(f"max_depth={depth}", f"depth={depth}", f"noise={noise}")).build(
        method, fields
    )
    return agent.replace(credit=with_discount(agent.credit, 1.0))


def keys(first: int, number: int) -> jax.Array:
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(64), i))(jnp.arange(first, first + number))


def trained(method: str, cells: list[dict[str, Any]], plan: Map, rate: float) -> pd.DataFrame:
    """What was learned as a fraction of the optimal return, a row per cell and seed."""
    deepest = max(cell["depth"] for cell in cells)
    groups = [cells] if plan.one_program else [[c for c in cells if c["depth"] == d] for d in _depths(cells)]
    frames = []
    for group in groups:
        depth = int(deepest if plan.one_program else group[0]["depth"])
        agent = agent_of(method, depth, plan.noise).replace(learning_rate=rate)
        values: dict[str | tuple[str, ...], list[float]] = {
            f"env_params.{knob}": [cell[knob] for cell in group] for knob in KNOBS
        }
        frame = jc.sweep(
            agent, values, keys(0, plan.seeds), mode="zip", num_iterations=plan.episodes // agent.num_envs,
            eval_episodes=plan.eval_episodes,
        )  # fmt: skip
        frame = frame.assign(learned=frame["eval.treasure" if plan.eval_episodes else "treasure"])
        frames.append(frame.rename(columns=lambda name: name.removeprefix("env_params.")))
    return pd.concat(frames)


def _depths(cells: list[dict[str, Any]]) -> list[int]:
    return sorted({int(cell["depth"]) for cell in cells})


def chosen_rate(method: str, plan: Map) -> float:
    """The learning rate with the most treasure over training in the middle cell, on seeds that are not judged."""
    if len(plan.learning_rates) == 1:
        return plan.learning_rates[0]
    depth, breadth, _ = plan.centre
    agent = agent_of(method, depth, plan.noise)
    agent = jc.replace_at(agent, "env_params.breadth", jnp.asarray(breadth, jnp.int32))
    frame = jc.sweep(
        agent, {"learning_rate": list(plan.learning_rates)}, keys(1_000, plan.seeds), summary="mean",
        num_iterations=plan.episodes // agent.num_envs,
    )  # fmt: skip
    return max(
        plan.learning_rates, key=lambda rate: np.mean(frame.loc[np.isclose(frame["learning_rate"], rate), "treasure"])
    )


def judged(method: str, cell: dict[str, Any], plan: Map) -> dict[str, float]:
    """Fidelity of a method's credit in a cell, under the uniform policy."""
    depth = int(max(plan.settings["depth"]) if plan.one_program else cell["depth"])
    env, params = envs.make("CreditMaze", max_depth=depth, noise=plan.noise, **cell)
    estimator = jc.as_arrays(with_discount(load_estimator(method), 1.0))
    result = jc.fidelity(
        estimator, env, params, episodes=plan.episodes_judged, fit_episodes=plan.fit_episodes,
        keys=keys(2_000, plan.repeats),
    )  # fmt: skip
    return {
        name + end: getattr(result.measures[name], part)
        for name in MEASURED
        for end, part in (("", "estimate"), (".low", "low"), (".high", "high"))
    }


def scores(table: pd.DataFrame, plan: Map) -> pd.DataFrame:
    """A row per method, from 0 to 1: what was learned along each knob beyond chance, and how good the credit is.

    `aligned` is the cosine of credit and exact advantage over all steps, `placed` the share of credit on the decisive
    step, `ordered` the rank correlation of credit and exact advantage; means over the cells, nothing below 0, and 0
    for a method without any credit.
    """
    rows = []
    for method, frame in table.groupby("method", sort=False):
        row: dict[str, Any] = {"method": method}
        for knob in KNOBS:
            learned = (panel(frame, knob, plan) - CHANCE) / (1 - CHANCE)
            row[knob] = float(np.clip(learned, 0, 1).mean())
        for name, measure in (
            ("aligned", "credit.cosine"), ("placed", "decisive_share"), ("ordered", "rank_correlation")
        ):  # fmt: skip
            row[name] = float(np.clip(np.nan_to_num(frame[measure]), 0, 1).mean())
        rows.append(row)
    return pd.DataFrame(rows)


def panel(frame: pd.DataFrame, knob: str, plan: Map) -> np.ndarray:
    """Fraction of the optimal return of one method over the settings of a knob."""
    values = []
    for setting in plan.settings[knob]:
        here = np.all([np.isclose(frame[k], v) for k, v in plan.cell(knob, setting).items()], axis=0)
        values.append(frame.loc[here, "treasure"].iloc[0])
    return np.array(values)


def main(quick: bool = False, methods: tuple[str, ...] = MAPPED, directory: Path | None = None) -> None:
    """Measure the map.

    Args:
      quick: a small map in minutes.
      methods: estimators to measure; by default all of `jaxcredit list` that work without a memory.
      directory: where to write.
    Raises:
      ValueError: a method that is not on the map.
    """
    if unknown := [name for name in methods if name not in MAPPED]:
        raise ValueError(f"methods={unknown} are not on the map; choose from {', '.join(MAPPED)}.")
    plan = QUICK if quick else FULL
    directory = directory or Path("runs/credit_map" if quick else "experiments/results/credit_map")
    directory.mkdir(parents=True, exist_ok=True)
    rows, about = earlier(directory, methods, plan)
    began, run = time.perf_counter(), provenance()
    with two_processes(FLAGS_QUICK if quick else FLAGS) as pool:
        for i, (measured, how) in enumerate(pool.map(partial(measure, plan=plan), methods)):
            rows += measured
            about[methods[i]] = run | how
            passed = time.perf_counter() - began
            left = passed / (i + 1) * (len(methods) - i - 1)
            print(
                f"{methods[i]}: {i + 1} of {len(methods)} methods after {passed:.0f} s, about {left:.0f} s left",
                flush=True,
            )
            write(in_order(rows), plan, directory, about)
    draw(in_order(rows), plan, directory)


def two_processes(flags: str) -> ProcessPoolExecutor:
    """Two methods at a time: compiling keeps one core busy.  The flags reach jax only in a process yet to start."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()  # jax takes " " for a file's name
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or the first would take the accelerator's memory
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))


def earlier(directory: Path, methods: tuple[str, ...], plan: Map) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of other methods that the directory holds of the same map, and how each of them was measured."""
    if not (directory / "about.json").exists():
        return [], {}
    about = json.loads((directory / "about.json").read_text())
    if about["plan"] != described(plan):
        raise ValueError(f"{directory} holds a map of another plan; give another --directory, or remove it first.")
    known = pd.read_csv(directory / "cells.csv")
    kept: Any = known[[name not in methods for name in known["method"]]]
    return kept.to_dict("records"), {name: how for name, how in about["methods"].items() if name not in methods}


def described(plan: Map) -> Any:
    """A plan as JSON gives it back."""
    return json.loads(json.dumps(asdict(plan)))


def in_order(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """The rows in the order of `jaxcredit list`."""
    return pd.DataFrame(sorted(rows, key=lambda row: list(ESTIMATORS).index(row["method"])))


def measure(method: str, plan: Map) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """What a method learned, and how good its credit is, in every cell; and what that took."""
    began = time.process_time()
    cells, rate = plan.cells(), chosen_rate(method, plan)
    frame, rows = trained(method, cells, plan, rate), []
    for cell in cells:
        here = np.all([np.isclose(frame[knob], cell[knob]) for knob in KNOBS], axis=0)
        learned = bootstrap_interval(frame.loc[here, "learned"])
        rows.append(
            {"method": method, **cell, "learning_rate": rate, "treasure": learned.estimate,
             "treasure.low": learned.low, "treasure.high": learned.high, **judged(method, cell, plan)}
        )  # fmt: skip
    return rows, {"core_seconds": round(time.process_time() - began)}


def write(table: pd.DataFrame, plan: Map, directory: Path, about: dict[str, Any]) -> None:
    """Tables of the methods measured so far."""
    table.to_csv(directory / "cells.csv", index=False, float_format="%.4g")
    scored = scores(table, plan)
    scored.to_csv(directory / "scores.csv", index=False, float_format="%.3g")
    whole = {"plan": described(plan), "methods": {name: about[name] for name in table["method"].unique()}}
    (directory / "about.json").write_text(json.dumps(whole, indent=2) + "\n")
    columns = [name for name in scored.columns if name != "method"]
    cells = [(row["method"], *(f"{row[name]:.2f}" for name in columns)) for row in scored.to_dict("records")]
    print_table("Scores from 0 to 1", cells, ["method", *columns])


def draw(table: pd.DataFrame, plan: Map, directory: Path) -> None:
    """The figure: a row per method, a panel per knob."""
    panels = {
        knob: (settings, np.stack([panel(frame, knob, plan) for _, frame in table.groupby("method", sort=False)]))
        for knob, settings in plan.settings.items()
    }
    credit_map_picture(
        panels, list(table["method"].unique()), directory / "map.png", low=CHANCE,
        label="fraction of the optimal return",
        title=f"Who learns the decision that counts?  PPO after {plan.episodes:,} episodes, {plan.seeds} seeds",
    )  # fmt: skip


if __name__ == "__main__":
    tyro.cli(main)
