"""The experiments' numbers, where they are exact or quick: from the sources named in their modules."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxcredit as jc
from experiments import (
    align_rudder_rooms,
    contribution_analysis,
    credit_map,
    credit_noise,
    redistribution_fidelity,
    rudder_tasks,
)
from jaxcredit.evaluation.oracle import action_values, optimal_values, policy_values

# signal to noise (dB) of the first state's gradient under the uniform policy: facts of arXiv:2306.16803's task
SHORT = {"REINFORCE": -45.42, "HCA+": -40.73, "Advantage": -39.50, "TrajCV": -36.12, "COCOA-reward": -11.76}
# variance (dB) of the tree's gradient
TREE = {
    0: {"REINFORCE": 16.03, "Advantage": 15.99, "HCA+": 16.03, "COCOA, 1 groups": 11.98, "COCOA, 4 groups": 12.82},
    6: {"REINFORCE": 15.14, "Advantage": 15.10, "HCA+": 13.54, "COCOA, 1 groups": 11.02, "COCOA, 4 groups": 11.87},
}


def test_signal_to_noise_of_key_to_door():
    signal, noise = credit_noise.first_state_noise(23, 32_768, seed=0)
    np.testing.assert_allclose(np.sqrt(signal), 0.01083, atol=6e-6)
    for name, expected in SHORT.items():
        mean, error = noise[name]
        tolerance = 0.05 + 4 * 10 / np.log(10) * error / mean
        assert abs(10 * np.log10(signal / mean) - expected) < tolerance, name


@pytest.mark.parametrize("overlap", TREE)
def test_variance_of_the_tree(overlap):
    result = credit_noise.tree_variance(overlap, (1, 4))
    for name, expected in TREE[overlap].items():
        assert abs(result[name] - expected) < 0.05, name
        assert result[f"{name}.bias"] < 1e-10, name


def test_cells_of_the_map_are_distinct_and_possible():
    for plan in (credit_map.FULL, credit_map.QUICK):
        cells = plan.cells()
        assert len({tuple(cell.values()) for cell in cells}) == len(cells)
        assert all(cell["breadth"] <= cell["depth"] for cell in cells)


def test_the_map_keeps_the_rows_of_methods_that_are_not_measured_anew(tmp_path):
    plan = credit_map.QUICK
    measured = {"treasure": 0.5, "credit.cosine": 0.5, "decisive_share": 0.5, "rank_correlation": 0.5}
    rows = [{"method": method, **cell, **measured} for method in ("gae", "rudder") for cell in plan.cells()]
    assert credit_map.earlier(tmp_path, ("rudder",), plan) == ([], {})
    credit_map.write(pd.DataFrame(rows), plan, tmp_path, {"gae": {"core_seconds": 7}, "rudder": {"core_seconds": 8}})
    kept, about = credit_map.earlier(tmp_path, ("rudder",), plan)
    assert {row["method"] for row in kept} == {"gae"} and len(kept) == len(plan.cells())
    assert about == {"gae": {"core_seconds": 7}}
    with pytest.raises(ValueError, match="holds a map of another plan"):
        credit_map.earlier(tmp_path, ("rudder",), credit_map.FULL)


def test_unknown_methods_are_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(ValueError, match=r"'nope'.* not on the map; choose from gae, "):
        credit_map.main(methods=("gae", "nope"), directory=tmp_path / "map")
    assert not (tmp_path / "map").exists()


def test_scores_of_the_map_count_what_was_learned_beyond_chance():
    plan = credit_map.QUICK
    rows = [
        {"method": "half", **cell, "treasure": 0.625, "credit.cosine": math.nan, "decisive_share": 0.4,
         "rank_correlation": -0.1} for cell in plan.cells()
    ]  # fmt: skip
    (score,) = credit_map.scores(pd.DataFrame(rows), plan).to_dict("records")
    expected = {"depth": 0.5, "breadth": 0.5, "density": 0.5, "aligned": 0.0, "placed": 0.4, "ordered": 0.0}
    assert {name: round(score[name], 6) for name in expected} == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"episodes": 0}, "episodes=0"), ({"lengths": (3, 2)}, "length=2"), ({"lengths": ()}, "lengths")],
)
def test_sizes_that_measure_nothing_are_refused(wrong, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        credit_noise.key_to_door(**wrong, directory=tmp_path)
    assert not list(tmp_path.iterdir())


def test_rooms_credit_an_action_with_the_rewards_of_a_window():
    reward = jnp.array([1.0, 0.0, 2.0, 4.0, 0.0])
    expected = [reward[t : t + 3].sum() for t in range(5)]
    np.testing.assert_allclose(align_rudder_rooms.windowed(reward, 3), expected)


def test_rooms_change_the_table_one_step_after_the_other():
    """The same pair twice: 0 -> 2 -> 3 with a = 0.5 towards 4; padding changes nothing."""
    steps = align_rudder_rooms.Steps(
        cell=jnp.array([1, 1, 0, 0]), action=jnp.array([1, 1, 0]), reward=jnp.zeros(3),
        mask=jnp.array([True, True, False]),
    )  # fmt: skip
    q = align_rudder_rooms.credited(jnp.zeros((2, 2)), steps, jnp.full(3, 4.0), 0.5)
    np.testing.assert_allclose(q, [[0, 0], [0, 3]])


def test_exact_return_of_the_shortest_way_is_the_known_one():
    """Optimal return with a tenth of the actions random: facts of the task."""
    rooms = align_rudder_rooms.Rooms.make("FourRoomsDelayed", "released")
    np.testing.assert_allclose(rooms.exact_return(jnp.asarray(rooms.shortest), 0.1), 2.705, atol=1e-3)


def test_profiles_of_different_sizes_pay_the_same_when_stacked():
    small = jc.Profile(jnp.array([0, 1]), jnp.eye(2), 2.0)
    large = jc.Profile(jnp.array([0, 1]), jnp.eye(3), 1.0)
    both = align_rudder_rooms.stacked([small, large])
    event, mask = jnp.array([-1, 0, 1, 0]), jnp.ones(3, bool)
    expected = jc.profile_redistribution(event, jnp.array(5.0), mask, small.score, small.scale)
    paid = jc.profile_redistribution(event, jnp.array(5.0), mask, both.score[0], both.scale[0])
    np.testing.assert_allclose(paid, expected)


def choose_from(problem, policy):
    """Act by a table over the environment's own states."""
    return lambda state: policy[problem.env.encode(state)]


@pytest.mark.parametrize(
    ("task", "delay"), [("GridBomb", 2), ("GridBomb", 4), ("ChargeDischarge", 5), ("TraceBack", 3)]
)
def test_rudder_tasks_judge_by_the_exact_value_of_the_greedy_policy(task, delay):
    problem = rudder_tasks.TASKS[task].problem(delay)
    mdp = problem.env.mdp(problem.params)
    optimal = optimal_values(mdp)
    optimum = float(mdp.initial @ optimal)
    exact = {
        "GridBomb": rudder_tasks.grid_bomb_optimum, "ChargeDischarge": rudder_tasks.charge_discharge_optimum
    }.get(task, lambda _: 100.0)(delay)  # fmt: skip
    np.testing.assert_allclose(optimum, exact, rtol=1e-5)
    best = action_values(mdp, optimal).argmax(axis=1)
    rng = np.random.default_rng(0)
    for share in (0.0, 0.1, 0.5, 1.0):  # of the states in which the policy does anything at all
        anything = jnp.asarray(rng.random(mdp.num_states) < share)
        policy = jnp.where(anything, jnp.asarray(rng.integers(mdp.num_actions, size=mdp.num_states)), best)
        value = float(mdp.initial @ policy_values(mdp, jax.nn.one_hot(policy, mdp.num_actions)))
        solved = bool(problem.solved(choose_from(problem, policy)))
        assert solved == (value >= rudder_tasks.LEVEL * optimum - 1e-3), (share, value)


def test_rudder_tasks_count_episodes_exactly(monkeypatch):
    """A run is done where the policy begins to be right for good, or where WatchRepair's window ends."""
    task = rudder_tasks.TASKS["ChargeDischarge"]
    problem, right = task.problem(3), [0, 1, 0, 0, *[1] * 60]  # by iteration of 5 episodes
    steps = jnp.asarray(right, jnp.float32)
    agent = rudder_tasks.agent_of(task, problem, "Q(λ)", {"lam": 0.0})

    def solved(choose):
        del choose
        return steps[jnp.minimum(agent_iteration[0] - 1, len(right) - 1)]

    agent_iteration = [0]
    original = jc.TabularAgent.step

    def step(self, state):
        state, metrics = original(self, state)
        agent_iteration[0] = state.iteration
        return state, metrics

    monkeypatch.setattr(jc.TabularAgent, "step", step)
    problem = problem._replace(solved=solved)
    budget, keys = rudder_tasks.Budget(300, 60.0), rudder_tasks.seeds(0, 2)
    measured = rudder_tasks.measure(task, problem, agent, keys, budget, chunk=7)
    assert measured.episodes.tolist() == [25, 25]
    task = dataclasses.replace(task, window=50, counts_window=True)
    assert rudder_tasks.measure(task, problem, agent, keys, budget, chunk=7).episodes.tolist() == [70, 70]
    task = dataclasses.replace(task, window=500)
    assert np.isinf(rudder_tasks.measure(task, problem, agent, keys, budget, chunk=7).episodes).all()


def test_rudder_tasks_quick(tmp_path):
    for which, method in (("published", "RUDDER"), ("tuned", "Monte Carlo")):
        rudder_tasks.main(
            tasks=("ChargeDischarge",), tables=(which,), methods=(method,), quick=True, directory=tmp_path
        )
        (row,) = pd.read_csv(tmp_path / f"ChargeDischarge_{which}.csv").to_dict("records")
        assert row["method"] == method and row["seeds"] == 4
        assert row["low"] <= row["episodes"] <= row["high"] <= row["cap"]
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".json", ".png"}


def test_rank_correlations_by_hand():
    """Somers' D leaves out the pair that the exact one pays alike; Spearman's gives its members one rank."""
    exact, ours = np.array([0.0, 0.0, 1.0, 2.0]), np.array([0.1, -0.1, 3.0, 1.0])
    np.testing.assert_allclose(redistribution_fidelity.somers(ours, exact), (4 - 1) / 5)
    ranks = np.array([[2.0, 1.0, 4.0, 3.0], [1.5, 1.5, 3.0, 4.0]])
    np.testing.assert_allclose(redistribution_fidelity.spearman(ours, exact), np.corrcoef(ranks)[0, 1])
    assert redistribution_fidelity.spearman(np.zeros(4), exact) == 0


def test_the_step_that_stands_out_is_the_farthest_from_the_median():
    contribution = np.array([[5.0, 9.0], [5.0, 1.0], [4.0, 1.0], [5.5, 99.0]])
    mask = np.array([[True, True], [True, True], [True, True], [True, False]])
    assert contribution_analysis.standing_out(contribution, mask).tolist() == [2, 0]
