"""Events, alignments and profiles against cases worked by hand; redistribution against a plain loop and its theorem."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import envs
import jaxcredit as jc
from jaxcredit.redistribution.align_rudder import nearest
from jaxcredit.redistribution.alignment import alignment_table
from jaxcredit.redistribution.events import merge_groups

KEY = jax.random.key(0)
EQUAL = np.eye(4) * 2 - 1  # one for equal events, minus one for others


def seq(*events: int) -> np.ndarray:
    return np.array(events)


# Events ------------------------------------------------------------------------------------------------------------


def test_successor_representation_by_hand() -> None:
    """0 -> 1 -> 2 once:  every row moves half of the way from 0 to its own visit and the next row as it was."""
    visits = jc.successor_representation([seq(0, 1, 2)], 4, gamma=0.5, learning_rate=0.5, passes=1)
    np.testing.assert_allclose(visits, np.diag([0.5, 0.5, 0.5, 0.0]))
    visits = jc.successor_representation([seq(0, 1, 2)], 4, gamma=0.5, learning_rate=0.5, passes=2)
    np.testing.assert_allclose(visits[0], [0.75, 0.125, 0, 0])
    np.testing.assert_allclose(visits[1:3], [[0, 0.75, 0.125, 0], [0, 0, 0.75, 0]])


def test_successor_representation_converges_to_the_discounted_visits() -> None:
    """A state that follows itself three times of four, and then ends."""
    visits = jc.successor_representation([seq(0, 0, 0, 0)] * 50, 1, gamma=0.8, learning_rate=0.02, passes=50)
    np.testing.assert_allclose(visits, 1 / (1 - 0.8 * 0.75), rtol=0.05)


# scikit-learn 1.9.1: AffinityPropagation(affinity="precomputed", convergence_iter=30, max_iter=1000), the exemplar of
# every point
SCIKIT_LEARN = [
    (12, 0, -5.0, 0.5, [1, 1, 1, 1, 7, 7, 7, 7, 7, 10, 10, 10]),
    (15, 1, -2.0, 0.7, [4, 1, 4, 4, 4, 5, 13, 5, 13, 13, 13, 5, 12, 13, 5]),
    (20, 2, -20.0, 0.9, [5, 7, 5, 5, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]),
]


@pytest.mark.parametrize(("number", "seed", "preference", "damping", "expected"), SCIKIT_LEARN)
def test_affinity_propagation_finds_the_groups_of_scikit_learn(
    number: int, seed: int, preference: float, damping: float, expected: list[int]
) -> None:
    x = np.random.default_rng(seed).normal(size=(number, 2))
    x[: number // 3] += 3
    similarity = -np.square(x[:, None] - x).sum(-1)
    assert jc.affinity_propagation(similarity, preference, damping=damping).tolist() == expected


def test_affinity_propagation_of_few() -> None:
    assert jc.affinity_propagation(np.zeros((1, 1)), -1.0).tolist() == [0]
    apart = jc.affinity_propagation(np.full((3, 3), -9.0), np.array([-1.0, -1.0, -1.0]))
    assert apart.tolist() == [0, 1, 2]


def test_the_most_similar_groups_are_merged() -> None:
    similarity = np.array([[0, 1, 5.0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [0, 3, 0, 0]])
    exemplar = np.array([0, 1, 2, 3])
    assert merge_groups(exemplar, similarity, 4).tolist() == [0, 1, 2, 3]
    assert merge_groups(exemplar, similarity, 3).tolist() == [2, 1, 2, 3]
    assert merge_groups(exemplar, similarity, 2).tolist() == [2, 1, 2, 1]


# Alignment ---------------------------------------------------------------------------------------------------------


def test_substitution_scores_by_hand() -> None:
    score = jc.substitution_scores(np.array([0.5, 0.25, 0.25]), epsilon=0.01)
    np.testing.assert_allclose(np.diagonal(score), np.log([0.49 / 0.25, 0.24 / 0.0625, 0.24 / 0.0625]))
    np.testing.assert_allclose(score[0, 1], np.log(0.005 / 0.125))
    np.testing.assert_array_equal(score, score.T)
    with pytest.raises(ValueError, match=r"epsilon=0\.3 is not allowed"):
        jc.substitution_scores(np.array([0.5, 0.5]), epsilon=0.3)


def test_alignment_table_by_hand() -> None:
    """AB against B: skip A, match B.  Cost 0.25 to skip, 1 for equal, -1 for unequal."""
    table = alignment_table(np.array([[-1.0], [1.0]]), np.full(2, 0.25), np.full(1, 0.25))
    np.testing.assert_allclose(table, [[0, -0.25], [-0.25, -0.5], [-0.5, 0.75]])


@pytest.mark.parametrize(
    ("sequences", "gap", "expected"),
    [
        ([(0, 1, 2, 3), (0, 2, 3), (0, 1, 3)], 0.0, [[0, 1, 2, 3], [0, -1, 2, 3], [0, 1, -1, 3]]),
        ([(0, 1), (1,), (0, 1)], 0.0, [[0, 1], [-1, 1], [0, 1]]),
        ([(3,), (3, 3)], 0.0, [[-1, 3], [3, 3]]),
        ([(0, 1), (2, 1)], 0.25, [[0, -1, 1], [-1, 2, 1]]),
        ([(0, 1), (2, 1)], 0.75, [[0, 1], [2, 1]]),
        ([(2, 0)], 0.0, [[2, 0]]),
    ],
    ids=["two gaps", "a late start", "repeated", "cheap gaps", "dear gaps", "one alone"],
)
def test_alignments_by_hand(sequences: list[tuple[int, ...]], gap: float, expected: list[list[int]]) -> None:
    """Dear gaps: under each other costs 1, two events alone cost 2 x 0.75."""
    aligned = jc.align_sequences([seq(*events) for events in sequences], EQUAL, gap=gap)
    columns = [sorted(set(zip(*rows, strict=True))) for rows in (aligned.tolist(), expected)]
    assert columns[0] == columns[1] and aligned.shape == np.shape(expected)
    for row, events in zip(aligned, sequences, strict=True):
        assert tuple(row[row >= 0]) == events


def test_pairwise_alignment_is_the_best_of_all() -> None:
    """Against all ways to choose partners in order, counted out."""

    def best(a: Any, b: Any) -> float:
        if not len(a) or not len(b):
            return -0.5 * (len(a) + len(b))
        return max(best(a[1:], b[1:]) + EQUAL[a[0], b[0]], best(a[1:], b) - 0.5, best(a, b[1:]) - 0.5)

    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = (rng.integers(0, 4, size=rng.integers(1, 6)) for _ in range(2))
        rows = jc.align_sequences([a, b], EQUAL, gap=0.5).T
        score = sum(EQUAL[x, y] if x >= 0 and y >= 0 else -0.5 for x, y in rows)
        np.testing.assert_allclose(score, best(a, b))


def test_nothing_to_align_is_refused() -> None:
    for sequences in ([], [seq(1), seq(1)[:0]]):
        with pytest.raises(ValueError, match="at least one"):
            jc.align_sequences(sequences, EQUAL)


def test_position_scores_count_by_hand() -> None:
    """Column 0: 0, 0, 1.  Column 1 has one event in three sequences: no position.  Column 2: 2, 2, gap."""
    alignment = np.array([[0, -1, 2], [0, 1, 2], [1, -1, -1]])
    frequency = np.array([0.25, 0.25, 0.5])
    score = jc.position_scores(alignment, frequency, epsilon=1e-8)
    nothing = np.log(1e-8 / frequency)
    expected = [[np.log(2 / 3 / 0.25), np.log(1 / 3 / 0.25), nothing[2]], [nothing[0], nothing[1], np.log(1 / 0.5)]]
    np.testing.assert_allclose(score, expected, atol=1e-6)
    assert jc.position_scores(alignment[:, 1:2], frequency).shape == (0, 3)


# The profile -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corridor() -> tuple[list[np.ndarray], Any]:
    """Ten cells in a row; demonstrations walk from 0 to 9, some with a step back.  Returns 4 and 2."""
    straight = np.arange(10)
    detour = np.array([0, 1, 2, 1, 2, 3, 4, 5, 6, 7, 6, 7, 8, 9])
    episodes = [straight, detour, straight]
    return episodes, jc.learn_profile(episodes, np.array([4.0, 2.0, 3.0]), 12)


def test_events_follow_each_other_and_the_end_is_its_own(corridor: Any) -> None:
    event = np.asarray(corridor[1].event)
    assert event[0] == 0 and (event[10:] == -1).all()
    assert (event[:10] >= 0).all() and event[9] == event.max() and (event[:9] < event[9]).all()
    assert len(set(event[:10].tolist())) > 2


def test_demonstrations_are_paid_their_mean_return_by_the_profile(corridor: Any) -> None:
    """The scale makes the residual zero in the mean over the demonstrations."""
    episodes, profile = corridor
    gained = []
    for episode in episodes:
        reached = profile.scale * jc.prefix_scores(profile.event[episode], profile.score, jnp.ones(len(episode), bool))
        gained.append(float(reached[-1] - reached[0]))
    np.testing.assert_allclose(np.mean(gained), 3.0, rtol=1e-5)


def test_demonstrations_that_share_nothing_have_an_empty_profile() -> None:
    profile = jc.learn_profile([seq(0, 1), seq(2, 3)], np.ones(2), 4, min_share=1.0)
    assert profile.score.shape[0] == 0 and profile.scale == 0
    reward = jc.profile_redistribution(
        profile.event[seq(0, 1, 1)], jnp.array(2.0), jnp.ones(2, bool), profile.score, profile.scale
    )
    assert reward.tolist() == [0.0, 2.0]


@pytest.mark.parametrize(("episodes", "returns"), [([], 0), ([seq(0)], 1), ([seq(0, 1)], 2)])
def test_too_little_to_learn_from_is_refused(episodes: Any, returns: int) -> None:
    with pytest.raises(ValueError, match="at least two states and one return for each"):
        jc.learn_profile(episodes, np.ones(returns), 3)


# Redistribution ----------------------------------------------------------------------------------------------------

PROFILE = np.array([[2.0, -9.0, -9.0], [-9.0, 1.0, 0.5], [2.0, -9.0, -9.0]])  # 0, then 1 (or 2), then 0
redistribute = jax.jit(jc.profile_redistribution, static_argnames="residual")


def test_prefix_scores_by_hand() -> None:
    event = jnp.array([1, 1, 0, -1, 0, 2, 1, 0])
    scores = jc.prefix_scores(event, jnp.asarray(PROFILE), jnp.ones(8, bool))
    # 1 first; 0 instead scores more; lasting and none change nothing; 0 0 takes both ends; then 0 1 0, not 0 2 1 0
    np.testing.assert_allclose(scores, [1, 1, 3, 3, 4, 4, 4, 5])


def test_rewards_are_differences_and_what_is_missing() -> None:
    event, mask = jnp.array([1, 0, 1, 0, 0]), jnp.array([True, True, True, False])
    paid = redistribute(event, jnp.array(7.0), mask, jnp.asarray(PROFILE), 2.0)
    # S: 1 at the start, then 3, 3, 5: 4 + 0 + 4, one less in the end
    np.testing.assert_allclose(paid, [4, 0, 3, 0])
    spread = redistribute(event, jnp.array(5.0), mask, jnp.asarray(PROFILE), 2.0, residual="spread")
    np.testing.assert_allclose(spread, [3, -1, 3, 0])
    with pytest.raises(ValueError, match="end, spread"):
        jc.profile_redistribution(event, jnp.array(5.0), mask, jnp.asarray(PROFILE), 2.0, residual="start")


@given(
    arrays(np.int32, 7, elements=st.integers(-1, 2)),
    st.floats(-100, 100, width=32),
    st.integers(1, 6),
    st.floats(-2, 2, width=32),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from(["end", "spread"]),
)
def test_the_return_is_kept(event: Any, total: float, length: int, scale: float, gap: float, residual: str) -> None:
    """Of episodes of any length and whatever happens in them: the public code drops its final correction."""
    mask = jnp.arange(6) < length
    reward = redistribute(
        jnp.asarray(event),
        jnp.float32(total),
        mask,
        jnp.asarray(PROFILE, jnp.float32),
        scale,
        gap=gap,
        residual=residual,
    )
    np.testing.assert_allclose(reward.sum(), total, atol=1e-4)
    assert (reward[length:] == 0).all()


def plain_scores(event: np.ndarray, gap: float) -> list[float]:
    """The recursion entry by entry, and the best entry of each row."""
    positions = len(PROFILE)
    rows = [[-gap * j for j in range(positions + 1)]]
    best, before = [], -1
    for e in event:
        if e >= 0 and e != before:
            row = [rows[-1][0] - gap]
            for j in range(1, positions + 1):
                row.append(max(rows[-1][j - 1] + PROFILE[j - 1, e], rows[-1][j] - gap, row[j - 1] - gap))
            rows.append(row)
        before = e
        best.append(max(rows[-1]))
    return best


@given(arrays(np.int32, 7, elements=st.integers(-1, 2)), st.sampled_from([0.0, 0.25]))
def test_prefix_scores_equal_a_plain_loop(event: np.ndarray, gap: float) -> None:
    scores = jax.jit(jc.prefix_scores)(
        jnp.asarray(event), jnp.asarray(PROFILE, jnp.float32), jnp.ones(7, bool), gap=gap
    )
    np.testing.assert_allclose(scores, plain_scores(event, gap), atol=1e-5)


def test_padding_repeats_the_last_score() -> None:
    event, mask = jnp.array([0, 1, 0, 1, 2]), jnp.arange(5) < 2
    assert jc.prefix_scores(event, jnp.asarray(PROFILE), mask).tolist() == [2.0, 3.0, 3.0, 3.0, 3.0]


def test_cloned_values_by_hand() -> None:
    """State 0: twice action 1 (returns 4 and 2), once action 0 (3).  State 1: once action 0, with 4 to come."""
    state = jnp.array([[0, 0, 0], [1, 9, 9]])
    action = jnp.array([[1, 1, 0], [0, 9, 9]])
    reward = jnp.array([[0.0, 2.0, 3.0], [4.0, jnp.nan, jnp.nan]])
    mask = jnp.array([[True, True, True], [True, False, False]])
    values = jc.cloned_values(state, action, reward, mask, jnp.full((3, 2), 7.0))
    np.testing.assert_allclose(values, [[3 / 3, 6 / 3], [4 / 1, 7], [7, 7]])


# The estimator -----------------------------------------------------------------------------------------------------


def test_nearest_state_within_the_radius() -> None:
    known = jnp.array([[0.0, 0.0], [1.0, 1.0]])
    x = jnp.array([[0.1, -0.2], [0.9, 1.0], [0.5, 3.0], [jnp.nan, 0.0]])
    assert nearest(x, known, 0.25).tolist() == [0, 1, -1, -1]
    assert nearest(x, known, jnp.inf).tolist() == [0, 1, 1, -1]


@pytest.fixture(scope="module")
def key_to_door() -> Any:
    """Demonstrations, the estimator made of them, and episodes of the uniform policy, on a small KeyToDoor."""
    env, params = envs.make("KeyToDoor", length=8)
    demonstrations = jc.demonstrate(env, params, KEY, 8, noise=0.1)
    return env, params, demonstrations, jc.AlignRUDDER.from_demonstrations(demonstrations)


def test_demonstrations_are_nearly_optimal(key_to_door: Any) -> None:
    env, params, demonstrations, _ = key_to_door
    mdp = env.mdp(params)
    optimum = float(mdp.initial @ jc.evaluation.oracle.optimal_values(mdp))
    assert demonstrations.reward.sum(0).mean() > 0.6 * optimum


def test_estimator_pays_returns(key_to_door: Any) -> None:
    env, params, _, credit = key_to_door
    episodes = jc.demonstrate(env, params, jax.random.key(1), 16, noise=1.0)
    assigned = jax.jit(lambda t: credit.assign(KEY, (), t))(episodes)
    np.testing.assert_allclose(assigned.reward.sum(0), episodes.reward.sum(0), atol=1e-4)
    assert (assigned.reward[~np.asarray(episodes.mask)] == 0).all()


def test_it_needs_what_follows(key_to_door: Any) -> None:
    _, _, demonstrations, credit = key_to_door
    assert credit.needs_next_observation and credit.needs_episodes
    with pytest.raises(ValueError, match="next_observation"):
        jc.AlignRUDDER.from_demonstrations(demonstrations.replace(next_observation=None))


def test_view_leaves_out_what_never_recurs(key_to_door: Any) -> None:
    _, _, demonstrations, credit = key_to_door
    fewer = jc.AlignRUDDER.from_demonstrations(demonstrations, view=lambda observation: observation[1:])
    assert fewer.known.shape[1] == credit.known.shape[1] - 1 and len(fewer.known) < len(credit.known)
