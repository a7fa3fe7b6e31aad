"""V-trace and Retrace against rlax, its golden values, forward-view NumPy sums and hand-worked time limits."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcredit.core.trajectory import Trajectory
from jaxcredit.time_centric.off_policy import VTrace, retrace, vtrace
from jaxcredit.time_centric.returns import lambda_returns

T = 7
close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
NO_END = np.zeros(T, bool)


def targets(*arrays, gamma=0.9, lam=0.9, clip_rho=1.0, clip_c=1.0, form="sequential"):
    """V-trace's two results and Retrace's."""
    target, advantage = vtrace(*arrays, gamma=gamma, lam=lam, clip_rho=clip_rho, clip_c=clip_c, form=form)
    return target, advantage, retrace(*arrays, gamma=gamma, lam=lam, form=form)


@jax.jit
def both(reward, value, next_value, terminated, truncated, log_rho, gamma, lam, clip_rho, clip_c):
    """The targets of one trajectory by both forms of the recursion."""
    arrays = reward, value, next_value, terminated, truncated, log_rho
    settings_ = {"gamma": gamma, "lam": lam, "clip_rho": clip_rho, "clip_c": clip_c}
    return [targets(*arrays, **settings_, form=form) for form in ("sequential", "associative")]


def random_arrays(seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=T).astype(np.float32) for _ in range(4)]


def forward_sums(reward, value, next_value, terminated, truncated, log_rho, gamma, lam, clip_rho, clip_c):
    """Both targets as sums over the later steps of the episode, weighted by products of clipped ratios."""
    rho = np.exp(log_rho.astype(float))
    td_error = reward + gamma * np.where(terminated, 0, next_value) - value
    target, taken_target = value.astype(float), value.astype(float)
    for t in range(T):
        for k in range(t, T):
            on_the_way = gamma ** (k - t) * lam ** (k - t)
            trace = np.minimum(clip_c, rho[t:k]).prod()
            target[t] += on_the_way * trace * min(clip_rho, rho[k]) * td_error[k]
            taken_target[t] += on_the_way * np.minimum(1, rho[t + 1 : k + 1]).prod() * td_error[k]
            if terminated[k] or truncated[k]:
                break
    cut = terminated | truncated
    beyond = np.append(target[1:] - value[1:], 0)
    advantage = np.minimum(clip_rho, rho) * (td_error + np.where(cut, 0, gamma * lam * beyond))
    return target, advantage, taken_target


flags = st.lists(st.booleans(), min_size=T, max_size=T).map(np.array)
unit, clip = st.floats(0, 1, width=32), st.floats(0.25, 4, width=32)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**31), flags, flags, unit, unit, clip, clip)
def test_equal_their_forward_sums(seed, terminated, truncated, gamma, lam, clip_rho, clip_c):
    reward, value, next_value, log_rho = random_arrays(seed)
    arguments = reward, value, next_value, terminated, truncated, log_rho, gamma, lam, clip_rho, clip_c
    sequential, associative = both(*arguments)
    for actual, other, expected in zip(sequential, associative, forward_sums(*arguments), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(other, actual, rtol=1e-4, atol=1e-4)


def test_vtrace_equals_rlax_on_random_input():
    """rlax says a time limit by a lambda of 0 at that step (there in its targets, not in its advantages)."""
    reward, value, _, log_rho = random_arrays(1)
    terminated, truncated = np.arange(T) == 2, np.arange(T) == 4
    next_value = np.append(value[1:], np.float32(0.5))

    @jax.jit
    def theirs(reward, value, next_value, discount, rho, lam):
        return rlax.vtrace_td_error_and_advantage(value, next_value, reward, discount, rho, lam, 0.8, 0.8)

    for cut in (NO_END, truncated):
        lam = (0.9 * (1 - cut)).astype(np.float32)
        discount = (0.95 * (1 - terminated)).astype(np.float32)
        expected = theirs(reward, value, next_value, discount, np.exp(log_rho), lam)
        (target, advantage, _), _ = both(reward, value, next_value, terminated, cut, log_rho, 0.95, 0.9, 0.8, 1.0)
        close(target - value, expected.errors)
        close(advantage, expected.pg_advantage)


def test_retrace_equals_rlax_on_random_input():
    reward, value, next_value, log_rho = random_arrays(2)
    terminated = np.arange(T) == 3
    weight = 0.9 * np.minimum(1, np.exp(log_rho))
    expected = jax.jit(rlax.general_off_policy_returns_from_q_and_v)(
        value[1:], next_value, reward, (0.95 * (1 - terminated)).astype(np.float32), weight[1:]
    )
    (*_, target), _ = both(reward, value, next_value, terminated, NO_END, log_rho, 0.95, 0.9, 1.0, 1.0)
    close(target, expected)


# --- golden values of rlax/_src/vtrace_test.py and value_learning_test.py (version 0.1.9) ---

REWARD = np.array([[-1.3, -1.3, 2.3, 42.0], [1.3, 5.3, -3.3, -5.0]], np.float32)
DISCOUNT = np.array([[0.0, 0.89, 0.85, 0.99], [0.88, 1.0, 0.83, 0.95]], np.float32)
ACTION = np.array([[0, 1, 0, 0], [1, 0, 0, 1]])


def pick(table, action):
    return np.take_along_axis(table, action[..., None], -1)[..., 0]


def test_golden_vtrace():
    behaviour = np.array(
        [[[8.9, 0.7], [5.0, 1.0], [0.6, 0.1], [-0.9, -0.1]], [[0.3, -5.0], [1.0, -8.0], [0.3, 1.7], [4.7, 3.3]]]
    )
    target = np.array(
        [[[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4]], [[1.0, 0.9], [1.0, -1.0], [-4.3, 8.7], [0.8, 0.3]]]
    )
    log_prob, behaviour_log_prob = (
        pick(x - np.log(np.exp(x).sum(-1, keepdims=True)), ACTION) for x in (target, behaviour)
    )
    value = np.array([[2.1, 1.1, -3.1, 0.0], [3.1, 0.1, -1.1, 7.4]], np.float32)
    next_value = np.concatenate([value[:, 1:], np.array([[8.4], [-1.2]], np.float32)], axis=1)
    no_end = jnp.zeros(4, bool)
    target, advantage = jax.jit(jax.vmap(lambda r, v, nv, rho, g: vtrace(r, v, nv, no_end, no_end, rho, gamma=g)))(
        *map(jnp.asarray, (REWARD, value, next_value, (log_prob - behaviour_log_prob).astype(np.float32), DISCOUNT))
    )
    errors = [[-1.6155143, -3.4973226, 1.8670533, 50.316002], [1.4662437, 3.6116405, -8.3327293e-5, -13.54]]
    close(target - value, errors)
    close(advantage, errors)


def test_golden_retrace():
    q = np.array(
        [[[1.1, 2.1], [-1.1, 1.1], [3.1, -3.1], [-1.2, 0.0]], [[2.1, 3.1], [9.5, 0.1], [-2.1, -1.1], [0.1, 7.4]]]
    )
    target_q = np.array(
        [[[1.2, 2.2], [-1.2, 0.2], [2.2, -1.2], [-2.25, -6.0]], [[4.2, 2.2], [1.2, 1.2], [-1.2, -2.2], [1.5, 1.0]]]
    )
    policy = np.array(
        [[[0.5, 0.5], [0.2, 0.8], [0.6, 0.4], [0.9, 0.1]], [[0.1, 0.9], [1.0, 0.0], [0.3, 0.7], [0.7, 0.3]]]
    )
    behaviour = np.array([[0.5, 0.1, 0.9, 0.3], [0.4, 0.6, 1.0, 0.9]])
    taken_value = pick(target_q, ACTION)[:, :-1]
    next_value = (policy * target_q).sum(-1)[:, 1:]
    log_rho = np.log(pick(policy, ACTION) / behaviour)[:, :-1]
    no_end = jnp.zeros(3, bool)
    target = jax.jit(jax.vmap(lambda r, v, nv, rho, g: retrace(r, v, nv, no_end, no_end, rho, gamma=g, lam=0.9)))(
        *(jnp.asarray(x, jnp.float32) for x in (REWARD[:, :-1], taken_value, next_value, log_rho, DISCOUNT[:, :-1]))
    )
    loss = 0.5 * (target - pick(q, ACTION)[:, :-1]) ** 2
    close(loss, [[2.8800001, 3.8934109, 4.5942383], [0.31121615, 20.253206, 3.1601219e-3]])


# --- time limits, reductions, extreme ratios ---


def padded(*x):
    """A T-step array that begins with the given numbers."""
    return np.array(x + (0,) * (T - len(x)), np.float32)


def test_time_limit_bootstraps_and_cuts():
    """By hand: step 1 hits a time limit with value 6 behind it; gamma = 1/2, ratios 1, 2 (clipped to 1) and 1."""
    reward, value, next_value = padded(1, 2, 4), padded(10, 20, 30), padded(20, 6, 99)
    terminated, truncated = np.arange(T) >= 2, np.arange(T) == 1
    log_rho = padded(0, np.log(2), 0)
    (target, advantage, taken_target), _ = both(
        reward, value, next_value, terminated, truncated, log_rho, 0.5, 1.0, 1.0, 1.0
    )
    close(target[:3], [3.5, 5.0, 4.0])
    close(advantage[:3], [-6.5, -15.0, -26.0])
    close(taken_target[:3], [3.5, 5.0, 4.0])


def test_on_policy_vtrace_is_the_lambda_return():
    reward, value, _, _ = random_arrays(4)
    next_value = np.append(value[1:], np.float32(1.5))
    terminated = np.arange(T) == 3
    (target, _, _), _ = both(reward, value, next_value, terminated, NO_END, padded(), 0.9, 0.7, 1.0, 1.0)
    expected = lambda_returns(*map(jnp.asarray, (reward, next_value, terminated, NO_END)), gamma=0.9, lam=0.7)
    close(target, expected)


def test_huge_ratios_stay_finite_and_so_do_gradients():
    reward, value, next_value, _ = random_arrays(6)
    log_rho = padded(1e4, -1e4, 90, 0)
    (target, advantage, taken_target), _ = both(reward, value, next_value, NO_END, NO_END, log_rho, 0.9, 0.9, 1.0, 1.0)
    clipped = forward_sums(reward, value, next_value, NO_END, NO_END, np.minimum(log_rho, 0), 0.9, 0.9, 1.0, 1.0)
    for actual, expected in zip((target, advantage, taken_target), clipped, strict=True):
        close(actual, expected)

    @jax.jit
    @jax.grad
    def gradient(log_rho):
        return sum(x.sum() for x in targets(*map(jnp.asarray, (reward, value, next_value, NO_END, NO_END)), log_rho))

    assert np.isfinite(gradient(log_rho)).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_dtype_of_the_reward_is_kept(dtype):
    with jax.enable_x64(dtype == "float64"):
        reward, other, no_end = jnp.ones(1, dtype), jnp.ones(1, "float32"), jnp.zeros(1, bool)
        for result in jax.eval_shape(targets, reward, other, other, no_end, no_end, other):
            assert result.dtype == dtype and not result.weak_type


# --- estimator ---


@jax.jit
def assign(estimator, batch):
    return estimator.assign(jax.random.key(0), (), batch)


def example_batch():
    """Two columns: a time limit after step 2, then a cut window; an episode of four steps, padded."""
    reward, value, next_value, log_prob = (
        np.stack([a, b], 1) for a, b in zip(random_arrays(7), random_arrays(8), strict=True)
    )
    flag = np.zeros((T, 2), bool)
    terminated, truncated, mask = flag.copy(), flag.copy(), ~flag
    truncated[2, 0] = terminated[3, 1] = True
    mask[4:, 1] = False
    first = np.zeros((T, 2), bool)
    arrays = {"reward": reward, "value": value, "next_value": next_value, "log_prob": log_prob}
    arrays = {name: np.where(mask, x, 0) for name, x in arrays.items()} | {"behaviour_log_prob": np.zeros_like(reward)}
    arrays |= {"terminated": terminated, "truncated": truncated, "mask": mask, "first": first}
    return Trajectory(observation=None, action=None, **{name: jnp.asarray(x) for name, x in arrays.items()})


def test_estimator_credits_every_column_and_ignores_padding():
    batch, estimator = example_batch(), VTrace(gamma=0.9, lam=0.8)
    result = assign(estimator, batch)
    estimate = jax.jit(partial(vtrace, gamma=0.9, lam=0.8))
    for column, steps in ((0, T), (1, 4)):
        names = ("reward", "value", "next_value", "terminated", "truncated", "log_prob")
        target, advantage = estimate(*(getattr(batch, name)[:steps, column] for name in names))
        close(result.value_target[:steps, column], target)
        close(result.advantage[:steps, column], advantage)

    names = ("reward", "value", "next_value", "log_prob", "behaviour_log_prob")
    spoilt = {name: jnp.where(batch.mask, getattr(batch, name), jnp.nan) for name in names}
    ends = {name: getattr(batch, name) | ~batch.mask for name in ("terminated", "truncated")}
    poisoned = assign(estimator, batch.replace(**spoilt, **ends))
    for written in (result, poisoned):
        assert (written.advantage[4:, 1] == 0).all() and (written.value_target[4:, 1] == 0).all()
    np.testing.assert_array_equal(poisoned.advantage, result.advantage)
    np.testing.assert_array_equal(poisoned.value_target, result.value_target)


@pytest.mark.parametrize("name", ["log_prob", "behaviour_log_prob", "value"])
def test_missing_field_is_named(name):
    with pytest.raises(ValueError, match=f"VTrace needs {name}"):
        assign(VTrace(), example_batch().replace(**{name: None}))


def test_bad_input_is_named(no_type_hook):
    x, no_end = jnp.ones(3), jnp.zeros(3, bool)
    with pytest.raises(ValueError, match="log_rho has shape"):
        vtrace(x, x, x, no_end, no_end, jnp.ones(2), gamma=1.0)
    with pytest.raises(ValueError, match="taken_value has shape"):
        retrace(x, jnp.ones(2), x, no_end, no_end, x, gamma=1.0)
