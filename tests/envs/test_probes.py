import jax.numpy as jnp
import numpy as np
import pytest

import envs
from jaxcredit.evaluation.oracle import optimal_values, policy_values

# Value of the initial state under the best and under the uniform policy, gamma = 0.5.
EXPECTED = {
    "ProbeReward": (1.0, 1.0),
    "ProbeObservation": (0.0, 0.0),
    "ProbeDelay": (0.5, 0.5),
    "ProbeAction": (1.0, 0.0),
    "ProbeObservationAction": (1.0, 0.0),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_values(name):
    env, params = envs.make(name)
    mdp = env.mdp(params)
    uniform = jnp.full((mdp.num_states, mdp.num_actions), 1 / mdp.num_actions)
    values = mdp.initial @ optimal_values(mdp, 0.5), mdp.initial @ policy_values(mdp, uniform, 0.5)
    np.testing.assert_allclose(values, EXPECTED[name])


def test_what_the_observation_shows():
    delay, params = envs.make("ProbeDelay")
    assert sorted(delay.mdp(params).observation.ravel().tolist()) == [0, 0, 1, 1]
    signed, params = envs.make("ProbeObservation")
    mdp = signed.mdp(params)
    np.testing.assert_array_equal(mdp.observation[:, 0], mdp.reward[:, 0, 0])


def test_settings_that_make_no_probe_are_refused():
    with pytest.raises(ValueError, match="one or two actions"):
        envs.make("ProbeAction", num_actions=3)
