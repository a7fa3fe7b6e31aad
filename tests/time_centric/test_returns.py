"""Returns and advantages against rlax, its golden values, forward-view NumPy loops and hand-worked time limits."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcredit.core.trajectory import Trajectory
from jaxcredit.time_centric.action_values import n_step_expected_sarsa, n_step_q_learning, n_step_sarsa
from jaxcredit.time_centric.returns import (
    GAE,
    MonteCarlo,
    NStep,
    TDLambda,
    discounted_returns,
    gae,
    lambda_returns,
    n_step_returns,
    td_lambda,
)

T, A = 7, 3
close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


def no_ends(steps=T):
    return jnp.zeros(steps, bool), jnp.zeros(steps, bool)


# --- oracles: sums in forward time, straight from the definitions ---


def n_step_loop(reward, next_value, terminated, truncated, gamma, n):
    returns = np.zeros(len(reward))
    for t in range(len(reward)):
        for k in range(t, len(reward)):
            returns[t] += gamma ** (k - t) * reward[k]
            if terminated[k]:
                break
            if truncated[k] or k == len(reward) - 1 or k - t + 1 == n:
                returns[t] += gamma ** (k - t + 1) * next_value[k]
                break
    return returns


def steps_to_end(t, terminated, truncated):
    ends = [k for k in range(t, len(terminated)) if terminated[k] or truncated[k]]
    return (ends[0] if ends else len(terminated) - 1) - t + 1


def lambda_loop(reward, next_value, terminated, truncated, gamma, lam):
    by_n = [n_step_loop(reward, next_value, terminated, truncated, gamma, n) for n in range(1, len(reward) + 1)]
    returns = np.zeros(len(reward))
    for t in range(len(reward)):
        longest = steps_to_end(t, terminated, truncated)
        for n in range(1, longest):
            returns[t] += (1 - lam) * lam ** (n - 1) * by_n[n - 1][t]
        returns[t] += lam ** (longest - 1) * by_n[longest - 1][t]
    return returns


def gae_loop(reward, value, next_value, terminated, truncated, gamma, lam):
    td_error = reward + gamma * np.where(terminated, 0, next_value) - value
    return np.array(
        [
            sum((gamma * lam) ** k * td_error[t + k] for k in range(steps_to_end(t, terminated, truncated)))
            for t in range(len(reward))
        ]
    )


# --- shared compiled functions ---


@jax.jit
def every_function(reward, value, next_value, terminated, truncated, gamma, lam):
    """All functions on one trajectory, by both forms of the recursion."""
    ends = terminated, truncated
    results = {}
    for form in ("sequential", "associative"):
        results[form] = {
            "discounted": discounted_returns(reward, next_value, *ends, gamma=gamma, form=form),
            "lambda": lambda_returns(reward, next_value, *ends, gamma=gamma, lam=lam, form=form),
            "td_lambda": td_lambda(reward, value, next_value, *ends, gamma=gamma, lam=lam, form=form),
            "gae": gae(reward, value, next_value, *ends, gamma=gamma, lam=lam, form=form),
        }
    n_step = {n: n_step_returns(reward, next_value, *ends, gamma=gamma, n=n) for n in (1, 3, T, T + 5)}
    return results["sequential"], results["associative"], n_step


def random_arrays(seed):
    rng = np.random.default_rng(seed)
    return rng, *(rng.normal(size=T).astype(np.float32) for _ in range(3))


flags = st.lists(st.booleans(), min_size=T, max_size=T).map(np.array)
unit = st.floats(0, 1, width=32)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), terminated=flags, truncated=flags, gamma=unit, lam=unit)
def test_every_function_equals_its_forward_sum(seed, terminated, truncated, gamma, lam):
    _, reward, value, next_value = random_arrays(seed)
    sequential, associative, n_step = every_function(reward, value, next_value, terminated, truncated, gamma, lam)
    arrays = reward.astype(float), next_value.astype(float), terminated, truncated

    lambda_return = lambda_loop(*arrays, gamma, lam)
    close(sequential["discounted"], n_step_loop(*arrays, gamma, T))
    close(sequential["lambda"], lambda_return)
    close(sequential["td_lambda"], lambda_return - value)
    close(sequential["gae"], gae_loop(reward, value, *arrays[1:], gamma, lam))
    for n, returns in n_step.items():
        close(returns, n_step_loop(*arrays, gamma, n))
    for name, expected in sequential.items():
        close(associative[name], expected)


def test_equals_rlax_on_random_input():
    """Without time limits: rlax has one discount, one vector of values and no next action at the window's end."""
    rng, reward, value, last = random_arrays(0)
    next_value = np.append(value[1:], last[0])
    q, next_q = rng.normal(size=(2, T, A)).astype(np.float32)
    action, next_action = rng.integers(0, A, size=(2, T))
    probability = rng.dirichlet(np.ones(A), size=T).astype(np.float32)
    terminated = np.array([0, 0, 1, 0, 0, 0, 0], bool)
    gamma = rng.uniform(0.5, 1, size=T).astype(np.float32)
    discount = gamma * (1 - terminated)
    lam = 0.8

    @jax.jit
    def ours(reward, value, next_value, q, next_q, action, next_action, probability, gamma, terminated):
        ends = terminated, jnp.zeros(T, bool)
        taken = q[jnp.arange(T), action]
        return {
            "discounted": discounted_returns(reward, next_value, *ends, gamma=gamma),
            "lambda": lambda_returns(reward, next_value, *ends, gamma=gamma, lam=lam),
            "td_lambda": td_lambda(reward, value, next_value, *ends, gamma=gamma, lam=lam),
            "gae": gae(reward, value, next_value, *ends, gamma=gamma, lam=lam),
            "n_step": n_step_returns(reward, next_value, *ends, gamma=gamma, n=3),
            "sarsa": n_step_sarsa(reward, next_q, next_action, *ends, gamma=gamma, n=1) - taken,
            "n_step_sarsa": n_step_sarsa(reward, next_q, next_action, *ends, gamma=gamma, n=3),
            "expected_sarsa": n_step_expected_sarsa(reward, next_q, probability, *ends, gamma=gamma, n=1) - taken,
            "n_step_expected_sarsa": n_step_expected_sarsa(reward, next_q, probability, *ends, gamma=gamma, n=3),
            "q_learning": n_step_q_learning(reward, next_q, *ends, gamma=gamma, n=1) - taken,
            "n_step_q_learning": n_step_q_learning(reward, next_q, *ends, gamma=gamma, n=3) - taken,
        }

    @jax.jit
    def theirs(reward, value, next_value, q, next_q, action, next_action, probability, discount):
        n_step = partial(rlax.n_step_bootstrapped_returns, reward, discount, n=3)
        return {
            "discounted": rlax.discounted_returns(reward, discount, next_value),
            "lambda": rlax.lambda_returns(reward, discount, next_value, lam),
            "td_lambda": rlax.td_lambda(value, reward, discount, next_value, lam),
            "gae": rlax.truncated_generalized_advantage_estimation(
                reward, discount, lam, jnp.append(value, next_value[-1])
            ),
            "n_step": n_step(next_value),
            "sarsa": jax.vmap(rlax.sarsa)(q, action, reward, discount, next_q, next_action),
            "n_step_sarsa": n_step(next_q[jnp.arange(T), next_action]),
            "expected_sarsa": jax.vmap(rlax.expected_sarsa)(q, action, reward, discount, next_q, probability),
            "n_step_expected_sarsa": n_step((probability * next_q).sum(1)),
            "q_learning": jax.vmap(rlax.q_learning)(q, action, reward, discount, next_q),
            "n_step_q_learning": rlax.transformed_n_step_q_learning(
                q, action, next_q, next_q.argmax(1), reward, discount, 3
            ),
        }

    shared = reward, value, next_value, q, next_q, action, next_action, probability
    actual, expected = ours(*shared, gamma, terminated), theirs(*shared, discount)
    for name in expected:
        close(actual[name], expected[name], err_msg=name)


# --- golden values of rlax/_src/multistep_test.py (version 0.1.9) ---

REWARD = jnp.array([[1.0, 0.0, -1.0, 0.0, 1.0], [0.5, 0.8, -0.7, 0.0, 2.1]])
DISCOUNT = jnp.array([[0.5, 0.9, 1.0, 0.5, 0.8], [0.9, 0.5, 0.3, 0.8, 0.7]])
NEXT_VALUE = jnp.array([[3.0, 1.0, 5.0, -5.0, 3.0], [-1.7, 1.2, 2.3, 2.2, 2.7]])
DISCOUNTED = [[1.315, 0.63, 0.7, 1.7, 3.4], [1.33592, 0.9288, 0.2576, 3.192, 3.99]]
GOLDEN_RETURNS = {
    "discounted": DISCOUNTED,
    "lambda": [
        [1.6460547, 0.72281253, 0.7375001, 0.6500001, 3.4],
        [0.7866317, 0.9913063, 0.1101501, 2.834, 3.99],
    ],
    "n=3": [[2.8, -3.15, 0.7, 1.7, 3.4], [1.2155, 0.714, 0.2576, 3.192, 3.99]],
    "n=5": DISCOUNTED,
    "n=7": DISCOUNTED,
}


def test_golden_returns():
    @jax.jit
    @jax.vmap
    def actual(reward, next_value, gamma):
        arrays = reward, next_value, *no_ends(5)
        return {
            "discounted": discounted_returns(*arrays, gamma=gamma),
            "lambda": lambda_returns(*arrays, gamma=gamma, lam=0.75),
        } | {f"n={n}": n_step_returns(*arrays, gamma=gamma, n=n) for n in (3, 5, 7)}

    for name, computed in actual(REWARD, NEXT_VALUE, DISCOUNT).items():
        close(computed, GOLDEN_RETURNS[name], err_msg=name)


def test_golden_gae():
    """The second row's discount of 0 at step 3 is a natural end; the literals hold three digits, as rlax tests them."""
    reward = jnp.array([[0.0, 0.0, 1.0, 0.0, -0.5], [0.0, 0.0, 0.0, 0.0, 1.0]])
    values = jnp.array([[1.0, 4.0, -3.0, -2.0, -1.0, -1.0], [-3.0, -2.0, -1.0, 0.0, 5.0, -1.0]])
    terminated = jnp.zeros((2, 5), bool).at[1, 3].set(True)

    @jax.jit
    @partial(jax.vmap, in_axes=(None, None, None, None, 0))
    @partial(jax.vmap, in_axes=(0, 0, 0, 0, None))
    def actual(reward, values, terminated, gamma, lam):
        return gae(reward, values[:-1], values[1:], terminated, jnp.zeros(5, bool), gamma=gamma, lam=lam)

    expected = [
        [[-1.45118, -4.4557, 2.5396, 0.5249, -0.49], [3.0, 2.0, 1.0, 0.0, -4.9]],
        [[-0.676979, -5.248167, 2.4846, 0.6704, -0.49], [2.2899, 1.73, 1.0, 0.0, -4.9]],
        [[0.56731, -6.042, 2.3431, 0.815, -0.49], [1.725, 1.46, 1.0, 0.0, -4.9]],
    ]
    computed = actual(reward, values, terminated, jnp.array([0.99, 0.9]), jnp.array([1.0, 0.7, 0.4]))
    np.testing.assert_allclose(computed, expected, atol=1e-3)


# --- time limits, worked by hand ---


def test_time_limit_bootstraps_and_cuts():
    """By hand, gamma = 1/2: step 1 hits a time limit, step 2 starts another episode, which ends naturally."""
    reward, value = jnp.array([1.0, 2.0, 4.0]), jnp.array([10.0, 20.0, 30.0])
    next_value = jnp.array([20.0, 6.0, 99.0])  # 6: the observation before the reset, not the next episode's 30
    ends = jnp.array([False, False, True]), jnp.array([False, True, False])
    tables = jnp.stack([next_value, next_value - 1], axis=1)

    @jax.jit
    def check():
        return {
            "discounted": (discounted_returns(reward, next_value, *ends, gamma=0.5), [3.5, 5, 4]),
            "lambda": (lambda_returns(reward, next_value, *ends, gamma=0.5, lam=0.5), [7.25, 5, 4]),
            "n=2": (n_step_returns(reward, next_value, *ends, gamma=0.5, n=2), [3.5, 5, 4]),
            "n=1": (n_step_returns(reward, next_value, *ends, gamma=0.5, n=1), [11, 5, 4]),
            "td_lambda": (td_lambda(reward, value, next_value, *ends, gamma=0.5, lam=0.5), [-2.75, -15, -26]),
            "gae": (gae(reward, value, next_value, *ends, gamma=0.5, lam=0.5), [-2.75, -15, -26]),
            "q_learning": (n_step_q_learning(reward, tables, *ends, gamma=0.5, n=2), [3.5, 5, 4]),
        }

    for name, (actual, by_hand) in check().items():
        close(actual, by_hand, err_msg=name)


# --- reductions ---


def test_extreme_lambdas_and_n():
    """lam = 1 and n >= T are Monte Carlo, lam = 0 and n = 1 are TD(0), ends included."""
    _, reward, value, next_value = random_arrays(3)
    terminated, truncated = np.arange(T) == 4, np.arange(T) == 2
    arrays = reward, value, next_value, terminated, truncated, 0.9
    monte_carlo = n_step_loop(reward, next_value, terminated, truncated, 0.9, T)
    td_target = reward + 0.9 * np.where(terminated, 0, next_value)

    far, _, n_step = every_function(*arrays, 1.0)
    near, _, _ = every_function(*arrays, 0.0)
    for actual in (far["discounted"], far["lambda"], n_step[T], n_step[T + 5], far["td_lambda"] + value):
        close(actual, monte_carlo)
    for actual in (near["lambda"], n_step[1], near["td_lambda"] + value, near["gae"] + value):
        close(actual, td_target)


def test_gradients_are_exact_through_n_steps():
    """d G_0^2 / d r = (1, gamma), d G_0^2 / d v = gamma^2 at step 1."""
    reward, next_value = jnp.ones(4), jnp.ones(4)

    @jax.jit
    @partial(jax.grad, argnums=(0, 1))
    def gradient(reward, next_value):
        return n_step_returns(reward, next_value, *no_ends(4), gamma=0.5, n=2)[0]

    by_reward, by_value = gradient(reward, next_value)
    close(by_reward, [1, 0.5, 0, 0])
    close(by_value, [0, 0.25, 0, 0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_dtype_of_the_reward_is_kept(dtype):
    def results(reward, value, gamma):
        ends = no_ends(2)
        return (
            discounted_returns(reward, value, *ends, gamma=gamma),
            td_lambda(reward, value, value, *ends, gamma=gamma, lam=0.5),
            gae(reward, value, value, *ends, gamma=gamma, lam=0.5, form="associative"),
            n_step_returns(reward, value, *ends, gamma=gamma, n=2),
        )

    with jax.enable_x64(dtype == "float64"):
        for result in jax.eval_shape(results, jnp.ones(2, dtype), jnp.ones(2, "float32"), jnp.ones((), "float32")):
            assert result.dtype == dtype and not result.weak_type


def test_one_step_window():
    reward, value, next_value = jnp.array([1.0]), jnp.array([3.0]), jnp.array([4.0])
    close(discounted_returns(reward, next_value, *no_ends(1), gamma=0.5), [3.0])
    close(n_step_returns(reward, next_value, *no_ends(1), gamma=0.5, n=4), [3.0])
    close(gae(reward, value, next_value, *no_ends(1), gamma=0.5, lam=0.9), [0.0])


# --- bad input ---


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gae(jnp.ones(3), jnp.ones(2), jnp.ones(3), *no_ends(3), gamma=1.0, lam=1.0), "value has shape"),
        (lambda: gae(jnp.ones(3), jnp.ones((3, 1)), jnp.ones(3), *no_ends(3), gamma=1.0, lam=1.0), "value has shape"),
        (lambda: discounted_returns(jnp.ones(3, int), jnp.ones(3), *no_ends(3), gamma=1.0), "must be floating"),
        (lambda: discounted_returns(jnp.ones((3, 2)), jnp.ones((3, 2)), *no_ends(3), gamma=1.0), "jax.vmap"),
        (lambda: discounted_returns(jnp.ones(0), jnp.ones(0), *no_ends(0), gamma=1.0), "T >= 1"),
        (lambda: discounted_returns(jnp.ones(3), jnp.ones(3), jnp.ones(3), no_ends(3)[1], gamma=1.0), "must be bool"),
        (lambda: n_step_returns(jnp.ones(3), jnp.ones(3), *no_ends(3), gamma=1.0, n=0), "at least 1"),
        (lambda: n_step_returns(jnp.ones(3), jnp.ones(3), *no_ends(3), gamma=1.0, n=2.0), "Python int"),  # type: ignore
        (lambda: n_step_q_learning(jnp.ones(3), jnp.ones(3), *no_ends(3), gamma=1.0, n=1), r"\[T, A\]"),
        (
            lambda: n_step_expected_sarsa(jnp.ones(3), jnp.ones((3, 2)), jnp.ones((3, 1)), *no_ends(3), gamma=1.0, n=1),
            "next_probability",
        ),
        (
            lambda: n_step_sarsa(jnp.ones(3), jnp.ones((3, 2)), jnp.ones(2, int), *no_ends(3), gamma=1.0, n=1),
            "next_action has shape",
        ),
        (lambda: lambda_returns(jnp.ones(3), jnp.ones(3), *no_ends(3), gamma=1.0, lam=1.0, form="fast"), "sequential"),  # type: ignore
        (lambda: NStep(n=0), "at least 1"),
        (lambda: assign(GAE(), example_batch().replace(value=None)), "GAE needs value"),
    ],
)
def test_bad_input_is_named(no_type_hook, call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- estimators ---


def example_batch():
    """Six steps, two columns: an episode cut by a time limit then a cut window; an episode of four steps, padded."""
    steps = np.random.default_rng(5).normal(size=(3, 6, 2)).astype(np.float32)
    flag = np.zeros((6, 2), bool)
    terminated, truncated, first, mask = flag.copy(), flag.copy(), flag.copy(), ~flag
    truncated[2, 0] = terminated[3, 1] = True
    first[0] = first[3, 0] = True
    mask[4:, 1] = False
    reward, value, next_value = (jnp.asarray(np.where(mask, x, 0)) for x in steps)
    terminated, truncated, first, mask = (jnp.asarray(x) for x in (terminated, truncated, first, mask))
    return Trajectory(
        observation=None, action=None, reward=reward, value=value, next_value=next_value,
        terminated=terminated, truncated=truncated, first=first, mask=mask,
    )  # fmt: skip


def poison(batch):
    def spoil(x):
        return jnp.where(batch.mask, x, jnp.asarray(True if x.dtype == bool else jnp.nan, x.dtype))

    names = ("reward", "value", "next_value", "terminated", "truncated", "first")
    return batch.replace(**{name: spoil(getattr(batch, name)) for name in names})


@jax.jit
def assign(estimator, batch):
    return estimator.assign(jax.random.key(0), (), batch)


ESTIMATORS = {
    "MonteCarlo": (MonteCarlo(gamma=0.9), lambda r, v, *x: discounted_returns(r, *x, gamma=0.9) - v),
    "NStep": (NStep(gamma=0.9, n=2), lambda r, v, *x: n_step_returns(r, *x, gamma=0.9, n=2) - v),
    "TDLambda": (TDLambda(gamma=0.9, lam=0.7), partial(td_lambda, gamma=0.9, lam=0.7)),
    "GAE": (GAE(gamma=0.9, lam=0.7), partial(gae, gamma=0.9, lam=0.7)),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_credit_every_column_and_ignore_padding(name):
    estimator, function = ESTIMATORS[name]
    batch = example_batch()
    result, poisoned = assign(estimator, batch), assign(estimator, poison(batch))
    names = ("reward", "value", "next_value", "terminated", "truncated")
    for column, steps in ((0, 6), (1, 4)):
        arrays = [getattr(batch, name)[:steps, column] for name in names]
        advantage = jax.jit(function)(*arrays)
        close(result.advantage[:steps, column], advantage)
        close(result.value_target[:steps, column], advantage + arrays[1])
    for written in (result, poisoned):
        assert (written.advantage[4:, 1] == 0).all() and (written.value_target[4:, 1] == 0).all()
    np.testing.assert_array_equal(poisoned.advantage, result.advantage)
    np.testing.assert_array_equal(poisoned.value_target, result.value_target)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_next_episode_never_leaks_through_a_time_limit(name):
    """In column 0 step 3 starts another episode."""
    batch = example_batch()
    changed = batch.replace(reward=batch.reward.at[3:].add(7.0), value=batch.value.at[3:].add(7.0))
    before, after = (assign(ESTIMATORS[name][0], b).advantage[:3, 0] for b in (batch, changed))
    np.testing.assert_array_equal(before, after)


def test_monte_carlo_without_baseline_reads_no_value():
    estimator, batch = MonteCarlo(gamma=0.5, baseline=False), example_batch()
    result = assign(estimator, batch)
    other = assign(estimator, batch.replace(value=batch.value + 1, next_value=batch.next_value + 1))
    np.testing.assert_array_equal(result.advantage, other.advantage)
    jax.eval_shape(assign, estimator, batch.replace(value=None, next_value=None))
    assert result.value_target is None and estimator.needs_episodes and not MonteCarlo().needs_episodes
    reward = batch.reward[:, 1]
    close(result.advantage[:, 1], [sum(0.5 ** (k - t) * reward[k] for k in range(t, 4)) for t in range(6)])


def test_floats_are_leaves_and_the_rest_is_static():
    assert jax.tree.leaves([GAE(gamma=1, lam=0.5), NStep(gamma=0.5, n=3), MonteCarlo(baseline=False)]) == [
        1,
        0.5,
        0.5,
        0.99,
    ]
