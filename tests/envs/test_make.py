import runpy
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
import envs.adapters

ACTIONS = [0, 1, 1, 1, 1, 3]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("CartPole-v1", {}),
        ("DelayedKeyToDoor", {"length": 12}),
        ("MetaMaze-misc", {}),
        ("FourRooms-misc", {"goal_fixed": [8, 9]}),
        ("brax:fast", {"episode_length": 16}),
        ("Pendulum-v1", {"max_steps_in_episode": 9, "time_limit": "terminal"}),
    ],
)
def test_same_name_and_settings_give_the_same_object(name, settings):
    assert envs.make(name, **settings)[0] is envs.make(name, **settings)[0]


def test_params_are_overridden_in_their_own_type():
    env, params = envs.make("DelayedKeyToDoor", length=12, treasure=3)
    assert env is envs.make("DelayedKeyToDoor", length=12)[0]
    assert (int(params.length), float(params.treasure)) == (12, 3.0)
    assert all(isinstance(x, jax.Array) and not x.weak_type for x in jax.tree.leaves(params))
    assert params.treasure.dtype == jnp.float32 and params.length.dtype == jnp.int32


def test_changing_a_value_does_not_recompile(rollout):
    env, params = envs.make("DelayedKeyToDoor", length=4, max_length=6)
    rollout(env, params, ACTIONS)
    compiled = rollout.compiled()
    env, params = envs.make("DelayedKeyToDoor", length=5, max_length=6, event_cost=1, event_probability=0.7)
    rollout(env, params, ACTIONS)
    assert rollout.compiled() == compiled


def test_an_array_of_lengths_sweeps_the_delay(rollout):
    env, params = envs.make("DelayedKeyToDoor", length=[3, 6])
    assert env.horizon == 6
    axes = jax.tree.map(lambda x: 0 if x.ndim else None, params)
    terminated = jax.vmap(lambda p: rollout(env, p, ACTIONS)["terminated"][0], (axes,))(params)
    assert terminated.argmax(1).tolist() == [2, 5]


@pytest.mark.parametrize(
    ("name", "settings", "horizon"),
    [
        ("CartPole-v1", {}, 500),
        ("CartPole-v1", {"max_steps_in_episode": 60}, 60),
        ("DeepSea-bsuite", {"size": 5}, 5),
        ("BernoulliBandit-misc", {}, 100),
        ("DelayedKeyToDoor", {"length": 9}, 9),
        ("DelayedKeyToDoor", {"length": 9, "max_length": 20}, 20),
        ("WatchRepair", {}, 50),
        ("brax:fast", {"episode_length": 128}, 128),
        ("brax:fast", {"max_steps_in_episode": 64}, 64),
    ],
)
def test_horizon_is_static_and_follows_the_settings(name, settings, horizon):
    env, _ = envs.make(name, **settings)
    assert type(env.horizon) is int and env.horizon == horizon


@pytest.mark.parametrize(("time_limit", "flag"), [("bootstrap", "truncated"), ("terminal", "terminated")])
def test_time_limit_switch(rollout, time_limit, flag):
    env, params = envs.make("CartPole-v1", max_steps_in_episode=5, time_limit=time_limit)
    record = rollout(env, params, [0, 1, 0, 1, 0])
    other = {"truncated": "terminated", "terminated": "truncated"}[flag]
    np.testing.assert_array_equal(record[flag][0], [False, False, False, False, True])
    assert not np.any(record[other])


def test_time_limit_is_terminal_by_default_where_time_is_observed():
    for name in ("DiscountingChain-bsuite", "MetaMaze-misc", "PointRobot-misc", "GaussianBandit-misc"):
        assert isinstance(envs.make(name)[0], envs.TerminalTimeLimit)
        assert not isinstance(envs.make(name, time_limit="bootstrap")[0], envs.TerminalTimeLimit)
    assert not isinstance(envs.make("Pendulum-v1")[0], envs.TerminalTimeLimit)


def test_final_observation_is_that_before_the_reset(rollout):
    env, params = envs.make("ProbeDelay", length=3)
    record = rollout(env, params, [0] * 6)
    np.testing.assert_allclose(record["observation"][0, :, 0], [0, 0.5, 1] * 2)
    np.testing.assert_allclose(record["info"]["final_observation"][0, :, 0], [0.5, 1, 1.5] * 2)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("CartPole-v2", {}, "Did you mean CartPole-v1"),
        ("brax:hoper", {}, "Did you mean brax:hopper"),
        ("", {}, "envs.names"),
        ("MNISTBandit-bsuite", {}, "downloads"),
        ("DelayedKeyToDoor", {"lenght": 3}, "Did you mean length"),
        ("CartPole-v1", {"size": 3}, "Params: max_steps_in_episode, gravity"),
        ("CartPole-v1", {"time_limit": "ignore"}, "bootstrap, terminal"),
        ("DelayedKeyToDoor", {"length": 4.5}, "int32"),
        ("DelayedKeyToDoor", {"treasure": "much"}, "treasure='much'"),
        ("DeepSea-bsuite", {"size": np.arange(3)}, "hashable"),
        ("brax:fast", {"backend": "warp"}, "generalized, spring, positional, mjx"),
        ("brax:fast", {"episode_length": 0}, "episode_length=0"),
        ("CartPole-v1", {"max_steps_in_episode": 0}, "max_steps_in_episode=0"),
        ("CreditMaze", {"max_depth": 9, "depth": 3}, "breadth=8 .* give a smaller breadth"),
        ("CreditMaze", {"depth": float("nan")}, "depth=nan"),
        ("CreditMaze", {"depth": []}, "at least one"),
        ("CreditMaze", {"depth": 10**12}, r"depth=1000000000000 .* int32"),
        ("CreditMaze", {"max_depth": 4.0}, "max_depth=4.0"),
        ("CreditMaze", {"max_depth": True}, "max_depth=True"),
        ("KeyToDoor", {"treasure": float("inf")}, "treasure=inf .* finite"),
        ("WatchRepair", {"price": 3.0}, "price=3.0 .* holds 4 numbers"),
        ("WatchRepair", {"price": [1.0, 2.0]}, "price=.* holds 4 numbers"),
        ("WatchRepair", {"price": [[1.0], [2.0, 3.0]]}, "finite number, or an array"),
        ("DeepSea-bsuite", {"size": 0}, "size=0 is not allowed: gymnax cannot build"),
        ("Tree", {"depth": 40}, "nodes, more than int32"),
    ],
)
def test_bad_input_is_refused_with_what_is_allowed(name, settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make(name, **settings)


def test_traced_settings_are_refused():
    with pytest.raises(ValueError, match=r"depth of CreditMaze is traced.* params.replace\(depth="):
        jax.jit(lambda depth: envs.make("CreditMaze", depth=depth)[1])(3)


def test_what_equals_a_setting_of_another_type_is_not_taken_for_it():
    envs.make("CreditMaze", max_depth=1)
    with pytest.raises(ValueError, match="max_depth=True"):
        envs.make("CreditMaze", max_depth=True)


def test_importing_envs_leaves_brax_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "brax", None)
    monkeypatch.setitem(sys.modules, "brax.envs", None)
    for module in (envs.adapters, envs):
        runpy.run_path(module.__file__)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("AmbiguousBandit", "deviation"),
        ("CreditMaze", "noise"),
        ("CreditMaze", "density"),
        ("DelayedEffect", "sigma"),
        ("KeyToDoor", "reward_noise"),
        ("WatchRepair", "repair_deviation"),
        ("WatchRepair", "delivery_deviation"),
        ("Taxi", "slip_probability"),
    ],
)
def test_deviations_and_probabilities_are_in_their_range(name, setting):
    usual = np.asarray(getattr(envs.make(name)[1], setting))
    for wrong in (np.full_like(usual, -0.1), np.stack([np.full_like(usual, 0.2), np.full_like(usual, -0.2)])):
        with pytest.raises(ValueError, match=rf"{setting}=.* is not allowed: a (standard deviation|probability) is"):
            envs.make(name, **{setting: wrong})


@pytest.mark.parametrize("name", envs.OURS)
def test_double_precision_leaves_observations_and_rewards_single(name):
    """As the spaces say; and the state keeps its types, so that a scan can carry it."""
    with jax.enable_x64(True):
        plain, params = envs.make(name)
        noisy = envs.NoisyReward(envs.DelayedReward(envs.PreviousAction(plain)))
        wrapped = noisy.wrap(envs.DelayedReward(plain).wrap(params))
        for env, settings in ((plain, params), (noisy, wrapped)):
            key, action = jax.random.key(0), jnp.zeros((), jnp.int32)
            observation, state = jax.eval_shape(env.reset, key, settings)
            then, after, reward, *_ = jax.eval_shape(env.step, key, state, action, settings)
            space = env.observation_space(settings)
            assert observation.dtype == then.dtype == reward.dtype == space.dtype == jnp.float32
            assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, state)
