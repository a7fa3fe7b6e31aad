"""The field's reference loop, as a yardstick: PPO in one file, in the style of PureJaxRL, written from its description.

Actor and critic are evaluated in every environment step, keys are split in every step, the optimiser is optax on a tree
of parameters, every epoch gathers shuffled minibatches, and the reset is computed at every step.  Time limits are
treated as jaxcredit treats them: the value of the observation before the reset is bootstrapped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn


class Network(nn.Module):
    """Policy logits and value, two tanh networks apart from each other."""

    actions: int
    width: int = 64

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        heads = []
        for outputs in (self.actions, 1):
            y = x
            for _ in range(2):
                y = nn.tanh(nn.Dense(self.width)(y))
            heads.append(nn.Dense(outputs)(y))
        return heads[0], heads[1][..., 0]


class Step(NamedTuple):
    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    next_value: jax.Array
    reward: jax.Array
    terminated: jax.Array
    ended: jax.Array


class Settings(NamedTuple):
    num_envs: int = 4
    num_steps: int = 128
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 3e-4
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.0
    max_grad_norm: float = 0.5


def evaluate(network: Network, weights: Any, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
    outputs: Any = network.apply(weights, observation)
    return outputs


def make_env_step(env: Any, params: Any, network: Network, num_envs: int) -> Any:
    """One step of all environments, to be scanned."""

    def env_step(runner: Any, _: None) -> tuple[Any, Step]:
        weights, env_state, observation, key = runner
        key, action_key, step_key = jax.random.split(key, 3)
        logits, value = evaluate(network, weights, observation)
        action = jax.random.categorical(action_key, logits)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
        after, env_state, reward, terminated, truncated, info = jax.vmap(env.step, (0, 0, 0, None))(
            jax.random.split(step_key, num_envs), env_state, action, params
        )
        next_value = evaluate(network, weights, info["final_observation"])[1]
        step = Step(observation, action, log_prob, value, next_value, reward, terminated, terminated | truncated)
        return (weights, env_state, after, key), step

    return env_step


def start(env: Any, params: Any, network: Network, num_envs: int, key: jax.Array) -> Any:
    """Weights, environments, observations and key before the first step."""
    key, reset_key, network_key = jax.random.split(key, 3)
    observation, env_state = jax.vmap(env.reset, (0, None))(jax.random.split(reset_key, num_envs), params)
    return network.init(network_key, observation), env_state, observation, key


def make_collect(env: Any, params: Any, settings: Settings, windows: int) -> Any:
    """key -> mean of what each window collected: the rollouts alone."""
    network = Network(env.action_space(params).n)
    env_step = make_env_step(env, params, network, settings.num_envs)

    def window(runner: Any, _: None) -> tuple[Any, jax.Array]:
        runner, steps = jax.lax.scan(env_step, runner, None, settings.num_steps)
        return runner, steps.reward.mean() + steps.next_value.mean() + steps.log_prob.mean()

    def collect(key: jax.Array) -> jax.Array:
        return jax.lax.scan(window, start(env, params, network, settings.num_envs, key), None, windows)[1]

    return collect


def make_train(env: Any, params: Any, settings: Settings, updates: int) -> Any:
    """key -> (parameters, mean reward of each update); jit it, vmap it over keys."""
    s = settings
    network = Network(env.action_space(params).n)
    optimizer = optax.chain(optax.clip_by_global_norm(s.max_grad_norm), optax.adam(s.learning_rate, eps=1e-5))
    env_step = make_env_step(env, params, network, s.num_envs)

    def advantages(steps: Step) -> jax.Array:
        def back(following: jax.Array, step: Step) -> tuple[jax.Array, jax.Array]:
            error = step.reward + s.gamma * step.next_value * (1 - step.terminated) - step.value
            advantage = error + s.gamma * s.lam * (1 - step.ended) * following
            return advantage, advantage

        return jax.lax.scan(back, jnp.zeros(s.num_envs), steps, reverse=True)[1]

    def loss(weights: Any, step: Step, advantage: jax.Array, target: jax.Array) -> jax.Array:
        logits, value = evaluate(network, weights, step.observation)
        log_probs = jax.nn.log_softmax(logits)
        ratio = jnp.exp(jnp.take_along_axis(log_probs, step.action[:, None], 1)[:, 0] - step.log_prob)
        surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - s.clip, 1 + s.clip) * advantage).mean()
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
        error = 0.5 * jnp.square(value - target).mean()
        return -surrogate + s.value_coefficient * error - s.entropy_coefficient * entropy

    def minibatch(learner: Any, batch: Any) -> tuple[Any, None]:
        weights, opt_state = learner
        changes, opt_state = optimizer.update(jax.grad(loss)(weights, *batch), opt_state, weights)
        return (optax.apply_updates(weights, changes), opt_state), None

    def epoch(state: Any, _: None) -> tuple[Any, None]:
        learner, batch, key = state
        key, order_key = jax.random.split(key)
        size = s.num_envs * s.num_steps
        order = jax.random.permutation(order_key, size)
        shuffled = jax.tree.map(lambda x: x[order].reshape(s.minibatches, -1, *x.shape[1:]), batch)
        learner, _ = jax.lax.scan(minibatch, learner, shuffled)
        return (learner, batch, key), None

    def update(state: Any, _: None) -> tuple[Any, jax.Array]:
        (weights, opt_state), env_state, observation, key = state
        (_, env_state, observation, key), steps = jax.lax.scan(
            env_step, (weights, env_state, observation, key), None, s.num_steps
        )
        advantage = advantages(steps)
        target = advantage + steps.value
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (steps, advantage, target))
        (learner, _, key), _ = jax.lax.scan(epoch, ((weights, opt_state), flat, key), None, s.epochs)
        return (learner, env_state, observation, key), steps.reward.mean()

    def train(key: jax.Array) -> tuple[Any, jax.Array]:
        weights, env_state, observation, key = start(env, params, network, s.num_envs, key)
        state = ((weights, optimizer.init(weights)), env_state, observation, key)
        ((weights, _), *_), rewards = jax.lax.scan(update, state, None, updates)
        return weights, rewards

    return train
