import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.taxi import State
from jaxcredit.evaluation.oracle import optimal_values

SOUTH, NORTH, EAST, WEST, PICK_UP, PUT_DOWN = range(6)
R, G, Y, B, ABOARD = range(5)
HERE = {R: (0, 0), G: (0, 4), Y: (4, 0), B: (4, 3)}
# Gymnasium's map: a move between two columns is free where a colon stands.
MAP = ["|R: | : :G|", "| : | : : |", "| : : : : |", "| | : | : |", "|Y| : |B: |"]

# Mean, least and greatest optimal return over the starts (computed exactly for the facts of the task).
KNOWN = {
    ("different", 0.0): (7.93, 3, 15),
    ("all", 0.0): (9.555, 3, 19),
    ("different", 0.2): (3.95, None, None),
    ("all", 0.2): (6.15, None, None),
}


def place(row, column, passenger, destination):
    return State(*(jnp.int32(x) for x in (0, row, column, passenger, destination)))


@functools.cache
def stepper(slip_probability=0.0):
    env, params = envs.make("Taxi", slip_probability=slip_probability)
    return jax.jit(lambda state, action, noise: env.transition(state, action, noise, params))


def step(state, action, noise=0):
    state, reward, terminated, info = stepper()(state, jnp.int32(action), jnp.int32(noise))
    return state, float(reward), bool(terminated), bool(info["decisive"])


@pytest.mark.parametrize(("starts", "slip"), KNOWN)
def test_optimal_returns_are_the_known_ones(starts, slip):
    env, params = envs.make("Taxi", starts=starts, slip_probability=slip)
    mdp = env.mdp(params)
    first = np.asarray(mdp.initial)
    assert (first > 0).sum() == {"different": 300, "all": 400}[starts]
    value = np.asarray(optimal_values(mdp))
    mean, low, high = KNOWN[starts, slip]
    np.testing.assert_allclose(first @ value, mean, atol=1e-2 if slip else 1e-4)
    if low is not None:
        np.testing.assert_allclose([value[first > 0].min(), value[first > 0].max()], [low, high], rtol=1e-5)


def test_dietterichs_worked_example():
    # The passenger at R goes to B, the taxi is one step from R: 10 where the delivery pays 20 besides -1 for the step.
    env, params = envs.make("Taxi", delivery_reward=19.0)
    value = optimal_values(env.mdp(params))
    for row, column in ((0, 1), (1, 0)):
        np.testing.assert_allclose(value[env.encode(place(row, column, R, B))], 10, rtol=1e-5)


def test_numbers_of_states_are_gymnasiums():
    env, _ = envs.make("Taxi")
    assert env.num_states == 500
    assert int(env.encode(place(3, 1, Y, R))) == 328
    fields = np.indices((5, 5, 5, 4)).reshape(4, -1)
    row, column, passenger, destination = fields
    numbers = jax.vmap(env.encode)(State(jnp.zeros(500, jnp.int32), *jnp.asarray(fields, jnp.int32)))
    np.testing.assert_array_equal(numbers, ((row * 5 + column) * 5 + passenger) * 4 + destination)


def test_moves_follow_the_map():
    moves = jax.vmap(lambda r, c, a: stepper()(State(jnp.int32(0), r, c, jnp.int32(4), jnp.int32(0)), a, jnp.int32(0)))
    row, column, action = np.indices((5, 5, 4), np.int32).reshape(3, -1)
    state, reward, terminated, _ = moves(*(jnp.asarray(x) for x in (row, column, action)))
    expected = []
    for r, c, a in zip(row, column, action, strict=True):
        east = a == EAST and MAP[r][2 * c + 2] == ":"
        west = a == WEST and MAP[r][2 * c] == ":"
        expected.append((min(max(r + (a == SOUTH) - (a == NORTH), 0), 4), c + east - west))
    np.testing.assert_array_equal(np.stack([state.row, state.column], 1), expected)
    np.testing.assert_array_equal(reward, -1)
    assert not np.any(terminated)


def test_a_ride():
    state = place(1, 0, R, B)
    rewards, decisive, terminated = [], [], []
    for action in [PICK_UP, NORTH, PICK_UP, PUT_DOWN, PICK_UP, SOUTH, PUT_DOWN, SOUTH, EAST, EAST, EAST, SOUTH, SOUTH]:
        state, *record = step(state, action)
        for column, x in zip((rewards, terminated, decisive), record, strict=True):
            column.append(x)
    # Nobody to pick up; put down at a landmark that is not the destination, and picked up again; put down nowhere.
    assert rewards == [-10, -1, -1, -1, -1, -1, -10, -1, -1, -1, -1, -1, -1]
    assert np.flatnonzero(decisive).tolist() == [2, 4] and not any(terminated)
    assert (int(state.row), int(state.column), int(state.passenger)) == (4, 3, ABOARD)
    assert step(state, PICK_UP)[1:] == (-10, False, True)
    assert step(state, PUT_DOWN)[1:] == (20, True, True)


@pytest.mark.parametrize("at", [R, G, Y, B])
def test_putting_down_without_a_passenger_is_illegal(at):
    assert step(place(*HERE[at], at, at), PUT_DOWN)[1:3] == (-10, False)
    assert step(place(*HERE[at], (at + 1) % 4, at), PUT_DOWN)[1:3] == (-10, False)


def test_a_move_slips_to_its_sides_even_where_it_is_blocked():
    env, params = envs.make("Taxi", slip_probability=0.2)
    np.testing.assert_allclose(env.noise(params)[1], [0.8, 0.1, 0.1], rtol=1e-6)
    for action, sides in ((NORTH, {(0, 0), (0, 2)}), (SOUTH, {(4, 0), (4, 2)})):
        after = {
            tuple(int(x) for x in (s.row, s.column))
            for s in (step(place(0 if action == NORTH else 4, 1, G, B), action, noise)[0] for noise in (1, 2))
        }
        walled = {(0, 2): (0, 1), (4, 0): (4, 1)}  # the walls beside these cells stop the slip itself
        assert after == {walled.get(side, side) for side in sides}
    # East of (0, 1) is a wall, and north of it the border: forward and one side stay, the other side goes south.
    places = [step(place(0, 1, G, B), EAST, noise)[0] for noise in (0, 1, 2)]
    assert [(int(s.row), int(s.column)) for s in places] == [(0, 1), (0, 1), (1, 1)]
    # Picking up does not slip.
    assert int(step(place(0, 0, R, B), PICK_UP, 1)[0].passenger) == ABOARD


def test_the_time_limit_truncates_and_the_observation_names_the_state(rollout):
    env, params = envs.make("Taxi", length=3, max_length=5)
    record = rollout(env, params, [NORTH] * 6)
    np.testing.assert_array_equal(record["truncated"], [[False, False, True] * 2] * len(record["reward"]))
    assert not np.any(record["terminated"])
    one = np.asarray(env.get_obs(place(3, 1, ABOARD, G)))
    assert np.flatnonzero(one).tolist() == [3, 5 + 1, 10 + 4, 15 + 1] and one.shape == (19,)
    first = np.asarray(record["observation"])[:, 0]
    passenger, destination = first[:, 10:15].argmax(1), first[:, 15:].argmax(1)
    assert set(passenger) == {R, G, Y, B} and not np.any(passenger == destination)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"starts": "some"}, "starts='some'.*different, all"),
        ({"slip_probability": 1.5}, "slip_probability=1.5"),
        ({"length": 0}, "length=0"),
        ({"length": 9, "max_length": 8}, "length=9"),
    ],
)
def test_bad_input_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make("Taxi", **settings)
