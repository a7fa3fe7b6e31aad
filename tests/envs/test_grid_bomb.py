import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from jaxcredit.evaluation.oracle import optimal_values

MAX_DISTANCE = 15
# Known optima under the Manhattan distance, by d, to a tenth (facts of the task, by dynamic programming).
MANHATTAN = {2: 500.2, 4: 500.8, 6: 501.8, 8: 503.4, 10: 505.7, 12: 508.6, 13: 503.6, 14: 654.5, 15: 759.0}


def optima(metric, distances):
    env, params = envs.make("GridBomb", max_distance=MAX_DISTANCE, metric=metric)

    def optimum(distance):
        mdp = env.mdp(params.replace(distance=distance))
        return mdp.initial @ optimal_values(mdp)

    optimum = jax.jit(optimum)
    return {d: float(optimum(jnp.int32(d))) for d in distances}


def paid(distances, factors):
    """Sum of c t h over the steps t = 1, 2, .. of one walk."""
    return sum(c * t * h for t, (h, c) in enumerate(zip(distances, factors, strict=True), start=1))


def test_manhattan_optimum_is_the_known_one_and_runs_away_from_far_off():
    optimum = optima("manhattan", MANHATTAN)
    for d, known in MANHATTAN.items():
        assert abs(optimum[d] - known) < 0.0501 + 1e-3, d
    for d, value in optimum.items():
        rest = 3 * d // 2 - d
        visit = 500 + paid([*range(d - 1, -1, -1), *range(1, rest + 1)], [-0.09] * d + [0.1] * rest)
        flight = paid(range(d + 1, d + 3 * d // 2 + 1), [0.1] * (3 * d // 2))
        np.testing.assert_allclose(value, max(visit, flight), rtol=1e-6)
        assert (flight > visit) == (d >= 14)


def test_hamming_optimum_always_visits_the_bomb():
    optimum = optima("hamming", [2, 3, 8, 14, MAX_DISTANCE])
    assert abs(optimum[2] - 500.2) < 0.05 and abs(optimum[MAX_DISTANCE] - 515.5) < 0.0501 + 1e-3
    for d, value in optimum.items():
        length = 3 * d // 2
        distances = [*[1] * (d - 1), 0, 1, *[2] * (length - d - 1)]
        np.testing.assert_allclose(value, 500 + paid(distances, [-0.09] * d + [0.1] * (length - d)), rtol=1e-6)
        closed = 500 - 0.045 * d * (d - 1) + 0.1 * (length * (length + 1) - (d + 1) ** 2)
        np.testing.assert_allclose(value, closed, rtol=1e-6)
        assert value > paid([2] * length, [0.1] * length)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        # From (26, 15): left, right, four times down (T = 6 steps, the bomb in the last one).
        ("hamming", [0.1 * 1 * 2, -0.09 * 2 * 1, -0.09 * 3, -0.09 * 4, -0.09 * 5, 0.0]),
        ("manhattan", [0.1 * 1 * 5, -0.09 * 2 * 4, -0.09 * 3 * 3, -0.09 * 4 * 2, -0.09 * 5 * 1, 0.0]),
    ],
)
def test_a_walk_worked_by_hand(rollout, metric, expected):
    env, params = envs.make("GridBomb", distance=4, metric=metric)
    assert env.horizon == 6
    record = rollout(env, params, [2, 3, 1, 1, 1, 1])
    reward = np.asarray(record["reward"])
    np.testing.assert_allclose(reward[:, :-1], np.broadcast_to(expected[:-1], (len(reward), 5)), rtol=1e-5)
    won = reward[:, -1] - expected[-1]
    assert set(won.round(3)) == {0.0, 1000.0} and 0.4 < (won > 0).mean() < 0.6
    np.testing.assert_array_equal(record["terminated"][0], [False] * 5 + [True])
    assert not np.any(record["truncated"])
    np.testing.assert_allclose(record["observation"][0, 1], [26 / 30, 14 / 30, 1 / 6, 0], rtol=1e-6)
    # The two steps aside cost all the slack there is: the bomb can be reached until the last step.
    np.testing.assert_array_equal(record["info"]["decisive"][0], [True] * 6)


def test_too_far_off_nothing_decides_and_nothing_is_won(rollout):
    env, params = envs.make("GridBomb", distance=4)
    record = rollout(env, params, [0, 0, 1, 1, 1, 1])
    np.testing.assert_array_equal(record["info"]["decisive"][0], [True, True, False, False, False, False])
    assert record["reward"].max() < 1


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"distance": 1}, "distance"),
        ({"distance": 9, "max_distance": 8}, "distance"),
        ({"max_distance": 31}, "max_distance"),
        ({"metric": "euclid"}, "metric"),
        ({"bomb_probability": 1.5}, "bomb_probability"),
    ],
)
def test_bad_input_is_refused(settings, named):
    with pytest.raises(ValueError, match=named):
        envs.make("GridBomb", **settings)
