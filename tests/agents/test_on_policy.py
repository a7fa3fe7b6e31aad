"""What the agents share: collection, annotation, construction errors."""

from __future__ import annotations

from typing import Any

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from gymnax.environments import environment, spaces

import envs
import jaxcredit as jc
from jaxcredit.agents.agent import PICTURE, outside_training
from jaxcredit.networks.actor_critic import ActorCritic, draw_noise, sample

KEY = jax.random.key(0)


@struct.dataclass
class ClockState(environment.EnvState):
    time: Any


class Clock(environment.Environment):
    """Observation and reward are the time; ends by a time limit of three steps, or naturally by action 1."""

    horizon: int | None = 3

    @property
    def default_params(self) -> environment.EnvParams:
        return environment.EnvParams(max_steps_in_episode=3)

    def step_env(self, key: Any, state: ClockState, action: Any, params: Any) -> Any:
        following = ClockState(time=state.time + 1)
        reward = state.time.astype(jnp.float32)
        return self.observe(key, following, action, params), following, reward, action == 1, {}

    def reset_env(self, key: Any, params: Any) -> Any:
        state = ClockState(time=jnp.zeros((), jnp.int32))
        return self.observe(key, state, None, params), state

    def observe(self, key: Any, state: ClockState, action: Any, params: Any) -> jax.Array:
        return jnp.atleast_1d(state.time.astype(jnp.float32))

    def action_space(self, params: Any) -> Any:
        return spaces.Discrete(2)

    def observation_space(self, params: Any) -> Any:
        return spaces.Box(0, 3, (1,))


CLOCK = Clock()


def clock_agent(**settings: Any) -> jc.PPO:
    settings = {"num_envs": 4, "num_steps": 8, "hidden": (4,), "minibatches": 1} | settings
    return jc.PPO(env=CLOCK, env_params=CLOCK.default_params, **settings)


def gather(agent: jc.PPO) -> tuple[jc.TrainState, jc.Trajectory]:
    def both(key: jax.Array) -> Any:
        state = agent.init(key)
        return state, agent.gather(key, state.params, state.moments, state.runner)[1]

    return jax.jit(both)(KEY)


@pytest.fixture(scope="module")
def window() -> tuple[jc.TrainState, jc.Trajectory]:
    return gather(clock_agent(needs_next_observation=True))


def test_a_reward_belongs_to_the_step_before_it(window: Any) -> None:
    _, t = window
    np.testing.assert_array_equal(t.reward, t.observation[..., 0])


def test_what_followed_is_seen_before_the_reset(window: Any) -> None:
    _, t = window
    np.testing.assert_array_equal(t.next_observation, t.observation + 1)
    ended = t.terminated | t.truncated
    np.testing.assert_array_equal(t.first[1:], ended[:-1])
    np.testing.assert_array_equal(t.observation[1:, :, 0] == 0, ended[:-1])
    np.testing.assert_array_equal(t.truncated, t.observation[..., 0] == 2)


def test_values_are_those_of_the_network(window: Any) -> None:
    state, t = window
    agent = clock_agent()
    first = jnp.zeros_like(t.first)
    for name, observation in (("value", t.observation), ("next_value", t.next_observation)):
        expected = agent.policy.apply(state.params, (), observation, first)[2]
        if name == "next_value":
            expected = jnp.where(t.terminated, 0, expected)
        np.testing.assert_allclose(getattr(t, name), expected, atol=1e-6)
    distribution = agent.policy.apply(state.params, (), t.observation, first)[1]
    np.testing.assert_allclose(t.logits, distribution.logits, atol=1e-6)
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(t.logits), t.action[..., None], -1)[..., 0]
    np.testing.assert_allclose(t.log_prob, log_prob, atol=1e-6)


@struct.dataclass
class Ticket(environment.EnvState):
    number: Any


class Lottery(Clock):
    """Every start shows a random number, `width` wide; every reward is random; action 1 ends the episode."""

    def __init__(self, width: int) -> None:
        self.width = width

    def step_env(self, key: Any, state: Ticket, action: Any, params: Any) -> Any:
        following = state.replace(time=state.time + 1)
        return following.number, following, jax.random.uniform(key), action == 1, {}

    def reset_env(self, key: Any, params: Any) -> Any:
        state = Ticket(time=jnp.zeros((), jnp.int32), number=jax.random.uniform(key, (self.width,)))
        return state.number, state


@pytest.mark.parametrize("width", [1, 64], ids=["starts drawn before the window", "starts drawn at the ends"])
def test_every_episode_starts_afresh(width: int) -> None:
    env = Lottery(width)
    _, t = gather(jc.PPO(env=env, env_params=env.default_params, num_envs=4, num_steps=8, hidden=(4,)))
    starts = np.asarray(t.observation)[np.asarray(t.first)][:, 0]
    assert len(starts) > 8
    assert len(np.unique(starts)) == len(starts)
    assert len(np.unique(t.reward)) == 32
    # the number shown at the start lasts until the end of its episode
    np.testing.assert_array_equal(t.observation[1:][~t.first[1:]], t.observation[:-1][~t.first[1:]])


def test_an_ended_episode_stands_still() -> None:
    _, t = gather(clock_agent(episodic=True, horizon=3))
    ended = (t.terminated | t.truncated) & t.mask
    last = jnp.where(ended, t.observation[..., 0] + 1, 0).sum(0)
    assert not t.mask.all()
    np.testing.assert_array_equal(t.observation[..., 0][~t.mask], jnp.broadcast_to(last, t.mask.shape)[~t.mask])


@pytest.mark.parametrize("continuous", [False, True])
def test_noise_drawn_before_gives_actions_of_the_distribution(continuous: bool) -> None:
    """20,000 draws; the bounds are more than four standard errors wide."""
    parameters: Any = jnp.array([1.0, 0.0, -1.0])
    if continuous:
        parameters = {"loc": jnp.array([1.0, 2.0]), "scale_diag": jnp.array([0.5, 2.0])}
    noise = draw_noise(KEY, continuous, (20_000, 2 if continuous else 3))
    action = jax.vmap(sample, (None, 0))(parameters, noise)
    if continuous:
        np.testing.assert_allclose(action.mean(0), parameters["loc"], atol=0.06)
        np.testing.assert_allclose(action.std(0), parameters["scale_diag"], rtol=0.03)
    else:
        assert action.dtype == jnp.int32
        np.testing.assert_allclose(jnp.bincount(action) / 20_000, jax.nn.softmax(parameters), atol=0.015)


def test_episodic_collection_pads_behind_the_end() -> None:
    _, t = gather(clock_agent(episodic=True, horizon=2))
    assert t.reward.shape == (2, 4)
    assert t.first[0].all() and not (t.first[1] & t.mask[1]).any()
    np.testing.assert_array_equal(t.mask[1], ~t.terminated[0])
    np.testing.assert_array_equal((t.terminated | t.truncated)[1] | ~t.mask[1], True)
    for x in (t.reward, t.value, t.next_value):
        assert (x[~t.mask] == 0).all()


def test_an_episode_open_at_the_horizon_is_truncated_not_terminated() -> None:
    _, t = gather(clock_agent(episodic=True, horizon=1))
    np.testing.assert_array_equal(t.truncated, ~t.terminated)


def test_recurrent_values_use_the_memory_before_the_reset() -> None:
    """V of what followed must come from the hidden state after the step, also where the episode ended there."""
    agent = clock_agent(memory=3, needs_next_observation=True)
    state, t = gather(agent)
    value_of = jax.jit(lambda carry, x, first: agent.policy.apply(state.params, carry, x[None], first[None])[::2])
    carry = jnp.zeros((4, 3))
    for step in range(8):
        carry, value = value_of(carry, t.observation[step], t.first[step])
        np.testing.assert_allclose(t.value[step], value[0], atol=1e-5)
        _, after = value_of(carry, t.next_observation[step], jnp.zeros_like(t.first[step]))
        expected = jnp.where(t.terminated[step], 0, after[0])
        np.testing.assert_allclose(t.next_value[step], expected, atol=1e-5)


def test_memory_is_forgotten_at_the_start_of_an_episode() -> None:
    network = ActorCritic(actions=2, hidden=(4,), memory=3)
    x = jax.random.normal(KEY, (4, 1, 2))
    first = jnp.array([True, False, True, False])[:, None]
    params = jax.jit(network.init)(KEY, network.initial_carry(1), x, first)
    value = jax.jit(lambda carry, x, first: network.apply(params, carry, x, first)[2])
    whole = value(5 * jnp.ones((1, 3)), x, first)
    alone = value(jnp.zeros((1, 3)), x[2:], first[2:])
    np.testing.assert_allclose(whole[2:], alone, atol=1e-6)


def test_group_members_share_their_start() -> None:
    env, params = envs.make("CartPole-v1")
    agent = jc.PPO(env=env, env_params=params, num_envs=4, group_size=2, episodic=True, horizon=2, hidden=(4,))
    _, t = gather(agent)
    np.testing.assert_array_equal(t.observation[0, 0], t.observation[0, 1])
    assert (t.observation[0, 0] != t.observation[0, 2]).any()
    assert t.extras["group_id"].tolist() == [[0, 0, 1, 1]] * 2


def test_continuous_actions_reach_the_environment_inside_its_bounds() -> None:
    env, params = envs.make("Pendulum-v1")
    agent = jc.PPO(env=env, env_params=params, num_envs=2)
    np.testing.assert_allclose(agent.to_env(jnp.array([[0.5], [7.0]])), [[1.0], [2.0]])


def test_observations_are_normalised_by_what_was_seen() -> None:
    agent = clock_agent(normalise_observation=True)
    state, _ = jax.jit(lambda key: agent.step(agent.init(key)))(KEY)
    assert state.moments.count == 32
    assert 0 < state.moments.mean[0] < 2


def test_learning_rate_falls_to_zero() -> None:
    agent = clock_agent(anneal_iterations=10)
    update = [agent.optimizer(i).update(jnp.ones(1), agent.optimizer(i).init(jnp.ones(1)))[0] for i in (0, 5, 10, 12)]
    np.testing.assert_allclose(np.divide(update, update[0])[:, 0], [1, 0.5, 0, 0], atol=1e-6)


def test_gradients_are_clipped_by_their_global_norm() -> None:
    gradient = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    transform = optax.chain(*[optax.clip_by_global_norm(0.5)])
    expected = transform.update(gradient, transform.init(gradient))[0]
    np.testing.assert_allclose([expected["a"][0], expected["b"][0]], [0.3, 0.4], rtol=1e-6)
    agent = clock_agent(max_grad_norm=0.5)
    state = agent.optimizer(0).update(gradient, agent.optimizer(0).init(gradient))[1]
    moments = next(s.mu for s in jax.tree.leaves(state, is_leaf=lambda s: hasattr(s, "mu")) if hasattr(s, "mu"))
    np.testing.assert_allclose([moments["a"][0], moments["b"][0]], [0.03, 0.04], rtol=1e-5)


# The losses ------------------------------------------------------------------------------------------------------


def test_ppo_clips_only_what_would_improve_further() -> None:
    agent = clock_agent(clip=0.2)
    log_ratio = jnp.log(jnp.array([1.5, 0.5, 1.5, 0.5]))
    loss = agent.policy_loss(log_ratio, jnp.array([1.0, 1.0, -1.0, -1.0]))
    np.testing.assert_allclose(loss, [-1.2, -0.5, 1.5, 0.8], rtol=1e-6)


def test_the_score_function_is_the_gradient_of_reinforce_and_a2c() -> None:
    agent = jc.A2C(env=CLOCK, env_params=CLOCK.default_params)
    gradient = jax.grad(lambda log_ratio: agent.policy_loss(log_ratio, jnp.float32(3.0)))(0.0)
    assert gradient == -3.0


def test_value_clipping_takes_the_worse_of_both_errors() -> None:
    agent = clock_agent(value_clip=0.1)
    state, t = gather(agent)
    t = t.replace(advantage=jnp.zeros_like(t.value), value_target=t.value + 1.0, value=t.value - 1.0)
    plain, clipped = (a.loss(state.params, None, (), t)[1]["value_loss"] for a in (clock_agent(), agent))
    np.testing.assert_allclose([plain, clipped], [0.5, 0.5 * 1.9**2], rtol=1e-5)


@struct.dataclass
class EveryAction(jc.CreditEstimator):
    """Credits action 1 and blames action 0, whichever was taken."""

    def assign(self, key: Any, state: Any, trajectory: jc.Trajectory, *, context: Any = None) -> jc.Trajectory:
        credit = jnp.broadcast_to(jnp.array([-1.0, 1.0]), trajectory.logits.shape)
        return trajectory.replace(action_advantage=credit)


def test_credit_of_every_action_moves_the_policy() -> None:
    agent = clock_agent(credit=EveryAction(), learning_rate=1e-2)
    state, _ = jax.jit(lambda k: jc.train(agent, k, 20))(KEY)
    logits = agent.policy.apply(state.params, (), jnp.zeros((1, 1, 1)), jnp.ones((1, 1), bool))[1].logits
    assert isinstance(
        agent.policy.apply(state.params, (), jnp.zeros((1, 1, 1)), jnp.ones((1, 1), bool))[1], distrax.Categorical
    )
    assert logits[0, 0, 1] > logits[0, 0, 0] + 1


# Bad input -------------------------------------------------------------------------------------------------------


def test_no_environment() -> None:
    with pytest.raises(ValueError, match=r"needs env= and env_params=.*envs\.make"):
        jc.PPO()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_envs": 0}, "num_envs=0 is not allowed"),
        ({"credit": jc.chain(jc.RUDDER(), jc.GAE()), "episodic": False}, "works on whole episodes, but episodic=False"),
        ({"credit": jc.chain(jc.GAE(), jc.RUDDER())}, "RUDDER rewrites the reward after an earlier member"),
        ({"num_envs": 4, "group_size": 3}, "group_size=3 does not divide num_envs=4"),
        ({"group_size": 2}, "needs whole episodes"),
        ({"minibatches": 3}, "minibatches=3 does not divide num_envs x window length = 32"),
        ({"minibatches": 3, "memory": 2}, r"minibatches=3 does not divide num_envs \(minibatches of a recurrent"),
        ({"credit": jc.ScaleReward()}, "writes neither advantage nor action_advantage"),
        ({"credit": jc.chain(jc.RUDDER())}, "writes neither advantage nor action_advantage"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(clock_agent(**settings).init, KEY)


def test_no_key_serves_two_purposes() -> None:
    """Keys outside of training, and those of the first iterations with their children, are all different."""
    outside = [outside_training(KEY, purpose) for purpose in range(PICTURE + 1)]
    iterations = [jax.random.fold_in(KEY, i + 1) for i in range(20)]
    children = [jax.random.split(key, 4) for key in (*outside, *iterations)]
    data = np.concatenate(
        [jax.random.key_data(jnp.stack([*outside, *iterations])), *map(jax.random.key_data, children)]
    )
    assert len(np.unique(data, axis=0)) == len(data)


@pytest.mark.parametrize("key", [jax.random.split(KEY), jax.random.PRNGKey(0)])
def test_a_seed_has_one_typed_key(key: Any) -> None:
    with pytest.raises(ValueError, match="one typed random key"):
        jax.eval_shape(clock_agent().init, key)


def test_whole_episodes_need_a_horizon() -> None:
    endless = Clock()
    endless.horizon = None
    agent = clock_agent(credit=jc.chain(jc.RUDDER(), jc.GAE())).replace(env=endless)
    with pytest.raises(ValueError, match=r"Clock has no horizon.*horizon=N"):
        jax.eval_shape(agent.init, KEY)


def test_credit_of_every_action_needs_discrete_actions() -> None:
    env, params = envs.make("Pendulum-v1")

    @struct.dataclass
    class Both(jc.CreditEstimator):
        def assign(self, key: Any, state: Any, trajectory: jc.Trajectory, *, context: Any = None) -> jc.Trajectory:
            return trajectory.replace(action_advantage=jnp.zeros((*trajectory.reward.shape, 2)))

    with pytest.raises(ValueError, match=r"discrete set, but the actions of .*Pendulum.* are continuous"):
        jax.eval_shape(jc.PPO(env=env, env_params=params, credit=Both()).init, KEY)


def test_nan_rewards_spoil_their_seed_alone_and_visibly() -> None:
    """A NaN reward makes the losses of its own seed NaN; other seeds and the program go on."""
    env, params = envs.make("ProbeReward")
    agent = jc.as_arrays(jc.PPO(env=env, env_params=params, num_envs=2, num_steps=4, hidden=(2,), minibatches=1))
    broken = agent.replace(env_params=params.replace(reward=jnp.array([1.0, jnp.nan])))
    axes = jax.tree.map(lambda _: None, agent).replace(env_params=jax.tree.map(lambda _: 0, params))
    _, metrics = jax.jit(jax.vmap(lambda a, k: jc.train(a, k, 2), in_axes=(axes, None)))(broken, KEY)
    assert np.isfinite(metrics["policy_loss"][0]).all()
    assert np.isnan(metrics["policy_loss"][1]).all()
