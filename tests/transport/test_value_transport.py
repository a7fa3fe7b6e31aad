"""Read events and what they pay: cases worked by hand, and a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcredit as jc
from contract_table import batch, poisoned

KEY = jax.random.key(0)
NO_ENDS = {"terminated": jnp.zeros(8, bool), "truncated": jnp.zeros(8, bool)}

# One head, two rows; rows at most 2 steps back are inside the window, strengths above 2 count.
STRENGTHS = jnp.array([0.0, 3.0, 1.0, 2.5, 5.0, 5.0, 1.0, 4.0])
INDEX = jnp.array([[-1, -2], [0, -1], [0, 1], [0, 2], [1, 0], [0, 4], [0, 1], [1, 6]])
WEIGHTS = jnp.broadcast_to(jnp.array([0.75, 0.25]), (8, 2))
VALUE = jnp.array([1.0, 1.0, 1.0, 1.0, 10.0, 100.0, 1.0, -2.0])
LIMITS = {"window": 2, "threshold": 2.0}

events = jax.jit(jc.read_events)
transport = jax.jit(jc.transport_value, static_argnames="top_rows")


def of_heads(*heads):
    return jnp.stack(heads, axis=1)


# The window ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gamma", "exact", "released"),
    [(0.92, 12, 12), (0.96, 25, 24), (0.99, 100, 99), (0.9, 10, 10), (0.995, 200, 199), (0.0, 1, 1), (1.0, 25, 25)],
)
def test_the_window_of_a_discount(gamma, exact, released):
    """0.92, 0.96 and 0.99 of the released code, and the rule for no discount."""
    window = jax.jit(jc.discount_window, static_argnames="rounding")
    assert (window(gamma), window(gamma, rounding="released")) == (exact, released)
    assert window(1).dtype == jnp.int32


def test_windows_of_all_discounts_of_three_decimals():
    thousandths = np.arange(1000)
    gamma = jnp.asarray(thousandths / 1000, jnp.float32)
    np.testing.assert_array_equal(jax.vmap(jc.discount_window)(gamma), 1000 // (1000 - thousandths))
    released = jax.vmap(lambda gamma: jc.discount_window(gamma, rounding="released"))(gamma)
    np.testing.assert_array_equal(released, [int(1 / (1 - k / 1000)) for k in range(1000)])


def test_other_discounts_are_rounded_down():
    assert jc.discount_window(0.9583) == 23 and jc.discount_window(0.9583, rounding="released") == 23


def test_unknown_rounding():
    with pytest.raises(ValueError, match="rounding='up' is not known; choose one of exact, released"):
        jc.discount_window(0.9, rounding="up")


# By hand ---------------------------------------------------------------------------------------------------------


def test_events_are_the_strongest_steps_of_runs():
    """Step 1 reads inside the window.  Steps 3 to 5 are a run with a tie, whose first is the event.  Step 7 is a run
    that is still open at the end."""
    assert np.flatnonzero(events(WEIGHTS, STRENGTHS, INDEX, **NO_ENDS, **LIMITS)).tolist() == [4, 7]


def test_a_read_must_be_stronger_than_the_threshold():
    assert not events(WEIGHTS, STRENGTHS, INDEX, **NO_ENDS, window=2, threshold=5.0).any()


def test_the_row_that_is_weighed_most_must_be_distant():
    """In step 7 row 6, inside the window, now weighs most."""
    weights = WEIGHTS.at[7].set(jnp.array([0.25, 0.75]))
    assert np.flatnonzero(events(weights, STRENGTHS, INDEX, **NO_ENDS, **LIMITS)).tolist() == [4]


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_an_end_of_either_kind_ends_a_run(end):
    """The episode ends with step 4: the run is cut, and what steps 5 and 7 read is of another episode."""
    ends = NO_ENDS | {end: NO_ENDS[end].at[4].set(True)}
    assert np.flatnonzero(events(WEIGHTS, STRENGTHS, INDEX, **ends, **LIMITS)).tolist() == [4]
    paid = transport(*(x[:, None] for x in (WEIGHTS, STRENGTHS, INDEX)), VALUE, **ends, **LIMITS, alpha=0.5)
    np.testing.assert_allclose(paid, [1.25, 3.75, 0, 0, 0, 0, 0, 0])


def test_two_runs_with_an_end_between_are_two():
    """Both read their own episode, without a pause between."""
    index, weights = jnp.array([[-1], [-1], [-1], [1], [1]]), jnp.ones((5, 1))
    ends = jnp.array([False, True, False, False, False])
    found = events(weights, jnp.array([0.0, 3.0, 0.0, 0.0, 3.0]), index + 1, ends, ends & False, window=1)
    assert np.flatnonzero(found).tolist() == [4]
    # with the window's own past: step 1 reads before the window, step 2 may not
    found = events(weights, jnp.full(5, 3.0), jnp.array([[-9], [-9], [-9], [2], [2]]), ends, ends & False, window=0)
    assert np.flatnonzero(found).tolist() == [0, 3]


def test_each_event_pays_the_distant_rows_that_it_reads():
    """Step 4 pays 0.5 x 10 x (0.75 to row 1, 0.25 to row 0); step 7 pays 0.5 x -2 x 0.75 to row 1, and nothing to row
    6, which is inside the window."""
    heads = [x[:, None] for x in (WEIGHTS, STRENGTHS, INDEX)]
    paid = transport(*heads, VALUE, **NO_ENDS, **LIMITS, alpha=0.5)
    np.testing.assert_allclose(paid, [1.25, 3.75 - 0.75, 0, 0, 0, 0, 0, 0])


def test_heads_add_up():
    """A second head reads one row, 2, in step 6, with a run of its own; a third reads the same as the first."""
    weights = of_heads(WEIGHTS, jnp.zeros((8, 2)).at[6, 1].set(1.0), WEIGHTS)
    strengths = of_heads(STRENGTHS, jnp.full(8, 9.0), STRENGTHS)
    index = of_heads(INDEX, jnp.full((8, 2), 2), INDEX)
    paid = transport(weights, strengths, index, VALUE, **NO_ENDS, **LIMITS, alpha=0.5)
    np.testing.assert_allclose(paid, [2.5, 6.0, 0.5, 0, 0, 0, 0, 0])


def test_only_the_top_rows_are_paid():
    heads = [x[:, None] for x in (WEIGHTS, STRENGTHS, INDEX)]
    paid = transport(*heads, VALUE, **NO_ENDS, **LIMITS, alpha=0.5, top_rows=1)
    np.testing.assert_allclose(paid, [0, 3.0, 0, 0, 0, 0, 0, 0])


def test_the_top_rows_are_chosen_among_the_distant_ones():
    """The row inside the window weighs more than the second distant one, and does not take its place."""
    index, weights = jnp.full((6, 1, 3), -1).at[5, 0].set(jnp.array([1, 4, 0])), jnp.zeros((6, 1, 3))
    weights = weights.at[5, 0].set(jnp.array([0.5, 0.375, 0.125]))
    ends = jnp.zeros(6, bool)
    paid = transport(weights, jnp.full((6, 1), 3.0), index, jnp.full(6, 8.0), ends, ends, window=2, alpha=1, top_rows=2)
    np.testing.assert_allclose(paid, [1.0, 4.0, 0, 0, 0, 0])


def test_rows_before_the_window_get_nothing():
    ends = jnp.zeros(3, bool)
    index, ones = jnp.array([-5, -5, -1])[:, None, None], jnp.ones((3, 1, 1))
    assert events(ones[:, 0], jnp.full(3, 3.0), index[:, 0], ends, ends, window=4).tolist() == [True, False, False]
    np.testing.assert_array_equal(transport(ones, jnp.full((3, 1), 3.0), index, jnp.ones(3), ends, ends, window=0), 0)


def test_who_reads_nothing_is_no_event_and_does_not_hide_one():
    weights = WEIGHTS.at[4].set(0.0)
    assert np.flatnonzero(events(weights, STRENGTHS, INDEX, **NO_ENDS, **LIMITS)).tolist() == [3, 5, 7]
    nothing = transport(jnp.zeros((8, 1, 2)), STRENGTHS[:, None], INDEX[:, None], VALUE, **NO_ENDS, **LIMITS)
    np.testing.assert_array_equal(nothing, 0)


def test_a_single_step_transports_nothing():
    one = jnp.ones((1, 1, 1))
    paid = transport(one, 9 * one[0], jnp.full((1, 1, 1), -3), one[0, 0], *2 * [jnp.zeros(1, bool)], window=1)
    np.testing.assert_array_equal(paid, [0.0])


# Against a loop --------------------------------------------------------------------------------------------------


def loop_events(weights, strengths, index, ended, window, threshold):
    steps, start, run, found = len(strengths), -np.inf, [], []
    for t in range(steps + 1):
        if t == steps or (t and ended[t - 1]):
            found += [max(run, key=lambda k: strengths[k])] if run else []
            run, start = [], t
            if t == steps:
                break
        row = int(np.argmax(weights[t]))
        if weights[t, row] > 0 and index[t, row] >= start and t - index[t, row] > window and strengths[t] > threshold:
            run.append(t)
        else:
            found += [max(run, key=lambda k: strengths[k])] if run else []
            run = []
    return found


def loop_transport(weights, strengths, index, value, ended, window, threshold, alpha, top_rows):
    paid = np.zeros(len(value))
    for h in range(weights.shape[1]):
        for t2 in loop_events(weights[:, h], strengths[:, h], index[:, h], ended, window, threshold):
            start = max([0, *(np.flatnonzero(ended[:t2]) + 1)])
            rows = [k for k in range(weights.shape[2]) if t2 - index[t2, h, k] > window]
            before = np.isin(t2, np.flatnonzero(np.cumsum(ended) - ended == 0))  # the window's first episode
            rows = [k for k in rows if index[t2, h, k] >= (-np.inf if before else start)]
            for k in sorted(rows, key=lambda k: -weights[t2, h, k])[:top_rows]:
                if index[t2, h, k] >= 0:
                    paid[index[t2, h, k]] += alpha * weights[t2, h, k] * value[t2]
    return paid


@given(st.integers(0, 2**32 - 1), st.integers(0, 3), st.sampled_from([0.5, 2.0]))
def test_against_a_loop(seed, window, threshold):
    """Few strengths, so that there are ties; ends of both kinds; some steps read nothing."""
    rng = np.random.default_rng(seed)
    steps, heads, rows = 9, 2, 3
    strengths = rng.choice([0.0, 1.0, 3.0, 4.0], size=(steps, heads))
    weights = rng.dirichlet(np.ones(rows), size=(steps, heads)) * (rng.random((steps, heads, 1)) < 0.8)
    index = rng.integers(-3, np.arange(steps)[:, None, None] + 1, size=(steps, heads, rows))
    value, ends = rng.normal(size=steps), rng.random((2, steps)) < 0.15
    arrays = [jnp.asarray(x, jnp.float32) for x in (weights, strengths, value)]
    flags = {"terminated": jnp.asarray(ends[0]), "truncated": jnp.asarray(ends[1])}
    limits, index_ = {"window": window, "threshold": threshold}, jnp.asarray(index, jnp.int32)
    for h in range(heads):
        found = events(arrays[0][:, h], arrays[1][:, h], index_[:, h], **flags, **limits)
        expected = loop_events(weights[:, h], strengths[:, h], index[:, h], ends.any(axis=0), window, threshold)
        assert np.flatnonzero(found).tolist() == expected
    paid = transport(*arrays[:2], index_, arrays[2], **flags, **limits, alpha=0.9, top_rows=2)
    expected = loop_transport(weights, strengths, index, value, ends.any(axis=0), window, threshold, 0.9, 2)
    np.testing.assert_allclose(paid, expected, atol=1e-5)


# The estimator ---------------------------------------------------------------------------------------------------


def test_the_estimator_adds_what_the_function_says_to_the_reward():
    trajectory, estimator = batch(), jc.TemporalValueTransport(gamma=0.0, threshold=0.5, top_rows=1)
    paid = estimator.assign(KEY, (), trajectory).reward
    for b in range(3):
        t = jax.tree.map(lambda x, b=b: x[:, b], trajectory)
        reads = (t.extras["read_weights"], t.extras["read_strengths"], t.extras["read_index"])
        ended = t.terminated | ~t.mask
        added = transport(*reads, t.value, ended, t.truncated, window=1, threshold=0.5, top_rows=1)
        np.testing.assert_allclose(paid[:, b], t.reward + added, atol=1e-6)
    assert (paid != trajectory.reward).any()
    assert (paid != estimator.replace(top_rows=3).assign(KEY, (), trajectory).reward).any()


def test_padding_transports_nothing():
    trajectory = poisoned(batch())
    nothing = trajectory.replace(
        mask=jnp.zeros_like(trajectory.mask), reward=0 * batch().reward, value=jnp.full_like(trajectory.value, 7.0)
    )
    estimator = jc.TemporalValueTransport(gamma=0.0, threshold=0.0)
    np.testing.assert_array_equal(estimator.assign(KEY, (), nothing).reward, 0)


def test_a_trajectory_without_reads_is_refused():
    with pytest.raises(ValueError, match=r"needs a network that reads a memory.* needs read_weights, read_index"):
        strengths = {"read_strengths": batch().extras["read_strengths"]}
        jc.TemporalValueTransport().assign(KEY, (), batch().replace(extras=strengths))


def test_the_gradient_reaches_weights_and_values():
    def total(weights, value):
        heads = weights[:, None], STRENGTHS[:, None], INDEX[:, None]
        return transport(*heads, value, **NO_ENDS, **LIMITS, alpha=0.5).sum()

    by_weight, by_value = jax.grad(total, argnums=(0, 1))(WEIGHTS, VALUE)
    np.testing.assert_allclose(by_weight[jnp.array([4, 7])], [[5, 5], [-1, 0]])
    np.testing.assert_allclose(by_value, [0, 0, 0, 0, 0.5, 0, 0, 0.375])
