"""RUDDER's artificial tasks: episodes until a table policy reaches 90 % of the optimum, against the delay.

    python -m experiments.rudder_tasks                        all tasks, both tables, 100 seeds (hours)
    python -m experiments.rudder_tasks --tasks GridBomb --tables published
    python -m experiments.rudder_tasks --quick                a minute, written to runs/rudder_tasks

Methods: RUDDER with direct Q estimation, RUDDER's reward into Q(lambda), Q(lambda), SARSA(lambda), Monte Carlo, and
shaping by a potential from the redistribution (reward shaping, look-ahead, look-back).  Two tables for each task:

`TASK_published.csv`  the published settings (epsilon .2, lambda .9) beside the published medians, with ours / theirs;
`TASK_tuned.csv`      every method with the best settings of one grid, chosen on other seeds at one delay.

Each has a row per method and delay: the median over seeds, its 95 % bootstrap interval, the 40 % and 60 % quantiles
(the published band), and how many seeds were not done after `cap` episodes; they enter with the cap, so a median at the
cap is a lower bound.  `TASK.png` draws both; `TASK_settings.json` holds what the grid chose.

A seed is done at the first episode from which on the greedy policy, evaluated exactly, keeps at least 90 % of the
optimum for 100 episodes.  WatchRepair counts as its demonstration code does: the greedy choice is right, averaged over
brands, in at least 95 % of 750 consecutive episodes, which are counted as well.  For Choice, a task of our own whose
numbers cannot be held against the published ones, the greedy choice has to be right.  Of equal values the greedy policy
takes the first action.

Reference: Arjona-Medina et al. (2019), "RUDDER: Return Decomposition for Delayed Rewards", arXiv:1806.07857;
medians from the authors' poster.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro

import envs
import jaxcredit as jc
from envs.grid import RIGHT, UP
from jaxcredit.evaluation.plots import COLOURS, LINE_STYLES, short, styled_figure
from jaxcredit.evaluation.statistics import bootstrap_interval
from jaxcredit.training.logging import provenance
from jaxcredit.training.programs import seed_axes

RESULTS = Path("experiments/results/rudder_tasks")
Choose = Callable[[Any], jax.Array]

LEVEL, HOLD = 0.9, 100  # share of the optimum, and episodes for which it is kept
WATCH_LEVEL, WATCH_WINDOW = 0.95, 750

# The methods ---------------------------------------------------------------------------------------------------------

METHODS: dict[str, dict[str, Any]] = {
    "RUDDER": {"learner": "direct", "redistributes": True},
    "RUDDER Q(λ)": {"learner": "q", "redistributes": True},
    "Q(λ)": {"learner": "q"},
    "SARSA(λ)": {"learner": "sarsa"},
    "Monte Carlo": {"learner": "monte_carlo"},
    "reward shaping": {"learner": "q", "shaping": "reward", "redistributes": True},
    "look-ahead": {"learner": "q", "shaping": "look_ahead", "redistributes": True},
    "look-back": {"learner": "sarsa", "shaping": "look_back", "redistributes": True},
}

# The paper gives epsilon and lambda.  Assumption: tables that start at 0, and the learning rate: of .1, .05 the one
# with which Q(lambda) and SARSA(lambda) come close to their published medians of TraceBack at 6 moves.
PUBLISHED_SETTINGS = {"epsilon": 0.2, "lam": 0.9, "learning_rate": 0.05, "initial_value": 0.0, "warm_up": 0.0}


# The tasks -----------------------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """A task at one delay.

    Attributes:
      env, params: the environment.
      observe: what the return predictor sees of a state: every visible field one-hot.
      solved: share of what is to be learned that a greedy policy (state -> action) has, exactly.
      index, num_states: rows of the table, where they are not the environment's states.
      best: a value that no return exceeds, for tables that start with optimism.
    """

    env: Any
    params: Any
    observe: Callable[[Any], jax.Array]
    solved: Callable[[Choose], jax.Array]
    best: float
    index: Callable[[Any], jax.Array] | None = None
    num_states: int | None = None


@dataclasses.dataclass(frozen=True)
class Task:
    """A task over its delays.

    Attributes:
      problem: delay -> the task.
      delays: published ones; tuned_at: the delay at which methods are tuned.
      published: method -> medians by delay.
      rudder: settings of the return predictor.
      settings: what the published settings of this task have otherwise; own: and those of a method on it.
      window, share: episodes over which the greedy policy must be right, and in which share of them.
      counts_window: the episodes of the window count.
      num_envs: episodes per update of the policy (Assumption: five, one on GridBomb); epsilons: among which the tuned
        methods choose.
    """

    problem: Callable[[int], Problem]
    delays: tuple[int, ...]
    tuned_at: int
    published: dict[str, dict[int, float]]
    xlabel: str
    rudder: dict[str, Any]
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    own: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    window: int = HOLD
    share: float = 1.0
    counts_window: bool = False
    num_envs: int = 5
    epsilons: tuple[float, ...] = (0.2,)


def one_hot(**sizes: int) -> Callable[[Any], jax.Array]:
    """Features of a state: the named fields, each one-hot."""
    return lambda state: jnp.concatenate([jax.nn.one_hot(getattr(state, name), size) for name, size in sizes.items()])


def rolled_out(env: Any, params: Any, choose: Choose, noise: Any) -> jax.Array:
    """Return of a deterministic policy where chance, set to its mean, moves nothing and pays linearly."""

    def step(carry: tuple[Any, jax.Array], _: None) -> tuple[tuple[Any, jax.Array], jax.Array]:
        state, alive = carry
        state, reward, terminated, _ = env.transition(state, choose(state), noise, params)
        return (state, alive & ~terminated), jnp.where(alive, reward, 0)

    first = jax.tree.map(lambda x: x[0], env.initial(params)[0])
    return jax.lax.scan(step, (first, jnp.ones((), bool)), length=env.horizon)[1].sum()


def trace_back(delay: int) -> Problem:
    env: Any
    env, params = envs.make("TraceBack", max_length=delay)

    def solved(choose: Choose) -> jax.Array:
        first = jax.tree.map(lambda x: x[0], env.initial(params)[0])
        second = env.transition(first, jnp.asarray(UP), jnp.asarray(0), params)[0]
        begins = (choose(first) == UP) & (choose(second) == RIGHT)
        best, other = params.final_reward - params.immediate_reward, params.immediate_reward
        return jnp.where(begins, 1.0, other / best) >= LEVEL

    return Problem(env, params, one_hot(time=delay, row=15, column=15), solved, best=150.0)


def choice(delay: int) -> Problem:
    env: Any
    env, params = envs.make("Choice", max_length=delay)

    def solved(choose: Choose) -> jax.Array:
        return choose(jax.tree.map(lambda x: x[0], env.initial(params)[0])) == 0

    # the account is not shown, and no policy needs it
    index = lambda state: (jnp.minimum(state.time, delay - 1) * 2 + state.subtree) * 2 + state.paying  # noqa: E731
    observe = one_hot(subtree=2, paying=2)
    shown = lambda state: jnp.append(observe(state), state.time == 0)  # noqa: E731
    return Problem(env, params, shown, solved, best=float(delay), index=index, num_states=4 * delay)


def grid_bomb_optimum(distance: int) -> float:
    """Straight to the bomb, then away from it, with the Hamming distance."""
    steps = 3 * distance // 2
    return 500 - 0.045 * distance * (distance - 1) + 0.1 * (steps * (steps + 1) - (distance + 1) ** 2)


def grid_bomb(delay: int) -> Problem:
    env: Any
    env, params = envs.make("GridBomb", max_distance=delay, metric="hamming")

    def solved(choose: Choose) -> jax.Array:
        value = rolled_out(env, params, choose, jnp.asarray(params.bomb_probability))
        return value >= LEVEL * grid_bomb_optimum(delay)

    # who knows the cell and whether the bomb was visited needs no clock to find it
    index = lambda state: (state.row * 31 + state.column) * 2 + state.visited  # noqa: E731
    observe = one_hot(time=env.horizon, row=31, column=31, visited=2)
    return Problem(env, params, observe, solved, best=1_000.0, index=index, num_states=2 * 31 * 31)


def charge_discharge_optimum(length: int) -> float:
    """Charge, discharge, ...; an odd step is left for a 1."""
    return 10 * (length // 2) + length % 2


def charge_discharge(delay: int) -> Problem:
    env: Any
    env, params = envs.make("ChargeDischarge", max_length=delay)

    def solved(choose: Choose) -> jax.Array:
        return rolled_out(env, params, choose, jnp.zeros(())) >= LEVEL * charge_discharge_optimum(delay)

    return Problem(env, params, one_hot(time=delay, charged=2), solved, best=10.0 * delay)


def watch_repair(delay: int) -> Problem:
    env: Any
    env, params = envs.make("WatchRepair", max_length=delay)
    right = jnp.argmax(env.action_values(params), axis=1)

    def solved(choose: Choose) -> jax.Array:
        start = env.reset_env(jax.random.key(0), params)[1]
        return jnp.mean(jax.vmap(lambda brand: choose(start.replace(brand=brand)))(jnp.arange(4)) == right)

    index = lambda state: jnp.minimum(state.time, delay - 1) * 4 + state.brand  # noqa: E731
    return Problem(env, params, partial(env.get_obs, params=params), solved, 10.0, index, 4 * delay)


SMALL = {
    "hidden": 8,
    "fits": 10,
    "fit_batch": 16,
    "capacity": 512,
    "residual": "end",
    "continuous_weight": 0.5,
    "min_quality": -2.0,
}

GRID_BOMB_PUBLISHED: dict[int, float] = {2: 33, 3: 95, 4: 162, 5: 280, 6: 450, 8: 1044, 9: 1372, 10: 1755}

TASKS: dict[str, Task] = {
    "TraceBack": Task(
        trace_back,
        (6, 8, 10, 12, 15, 17, 20, 22, 25),
        tuned_at=10,
        published={
            "RUDDER": {6: 838, 8: 844, 10: 847, 12: 840, 15: 1140, 17: 748, 20: 699, 22: 698, 25: 628},
            "RUDDER Q(λ)": {6: 600, 8: 662, 10: 848, 12: 1045, 15: 773, 17: 1008, 20: 948, 22: 1066, 25: 1062},
            "Q(λ)": {6: 14662, 8: 28294, 10: 42858, 12: 67489, 15: 107119, 17: 134965, 20: 184696, 22: 229065},
            "SARSA(λ)": {
                6: 8818,
                8: 23734,
                10: 47568,
                12: 78539,
                15: 137736,
                17: 186433,
                20: 271015,
                22: 339550,
                25: 455117,
            },
            "reward shaping": {6: 11440, 25: 273620},
            "look-ahead": {6: 12512, 25: 286515},
            "look-back": {6: 3922, 15: 19610, 25: 39345},
        },
        xlabel="moves of an episode",
        rudder=SMALL,
    ),
    "Choice": Task(
        choice,
        (10, 15, 20, 25, 30, 35, 40, 45, 50, 100, 500),
        tuned_at=30,
        published={},  # the reference's task is not known: ours has its structure, not its numbers
        xlabel="depth of the tree",
        # differences of states, lest every later node explain the first choice away; chosen on other seeds
        rudder=SMALL | {"inputs": "difference", "learning_rate": 0.01},
    ),
    "GridBomb": Task(
        grid_bomb,
        (2, 3, 4, 5, 6, 8, 9, 10),
        tuned_at=6,
        published={
            "RUDDER": GRID_BOMB_PUBLISHED,
            "RUDDER Q(λ)": GRID_BOMB_PUBLISHED,  # the publication does not say which of its learners it was
            "Q(λ)": {2: 1400, 3: 18527, 4: 215290, 5: 4.89e6, 6: 5.55e7},
            "Monte Carlo": {2: 760, 3: 6985, 4: 103587, 5: 832662, 6: 1.03e7},
        },
        xlabel="distance of the bomb (rows)",
        rudder=SMALL | {"fits": 6},
        own={
            "RUDDER": {"warm_up": 3_000.0},  # nothing but chance leads this learner, whose table looks one step ahead
            # Assumption: RUDDER looks for the bomb cell by cell, since its published medians grow with the area, not
            # exponentially as a random search does.  A table above every return, followed greedily, does so.
            "RUDDER Q(λ)": {"initial_value": 1_000.0, "average": True, "epsilon": 0.01},
        },
        num_envs=1,
        epsilons=(0.2, 0.01),
    ),
    "ChargeDischarge": Task(
        charge_discharge,
        (3, 5, 7, 9, 11, 13),
        tuned_at=9,
        published={},
        xlabel="steps of an episode",
        rudder=SMALL,
    ),
    "WatchRepair": Task(
        watch_repair,
        (50,),
        tuned_at=50,
        published={"RUDDER": {50: 2850}, "Q(λ)": {50: 71850}, "Monte Carlo": {50: 27700}},
        xlabel="steps of an episode",
        rudder=SMALL | {"inputs": "difference", "learning_rate": 0.01, "fit_batch": 32, "capacity": 4096},
        settings={"epsilon": 0.1, "initial_value": 10.0, "learning_rate": 0.1},  # those of the demonstration code
        # redistributed rewards lie around 0
        own={"RUDDER": {"initial_value": 0.0}, "RUDDER Q(λ)": {"initial_value": 0.0}},
        window=WATCH_WINDOW,
        share=WATCH_LEVEL,
        counts_window=True,
    ),
}

# Tuning: the same points for every method, on seeds that are not judged later.  With `average`, steps of 1 / visits
# come before those of the learning rate, so that a rate of 0 is a mean.
LEARNING_RATES, WARM_UPS = (0.0, 0.03, 0.1, 0.3, 1.0), (0.0, 200.0)
TUNING_SEEDS = 8


# Measuring -----------------------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """Episodes `[lanes]` until each run was done (infinite: never), and how many were played at most."""

    episodes: np.ndarray
    cap: int


class Budget(NamedTuple):
    """What a cell may cost: episodes per run, and seconds for all of them (checked between chunks)."""

    episodes: int
    seconds: float


def agent_of(task: Task, problem: Problem, method: str, settings: dict[str, Any]) -> jc.TabularAgent:
    """The agent of a method; `settings` are fields of `TabularAgent`."""
    fields = dict(METHODS[method])
    credit = jc.RUDDER(**task.rudder) if fields.pop("redistributes", False) else None
    return jc.TabularAgent(
        env=problem.env, env_params=problem.params, credit=credit, index=problem.index, num_states=problem.num_states,
        observe=problem.observe, num_envs=task.num_envs, **(fields | settings),
    )  # fmt: skip


def published_settings(task: Task, method: str) -> dict[str, Any]:
    return PUBLISHED_SETTINGS | task.settings | task.own.get(method, {})


def seeds(first: int, number: int) -> jax.Array:
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(1806), i))(jnp.arange(first, first + number))


def measure(
    task: Task, problem: Problem, agent: jc.TabularAgent, keys: jax.Array, budget: Budget, *,
    points: Mapping[str, Sequence[float]] | None = None, chunk: int = 40,
) -> Measured:  # fmt: skip
    """Train all lanes side by side until every one is done, or the budget is.

    Args:
      task, problem: what to solve.
      agent: how.
      keys: one per lane.
      budget: when to give up.
      points: path -> value of every lane, for fields in which the lanes differ.
      chunk: iterations per compiled call.
    """
    agent = jc.as_arrays(agent)
    lanes = {path: jnp.asarray(values, jnp.float32) for path, values in (points or {}).items()}

    def configured(agent: jc.TabularAgent, lane: dict[str, jax.Array]) -> jc.TabularAgent:
        for path, value in lane.items():
            agent = jc.replace_at(agent, path, value)
        return agent

    def start(agent: jc.TabularAgent, lane: dict[str, jax.Array], key: jax.Array) -> jc.TrainState:
        return configured(agent, lane).init(key)

    def train(agent: jc.TabularAgent, lane: dict[str, jax.Array], state: jc.TrainState) -> Any:
        agent = configured(agent, lane)

        def iteration(state: jc.TrainState, _: None) -> tuple[jc.TrainState, jax.Array]:
            state = agent.step(state)[0]
            return state, jnp.asarray(problem.solved(partial(agent.greedy_action, state.params)), jnp.float32)

        return jax.lax.scan(iteration, state, length=chunk)

    axes = seed_axes(lambda key: train(agent, {}, agent.init(key))[0], keys)
    state = jax.jit(jax.vmap(start, (None, 0, 0), axes))(agent, lanes, keys)
    advance = jax.jit(jax.vmap(train, (None, 0, axes), (axes, 0)), donate_argnums=2)

    per_step = agent.num_envs
    window = -(-task.window // per_step)
    done, tail, played = np.full(len(keys), math.inf), np.zeros((len(keys), 0)), 0
    began = math.inf  # the first chunk is compiled, which costs no one's time
    while played < budget.episodes and np.isinf(done).any() and time.perf_counter() - began < budget.seconds:
        state, solved = advance(agent, lanes, state)
        seen = np.concatenate([tail, np.asarray(solved, float)], axis=1)
        # a window's mean stands at its last step; `first` is the number of the first step that is seen
        first, tail = played // per_step - tail.shape[1], seen[:, max(0, seen.shape[1] - window + 1) :]
        played += chunk * per_step
        began = min(began, time.perf_counter())
        if seen.shape[1] >= window:
            total = np.cumsum(np.pad(seen, ((0, 0), (1, 0))), axis=1)
            reached = (total[:, window:] - total[:, :-window]) / window >= task.share - 1e-6
            step = first + reached.argmax(axis=1) + (window if task.counts_window else 1)
            done = np.where(np.isinf(done) & reached.any(axis=1), step * per_step, done)
    return Measured(done, played)


def tuned_settings(task: Task, method: str, budget: Budget, number: int = TUNING_SEEDS) -> dict[str, Any]:
    """The point of the grid with the smallest median at one delay; with equal ones, with the smallest mean."""
    problem = task.problem(task.tuned_at)
    grid = [
        {"learning_rate": rate, "initial_value": start, "warm_up": warm_up, "epsilon": epsilon}
        for rate in LEARNING_RATES for start in (0.0, problem.best) for warm_up in WARM_UPS for epsilon in task.epsilons
    ]  # fmt: skip
    fixed = {"lam": PUBLISHED_SETTINGS["lam"], "average": True}
    lanes = {name: [point[name] for point in grid for _ in range(number)] for name in grid[0]}
    keys = jnp.tile(seeds(1_000, number), len(grid))
    measured = measure(task, problem, agent_of(task, problem, method, fixed), keys, budget, points=lanes)
    episodes = np.minimum(measured.episodes, measured.cap).reshape(len(grid), number)
    best = min(range(len(grid)), key=lambda i: (np.median(episodes[i]), episodes[i].mean()))
    return fixed | grid[best] | {"median": float(np.median(episodes[best])), "cap": measured.cap}


def row_of(method: str, delay: int, measured: Measured, seconds: float, published: float | None) -> dict[str, Any]:
    """One line of a table; runs that were never done enter with the cap."""
    episodes = np.minimum(measured.episodes, measured.cap)
    middle = bootstrap_interval(episodes, np.median)
    row = {
        "method": method, "delay": delay, "episodes": middle.estimate, "low": middle.low, "high": middle.high,
        "q40": np.quantile(episodes, 0.4), "q60": np.quantile(episodes, 0.6), "seeds": len(episodes),
        "never": int(np.isinf(measured.episodes).sum()), "cap": measured.cap,
        "bound": ">" if np.isinf(np.median(measured.episodes)) else "", "seconds": round(seconds),
    }  # fmt: skip
    return row if published is None else row | {"published": published, "ratio": middle.estimate / published}


# Tables and pictures -------------------------------------------------------------------------------------------------


def write_row(file: Path, row: dict[str, Any], order: Sequence[str]) -> None:
    """Put one method and delay into a table, in the place of an earlier result for it."""
    table = pd.DataFrame([row])
    if file.exists():
        known = read_table(file)
        others = (known["method"] != row["method"]) | (known["delay"] != row["delay"])
        table = pd.concat([pd.DataFrame(known[others]), table])
    rank = [order.index(name) for name in table["method"]]
    table = table.assign(rank=rank).sort_values(["rank", "delay"]).drop(columns="rank")
    table.to_csv(file, index=False, float_format="%.5g")


def read_table(file: Path) -> pd.DataFrame:
    return pd.read_csv(file, converters={"bound": str})


def draw(name: str, task: Task, directory: Path) -> None:
    """Episodes against delay, a panel per table; hollow triangles are lower bounds, crosses published medians."""
    tables = {which: directory / f"{name}_{which}.csv" for which in ("published", "tuned")}
    tables = {which: read_table(file) for which, file in tables.items() if file.exists()}
    if not tables:
        return
    crosses = " (crosses: published medians)" if task.published else ""
    titles = {"published": f"Published settings{crosses}", "tuned": "Every method tuned on one grid"}
    with styled_figure(directory / f"{name}.png", f"{name}: episodes until solved", width=10.5, height=4.6) as figure:
        panels = figure.subplots(1, len(tables), sharey=True, squeeze=False)[0]
        lines = {}
        for axes, (which, table) in zip(panels, tables.items(), strict=True):
            for i, method in enumerate(METHODS):
                rows = table[table["method"] == method]
                known = task.published.get(method, {}) if which == "published" else {}
                if rows.empty and not known:
                    continue
                colour, style = COLOURS[i % len(COLOURS)], LINE_STYLES[i // len(COLOURS) % len(LINE_STYLES)]
                axes.fill_between(rows["delay"], rows["q40"], rows["q60"], color=colour, alpha=0.18, linewidth=0)
                (lines[method],) = axes.plot(
                    rows["delay"], rows["episodes"], color=colour, linestyle=style, linewidth=2
                )
                solved, bounds = rows[rows["bound"] != ">"], rows[rows["bound"] == ">"]
                axes.plot(solved["delay"], solved["episodes"], "o", color=colour, markersize=4)
                axes.plot(bounds["delay"], bounds["episodes"], "^", color=colour, markersize=7, fillstyle="none")
                axes.plot(list(known), list(known.values()), "x:", color=colour, linewidth=0.8)
            axes.set_yscale("log")
            axes.set(xlabel=task.xlabel, title=titles[which])
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.yaxis.set_major_formatter(lambda x, _: short(x))
            if len(task.delays) > 5 and task.delays[-1] > 10 * task.delays[0]:
                axes.set_xscale("log")
        panels[0].set_ylabel("episodes (median; band: 40 to 60 %)")
        figure.legend(lines.values(), lines.keys(), loc="outside right upper")


def show(row: dict[str, Any]) -> str:
    interval = f"{row['bound']}{row['episodes']:,.0f} [{row['low']:,.0f}, {row['high']:,.0f}]"
    ratio = f", published {row['published']:,.0f}, ratio {row['bound']}{row['ratio']:.2g}" if "ratio" in row else ""
    return f"{row['method']} at {row['delay']}: {interval}, {row['never']} of {row['seeds']} never{ratio}"


def main(
    tasks: tuple[str, ...] = tuple(TASKS),
    tables: tuple[str, ...] = ("published", "tuned"),
    methods: tuple[str, ...] = tuple(METHODS),
    delays: tuple[int, ...] = (),
    num_seeds: int = 100,
    cap: int = 500_000,
    seconds: float = 120.0,
    quick: bool = False,
    directory: Path | None = None,
) -> None:
    """Measure, and write tables and figures; what is measured again replaces what was there.

    Args:
      tasks: which of the tasks.
      tables: "published", "tuned" or both.
      methods: which of the methods.
      delays: instead of the published ones.
      num_seeds: runs per method and delay, side by side.
      cap: episodes per run.
      seconds: most that one method and delay may take; the episodes played by then are the cap of that cell.
      quick: one short delay, few seeds and episodes.
      directory: where to write.
    """
    directory = directory or (Path("runs/rudder_tasks") if quick else RESULTS)
    directory.mkdir(parents=True, exist_ok=True)
    budget = Budget(400, 30.0) if quick else Budget(cap, seconds)
    num_seeds = 4 if quick else num_seeds
    cells = [
        (name, which, method, delay)
        for name in tasks for which in tables for method in methods
        for delay in (delays or TASKS[name].delays)[: 1 if quick else None]
    ]  # fmt: skip
    about = {
        "tasks": tasks, "tables": tables, "methods": methods, "seeds": num_seeds, "budget": budget._asdict(),
        **provenance(),
    }  # fmt: skip
    began = time.perf_counter()
    for i, (name, which, method, delay) in enumerate(cells):
        task, started = TASKS[name], time.perf_counter()
        problem = task.problem(delay)
        if which == "published":
            settings = published_settings(task, method)
        else:
            settings = stored_settings(directory / f"{name}_settings.json", task, method, budget, quick)
        agent = agent_of(task, problem, method, settings)
        measured = measure(task, problem, agent, seeds(0, num_seeds), budget)
        published = task.published.get(method, {}).get(delay) if which == "published" else None
        row = row_of(method, delay, measured, time.perf_counter() - started, published)
        write_row(directory / f"{name}_{which}.csv", row, tuple(METHODS))
        passed = time.perf_counter() - began
        write_about(directory / "about.json", about | {"cells": i + 1, "seconds": round(passed)})
        left = passed / (i + 1) * (len(cells) - i - 1)
        print(f"{name}, {which}: {show(row)} ({i + 1} of {len(cells)}, about {left:.0f} s left)", flush=True)
        if i + 1 == len(cells) or cells[i + 1][0] != name:
            draw(name, task, directory)


def write_about(file: Path, about: dict[str, Any]) -> None:
    """Put a command into about.json, in the place of what it wrote there before."""
    known = json.loads(file.read_text()) if file.exists() else []
    others = [x for x in known if (x.get("started"), x["command"]) != (about["started"], about["command"])]
    file.write_text(json.dumps([*others, about], indent=2) + "\n")


def stored_settings(file: Path, task: Task, method: str, budget: Budget, quick: bool) -> dict[str, Any]:
    """What the grid chose for a method, searched once."""
    known = json.loads(file.read_text()) if file.exists() else {}
    if method not in known:
        known[method] = tuned_settings(task, method, budget, 2 if quick else TUNING_SEEDS)
        file.write_text(json.dumps(known, indent=2, ensure_ascii=False) + "\n")
    return {name: value for name, value in known[method].items() if name not in ("median", "cap")}


if __name__ == "__main__":
    tyro.cli(main)
