"""KeyGiftGoal: does reward transported to the key help A2C, over delay, size and variance of the gifts between?

    python -m experiments.transport_gifts                       all settings
    python -m experiments.transport_gifts --settings delay_50
    python -m experiments.transport_gifts --quick               tiny sizes, written to runs/transport_gifts

A2C with a GRU, with and without Temporal Reward Transport, learning rate and entropy from the same grid; judged by the
reward of the last phase, about 5 without the key and 20 with it.  Written to experiments/results/transport_gifts: a
table and two figures per setting.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tyro

import envs
import jaxcredit as jc
from experiments.transport import MEASURE, QUICK, Budget, contest

RESULTS, RUNS = Path("experiments/results/transport_gifts"), Path("runs/transport_gifts")
ADVANTAGE = jc.GAE(gamma=0.99, lam=0.95)
METHODS: dict[str, jc.CreditEstimator] = {"A2C + TRT": jc.TemporalRewardTransport(ADVANTAGE), "A2C": ADVANTAGE}
SETTINGS: dict[str, dict[str, Any]] = {
    "delay_50": {"distractor_length": 50},
    "delay_100": {"distractor_length": 100},
    "gift_5": {"distractor_length": 100, "gift_mean": 5.0},
    "variance_0": {"distractor_length": 50, "gift_mean": 5.0},
    "variance_8": {"distractor_length": 50, "gift_mean": 5.0, "gift_variance": 25 / 3},
}
FULL = Budget(episodes=12_800, tuning=3_200, seeds=8, tuning_seeds=2, judged=64)


def agent_of(method: str, **settings: Any) -> jc.A2C:
    """A2C on whole episodes, one step per batch, its policy with a memory of what it has seen."""
    env, params = envs.make("KeyGiftGoal", **settings)
    env = envs.PreviousAction(env)
    return jc.A2C(
        env=env, env_params=env.wrap(params), memory=64, credit=METHODS[method], episodic=True, num_envs=16,
        standardise_advantage=True, log_info=(MEASURE, "key", "gifts"),
    )  # fmt: skip


def transported(credit: Any, state: Any, trajectory: jc.Trajectory) -> jc.Trajectory:
    return credit.transported(state, trajectory)


def main(settings: tuple[str, ...] = tuple(SETTINGS), quick: bool = False) -> None:
    """Tune, train and judge both methods.

    Args:
      settings: of `SETTINGS`.
      quick: tiny sizes: does everything run?
    """
    tiny = {"tiny": {"explore_length": 4, "distractor_length": 2, "reward_length": 4}}
    for name, task in (tiny if quick else {name: SETTINGS[name] for name in settings}).items():
        contest(
            {method: agent_of(method, **task) for method in METHODS}, "A2C + TRT", transported,
            QUICK if quick else FULL, RUNS / name, RUNS if quick else RESULTS, name,
        )  # fmt: skip


if __name__ == "__main__":
    tyro.cli(main)
