"""Signal and noise of one episode's policy gradient, by estimator: where hindsight beats a critic, and by how much.

    python -m experiments.credit_noise key_to_door                   lengths 23 to 103, a million episodes each
    python -m experiments.credit_noise key_to_door --lengths 23 --episodes 100000
    python -m experiments.credit_noise tree                          all 1,296 episodes, exactly

The estimators get exact values and coefficients from the oracle, the policy is uniform.  `key_to_door` gives the signal
to noise ratio of the gradient in the logits of the first state; the signal is the oracle's, the noise is measured on
streamed episodes.  `tree` gives the variance of the gradient in all logits by how much the branches overlap, the mean
over the five reward patterns.  Both write a table, to experiments/results/credit_noise, or with other sizes than
these to runs/credit_noise.

Reference: Meulemans et al. (2023), arXiv:2306.16803; the estimators and the measures are theirs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro

import envs
import jaxcredit as jc
from jaxcredit.evaluation.episodes import tabular_episodes
from jaxcredit.evaluation.fidelity import Exact, known
from jaxcredit.evaluation.hindsight import (
    contribution_coefficients,
    future_outcomes,
    reward_outcomes,
    state_outcomes,
)
from jaxcredit.training.logging import print_table

RESULTS = Path("experiments/results/credit_noise")
RUNS = Path("runs/credit_noise")
CHUNK = 8_192
LENGTHS, EPISODES = (23, 43, 63, 83, 103), 1_048_576
OVERLAPS, GROUPS = (0, 2, 4, 6), (1, 4, 32, 128)


class Steps(NamedTuple):
    """One episode: state, action, reward, all `[T]`, and for each kind of outcome the code `[T]` of every step."""

    state: Any
    action: Any
    reward: Any
    outcome: dict[str, Any]


class Oracle(NamedTuple):
    """Exact tables, and the coefficients `[S, A, U]` of each kind of outcome."""

    exact: Exact
    coefficient: dict[str, Any]


def gradients(steps: Steps, oracle: Oracle) -> dict[str, Callable[[int], jax.Array]]:
    """Gradient `[A]` in the logits of the state of step t, by estimator, as a function of t."""
    exact = oracle.exact
    probability = exact.policy[steps.state]
    value = exact.value[steps.state]
    last = jnp.arange(steps.reward.shape[0]) == steps.reward.shape[0] - 1
    ends = last, jnp.zeros_like(last)
    nothing = jnp.zeros_like(steps.reward)
    returns = jc.discounted_returns(steps.reward, nothing, *ends, gamma=1.0)
    next_value = jnp.concatenate([value[1:], jnp.zeros(1, value.dtype)])
    everywhere = jnp.ones_like(last)

    def of_taken(credit: jax.Array, t: int) -> jax.Array:
        own = jax.nn.one_hot(steps.action[t], probability.shape[1], dtype=credit.dtype)
        return (own - probability[t]) * credit[t]

    def of_all(credit: jax.Array, t: int) -> jax.Array:
        return probability[t] * (credit - probability[t] @ credit)

    def trajcv(t: int) -> jax.Array:
        action_value = exact.action_value[steps.state]
        credit = jc.trajectory_control_variate(
            steps.reward, steps.action, action_value, next_value, probability, *ends, gamma=1.0
        )
        return of_all(credit[t], t)

    def contribution(kind: str, t: int) -> jax.Array:
        coefficient = oracle.coefficient[kind][steps.state[t]][:, steps.outcome[kind]].T
        credit = jc.decision_credit(
            coefficient, steps.reward, steps.action[t], probability[t], everywhere, jnp.asarray(t)
        )
        return of_all(credit, t)

    return {
        "REINFORCE": partial(of_taken, returns),
        "Advantage": partial(of_taken, returns - value),
        "TrajCV": trajcv,
        **{kind: partial(contribution, kind) for kind in oracle.coefficient},
    }


def coefficients(mdp: jc.TabularMDP, policy: jax.Array, outcome: jax.Array, number: int) -> jax.Array:
    return contribution_coefficients(future_outcomes(mdp, policy, outcome, number), policy)


# Linear key-to-door ------------------------------------------------------------------------------------------------


def key_to_door(
    lengths: tuple[int, ...] = LENGTHS, episodes: int = EPISODES, seed: int = 0, directory: Path | None = None
) -> None:
    """Signal to noise ratio (dB) of the first state's gradient.

    Args:
      lengths: of the corridor.
      episodes: streamed per length, rounded up to whole chunks of 8,192.
      seed: of the episodes.
      directory: where to write.
    Raises:
      ValueError: no length, one that `KeyToDoor` does not allow, no episode.
    """
    if not lengths or episodes < 1:
        raise ValueError(f"lengths={lengths}, episodes={episodes} is not allowed; give at least one of each.")
    for length in lengths:
        envs.make("KeyToDoor", length=length)  # refuses what it does not allow before anything is measured
    rows = []
    for length in lengths:
        signal, noise = first_state_noise(length, episodes, seed)
        row: dict[str, Any] = {"length": length, "gradient": math.sqrt(signal)}
        for name, (mean, error) in noise.items():
            row |= {name: 10 * math.log10(signal / mean), f"{name}.error": 10 / math.log(10) * error / mean}
        rows.append(row)
        print(row, flush=True)
    frame = pd.DataFrame(rows)
    usual = (lengths, episodes, seed) == (LENGTHS, EPISODES, 0)
    write(frame, directory or (RESULTS if usual else RUNS), "key_to_door.csv")
    names = [name for name in frame.columns if f"{name}.error" in frame.columns]
    cells = [
        (f"{row['length']}", *(f"{row[name]:.2f} +- {row[f'{name}.error']:.2f}" for name in names)) for row in rows
    ]
    print_table("Signal to noise (dB) +- standard error", cells, ["length", *names])


def first_state_noise(length: int, episodes: int, seed: int) -> tuple[float, dict[str, tuple[float, float]]]:
    """|g|^2, and for each estimator the mean of |g_i - g|^2 with its standard error."""
    env: Any
    env, params = envs.make("KeyToDoor", length=length)
    mdp = env.mdp(params)
    exact = known(mdp)
    rewards = jnp.unique(mdp.reward)
    outcome, number = reward_outcomes(mdp)
    oracle = Oracle(
        exact,
        {
            "HCA+": coefficients(mdp, exact.policy, state_outcomes(mdp), mdp.num_states),
            "COCOA-reward": coefficients(mdp, exact.policy, outcome, number),
        },
    )
    g = exact.gradient[jnp.argmax(mdp.initial)]

    def errors(state: jax.Array, action: jax.Array, reward: jax.Array, oracle: Oracle) -> dict[str, jax.Array]:
        codes = {"HCA+": state, "COCOA-reward": jnp.abs(reward[:, None] - rewards).argmin(axis=1)}
        steps = Steps(state, action, reward, codes)
        return {name: jnp.square(gradient(0) - g).sum() for name, gradient in gradients(steps, oracle).items()}

    @jax.jit
    def chunk(key: jax.Array, mdp: jc.TabularMDP, oracle: Oracle) -> dict[str, tuple[jax.Array, jax.Array]]:
        t = tabular_episodes(env, params, mdp, oracle.exact.policy, key, CHUNK)
        error = jax.vmap(errors, (1, 1, 1, None))(t.extras["state"], t.action, t.reward, oracle)
        return {name: (x.mean(), jnp.square(x).mean()) for name, x in error.items()}

    moments = []
    for i in range(-(-episodes // CHUNK)):
        part = chunk(jax.random.fold_in(jax.random.key(seed), i), mdp, oracle)
        moments.append({name: np.array(x, float) for name, x in part.items()})
    noise = {}
    for name in moments[0]:
        mean, square = np.mean([part[name] for part in moments], axis=0)
        noise[name] = float(mean), math.sqrt((square - mean**2) / (len(moments) * CHUNK))
    return float(g @ g), noise


# The tree ----------------------------------------------------------------------------------------------------------


def tree(overlaps: tuple[int, ...] = OVERLAPS, groups: tuple[int, ...] = GROUPS, directory: Path | None = None) -> None:
    """Variance (dB) of the gradient in all logits, from every episode there is.

    Args:
      overlaps: of the branches, from 0 (the state tells all past actions) to 6.
      groups: of COCOA: into how many outcomes each reward is split.
      directory: where to write.
    Raises:
      ValueError: no overlap, or one beyond 6; a number of groups below 1.
    """
    if not overlaps or min(groups, default=1) < 1:
        raise ValueError(f"overlaps={overlaps}, groups={groups} is not allowed; give an overlap, and groups from 1 on.")
    frame = pd.DataFrame([{"overlap": overlap, **tree_variance(overlap, groups)} for overlap in overlaps])
    write(frame, directory or (RESULTS if (overlaps, groups) == (OVERLAPS, GROUPS) else RUNS), "tree.csv")
    names = [name for name in frame.columns if name != "overlap" and not name.endswith(".bias")]
    print_table(
        "Variance (dB)",
        [(f"{row['overlap']}", *(f"{row[name]:.2f}" for name in names)) for row in frame.to_dict("records")],
        ["overlap", *names],
    )  # fmt: skip
    print(f"largest bias |E g_i - g| / |g|: {frame.filter(like='.bias').to_numpy().max():.1e}")


def tree_variance(overlap: int, groups: tuple[int, ...]) -> dict[str, float]:
    """Mean over the reward patterns of the variance in dB, and the largest bias, by estimator."""
    with jax.enable_x64(True):
        patterns = [_of_pattern(overlap, groups, offset) for offset in range(5)]
    result = {}
    for name in patterns[0]:
        variance, bias = zip(*(pattern[name] for pattern in patterns), strict=True)
        result |= {name: float(np.mean(variance)), f"{name}.bias": max(bias)}
    return result


def _of_pattern(overlap: int, groups: tuple[int, ...], offset: int) -> dict[str, tuple[float, float]]:
    env: Any
    env, params = envs.make("Tree", overlap=overlap, seed_offset=offset)
    mdp = env.mdp(params).astype(jnp.float64)
    codes = {"HCA+": state_outcomes(mdp)}
    codes |= {f"COCOA, {number} groups": env.grouping(params, number)[:, :, None] for number in groups}
    numbers = ("HCA+", mdp.num_states), *((f"COCOA, {number} groups", 5 * number) for number in groups)
    moments = jax.device_get(_moments(mdp, codes, numbers))
    return {name: (10 * math.log10(variance), float(bias)) for name, (variance, bias) in moments.items()}


@partial(jax.jit, static_argnames="numbers")
def _moments(
    mdp: jc.TabularMDP, codes: dict[str, jax.Array], numbers: tuple[tuple[str, int], ...]
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Variance of the gradient relative to the exact one's size, and relative bias, over all action sequences."""
    exact = known(mdp)
    oracle = Oracle(exact, {kind: coefficients(mdp, exact.policy, codes[kind], number) for kind, number in numbers})
    actions = jnp.array(list(itertools.product(range(mdp.num_actions), repeat=mdp.horizon)))

    def step(state: jax.Array, action: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        return mdp.successor[state, action, 0], (state, mdp.reward[state, action, 0])

    def gradient(actions: jax.Array) -> dict[str, jax.Array]:
        state, reward = jax.lax.scan(step, jnp.argmax(mdp.initial).astype(jnp.int32), actions)[1]
        steps = Steps(state, actions, reward, {kind: code[state, actions, 0] for kind, code in codes.items()})
        empty = jnp.zeros_like(exact.policy)
        return {
            name: sum((empty.at[state[t]].add(of(t)) for t in range(mdp.horizon)), empty)
            for name, of in gradients(steps, oracle).items()
        }

    g = exact.gradient
    single = jax.vmap(gradient)(actions)
    mean = {name: x.mean(axis=0) for name, x in single.items()}
    return {
        name: (
            jnp.square(x - mean[name]).mean() / jnp.square(g).mean(),
            jnp.sqrt(jnp.square(mean[name] - g).sum() / jnp.square(g).sum()),
        )
        for name, x in single.items()
    }


def write(frame: pd.DataFrame, directory: Path, name: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    frame.to_csv(directory / name, index=False, float_format="%.6g")


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"key_to_door": key_to_door, "tree": tree})
