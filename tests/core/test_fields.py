"""Configurations refuse what their fields do not allow, and let pass what transformations put into them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
import jaxcredit as jc


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: jc.GAE(gamma=7), r"gamma=7.0 is not allowed in GAE; give a number from 0 to 1\."),
        (lambda: jc.GAE(gamma=float("nan")), "gamma=nan is not allowed"),
        (lambda: jc.GAE("x"), r"gamma='x' is not allowed in GAE; give a number\."),
        (lambda: jc.TDLambda(lam=-0.1), "lam=-0.1 is not allowed"),
        (lambda: jc.GAE(form="foo"), "form='foo' is not allowed in GAE; choose one of auto, sequential, associative"),
        (lambda: jc.VTrace(clip_rho=-1.0), "clip_rho=-1.0 is not allowed in VTrace; give a number from 0 to inf"),
        (lambda: jc.NStep(n=0), "n=0 is not allowed in NStep; give a whole number of at least 1"),
        (lambda: jc.RUDDER(hidden=1.5), "hidden=1.5 is not allowed in RUDDER; give a whole number of at least 1"),
        (lambda: jc.RUDDER(readout=-1), "readout=-1 is not allowed in RUDDER; give a whole number of at least 0"),
        (lambda: jc.RUDDER(gate="soft"), "gate='soft' is not allowed in RUDDER; choose one of"),
    ],
)
def test_values_outside_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learning_rate": -1.0}, "learning_rate=-1.0 is not allowed in PPO; give a number from 0 to inf"),
        ({"anneal_iterations": 0}, "anneal_iterations=0.0 is not allowed in PPO; give a number from 1 to inf"),
        ({"num_envs": True}, "num_envs=True is not allowed in PPO"),
        ({"epochs": 1.5}, "epochs=1.5 is not allowed in PPO"),
        ({"memory": -1}, "memory=-1 is not allowed in PPO; give a whole number of at least 0"),
        ({"hidden": 8}, r"hidden=8 is not allowed; give a tuple of widths"),
        ({"horizon": 0}, "horizon=0 is not allowed; give a whole number of at least 1, or None"),
        ({"credit": jc.GAE}, "is no estimator; give an instance"),
        ({"credit": "gae"}, "credit='gae' is no estimator"),
        ({"env": envs.make("ProbeAction")}, r"env, params = envs.make\('CartPole-v1'\)"),
    ],
)
def test_agents_refuse_too(fields, message):
    env, params = envs.make("ProbeAction")
    with pytest.raises(ValueError, match=message):
        jc.PPO(**{"env": env, "env_params": params} | fields)


def test_whole_numbers_become_floats_and_transformations_pass():
    assert type(jc.GAE(gamma=1).gamma) is float
    many = jc.GAE(gamma=jnp.array([0.5, 7.0]))  # an array is not looked at: its values may be traced
    np.testing.assert_allclose(jax.vmap(lambda estimator: estimator.gamma)(many.replace(lam=jnp.ones(2))), [0.5, 7.0])
    assert jax.tree.map(lambda x: None, jc.GAE()).lam is None
    slope = jax.grad(lambda estimator: -3.0 * estimator.gamma)(jc.GAE())
    assert float(slope.gamma) == -3.0
