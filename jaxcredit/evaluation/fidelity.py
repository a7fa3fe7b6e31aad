"""How good is a credit estimator?  Its credit, and the policy gradient made of it, against the exact ones.

The environment is enumerated, so advantages and gradients are known exactly.  Estimators that learn are fitted on some
episodes and judged on others.

Reference: the measures are those of Meulemans et al. (2023), "Would I have gotten that reward? Long-term credit
assignment by counterfactual contribution analysis", arXiv:2306.16803.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from jaxcredit.core.estimator import Context, CreditEstimator
from jaxcredit.core.mdp import TabularMDP, require_one_task
from jaxcredit.core.trajectory import Trajectory
from jaxcredit.evaluation.episodes import tabular_episodes
from jaxcredit.evaluation.oracle import action_values, policy_values, stationary_values, visits
from jaxcredit.evaluation.statistics import Interval, expanded_tails

if TYPE_CHECKING:
    import pandas

Critic = Literal["learned", "exact"]
CRITICS = ("learned", "exact")

MEASURES = {
    "gradient.snr_db": "signal to noise of one episode's policy gradient, 10 log10( |g|^2 / E|g_i - g|^2 )",
    "gradient.variance_db": "10 log10( E|g_i - E g_i|^2 / |g|^2 )",
    "gradient.bias": "|E g_i - g| / |g|",
    "gradient.cosine": "of the mean gradient and the exact one",
    "credit.snr_db": "the same for the credit of the actions taken, 10 log10( E A^2 / E(c - A)^2 )",
    "credit.variance_db": "10 log10( E(c - E[c|s,a])^2 / E A^2 )",
    "credit.bias": "sqrt( E(E[c|s,a] - A)^2 / E A^2 )",
    "credit.cosine": "E cA / sqrt(E c^2 E A^2)",
    "decisive_share": "share of all credit, by size, that lies on decisive steps",
    "rank_correlation": "Spearman's, of credit and advantage over all steps",
}
FORGET = 0.95  # weight of the past in the tabular critic, per batch of fitting


class Exact(NamedTuple):
    """What the oracle knows: tables by state (and action)."""

    policy: Array
    value: Array
    action_value: Array
    gradient: Array


@struct.dataclass
class TabularCritic:
    """Mean value target of every state, recent batches weighing more."""

    total: Array
    count: Array

    @property
    def value(self) -> Array:
        return self.total / jnp.maximum(self.count, 1e-6)

    def update(self, state: Array, target: Array, mask: Array) -> TabularCritic:
        weight = mask.astype(target.dtype)
        return TabularCritic(
            total=(FORGET * self.total).at[state].add(jnp.where(mask, target, 0)),
            count=(FORGET * self.count).at[state].add(weight),
        )


@struct.dataclass
class Sums:
    """Sums over the judged episodes of one repeat; `[S, A]` tables, scalars, and the single credits `[T, E]`."""

    gradient: Array
    gradient_square: Array
    credit_of: Array
    visits_of: Array
    credit: Array
    exact: Array
    decisive: Array
    mask: Array


@dataclass(frozen=True)
class Fidelity:
    """What `fidelity` returns.

    Attributes:
      measures: name -> `Interval`, as `MEASURES` explains them; NaN where nothing can be said (no exact credit at all,
        no decisive step).
      credit, exact: `[T]`, mean size of the credit, and of the exact advantage, in every step of an episode.
    """

    measures: dict[str, Interval]
    credit: np.ndarray
    exact: np.ndarray


def fidelity(
    estimator: CreditEstimator,
    env: Any,
    params: Any,
    *,
    policy: Float[Array, "S A"] | None = None,
    gamma: float = 1.0,
    episodes: int = 256,
    fit_episodes: int = 0,
    batch: int = 16,
    critic: Critic = "learned",
    keys: jax.Array | None = None,
    confidence: float = 0.95,
) -> Fidelity:
    """Hold an estimator's credit against the exact one.

    Args:
      estimator: one that writes `advantage` or `action_advantage`; rewriters of the reward come in a `chain`.
      env, params: an environment with a table, `env.mdp(params)`.
      policy: probability of every action in every state (rows of `env.mdp(params)`); None is uniform.
      gamma: discount of the exact values and gradient; the estimator has its own.  Where a time limit that the state
        does not show may cut an episode, exact values are those without it, from which estimators bootstrap.
      episodes: judged, per repeat; rounded up to whole batches.
      fit_episodes: on which the estimator and the critic are fitted before, per repeat; rounded up.
      batch: episodes that the estimator sees at a time.
      critic: "learned": a table of the mean value target in every state, fitted like the estimator; "exact": the
        oracle's V and Q, with which only estimators that leave the reward alone make sense.
      keys: one typed key per repeat, `[R]`; a repeat has its own fit and its own episodes.  None: 16 of them.
      confidence: of the intervals, by a bootstrap over repeats.  They want about 16 repeats; those of 4 are
        as wide as the repeats, and cover less than is asked (0.87 instead of 0.95 if values are normal).
    Returns:
      `Fidelity`.  Bias is that of the whole procedure, fitting included; it and the cosine of the gradient are
      corrected for the noise of finitely many repeats (so bias may be 0 exactly).  One repeat has no interval.
    Raises:
      ValueError: an environment without a table, an estimator that assigns no credit, sizes below 1, a policy of
        another shape, an unknown critic.
    """
    keys = jax.random.split(jax.random.key(0), 16) if keys is None else keys
    _check(estimator, env, critic, keys, gamma, confidence)
    for name, number, least in (("episodes", episodes, 1), ("batch", batch, 1), ("fit_episodes", fit_episodes, 0)):
        if type(number) is not int or number < least:
            raise ValueError(f"{name}={number!r} is not allowed; give a whole number of at least {least}.")
    require_one_task(env, params, "fidelity")
    mdp = env.mdp(params)
    _check_policy(mdp, policy)
    limited = hasattr(env, "time_limit")
    if limited:
        mdp = mdp.replace(horizon=int(env.time_limit(params)))
    exact = known(mdp, policy, gamma, limited=limited)
    if not np.isfinite(exact.value).all():
        raise ValueError(
            f"Under this policy some episodes of {_name(env)} never end, so that undiscounted values do not exist. "
            "Give gamma below 1, or a policy that ends from every state."
        )
    sums = _repeats(
        env,
        estimator,
        params,
        mdp,
        exact,
        jnp.asarray(gamma, jnp.float32),
        keys,
        critic=critic,
        batch=batch,
        fits=-(-fit_episodes // batch),
        judged=-(-episodes // batch),
    )
    sums = jax.tree.map(np.asarray, sums)
    measures = _measures(sums, jax.tree.map(np.asarray, exact), confidence)
    steps = np.maximum(sums.mask.sum(axis=(0, 2)), 1)
    credit, advantage = (np.abs(x * sums.mask).sum(axis=(0, 2)) / steps for x in (sums.credit, sums.exact))
    return Fidelity(measures, credit, advantage)


def known(
    mdp: TabularMDP, policy: Float[Array, "S A"] | None = None, gamma: float = 1.0, *, limited: bool = False
) -> Exact:
    """Ask the oracle; a policy of None is uniform.

    The gradient is  d(s) pi(a|s) A(s, a)  over the visits within the horizon.  `limited`: the horizon is a time limit
    that the state does not show; values are then those without it, from which a truncated episode bootstraps.
    """
    policy = jnp.asarray(1 / mdp.num_actions if policy is None else policy, mdp.reward.dtype)
    policy = jnp.broadcast_to(policy, (mdp.num_states, mdp.num_actions))
    value = stationary_values(mdp, policy, gamma) if limited else policy_values(mdp, policy, gamma)
    action_value = action_values(mdp, value, gamma)
    gradient = visits(mdp, policy, gamma)[:, None] * policy * (action_value - value[:, None])
    return Exact(policy, value, action_value, gradient)


def _name(env: Any) -> str:
    wraps = getattr(env, "env", None)
    return str(getattr(env, "name", env)) + (f" ({type(env).__name__})" if wraps is not None else "")


def _check(estimator: Any, env: Any, critic: str, keys: Any, gamma: Any, confidence: float) -> None:
    if not isinstance(estimator, CreditEstimator):
        raise ValueError(f"estimator={estimator!r} is none; give an instance, for example GAE(gamma=1.0).")
    if not hasattr(env, "mdp"):
        raise ValueError(
            f"{_name(env)} has no table of its states, so its exact credit is unknown. Finite environments have one "
            "while nothing is wrapped around them: CreditMaze, KeyToDoor, Taxi, ... (envs.FiniteEnvironment)."
        )
    if critic not in CRITICS:
        raise ValueError(f"critic={critic!r} is not known; choose one of {', '.join(CRITICS)}.")
    typed = isinstance(keys, jax.Array) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
    if not typed or keys.ndim != 1 or keys.size == 0:
        raise ValueError("keys must be typed random keys, one per repeat: jax.random.split(jax.random.key(0), 16).")
    if not 0 <= float(gamma) <= 1:
        raise ValueError(f"gamma={gamma} is not allowed: a discount is from 0 to 1.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} is not allowed: it lies between 0 and 1, as 0.95.")


def _check_policy(mdp: TabularMDP, policy: Any) -> None:
    if policy is None:
        return
    rows, shape = np.asarray(policy, float), (mdp.num_states, mdp.num_actions)
    if rows.shape != shape:
        raise ValueError(f"policy has shape {rows.shape}; {shape} is needed: a row per state, a column per action.")
    if not (np.all(rows >= 0) and np.allclose(rows.sum(axis=1), 1, atol=1e-4)):
        raise ValueError("policy must hold probabilities: none negative, and every row with sum 1.")


def fidelity_table(results: Mapping[str, Fidelity]) -> pandas.DataFrame:
    """One row per estimator: every measure with its `.low` and `.high`."""
    import pandas as pd

    rows = []
    for name, result in results.items():
        row: dict[str, Any] = {"credit": name}
        for measure, interval in result.measures.items():
            row |= {measure: interval.estimate, f"{measure}.low": interval.low, f"{measure}.high": interval.high}
        rows.append(row)
    return pd.DataFrame(rows)


# Inside the compiled program ---------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("env", "critic", "batch", "fits", "judged"))
def _repeats(
    env: Any,
    estimator: CreditEstimator,
    params: Any,
    mdp: TabularMDP,
    exact: Exact,
    gamma: Array,
    keys: Array,
    **sizes: Any,
) -> Sums:
    return jax.vmap(lambda key: _repeat(env, estimator, params, mdp, exact, gamma, key, **sizes))(keys)


def _repeat(
    env: Any,
    estimator: CreditEstimator,
    params: Any,
    mdp: TabularMDP,
    exact: Exact,
    gamma: Array,
    key: jax.Array,
    *,
    critic: Critic,
    batch: int,
    fits: int,
    judged: int,
) -> Sums:
    """Fit on `fits` batches, then judge on `judged` fresh ones."""
    policy = mdp.observation, exact.policy
    context = Context(env=env, env_params=params, policy=None, policy_params=policy)

    def episodes(key: jax.Array, critic_state: TabularCritic) -> Trajectory:
        trajectory = tabular_episodes(env, params, mdp, exact.policy, key, batch)
        value = exact.value if critic == "exact" else critic_state.value
        state, following = trajectory.extras["state"], trajectory.extras["next_state"]
        open_end = trajectory.mask & ~trajectory.terminated
        trajectory = trajectory.replace(
            value=jnp.where(trajectory.mask, value[state], 0), next_value=jnp.where(open_end, value[following], 0)
        )
        if critic == "learned":
            return trajectory
        return trajectory.replace(
            action_value=exact.action_value[state], next_action_value=exact.action_value[following]
        )

    def fit(carry: tuple[Any, TabularCritic], key: jax.Array) -> tuple[tuple[Any, TabularCritic], None]:
        state, critic_state = carry
        play_key, credit_key = jax.random.split(key)
        trajectory = episodes(play_key, critic_state)
        state, credited, _ = estimator.update_and_assign(credit_key, state, trajectory, context=context)
        if credited.value_target is not None:
            critic_state = critic_state.update(trajectory.extras["state"], credited.value_target, trajectory.mask)
        return (state, critic_state), None

    def judge(key: jax.Array, carry: tuple[Any, TabularCritic]) -> Sums:
        play_key, credit_key = jax.random.split(key)
        trajectory = episodes(play_key, carry[1])
        return _sums(estimator.assign(credit_key, carry[0], trajectory, context=context), exact, gamma)

    init_key, fit_key, judge_key = (jax.random.fold_in(key, i) for i in range(3))
    nothing = jnp.zeros_like(exact.value)
    carry = TabularCritic(nothing, nothing)
    example = jax.eval_shape(episodes, key, carry)
    carry = jax.lax.scan(fit, (estimator.init(init_key, example), carry), jax.random.split(fit_key, fits))[0]
    several = jax.lax.map(lambda key: judge(key, carry), jax.random.split(judge_key, judged))
    single = {name: _joined(getattr(several, name)) for name in ("credit", "exact", "decisive", "mask")}
    totals = {
        name: getattr(several, name).sum(axis=0) for name in ("gradient", "gradient_square", "credit_of", "visits_of")
    }
    return Sums(**totals, **single)


def _joined(x: Array) -> Array:
    """`[N, T, B]` batches as `[T, N B]`."""
    return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1)


def _sums(trajectory: Trajectory, exact: Exact, gamma: Array) -> Sums:
    state, action, mask = trajectory.extras["state"], trajectory.action, trajectory.mask
    steps, shape = mask.shape[0], exact.policy.shape
    probability = exact.policy[state]
    own = jax.nn.one_hot(action, shape[1], dtype=probability.dtype)
    if trajectory.action_advantage is not None:
        centred = trajectory.action_advantage - (probability * trajectory.action_advantage).sum(-1, keepdims=True)
        credit, direction = (own * centred).sum(axis=-1), probability * centred
    elif trajectory.advantage is not None:
        credit = trajectory.advantage
        direction = (own - probability) * credit[..., None]
    else:
        raise ValueError(
            "This estimator writes neither advantage nor action_advantage, so there is no credit to judge. End the "
            "chain with one that does, for example chain(RUDDER(), GAE(gamma=1.0, lam=0.0))."
        )
    credit = jnp.where(mask, credit, 0)
    weight = jnp.where(mask, gamma ** jnp.arange(steps, dtype=gamma.dtype)[:, None], 0)
    direction = jnp.where(mask[..., None], direction, 0) * weight[..., None]

    def scatter(state: Array, rows: Array) -> Array:
        return jnp.zeros(shape, rows.dtype).at[state].add(rows)

    gradients = jax.vmap(scatter, in_axes=1)(state, direction)
    return Sums(
        gradient=gradients.sum(axis=0),
        gradient_square=jnp.square(gradients).sum(),
        credit_of=jnp.zeros(shape).at[state, action].add(credit),
        visits_of=jnp.zeros(shape).at[state, action].add(mask.astype(jnp.float32)),
        credit=credit,
        exact=jnp.where(mask, (exact.action_value - exact.value[:, None])[state, action], 0),
        decisive=trajectory.extras["decisive"] & mask,
        mask=mask,
    )


# On the host -------------------------------------------------------------------------------------------------------


def _measures(sums: Sums, exact: Exact, confidence: float, resamples: int = 1000) -> dict[str, Interval]:
    """Every measure, with an interval from resampled repeats."""
    repeats = sums.mask.shape[0]
    weights = np.random.default_rng(0).multinomial(repeats, np.full(repeats, 1 / repeats), size=resamples)
    estimate = _at(np.ones((1, repeats)), sums, exact, 1)
    # a resample carries the noise of the repeats and, once more, that of the resampling
    resampled = _at(weights.astype(float), sums, exact, 2)
    tails = expanded_tails(confidence, max(repeats, 2))
    result = {}
    for name in MEASURES:
        values = resampled[name][~np.isnan(resampled[name])] if repeats > 1 else np.empty(0)
        # the nearest value, not one between: a perfect estimator's ratio may be infinite
        low, high = np.quantile(values, tails, method="nearest") if values.size else (math.nan, math.nan)
        result[name] = Interval(float(estimate[name][0]), float(low), float(high))
    return result


def _at(weights: np.ndarray, sums: Sums, exact: Exact, noise: int) -> dict[str, np.ndarray]:
    """Measures `[W]` with the repeats weighted by every row of `weights` `[W, R]`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return (
            _of_gradient(weights, sums, exact, noise)
            | _of_credit(weights, sums, exact, noise)
            | _of_places(weights, sums)
        )


def _of_gradient(weights: np.ndarray, sums: Sums, exact: Exact, noise: int) -> dict[str, np.ndarray]:
    repeats, episodes = weights.shape[1], sums.mask.shape[2]
    g = exact.gradient.astype(float).ravel()
    signal = g @ g or math.nan  # without a gradient, nothing can be measured by its size
    means = sums.gradient.reshape(repeats, -1).astype(float) / episodes
    squares = sums.gradient_square.astype(float) / episodes
    mean = weights @ means / repeats
    square = weights @ squares / repeats
    spread = np.square(means - means.mean(axis=0)).sum() / max(repeats - 1, 1) / repeats
    bias = np.maximum(np.square(mean - g).sum(axis=1) - noise * spread, 0)
    # the mean's own noise makes it longer, and would hide its direction
    size = np.maximum(np.square(mean).sum(axis=1) - noise * spread, 0)
    variance = np.maximum(square - np.square(mean).sum(axis=1), 0)
    error = square - 2 * mean @ g + signal
    return {
        "gradient.snr_db": 10 * np.log10(signal / error),
        "gradient.variance_db": 10 * np.log10(variance / signal),
        "gradient.bias": np.sqrt(bias / signal),
        # so little may be left of that length that nothing can be said
        "gradient.cosine": np.clip(mean @ g / np.sqrt(np.where(size > 0, size, math.nan) * signal), -1, 1),
    }


def _of_credit(weights: np.ndarray, sums: Sums, exact: Exact, noise: int) -> dict[str, np.ndarray]:
    repeats = weights.shape[1]
    advantage = (exact.action_value - exact.value[:, None]).astype(float).ravel()
    credit, visited = (x.reshape(repeats, -1).astype(float) for x in (sums.credit_of, sums.visits_of))
    visits = weights @ visited
    seen = visits > 0
    mean = np.where(seen, weights @ credit / np.where(seen, visits, 1), 0)
    total, pooled = visited.sum(axis=0), credit.sum(axis=0)
    rate = np.where(total > 0, pooled / np.where(total > 0, total, 1), 0)
    spread = np.square(credit - rate * visited).sum(axis=0) / np.maximum(total, 1) ** 2 * repeats / max(repeats - 1, 1)
    c, a = (x.reshape(repeats, -1).astype(float) for x in (sums.credit, sums.exact))
    cc, ca, aa = (weights @ x.sum(axis=1) for x in (c * c, c * a, a * a))
    aa = np.where(aa > 0, aa, math.nan)
    bias = np.maximum((visits * (np.square(mean - advantage) - noise * spread)).sum(axis=1), 0)
    variance = np.maximum(cc - (visits * np.square(mean)).sum(axis=1), 0)
    return {
        "credit.snr_db": 10 * np.log10(aa / (cc - 2 * ca + aa)),
        "credit.variance_db": 10 * np.log10(variance / aa),
        "credit.bias": np.sqrt(bias / aa),
        "credit.cosine": ca / np.sqrt(cc * aa),
    }


def _of_places(weights: np.ndarray, sums: Sums) -> dict[str, np.ndarray]:
    import pandas as pd

    repeats = weights.shape[1]
    size = np.abs(sums.credit).astype(float)
    on, everywhere = ((size * where).reshape(repeats, -1).sum(axis=1) for where in (sums.decisive, sums.mask))
    share = weights @ on / (weights @ everywhere)
    rounded = [np.round(x[sums.mask], 6) for x in (sums.credit, sums.exact)]  # float32 leaves ties apart
    ranks = np.zeros((2, *sums.mask.shape))
    for i, x in enumerate(rounded):
        ranks[i][sums.mask] = pd.Series(x).rank().to_numpy()
    ranks = ranks.reshape(2, repeats, -1)
    steps = weights @ sums.mask.reshape(repeats, -1).sum(axis=1)
    x, y = (weights @ r.sum(axis=1) / steps for r in ranks)
    xy, xx, yy = (
        weights @ (a * b).sum(axis=1) / steps for a, b in ((ranks[0], ranks[1]), (ranks[0],) * 2, (ranks[1],) * 2)
    )
    correlation = (xy - x * y) / np.sqrt((xx - x * x) * (yy - y * y))
    return {
        "decisive_share": share if sums.decisive.any() else np.full(len(weights), math.nan),
        "rank_correlation": correlation,
    }
