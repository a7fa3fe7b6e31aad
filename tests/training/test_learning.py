"""Learning, several seeds at once: probes that need one part of an agent each, memory, and a delayed reward."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
import jaxcredit as jc
from jaxcredit.evaluation.statistics import iqm

SEEDS = jax.random.split(jax.random.key(7), 8)


def final(agent: jc.OnPolicyAgent, iterations: int, measure: str = "episode_return") -> np.ndarray:
    """A metric of training over the last tenth, for eight seeds trained in one program."""
    _, metrics = jax.jit(jax.vmap(partial(jc.train, num_iterations=iterations, num_points=10), (None, 0)))(
        jc.as_arrays(agent), SEEDS
    )
    return np.asarray(metrics[measure][:, -1])


def probe(name: str, agent: type[jc.OnPolicyAgent] = jc.PPO, **settings: Any) -> jc.OnPolicyAgent:
    env, params = envs.make(name)
    settings = {"num_envs": 8, "num_steps": 8, "hidden": (8,), "learning_rate": 1e-2} | settings
    return agent(env=env, env_params=params, **settings)


@pytest.mark.parametrize(
    ("name", "agent"), [("ProbeObservationAction", jc.PPO), ("ProbeAction", jc.A2C), ("ProbeAction", jc.REINFORCE)]
)
def test_the_policy_learns(name: str, agent: type[jc.OnPolicyAgent]) -> None:
    score = final(probe(name, agent), 60)
    assert iqm(score) > 0.9, score


@pytest.mark.parametrize(
    ("name", "observation", "expected"),
    [("ProbeObservation", [[-1.0], [1.0]], [-1.0, 1.0]), ("ProbeDelay", [[0.0], [1.0]], [0.5, 1.0])],
)
def test_the_critic_learns(name: str, observation: list[list[float]], expected: list[float]) -> None:
    agent = probe(name, jc.A2C, credit=jc.GAE(gamma=0.5))

    def value(key: jax.Array) -> jax.Array:
        state, _ = jc.train(agent, key, 300)
        x = jnp.asarray(observation)[None]
        return agent.apply(state.params, state.moments, (), x, jnp.zeros(x.shape[:2], bool))[2][0]

    values = jax.jit(jax.vmap(value))(SEEDS)
    np.testing.assert_allclose(np.median(values, axis=0), expected, atol=0.1)


def test_memory_is_used() -> None:
    env, params = envs.make("MemoryChain-bsuite", memory_length=2, max_steps_in_episode=4)
    agent = jc.PPO(
        env=env, env_params=params, num_envs=16, num_steps=16, hidden=(8,), learning_rate=1e-2, minibatches=1, memory=8
    )
    assert iqm(final(agent, 100)) > 0.8


def test_continuous_actions_learn() -> None:
    env, params = envs.make("Pendulum-v1", max_steps_in_episode=4)
    agent = jc.PPO(env=env, env_params=params, num_envs=4, num_steps=8, hidden=(8,), minibatches=2)
    _, metrics = jax.jit(jax.vmap(partial(jc.train, agent, num_iterations=3)))(SEEDS[:2])
    assert all(np.isfinite(x).all() for x in metrics.values())
    assert (metrics["approx_kl"] > 0).all()


def test_rudder_finds_the_delayed_reward() -> None:
    env, params = envs.make("DelayedKeyToDoor", length=10)
    rudder = jc.RUDDER(hidden=8, fits=10, capacity=1024)
    agent = jc.PPO(
        env=env, env_params=params, credit=jc.chain(rudder, jc.GAE(gamma=1.0, lam=0.0)),
        num_envs=16, hidden=(16,), learning_rate=3e-3, entropy_coefficient=0.01, minibatches=1, log_info=("treasure",),
    )  # fmt: skip
    score = final(agent, 150, "treasure")
    assert iqm(score) > 0.8, score
