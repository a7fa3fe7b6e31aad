"""Tabular agents on whole episodes: Q(lambda), SARSA(lambda), Monte Carlo, and direct Q estimation.

References:
  Watkins (1989), "Learning from Delayed Rewards" (Q(lambda)); Sutton and Barto (2018), sections 12.7 and 12.10.
  Arjona-Medina et al. (2019), "RUDDER: Return Decomposition for Delayed Rewards", arXiv:1806.07857 (direct Q estimation
    on a redistributed reward, and shaping by it).
  Wiewiora, Cottrell and Elkan (2003), "Principled methods for advising reinforcement learning agents".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from jaxcredit.agents.agent import (
    CREDIT,
    EXAMPLE,
    RESET,
    Agent,
    Metrics,
    TrainState,
    check_agent,
    check_key,
    episode_bound,
    outside_training,
)
from jaxcredit.agents.rollout import Runner, collect, environment_name, start
from jaxcredit.core.estimator import Context, CreditEstimator
from jaxcredit.core.fields import INFINITY, check_fields, choice, static, whole, within
from jaxcredit.core.statistics import Mean
from jaxcredit.core.trajectory import Trajectory, continues, masked_mean, zero_padding
from jaxcredit.redistribution.shaping import look_back_reward, shaping_reward
from jaxcredit.time_centric.returns import following, lambda_returns

Learner = Literal["q", "sarsa", "monte_carlo", "direct"]
LEARNERS = ("q", "sarsa", "monte_carlo", "direct")
Shaping = Literal["none", "reward", "look_ahead", "look_back"]
SHAPINGS = ("none", "reward", "look_ahead", "look_back")


def epsilon_greedy(score: Float[Array, "*B A"], epsilon: ScalarLike) -> Float[Array, "*B A"]:
    """Probability of every action:  epsilon / A,  and 1 - epsilon shared by those of the highest score.

    >>> epsilon_greedy(jnp.array([1.0, 3.0, 3.0, 0.0]), 0.5).tolist()
    [0.125, 0.375, 0.375, 0.125]
    """
    best = score == score.max(axis=-1, keepdims=True)
    epsilon = jnp.asarray(epsilon, score.dtype)
    return epsilon / score.shape[-1] + (1 - epsilon) * best / best.sum(axis=-1, keepdims=True)


def action_targets(
    reward: Float[Array, "T"],
    next_value: Float[Array, "T"],
    greedy: Bool[Array, "T"],
    terminated: Bool[Array, "T"],
    truncated: Bool[Array, "T"],
    *,
    learner: Learner,
    gamma: ScalarLike,
    lam: ScalarLike,
) -> Float[Array, "T"]:
    """What a learner moves Q(s_t, a_t) towards, after the episode: a `lambda_returns` with its own trace.

    q            trace lam where the next action was greedy, else 0 (Watkins)
    sarsa        trace lam
    monte_carlo  trace 1
    direct       r_t alone, for rewards that are redistributed so well that nothing more is to be expected

    Args:
      reward: r_t, follows action t.
      next_value: Q of what followed action t *before any reset*, under the action that the learner bootstraps from.
      greedy: action t was a greedy one.
      terminated: the episode ended naturally after action t.
      truncated: a time limit cut the episode after action t.
      learner: "q", "sarsa", "monte_carlo" or "direct".
      gamma: discount in [0, 1].
      lam: trace decay in [0, 1]; read by "q" and "sarsa".
    Returns:
      The target of step t, in reward units.
    Raises:
      ValueError: unknown `learner`.
    Assumption: with online traces a pair that comes again within an episode meets values already changed by it; here
      all targets of an episode are computed from the table as it was before.  In states that hold the time a pair comes
      once per episode at most, and this is the off-line algorithm exactly.

    >>> reward, next_value = jnp.array([0.0, 0.0, 1.0]), jnp.array([4.0, 2.0, 9.0])
    >>> greedy, ends = jnp.array([True, True, False]), (jnp.array([False, False, True]), jnp.zeros(3, bool))
    >>> action_targets(reward, next_value, greedy, *ends, learner="q", gamma=1.0, lam=0.5).tolist()
    [3.0, 2.0, 1.0]
    >>> action_targets(reward, next_value, greedy, *ends, learner="monte_carlo", gamma=1.0, lam=0.5).tolist()
    [1.0, 1.0, 1.0]
    """
    if learner not in LEARNERS:
        raise ValueError(f"learner={learner!r} is not known; choose one of {', '.join(LEARNERS)}.")
    if learner == "direct":
        return reward
    lam = 1.0 if learner == "monte_carlo" else lam
    trace = jnp.broadcast_to(jnp.asarray(lam, reward.dtype), reward.shape)
    if learner == "q":
        trace = trace * following(greedy.astype(reward.dtype))
    return lambda_returns(reward, next_value, terminated, truncated, gamma=gamma, lam=trace)


@struct.dataclass
class Table:
    """What a tabular agent has learned.

    Attributes:
      action_value: `[S, A]` Q, in reward units.
      visits: `[S, A]` float32, how often each pair was learned from.
      potential: `[S, A]` Phi, the running redistributed reward of each pair; None without shaping.
    """

    action_value: jax.Array
    visits: jax.Array
    potential: jax.Array | None


@struct.dataclass
class Episode:
    """One whole episode as the table sees it, `[T]`; rows of padded steps lie behind the table.

    Attributes: `state`, `next_state` (before any reset) rows, `action`, `first`, `terminated`, `truncated`, `mask`,
    `reward` as the environment paid it, `redistributed` as the estimator did.
    """

    state: jax.Array
    next_state: jax.Array
    action: jax.Array
    reward: jax.Array
    redistributed: jax.Array
    first: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    mask: jax.Array


@dataclass(frozen=True)
class TablePolicy:
    """Epsilon-greedy in a table; it has no memory."""

    recurrent: ClassVar[bool] = False

    def initial_carry(self, num_envs: int) -> tuple[()]:
        del num_envs
        return ()


@struct.dataclass
class TabularAgent(Agent):
    """Play whole episodes epsilon-greedily, let `credit` rewrite their rewards, and move a table of Q towards targets.

    Q(s_t, a_t) <- Q(s_t, a_t) + learning_rate (target_t - Q(s_t, a_t)),  with the `action_targets` of the learner.

    The episodes of a batch are played with one table and then learned from one after the other.  A pair that comes
    several times in an episode moves once, towards the mean of its targets (every-visit).

    With `shaping`, learners keep the environment's reward and the redistributed one only makes a potential: the table
    Phi(s, a), moved towards the redistributed reward of each visit.  "reward" adds shaping by  max_a Phi(s, a),
    "look_ahead" advises by Phi(s, a) and acts by  argmax_a Q + Phi,  "look_back" advises SARSA on what was done; see
    `shaping_reward` and `look_back_reward`.

    Attributes:
      env, env_params: a gymnax environment with discrete actions, and its parameters.
      credit: estimator that rewrites `reward`, for example `RUDDER()`; None leaves it as it is.
      learner: "q", "sarsa", "monte_carlo" or "direct", see `action_targets`.  "direct" is meant for redistributed
        rewards.  Correcting it by an estimate of what is still to come (the kappa of the reference) with the same step
        size is "monte_carlo" on the redistributed reward.
      shaping: "none", "reward", "look_ahead" or "look_back".
      learning_rate: step size.
      epsilon: share of actions taken at random.
      gamma: discount.
      lam: trace decay of "q" and "sarsa".
      initial_value: of every Q; above what can be reached, everything is tried.
      warm_up: so many first episodes act at random (and are learned from).
      average: move by max(learning_rate, 1 / visits): a mean, which forgets once `learning_rate` is larger.
      num_envs: episodes per batch.
      horizon: episode length T; None takes the environment's.
      index, num_states: row of an environment state (a function of one state), and the number of rows; None takes the
        environment's own `encode` and `num_states`, which finite environments have.
      observe: what the estimator sees of an environment state; None: the environment's observation.
      log_info: names of `info` entries to report, averaged over the last steps of episodes.

    Assumption: at a time limit no next action was taken, so every learner bootstraps from the greedy one.
    Traces of "q" are Watkins's, cut where an action was not greedy; the reference does not say which it used.
    """

    env: Any = static(None)
    env_params: Any = None
    credit: CreditEstimator | None = None
    learner: Learner = choice("q", LEARNERS)
    shaping: Shaping = choice("none", SHAPINGS)
    learning_rate: float = within(0, 1, 0.1)
    epsilon: float = within(0, 1, 0.2)
    gamma: float = within(0, 1, 1.0)
    lam: float = within(0, 1, 0.9)
    initial_value: float = within(-INFINITY, INFINITY, 0.0)
    warm_up: float = within(0, INFINITY, 0.0)
    average: bool = static(False)
    num_envs: int = whole(1)
    horizon: int | None = static(None)
    index: Callable[[Any], jax.Array] | None = static(None)
    num_states: int | None = static(None)
    observe: Callable[[Any], Any] | None = static(None)
    log_info: tuple[str, ...] = static(())

    split_environments: ClassVar[bool] = False

    # Construction -------------------------------------------------------------------------------------------------

    def __post_init__(self) -> None:
        check_fields(self)
        check_agent(self)
        if (self.index is None) != (self.num_states is None):
            raise ValueError("index= and num_states= belong together: give both, or none.")
        if self.index is None and not (hasattr(self.env, "encode") and hasattr(self.env, "num_states")):
            raise ValueError(
                f"{environment_name(self.env)} does not number its states. Give index= (a function of one environment "
                "state) and num_states=, or use an environment with encode() and num_states (envs.FiniteEnvironment)."
            )
        if self.shaping != "none" and self.credit is None:
            raise ValueError(
                f"shaping={self.shaping!r} takes its potential from a redistributed reward: give credit=RUDDER()."
            )
        if self.shaping != "none" and self.learner == "direct":
            raise ValueError("learner='direct' reads the redistributed reward itself; shaping needs another learner.")
        if self.shaping == "look_back" and self.learner != "sarsa":
            raise ValueError(f"shaping='look_back' advises learner='sarsa' only; got learner={self.learner!r}.")

    @property
    def window(self) -> int:
        return episode_bound(self, "TabularAgent", "")

    @property
    def policy(self) -> TablePolicy:
        return TablePolicy()

    @property
    def bounds(self) -> None:
        return None

    @property
    def num_actions(self) -> int:
        return int(self.env.action_space(self.env_params).n)

    @property
    def num_rows(self) -> int:
        return self.env.num_states if self.num_states is None else self.num_states

    def row(self, env_state: Any) -> jax.Array:
        """Row of the table that belongs to an environment state, `[]` int32."""
        index = self.env.encode if self.index is None else self.index
        return jnp.asarray(index(env_state), jnp.int32)

    def init(self, key: jax.Array) -> TrainState:
        """Build the state of a run from one key.

        Raises:
          ValueError: continuous actions, an environment without horizon, an estimator that does not rewrite the
            reward.
        """
        check_key(key)
        if not hasattr(self.env.action_space(self.env_params), "n"):
            raise ValueError(
                f"TabularAgent keeps a value for every action, but the actions of {environment_name(self.env)} are "
                "continuous. Use PPO, A2C or REINFORCE there."
            )
        shape = self.num_rows, self.num_actions
        table = Table(
            action_value=jnp.full(shape, jnp.asarray(self.initial_value, jnp.float32)),
            visits=jnp.zeros(shape),
            potential=None if self.shaping == "none" else jnp.zeros(shape),
        )
        runner = self.start(outside_training(key, RESET))
        credit = () if self.credit is None else self._init_credit(key, table, runner)
        zero = jnp.zeros((), jnp.int32)
        return TrainState(zero, key, table, (), None, credit, runner, zero, zero, zero)

    def start(self, key: jax.Array) -> Runner:
        """Fresh episodes."""
        return start(self.env, self.env_params, key, self.num_envs, self.policy.initial_carry(self.num_envs))

    def _init_credit(self, key: jax.Array, table: Table, runner: Runner) -> Any:
        estimator = self.credit
        assert estimator is not None
        example_key = outside_training(key, EXAMPLE)
        example = jax.eval_shape(lambda: self.gather(example_key, table, runner)[1])
        state = estimator.init(outside_training(key, CREDIT), example)
        rewritten = []

        def assign(state: Any, trajectory: Trajectory) -> None:
            assigned = estimator.assign(example_key, state, trajectory, context=self.context(table))
            rewritten.append(assigned.reward is not trajectory.reward)

        jax.eval_shape(assign, state, example)
        if not rewritten[0]:
            raise ValueError(
                f"{type(estimator).__name__} does not rewrite the reward, which is all that TabularAgent reads. Give "
                "an estimator that does, for example RUDDER(), and leave advantages to the learner."
            )
        return state

    def context(self, table: Table) -> Context:
        return Context(env=self.env, env_params=self.env_params, policy=self.policy, policy_params=table)

    # Acting -------------------------------------------------------------------------------------------------------

    def score(self, table: Table, row: Int[Array, "*B"]) -> Float[Array, "*B A"]:
        """What the policy compares: Q, with look-ahead advice Q + Phi."""
        score = table.action_value[row]
        if self.shaping == "look_ahead" and table.potential is not None:
            score = score + table.potential[row]
        return score

    def greedy_action(self, table: Table, env_state: Any) -> jax.Array:
        """The action of the highest score in one environment state; the first of equals."""
        return self.score(table, self.row(env_state)).argmax(axis=-1)

    def greedy_policy(self, table: Table) -> Float[Array, "S A"]:
        """Probability of every action under the greedy policy, ties shared: exact values are `oracle.policy_values`."""
        return epsilon_greedy(self.score(table, jnp.arange(self.num_rows)), 0.0)

    def play(
        self, key: jax.Array, params: Table, moments: Any, runner: Runner, num_steps: int, **options: Any
    ) -> tuple[Runner, Trajectory, Metrics]:
        """Run the epsilon-greedy policy; see `collect`, which takes the options.

        Observations of the trajectory are pairs: rows of the table, and what the estimator sees.
        """
        del moments
        draw_key, env_key = jax.random.split(key)
        draws = jax.random.uniform(draw_key, (num_steps, *runner.first.shape))

        def act(draw: jax.Array, carry: Any, observation: Any, first: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
            del first
            probability = epsilon_greedy(self.score(params, observation[0]), self.epsilon)
            action = (draw[:, None] >= jnp.cumsum(probability, axis=-1)[:, :-1]).sum(axis=-1)
            return carry, action.astype(jnp.int32), jnp.log(probability)

        seen = jax.vmap(lambda state, observation: self._seen(state, observation))
        runner = runner.replace(observation=seen(runner.env_state, runner.observation))
        env = _Numbered(self)
        return collect(env, self.env_params, act, env_key, draws, runner, log_info=self.log_info, **options)

    def _seen(self, env_state: Any, observation: Any) -> tuple[jax.Array, Any]:
        return self.row(env_state), observation if self.observe is None else self.observe(env_state)

    # One iteration ------------------------------------------------------------------------------------------------

    def step(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """One iteration: play a batch of episodes, assign credit, learn.  Pure; metrics are `Mean`s of scalars."""
        key = jax.random.fold_in(state.key, state.iteration + 1)
        start_key, play_key, credit_key = (jax.random.fold_in(key, i) for i in range(3))
        table = state.params
        warming_up = state.episodes < self.warm_up
        playing = self.replace(epsilon=jnp.where(warming_up, 1.0, self.epsilon))
        _, trajectory, metrics = playing.gather(play_key, table, self.start(start_key))
        assigned, credit = trajectory, state.credit
        if self.credit is not None:
            credit, assigned, reported = self.credit.update_and_assign(
                credit_key, credit, trajectory, context=self.context(table)
            )
            metrics |= {f"credit.{name}": Mean.of(value) for name, value in reported.items()}

        def absorb(table: Table, episode: Episode) -> tuple[Table, jax.Array]:
            return self.learn(table, episode)

        table, errors = jax.lax.scan(absorb, table, _episodes(trajectory, assigned.reward))
        metrics["absolute_error"] = Mean.of(errors)
        # every batch starts afresh: the runner stays where `init` left it
        return state.replace(params=table, credit=credit).counted(trajectory, metrics), metrics

    def gather(self, key: jax.Array, table: Table, runner: Runner) -> tuple[Runner, Trajectory, Metrics]:
        """Play a batch of whole episodes and annotate it; rows are in `extras` as `state` and `next_state`."""
        runner, trajectory, means = self.play(key, table, None, runner, self.window, episodic=True)
        (state, shown), (next_state, next_shown) = trajectory.observation, trajectory.next_observation
        log_prob = jnp.take_along_axis(trajectory.logits, trajectory.action[..., None], axis=-1)[..., 0]
        trajectory = trajectory.replace(
            observation=shown,
            next_observation=next_shown if self.credit is not None and self.credit.needs_next_observation else None,
            log_prob=log_prob,
            behaviour_log_prob=log_prob,
            value=jnp.where(trajectory.mask, table.action_value[state].max(axis=-1), 0),
            next_value=jnp.where(
                trajectory.mask & ~trajectory.terminated, table.action_value[next_state].max(axis=-1), 0
            ),
            extras=trajectory.extras | {"state": state, "next_state": next_state},
        )
        return runner, trajectory, means

    # Learning -----------------------------------------------------------------------------------------------------

    def learn(self, table: Table, episode: Episode) -> tuple[Table, jax.Array]:
        """Move the pairs of one episode towards their targets; also the mean absolute error before."""
        at = episode.state, episode.action
        value, target = table.action_value[at], self._targets(table, episode)
        same = (at[0][:, None] == at[0]) & (at[1][:, None] == at[1])
        times = same.sum(axis=1).astype(value.dtype)
        # set, not added to: so that what is read of the table is read before, and the table need not be copied
        visits = table.visits[at] + times
        rate = jnp.asarray(self.learning_rate, value.dtype)
        if self.average:
            rate = jnp.maximum(rate, times / visits)

        def moved(old: jax.Array, target: jax.Array) -> jax.Array:
            # the `times` visits of a pair add up to one step towards their mean
            return old.at[at].add(rate / times * (target - old[at]), mode="drop")

        potential = table.potential
        error = masked_mean(jnp.abs(target - value), episode.mask)
        return Table(
            action_value=moved(table.action_value, target),
            visits=table.visits.at[at].set(visits, mode="drop"),
            potential=None if potential is None else moved(potential, episode.redistributed),
        ), error

    def _targets(self, table: Table, episode: Episode) -> jax.Array:
        score, next_score = self.score(table, episode.state), self.score(table, episode.next_state)
        greedy = score[jnp.arange(score.shape[0]), episode.action] == score.max(axis=-1)
        next_action = next_score.argmax(axis=-1)
        if self.learner != "q":
            goes_on = continues(episode.terminated, episode.truncated)
            next_action = jnp.where(goes_on, jnp.roll(episode.action, -1), next_action)
        reward = (
            episode.redistributed
            if self.shaping == "none"
            else episode.reward + self._advice(table, episode, next_action)
        )
        return action_targets(
            reward, table.action_value[episode.next_state, next_action], greedy, episode.terminated, episode.truncated,
            learner=self.learner, gamma=self.gamma, lam=self.lam,
        )  # fmt: skip

    def _advice(self, table: Table, episode: Episode, next_action: jax.Array) -> jax.Array:
        """Shaping reward of each step, from the table of potentials."""
        potential = table.potential
        assert potential is not None
        if self.shaping == "reward":
            here, there = potential[episode.state].max(axis=-1), potential[episode.next_state].max(axis=-1)
            return shaping_reward(here, there, episode.terminated, gamma=self.gamma)
        here = potential[episode.state, episode.action]
        if self.shaping == "look_ahead":
            there = potential[episode.next_state, next_action]
            return shaping_reward(here, there, episode.terminated, gamma=self.gamma)
        return look_back_reward(here, episode.first, gamma=self.gamma)


@dataclass(frozen=True)
class _Numbered:
    """The environment of a tabular agent, whose observations tell the row of the table."""

    agent: TabularAgent

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> tuple[Any, ...]:
        observation, state, reward, terminated, info = self.agent.env.step_env(key, state, action, params)
        return self.agent._seen(state, observation), state, reward, terminated, info

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        observation, state = self.agent.env.reset_env(key, params)
        return self.agent._seen(state, observation), state

    def is_truncated(self, state: Any, params: Any) -> jax.Array:
        return self.agent.env.is_truncated(state, params)


def _episodes(trajectory: Trajectory, redistributed: jax.Array) -> Episode:
    """The episodes of a batch, stacked on the leading axis."""
    rewards = [zero_padding(trajectory.replace(reward=x)) for x in (trajectory.reward, redistributed)]
    mask, clean = trajectory.mask, rewards[0]
    behind = jnp.iinfo(jnp.int32).max
    episode = Episode(
        state=jnp.where(mask, trajectory.extras["state"], behind),
        next_state=trajectory.extras["next_state"],
        action=trajectory.action,
        reward=clean.reward,
        redistributed=rewards[1].reward,
        first=trajectory.first,
        terminated=clean.terminated,
        truncated=clean.truncated,
        mask=mask,
    )
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), episode)
