"""What jaxcredit is timed against: the extra `bench`, imported only when it is run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax

from experiments.benchmarks.timing import Compiled, compile_jax

Peer = Callable[[int, int, int], Compiled]


def stable_baselines3(num_envs: int, seeds: int, updates: int) -> Compiled:
    """PPO of stable-baselines3 on gymnasium's CartPole-v1, one thread, one seed after another (so only one is run)."""
    import torch  # pyright: ignore[reportMissingImports]
    from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.env_util import make_vec_env  # pyright: ignore[reportMissingImports]

    del seeds
    torch.set_num_threads(1)
    steps = min(updates, 8) * num_envs * 128
    began = time.perf_counter()
    agent = PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", n_envs=num_envs), n_steps=128, batch_size=num_envs * 32, n_epochs=4,
        learning_rate=3e-4, device="cpu",
    )  # fmt: skip

    def call() -> list[Any]:
        agent.learn(total_timesteps=steps)
        return []

    return Compiled(call, float(steps), time.perf_counter() - began, float("nan"))


def jaxnasium(num_envs: int, seeds: int, updates: int) -> Compiled:
    """PPO of jaxnasium on its own CartPole, with networks and settings of the plain loop; seeds by vmap.

    Its observation and reward normalisation, which the others do not have, and its logging are off; one warm-up step
    for the normaliser is the least that it allows.
    """
    import equinox  # pyright: ignore[reportMissingImports]
    import jaxnasium as library  # pyright: ignore[reportMissingImports]
    from jaxnasium.algorithms import PPO  # pyright: ignore[reportMissingImports]
    from jaxnasium.algorithms.architectures import MLP  # pyright: ignore[reportMissingImports]

    steps = updates * num_envs * 128
    network = {"body": MLP.with_params(hidden_sizes=(64, 64), activation=jax.numpy.tanh)}
    trainer = PPO(
        total_timesteps=steps, num_envs=num_envs, num_steps=128, num_epochs=4, num_minibatches=4, warmup_steps=1,
        learning_rate_start=3e-4, learning_rate_end=None, ent_coef_start=0.0, ent_coef_end=None, max_grad_norm=0.5,
        vf_coef=0.5, normalize_observations=False, normalize_rewards=False, log_function=None, actor_kwargs=network,
        critic_kwargs=network,
    )  # fmt: skip
    env = library.make("CartPole-v1")

    def train(key: jax.Array) -> Any:
        agent, metrics = trainer.train(key, env)
        return equinox.filter(agent, equinox.is_array), metrics

    keys = jax.random.split(jax.random.PRNGKey(0), seeds)
    return compile_jax(jax.vmap(train), keys, work=float(steps * seeds))


PPO: dict[str, Peer] = {"jaxnasium": jaxnasium, "stable-baselines3": stable_baselines3}
# seeds for which a peer has nothing new to show
ONE_SEED = ("stable-baselines3",)


# What rlax needs beside rewards is built within the timed program from what everyone is given.


def rlax_gae(reward: Any, value: Any, next_value: Any, terminated: Any, log_rho: Any) -> Any:
    """rlax's truncated GAE, time-major over columns."""
    import rlax

    def column(reward: Any, discount: Any, values: Any) -> Any:
        return rlax.truncated_generalized_advantage_estimation(reward, discount, 0.95, values)

    del log_rho
    values = jax.numpy.concatenate([value, next_value[-1:]])
    return jax.vmap(column, 1, 1)(reward, 0.99 * (1 - terminated), values)


def rlax_lambda_returns(reward: Any, value: Any, next_value: Any, terminated: Any, log_rho: Any) -> Any:
    import rlax

    del value, log_rho
    discount = 0.99 * (1 - terminated)
    return jax.vmap(lambda r, d, v: rlax.lambda_returns(r, d, v, 0.95), 1, 1)(reward, discount, next_value)


def rlax_vtrace(reward: Any, value: Any, next_value: Any, terminated: Any, log_rho: Any) -> Any:
    import rlax

    def column(value: Any, next_value: Any, reward: Any, discount: Any, rho: Any) -> Any:
        return rlax.vtrace_td_error_and_advantage(value, next_value, reward, discount, rho)

    discount = 0.99 * (1 - terminated)
    return jax.vmap(column, 1, 1)(value, next_value, reward, discount, jax.numpy.exp(log_rho))


RLAX: dict[str, Callable[..., Any]] = {
    "gae": rlax_gae,
    "lambda_returns": rlax_lambda_returns,
    "vtrace": rlax_vtrace,
}
