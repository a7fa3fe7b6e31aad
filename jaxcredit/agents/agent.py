"""What training asks of an agent, whatever it learns: a state of arrays, one pure step, and a policy to play."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxcredit.agents.rollout import Runner, environment_name
from jaxcredit.core.frozen import Frozen
from jaxcredit.core.statistics import Mean, RunningMoments
from jaxcredit.core.trajectory import Trajectory

Metrics = dict[str, Mean]

# what a seed's key is used for beside its iterations
RESET, NETWORK, EXAMPLE, CREDIT, EVALUATION, PICTURE = range(6)


def outside_training(key: jax.Array, purpose: int) -> jax.Array:
    """A key of the seed from which no iteration draws."""
    return jax.random.fold_in(jax.random.fold_in(key, 0), purpose)


@struct.dataclass
class TrainState(Frozen):
    """Everything a run consists of; arrays only.

    Attributes:
      iteration: `[]` int32, the same for all seeds and kept unbatched under `vmap`.
      key: the seed's key; iteration i draws from `fold_in(key, i + 1)`, everything else from `outside_training`.
      params: network parameters, or the table of a tabular agent.
      opt_state: optimiser state.
      moments: running moments of the observations, or None.
      credit: state of the estimator.
      runner: where the environments stand.
      total_steps: `[]` int32, slots collected so far (padding included).
      valid_steps: `[]` int32, steps of episodes among them.
      episodes: `[]` int32, episodes finished.
    """

    iteration: jax.Array
    key: jax.Array
    params: Any
    opt_state: Any
    moments: RunningMoments | None
    credit: Any
    runner: Runner
    total_steps: jax.Array
    valid_steps: jax.Array
    episodes: jax.Array

    def counted(self, trajectory: Trajectory, metrics: Metrics) -> TrainState:
        """One iteration further: what was collected is added to the counters."""
        return self.replace(
            iteration=self.iteration + 1,
            total_steps=self.total_steps + trajectory.mask.size,
            valid_steps=self.valid_steps + trajectory.mask.sum(),
            episodes=self.episodes + metrics["episode_return"].count.astype(jnp.int32),
        )


class Agent(Frozen):
    """What `train`, `evaluate`, `sweep` and `run` ask of an agent.  `OnPolicyAgent` and `TabularAgent` give it.

    Attributes:
      env, env_params: a gymnax environment and its parameters.
      num_envs: environments stepped together.
      horizon: longest episode, or None for the environment's.
      log_info: names of `info` entries to report.
      split_environments: lay the environments of a seed over all devices, instead of the seeds.
    """

    env: Any
    env_params: Any
    num_envs: int
    horizon: int | None
    log_info: tuple[str, ...]
    split_environments: bool

    @property
    def window(self) -> int:
        """Length T of a collected batch."""
        raise NotImplementedError

    @property
    def policy(self) -> Any:
        """What acts; its `initial_carry(num_envs)` is the hidden state at the start of episodes."""
        raise NotImplementedError

    @property
    def bounds(self) -> tuple[jax.Array, jax.Array] | None:
        """Least and greatest continuous action; None for discrete actions."""
        raise NotImplementedError

    def init(self, key: jax.Array) -> TrainState:
        """Build the state of a run from one key."""
        raise NotImplementedError

    def step(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """One iteration: collect, assign credit, learn.  Pure; metrics are `Mean`s of scalars."""
        raise NotImplementedError

    def play(
        self,
        key: jax.Array,
        params: Any,
        moments: RunningMoments | None,
        runner: Runner,
        num_steps: int,
        **options: Any,
    ) -> tuple[Runner, Trajectory, Metrics]:
        """Run the sampled policy; see `collect`, which takes the options."""
        raise NotImplementedError


def check_agent(agent: Any) -> None:
    """Raise a ValueError unless an agent has an environment, an instance for its estimator and a possible horizon."""
    if agent.env is None or isinstance(agent.env, tuple):
        raise ValueError(
            f"{type(agent).__name__} needs env= and env_params=, the two things that envs.make gives: "
            "env, params = envs.make('CartPole-v1')."
        )
    if isinstance(agent.credit, str | type):
        raise ValueError(f"credit={agent.credit!r} is no estimator; give an instance, for example GAE(lam=0.9).")
    if agent.horizon is not None and (type(agent.horizon) is not int or agent.horizon < 1):
        raise ValueError(f"horizon={agent.horizon!r} is not allowed; give a whole number of at least 1, or None.")


def check_key(key: jax.Array) -> None:
    """Raise a ValueError unless this is the typed random key of one seed."""
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.ndim:
        raise ValueError(
            f"The key of a seed must be one typed random key, jax.random.key(0); got {key.dtype}{list(key.shape)}. "
            "Many seeds are a vmap over jax.random.split(key, number)."
        )


def episode_bound(agent: Any, user: str, instead: str) -> int:
    """Steps that an episode may last: the agent's horizon, or the environment's.

    Args:
      agent: the agent; user: who works on whole episodes; instead: what else the caller could do, both for the message.
    Raises:
      ValueError: neither says.
    """
    horizon = agent.horizon or getattr(agent.env, "horizon", None)
    if horizon is None:
        raise ValueError(
            f"{user} works on whole episodes, but {environment_name(agent.env)} has no horizon. Give the agent "
            f"horizon=N (episodes still open after N steps are cut there){instead}."
        )
    return int(horizon)
