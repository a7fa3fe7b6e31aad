"""Where an environment step of PPO spends its time: each part of an iteration as a program of its own.

Every program repeats its part, and lets each repetition depend on the one before, so that nothing is computed once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import jaxcredit as jc
from jaxcredit.agents.descent import shuffled

PARTS = ("whole", "rollout", "rollout and evaluation", "recursion", "shuffle", "updates and shuffle")


def repeated(part: str, windows: int) -> Callable[[jc.PPO, jax.Array], jax.Array]:
    """(agent, key) -> a number that depends on `windows` repetitions of a part."""
    if part == "whole":
        return lambda agent, key: jc.train(agent, key, windows)[1]["episode_return"]
    one = {
        "rollout": rollout,
        "rollout and evaluation": evaluated_rollout,
        "recursion": recursion,
        "shuffle": shuffle,
        "updates and shuffle": updates,
    }[part]

    def program(agent: jc.PPO, key: jax.Array) -> jax.Array:
        state = agent.init(key)
        _, trajectory, _, _ = agent.gather(key, state.params, state.moments, state.runner)
        trajectory = agent.credit.assign(key, state.credit, trajectory)
        carry = (state.params, state.opt_state, state.runner, jnp.zeros(()))
        return jax.lax.scan(partial(one, agent, state, trajectory), carry, jax.random.split(key, windows))[0][-1]

    return program


def rollout(agent: jc.PPO, state: jc.TrainState, _: Any, carry: Any, key: jax.Array) -> Any:
    params, opt_state, runner, total = carry
    runner, t, _ = agent.play(key, params, state.moments, runner, agent.window, episodic=False)
    return (params, opt_state, runner, total + t.reward.sum() + t.logits.sum() + t.next_observation.sum()), None


def evaluated_rollout(agent: jc.PPO, state: jc.TrainState, _: Any, carry: Any, key: jax.Array) -> Any:
    params, opt_state, runner, total = carry
    runner, t, _, _ = agent.gather(key, params, state.moments, runner)
    return (params, opt_state, runner, total + t.log_prob.sum() + t.value.sum() + t.next_value.sum()), None


def recursion(agent: jc.PPO, state: jc.TrainState, trajectory: jc.Trajectory, carry: Any, key: jax.Array) -> Any:
    *others, total = carry
    t = agent.credit.assign(key, state.credit, trajectory.replace(reward=trajectory.reward + total))
    return (*others, 1e-6 * (t.advantage.sum() + t.value_target.sum())), None


def shuffle(agent: jc.PPO, _: Any, trajectory: jc.Trajectory, carry: Any, key: jax.Array) -> Any:
    *others, total = carry
    for epoch in jax.random.split(key, agent.epochs):
        order = shuffled(epoch, trajectory.mask.size)
        total = total + order[0] + order[-1] * order[order.shape[0] // 2]
    return (*others, total), None


def updates(agent: jc.PPO, state: jc.TrainState, trajectory: jc.Trajectory, carry: Any, key: jax.Array) -> Any:
    params, opt_state, runner, total = carry
    params, opt_state, losses = agent._learn(key, state.replace(params=params, opt_state=opt_state), (), trajectory)
    return (params, opt_state, runner, total + losses["policy_loss"]), None


def arithmetic(agent: jc.PPO, observation: int, actions: int) -> float:
    """Multiplications and additions of one environment step in matrix products alone.

    Forward passes: one of the actor in the rollout, two of the critic after it.  Updates: in every epoch the forward
    pass of both and the gradients by weights and by inputs (not by the observation).
    """
    widths = (observation, *agent.hidden)
    trunk = [a * b for a, b in itertools.pairwise(widths)]
    actor, critic = (sum(trunk) + agent.hidden[-1] * outputs for outputs in (actions, 1))
    gradients = 3 * (actor + critic) - 2 * trunk[0]
    return 2.0 * (actor + 2 * critic + agent.epochs * gradients)
