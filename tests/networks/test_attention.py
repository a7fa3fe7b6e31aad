"""Attention against a NumPy loop; what a step, and an agent, may and may not see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcredit.networks.attention import Attention, CausalTransformer, attention_weights, causal_steps, time_encoding

KEY = jax.random.key(0)
STEPS, LENGTH = 4, 3
MASK = jnp.stack([jnp.ones(STEPS, bool), jnp.arange(STEPS) < LENGTH], axis=1)  # [T, B]
TEAM = jax.random.normal(KEY, (STEPS, 2, 3, 2))  # [T, B, N, D]


def anywhere(params):
    """Parameters as after training: at the start, nothing is mixed in."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(KEY, len(leaves))
    return tree.unflatten([x + 0.5 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)])


def loop_weights(query, key, allowed):
    positions, heads, width = query.shape
    weight = np.zeros((heads, positions, positions))
    for h in range(heads):
        for q in range(positions):
            seen = np.flatnonzero(allowed[q])
            score = np.exp([query[q, h] @ key[k, h] / np.sqrt(width) for k in seen])
            weight[h, q, seen] = score / score.sum()
    return weight


def test_weights_and_mixture_against_a_loop():
    x = jax.random.normal(KEY, (STEPS, 4))
    allowed = causal_steps(MASK)[1]
    network = Attention(heads=2)
    params = anywhere(network.init(KEY, x, allowed))
    mixed, seen = network.apply(params, x, allowed, mutable="intermediates")
    p = jax.tree.map(np.asarray, params["params"])
    split = (np.asarray(x) @ p["project"]["kernel"] + p["project"]["bias"]).reshape(STEPS, 3, 2, 2)
    query, key, value = split[:, 0], split[:, 1], split[:, 2]
    weight = loop_weights(query, key, np.asarray(allowed))
    np.testing.assert_allclose(seen["intermediates"]["weight"][0], weight, atol=1e-6)
    heads = [[weight[h, q] @ value[:, h] for h in range(2)] for q in range(STEPS)]
    by_hand = np.reshape(heads, (STEPS, 4)) @ p["mix"]["kernel"] + p["mix"]["bias"]
    np.testing.assert_allclose(mixed, by_hand, atol=1e-5)


def test_episodes_side_by_side_are_mixed_like_each_alone():
    x = jax.random.normal(KEY, (2, STEPS, 4))
    allowed = causal_steps(MASK)[:2]
    network = Attention(heads=2)
    params = anywhere(network.init(KEY, x, allowed))
    alone = [network.apply(params, x[i], allowed[i]) for i in range(2)]
    np.testing.assert_allclose(network.apply(params, x, allowed), np.stack(alone), atol=1e-6)


def test_where_nothing_may_be_seen_weights_and_gradients_are_zero():
    allowed = jnp.array([[True, False], [False, False]])
    key = jnp.ones((2, 1, 3)).at[1].set(1e30)  # must not overflow where it is not looked at

    weight, pull = jax.vjp(jax.jit(lambda query: attention_weights(query, key, allowed)), jnp.ones((2, 1, 3)))
    np.testing.assert_array_equal(weight[0], [[1, 0], [0, 0]])
    np.testing.assert_array_equal(pull(jnp.arange(1.0, 5.0).reshape(1, 2, 2))[0], 0)


def test_large_scores_stay_finite():
    weight = attention_weights(jnp.full((2, 1, 1), 1e4), jnp.array([[[1.0]], [[2.0]]]), jnp.ones((2, 2), bool))
    np.testing.assert_allclose(weight[0], [[0, 1], [0, 1]], atol=1e-6)


def test_no_two_steps_are_encoded_alike():
    code = np.asarray(time_encoding(600, 5))
    assert code.shape == (600, 5)
    np.testing.assert_allclose(code[0], [0, 0, 0, 1, 1], atol=1e-6)
    apart = np.linalg.norm(code[:, None] - code, axis=-1) + np.eye(600)
    assert apart.min() > 1e-3


@pytest.fixture(scope="module")
def described():
    """The team's descriptions, jitted as a function of what happened and of the mask, with parameters of its own."""
    network = CausalTransformer(width=4, heads=2, depth=2)
    params = anywhere(jax.jit(network.init)(KEY, TEAM, MASK))
    return jax.jit(lambda x, mask=MASK: network.apply(params, x, mask))


def test_no_step_sees_what_comes_later(described):
    before, after = described(TEAM), described(TEAM.at[2].add(1.0))
    np.testing.assert_array_equal(after[:2], before[:2])
    assert (jnp.abs(after - before)[2:, 0] > 1e-4).any(axis=(1, 2)).all()


def test_padding_is_never_looked_at(described):
    spoilt = described(TEAM.at[LENGTH:, 1].set(jnp.nan))
    np.testing.assert_array_equal(spoilt[:LENGTH], described(TEAM)[:LENGTH])
    assert np.isfinite(spoilt).all()
    gradient = jax.grad(lambda x: described(x)[:LENGTH].sum())(TEAM.at[LENGTH:, 1].set(jnp.nan))
    assert np.isfinite(gradient).all()


def test_an_episode_is_described_alike_with_and_without_padding(described):
    alone = described(TEAM[:LENGTH], jnp.ones((LENGTH, 2), bool))
    np.testing.assert_allclose(alone[:, 1], described(TEAM)[:LENGTH, 1], atol=1e-5)


def test_agents_see_each_other_and_have_no_numbers(described):
    alike = described(TEAM[:, :, ::-1])
    np.testing.assert_allclose(alike[:LENGTH], described(TEAM)[:LENGTH, :, ::-1], atol=1e-5)
    change = jnp.abs(described(TEAM.at[1, 0, 2].add(1.0)) - described(TEAM))[:, 0].max(axis=-1)
    assert (change[0] == 0).all() and (change[1:] > 1e-5).all()


def test_without_agents_there_is_no_axis_for_them():
    network = CausalTransformer(width=4, heads=1, depth=1)
    described, _ = jax.eval_shape(lambda x: network.init_with_output(KEY, x, MASK), TEAM[:, :, 0])
    assert described.shape == (STEPS, 2, 4)


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="width=4 cannot be split among heads=3"):
        jax.eval_shape(CausalTransformer(width=4, heads=3, depth=1).init, KEY, TEAM, MASK)
