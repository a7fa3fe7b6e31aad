"""What a comparison makes of its runs: intervals, episodes until a threshold, ratios.  Its training is in test_cli."""

import math

import jax
import numpy as np
import pandas as pd
import pytest

import envs
import jaxcredit as jc
from jaxcredit.training.compare import _all_crossed, compare, tabulate
from jaxcredit.training.run import RunResult

SEEDS, POINTS, EPISODES = 4, 40, 32
ENV, PARAMS = envs.make("ProbeAction")
AGENT = jc.A2C(env=ENV, env_params=PARAMS, episodic=True, log_info=("treasure",))


def result(jumps, final=1.0):
    """A run whose seeds jump from 0 to 1 at the given points."""
    rows = [
        (seed, point, (point + 1) * EPISODES, float(point >= jump))
        for seed, jump in enumerate(jumps)
        for point in range(POINTS)
    ]
    frame = pd.DataFrame(rows, columns=["seed", "point", "episodes", "treasure"])
    summary = pd.DataFrame({"eval.episode_return": [final] * SEEDS, "eval.treasure": [1.0] * SEEDS})
    return RunResult(None, frame, summary, None, compile_seconds=1.0, run_seconds=2.0, axes=None)


def table(**results):
    frame = tabulate(results, dict.fromkeys(results, AGENT), "treasure", 0.9)
    return {row["method"]: row for row in frame.to_dict("records")}


def test_episodes_are_counted_to_the_end_of_160_that_reach_the_threshold():
    rows = table(ours=result([5] * SEEDS), theirs=result([25] * SEEDS))
    # points are 32 episodes, so 5 points are averaged, and 0.9 needs all five: points 5 to 9
    assert rows["ours"]["episodes"] == 10 * EPISODES and rows["theirs"]["episodes"] == 30 * EPISODES
    assert rows["theirs"]["ratio"] == rows["theirs"]["ratio.low"] == 3.0 and rows["ours"]["ratio"] == 1.0
    assert rows["ours"]["treasure"] == 1.0 and rows["ours"]["censored"] == 0


def test_seeds_that_never_get_there_enter_with_the_budget():
    rows = table(ours=result([5, 5, 5, POINTS]), theirs=result([POINTS] * SEEDS))
    assert rows["ours"]["censored"] == 1 and rows["ours"]["episodes"] == 10 * EPISODES
    assert rows["theirs"]["censored"] == SEEDS and rows["theirs"]["ratio"] == POINTS / 10
    nobody = table(ours=result([POINTS] * SEEDS))["ours"]
    assert math.isnan(nobody["ratio"]) and nobody["episodes"] == POINTS * EPISODES


def test_seeds_that_diverged_are_counted_and_left_out():
    broken = result([5] * SEEDS)
    broken.summary.loc[0, "eval.episode_return"] = np.nan
    row = table(ours=broken)["ours"]
    assert (row["failed"], row["return"]) == (1, 1.0)


def test_without_a_threshold_nothing_is_timed():
    frame = tabulate({"ours": result([5] * SEEDS)}, {"ours": AGENT}, "treasure", None)
    assert "episodes" not in frame and "ratio" not in frame and frame["return"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("agents", "settings", "message"),
    [
        ({}, {}, "at least one agent"),
        ({"ours": AGENT.replace(episodic=False)}, {}, "build the agent of ours with episodic=True"),
        ({"ours": AGENT}, {"measure": "treasures"}, "ours does not report measure='treasures'; choose episode_return"),
        ({"ours": AGENT}, {"episodes": 0}, "episodes=0 is not allowed"),
    ],
)
def test_bad_input_is_refused(agents, settings, message):
    with pytest.raises(ValueError, match=message):
        compare(agents, jax.random.split(jax.random.key(0), 2), **{"episodes": 4, "progress": False, **settings})


def test_an_early_stop_waits_for_every_seed():
    def stops(*jumps):
        return _all_crossed(result(jumps).frame, measure="treasure", threshold=0.9)

    assert stops(5, 5, 6, 7)
    assert not stops(5, 5, 6, POINTS)
    few = result([0] * SEEDS).frame
    assert not _all_crossed(
        few[few["point"] < 4], measure="treasure", threshold=0.9
    )  # 128 episodes are no average of 160


def test_an_early_stop_needs_a_threshold():
    with pytest.raises(ValueError, match="needs a threshold"):
        compare({"gae": AGENT}, jax.random.split(jax.random.key(0), 2), episodes=4, stop_early=True)
