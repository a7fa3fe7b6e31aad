"""Sweeps: one program, every point, labelled rows."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import envs
import jaxcredit as jc
from jaxcredit.training.sweep import _train_points

ENV, PARAMS = envs.make("ProbeAction")
KEYS = jax.random.split(jax.random.key(0), 2)
AGENT = jc.PPO(
    env=ENV,
    env_params=PARAMS,
    credit=jc.chain(jc.ScaleReward(), jc.GAE()),
    num_envs=2,
    num_steps=4,
    hidden=(2,),
    minibatches=1,
)


def test_a_grid_is_one_row_per_point_and_seed_from_one_program(caplog: pytest.LogCaptureFixture) -> None:
    values = {"learning_rate": [0.0, 0.1], "credit.1.lam": [0.0, 0.5, 1.0]}
    with jax.log_compiles(), caplog.at_level("WARNING"):
        frame = jc.sweep(AGENT, values, KEYS, num_iterations=20, eval_episodes=4)
    compiled = [
        r for r in caplog.records if _train_points.__name__ in r.getMessage() and "Finished XLA" in r.getMessage()
    ]
    assert len(compiled) == 1
    assert len(frame) == 2 * 3 * 2
    assert list(frame.columns[:3]) == ["learning_rate", "credit.1.lam", "seed"]
    assert frame["seed"].tolist() == [0, 1] * 6
    frozen = frame[frame["learning_rate"] == 0]
    assert (frozen["approx_kl"].abs() < 1e-6).all() and (frozen["entropy"].std() < 1e-6)
    assert (frame[frame["learning_rate"] > 0]["entropy"] < frozen["entropy"].min() - 1e-3).all()
    assert "eval.episode_return" in frame


def test_a_point_equals_training_with_its_settings() -> None:
    frame = jc.sweep(AGENT, {"learning_rate": [0.01]}, KEYS, num_iterations=20, summary="mean")
    alone = jax.jit(jc.train, static_argnums=2)(jc.as_arrays(AGENT.replace(learning_rate=0.01)), KEYS[1], 20)[1]
    np.testing.assert_allclose(frame["entropy"][1], alone["entropy"].mean(), rtol=1e-5)


def test_zip_shared_paths_and_environment_params() -> None:
    values = {("credit.0.gamma", "credit.1.gamma"): [0.9, 0.99], "env_params.reward": [1.0, 2.0]}
    frame = jc.sweep(AGENT, values, KEYS[:1], num_iterations=2, mode="zip", batch_points=1)
    assert frame["credit.0.gamma"].tolist() == frame["credit.1.gamma"].tolist() == [0.9, 0.99]
    assert (frame["episode_return"].abs() <= frame["env_params.reward"]).all()


@pytest.mark.parametrize(
    ("numbers", "message"), [([5, 50], "must lie between 3 and max_length=10"), ([5, 4.5], "takes whole numbers")]
)
def test_what_the_environment_does_not_take(numbers: list[float], message: str) -> None:
    env, params = envs.make("DelayedKeyToDoor", length=10)
    with pytest.raises(ValueError, match=message):
        jc.sweep(AGENT.replace(env=env, env_params=params), {"env_params.length": numbers}, KEYS, num_iterations=1)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ({"learning_rte": [1.0]}, {}, "did you mean learning_rate"),
        ({"credit.1.lambda": [1.0]}, {}, "did you mean lam"),
        ({"credit.5.lam": [1.0]}, {}, "Chain has no field '5'; did you mean 0, 1"),
        ({"num_envs": [2, 4]}, {}, "shapes the program and cannot be swept"),
        ({"learning_rate": 0.1}, {}, "give a list of numbers"),
        ({"learning_rate": ["a"]}, {}, "give a list of numbers"),
        ({"learning_rate": [0.1]}, {"summary": "median"}, "choose last or mean"),
        ({}, {}, "at least one path"),
        ({"learning_rate": []}, {}, "at least one value"),
        ({"learning_rate": [1.0, 2.0], "clip": [0.1]}, {"mode": "zip"}, "equally many values"),
        ({"learning_rate": [1.0]}, {"mode": "random"}, "choose grid or zip"),
        ({"learning_rate": [1.0, 2.0, 3.0]}, {"batch_points": 2}, "does not divide the 3 points"),
    ],
)
def test_bad_input(values: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jc.sweep(AGENT, values, KEYS, num_iterations=1, **options)
