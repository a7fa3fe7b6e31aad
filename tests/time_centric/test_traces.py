"""Online TD(lambda): the dutch trace against the online lambda-return algorithm, the classic traces against loops."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcredit.time_centric.traces import FeatureStep, init_trace, mark_trace, online_td_lambda

T, D = 14, 4
GAMMA, LAM, ALPHA = 0.95, 0.8, 0.15


def experience(seed=0, binary=False):
    """Three episodes: one ends naturally after step 4, one by a time limit after step 9, the last stays open."""
    rng = np.random.default_rng(seed)
    draw = (lambda: rng.integers(0, 2, D).astype(float)) if binary else (lambda: rng.normal(size=D))
    terminated, truncated = np.arange(T) == 4, np.arange(T) == 9
    feature = np.stack([draw() for _ in range(T)])
    after = np.stack([*feature[1:], draw()])  # what follows, except behind an end, where the next episode has begun
    next_feature = np.where((terminated | truncated)[:, None], np.stack([draw() for _ in range(T)]), after)
    return FeatureStep(feature, rng.normal(size=T), next_feature, terminated, truncated)


@partial(jax.jit, static_argnames="kind")
def learn(weights, steps, gamma, lam, learning_rate, kind):
    """Weights and traces after every step, and TD errors."""

    def body(state, step):
        state, td_error = online_td_lambda(state, step, gamma=gamma, lam=lam, learning_rate=learning_rate, kind=kind)
        return state, (state.weights, state.trace, td_error)

    return jax.lax.scan(body, init_trace(weights), steps)[1]


def online_lambda_return(weights, steps):
    """At every step redo all updates of the episode so far with lambda-returns that look no further than that step.

    The return over n steps bootstraps from the weights learned before its last step (Sutton and Barto (2018), section
    12.3).
    """
    learned, start, episode = [], 0, [weights]
    for now in range(T):
        length = now - start + 1

        def value_after(k, start=start, episode=episode):
            return 0.0 if steps.terminated[start + k] else steps.next_feature[start + k] @ episode[k]

        def n_step(t, n, start=start, value_after=value_after):
            rewards = sum(GAMMA**i * steps.reward[start + t + i] for i in range(n))
            return rewards + GAMMA**n * value_after(t + n - 1)

        redone = episode[0]
        for t in range(length):
            longest = length - t
            target = LAM ** (longest - 1) * n_step(t, longest)
            target += sum((1 - LAM) * LAM ** (n - 1) * n_step(t, n) for n in range(1, longest))
            feature = steps.feature[start + t]
            redone = redone + ALPHA * (target - redone @ feature) * feature
        episode.append(redone)
        learned.append(redone)
        if steps.terminated[now] or steps.truncated[now]:
            start, episode = now + 1, [redone]
    return np.stack(learned)


def test_dutch_trace_equals_the_online_lambda_return():
    weights, steps = np.random.default_rng(1).normal(size=D), experience()
    with jax.enable_x64(True):
        learned, _, _ = learn(jnp.asarray(weights), jax.tree.map(jnp.asarray, steps), GAMMA, LAM, ALPHA, "dutch")
        assert learned.dtype == jnp.float64
    np.testing.assert_allclose(learned, online_lambda_return(weights, steps), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["accumulating", "replacing"])
def test_classic_traces_equal_a_loop(kind):
    steps, w, trace = experience(2, binary=True), np.zeros(D), np.zeros(D)
    weights, traces, td_errors = learn(jnp.zeros(D), jax.tree.map(jnp.asarray, steps), GAMMA, LAM, ALPHA, kind)
    assert weights.dtype == jnp.float32
    for t in range(T):
        x, r, x_next, terminated, truncated = (leaf[t] for leaf in steps)
        td_error = r + (0 if terminated else GAMMA * w @ x_next) - w @ x
        for i in range(D):
            trace[i] = x[i] if kind == "replacing" and x[i] else GAMMA * LAM * trace[i] + x[i]
        w = w + ALPHA * td_error * trace
        if terminated or truncated:
            trace = np.zeros(D)
        np.testing.assert_allclose(td_errors[t], td_error, atol=1e-5)
        np.testing.assert_allclose(weights[t], w, atol=1e-5)
        np.testing.assert_allclose(traces[t], trace, atol=1e-5)


def test_lambda_zero_is_td_zero_for_every_kind():
    steps = experience(3, binary=True)
    expected, w = [], np.zeros(D)
    for x, r, x_next, terminated, _ in zip(*steps, strict=True):
        w = w + ALPHA * (r + (0 if terminated else GAMMA * w @ x_next) - w @ x) * x
        expected.append(w)
    for kind in ("accumulating", "replacing", "dutch"):
        weights, _, _ = learn(jnp.zeros(D), jax.tree.map(jnp.asarray, steps), GAMMA, 0.0, ALPHA, kind)
        np.testing.assert_allclose(weights, expected, atol=1e-5)


def test_time_limit_bootstraps_then_clears_the_trace():
    """By hand, a feature per state: A, B, a time limit with value 2 behind it; C, whose reward must reach neither."""
    a, b, behind, c = np.eye(D, dtype=np.float32)

    def then_nothing(*first):
        return jnp.asarray(np.stack([*first, *[np.zeros_like(first[0])] * (T - 3)]))

    steps = FeatureStep(
        feature=then_nothing(a, b, c),
        reward=then_nothing(np.float32(0), np.float32(1), np.float32(1)),
        next_feature=then_nothing(b, behind, behind),
        terminated=jnp.arange(T) == 2,
        truncated=jnp.arange(T) == 1,
    )
    for kind in ("accumulating", "replacing", "dutch"):
        weights, traces, td_error = learn(jnp.array([0.0, 0.0, 2.0, 0.0]), steps, 0.5, 1.0, 0.5, kind)
        np.testing.assert_allclose(td_error[:3], [0, 2, 1])
        np.testing.assert_allclose(weights[-1], [0.5, 1, 2, 0.5])
        assert (traces[1:3] == 0).all()


def test_unknown_kind_names_the_nearest(no_type_hook):
    with pytest.raises(ValueError, match="Did you mean 'accumulating'"):
        mark_trace(jnp.ones(2), jnp.ones(2), decay=0.9, learning_rate=0.1, kind="acumulating")  # type: ignore
