"""PhasedKeyToDoor: does value transported to the key teach what discounted returns cannot?

    python -m experiments.transport_phased                      distractor phases of 30 and 90 steps
    python -m experiments.transport_phased --distractors 30
    python -m experiments.transport_phased --quick              tiny sizes, written to runs/transport_phased

The same agent with an external memory: with Temporal Value Transport, without it, and without it at gamma = 1, with
learning rate and entropy from the same grid.  Judged by the reward of the last phase, which only the key can earn.
Written to experiments/results/transport_phased: a table and two figures per length of the distractor phase.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import tyro

import envs
import jaxcredit as jc
from experiments.transport import MEASURE, QUICK, Budget, contest

RESULTS, RUNS = Path("experiments/results/transport_phased"), Path("runs/transport_phased")
GAMMA = 0.92
METHODS: dict[str, jc.CreditEstimator] = {
    "TVT": jc.chain(jc.TemporalValueTransport(gamma=GAMMA), jc.GAE(gamma=GAMMA, lam=GAMMA)),
    "no transport": jc.GAE(gamma=GAMMA, lam=GAMMA),
    "no transport, gamma 1": jc.GAE(gamma=1.0, lam=1.0),
}
EXPLORE, REWARD = 15, 15
FULL = Budget(episodes=12_800, tuning=3_200, seeds=8, tuning_seeds=2, judged=64)


def agent_of(method: str, distractor: int) -> jc.PPO:
    """PPO on whole episodes, with a memory of all their steps."""
    env, params = envs.make(
        "PhasedKeyToDoor", explore_length=EXPLORE, distractor_length=distractor, reward_length=REWARD
    )
    env = envs.PreviousAction(env)
    network = jc.MemoryActorCritic(actions=4, rows=EXPLORE + distractor + REWARD)
    return jc.PPO(
        env=env, env_params=env.wrap(params), network=network, credit=METHODS[method], episodic=True, num_envs=16,
        minibatches=4, epochs=4, log_info=(MEASURE, "key", "apples"),
    )  # fmt: skip


def transported(credit: Any, state: Any, trajectory: jc.Trajectory) -> jc.Trajectory:
    return credit.members[0].assign(jax.random.key(0), state[0], trajectory)


def main(distractors: tuple[int, ...] = (30, 90), quick: bool = False) -> None:
    """Tune, train and judge the three methods.

    Args:
      distractors: lengths of the middle phase, in steps.
      quick: tiny sizes: does everything run?
    """
    for distractor in (2,) if quick else distractors:
        contest(
            {method: agent_of(method, distractor) for method in METHODS}, "TVT", transported,
            QUICK if quick else FULL, RUNS / f"{distractor}", RUNS if quick else RESULTS, f"distractor_{distractor}",
        )  # fmt: skip


if __name__ == "__main__":
    tyro.cli(main)
