import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcredit as jc
from contract_table import batch


@pytest.mark.parametrize("weight", [0.0, 20.0])
def test_loss_against_a_loop(weight):
    rng = np.random.default_rng(0)
    for length in (1, 3, 5):
        reward, total = rng.normal(size=5), rng.normal()
        own = [float(r) for r in reward[:length]]
        mean = sum(own) / length
        by_hand = (total - sum(own)) ** 2 + weight * sum((r - mean) ** 2 for r in own) / length
        mask = jnp.arange(5) < length
        poisoned = jnp.where(mask, jnp.asarray(reward, jnp.float32), jnp.nan)
        loss = jc.summed_reward_loss(poisoned, jnp.float32(total), mask, variance_weight=weight)
        np.testing.assert_allclose(loss, by_hand, rtol=1e-5)


def test_an_empty_episode_costs_its_return_alone():
    loss = jc.summed_reward_loss(jnp.ones(3), jnp.float32(2), jnp.zeros(3, bool), variance_weight=20.0)
    np.testing.assert_allclose(loss, 4)


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="width=32 cannot be split among heads=3"):
        jax.eval_shape(jc.SequenceModelling(heads=3).init, jax.random.key(0), batch())


def test_the_residual_at_the_end_leaves_the_policy_gradient_unbiased():
    """Two steps, two actions: sum over all four episodes of pi(tau) d log pi(tau) (return to go of the new rewards).

    r_0 is any function of a_0, r_1 any of (a_0, a_1); the end makes up the return, which depends on both actions.
    """
    rng = np.random.default_rng(1)
    logits, total = jnp.asarray(rng.normal(size=(3, 2)), jnp.float32), rng.normal(size=(2, 2))
    early, late = rng.normal(size=2), rng.normal(size=(2, 2))

    def log_policy(logits, a, b):
        return jnp.stack([jax.nn.log_softmax(logits[0])[a], jax.nn.log_softmax(logits[1 + a])[b]])

    exact, estimated = jnp.zeros((3, 2)), jnp.zeros((3, 2))
    for a, b in np.ndindex(2, 2):
        score = jax.jacobian(log_policy)(logits, a, b)  # [step, 3, 2]
        chance = jnp.exp(log_policy(logits, a, b).sum())
        reward = jnp.array([early[a], late[a, b]], jnp.float32)
        paid = jc.complete_return(reward, jnp.float32(total[a, b]), jnp.ones(2, bool), residual="end")
        to_go = jnp.cumsum(paid[::-1])[::-1]
        exact += chance * total[a, b] * score.sum(axis=0)
        estimated += chance * (to_go[:, None, None] * score).sum(axis=0)
    np.testing.assert_allclose(estimated, exact, atol=1e-5)
