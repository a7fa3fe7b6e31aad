import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from flax import struct

import envs
import jaxcredit as jc
from jaxcredit.evaluation.credit_plots import credit_map_picture, fidelity_picture
from jaxcredit.evaluation.fidelity import MEASURES

SIZES = {"episodes": 64, "keys": jax.random.split(jax.random.key(3), 8)}


@struct.dataclass
class Known(jc.CreditEstimator):
    """Credit of every action at the fork by its exact value, plus what is asked for: 0.75, or -0.25, and an error."""

    error: float = 0.0
    everywhere: float = 0.0

    def assign(self, key, state, trajectory, *, context=None):
        at_fork = trajectory.observation[..., :1]
        exact = jnp.array([0.75, -0.25, -0.25, -0.25])
        credit = at_fork * exact * (1 + self.error) + (1 - at_fork) * self.everywhere * jnp.array([1.0, 0.0, 0.0, 0.0])
        return trajectory.replace(action_advantage=jnp.where(trajectory.mask[..., None], credit, 0))


@pytest.fixture(scope="module")
def maze():
    return envs.make("CreditMaze", depth=4, breadth=2, noise=1.0)


def estimates(result):
    return {name: interval.estimate for name, interval in result.measures.items()}


def test_exact_credit_is_perfect(maze):
    result = jc.fidelity(Known(), *maze, **SIZES)
    got = estimates(result)
    assert got["gradient.snr_db"] > 100 and got["credit.snr_db"] > 100
    assert got["gradient.bias"] < 1e-5 and got["credit.bias"] < 1e-5
    for name in ("gradient.cosine", "credit.cosine", "decisive_share", "rank_correlation"):
        np.testing.assert_allclose(got[name], 1, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(result.exact[1:], 0, atol=1e-6)
    np.testing.assert_allclose(result.credit, result.exact, atol=1e-6)


def test_a_wrong_scale_is_bias_without_variance(maze):
    got = estimates(jc.fidelity(Known(error=0.5), *maze, **SIZES))
    np.testing.assert_allclose([got["gradient.bias"], got["credit.bias"]], 0.5, rtol=1e-4)
    np.testing.assert_allclose(got["gradient.snr_db"], 20 * np.log10(2), rtol=1e-4)
    assert got["gradient.variance_db"] < -50 and got["credit.cosine"] > 0.9999


def test_credit_in_the_wrong_place_is_seen(maze):
    """On each of the 4 steps of corridor credit 1 to action 0, centred: 3/4 or -1/4, as at the fork."""
    got = estimates(jc.fidelity(Known(everywhere=1.0), *maze, **SIZES))
    np.testing.assert_allclose(got["decisive_share"], 0.2, atol=0.02)
    np.testing.assert_allclose(got["credit.bias"], 2.0, rtol=0.05)
    np.testing.assert_allclose(got["gradient.cosine"], 1 / np.sqrt(1 + 4 * (0.25**2 + 0.75**2)), rtol=0.2)


def test_monte_carlo_with_the_exact_critic_has_the_noise_of_its_returns(maze):
    """G - V at the fork: the noise of two coins of 1 and the payment; by hand over the four actions and outcomes."""
    env, params = maze
    got = estimates(jc.fidelity(jc.MonteCarlo(gamma=1.0), env, params, critic="exact", **SIZES | {"episodes": 512}))
    steps = np.array([0.75] + 3 * [-0.25])  # exact credit at the fork
    signal = np.mean(np.square(steps))
    # error of the credit: at the fork and step 1 two coins are to come, at steps 2 and 3 one or two, ...
    coins = np.array([2, 2, 2, 1, 1])
    np.testing.assert_allclose(got["credit.snr_db"], 10 * np.log10(signal / coins.sum()), atol=0.5)
    assert got["credit.bias"] < 1.0 and got["gradient.bias"] < 0.35


def test_a_learned_critic_is_fitted_on_other_episodes(maze):
    none, many = (
        estimates(jc.fidelity(jc.GAE(gamma=1.0, lam=0.0), *maze, fit_episodes=fits, **SIZES)) for fits in (0, 1024)
    )
    assert none["gradient.bias"] > 0.9  # a critic of zeros never tells the fork of the payment
    assert many["gradient.bias"] < 0.5


def test_what_cannot_be_judged_is_refused(maze):
    with pytest.raises(ValueError, match="no table"):
        jc.fidelity(jc.GAE(), *envs.make("CartPole-v1"))
    with pytest.raises(ValueError, match="chain"):
        jc.fidelity(jc.ScaleReward(), *maze)
    with pytest.raises(ValueError, match="critic"):
        jc.fidelity(jc.GAE(), *maze, critic="wrong")
    with pytest.raises(ValueError, match="policy has shape"):
        jc.fidelity(jc.GAE(), *maze, policy=jnp.ones((2, 2)))
    with pytest.raises(ValueError, match="episodes=0"):
        jc.fidelity(jc.GAE(), *maze, episodes=0)


def test_values_that_do_not_exist_are_refused(monkeypatch):
    """A chain whose only end, falling back, has been taken away."""
    env, params = envs.make("StochasticChain")
    table = env.mdp(params)
    endless = table.replace(terminal=jnp.zeros_like(table.terminal))
    monkeypatch.setattr(type(env), "mdp", lambda self, params: endless)
    with pytest.raises(ValueError, match="never end"):
        jc.fidelity(jc.GAE(), env, params, **SIZES)


def test_params_of_several_tasks_are_refused():
    with pytest.raises(ValueError, match=r"density=\[0.5, 1.0\] is of several tasks, and fidelity takes one"):
        jc.fidelity(jc.GAE(), *envs.make("CreditMaze", depth=4, density=[0.5, 1.0]), **SIZES)


def test_without_any_exact_credit_nothing_is_said(maze):
    env, params = maze
    got = estimates(jc.fidelity(Known(), env, params.replace(treasure=jnp.zeros(())), **SIZES))
    assert all(math.isnan(got[name]) for name in got if name.startswith(("gradient", "credit")))


def test_the_cosine_of_a_gradient_lost_in_noise_is_a_cosine_or_nothing(maze):
    env, params = maze
    params = params.replace(density=jnp.asarray(0.02))
    for seed in range(4):
        sizes = SIZES | {"keys": jax.random.split(jax.random.key(seed), 8)}
        interval = jc.fidelity(jc.MonteCarlo(), env, params, critic="exact", **sizes).measures["gradient.cosine"]
        numbers = np.array([interval.estimate, interval.low, interval.high])
        assert np.all(np.isnan(numbers) | (np.abs(numbers) <= 1))


def test_a_time_limit_that_the_state_does_not_show_leaves_one_truth():
    """Credit from the exact critic is exact, so the gradient made of it must be, too, wherever episodes are cut."""
    env, params = envs.make("StochasticChain", length=5)
    got = estimates(jc.fidelity(jc.MonteCarlo(gamma=1.0), env, params, critic="exact", **SIZES | {"episodes": 512}))
    assert got["gradient.bias"] < 0.3 and got["gradient.cosine"] > 0.9
    td = estimates(jc.fidelity(jc.GAE(gamma=0.9, lam=0.0), env, params, gamma=0.9, critic="exact", **SIZES))
    assert td["credit.bias"] < 0.2 and td["gradient.bias"] < 0.3


def test_one_repeat_has_no_interval(maze):
    measures = jc.fidelity(Known(), *maze, episodes=16, keys=SIZES["keys"][:1]).measures
    assert all(np.isnan([interval.low, interval.high]).all() for interval in measures.values())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gamma": 2.0}, "gamma"),
        ({"confidence": 95.0}, "confidence"),
        ({"keys": 0}, "keys"),
        ({"episodes": 2.5}, "episodes"),
        ({"policy": jnp.full((10, 4), 0.5)}, "sum 1"),
        ({"policy": jnp.full((10, 4), jnp.nan)}, "sum 1"),
    ],
)
def test_bad_arguments_are_refused(maze, wrong, message, no_type_checks):
    with pytest.raises(ValueError, match=message):
        jc.fidelity(jc.GAE(), *maze, **wrong)


def test_table_and_pictures(maze, tmp_path):
    table = jc.fidelity_table({"exact": jc.fidelity(Known(), *maze, **SIZES)})
    assert list(table.columns[:4]) == ["credit", "gradient.snr_db", "gradient.snr_db.low", "gradient.snr_db.high"]
    assert len(table.columns) == 1 + 3 * len(MEASURES)
    fidelity_picture(pd.concat([table, table.assign(credit="again")]), tmp_path / "fidelity.png", title="Maze")
    panels = {"depth": ([4, 8], np.array([[0.25, 1.0], [np.nan, 0.5]])), "density": ([1.0], np.array([[0.3], [0.9]]))}
    credit_map_picture(panels, ["a", "b"], tmp_path / "map.png", label="share", title="Map")
    assert (tmp_path / "fidelity.png").stat().st_size > 5_000 and (tmp_path / "map.png").stat().st_size > 5_000
