"""PPO on tasks whose solution is known: each needs a part of the agent that can silently be wrong.

    python -m experiments.ppo_reference            all tasks, 16 seeds
    python -m experiments.ppo_reference --tasks CartPole-v1 --num-seeds 4

CartPole-v1                    discrete actions
Pendulum-v1                    continuous actions; never ends but by the time limit, so limits must bootstrap
MemoryChain-bsuite             memory over ten steps: a GRU must solve it, an MLP must stay at chance
brax:fast                      the brax adapter

Writes experiments/results/ppo_reference.csv: the sampled final policy on 256 fresh episodes per seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pandas as pd
import tyro

import envs
import jaxcredit as jc
from jaxcredit.evaluation.statistics import bootstrap_interval
from jaxcredit.training.run import run

RESULTS = Path("experiments/results/ppo_reference.csv")
STEPS = 500_000


def cartpole() -> jc.PPO:
    env, params = envs.make("CartPole-v1")
    return jc.PPO(
        env=env, env_params=params, num_envs=8, num_steps=128, learning_rate=1e-3,
        anneal_iterations=STEPS / (8 * 128), entropy_coefficient=0.01,
    )  # fmt: skip


def pendulum() -> jc.PPO:
    env, params = envs.make("Pendulum-v1")
    credit = jc.chain(jc.ScaleReward(gamma=0.95), jc.GAE(gamma=0.95, lam=0.95))
    return jc.PPO(
        env=env, env_params=params, credit=credit, num_envs=16, num_steps=128, learning_rate=1e-3,
        anneal_iterations=STEPS / (16 * 128), epochs=10, minibatches=8, normalise_observation=True,
    )  # fmt: skip


def memory_chain(memory: int) -> jc.PPO:
    env, params = envs.make("MemoryChain-bsuite", memory_length=10, max_steps_in_episode=12)
    return jc.PPO(
        env=env, env_params=params, num_envs=16, num_steps=64, learning_rate=1e-3, entropy_coefficient=0.01,
        hidden=(32,), memory=memory, minibatches=2,
    )  # fmt: skip


def fast() -> jc.PPO:
    env, params = envs.make("brax:fast", episode_length=128)
    return jc.PPO(env=env, env_params=params, num_envs=8, num_steps=128, learning_rate=1e-3)


# task -> agent, steps, how its return reads, and the level to reach (None: chance)
TASKS: dict[str, tuple[Any, int, str, float]] = {
    "CartPole-v1": (cartpole, STEPS, "return", 475.0),
    "Pendulum-v1": (pendulum, STEPS, "return", -250.0),
    "MemoryChain-bsuite, GRU": (lambda: memory_chain(32), STEPS, "fraction correct", 0.95),
    "MemoryChain-bsuite, MLP": (lambda: memory_chain(0), STEPS, "fraction correct", 0.5),
    "brax:fast": (fast, STEPS, "return", 135.0),
}


def main(tasks: tuple[str, ...] = tuple(TASKS), num_seeds: int = 16, write: bool = True) -> None:
    """Train and evaluate; print and write the table."""
    rows = []
    for task in tasks:
        make, steps, unit, level = TASKS[task]
        result = run(make(), jax.random.split(jax.random.key(0), num_seeds), steps, eval_episodes=256, label=task)
        score = result.summary["eval.episode_return"].to_numpy()
        if unit == "fraction correct":
            score = (score + 1) / 2  # the return is +1 or -1
        iqm, low, high = bootstrap_interval(score)
        rows.append({
            "task": task, "steps": steps, "seeds": num_seeds, "unit": unit, "level": level, "iqm": iqm, "low": low,
            "high": high, "worst": score.min(), "compile_seconds": result.compile_seconds,
            "run_seconds": result.run_seconds,
        })  # fmt: skip
        print(pd.DataFrame(rows).to_string(index=False), flush=True)
    if write:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        known = pd.read_csv(RESULTS) if RESULTS.exists() else pd.DataFrame(rows).head(0)
        others = known[~known["task"].isin(list(tasks))]  # running some tasks keeps the rows of the others
        pd.concat([others, pd.DataFrame(rows)]).to_csv(RESULTS, index=False, float_format="%.4g")


if __name__ == "__main__":
    tyro.cli(main)
