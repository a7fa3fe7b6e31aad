"""Tabular agents: against a loop with traces, against theorems on shaping, and on tasks that are solved exactly."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
import jaxcredit as jc
from jaxcredit.agents.tabular import Episode, Table, _episodes
from jaxcredit.evaluation.oracle import optimal_values, policy_values

ENV, PARAMS = envs.make("ChargeDischarge", max_length=4)
KEY = jax.random.key(0)
STATES, ACTIONS, STEPS = 7, 3, 5
RUDDER = jc.RUDDER(hidden=4, fits=1, fit_batch=2, capacity=8)


def agent(**settings: Any) -> jc.TabularAgent:
    return jc.TabularAgent(env=ENV, env_params=PARAMS, **settings)


def table(seed: int = 0, potential: bool = False) -> Table:
    rng = np.random.default_rng(seed)
    values, advice = jnp.asarray(rng.normal(size=(2, STATES, ACTIONS)), jnp.float32)
    return Table(values, jnp.zeros((STATES, ACTIONS)), advice if potential else None)


def episode(states: tuple[int, ...], terminated: bool = True, padding: int = 0, seed: int = 1) -> Episode:
    """An episode through the given states, about half of whose actions are greedy in `table()`."""
    rng, steps = np.random.default_rng(seed), len(states)
    best = np.asarray(table().action_value).argmax(axis=1)[list(states)]
    action = np.where(rng.random(steps) < 0.5, best, rng.integers(ACTIONS, size=steps))
    t = np.arange(steps + padding)
    last, mask = t == steps - 1, t < steps
    behind = np.full(padding, np.iinfo(np.int32).max)

    def pad(x: Any, fill: Any) -> jax.Array:
        return jnp.concatenate([jnp.asarray(x), jnp.full(padding, fill, jnp.asarray(x).dtype)])

    reward, redistributed = rng.normal(size=(2, steps)).astype(np.float32)
    return Episode(
        state=jnp.asarray(np.concatenate([states, behind]), jnp.int32),
        next_state=pad(jnp.asarray([*states[1:], STATES - 1], jnp.int32), 0),
        action=pad(jnp.asarray(action, jnp.int32), 0),
        reward=pad(reward, 0),
        redistributed=pad(redistributed, 0),
        first=jnp.asarray(t == 0),
        terminated=jnp.asarray((last & terminated) | ~mask),
        truncated=jnp.asarray(last & (not terminated)),
        mask=jnp.asarray(mask),
    )


def with_traces(start: Table, seen: Episode, learner: str, gamma: float, lam: float, rate: float) -> np.ndarray:
    """Online Q(lambda) of Watkins, or SARSA(lambda), with a trace for every pair of the table."""
    q, trace = np.array(start.action_value, np.float64), np.zeros((STATES, ACTIONS))
    for t in range(int(seen.mask.sum())):
        s, a, following = int(seen.state[t]), int(seen.action[t]), int(seen.next_state[t])
        ends = bool(seen.terminated[t] | seen.truncated[t])
        next_action = q[following].argmax() if learner == "q" or ends else int(seen.action[t + 1])
        value = 0.0 if seen.terminated[t] else q[following, next_action]
        trace[s, a] += 1
        q += rate * (float(seen.redistributed[t]) + gamma * value - q[s, a]) * trace
        trace *= gamma * lam
        if learner == "q" and not ends and seen.action[t + 1] != q[following].argmax():
            trace[:] = 0
    return q


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("learner", ["q", "sarsa"])
def test_targets_are_those_of_online_traces_where_a_state_comes_once(learner: str, terminated: bool) -> None:
    learning = agent(learner=learner, gamma=0.9, lam=0.7, learning_rate=0.3)
    for seed in range(4):
        seen = episode((0, 1, 2, 3, 4), terminated, padding=2, seed=seed)
        found = learning.learn(table(), seen)[0].action_value
        np.testing.assert_allclose(found, with_traces(table(), seen, learner, 0.9, 0.7, 0.3), rtol=1e-5, atol=1e-6)


def test_monte_carlo_moves_towards_the_mean_return_of_all_visits() -> None:
    seen = episode((2, 3, 2, 3, 2))
    seen = seen.replace(action=jnp.zeros(STEPS, jnp.int32))
    found = agent(learner="monte_carlo", gamma=0.5, learning_rate=0.25).learn(table(), seen)[0]
    returns = np.zeros(STEPS + 1)
    for t in reversed(range(STEPS)):
        returns[t] = float(seen.redistributed[t]) + 0.5 * returns[t + 1]
    expected = np.array(table().action_value)
    for state, times in ((2, [0, 2, 4]), (3, [1, 3])):
        expected[state, 0] += 0.25 * (returns[times].mean() - expected[state, 0])
        assert found.visits[state, 0] == len(times)
    np.testing.assert_allclose(found.action_value, expected, rtol=1e-5)


def test_direct_estimation_averages_the_redistributed_reward() -> None:
    learning = agent(learner="direct", learning_rate=0.0, average=True)
    learned, rewards = table(), []
    for seed in range(3):
        seen = episode((2, 3, 2, 4), seed=seed).replace(action=jnp.zeros(4, jnp.int32))
        learned = learning.learn(learned, seen)[0]
        rewards += [float(seen.redistributed[0]), float(seen.redistributed[2])]
    np.testing.assert_allclose(learned.action_value[2, 0], np.mean(rewards), rtol=1e-5)
    moved = agent(learner="direct", learning_rate=0.5).learn(table(), seen)[0]  # a plain step: halfway to the mean
    middle = (float(table().action_value[2, 0]) + np.mean(rewards[-2:])) / 2
    np.testing.assert_allclose(moved.action_value[2, 0], middle, rtol=1e-5)


@pytest.mark.parametrize("shaping", ["reward", "look_ahead"])
@pytest.mark.parametrize("terminated", [True, False])
def test_shaping_is_a_better_start(shaping: str, terminated: bool) -> None:
    """Wiewiora (2003): Q of a shaped learner + Phi = Q of a learner that started at Q + Phi."""
    seen, start = episode((0, 1, 2, 3, 4), terminated), table(potential=True)
    seen = seen.replace(reward=seen.redistributed)  # the shaped learner reads one, the plain one the other
    settings = {"learner": "q", "gamma": 0.9, "lam": 0.7, "learning_rate": 0.3}
    shaped = agent(credit=RUDDER, shaping=shaping, **settings).learn(start, seen)[0]
    advice = start.potential if shaping == "look_ahead" else start.potential.max(axis=1, keepdims=True)
    ahead = Table(start.action_value + advice, start.visits, None)
    plain = agent(**settings).learn(ahead, seen)[0]
    np.testing.assert_allclose(shaped.action_value + advice, plain.action_value, rtol=1e-5, atol=1e-5)


def test_look_back_pays_the_rise_of_the_potential_of_what_was_done() -> None:
    seen, start = episode((0, 1, 2, 3, 4)), table(potential=True)
    settings = {"learner": "sarsa", "gamma": 0.9, "lam": 0.7, "learning_rate": 0.3}
    shaped = agent(credit=RUDDER, shaping="look_back", **settings).learn(start, seen)[0]
    advice = np.asarray(start.potential)[seen.state, seen.action]
    rise = advice - np.concatenate([[0], advice[:-1]]) / 0.9
    plain = seen.replace(redistributed=seen.reward + jnp.asarray(rise, jnp.float32))
    expected = agent(**settings).learn(table(), plain)[0]
    np.testing.assert_allclose(shaped.action_value, expected.action_value, rtol=1e-5, atol=1e-5)
    at = int(seen.state[2]), int(seen.action[2])
    old = float(start.potential[at])
    np.testing.assert_allclose(shaped.potential[at], old + 0.3 * (float(seen.redistributed[2]) - old), rtol=1e-5)


@pytest.fixture(scope="module")
def started() -> tuple[jc.TabularAgent, jc.TrainState, jc.Trajectory]:
    playing = agent(credit=RUDDER, learner="direct", num_envs=3, horizon=6)  # two steps longer than episodes last

    def gather(key: jax.Array) -> Any:
        state = playing.init(key)
        return state, playing.gather(key, state.params, playing.start(key))[1]

    return playing, *jax.jit(gather)(KEY)


def test_episodes_carry_the_rows_of_the_table(started: Any) -> None:
    playing, _, t = started
    assert t.mask.sum(axis=0).tolist() == [4, 4, 4] and not (t.truncated & t.mask).any()
    row = playing.row(ENV.decode(jnp.asarray(t.extras["state"][0, 0])))
    assert row == t.extras["state"][0, 0]
    np.testing.assert_array_equal(t.extras["next_state"][:3], t.extras["state"][1:4])
    np.testing.assert_allclose(jnp.exp(t.log_prob)[:4], 0.5, rtol=1e-6)  # all values are equal at the start


def test_padding_changes_nothing(started: Any) -> None:
    playing, state, t = started
    wrong = jnp.where(t.mask, t.reward, jnp.nan)
    spoiled = t.replace(
        reward=wrong, terminated=t.terminated ^ ~t.mask, action=jnp.where(t.mask, t.action, 1),
        extras={name: jnp.where(t.mask, x, 3) for name, x in t.extras.items()},
    )  # fmt: skip
    for learner in ("q", "sarsa", "monte_carlo", "direct"):
        learning = playing.replace(learner=learner)
        clean, dirty = (
            jax.lax.scan(learning.learn, state.params, _episodes(x, r))
            for x, r in ((t, t.reward), (spoiled, spoiled.reward))
        )
        jax.tree.map(np.testing.assert_array_equal, clean, dirty)
        assert clean[0].visits.sum() == 12


def exact_share(learning: jc.TabularAgent, params: Table) -> jax.Array:
    """Return of the greedy policy over that of the best one."""
    mdp = ENV.mdp(PARAMS)
    return mdp.initial @ policy_values(mdp, learning.greedy_policy(params)) / (mdp.initial @ optimal_values(mdp))


@pytest.mark.parametrize("learner", ["q", "sarsa", "monte_carlo"])
def test_learners_solve_a_delayed_task(learner: str) -> None:
    learning = jc.as_arrays(agent(learner=learner, num_envs=4, learning_rate=0.3, epsilon=0.5))

    def final(learning: jc.TabularAgent, key: jax.Array) -> jax.Array:
        return exact_share(learning, jc.train(learning, key, 250)[0].params)

    train = jax.jit(jax.vmap(final, (None, 0)))
    shares = train(learning, jax.random.split(KEY, 4))
    np.testing.assert_allclose(shares, 1, rtol=1e-6)
    train(jc.as_arrays(learning.replace(learning_rate=0.2)), jax.random.split(KEY, 4))
    assert train._cache_size() == 1  # a changed float compiles nothing


def test_direct_estimation_on_redistributed_reward_solves_it() -> None:
    rudder = jc.RUDDER(hidden=8, fits=10, fit_batch=16, capacity=256, continuous_weight=1.0, residual="end")
    learning = agent(learner="direct", credit=rudder, num_envs=8)
    state = jax.jit(jax.vmap(jc.train, (None, 0, None)), static_argnums=2)(learning, jax.random.split(KEY, 4), 60)[0]
    shares = jax.vmap(lambda params: exact_share(learning, params))(state.params)
    assert np.sort(shares)[1] > 0.9, shares


def test_counters_warm_up_and_evaluation() -> None:
    learning = agent(num_envs=2, initial_value=1.0, warm_up=1e9)
    keys = jax.random.split(KEY, 2)
    state, metrics = jax.jit(jax.vmap(jc.train, (None, 0, None)), static_argnums=2)(learning, keys, 30)
    assert state.episodes.tolist() == [60, 60] and state.valid_steps.tolist() == [240, 240]
    assert (metrics["absolute_error"] > 0).all()
    first = state.params.visits.reshape(2, -1, 2)[:, : ENV.num_states // 4].sum(axis=1)
    assert (first.min(axis=1) > 15).all()  # at random, though the table prefers an action by now
    greedy = jc.evaluate(
        learning.replace(epsilon=0.0), state.replace(params=jax.tree.map(lambda x: x[0], state.params)), KEY, 8
    )  # fmt: skip
    assert greedy["episode_length"] == 4


def test_a_sweep_and_a_run_take_tabular_agents() -> None:
    keys = jax.random.split(KEY, 2)
    frame = jc.sweep(agent(), {"learning_rate": [0.1, 0.5], "lam": [0.0, 0.9]}, keys, num_iterations=2)
    assert len(frame) == 8 and frame["episode_return"].notna().all()
    result = jc.run(agent(num_envs=2), keys, total_steps=16, num_points=2, eval_episodes=2, progress=False)
    assert result.summary["episodes"].tolist() == [4, 4]
    assert result.summary["eval.episode_length"].tolist() == [4, 4]


def test_a_table_of_ones_own() -> None:
    watch, params = envs.make("WatchRepair", max_length=3)
    learning = jc.TabularAgent(env=watch, env_params=params, index=lambda state: state.brand, num_states=4)
    state = learning.init(KEY)
    assert state.params.action_value.shape == (4, 2)
    state = jax.jit(learning.step)(state)[0]
    assert state.params.visits.sum() == 3 and (state.params.visits.sum(axis=1) > 0).sum() == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learner": "td"}, "choose one of q, sarsa, monte_carlo, direct"),
        ({"shaping": "look_ahead"}, r"give credit=RUDDER\(\)"),
        ({"shaping": "look_back", "credit": RUDDER}, "learner='sarsa' only"),
        ({"shaping": "reward", "learner": "direct", "credit": RUDDER}, "another learner"),
        ({"num_states": 3}, "belong together"),
        ({"credit": jc.RUDDER}, "is no estimator"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        agent(**settings)


def test_environments_and_estimators_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="does not number its states"):
        jc.TabularAgent(env=envs.make("WatchRepair")[0])
    with pytest.raises(ValueError, match="does not rewrite the reward"):
        agent(credit=jc.GAE()).init(KEY)
    pendulum, params = envs.make("Pendulum-v1")
    with pytest.raises(ValueError, match="continuous"):
        jc.TabularAgent(env=pendulum, env_params=params, index=lambda state: 0, num_states=1).init(KEY)
