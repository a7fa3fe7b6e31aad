import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.task_interleaving import State
from jaxcredit.evaluation.oracle import optimal_values, policy_values

QUERY, ANSWER = 0, 1


@pytest.fixture(scope="module")
def table():
    env, params = envs.make("TaskInterleaving")
    return env, params, env.mdp(params)


def state(status=(0, 0, 0, 0, 0), room=QUERY, context=0, variant=0):
    fields = [0, sum(s * 3**c for c, s in enumerate(status)), room, context, variant]
    return State(*(jnp.int32(field) for field in fields))


def statuses(code):
    return [int(code) // 3**c % 3 for c in range(5)]


def test_values_are_those_of_the_published_task(table):
    """Known from sampled episodes, 2.74 +- .02 and 5.50 +- .04: two such errors are allowed."""
    _, _, mdp = table
    uniform = jnp.full((mdp.num_states, 2), 0.5)
    assert mdp.horizon == 100
    guessing, perfect = mdp.initial @ policy_values(mdp, uniform), mdp.initial @ optimal_values(mdp)
    np.testing.assert_allclose(guessing, 2.74, atol=2 * 0.02)
    np.testing.assert_allclose(perfect, 5.50, atol=2 * 0.04)
    # A key is held with chance 1/2 instead of 1, and changes nothing but what its answer pays.
    np.testing.assert_allclose(perfect, 2 * guessing, rtol=1e-5)
    steps = policy_values(mdp.replace(reward=jnp.ones_like(mdp.reward)), uniform)
    np.testing.assert_allclose(mdp.initial @ steps, 19.8, atol=0.1)


def test_states_that_can_be_reached(table):
    env, _, mdp = table
    assert mdp.num_states == 1650
    states = jax.vmap(env.decode)(mdp.code)
    status = np.array([statuses(code) for code in states.status])
    here = status[np.arange(len(status)), states.context]
    answer = np.asarray(states.room) == ANSWER
    assert answer.sum() == 330
    np.testing.assert_array_equal(here != 0, answer)
    assert ((status != 0).sum(1) <= 3).all()
    np.testing.assert_array_equal(mdp.decisive, ~answer)
    pays = answer & (here == 2)
    expected = np.where(pays, np.array([0.2, 0.4, 0.6, 0.8, 1.0])[states.context], 0)
    reward = np.broadcast_to(expected[:, None, None], mdp.reward.shape)
    np.testing.assert_allclose(np.where(mdp.probability > 0, mdp.reward - reward, 0), 0, atol=1e-6)


def test_a_question_and_its_answer_worked_out_by_hand():
    """Context 1, the rewarded object on the right; lot 0 brings the answer at once."""
    env, params = envs.make("TaskInterleaving")
    noise = (jnp.int32(0), jnp.int32(5), jnp.int32(0))
    asked = state(context=1, variant=4)
    for action, status, reward in ((1, 2, 0.4), (0, 1, 0.0)):
        opened, paid, terminated, info = env.transition(asked, jnp.int32(action), noise, params)
        assert (paid, terminated, info["decisive"]) == (0, False, True)
        assert statuses(opened.status) == [0, status, 0, 0, 0]
        assert (opened.time, opened.room, opened.context, opened.variant) == (1, ANSWER, 1, 0)
        dying = (*noise[:2], jnp.int32(1))
        closed, paid, terminated, info = env.transition(opened, jnp.int32(0), dying, params)
        np.testing.assert_allclose(paid, reward, rtol=1e-6)
        assert (terminated, info["decisive"]) == (True, False)
        assert statuses(closed.status) == [0] * 5 and (closed.room, closed.variant) == (QUERY, 5)


@pytest.mark.parametrize(
    ("status", "context", "room", "chances"),
    [
        # Afterwards 0, 1, 2 and 3 contexts are open: each of them is next with 1/3, closed ones share the rest.
        ((0, 0, 2, 0, 0), 2, ANSWER, {(QUERY, c): 1 / 5 for c in range(5)}),
        ((0, 0, 0, 0, 0), 3, QUERY, {(ANSWER, 3): 1 / 3} | {(QUERY, c): 1 / 6 for c in (0, 1, 2, 4)}),
        ((1, 0, 0, 0, 0), 4, QUERY, {(ANSWER, c): 1 / 3 for c in (0, 4)} | {(QUERY, c): 1 / 9 for c in (1, 2, 3)}),
        ((0, 2, 0, 1, 0), 0, QUERY, {(ANSWER, c): 1 / 3 for c in (0, 1, 3)}),
    ],
)
def test_the_next_room(status, context, room, chances):
    env, params = envs.make("TaskInterleaving", die_probability=0)
    values, probability = env.noise(params)
    now = state(status, room, context)
    then = jax.vmap(lambda noise: env.transition(now, jnp.int32(0), noise, params)[0])(values)
    found = collections.Counter()
    for where, chance in zip(zip(*map(np.asarray, (then.room, then.context)), strict=True), probability, strict=True):
        found[tuple(map(int, where))] += float(chance)
    assert found.keys() == chances.keys()
    np.testing.assert_allclose([found[key] for key in chances], list(chances.values()), rtol=1e-4)


def test_drawn_noise_has_the_distribution_of_the_table():
    env, params = envs.make("TaskInterleaving", die_probability=0.3)
    drawn = jax.vmap(lambda key: env.sample_noise(key, params))(jax.random.split(jax.random.key(0), 20_000))
    for factor, chances in zip(drawn, (np.full(90, 1 / 90), np.full(8, 1 / 8), [0.7, 0.3]), strict=True):
        frequency = np.bincount(factor, minlength=len(chances)) / len(factor)
        np.testing.assert_allclose(frequency, chances, atol=5 * np.sqrt(max(chances) / len(factor)))


def test_observation_shows_room_objects_and_keys():
    env, params = envs.make("TaskInterleaving")
    good, bad = env.objects[3, :2], env.objects[3, 2:]
    np.testing.assert_array_equal(np.sort(env.objects, axis=1), np.tile(np.arange(4), (5, 1)))
    kinds, contexts = np.eye(4), np.eye(5)
    opened, keys = [0, 1, 1, 0, 0], [0, 0, 1, 0, 0]
    for variant in range(8):
        rewarded, unrewarded, right = kinds[good[variant & 1]], kinds[bad[variant >> 1 & 1]], variant >> 2
        sides = (unrewarded, rewarded) if right else (rewarded, unrewarded)
        seen = env.get_obs(state((0, 1, 2, 0, 0), QUERY, 3, variant), params)
        np.testing.assert_array_equal(seen, np.concatenate([contexts[3], [0], *sides, opened, keys]))
    seen = env.get_obs(state((0, 1, 2, 0, 0), ANSWER, 2), params)
    np.testing.assert_array_equal(seen, np.concatenate([contexts[2], [1], np.zeros(8), opened, keys]))


def test_the_time_limit_truncates_and_dying_terminates(rollout):
    env, params = envs.make("TaskInterleaving", length=3, max_length=4, die_probability=0)
    record = rollout(env, params, [0] * 4)
    np.testing.assert_array_equal(record["truncated"][0], [False, False, True, False])
    assert not np.any(record["terminated"])
    record = rollout(env, params.replace(die_probability=jnp.ones(())), [0] * 4)
    assert np.all(record["terminated"]) and not np.any(record["truncated"])


@pytest.mark.parametrize("settings", [{"length": 0}, {"length": 9, "max_length": 8}, {"die_probability": 2}])
def test_bad_input_is_refused(settings):
    with pytest.raises(ValueError, match="is not allowed"):
        envs.make("TaskInterleaving", **settings)
