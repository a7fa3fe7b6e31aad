"""Every episode that a small random decision process can have, and backward induction over the tree of them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import jaxcredit as jc

STATES, ACTIONS, OUTCOMES, STEPS = 3, 2, 2, 3
SHAPE = (ACTIONS, OUTCOMES) * STEPS  # of what is known of every episode: axes a_0, k_0, a_1, k_1, ...


def episode_tree(seed: int) -> tuple[jc.Trajectory, np.ndarray]:
    """All episodes from state 0, one per column, and the probability of every outcome `[T, N]` given what came before.

    An episode that ends early has as many columns as there are ways to go on, all alike.
    """
    rng = np.random.default_rng(seed)
    table = (STATES, ACTIONS, OUTCOMES)
    successor, ends = rng.integers(STATES, size=table), rng.random(table) < 0.2
    probability, reward = rng.dirichlet(np.ones(OUTCOMES), table[:2]), rng.normal(size=table)
    choice = np.indices(SHAPE).reshape(STEPS, 2, -1)
    number = choice.shape[-1]
    state, alive = np.zeros(number, int), np.ones(number, bool)
    rows = []
    for action, outcome in choice:
        at = (state, action, outcome)
        ended = alive & (ends[at] | (len(rows) == STEPS - 1))
        rows.append((state, action, np.where(alive, reward[at], 0), ended, alive, probability[at]))
        state, alive = successor[at], alive & ~ends[at]
    states, actions, rewards, terminated, mask, chances = (np.stack(x) for x in zip(*rows, strict=True))
    seen = np.eye(STATES, dtype=np.float32)
    zero = jnp.zeros((STEPS, number))
    trajectory = jc.Trajectory(
        observation=jnp.asarray(seen[states]),
        action=jnp.asarray(actions, jnp.int32),
        reward=jnp.asarray(rewards, jnp.float32),
        terminated=jnp.asarray(terminated),
        truncated=jnp.zeros(mask.shape, bool),
        first=jnp.asarray(np.broadcast_to(np.arange(STEPS)[:, None] == 0, mask.shape)),
        mask=jnp.asarray(mask),
        behaviour_log_prob=zero,
        log_prob=zero,
        logits=jnp.zeros((STEPS, number, ACTIONS)),
        value=zero,
        next_value=zero,
        next_observation=jnp.asarray(seen[np.concatenate([states[1:], state[None]])]),
    )
    return trajectory, chances


def over_outcomes(value: np.ndarray, chances: np.ndarray, t: int) -> np.ndarray:
    """Expectation over the outcome of step t, the last axis."""
    later = (0,) * (2 * (STEPS - 1 - t))  # chances do not depend on what comes later
    return (chances[t].reshape(SHAPE)[(..., *later)] * value).sum(-1)


def best_choices(total: np.ndarray, chances: np.ndarray) -> list[np.ndarray]:
    """The best action after every history, from the return `[N]` of every episode; axes a_0, k_0, ..., k_{t-1}."""
    value, best = total.reshape(SHAPE), []
    for t in reversed(range(STEPS)):
        value = over_outcomes(value, chances, t)
        best.insert(0, value.argmax(-1))
        value = value.max(-1)
    return best


def value_of(best: list[np.ndarray], total: np.ndarray, chances: np.ndarray) -> float:
    """Expected return of a policy over histories."""
    value = total.reshape(SHAPE)
    for t in reversed(range(STEPS)):
        value = np.take_along_axis(over_outcomes(value, chances, t), best[t][..., None], -1)[..., 0]
    return float(value)
