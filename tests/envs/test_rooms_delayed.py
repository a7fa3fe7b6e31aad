import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import envs
from jaxcredit.core.mdp import enumerate_mdp
from jaxcredit.evaluation.oracle import optimal_values

LENGTH = 200
# Optimal mean return, and that of the same policy with a tenth of its actions random (facts of the task).
KNOWN = {
    ("FourRoomsDelayed", "released"): (2.726, 2.705),
    ("FourRoomsDelayed", "mended"): (3.159, 3.145),
    ("EightRoomsDelayed", "released"): (2.621, 2.588),
    ("EightRoomsDelayed", "mended"): (3.027, 2.997),
}
# Rooms by the wall of their door: the published draws, 0 up, 1 left, 2 right, 3 down.
WALLS = np.array([0, 3, 1, 0, 2, 3, 2, 3, 0, 3, 2, 1, 3, 3, 1, 3, 3, 3, 2, 0])
UP, DOWN, LEFT, RIGHT = range(4)
CELL = {0: (0, 3), 1: (3, 0), 2: (3, 5), 3: (5, 3)}
LEAVE = {0: [UP] * 4, 1: [LEFT] * 4, 2: [RIGHT] * 3, 3: [DOWN] * 3}
LEAVE_20 = [DOWN] * 3 + [RIGHT] * 3
LEAVE_21 = [DOWN] * 3 + [LEFT] * 4
TO_GOAL = [DOWN] * 4 + [RIGHT]


@functools.cache
def two_steps(name, east_doors):
    """The table of the first of two steps: what moves do, at any time but the last.  In NumPy, in float64."""
    env, params = envs.make(name, east_doors=east_doors, max_length=2)
    mdp = env.mdp(params)
    cells = mdp.num_states // 2
    successor = np.where(mdp.terminal, 0, np.asarray(mdp.successor) - cells)[:cells]
    probability = np.asarray(mdp.probability, np.float64)[:cells]
    terminal = np.asarray(mdp.terminal)[:cells]
    pair = np.broadcast_to(np.arange(cells * 4).reshape(cells, 4, 1), successor.shape)
    entries = (np.where(terminal, 0, probability).ravel(), (pair.ravel(), successor.ravel()))
    goes = scipy.sparse.coo_array(entries, shape=(cells * 4, cells)).tocsr()
    goes.eliminate_zeros()
    goal = (probability * terminal).sum(-1)
    return np.asarray(mdp.initial, np.float64)[:cells], goes, goal


def solve(name, east_doors, length, epsilon=0.0):
    """Mean return of the optimal policy, and of the same with random actions, backwards in time."""
    initial, goes, goal = two_steps(name, east_doors)
    best = mixed = 0
    for t in range(length, 0, -1):
        reward = goal * (3 - t / 200 + 53.32 / 200)
        if t == length:
            best_q = mixed_q = reward + 1 - goal
        else:
            best_q = reward + (goes @ best).reshape(goal.shape)
            mixed_q = reward + (goes @ mixed).reshape(goal.shape)
        best = best_q.max(1)
        greedy = np.take_along_axis(mixed_q, best_q.argmax(1)[:, None], axis=1)[:, 0]
        mixed = (1 - epsilon) * greedy + epsilon * mixed_q.mean(1)
    return initial @ best, initial @ mixed


@pytest.mark.parametrize(("name", "east_doors"), KNOWN)
def test_optimal_mean_return_is_the_known_one(name, east_doors):
    np.testing.assert_allclose(solve(name, east_doors, LENGTH, epsilon=0.1), KNOWN[name, east_doors], atol=1e-3)


@pytest.mark.parametrize("east_doors", ["mended", "released"])
def test_enumerated_table_has_the_same_optimum(east_doors):
    length = 23
    env, params = envs.make("FourRoomsDelayed", east_doors=east_doors, max_length=length)
    mdp = enumerate_mdp(env, params)
    np.testing.assert_allclose(mdp.probability.sum(-1), 1, rtol=1e-5)
    optimum = mdp.initial @ optimal_values(mdp)
    np.testing.assert_allclose(optimum, solve("FourRoomsDelayed", east_doors, length)[0], rtol=1e-5)


def calm(name, **settings):
    return envs.make(name, replaced_probability=0.0, **settings)


@pytest.mark.parametrize("wall", range(4))
@pytest.mark.parametrize("east_doors", ["mended", "released"])
def test_the_shortest_way_to_the_goal(rollout, wall, east_doors):
    actions = LEAVE[wall] + LEAVE_20 + LEAVE_21 + TO_GOAL
    env, params = calm("FourRoomsDelayed", east_doors=east_doors)
    steps = len(actions)
    record = rollout(env, params, actions + [UP] * (22 - steps))
    start = np.asarray(record["observation"][:, 0, 3:]).argmax(1)
    assert set(start) == set(range(20))
    here = np.isin(start, np.flatnonzero(wall == WALLS))
    if east_doors == "released" and wall == 2:
        assert not np.any(record["reward"][here]) and not np.any(record["terminated"][here])
        room = np.asarray(record["observation"][here][..., 3:]).argmax(-1)
        np.testing.assert_array_equal(room, np.broadcast_to(start[here, None], room.shape))
        np.testing.assert_allclose(record["observation"][here][:, 3, :2], [[3 / 5, 1]] * here.sum(), rtol=1e-6)
        return
    expected = np.zeros(steps)
    expected[-1] = 3 - steps / 200 + 53.32 / 200
    np.testing.assert_allclose(record["reward"][here, :steps], [expected] * here.sum(), rtol=1e-6)
    np.testing.assert_array_equal(record["terminated"][here, :steps], [expected > 0] * here.sum())
    assert not np.any(record["truncated"])
    one = np.flatnonzero(here)[0]
    # Pressed at a door (the last action of each room but the goal's), or beside the goal.
    doors = np.cumsum([len(LEAVE[wall]), len(LEAVE_20), len(LEAVE_21), len(TO_GOAL)]) - 1
    assert np.flatnonzero(record["info"]["decisive"][one, :steps]).tolist() == doors.tolist()
    place = np.asarray(record["observation"][one, doors[0] : doors[0] + 2])
    np.testing.assert_allclose(place[:, :2] * 5, [CELL[wall], (0, 3)], atol=1e-5)
    assert place[1, 3:].argmax() == 20


@pytest.mark.parametrize(("name", "rooms_back"), [("FourRoomsDelayed", 15), ("EightRoomsDelayed", 20)])
def test_the_way_back_from_room_20_leads_to_a_random_door(rollout, name, rooms_back):
    env, params = calm(name)
    record = rollout(env, params, LEAVE[3] + [UP, UP])
    before, after = (np.asarray(record["observation"][:, t]) for t in (3, 4))
    here = before[:, 3:].argmax(1) == 20
    room = after[here, 3:].argmax(1)
    assert set(room) == set(range(rooms_back))
    np.testing.assert_allclose(after[here, :2] * 5, [CELL[w] for w in WALLS[room]], atol=1e-5)


def test_later_rooms_lead_back_to_the_door_before():
    env, params = calm("EightRoomsDelayed")
    transition = jax.jit(lambda *a: env.transition(*a, jax.tree.map(lambda x: x[0], env.noise(params)[0]), params)[0])
    for room, column in ((21, 5), (22, 0), (23, 5), (26, 0)):
        state = envs.rooms_delayed.State(*(jnp.int32(x) for x in (9, 0, 3, room)))
        back = transition(state, jnp.int32(UP))
        assert (int(back.row), int(back.column), int(back.room)) == (3, column, room - 1)
        onwards = RIGHT if column == 5 else LEFT
        again = transition(back, jnp.int32(onwards))
        assert (int(again.row), int(again.column), int(again.room), int(again.time)) == (0, 3, room, 11)


def test_the_time_out_pays_and_terminates(rollout):
    env, params = envs.make("EightRoomsDelayed", length=5, max_length=6)
    record = rollout(env, params, [UP] * 5)
    np.testing.assert_array_equal(record["reward"], [[0, 0, 0, 0, 1]] * len(record["reward"]))
    np.testing.assert_array_equal(record["terminated"][0], [False] * 4 + [True])
    assert not np.any(record["truncated"])


def test_one_action_in_a_hundred_is_replaced_by_any():
    env, params = envs.make("FourRoomsDelayed", replaced_probability=0.2)
    (replaced, room), probability = env.noise(params)
    by_action = [probability[np.asarray(replaced) == a].sum() for a in range(5)]
    np.testing.assert_allclose(by_action, [0.05, 0.05, 0.05, 0.05, 0.8], rtol=1e-5)
    for kind in (4, UP):
        chances = np.bincount(room, np.where(replaced == kind, probability, 0))
        np.testing.assert_allclose(chances, np.full(15, by_action[kind] / 15), rtol=1e-5)


def test_names_are_those_they_are_made_by():
    for name in ("FourRoomsDelayed", "EightRoomsDelayed"):
        assert envs.make(name)[0].name == name


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rooms": 5}, "rooms"),
        ({"east_doors": "open"}, "east_doors"),
        ({"length": 0}, "length"),
        ({"length": 30, "max_length": 20}, "length"),
        ({"replaced_probability": 2.0}, "replaced_probability"),
    ],
)
def test_bad_input_is_refused(settings, named):
    with pytest.raises(ValueError, match=named):
        envs.make("FourRoomsDelayed", **settings)


def test_the_whole_table_is_refused_with_the_way_out():
    env, params = envs.make("FourRoomsDelayed")
    with pytest.raises(ValueError, match="enumerate_mdp"):
        env.mdp(params)
