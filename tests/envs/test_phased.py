"""What the three tasks in phases have in common: the timer, the checks of their params, their pictures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs

# Row and column of the agent as the last phase starts.
STARTS = {"PhasedKeyToDoor": (3, 5), "ActiveVisualMatch": (5, 5), "KeyGiftGoal": (1, 1)}
TASKS = list(STARTS)
LENGTHS = {"explore_length": [2, 4, 3], "distractor_length": [3, 0, 5], "reward_length": [4, 1, 2]}


def act_at_random(key, state, phase):
    del state, phase
    return jax.random.randint(key, (), 0, 4)


@pytest.mark.parametrize("name", TASKS)
def test_the_timer_alone_leads_on_and_ends_the_episode(follow, name):
    env, params = envs.make(name, **LENGTHS)
    assert env.horizon == 4 + 5 + 4
    axes = jax.tree.map(lambda x: 0 if x.ndim else None, params)
    record = jax.vmap(lambda p: follow(env, p, act_at_random, batch=2), (axes,))(params)
    assert np.argmax(record["terminated"], axis=-1).tolist() == [[8, 8], [4, 4], [9, 9]]
    assert not record["truncated"].any()
    for i, lengths in enumerate(zip(*LENGTHS.values(), strict=True)):
        phases = np.repeat(range(3), lengths)
        np.testing.assert_array_equal(record["phase"][i, 0, : len(phases)], phases)
        entered = record["state"].row[i, :, sum(lengths[:2])], record["state"].column[i, :, sum(lengths[:2])]
        np.testing.assert_array_equal(entered, np.repeat([STARTS[name]], 2, axis=0).T)


@pytest.mark.parametrize("name", TASKS)
def test_other_params_run_the_same_program(follow, name):
    follow(*envs.make(name, max_explore_length=4, max_distractor_length=5, max_reward_length=4), act_at_random, batch=2)
    compiled = follow.compiled()
    bounds = {"max_explore_length": 4, "max_distractor_length": 5, "max_reward_length": 4}
    numbers = {"gift_mean": 2, "gift_variance": 1} if name == "KeyGiftGoal" else {"respawn": 2, "num_apples": 3}
    lengths = {"explore_length": 2, "distractor_length": 1, "reward_length": 3}
    record = follow(*envs.make(name, **bounds, **lengths, **numbers), act_at_random, batch=2)
    assert follow.compiled() == compiled
    assert np.argmax(record["terminated"], axis=1).tolist() == [5, 5]


@pytest.mark.parametrize("name", TASKS)
def test_pictures_show_every_cell_and_compile(name):
    env, params = envs.make(name)
    _, states = jax.vmap(env.reset, (0, None))(jax.random.split(jax.random.key(0), 3), params)
    images = jax.jit(jax.vmap(env.render, (0, None)))(states, params)
    assert images.dtype == jnp.uint8
    size = env.tiles.shape[1]
    for i in range(3):
        state = jax.tree.map(lambda x, i=i: x[i], states)
        caption, *rows = env.render_text(state, params).splitlines()
        assert caption.startswith("explore room, 0 of")
        assert images[i].shape == (len(rows) * size, len(rows[0]) * size, 3)
        for (row, column), glyph in np.ndenumerate(np.array([list(row) for row in rows])):
            tile = images[i, row * size : (row + 1) * size, column * size : (column + 1) * size]
            np.testing.assert_array_equal(tile, env.tiles[env.glyphs.index(glyph)])


@pytest.mark.parametrize("name", TASKS)
def test_kinds_of_cells_look_different(name):
    env, _ = envs.make(name)
    images = [tile.tobytes() for tile in env.tiles]
    assert len(env.glyphs) == len(images) == len(set(images))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_explore_length": 0}, "max_explore_length=0 .* at least 1"),
        ({"max_distractor_length": -1}, "max_distractor_length=-1 .* at least 0"),
        ({"max_reward_length": 1.5}, "max_reward_length=1.5 .* whole number"),
        ({"explore_length": [3, 0]}, r"explore_length=\[3, 0\] .* between 1 and max_explore_length=3"),
        ({"reward_length": 0, "max_reward_length": 2}, "reward_length=0 .* between 1 and"),
        ({"distractor_length": 9, "max_distractor_length": 8}, "distractor_length=9 .* larger static"),
    ],
)
def test_impossible_lengths_are_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make(name, **settings)
