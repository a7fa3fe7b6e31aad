"""Align-RUDDER on its rooms: episodes to 80 % of the demonstrations' return, by the number of demonstrations.

    python -m experiments.align_rudder_rooms              all methods, 50 seeds; writes experiments/results/align_rudder_rooms
    python -m experiments.align_rudder_rooms --quick      a few minutes on two cores, written to runs/align_rudder_rooms
    python -m experiments.align_rudder_rooms sweep        learning rates of every method, on other seeds

FourRoomsDelayed and EightRoomsDelayed, as released (a fifth of the first rooms are traps) and mended.  All methods learn
a table of action values over cells, started by cloning the demonstrations, explore with probability 0.2, and stop as in
the public code: every 10 episodes, once 40 evaluation episodes with a tenth of the actions random have a mean of at
least 0.8 of the demonstrations' mean return.  That is a lucky rule: the mean of 40 episodes has a deviation of 0.13
where there are traps.  `exact` is therefore the true mean return, by dynamic programming, of what was learned by then.

    align      redistribution by alignment with the demonstrations' profile, then Q <- (1 - a) Q + a (rewards of 20 steps)
    rudder     the same with the redistribution of an LSTM, fitted on the demonstrations and as many random episodes
    return     the same with the original reward, and all steps that are left: Monte Carlo
    q          one-step Q-learning on the original reward (published as BC+Q)

Reference: Patil et al. (2022), arXiv:2009.14108, its Figure of the artificial tasks, and its public code.

Assumption: the public code's table also holds which clusters have been visited; here cells alone, since rooms follow
each other in one order.  Demonstrations are drawn for each seed from the shortest-way policy with a share of random
actions that gives them the published mean length; there they are drawn from a file of 100.
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
from jaxcredit.evaluation.plots import COLOURS, QUIET, styled_figure
from jaxcredit.evaluation.statistics import bootstrap_interval
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
    "rudder": {4: (11100, 9100, 5750), 8: (31700, 31500, 23600)},
    "q": {4: (7100, 5000, 2050), 8: (10700, 8250, 5200)},
}
LABELS = {"align": "Align-RUDDER", "rudder": "RUDDER", "return": "Monte Carlo", "q": "Q-learning"}
METHODS = tuple(LABELS)
PUBLISHED_RATE = {"align": 0.1, "rudder": 0.1, "return": 0.1, "q": 0.01}


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
class Lane:
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


def aligned(model: Profile, steps: Steps) -> Any:
    return jc.profile_redistribution(model.event[steps.cell], steps.total, steps.mask, model.score, model.scale)


def unchanged(model: Any, steps: Steps) -> Any:
    del model
    return steps.reward


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

    return jax.tree.map(lambda *x: jnp.stack(x), *(p.replace(score=padded(p.score)) for p in several))


def lanes_of(method: str, rooms: Rooms, seeds: range, numbers: tuple[int, ...], rate: float) -> Lane:
    """Lanes of all numbers of demonstrations, one after the other, `[numbers x seeds]`."""
    demonstrations = demonstrations_of(rooms, seeds)
    lanes = [started(rooms, seeds, demonstrations, number, rate) for number in numbers]
    together = jax.tree.map(lambda *x: jnp.concatenate(x), *lanes)
    if method == "align":
        return together.replace(model=stacked([p for n in numbers for p in profiles(rooms, demonstrations, n)]))
    return together


def trained(method: str, rooms: Rooms, lanes: Lane, cap: int, checks: int = 10) -> Lane:
    """Advance all lanes until each has stopped, or has had `cap` episodes; what has stopped leaves in between."""
    redistribute = {"align": aligned, "return": unchanged, "q": None}[method]
    window = rooms.env.horizon if method == "return" else WINDOW
    one = partial(advance, rooms=rooms, redistribute=redistribute, window=window)

    @jax.jit
    def program(lanes: Lane) -> Lane:
        return jax.lax.scan(lambda lanes, _: (jax.vmap(one)(lanes), None), lanes, length=checks)[0]

    began, total = time.perf_counter(), lanes.episodes.size
    places, finished = np.arange(total), lanes
    while True:
        lanes = program(lanes)
        finished = jax.tree.map(lambda x, new: x.at[places].set(new), finished, lanes)
        going = np.flatnonzero(~np.asarray(lanes.stopped))
        episodes = int(lanes.episodes.max())
        left = int((~np.asarray(finished.stopped)).sum())
        passed = time.perf_counter() - began
        at_most = passed / max(episodes, 1) * (cap - episodes)
        print(
            f"{method} {rooms.name} {rooms.east_doors}: {episodes} episodes, {left} of {total} lanes go on, "
            f"{passed:.0f} s, at most {at_most:.0f} s more",
            flush=True,
        )
        if not left or episodes >= cap:
            return finished
        if 2 * len(going) <= len(places):  # half of them have stopped: go on with the others, padded by one of them
            kept = np.resize(going, max(len(going), 8)) if len(going) < 8 else going
            kept = np.unique(kept) if len(going) >= 8 else kept
            lanes, places = jax.tree.map(lambda x, kept=kept: x[kept], lanes), places[kept]
