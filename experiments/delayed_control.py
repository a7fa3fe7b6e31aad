"""Control with the reward paid only at the end of the episode: does redistribution bring PPO back?

    python -m experiments.delayed_control                               Pendulum-v1 and brax:inverted_pendulum
    python -m experiments.delayed_control --tasks brax:hopper --seeds 4
    python -m experiments.delayed_control --quick                       tiny sizes, written to runs/delayed_control

Each method trains PPO on `DelayedReward` for the same number of episodes, with its learning rate and discount chosen by
the same grid on other seeds (mean return over training).  "none" sees the delayed reward as it is; "not delayed" is the
task without the delay, as a ceiling.  Written to experiments/results/delayed_control: a table, and a figure per task.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import tyro

import envs
import jaxcredit as jc
from experiments.tuning import tuned
from jaxcredit.training.compare import compare
from jaxcredit.training.logging import provenance

RESULTS = Path("experiments/results/delayed_control")


@dataclass(frozen=True)
class Task:
    """Attributes: `episodes` of training per seed; `settings` of the environment."""

    episodes: int
    settings: dict[str, Any]


TASKS = {
    "Pendulum-v1": Task(4_000, {}),
    "brax:inverted_pendulum": Task(4_000, {"max_steps_in_episode": 200}),
    "brax:hopper": Task(4_000, {"max_steps_in_episode": 200}),
}
REWRITERS: dict[str, jc.CreditEstimator] = {
    "RUDDER": jc.RUDDER(capacity=1024),
    "RRD": jc.RewardDecomposition(subset=64, unbiased=True, capacity=1024),
    "IRCR": jc.IRCR(),
    "Diaster": jc.Diaster(capacity=1024),
}
METHODS = ("none", *REWRITERS, "not delayed")
LEARNING_RATES, GAMMAS = (3e-4, 1e-3, 3e-3), (0.95, 0.99)


def agent_of(task: str, method: str) -> jc.PPO:
    """PPO on whole episodes, with the method's rewards scaled by their returns and lambda = 0.95."""
    env, params = envs.make(task, **TASKS[task].settings)
    if method != "not delayed":
        env = envs.DelayedReward(env)
        params = env.wrap(params)
    before = (REWRITERS[method],) if method in REWRITERS else ()
    credit = jc.chain(*before, jc.ScaleReward(), jc.GAE(lam=0.95))
    return jc.PPO(env=env, env_params=params, credit=credit, episodic=True, num_envs=16, epochs=4, minibatches=4)


def grid_of(method: str) -> dict[str | tuple[str, ...], list[float]]:
    """Learning rates and discounts, where the method keeps them."""
    first = int(method in REWRITERS)
    return {
        "learning_rate": list(LEARNING_RATES),
        (f"credit.{first}.gamma", f"credit.{first + 1}.gamma"): list(GAMMAS),
    }


def main(
    tasks: tuple[str, ...] = ("Pendulum-v1", "brax:inverted_pendulum"),
    methods: tuple[str, ...] = METHODS,
    seeds: int = 8,
    quick: bool = False,
) -> None:
    """Tune and train every method on every task.

    Args:
      tasks: of `TASKS`.
      methods: of `METHODS`.
      seeds: per method, for tuning as for judging.
      quick: tiny sizes: does everything run?
    """
    results = Path("runs/delayed_control") if quick else RESULTS
    results.mkdir(parents=True, exist_ok=True)
    for task in tasks:
        began, episodes = time.perf_counter(), 32 if quick else TASKS[task].episodes
        agents, settings = {}, {}
        for method in methods:
            keys = jax.random.split(jax.random.key(1), 2 if quick else seeds)
            agents[method], settings[method] = tuned(
                agent_of(task, method), grid_of(method), keys, episodes // 4, "episode_return"
            )
            print(f"{task}: {method} with {settings[method]} after {time.perf_counter() - began:.0f} s", flush=True)
        keys = jax.random.split(jax.random.key(0), 2 if quick else seeds)
        directory = Path("runs/delayed_control") / task.replace(":", "_")
        shutil.rmtree(directory, ignore_errors=True)
        table = compare(agents, keys, episodes=episodes, eval_episodes=16 if quick else 64, directory=directory).table
        table = table.assign(
            **{name: [settings[m][name] for m in table["method"]] for name in ("learning_rate", "gamma")}
        )
        name = task.replace(":", "_")
        shutil.copy(directory / "curves.png", results / f"{name}.png")
        table.to_csv(results / f"{name}.csv", index=False, float_format="%.4g")
        about = {"task": task, "seconds": round(time.perf_counter() - began), "seeds": len(keys), **provenance()}
        (results / f"{name}.json").write_text(json.dumps(about, indent=2) + "\n")
        print(table.to_string(index=False), flush=True)


if __name__ == "__main__":
    tyro.cli(main)
