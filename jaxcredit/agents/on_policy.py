"""What REINFORCE, A2C and PPO share: collect, annotate, assign credit, learn.  They differ in their loss and epochs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from jaxcredit.agents.agent import (
    CREDIT,
    EXAMPLE,
    NETWORK,
    RESET,
    Agent,
    Metrics,
    TrainState,
    check_agent,
    check_key,
    episode_bound,
    outside_training,
)
from jaxcredit.agents.descent import descend
from jaxcredit.agents.rollout import Runner, collect, environment_name, over_devices, start
from jaxcredit.core.estimator import Context, CreditEstimator
from jaxcredit.core.fields import INFINITY, check_fields, static, whole, within
from jaxcredit.core.statistics import Mean, RunningMoments
from jaxcredit.core.trajectory import Trajectory, masked_mean, standardise
from jaxcredit.networks.actor_critic import ActorCritic, as_distribution, distribution_parameters, draw_noise, sample
from jaxcredit.networks.mlp import flatten_observation
from jaxcredit.networks.policy import apply_normalised, into_bounds
from jaxcredit.time_centric.returns import GAE

# values behind the cuts of a window that are evaluated together, at least
CUTS_AT_ONCE = 32


@struct.dataclass
class OnPolicyAgent(Agent):
    """Collect -> annotate -> `credit.update_and_assign` -> gradient steps.  Floats are traced, the rest is static.

    Attributes:
      env, env_params: a gymnax environment (see `envs.make`) and its parameters.
      credit: the estimator that writes `advantage` or `action_advantage`, and `value_target` if a critic is wanted.
      learning_rate: step size of Adam.
      anneal_iterations: the learning rate falls linearly to 0 over so many iterations; infinite: constant.
      max_grad_norm: gradients are clipped to this global norm.
      entropy_coefficient: weight of the policy's entropy, per step.
      value_coefficient: weight of the critic's squared error (halved).
      value_clip: new values are kept within this distance of the old ones in the critic's loss; infinite: off.
      auxiliary_coefficient: weight of the network's own loss, if it has one (see networks/actor_critic.py).
      num_envs: environments B stepped together.
      split_environments: lay the environments of a seed over all devices of the process, for few large seeds; gradients
        are then sums over devices.  Otherwise `run` lays the seeds over them.
      num_steps: window length T of continuing collection.
      horizon: episode length T of episodic collection; None takes the environment's.
      episodic: collect whole episodes; None does so exactly where the estimator needs them.
      group_size: episodes that share a start (episodic collection).
      hidden, memory: widths of the default network's hidden layers; GRU units (0: no memory).
      network: replaces the default `ActorCritic`: a `PolicyNetwork` such as `MemoryActorCritic(action_size)`.
      normalise_observation: scale observations by their running moments.
      standardise_advantage: subtract the batch's mean advantage and divide by its standard deviation.
      needs_next_observation: keep `next_observation` in the trajectory (the estimator's wish counts too).
      log_info: names of `info` entries to report, averaged over the last steps of episodes.
    """

    env: Any = static(None)
    env_params: Any = None
    credit: CreditEstimator = struct.field(default_factory=GAE)
    learning_rate: float = within(0, INFINITY, 3e-4)
    anneal_iterations: float = within(1, INFINITY, INFINITY)
    max_grad_norm: float = within(0, INFINITY, 0.5)
    entropy_coefficient: float = within(-INFINITY, INFINITY, 0.0)
    value_coefficient: float = within(0, INFINITY, 0.5)
    value_clip: float = within(0, INFINITY, INFINITY)
    auxiliary_coefficient: float = within(0, INFINITY, 1.0)
    num_envs: int = whole(16)
    split_environments: bool = static(False)
    num_steps: int = whole(128)
    horizon: int | None = static(None)
    episodic: bool | None = static(None)
    group_size: int = whole(1)
    hidden: tuple[int, ...] = static((64, 64))
    memory: int = whole(0, least=0)
    network: nn.Module | None = static(None)
    normalise_observation: bool = static(False)
    standardise_advantage: bool = static(True)
    needs_next_observation: bool = static(False)
    log_info: tuple[str, ...] = static(())

    # What distinguishes the agents --------------------------------------------------------------------------------

    @property
    def passes(self) -> tuple[int, int]:
        """Epochs over a batch, minibatches per epoch."""
        return 1, 1

    def policy_loss(self, log_ratio: jax.Array, advantage: jax.Array) -> jax.Array:
        """Loss of actions with log(pi / pi_old) and credit, elementwise.  Here: the score function times the credit."""
        # exp(log_ratio) is 1 on the batch's own policy; its gradient is the score function
        return -jnp.exp(log_ratio) * advantage

    def average(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Reduce a per-step loss `[T, B]` to a scalar."""
        return masked_mean(x, mask)

    # Construction -------------------------------------------------------------------------------------------------

    def __post_init__(self) -> None:
        check_fields(self)
        check_agent(self)
        if not isinstance(self.hidden, tuple) or not all(type(width) is int and width > 0 for width in self.hidden):
            raise ValueError(f"hidden={self.hidden!r} is not allowed; give a tuple of widths, for example (64, 64).")
        if self.num_envs % self.group_size:
            raise ValueError(
                f"group_size={self.group_size} does not divide num_envs={self.num_envs}; choose sizes that divide."
            )
        if self.split_environments and self.num_envs % jax.local_device_count():
            raise ValueError(
                f"num_envs={self.num_envs} cannot be split evenly over {jax.local_device_count()} devices; choose a "
                "multiple of their number, or split_environments=False."
            )

    @property
    def is_episodic(self) -> bool:
        return self.credit.needs_episodes if self.episodic is None else self.episodic

    @property
    def window(self) -> int:
        """Length T of a collected batch."""
        if not self.is_episodic:
            return self.num_steps
        return episode_bound(self, type(self.credit).__name__, ", or use an estimator that works on windows")

    @property
    def is_discrete(self) -> bool:
        return hasattr(self.env.action_space(self.env_params), "n")

    @property
    def action_size(self) -> int:
        """Number of discrete actions, or dimensions of a continuous one."""
        space = self.env.action_space(self.env_params)
        return int(space.n) if self.is_discrete else math.prod(space.shape)

    @property
    def policy(self) -> Any:
        """The network module."""
        if self.network is not None:
            return self.network
        return ActorCritic(self.action_size, not self.is_discrete, self.hidden, self.memory)

    def init(self, key: jax.Array) -> TrainState:
        """Build the state of a run from one key.

        Raises:
          ValueError: sizes that do not divide, an estimator that writes no advantage, needs episodes on an environment
            without horizon, or writes action advantages for continuous actions.
        """
        check_key(key)
        self._check_sizes()
        purpose = [outside_training(key, i) for i in (RESET, NETWORK, EXAMPLE, CREDIT)]
        carry = self.policy.initial_carry(self.num_envs)
        runner = start(self.env, self.env_params, purpose[0], self.num_envs, carry, self.group_size)
        observation = jax.tree.map(lambda x: x[None], runner.observation)
        params = self.policy.init(purpose[1], carry, observation, runner.first[None])
        moments = (
            RunningMoments.zeros(flatten_observation(observation, 2).shape[2:]) if self.normalise_observation else None
        )
        example = jax.eval_shape(lambda: self.gather(purpose[2], params, moments, runner)[1])
        credit = self.credit.init(purpose[3], example)
        self._writes_value_target(params, credit, example)
        zero = jnp.zeros((), jnp.int32)
        return TrainState(zero, key, params, self.optimizer(0).init(params), moments, credit, runner, zero, zero, zero)

    def _check_sizes(self) -> None:
        _, minibatches = self.passes
        if self.credit.needs_episodes and not self.is_episodic:
            raise ValueError(
                f"{type(self.credit).__name__} works on whole episodes, but episodic=False collects windows. Leave "
                "episodic out, or use an estimator that works on windows."
            )
        if self.group_size > 1 and not self.is_episodic:
            raise ValueError("group_size > 1 needs whole episodes: set episodic=True.")
        columns = self.num_envs if self.policy.recurrent else self.num_envs * self.window
        if columns % minibatches:
            what = (
                "num_envs (minibatches of a recurrent policy split environments)"
                if self.policy.recurrent
                else ("num_envs x window length")
            )
            raise ValueError(f"minibatches={minibatches} does not divide {what} = {columns}; choose sizes that divide.")

    def _writes_value_target(self, params: Any, credit: Any, example: Trajectory) -> bool:
        """Whether the estimator asks for a critic; complains if it assigns no credit at all."""
        assigned = jax.eval_shape(
            lambda c, t: self.credit.assign(jax.random.key(0), c, t, context=self.context(params)), credit, example
        )
        if assigned.advantage is None and assigned.action_advantage is None:
            raise ValueError(
                f"{type(self.credit).__name__} writes neither advantage nor action_advantage, so {type(self).__name__} "
                "has nothing to learn from. End the chain with one that does, for example chain(..., GAE())."
            )
        if assigned.action_advantage is not None and not self.is_discrete:
            raise ValueError(
                f"{type(self.credit).__name__} assigns credit to every action of a discrete set, but the actions of "
                f"{environment_name(self.env)} are continuous. Use an estimator that writes advantage, for "
                "example GAE()."
            )
        return assigned.value_target is not None

    def optimizer(self, iteration: Any) -> optax.GradientTransformation:
        """Adam with clipping by global norm; the step size of this iteration."""
        remaining = 1 - jnp.asarray(iteration, jnp.float32) / self.anneal_iterations
        return optax.chain(
            optax.clip_by_global_norm(self.max_grad_norm),
            optax.scale_by_adam(eps=1e-5),
            optax.scale(-self.learning_rate * jnp.maximum(remaining, 0)),
        )

    # One iteration ------------------------------------------------------------------------------------------------

    def step(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """One iteration: collect, annotate, assign credit, learn.  Pure; metrics are `Mean`s of scalars."""
        key = jax.random.fold_in(state.key, state.iteration + 1)
        collect_key, credit_key, learn_key = (jax.random.fold_in(key, i) for i in range(3))
        runner, trajectory, metrics, carry = self.gather(collect_key, state.params, state.moments, state.runner)
        if not self._writes_value_target(state.params, state.credit, trajectory):
            # no critic is learned, so its initial values must not leak into returns as bootstraps
            zero = jnp.zeros_like(trajectory.value)
            trajectory = trajectory.replace(value=zero, next_value=zero)
        credit, trajectory, credit_metrics = self.credit.update_and_assign(
            credit_key, state.credit, trajectory, context=self.context(state.params)
        )
        params, opt_state, losses = self._learn(learn_key, state, carry, trajectory)
        moments = state.moments
        if moments is not None:
            moments = moments.update(flatten_observation(trajectory.observation, 2), trajectory.mask)
        metrics |= {f"credit.{name}": Mean.of(value) for name, value in credit_metrics.items()}
        state = state.replace(params=params, opt_state=opt_state, moments=moments, credit=credit, runner=runner)
        return state.counted(trajectory, metrics), metrics | {name: Mean.of(value) for name, value in losses.items()}

    def apply(self, params: Any, moments: RunningMoments | None, carry: Any, observation: Any, first: jax.Array) -> Any:
        """The network on observations `[T, B, ...]`, normalised if the agent says so."""
        return apply_normalised(self.policy, params, moments, carry, observation, first)

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
        noise_key, env_key = jax.random.split(key)
        noise = draw_noise(noise_key, not self.is_discrete, (num_steps, *runner.first.shape, self.action_size))

        def act(noise: jax.Array, carry: Any, observation: Any, first: jax.Array) -> tuple[Any, jax.Array, Any]:
            sequence = jax.tree.map(lambda x: x[None], observation)
            carry, distribution, _, _ = self.apply(params, moments, carry, sequence, first[None])
            parameters = jax.tree.map(lambda x: x[0], distribution_parameters(distribution))
            return carry, sample(parameters, noise), parameters

        return collect(
            self.env,
            self.env_params,
            act,
            env_key,
            noise,
            runner,
            to_env=self.to_env,
            log_info=self.log_info,
            **options,
        )

    def to_env(self, action: jax.Array) -> jax.Array:
        """The environment's action: discrete as it is; continuous scaled from [-1, 1] to the bounds and clipped there.

        The trajectory keeps the unclipped action, so log-probabilities are exact at the bounds.
        """
        bounds = self.bounds
        if bounds is None:
            return action
        low, high = bounds
        return into_bounds(action.reshape(action.shape[0], *low.shape), low, high)

    @property
    def bounds(self) -> tuple[jax.Array, jax.Array] | None:
        """Least and greatest continuous action; None for discrete actions."""
        if self.is_discrete:
            return None
        space = self.env.action_space(self.env_params)
        shape = tuple(space.shape)
        return jnp.broadcast_to(jnp.asarray(space.low), shape), jnp.broadcast_to(jnp.asarray(space.high), shape)

    def context(self, params: Any) -> Context:
        return Context(env=self.env, env_params=self.env_params, policy=self.policy, policy_params=params)

    def gather(
        self, key: jax.Array, params: Any, moments: RunningMoments | None, runner: Runner
    ) -> tuple[Runner, Trajectory, Metrics, Any]:
        """Collect a batch and annotate it with the current policy; also the hidden state at its start."""
        reset_key, run_key = jax.random.split(key)
        if self.is_episodic:
            fresh = self.policy.initial_carry(self.num_envs)
            runner = start(self.env, self.env_params, reset_key, self.num_envs, fresh, self.group_size)
        if self.split_environments:
            runner = over_devices(runner, axis=0)
        carry = runner.carry
        runner, trajectory, means = self.play(run_key, params, moments, runner, self.window, episodic=self.is_episodic)
        if self.split_environments:
            trajectory = over_devices(trajectory, axis=1)
        trajectory = self.annotate(params, moments, carry, trajectory)
        if self.group_size > 1:
            group = jnp.broadcast_to(jnp.arange(self.num_envs) // self.group_size, trajectory.reward.shape)
            trajectory = trajectory.replace(extras=trajectory.extras | {"group_id": group})
        if not (self.needs_next_observation or self.credit.needs_next_observation):
            trajectory = trajectory.replace(next_observation=None)
        return runner, trajectory, means, carry

    def annotate(self, params: Any, moments: RunningMoments | None, carry: Any, trajectory: Trajectory) -> Trajectory:
        """Write log_prob, value, next_value and what the network records, evaluated for the whole window at once."""
        steps, num_envs = trajectory.reward.shape

        def in_one_row(tree: Any) -> Any:
            return jax.tree.map(lambda x: x.reshape(1, steps * num_envs, *x.shape[2:]), tree)

        sequence = trajectory.observation, trajectory.first
        _, _, value, extras = self.apply(
            params, moments, carry, *(sequence if self.policy.recurrent else in_one_row(sequence))
        )
        value, recorded = jax.tree.map(
            lambda x: x.reshape(steps, num_envs, *x.shape[2:]), (value, extras.get("recorded", {}))
        )

        def beyond(rows: jax.Array) -> jax.Array:
            """Value of what followed these steps before any reset, seen with the hidden state that they left behind."""
            step, env = jnp.divmod(rows, num_envs)
            following = jax.tree.map(lambda x: x[step, env], trajectory.next_observation)
            after = self.policy.carry_after(extras["carries"], step, env)
            sequence = jax.tree.map(lambda x: x[None], (following, jnp.zeros_like(rows, bool)))
            return self.apply(params, moments, after, *sequence)[2][0]

        log_prob = as_distribution(trajectory.logits).log_prob(trajectory.action)
        return trajectory.replace(
            log_prob=log_prob,
            behaviour_log_prob=log_prob,
            value=jnp.where(trajectory.mask, value, 0),
            next_value=_next_values(trajectory, value, beyond),
            extras=trajectory.extras | recorded,
        )

    # Learning -----------------------------------------------------------------------------------------------------

    def _learn(
        self, key: jax.Array, state: TrainState, carry: Any, trajectory: Trajectory
    ) -> tuple[Any, Any, dict[str, jax.Array]]:
        """Epochs of minibatch gradient steps on one batch."""
        epochs, minibatches = self.passes
        columns = self._columns(carry, self._training_fields(trajectory))
        learner, losses = descend(
            lambda params, carry, batch: self.loss(params, state.moments, carry, batch),
            self.optimizer(state.iteration),
            key,
            (state.params, state.opt_state),
            *columns,
            epochs=epochs,
            minibatches=minibatches,
        )
        return *learner, losses

    def _training_fields(self, trajectory: Trajectory) -> Trajectory:
        """Only what the loss reads, with standardised credit."""
        advantage, action_advantage = trajectory.advantage, trajectory.action_advantage
        if self.standardise_advantage and advantage is not None:
            advantage = standardise(advantage, trajectory.mask)
        if self.standardise_advantage and action_advantage is not None:
            everywhere = jnp.broadcast_to(trajectory.mask[..., None], action_advantage.shape)
            action_advantage = standardise(action_advantage, everywhere)
        return trajectory.replace(
            advantage=advantage,
            action_advantage=action_advantage,
            next_observation=None,
            next_value=None,
            action_value=None,
            next_action_value=None,
            extras={},
        )

    def _columns(self, carry: Any, batch: Trajectory) -> tuple[Any, Trajectory]:
        """Arrange a batch so that minibatches are choices of columns: without memory every step is its own column."""
        if self.policy.recurrent:
            return carry, batch
        return carry, jax.tree.map(lambda x: x.reshape(1, x.shape[0] * x.shape[1], *x.shape[2:]), batch)

    def loss(
        self, params: Any, moments: RunningMoments | None, carry: Any, batch: Trajectory
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Policy loss - entropy bonus + critic loss (where the estimator wrote targets), over unmasked steps.

        And the network's own loss, if it has one, e.g. for what it should remember.
        """
        _, distribution, value, extras = self.apply(params, moments, carry, batch.observation, batch.first)
        log_ratio = distribution.log_prob(batch.action) - batch.behaviour_log_prob
        if batch.action_advantage is not None:
            policy_loss = self._all_action_loss(distribution, batch)
        else:
            policy_loss = self.policy_loss(log_ratio, batch.advantage)
        losses = {
            "policy_loss": self.average(policy_loss, batch.mask),
            "entropy": self.average(distribution.entropy(), batch.mask),
        }
        total = losses["policy_loss"] - self.entropy_coefficient * losses["entropy"]
        if batch.value_target is not None:
            near = batch.value + jnp.clip(value - batch.value, -self.value_clip, self.value_clip)
            error = jnp.maximum(jnp.square(value - batch.value_target), jnp.square(near - batch.value_target))
            losses["value_loss"] = self.average(0.5 * error, batch.mask)
            total = total + self.value_coefficient * losses["value_loss"]
        if "auxiliary_loss" in extras:
            losses["auxiliary_loss"] = self.average(extras["auxiliary_loss"], batch.mask)
            total = total + self.auxiliary_coefficient * losses["auxiliary_loss"]
        losses["approx_kl"] = masked_mean(jnp.exp(log_ratio) - 1 - log_ratio, batch.mask)
        return total, losses

    def _all_action_loss(self, distribution: Any, batch: Trajectory) -> jax.Array:
        """sum_a pi_old(a) loss(log pi(a) / pi_old(a), A(a)): every action counts, also those not taken."""
        old = jax.nn.log_softmax(batch.logits)
        new = jax.nn.log_softmax(distribution.logits)
        return (jnp.exp(old) * self.policy_loss(new - old, batch.action_advantage)).sum(-1)


def _next_values(trajectory: Trajectory, value: jax.Array, beyond: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Value of what followed each step `[T, B]`: that of the next step, within an episode; 0 behind a natural end.

    Only where a time limit or the window cuts is there something else to evaluate.  How often is not known beforehand,
    so `beyond` gives the values of a few flat step numbers at a time, until none is left.
    """
    steps, num_envs = value.shape
    last = jnp.arange(steps)[:, None] == steps - 1
    cut = ((trajectory.truncated | last) & trajectory.mask & ~trajectory.terminated).ravel()
    within = trajectory.mask & ~(trajectory.terminated | trajectory.truncated | last)
    inside = jnp.where(within, jnp.concatenate([value[1:], value[:1]]), 0).ravel()
    at_once = min(cut.size, max(num_envs, CUTS_AT_ONCE))
    number = jnp.cumsum(cut) - 1
    # flat step numbers of the cuts, in order, then an index beyond all of them
    rows = jnp.full(cut.size + at_once, cut.size).at[jnp.where(cut, number, cut.size + at_once)].set(
        jnp.arange(cut.size), mode="drop"
    )  # fmt: skip

    def evaluate(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        done, next_value = state
        some = jax.lax.dynamic_slice(rows, (done,), (at_once,))
        return done + at_once, next_value.at[some].set(beyond(jnp.minimum(some, cut.size - 1)), mode="drop")

    start = (jnp.zeros((), jnp.int32), inside)
    return jax.lax.while_loop(lambda state: state[0] <= number[-1], evaluate, start)[1].reshape(value.shape)
