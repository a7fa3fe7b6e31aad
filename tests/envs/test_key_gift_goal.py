import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.key_gift_goal import (
    CODES,
    DIRECTIONS,
    DONE,
    DROP,
    EMPTY,
    FORWARD,
    GIFT,
    KEY,
    NOWHERE,
    OPENED,
    PICK_UP,
    ROOMS,
    SIZE,
    TOGGLE,
    TURN_LEFT,
    TURN_RIGHT,
    WALL,
)
from envs.phased import DISTRACTOR, EXPLORE, REWARD
from routes import facing

NAME = "KeyGiftGoal"
SHORT = {"distractor_length": 2, "reward_length": 12}
FETCH = facing(ROOMS[EXPLORE] != WALL, DIRECTIONS, solid=True)
OPEN = facing(ROOMS[DISTRACTOR] != WALL, DIRECTIONS, solid=False)
TO_GOAL = jnp.array([FORWARD] * 4 + [TURN_RIGHT] + [FORWARD] * 4 + [DONE] * 61)
# Nine steps are the fewest: eight moves and a turn.
FEWEST = 9


def _pursue(table, state, cell, then):
    """Turn and walk to face the cell, then do something there."""
    step = jnp.asarray(table)[cell // SIZE, cell % SIZE, state.row, state.column, state.direction]
    return jnp.where(step == 3, then, step)


def _fetch(state):
    return jnp.where(state.key_cell == NOWHERE, DONE, _pursue(FETCH, state, state.key_cell, PICK_UP))


def fetch_and_go(key, state, phase, *, in_last=TO_GOAL, last_start=30 + 2):
    del key
    last = in_last[jnp.clip(state.time - last_start, 0, len(in_last) - 1)]
    return jnp.where(phase == EXPLORE, _fetch(state), jnp.where(phase == REWARD, last, DONE))


def go_without(key, state, phase):
    return jnp.where(phase == EXPLORE, DONE, fetch_and_go(key, state, phase))


def drop_and_go(key, state, phase):
    """Leave the key in the last room, and walk round it."""
    way = jnp.array([DROP, TURN_RIGHT] + [FORWARD] * 4 + [TURN_LEFT] + [FORWARD] * 4 + [DONE])
    return fetch_and_go(key, state, phase, in_last=way)


def drop_and_take_again(key, state, phase):
    return fetch_and_go(key, state, phase, in_last=jnp.concatenate([jnp.array([DROP, PICK_UP]), TO_GOAL]))


def open_gifts(key, state, phase):
    del key
    gift = state.gift_cell[jnp.argmin(state.opened)]
    return jnp.where(phase == DISTRACTOR, _pursue(OPEN, state, gift, TOGGLE), DONE)


def wander(key, state, phase):
    del state, phase
    return jax.random.randint(key, (), 0, 7)


@pytest.mark.parametrize(
    ("policy", "worth", "steps", "carries"),
    [
        (fetch_and_go, 20, FEWEST, True),
        (go_without, 5, FEWEST, False),
        (drop_and_go, 5, FEWEST + 2, False),
        (drop_and_take_again, 20, FEWEST + 2, True),
    ],
)
def test_the_goal_pays_at_the_end_and_more_with_the_key(follow, policy, worth, steps, carries):
    env, params = envs.make(NAME, **SHORT)
    record = follow(env, params, policy, batch=50)
    expected = np.zeros(30 + 2 + 12)
    expected[-1] = worth - 0.9 * steps / 12
    np.testing.assert_allclose(record["reward"], np.broadcast_to(expected, record["reward"].shape), rtol=1e-6)
    np.testing.assert_allclose(record["info"]["last_phase_reward"][0], expected, rtol=1e-6)
    np.testing.assert_array_equal(record["info"]["treasure"][0], [0.0] * 43 + [float(carries)])
    np.testing.assert_array_equal(record["info"]["key"][:, -1], float(carries))


def test_by_default_the_key_makes_nearly_twenty_of_five(follow):
    env, params = envs.make(NAME, distractor_length=2)
    assert env.horizon == 30 + 2 + 70
    for policy, worth in ((fetch_and_go, 20), (go_without, 5)):
        reward = follow(env, params, policy, batch=10)["reward"]
        np.testing.assert_allclose(reward.sum(axis=1), worth - 0.9 * FEWEST / 70, rtol=1e-6)


def test_only_the_first_arrival_counts(follow):
    env, params = envs.make(NAME, distractor_length=2, reward_length=20)
    back = jnp.array([TURN_RIGHT, TURN_RIGHT, FORWARD, TURN_RIGHT, TURN_RIGHT, FORWARD, DROP, DONE])
    twice = jnp.concatenate([TO_GOAL[:FEWEST], back])

    def arrive_twice(key, state, phase):
        return fetch_and_go(key, state, phase, in_last=twice)

    record = follow(env, params, arrive_twice, batch=5)
    at_goal = (record["state"].row == 5) & (record["state"].column == 5) & (record["phase"] == REWARD)
    assert np.all(np.diff(np.asarray(at_goal).astype(int), axis=1).clip(0).sum(axis=1) == 2)
    np.testing.assert_allclose(record["reward"].sum(axis=1), 20 - 0.9 * FEWEST / 20, rtol=1e-6)


def test_the_key_is_out_of_sight_among_the_gifts_and_back_at_the_end(follow):
    env, params = envs.make(NAME, **SHORT)
    record = follow(env, params, fetch_and_go, batch=50)
    own = np.asarray(record["observation"])[:, :, 6, 3]
    held, phase = np.asarray(record["state"].has_key) == 1, np.asarray(record["phase"])
    assert held[:, 30:].all()
    np.testing.assert_array_equal(own, CODES[np.where(held & (phase != DISTRACTOR), KEY, EMPTY)])


def test_a_dropped_key_stays_in_its_room(follow):
    env, params = envs.make(NAME, **SHORT)

    def fetch_and_drop(key, state, phase):
        fetched = jnp.where(state.has_key == 1, DROP, fetch_and_go(key, state, phase))
        return jnp.where(state.time == 29, DROP, fetched)

    record = follow(env, params, fetch_and_drop, batch=50)
    assert np.all(record["info"]["key"].max(axis=1) == 1)
    assert not record["info"]["key"][:, 29:].any()
    np.testing.assert_allclose(record["reward"][:, -1], 5 - 0.9 * FEWEST / 12, rtol=1e-6)
    assert np.all(record["state"].key_cell[:, 30:] == NOWHERE)


def test_places_are_drawn_anew():
    env, params = envs.make(NAME)
    _, state = jax.vmap(env.reset, (0, None))(jax.random.split(jax.random.key(0), 2000), params)
    interior = {row * SIZE + column for row in range(1, 5) for column in range(1, 5)}
    assert set(np.asarray(state.key_cell).tolist()) == interior - {SIZE + 1}
    cells = np.concatenate([state.gift_cell, state.entrance[:, None]], axis=1)
    assert set(cells.ravel().tolist()) == {row * SIZE + column for row in range(1, 7) for column in range(1, 7)}
    assert all(len(set(row)) == 5 for row in cells.tolist())
    assert set(np.asarray(state.heading).tolist()) == {0, 1, 2, 3}
    entered = jax.vmap(env.enter, (0, None))(state, jnp.int32(DISTRACTOR))
    gifts = jax.vmap(env.room, (0, None))(entered, jnp.int32(DISTRACTOR)) == GIFT
    assert set(gifts.sum(axis=(1, 2)).tolist()) == {4}


def test_every_gift_pays_once(follow):
    env, params = envs.make(NAME, explore_length=1, reward_length=1)
    record = follow(env, params, open_gifts, batch=50)
    assert np.all(record["info"]["gifts"][:, -1] == 4)
    np.testing.assert_array_equal(record["reward"].sum(axis=1), 12)
    assert set(np.asarray(record["reward"]).ravel().tolist()) == {0.0, 3.0}
    rooms = jax.vmap(env.room, (0, None))(jax.tree.map(lambda x: x[:, -1], record["state"]), jnp.int32(DISTRACTOR))
    assert np.all((rooms == OPENED).sum(axis=(1, 2)) == 4)


def test_gifts_have_the_given_mean_and_variance(follow):
    env, params = envs.make(NAME, explore_length=1, reward_length=1, gift_mean=5, gift_variance=25 / 3)
    reward = np.asarray(follow(env, params, open_gifts, batch=500)["reward"])
    worth = reward[reward != 0]
    assert len(worth) == 2000
    assert worth.min() >= 0 and worth.max() <= 10
    assert abs(worth.mean() - 5) < 0.2 and abs(worth.var() - 25 / 3) < 0.5


def test_the_view_is_what_lies_ahead_turned_to_the_agent(follow):
    env, params = envs.make(NAME, explore_length=12, distractor_length=12, reward_length=12)
    record = follow(env, params, wander, batch=10)
    kinds = {glyph: kind for kind, glyph in enumerate(env.glyphs[:6])}
    headings = set()
    for place in np.ndindex(10, env.horizon):
        state = jax.tree.map(lambda x, place=place: x[place], record["state"])
        rows = env.render_text(state, params).splitlines()[1:]
        board = np.pad([[kinds.get(glyph, EMPTY) for glyph in row] for row in rows], 6, constant_values=WALL)
        row, column, heading = int(state.row), int(state.column), int(state.direction)
        around = np.rot90(board[row : row + 13, column : column + 13], heading + 1)  # east, say, is turned up by one
        held = state.has_key and record["phase"][place] != DISTRACTOR
        expected = around[:7, 3:10].copy()
        expected[6, 3] = KEY if held else EMPTY
        np.testing.assert_array_equal(record["observation"][place], CODES[expected])
        headings.add(heading)
    assert headings == {0, 1, 2, 3}


def test_decisive_steps_are_those_in_front_of_the_key_and_of_the_goal(follow):
    env, params = envs.make(NAME, **SHORT)
    record = follow(env, params, fetch_and_go, batch=50)
    decisive, action = np.asarray(record["info"]["decisive"]), np.asarray(record["action"])
    decided = (action == PICK_UP) & (np.asarray(record["phase"]) == EXPLORE)
    decided[:, 30 + 2 + FEWEST - 1] = True
    np.testing.assert_array_equal(decisive, decided)


def test_walls_and_the_key_are_not_walked_over(follow):
    env, params = envs.make(NAME, explore_length=40, distractor_length=40, reward_length=40)
    record = follow(env, params, wander, batch=100)
    kind = jax.vmap(jax.vmap(env.room))(record["state"], record["phase"])
    state = record["state"]
    under = np.asarray(kind)[(*np.ogrid[:100, :120], np.asarray(state.row), np.asarray(state.column))]
    assert not np.isin(under, [WALL, KEY]).any()
    assert np.isin(under, [GIFT, OPENED]).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_gifts": 0}, "num_gifts=0 .* 1 to 35"),
        ({"num_gifts": 36}, "num_gifts=36 .* 1 to 35"),
        ({"num_gifts": 2.0}, "num_gifts=2.0 .* whole number"),
        ({"gift_variance": -1}, "gift_variance=-1.0 .* at least 0"),
        ({"gift_variance": float("nan")}, "gift_variance=nan"),
    ],
)
def test_bad_input_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make(NAME, **settings)
