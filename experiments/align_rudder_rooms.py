"""Align-RUDDER on its rooms: episodes to 80 % of the demonstrations' return, by the number of demonstrations.

    python -m experiments.align_rudder_rooms run            all methods and tasks, 50 seeds
    python -m experiments.align_rudder_rooms run --quick    a small run in minutes, written to runs/align_rudder_rooms
    python -m experiments.align_rudder_rooms sweep          the step size of every method, by one grid, on other seeds

Results land in experiments/results/align_rudder_rooms.  FourRoomsDelayed and EightRoomsDelayed, as released (a fifth of
the first rooms are traps) and mended.  All methods learn a table of action values over cells, started by cloning the
demonstrations, explore with probability 0.2, and stop as in the public code: every 10 episodes, once 40 evaluation
episodes with a tenth of the actions random have a mean of at least 0.8 of the demonstrations' mean return.  That is a
lucky rule: the mean of 40 episodes has a deviation of 0.13 where there are traps.  `exact` is therefore the true mean
return, by dynamic programming, of what was learned when it stopped.

    align        alignment with the demonstrations' profile, then Q <- (1 - a) Q + a (rewards of the next 20 steps);
                 what the profile does not explain of the return is spread over the episode
    align_end    the same, that part in the last step, as in the paper (the public code pays none of it)
                 The choice between the two was made on the first 16 of the seeds shown, in EightRoomsDelayed.
    return       as align, with the original reward, and all steps that are left: Monte Carlo
    q            one-step Q-learning on the original reward (published as BC+Q, with a step size of 0.01)

Reference: Patil et al. (2022), arXiv:2009.14108, its figure of the artificial tasks, and its public code.

Assumption: the public code's table also holds which clusters have been visited; here cells alone, since rooms follow
each other in one order.  Demonstrations are drawn anew for each seed, by the shortest way with a fifth of the actions
random, which gives them the published lengths; there they come from one file of 100.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro
from flax import struct

import envs
import jaxcredit as jc
from jaxcredit.core.frozen import Frozen
from jaxcredit.evaluation.plots import COLOURS, styled_figure
from jaxcredit.evaluation.statistics import Interval, bootstrap_interval
from jaxcredit.redistribution.align_rudder import Profile, learn_profile
from jaxcredit.training.logging import print_table, provenance, show_interval

RESULTS = Path("experiments/results/align_rudder_rooms")
DEMONSTRATIONS = (2, 5, 10, 50, 100)
EXPLORATION, EVALUATION = 0.2, 0.1  # share of random actions
CHECK_EVERY, CHECKED, SHARE = 10, 40, 0.8
WINDOW = 20  # steps whose redistributed rewards an action is credited with
DEMONSTRATION_NOISE = 0.2  # share of random actions in demonstrations: gives the published lengths 27.6 and 61.5
SPARE = 20  # demonstrations drawn in place of those that do not reach the goal

# Mean episodes to 80 % as published, read off the figure (within 3 %): method -> rooms -> by number of demonstrations.
PUBLISHED = {
    "align": {4: (1500, 1150, 800), 8: (4400, 1750, 2150)},
    "q": {4: (7100, 5000, 2050), 8: (10700, 8250, 5200)},
}
GRID = (0.01, 0.03, 0.1, 0.3)
# Step sizes: the winners of `sweep` for align, return and q; align_end takes that of align.
RATES = {"align": 0.1, "align_end": 0.1, "return": 0.03, "q": 0.1}
METHODS = tuple(RATES)


class Steps(NamedTuple):
    """One episode: `cell` `[T + 1]`, `action`, `reward`, `mask` `[T]`."""

    cell: Any
    action: Any
    reward: Any
    mask: Any

    @property
    def total(self) -> Any:
        return jnp.where(self.mask, self.reward, 0).sum()


@struct.dataclass
class Lane(Frozen):
    """One seed with one number of demonstrations.

    Attributes: `q` `[C, 4]`; `model`, what the redistribution knows; `key`; `threshold` of the mean return; `rate`, the
    step size; `episodes` so far, and whether it has `stopped`.
    """

    q: Any
    model: Any
    key: Any
    threshold: Any
    rate: Any
    episodes: Any
    stopped: Any


@dataclass(frozen=True)
class Rooms:
    """A task, and what is known of it.

    Attributes:
      name, east_doors: of the task; `env`, `params`: what they make.
      cells: C, places in all rooms; a state is a cell and a time.
      successor, probability, goal: `[C, 4, K]`, what follows a cell and an action, whatever the time.
    """

    name: str
    east_doors: str
    env: Any
    params: Any
    cells: int
    successor: np.ndarray
    probability: np.ndarray
    goal: np.ndarray

    @classmethod
    def make(cls, name: str, east_doors: str) -> Rooms:
        env: Any
        env, params = envs.make(name, east_doors=east_doors)
        cells = env.num_states // env.max_length
        brief: Any
        brief, brief_params = envs.make(name, east_doors=east_doors, max_length=2)
        mdp = jax.tree.map(np.asarray, brief.mdp(brief_params))
        successor, probability, goal = (x[:cells] for x in (mdp.successor, mdp.probability, mdp.terminal))
        return cls(name, east_doors, env, params, cells, np.where(goal, 0, successor - cells), probability, goal)

    @cached_property
    def shortest(self) -> np.ndarray:
        """Table of action values whose best action is the shortest way: the chance to arrive, discounted."""
        value, q = np.zeros(self.cells), np.zeros(self.goal.shape[:2])
        for _ in range(400):
            q = (self.probability * np.where(self.goal, 1, 0.97 * value[self.successor])).sum(axis=-1)
            value = q.max(axis=1)
        return q

    @cached_property
    def starts(self) -> np.ndarray:
        """Cells in which episodes start, by their first room."""
        return np.asarray(jax.vmap(self.env.encode)(self.env.initial(self.params)[0]))

    def play(self, q: Any, key: Any, epsilon: float, room: Any = None, rate: Any = None) -> tuple[Any, Steps]:
        """An episode of the table's policy; with a `rate`, Q-learning changes the table on the way."""
        env, params = self.env, self.params
        keys = jax.random.split(key, 4)
        starts, chance = env.initial(params)
        room = jax.random.choice(keys[0], len(chance)) if room is None else room
        state = jax.tree.map(lambda x: x[room], starts)
        noise = jax.vmap(env.sample_noise, (0, None))(jax.random.split(keys[1], env.horizon), params)
        explores = jax.random.bernoulli(keys[2], epsilon, (env.horizon,))
        random_action = jax.random.randint(keys[3], (env.horizon,), 0, env.num_actions)

        def step(carry: tuple[Any, Any, Any], inputs: tuple[Any, Any, Any]) -> Any:
            table, state, alive = carry
            noise, explores, random_action = inputs
            cell = self.cell(state)
            action = jnp.where(explores, random_action, table[cell].argmax()).astype(jnp.int32)
            following, reward, ended, _ = env.transition(state, action, noise, params)
            if rate is not None:
                target = reward + jnp.where(ended, 0, table[self.cell(following)].max())
                table = table.at[cell, action].add(alive * rate * (target - table[cell, action]))
            record = self.cell(following), action, jnp.where(alive, reward, 0), alive
            return (table, following, alive & ~ended), record

        first = self.cell(state)
        carry = (q, state, jnp.ones((), bool))
        (q, _, _), (cell, *rest) = jax.lax.scan(step, carry, (noise, explores, random_action))
        return q, Steps(jnp.concatenate([first[None], cell]), *rest)

    def cell(self, state: Any) -> Any:
        return self.env.encode(state.replace(time=jnp.zeros_like(state.time)))

    def demonstrate(self, key: Any, number: int) -> Steps:
        """Demonstrations, `[number, T]`, from the rooms that are no traps."""
        q = self.shortest
        room_key, play_key = jax.random.split(key)
        opens = np.flatnonzero(q[self.starts].max(axis=1) > 0.1)
        room = jax.random.choice(room_key, jnp.asarray(opens), (number + SPARE,))
        keys = jax.random.split(play_key, number + SPARE)
        steps = jax.vmap(lambda key, room: self.play(jnp.asarray(q), key, DEMONSTRATION_NOISE, room)[1])(keys, room)
        failed = steps.reward.max(axis=1) <= self.params.timeout_reward
        return jax.tree.map(lambda x: x[jnp.argsort(failed, stable=True)[:number]], steps)

    def exact_return(self, q: Any, epsilon: float) -> Any:
        """Mean return of the table's policy with a share of random actions, backwards in time."""
        successor, probability, goal = (jnp.asarray(x) for x in (self.successor, self.probability, self.goal))
        greedy = jax.nn.one_hot(q.argmax(axis=1), q.shape[1])
        policy = (1 - epsilon) * greedy + epsilon / q.shape[1]

        def back(value: Any, t: Any) -> tuple[Any, None]:
            pays = self.params.goal_reward - self.params.step_cost * t
            return jnp.einsum("sa,sak,sak->s", policy, probability, jnp.where(goal, pays, value[successor])), None

        last = jnp.full(self.cells, self.params.timeout_reward)
        value = jax.lax.scan(back, last, jnp.arange(self.env.horizon, 0, -1))[0]
        return value[self.starts].mean()


# The methods -------------------------------------------------------------------------------------------------------


def aligned(model: Profile, steps: Steps, residual: Any) -> Any:
    event = model.event[steps.cell]
    return jc.profile_redistribution(event, steps.total, steps.mask, model.score, model.scale, residual=residual)


def unchanged(model: Any, steps: Steps) -> Any:
    del model
    return steps.reward


def redistribution_of(method: str) -> Callable[[Any, Steps], Any] | None:
    """Reward of every step, from what a method's model knows; None learns on the way, by Q-learning."""
    known: dict[str, Callable[[Any, Steps], Any] | None] = {
        "align": partial(aligned, residual="spread"),
        "align_end": partial(aligned, residual="end"),
        "return": unchanged,
        "q": None,
    }
    return known[method]


def windowed(reward: Any, window: int) -> Any:
    """Sum of this reward and those of the next `window` - 1 steps."""
    total = jnp.cumsum(reward)
    ends = jnp.minimum(jnp.arange(reward.size) + window, reward.size) - 1
    return total[ends] - total + reward


def credited(q: Any, steps: Steps, target: Any, rate: Any) -> Any:
    """Q <- (1 - a) Q + a target,  one step of the episode after the other."""

    def step(q: Any, inputs: tuple[Any, ...]) -> tuple[Any, None]:
        cell, action, target, mask = inputs
        return q.at[cell, action].add(mask * rate * (target - q[cell, action])), None

    return jax.lax.scan(step, q, (steps.cell[:-1], steps.action, target, steps.mask))[0]


def advance(lane: Lane, rooms: Rooms, redistribute: Callable[..., Any] | None, window: int) -> Lane:
    """Some episodes, then an evaluation; nothing is learned any more once it has stopped."""
    rate = lane.rate * ~lane.stopped

    def episode(q: Any, key: Any) -> tuple[Any, None]:
        if redistribute is None:
            return rooms.play(q, key, EXPLORATION, rate=rate)[0], None
        steps = rooms.play(q, key, EXPLORATION)[1]
        return credited(q, steps, windowed(redistribute(lane.model, steps), window), rate), None

    key, learn_key, check_key = jax.random.split(lane.key, 3)
    q = jax.lax.scan(episode, lane.q, jax.random.split(learn_key, CHECK_EVERY))[0]
    returns = jax.vmap(lambda key: rooms.play(q, key, EVALUATION)[1].total)(jax.random.split(check_key, CHECKED))
    return lane.replace(
        q=q,
        key=key,
        episodes=lane.episodes + CHECK_EVERY * ~lane.stopped,
        stopped=lane.stopped | (returns.mean() >= lane.threshold),
    )


# The seeds ---------------------------------------------------------------------------------------------------------


def seed_key(seed: int) -> Any:
    return jax.random.fold_in(jax.random.key(2009), seed)


def demonstrations_of(rooms: Rooms, seeds: range) -> Steps:
    """As many demonstrations as are ever needed, `[seeds, N, T]`; fewer are the first ones of them."""
    keys = jnp.stack([seed_key(seed) for seed in seeds])
    _ = rooms.shortest, rooms.starts  # known before anything is traced
    return jax.jit(jax.vmap(lambda key: rooms.demonstrate(key, max(DEMONSTRATIONS))))(keys)


def started(rooms: Rooms, seeds: range, demonstrations: Steps, number: int, rate: float) -> Lane:
    """Lanes `[seeds]` with cloned tables, without a model."""

    def lane(key: Any, steps: Steps) -> Lane:
        init_key, key = jax.random.split(jax.random.fold_in(key, 1))
        initial = 1 + 0.5 * jax.random.normal(init_key, (rooms.cells, rooms.env.num_actions))
        cell, action, reward, mask = (jnp.swapaxes(x[:number], 0, 1) for x in steps)
        return Lane(
            q=jc.cloned_values(cell[:-1], action, reward, mask, initial),
            model=(),
            key=jax.random.fold_in(key, number),
            threshold=SHARE * jnp.where(mask, reward, 0).sum(axis=0).mean(),
            rate=jnp.float32(rate),
            episodes=jnp.zeros((), jnp.int32),
            stopped=jnp.zeros((), bool),
        )

    return jax.jit(jax.vmap(lane))(jnp.stack([seed_key(seed) for seed in seeds]), demonstrations)


def profiles(rooms: Rooms, demonstrations: Steps, number: int) -> list[Profile]:
    """What the first `number` demonstrations of each seed share."""
    cell, mask = np.asarray(demonstrations.cell), np.asarray(demonstrations.mask)
    total = np.where(mask, demonstrations.reward, 0).sum(axis=-1).astype(np.float64)
    lengths = mask.sum(axis=-1)
    return [
        learn_profile([cell[i, n, : lengths[i, n] + 1] for n in range(number)], total[i, :number], rooms.cells)
        for i in range(len(cell))
    ]


def stacked(several: list[Profile]) -> Profile:
    """Profiles of different sizes in one, with positions and events that nothing matches."""
    positions, events = (max(profile.score.shape[axis] for profile in several) for axis in (0, 1))

    def padded(score: Any) -> Any:
        missing = (0, positions - score.shape[0]), (0, events - score.shape[1])
        return jnp.pad(score, missing, constant_values=-jnp.inf)

    return jax.tree.map(
        lambda *x: jnp.stack([jnp.asarray(y) for y in x]), *(p.replace(score=padded(p.score)) for p in several)
    )


def lanes_of(method: str, rooms: Rooms, seeds: range, numbers: tuple[int, ...], rate: float) -> Lane:
    """Lanes of all numbers of demonstrations, one after the other, `[numbers x seeds]`."""
    demonstrations = demonstrations_of(rooms, seeds)
    lanes = [started(rooms, seeds, demonstrations, number, rate) for number in numbers]
    together = jax.tree.map(lambda *x: jnp.concatenate(x), *lanes)
    if method.startswith("align"):
        return together.replace(model=stacked([p for n in numbers for p in profiles(rooms, demonstrations, n)]))
    return together


def trained(method: str, rooms: Rooms, lanes: Lane, cap: int, checks: int = 10) -> Lane:
    """Advance all lanes until each has stopped, or has had `cap` episodes; those that have stopped leave on the way."""
    window = rooms.env.horizon if method == "return" else WINDOW
    one = partial(advance, rooms=rooms, redistribute=redistribution_of(method), window=window)

    @jax.jit
    def program(lanes: Lane) -> Lane:
        return jax.lax.scan(lambda lanes, _: (jax.vmap(one)(lanes), None), lanes, length=checks)[0]

    began, total, finished = time.perf_counter(), lanes.episodes.size, lanes
    places = np.arange(total)
    while True:
        lanes = program(lanes)
        finished = jax.tree.map(partial(_put, places), finished, lanes)
        going, episodes = np.flatnonzero(~np.asarray(lanes.stopped)), int(lanes.episodes.max())
        passed = time.perf_counter() - began
        print(
            f"{method} {rooms.name} {rooms.east_doors}: {episodes} episodes, {len(going)} of {total} lanes go on, "
            f"{passed:.0f} s, at most {passed / episodes * max(cap - episodes, 0):.0f} s more",
            flush=True,
        )
        if not len(going) or episodes >= cap:
            return finished
        if 4 * len(going) <= len(
            places
        ):  # a smaller program has to be compiled, which costs more than a few idle lanes
            lanes, places = jax.tree.map(partial(_take, going), lanes), places[going]


def _put(places: np.ndarray, x: Any, new: Any) -> Any:
    return x.at[places].set(new)


def _take(places: np.ndarray, x: Any) -> Any:
    return x[places]


# The commands ------------------------------------------------------------------------------------------------------


def measure(
    method: str, rooms: Rooms, seeds: range, numbers: tuple[int, ...], rates: tuple[float, ...], cap: int
) -> Any:
    """A row per step size, number of demonstrations and seed."""
    began = time.perf_counter()
    lanes = [lanes_of(method, rooms, seeds, numbers, rate) for rate in rates]
    lanes = trained(method, rooms, jax.tree.map(lambda *x: jnp.concatenate(x), *lanes), cap)
    exact = jax.jit(jax.vmap(lambda q: rooms.exact_return(q, EVALUATION)))(lanes.q)
    index = pd.MultiIndex.from_product([rates, numbers, seeds], names=["rate", "demonstrations", "seed"]).to_frame()
    return index.reset_index(drop=True).assign(
        method=method,
        task=rooms.name,
        doors=rooms.east_doors,
        episodes=np.asarray(lanes.episodes),
        capped=~np.asarray(lanes.stopped),
        threshold=np.asarray(lanes.threshold),
        exact=np.asarray(exact),
        seconds=time.perf_counter() - began,
    )


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per task, doors, method, step size and number of demonstrations."""
    rows = []
    keys = ["task", "doors", "method", "rate", "demonstrations"]
    for _, group in frame.groupby(keys, sort=False):
        row: dict[str, Any] = group[keys].iloc[0].to_dict()
        mean = bootstrap_interval(group["episodes"], np.mean)
        exact = bootstrap_interval(group["exact"], np.mean)
        published = _published(row)
        rows.append(
            row
            | {"seeds": len(group), "episodes": mean.estimate, "episodes.low": mean.low, "episodes.high": mean.high}
            | {"median": np.median(group["episodes"]), "capped": np.sum(group["capped"])}
            | {"exact": exact.estimate, "exact.low": exact.low, "exact.high": exact.high}
            | {"threshold": np.mean(group["threshold"]), "truly": np.mean(group["exact"] >= group["threshold"])}
            | {"published": published, "ratio": mean.estimate / published}
        )
    return pd.DataFrame(rows)


def _published(row: dict[str, Any]) -> float:
    method = row["method"].removesuffix("_end")
    if method not in PUBLISHED or row["demonstrations"] not in DEMONSTRATIONS[:3]:
        return float("nan")
    return PUBLISHED[method][4 if row["task"].startswith("Four") else 8][DEMONSTRATIONS.index(row["demonstrations"])]


def run(
    methods: tuple[str, ...] = METHODS,
    tasks: tuple[str, ...] = ("FourRoomsDelayed", "EightRoomsDelayed"),
    doors: tuple[str, ...] = ("released", "mended"),
    numbers: tuple[int, ...] = DEMONSTRATIONS,
    seeds: int = 50,
    cap: int = 6000,
    rate: float | None = None,
    quick: bool = False,
    directory: Path | None = None,
) -> None:
    """Episodes until the demonstrations' return is nearly reached.

    Args:
      methods: which, see above.
      tasks, doors: which tasks, as released or mended.
      numbers: of demonstrations.
      seeds: for each of them.
      cap: episodes after which a lane that has not stopped is given up and counted with them.
      rate: step size of all methods; by default each has its own.
      quick: few seeds and demonstrations on the smallest task.
      directory: where to write; a task and method that is there already is replaced.
    """
    if quick:
        tasks, doors, numbers, seeds, cap = tasks[:1], doors[:1], numbers[:1], 4, min(cap, 200)
    directory = directory or (Path("runs/align_rudder_rooms") if quick else RESULTS)
    directory.mkdir(parents=True, exist_ok=True)
    for name in tasks:
        for east_doors in doors:
            rooms = Rooms.make(name, east_doors)
            for method in methods:
                rates = (RATES[method] if rate is None else rate,)
                record(measure(method, rooms, range(seeds), numbers, rates, cap), cap, directory)
    draw(pd.read_csv(directory / "summary.csv"), directory / "episodes.png")


def sweep(
    methods: tuple[str, ...] = METHODS, task: str = "EightRoomsDelayed", doors: str = "released", number: int = 5,
    seeds: int = 16, cap: int = 3000, directory: Path = RESULTS,
) -> None:  # fmt: skip
    """Mean episodes of every method at every step size, on seeds that are not shown elsewhere."""
    directory.mkdir(parents=True, exist_ok=True)
    rooms = Rooms.make(task, doors)
    frames = []
    for method in methods:
        frames.append(measure(method, rooms, range(1000, 1000 + seeds), (number,), GRID, cap))
        table = summary(pd.concat(frames)).drop(columns=["published", "ratio"])
        table.to_csv(directory / "sweep.csv", index=False, float_format="%.5g")
        show(table)


def record(frame: pd.DataFrame, cap: int, directory: Path) -> None:
    """Add the rows of a method and task to the tables, in the place of earlier ones."""
    file, keys = directory / "seeds.csv", ["task", "doors", "method", "rate"]
    if file.exists():
        known = pd.read_csv(file)
        new = frame[keys].iloc[0]
        frame = pd.concat([pd.DataFrame(known[(known[keys] != new).any(axis=1)]), frame])
    frame.drop(columns="seconds").to_csv(file, index=False, float_format="%.5g")
    table = summary(frame)
    table.to_csv(directory / "summary.csv", index=False, float_format="%.5g")
    about = directory / "about.json"
    runs = json.loads(about.read_text()) if about.exists() else []
    last = frame.iloc[-1]
    runs.append(
        {**{key: str(last[key]) for key in keys}, "cap": cap, "seconds": round(last["seconds"]), **provenance()}
    )
    about.write_text(json.dumps(runs, indent=2) + "\n")
    show(table)


def show(table: pd.DataFrame) -> None:
    cells = [
        (row["task"], row["doors"], row["method"], f"{row['rate']:g}", f"{row['demonstrations']}",
         show_interval(Interval(row["episodes"], row["episodes.low"], row["episodes.high"])), f"{row['capped']}",
         f"{row['exact']:.3f}", f"{row['truly']:.2f}", f"{row.get('published', np.nan):g}",
         f"{row.get('ratio', np.nan):.2f}")
        for row in table.to_dict("records")
    ]  # fmt: skip
    heads = ["task", "doors", "method", "rate", "N", "episodes", "capped", "exact", "truly", "published", "ratio"]
    print_table("Mean episodes [95 % interval]", cells, heads)


def draw(table: pd.DataFrame, path: Path) -> None:
    """A panel per task: mean episodes over the number of demonstrations, beside the published ones."""
    panels = list(table.groupby(["task", "doors"], sort=False))
    lines = sorted(set(zip(table["method"], table["rate"], strict=True)))
    with styled_figure(
        path,
        "Episodes to 80 % of the demonstrations' return, by method and step size",
        width=7.0,
        height=2.5 * len(panels) / 2 + 1,
    ) as figure:
        grid = np.ravel(figure.subplots(-(-len(panels) // 2), min(2, len(panels)), sharey=True, sharex=True))
        for axes, (_, panel) in zip(grid, panels, strict=False):
            for _, rows in panel.groupby(["method", "rate"]):
                method, rate = rows[["method", "rate"]].iloc[0]
                colour, x = COLOURS[lines.index((method, rate))], rows["demonstrations"].to_numpy()
                axes.plot(x, rows["episodes"], color=colour, marker="o", markersize=4, label=f"{method}, {rate:g}")
                axes.fill_between(x, rows["episodes.low"], rows["episodes.high"], color=colour, alpha=0.18, linewidth=0)
                if method != "align_end":
                    axes.plot(x, rows["published"], color=colour, linestyle=":", marker="x", markersize=5)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks(DEMONSTRATIONS, [str(n) for n in DEMONSTRATIONS])
            axes.minorticks_off()
            axes.set_title(", ".join(panel[["task", "doors"]].iloc[0]))
        grid[0].set_ylabel("episodes (x: published)")
        grid[-1].set_xlabel("demonstrations")
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": run, "sweep": sweep})
