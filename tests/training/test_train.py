"""Training as one pure program: curves, memory, seeds, compilation, hangs."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
import jaxcredit as jc

ENV, PARAMS = envs.make("CartPole-v1")
KEY = jax.random.key(0)
TRAIN = jax.jit(jax.vmap(jc.train, (None, 0, None)), static_argnums=2)


def small(**settings: Any) -> jc.PPO:
    return jc.PPO(
        env=ENV, env_params=PARAMS, **({"num_envs": 2, "num_steps": 4, "hidden": (4,), "minibatches": 2} | settings)
    )


@pytest.fixture(scope="module")
def trained() -> tuple[jc.TrainState, dict[str, jax.Array]]:
    return TRAIN(jc.as_arrays(small()), jax.random.split(KEY, 2), 10)


def test_counters(trained: Any) -> None:
    state, metrics = trained
    assert state.iteration.shape == (2,) and (state.iteration == 10).all()
    assert metrics["total_steps"][:, -1].tolist() == [80, 80] == metrics["valid_steps"][:, -1].tolist()
    np.testing.assert_array_equal(metrics["total_steps"][0], np.arange(8, 81, 8))


@pytest.fixture(scope="module")
def started() -> tuple[jc.TrainState, jc.Trajectory]:
    """Two seeds before training, and their first windows with the weights and starts of the first seed."""
    agent = small()

    def start(key: jax.Array) -> Any:
        same = agent.init(KEY)  # so that what differs between windows comes from the key of the window
        return agent.init(key), agent.gather(key, same.params, same.moments, same.runner)[1]

    return jax.jit(jax.vmap(start))(jax.random.split(KEY, 2))


def test_seeds_differ_in_weights(started: Any) -> None:
    for leaf in jax.tree.leaves(started[0].params):
        if leaf.any():
            assert (leaf[0] != leaf[1]).any()


def test_seeds_differ_in_actions(started: Any) -> None:
    assert (started[1].action[0] != started[1].action[1]).any()


def test_seeds_differ_in_the_environment(started: Any) -> None:
    starts = started[0].runner.observation
    assert (starts[0] != starts[1]).any()


def test_curves_have_a_fixed_number_of_points_and_lose_nothing() -> None:
    state = jax.eval_shape(small().init, KEY)
    for iterations, points in ((5, 5), (8, 8), (10, 5), (1000, 8)):
        curves = jax.eval_shape(partial(jc.advance, small(), num_iterations=iterations, num_points=8), state)[1]
        assert {x.shape for x in curves.values()} == {(points,)}


def test_a_point_averages_its_iterations_and_a_seed_does_not_depend_on_others(trained: Any) -> None:
    """One seed alone, in coarse points, against the fine points of the same seed trained beside another."""
    coarse = jax.jit(partial(jc.train, num_iterations=10, num_points=4))(
        jc.as_arrays(small()), jax.random.split(KEY, 2)[0]
    )[1]
    fine = np.asarray(trained[1]["entropy"][0])
    np.testing.assert_allclose(
        coarse["entropy"], [fine[0:3].mean(), fine[3:6].mean(), fine[6:9].mean(), fine[9]], rtol=1e-5
    )
    assert coarse["total_steps"].tolist() == [24, 48, 72, 80]


def program(agent: jc.PPO, seeds: int, iterations: int) -> Any:
    many = jax.vmap(partial(jc.train, num_iterations=iterations), (None, 0))
    return jax.jit(many).lower(jc.as_arrays(agent), jax.random.split(KEY, seeds)).compile()


@pytest.fixture(scope="module")
def compiled() -> Any:
    """Programs of 10 and 10,000 iterations, and of twice the seeds: compiled, never run."""
    return {(seeds, n): program(small(minibatches=1), seeds, n) for seeds, n in ((8, 10), (8, 10_000), (16, 10_000))}


def with_rudder() -> jc.PPO:
    rudder = jc.RUDDER(hidden=2, fits=2, fit_batch=2, capacity=8)
    return small(credit=jc.chain(rudder, jc.GAE()), horizon=4, minibatches=1)


@pytest.fixture(scope="module")
def rudder_program() -> Any:
    return program(with_rudder(), 8, 10)


def test_memory_does_not_grow_with_training(compiled: Any) -> None:
    short, long = (compiled[8, n].memory_analysis() for n in (10, 10_000))
    points = 8 * (128 - 10) * 4 * 40  # metrics: at most 128 points of at most 40 numbers
    assert long.temp_size_in_bytes - short.temp_size_in_bytes <= 2 * points
    assert long.output_size_in_bytes - short.output_size_in_bytes <= points


def test_memory_is_linear_in_seeds(compiled: Any) -> None:
    once, twice = (compiled[seeds, 10_000].memory_analysis().temp_size_in_bytes for seeds in (8, 16))
    assert 1.6 < twice / once < 2.2


def test_no_lapack_in_training(rudder_program: Any) -> None:
    text = rudder_program.as_text()
    assert "lapack" not in text and "cusolver" not in text


def test_twenty_vmapped_trainings_finish(rudder_program: Any) -> None:
    agent = jc.as_arrays(with_rudder())
    for i in range(20):
        _, metrics = rudder_program(agent, jax.random.split(jax.random.key(i), 8))
        assert np.isfinite(jax.device_get(metrics["policy_loss"])).all()


def test_no_float_recompiles(trained: Any) -> None:
    before = TRAIN._cache_size()
    keys = jax.random.split(KEY, 2)
    for i, path in enumerate(p for p in jc.leaf_paths(small()) if not p.startswith("env_params")):
        TRAIN(jc.as_arrays(jc.replace_at(small(), path, (1.0, 1, jnp.float32(1.0))[i % 3])), keys, 10)
    assert TRAIN._cache_size() == before


def test_evaluation_is_apart_from_training() -> None:
    env, params = envs.make("ProbeObservation")
    agent = jc.PPO(env=env, env_params=params, num_envs=2, num_steps=4, hidden=(2,), minibatches=1)
    state, judge = agent.init(KEY), jax.jit(jc.evaluate, static_argnums=3)
    result = judge(agent, state, KEY, 64)
    assert result["episode_length"] == 1
    assert -1 <= result["episode_return"] <= 1
    diverged = judge(agent, state.replace(params=jax.tree.map(lambda x: x + jnp.nan, state.params)), KEY, 64)
    assert all(jnp.isnan(value) for value in diverged.values())


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("number", [0, 2.5, "ten"])
def test_bad_numbers(number: Any) -> None:
    with pytest.raises(ValueError, match="whole number of at least 1"):
        jc.train(small(), KEY, number)
