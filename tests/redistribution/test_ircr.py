import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcredit as jc

MASK = jnp.array([[True, True], [True, False], [True, False]])
ENDS = jnp.zeros((3, 2), bool)


def episodes(*rewards):
    reward = jnp.zeros((3, 2)).at[0].set(jnp.array(rewards))
    return jc.Trajectory(
        observation=jnp.zeros((3, 2, 1)), action=jnp.zeros((3, 2), jnp.int32), reward=reward, terminated=ENDS,
        truncated=ENDS, first=ENDS, mask=MASK,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("form", "first", "second"),
    [("mean", [[1.0, 0.0]] + [[1.0, 0.0]] * 2, 0.5), ("sum", [[1.0, 0.0]] + [[1.0, 0.0]] * 2, 0.25)],
)
def test_rewards_lie_between_the_worst_and_the_best_episode(form, first, second):
    """Returns 6 in 3 steps and 1 in 1: means 2 and 1.  Then 4.5 in 3 steps (mean 1.5) and 2.25 in 1."""
    credit = jc.IRCR(form=form)
    key = jax.random.key(0)
    state, _ = credit.update(key, credit.init(key, episodes(0.0, 0.0)), episodes(6.0, 1.0))
    np.testing.assert_allclose(credit.assign(key, state, episodes(6.0, 1.0)).reward, np.where(MASK, first, 0))
    again = credit.assign(key, state, episodes(4.5, 2.25)).reward
    np.testing.assert_allclose(again[:, 0], 0.5 if form == "mean" else 0.7, rtol=1e-6)
    np.testing.assert_allclose(again[0, 1], 1.25 if form == "mean" else second, rtol=1e-6)
    np.testing.assert_array_equal(again[1:, 1], 0)


def test_while_all_episodes_are_alike_nothing_is_paid():
    credit, key = jc.IRCR(form="sum"), jax.random.key(0)
    state, _ = credit.update(key, credit.init(key, episodes(0.0, 0.0)), episodes(2.0, 2.0))
    np.testing.assert_array_equal(credit.assign(key, state, episodes(2.0, 2.0)).reward, 0)


def test_an_unknown_form_is_refused(no_type_checks):
    with pytest.raises(ValueError, match="mean, sum"):
        jc.ircr_reward(jnp.array(1.0), MASK[:, 0], jnp.array(0.0), jnp.array(1.0), form="median")
    with pytest.raises(ValueError, match="mean, sum"):
        jc.IRCR(form="median")
