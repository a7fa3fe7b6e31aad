import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import jaxcredit as jc

STEPS, ACTIONS = 5, 3
FIELDS = ("reward", "action", "action_value", "next_value", "probability", "terminated", "truncated")


@pytest.fixture(scope="module")
def episode():
    rng = np.random.default_rng(1)
    step = np.arange(STEPS)
    arrays = {
        "reward": rng.normal(size=STEPS).astype(np.float32),
        "action": rng.integers(ACTIONS, size=STEPS),
        "action_value": rng.normal(size=(STEPS, ACTIONS)).astype(np.float32),
        "next_value": rng.normal(size=STEPS).astype(np.float32),
        "probability": rng.dirichlet(np.ones(ACTIONS), size=STEPS).astype(np.float32),
        "terminated": step == 4,
        "truncated": step == 1,  # two episodes in the window
    }
    return {name: jnp.asarray(x) for name, x in arrays.items()}


def test_credit_equals_a_plain_loop(episode):
    reward, action, q, next_value, probability, terminated, truncated = (episode[name] for name in FIELDS)
    expected = np.array(q, float)
    for t in range(STEPS):
        for k in range(t, STEPS):
            error = reward[k] + 0.9 * (1 - terminated[k]) * next_value[k] - q[k, action[k]]
            expected[t, action[t]] += 0.9 ** (k - t) * error / probability[t, action[t]]
            if terminated[k] or truncated[k]:
                break
    np.testing.assert_allclose(
        jc.trajectory_control_variate(*(episode[name] for name in FIELDS), gamma=0.9), expected, rtol=1e-4
    )


def test_credit_is_unbiased_for_any_action_values():
    """Two steps, two actions, no chance but the policy's: the mean over all episodes is the exact credit."""
    rng = np.random.default_rng(2)
    pay = rng.normal(size=(2, 2, 2))  # of the first step by its action, of the second by both
    first, second = rng.dirichlet([1, 1]), rng.dirichlet([1, 1], size=2)
    q = rng.normal(size=(3, 2))  # wrong on purpose: first state, then the state behind either action
    v = np.array([first @ q[0], second[0] @ q[1], second[1] @ q[2]])
    mean = np.zeros(2)
    for a, b in itertools.product(range(2), repeat=2):
        credit = jc.trajectory_control_variate(
            jnp.array([pay[0, 0, a], pay[1, a, b]], jnp.float32),
            jnp.array([a, b]),
            jnp.array([q[0], q[1 + a]], jnp.float32),
            jnp.array([v[1 + a], 0.0], jnp.float32),
            jnp.array([first, second[a]], jnp.float32),
            jnp.array([False, True]),
            jnp.array([False, False]),
            gamma=1.0,
        )
        mean += first[a] * second[a, b] * np.asarray(credit[0])
    exact = pay[0, 0] + np.array([second[a] @ pay[1, a] for a in range(2)])
    np.testing.assert_allclose(mean - first @ mean, exact - first @ exact, atol=1e-5)


def test_nothing_is_read_behind_a_natural_end(episode):
    spoilt = episode | {"next_value": jnp.where(episode["terminated"], np.nan, episode["next_value"])}
    a, b = (jc.trajectory_control_variate(*(e[name] for name in FIELDS), gamma=0.9) for e in (episode, spoilt))
    np.testing.assert_array_equal(a, b)


def test_wrong_shapes_are_named(episode, no_type_checks):
    with pytest.raises(ValueError, match="T, A"):
        jc.trajectory_control_variate(*(episode | {"action_value": episode["reward"]}).values(), gamma=0.9)
