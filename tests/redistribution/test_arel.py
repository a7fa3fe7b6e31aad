import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcredit as jc
from contract_table import batch, poisoned

KEY = jax.random.key(0)
TEAM = jc.AREL(agents=2, width=4, heads=1, readout=(2,), fits=2, fit_batch=4, capacity=8)


def team_batch(seed=0):
    """`contract_table.batch` played by two agents: an axis behind the batch, in observations, actions and logits."""
    episodes, other = batch(seed), batch(seed + 10)
    both = {
        name: jnp.stack([getattr(episodes, name), getattr(other, name)], axis=2)
        for name in ("observation", "action", "logits")
    }
    return episodes.replace(**both)


@pytest.fixture(scope="module")
def fitted():
    estimator = jc.as_arrays(TEAM)
    update = jax.jit(estimator.update)
    state = jax.jit(estimator.init)(KEY, team_batch())
    for seed in range(2):
        state, _ = update(KEY, state, team_batch(seed))
    state = state.replace(params=jax.tree.map(lambda x: x + 0.3, state.params))  # attention starts by mixing nothing in
    return estimator, state, update, jax.jit(estimator.assign)


def test_a_team_shares_one_reward_whatever_its_order(fitted):
    _, state, _, assign = fitted
    episodes = team_batch(3)
    swapped = {name: getattr(episodes, name)[:, :, ::-1] for name in ("observation", "action", "logits")}
    reward = assign(KEY, state, episodes).reward
    assert reward.shape == episodes.mask.shape
    np.testing.assert_allclose(assign(KEY, state, episodes.replace(**swapped)).reward, reward, atol=1e-5)


def test_every_agent_has_a_part_in_it(fitted):
    _, state, _, assign = fitted
    episodes = team_batch(3)
    for agent in range(2):
        other = episodes.replace(observation=episodes.observation.at[1, 2, agent].add(1.0))
        change = np.asarray(assign(KEY, state, other).reward - assign(KEY, state, episodes).reward)[:, 2]
        assert change[0] == 0 and abs(change[1]) > 1e-5


def test_padding_of_a_team_changes_nothing(fitted):
    _, state, update, assign = fitted
    clean, spoilt = (update(KEY, state, episodes)[0] for episodes in (team_batch(4), poisoned(team_batch(4))))
    jax.tree.map(np.testing.assert_array_equal, spoilt, clean)
    np.testing.assert_array_equal(
        assign(KEY, state, poisoned(team_batch(4))).reward, assign(KEY, state, team_batch(4)).reward
    )


def test_features_are_those_of_each_agent_in_a_row():
    features = TEAM.features(team_batch())
    single = jc.AREL().features(batch(10))
    np.testing.assert_array_equal(features[..., 5:], single)


def test_a_team_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"AREL\(agents=3\).*has the shape"):
        jax.eval_shape(TEAM.replace(agents=3).init, KEY, team_batch())
    with pytest.raises(ValueError, match="0 if there is none"):
        jax.eval_shape(TEAM.init, KEY, batch())


def test_the_weight_of_the_variance_is_the_papers():
    """Rewards 1, 0 of a return of 1: variance 1/4, weight 20, times the mean over episodes."""
    reward, mask = jnp.array([1.0, 0.0]), jnp.ones(2, bool)
    np.testing.assert_allclose(jc.AREL().episode_loss(reward, jnp.array(1.0), mask), 5.0, rtol=1e-6)
