import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.grid import DOWN, LEFT, UP
from envs.phased import DISTRACTOR, EXPLORE, REWARD
from envs.phased_board import APPLE, FLOOR, KEY, NUM_APPLE_CELLS, PALETTE, VIEW, WALL
from envs.phased_key_to_door import HELD, KEY_CELLS, SCENES, USED
from routes import walking

NAME = "PhasedKeyToDoor"
SHORT = {"distractor_length": 4, "reward_length": 4}
ROUTE = walking(SCENES[EXPLORE] != WALL)
DOOR_CELL = (1, 5)
WHITE = np.ones(3)
APPLES = jnp.int32(DISTRACTOR)


def take_the_key(key, state, phase):
    """Straight to the key, and up through the door; idle among the apples."""
    del key
    to_key = jnp.asarray(ROUTE)[*jnp.asarray(KEY_CELLS)[state.key_cell], state.row, state.column]
    return jnp.where(phase == EXPLORE, to_key, jnp.where(phase == REWARD, UP, DOWN))


def leave_the_key(key, state, phase):
    del key, state
    return jnp.where(phase == REWARD, UP, DOWN)


def wander(key, state, phase):
    del state, phase
    return jax.random.randint(key, (), 0, 4)


def sit_by_an_apple(key, state, phase):
    """Left, then up and down, on and off the cell (4, 4)."""
    del key, phase
    return jnp.where(state.column > 4, LEFT, jnp.where(state.row == 5, UP, DOWN))


def test_key_and_start_are_each_in_ten_cells_and_ten_apples_in_eighteen():
    env, params = envs.make(NAME)
    _, state = jax.vmap(env.reset, (0, None))(jax.random.split(jax.random.key(0), 500), params)
    board = jax.vmap(env.board, (0, None))(state, params)
    keys = np.argwhere(board == KEY)[:, 1:]
    assert len(keys) == 500
    assert {tuple(x) for x in keys.tolist()} == {(row, column) for row in (1, 2) for column in range(3, 8)}
    starts = {(int(row), int(column)) for row, column in zip(state.row, state.column, strict=True)}
    assert starts == {(row, column) for row in (4, 5) for column in range(3, 8)}
    assert board[0, 3, 2:9].tolist() == [WALL, WALL, FLOOR, FLOOR, FLOOR, WALL, WALL]
    apples = jax.vmap(env.room, (0, None))(state, APPLES) == APPLE
    assert set(apples.sum(axis=(1, 2)).tolist()) == {10}
    assert apples.any(axis=0).sum() == NUM_APPLE_CELLS == 18
    np.testing.assert_allclose(apples.mean(axis=0)[apples.any(axis=0)], 10 / 18, atol=0.1)


def test_the_key_opens_the_door_once_and_is_always_within_reach(follow):
    record = follow(*envs.make(NAME, **SHORT), take_the_key)
    expected = np.zeros(15 + 4 + 4)
    expected[15 + 4 + 1] = 10  # the second step up leads onto the door
    np.testing.assert_array_equal(record["reward"], np.broadcast_to(expected, record["reward"].shape))
    info = record["info"]
    assert np.all(info["key"][:, 14:] == 1)
    np.testing.assert_array_equal(info["treasure"][0], [0] * 22 + [1])
    np.testing.assert_array_equal(info["last_phase_reward"][0], [0] * 22 + [10])


def test_without_the_key_the_door_is_closed_and_the_last_phase_pays_nothing(follow):
    record = follow(*envs.make(NAME, **SHORT), leave_the_key)
    state, info = record["state"], record["info"]
    assert not record["reward"].any() and not info["key"].any() and not info["treasure"].any()
    np.testing.assert_array_equal(state.row[0, -3:], [2, 2, 2])


def test_the_door_stays_open_but_pays_no_second_time(follow):
    env, params = envs.make(NAME, reward_length=12, distractor_length=0)

    def come_and_go(key, state, phase):
        back = (phase == REWARD) & (state.row <= DOOR_CELL[0])
        return jnp.where(back, DOWN, take_the_key(key, state, phase))

    record = follow(env, params, come_and_go)
    on_the_door = (record["state"].row == DOOR_CELL[0]) & (record["state"].column == DOOR_CELL[1])
    on_the_door &= record["phase"] == REWARD
    assert np.all(on_the_door.sum(axis=1) >= 3)
    np.testing.assert_array_equal(record["reward"].sum(axis=1), 10)


def test_taking_the_key_shows_for_one_frame(follow):
    record = follow(*envs.make(NAME, **SHORT), take_the_key)
    taken = np.argmax(record["info"]["key"], axis=1)
    white = np.all(record["observation"] == WHITE, axis=-1).sum(axis=(2, 3))
    expected = np.zeros_like(white)
    expected[np.arange(len(taken)), taken + 1] = 1
    np.testing.assert_array_equal(white[taken < 14], expected[taken < 14])


def test_decisive_steps_are_those_beside_the_key_and_beside_the_door_with_it(follow):
    env, params = envs.make(NAME, **SHORT)
    for policy in (take_the_key, wander):
        record = follow(env, params, policy)
        state, phase = record["state"], record["phase"]
        key_place = KEY_CELLS[np.asarray(state.key_cell)]
        to_key = abs(key_place[..., 0] - state.row) + abs(key_place[..., 1] - state.column)
        to_door = abs(DOOR_CELL[0] - state.row) + abs(DOOR_CELL[1] - state.column)
        beside_key = (phase == EXPLORE) & (to_key == 1) & (state.key == 0)
        beside_door = (phase == REWARD) & (to_door == 1) & (state.key == HELD)
        # off the room, beside the wall next to the door, there is no way to it
        np.testing.assert_array_equal(record["info"]["decisive"], beside_key | beside_door)
        assert beside_key.any()
    assert np.all(beside_door.sum(axis=1) <= 4)


def test_the_agent_sees_the_five_by_five_cells_around_it_on_the_rendered_board(follow):
    env, params = envs.make(NAME, explore_length=4, distractor_length=4, reward_length=4)
    record = follow(env, params, wander, batch=20)
    draw = jax.jit(jax.vmap(jax.vmap(env.render, (0, None)), (0, None)))
    half = env.tiles.shape[1] // 2
    colours = np.asarray(draw(record["state"], params))[:, :, half :: 2 * half, half :: 2 * half]
    for place in np.ndindex(colours.shape[:2]):
        padded = np.full((7 + 4, 11 + 4, 3), PALETTE[FLOOR], np.uint8)
        padded[2:-2, 2:-2] = colours[place]
        row, column = int(record["state"].row[place]), int(record["state"].column[place])
        crop = padded[row : row + VIEW, column : column + VIEW]
        np.testing.assert_allclose(record["observation"][place], crop / 255, atol=1e-6)


@pytest.mark.parametrize("respawn", [20, 3])
def test_an_apple_is_away_for_the_frames_of_its_respawn(follow, respawn):
    env, params = envs.make(NAME, explore_length=1, distractor_length=60, reward_length=1, num_apples=18)
    record = follow(env, params.replace(respawn=jnp.int32(respawn)), sit_by_an_apple, batch=3)
    rooms = jax.vmap(jax.vmap(env.room, (0, None)), (0, None))(record["state"], APPLES)
    hangs = np.asarray(rooms)[:, 1:61, 4, 4] == APPLE  # before each step in the distractor room
    picked = 1  # the second step there leads onto it
    assert hangs[:, picked].all()
    np.testing.assert_array_equal(hangs[0, picked + 1 :][: respawn + 1], [False] * (respawn + 1))
    assert hangs[:, picked + respawn + 2].all()
    eaten = np.flatnonzero(np.asarray(record["reward"])[0, 1:61])
    step = respawn + 2 + respawn % 2  # every other step leads onto the cell
    assert eaten[0] == picked and np.all(np.diff(eaten) == step)
    assert record["info"]["apples"][0, -1] == len(eaten)


def test_all_apples_of_an_episode_are_worth_one_or_all_are_worth_ten(follow):
    env, params = envs.make(NAME, explore_length=1, distractor_length=60, reward_length=1, num_apples=18)
    reward = np.asarray(follow(env, params, wander)["reward"])
    values = [set(row[row > 0].tolist()) for row in reward]
    assert all(len(value) <= 1 for value in values)
    worth = np.array([value.pop() for value in values if value])
    assert set(worth.tolist()) == {1.0, 10.0}
    assert abs(np.mean(worth == 10) - 0.5) < 0.11  # three deviations of 200 coins


def test_apples_may_each_be_worth_something_from_one_to_ten(follow):
    lengths = {"explore_length": 1, "distractor_length": 60, "reward_length": 1}
    env, params = envs.make(NAME, apple_value="per apple", num_apples=18, **lengths)
    reward = np.asarray(follow(env, params, wander)["reward"])
    worth = reward[reward > 0]
    assert worth.min() >= 1 and worth.max() < 10
    assert abs(worth.mean() - 5.5) < 0.2 and abs(worth.std() - 9 / 12**0.5) < 0.2
    assert np.median([np.ptp(row[row > 0]) for row in reward]) > 3


def test_the_number_of_apples_and_the_prize_are_params(follow):
    env, params = envs.make(NAME, **SHORT, prize=3, num_apples=0)
    record = follow(env, params, take_the_key)
    np.testing.assert_array_equal(record["reward"].sum(axis=1), 3)
    state = jax.tree.map(lambda x: x[0, 0], record["state"])
    assert not (env.room(state, APPLES) == APPLE).any()
    assert np.all(record["state"].key[:, -1] == USED)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"apple_value": "random"}, "apple_value='random' .*'per episode', 'per apple'"),
        ({"num_apples": 19}, "num_apples=19 .* 0 to 18"),
        ({"num_apples": [-1, 2]}, "num_apples=.-1, 2. .* 0 to 18"),
        ({"respawn": -1}, "respawn=-1 .* at least 0"),
    ],
)
def test_bad_input_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make(NAME, **settings)
