import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
import jaxcredit as jc
from contract_table import batch

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


@pytest.mark.parametrize("gamma", [1.0, 0.7])
def test_outcomes_that_come_again_are_evaluated_once(episode, gamma):
    """Grouped, a coefficient per outcome; the plain form repeats it for every step that came to the outcome."""
    group = jnp.array([1, 0, 1, 0])
    once = episode["coefficient"][:, :2]
    repeated = episode | {"coefficient": once[:, group]}
    credit = jc.contribution_credit(**episode | {"coefficient": once}, gamma=gamma, group=group)
    np.testing.assert_allclose(credit, jc.contribution_credit(**repeated, gamma=gamma), rtol=1e-5, atol=1e-6)
    left_out = jc.contribution_credit(**episode | {"coefficient": once}, group=jnp.full(4, -1))
    np.testing.assert_allclose(left_out, loop(**episode | {"coefficient": 0 * episode["coefficient"]}), rtol=1e-5)


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


def test_rewards_are_outcomes_once_they_have_been_seen():
    cocoa, trajectory = jc.COCOA(num_outcomes=3), batch(0)
    rewards = jnp.where(trajectory.mask, jnp.asarray([[2.0], [0.0], [5.0], [2.0], [0.0], [7.0]]), jnp.nan)
    trajectory = trajectory.replace(reward=rewards)
    known = cocoa.nothing_known()
    np.testing.assert_array_equal(cocoa.outcomes(known, trajectory).index, -1)
    known = cocoa.learn_outcomes(known, trajectory)
    assert known.tolist() == [2.0, 5.0, 7.0]  # column 2 alone reaches the 7
    index = cocoa.outcomes(known, trajectory).index
    assert index[:, 2].tolist() == [0, -1, 1, 0, -1, 2]
    assert index[:, 0].tolist() == [0, -1, 1, -1, -1, -1]
    more = trajectory.replace(reward=rewards + 1)
    np.testing.assert_array_equal(cocoa.learn_outcomes(known, more), known)  # there is room for 3
    assert cocoa.unknown(known, more) > cocoa.unknown(known, trajectory) == 0


def test_learned_coefficients_pay_the_decision():
    """With a model of the immediate rewards, which are noise, what is left is the payment; a third of it at the fork
    is what chance would put there."""
    cocoa = jc.COCOA(learning_rate=1e-2, hidden=(16,), immediate="learned")
    maze = envs.make("CreditMaze", depth=2, breadth=1, noise=0.5)
    result = jc.fidelity(cocoa, *maze, episodes=256, fit_episodes=4096, keys=jax.random.split(jax.random.key(0), 2))
    assert result.measures["gradient.cosine"].estimate > 0.95
    assert result.measures["decisive_share"].estimate > 0.6
