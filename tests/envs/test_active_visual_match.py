import jax
import jax.numpy as jnp
import numpy as np

import envs
from envs.active_visual_match import BLOCK_CELLS, SCENES, UNTOUCHED
from envs.grid import UP
from envs.phased import EXPLORE, REWARD
from envs.phased_board import BLUE, FLOOR, PALETTE, RED, WALL
from routes import walking

NAME = "ActiveVisualMatch"
SHORT = {"distractor_length": 3, "num_apples": 0}
BELOW = np.array([(2, 2), (2, 5), (2, 8)])  # the cells from which a step up touches red, green and blue
ROUTE = walking(SCENES[REWARD] == FLOOR)
LOOK_AROUND = walking(SCENES[EXPLORE] != WALL)
# Places from which, one after the other, every wall is seen, and the time until which each is headed for.
TOUR, UNTIL = np.array([(4, 4), (2, 4), (2, 6), (4, 6)]), np.array([5, 8, 11, 15])


def towards(colour, state):
    row, column = jnp.asarray(BELOW)[colour]
    there = (state.row == row) & (state.column == column)
    return jnp.where(there, UP, jnp.asarray(ROUTE)[row, column, state.row, state.column])


def touch_the_match(key, state, phase):
    """Look around, and in the last room straight to the target colour."""
    del key
    stop = jnp.asarray(TOUR)[jnp.minimum((state.time >= UNTIL).sum(), len(TOUR) - 1)]
    look = jnp.asarray(LOOK_AROUND)[*stop, state.row, state.column]
    return jnp.where(phase == EXPLORE, look, towards(state.target, state))


def touch_another(key, state, phase):
    """A wrong colour first, then the match."""
    colour = jnp.where(state.choice == UNTOUCHED, (state.target + 1) % 3, state.target)
    return jnp.where(phase == REWARD, towards(colour, state), touch_the_match(key, state, phase))


def go_up(key, state, phase):
    del key, state, phase
    return jnp.int32(UP)


def wander(key, state, phase):
    del state, phase
    return jax.random.randint(key, (), 0, 4)


def test_one_of_26_wall_cells_has_one_of_three_colours():
    env, params = envs.make(NAME)
    _, state = jax.vmap(env.reset, (0, None))(jax.random.split(jax.random.key(0), 1000), params)
    board = np.asarray(jax.vmap(env.board, (0, None))(state, params))
    episode, row, column = np.nonzero((board >= RED) & (board <= BLUE))
    np.testing.assert_array_equal(episode, np.arange(1000))
    colour = board[episode, row, column]
    np.testing.assert_allclose(np.bincount(colour - RED), 1000 / 3, atol=50)
    blocks = {place: count for place, count in zip(*np.unique(row * 11 + column, return_counts=True), strict=True)}
    assert len(blocks) == len(BLOCK_CELLS) == 26 and min(blocks.values()) > 15  # 38 expected, deviation 6
    assert (SCENES[EXPLORE][row, column] == WALL).all()


def test_touching_the_match_pays_ten_once(follow):
    record = follow(*envs.make(NAME, **SHORT), touch_the_match)
    np.testing.assert_array_equal(record["reward"].sum(axis=1), 10)
    np.testing.assert_array_equal(record["reward"].max(axis=1), 10)
    target = record["state"].target[:, 0]
    steps = np.argmax(record["reward"], axis=1) + 1 - 15 - 3
    np.testing.assert_array_equal(steps, np.where(target == 1, 4, 7))
    np.testing.assert_array_equal(record["info"]["last_phase_reward"][:, -1], 10)
    np.testing.assert_array_equal(record["info"]["treasure"].sum(axis=1), 1)


def test_touching_another_pays_nothing_and_takes_all_away(follow):
    env, params = envs.make(NAME, **SHORT, reward_length=30)
    record = follow(env, params, touch_another)
    assert not record["reward"].any() and not record["info"]["treasure"].any()
    boards = np.asarray(jax.vmap(jax.vmap(env.board, (0, None)), (0, None))(record["state"], params))
    colours = ((boards >= RED) & (boards <= BLUE)).sum(axis=(2, 3))
    untouched = np.asarray(record["state"].choice) == UNTOUCHED
    choosing = np.asarray(record["phase"]) == REWARD
    np.testing.assert_array_equal(colours[choosing], 3 * untouched[choosing])
    assert not untouched[:, -1].any()


def test_a_touch_without_knowing_is_worth_a_third(follow):
    record = follow(*envs.make(NAME, **SHORT), go_up, batch=2000)
    paid = np.asarray(record["info"]["last_phase_reward"])[:, -1]
    assert set(paid.tolist()) == {0.0, 10.0}
    assert abs(paid.mean() - 10 / 3) < 0.32  # three deviations


def test_the_random_policy_gets_ten_thirds_where_it_touches_something(follow):
    record = follow(*envs.make(NAME, explore_length=1, distractor_length=0, reward_length=80), wander, batch=2000)
    touched = np.asarray(record["state"].choice)[:, -1] != UNTOUCHED
    paid = np.asarray(record["reward"]).sum(axis=1)
    assert touched.mean() > 0.3
    assert abs(paid[touched].mean() - 10 / 3) < 0.55


def test_the_block_is_seen_when_it_is_in_an_observation(follow):
    env, params = envs.make(NAME, **SHORT)
    for policy in (touch_the_match, wander):
        record = follow(env, params, policy)
        colours = np.asarray(PALETTE[RED : BLUE + 1], np.float32) / 255
        colour = colours[np.asarray(record["state"].target)][:, :, None, None]
        shown = np.all(np.asarray(record["observation"]) == colour, axis=-1).any(axis=(2, 3))
        shown &= np.asarray(record["phase"]) == EXPLORE
        np.testing.assert_array_equal(record["info"]["seen"], np.maximum.accumulate(shown, axis=1))
        assert 0 < shown[:, 0].mean() < 1
    seen = np.asarray(follow(env, params, touch_the_match)["info"]["seen"])
    assert seen[:, -1].all()


def test_steps_before_the_block_is_first_seen_are_decisive(follow):
    record = follow(*envs.make(NAME, **SHORT), touch_the_match)
    seen, decisive = np.asarray(record["info"]["seen"]) == 1, np.asarray(record["info"]["decisive"])
    exploring = np.asarray(record["phase"]) == EXPLORE
    found = np.diff(seen.astype(int), axis=1) == 1
    assert found.any() and decisive[:, :-1][found].all()
    assert not decisive[exploring & seen].any()
    beside = np.argmax(record["reward"], axis=1)
    assert decisive[np.arange(len(beside)), beside].all()
    later = ~exploring & (np.asarray(record["state"].choice) != UNTOUCHED)
    assert later.any() and not decisive[later].any()
