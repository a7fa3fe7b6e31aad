import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.four_rooms import CELLS, HALLWAY_OPTIONS, HALLWAYS, NUMBER, ROOM, State
from jaxcredit.evaluation.oracle import optimal_values, stationary_values

UP, DOWN, LEFT, RIGHT = range(4)
EAST_HALLWAY = 62
# Goal 62, means over the other 103 starts, computed exactly for the facts of the task: mean and greatest optimal number
# of steps, mean optimal value at discounts .99 and .9, mean number of steps of the uniform policy, and the mean optimal
# number of steps over the goals of the lower right room.
KNOWN = {
    "deterministic": (7.59, 14.0, 0.9365, 0.5377, 502, 8.73),
    "slip": (15.01, 26.1, 0.8723, 0.3294, 502, 17.09),
    "option-critic": (8.39, 14.8, 0.9292, 0.5030, 430, 9.54),
}
# The goals of the option-critic's public code: the lower right room and the south hallway.
LOWER_RIGHT_GOALS = [68, 69, 70, 71, 72, 78, 79, 80, 81, 82, 88, 89, 90, 91, 92, 93, 99, 100, 101, 102, 103]
ENOUGH = 150  # steps after which the values of the best policy no longer change


@pytest.mark.parametrize("dynamics", KNOWN)
def test_known_values(dynamics):
    env, params = envs.make("FourRooms", dynamics=dynamics)

    def counting(mdp):
        """The same table, in which every step costs 1."""
        return mdp.replace(reward=-jnp.ones_like(mdp.reward))

    def solved(goal):
        mdp = env.mdp(params.replace(goal=goal)).replace(horizon=ENOUGH)
        return mdp, -optimal_values(counting(mdp))

    @jax.jit
    def answers():
        goals = jnp.array([EAST_HALLWAY, *LOWER_RIGHT_GOALS])
        tables, steps = jax.vmap(solved)(goals)
        mdp = jax.tree.map(lambda x: x[0], tables)
        discounted = jax.vmap(lambda gamma: mdp.initial @ optimal_values(mdp, gamma))(jnp.array([0.99, 0.9]))
        wandering = -mdp.initial @ stationary_values(counting(mdp), jnp.full((104, 4), 0.25))
        return mdp.probability, steps[0], (tables.initial * steps).sum(1), discounted, wandering

    probability, steps, means, discounted, wandering = answers()
    mean, greatest, far, near, known_wandering, lower_right = KNOWN[dynamics]
    np.testing.assert_allclose(probability.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose([means[0], means[1:].mean()], [mean, lower_right], atol=6e-3)
    np.testing.assert_allclose(np.delete(steps, EAST_HALLWAY).max(), greatest, atol=6e-2)
    np.testing.assert_allclose(discounted, [far, near], atol=6e-5)
    np.testing.assert_allclose(wandering, known_wandering, atol=0.6)


def test_the_map():
    assert len(CELLS) == 104 and CELLS[EAST_HALLWAY].tolist() == [7, 9] and NUMBER[7, 9] == EAST_HALLWAY
    assert [CELLS[cell].tolist() for cell in HALLWAYS] == [[3, 6], [6, 2], [7, 9], [10, 6]]
    assert np.bincount(ROOM[ROOM >= 0]).tolist() == [25, 30, 25, 20]
    # Rooms do not touch each other, and each has two of the options, through the hallways that it touches.
    touches = set()
    for (row, column), cell in NUMBER.items():
        for beside in (NUMBER.get((row + 1, column)), NUMBER.get((row, column + 1))):
            if beside is not None:
                a, b = sorted((cell, beside), key=lambda c: ROOM[c])
                assert ROOM[a] == ROOM[b] or ROOM[a] == -1
                if ROOM[a] == -1:
                    touches.add((int(ROOM[b]), a))
    assert len(HALLWAY_OPTIONS) == 8 and {(room, goal) for room, goal, _ in HALLWAY_OPTIONS} == touches
    assert all((room, other) in touches and other != goal for room, goal, other in HALLWAY_OPTIONS)


def outcomes(dynamics, place, action, **settings):
    """Where a move may lead, with the probabilities."""
    env, params = envs.make("FourRooms", dynamics=dynamics, **settings)
    mdp = env.mdp(params)
    chances = {}
    for cell, p in zip(mdp.successor[NUMBER[place], action], mdp.probability[NUMBER[place], action], strict=True):
        if p > 0:
            at = tuple(CELLS[int(cell)].tolist())
            chances[at] = chances.get(at, 0) + float(p)
    return chances


@pytest.mark.parametrize(
    ("dynamics", "place", "action", "expected"),
    [
        ("deterministic", (2, 2), UP, {(1, 2): 1}),
        ("deterministic", (1, 1), LEFT, {(1, 1): 1}),
        ("slip", (2, 2), UP, {(1, 2): 6 / 9, (3, 2): 1 / 9, (2, 1): 1 / 9, (2, 3): 1 / 9}),
        ("slip", (1, 1), LEFT, {(1, 1): 7 / 9, (2, 1): 1 / 9, (1, 2): 1 / 9}),
        # from the corner, where the move leads, there are two ways on; a move into the wall does nothing further
        ("option-critic", (2, 1), UP, {(1, 1): 2 / 3, (1, 2): 1 / 6, (2, 1): 1 / 6}),
        ("option-critic", (1, 1), LEFT, {(1, 1): 1}),
        ("option-critic", (3, 2), DOWN, {(4, 2): 2 / 3} | dict.fromkeys([(3, 2), (5, 2), (4, 1), (4, 3)], 1 / 12)),
    ],
)
def test_what_a_move_does(dynamics, place, action, expected):
    found = outcomes(dynamics, place, action)
    assert found.keys() == expected.keys()
    np.testing.assert_allclose([found[at] for at in expected], list(expected.values()), rtol=1e-5)


def test_the_slip_is_a_param():
    assert outcomes("slip", (2, 2), UP, slip_probability=0.0) == {(1, 2): 1}
    np.testing.assert_allclose(outcomes("slip", (2, 2), UP, slip_probability=0.6)[2, 3], 0.2, rtol=1e-6)


def test_the_goal_moves_without_compiling_anew(rollout):
    settings = {"dynamics": "deterministic", "max_length": 3}
    actions, compiled = [RIGHT] * 3, []
    for goal in ((7, 9), (1, 2)):
        env, params = envs.make("FourRooms", goal=NUMBER[goal], **settings)
        record = rollout(env, params, actions)
        compiled.append(rollout.compiled())
        start = np.asarray(record["observation"][:, 0]).argmax(1)
        assert set(start) == set(range(104)) - {NUMBER[goal]}
        # one step to the right of the start is the goal, or it is not
        enters = np.array([NUMBER.get((row, column + 1)) == NUMBER[goal] for row, column in CELLS])[start]
        np.testing.assert_array_equal(record["reward"][:, 0], enters)
        np.testing.assert_array_equal(record["terminated"][:, 0], enters)
        beside = np.abs(CELLS - goal).sum(1) == 1
        np.testing.assert_array_equal(record["info"]["decisive"][:, 0], beside[start])
        longer = ~np.asarray(record["terminated"]).any(1)
        np.testing.assert_array_equal(record["truncated"][longer], [[False, False, True]] * longer.sum())
    assert compiled[0] == compiled[1]


def test_a_goal_that_is_passed_is_not_entered():
    env, params = envs.make("FourRooms", dynamics="option-critic")
    action = jnp.int32(DOWN)
    step = jax.vmap(lambda noise: env.transition(State(jnp.int32(0), jnp.int32(NUMBER[6, 9])), action, noise, params))
    state, reward, terminated, _ = step(jnp.arange(13))
    stands = np.asarray(state.cell) == EAST_HALLWAY
    assert np.flatnonzero(stands).tolist() == [0]
    np.testing.assert_array_equal(reward, stands)
    np.testing.assert_array_equal(terminated, stands)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dynamics": "slippery"}, "dynamics='slippery'.*option-critic"),
        ({"goal": 104}, "goal=104.*0 to 103"),
        ({"goal": -1}, "goal=-1"),
        ({"slip_probability": -0.1}, "slip_probability"),
        ({"length": 0}, "length=0"),
    ],
)
def test_bad_input_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make("FourRooms", **settings)
