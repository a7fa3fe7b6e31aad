import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcredit as jc

STEPS, ACTIONS = 4, 3


@pytest.fixture(scope="module")
def episode():
    rng = np.random.default_rng(0)
    return {
        "coefficient": jnp.asarray(rng.normal(size=(STEPS, STEPS, ACTIONS)), jnp.float32),
        "reward": jnp.asarray(rng.normal(size=STEPS), jnp.float32),
        "action": jnp.asarray(rng.integers(ACTIONS, size=STEPS)),
        "probability": jnp.asarray(rng.dirichlet(np.ones(ACTIONS), size=STEPS), jnp.float32),
        "mask": jnp.arange(STEPS) < 3,
    }


def loop(coefficient, reward, action, probability, mask, gamma=1.0, immediate=None):
    credit = np.zeros((STEPS, ACTIONS))
    for t in np.flatnonzero(mask):
        if immediate is None:
            credit[t, action[t]] += reward[t] / probability[t, action[t]]
        else:
            credit[t] += immediate[t]
        for k in range(t + 1, STEPS):
            if mask[k]:
                credit[t] += gamma ** (k - t) * coefficient[t, k] * reward[k]
    return credit


@pytest.mark.parametrize("gamma", [1.0, 0.7, 0.0])
def test_credit_equals_a_plain_loop(episode, gamma):
    credit = jc.contribution_credit(**episode, gamma=gamma)
    np.testing.assert_allclose(credit, loop(**episode, gamma=gamma), rtol=1e-5, atol=1e-6)


def test_a_model_of_the_reward_stands_for_the_sampled_one(episode):
    model = jnp.asarray(np.random.default_rng(1).normal(size=(STEPS, ACTIONS)), jnp.float32)
    credit = jc.contribution_credit(**episode, immediate=model)
    np.testing.assert_allclose(credit, loop(**episode, immediate=model), rtol=1e-5, atol=1e-6)


def test_one_decision_is_one_row(episode):
    rows = jc.contribution_credit(**episode)
    row = jc.decision_credit(
        episode["coefficient"][1],
        episode["reward"],
        episode["action"][1],
        episode["probability"][1],
        episode["mask"],
        jnp.asarray(1),
    )
    np.testing.assert_allclose(row, rows[1], rtol=1e-6)


def test_padding_and_the_past_say_nothing(episode):
    clean = jc.contribution_credit(**episode)
    past = np.tril(np.ones((STEPS, STEPS), bool))
    spoilt = episode | {
        "coefficient": jnp.where((past | ~episode["mask"])[..., None], np.nan, episode["coefficient"]),
        "reward": jnp.where(episode["mask"], episode["reward"], np.nan),
    }
    np.testing.assert_array_equal(jc.contribution_credit(**spoilt), clean)
    np.testing.assert_array_equal(clean[3], 0)


def test_gradients_stay_finite_where_an_action_has_no_probability(episode):
    impossible = episode | {"probability": jnp.eye(ACTIONS)[(episode["action"] + 1) % ACTIONS]}

    def total(reward):
        return jc.contribution_credit(**impossible | {"reward": reward}).sum()

    assert np.isfinite(jax.grad(total)(episode["reward"])).all()


def test_wrong_shapes_are_named(episode, no_type_checks):
    with pytest.raises(ValueError, match=r"\(4, 4, 3\)"):
        jc.contribution_credit(**episode | {"coefficient": episode["coefficient"][0]})
