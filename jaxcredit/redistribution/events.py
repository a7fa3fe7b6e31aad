"""Events: the states of demonstrations, gathered into the few kinds that an alignment can tell apart.  On the host.

References: Dayan (1993), "Improving generalization for temporal difference learning: the successor representation";
Frey and Dueck (2007), "Clustering by passing messages between data points"; how both are used here: Patil et al.
(2022), "Align-RUDDER", arXiv:2009.14108, and its public code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

SETTLED = 30  # iterations without a change of exemplars after which messages are taken to have converged


def successor_representation(
    episodes: Sequence[Int[np.ndarray, "_"]],
    num_states: int,
    *,
    gamma: float = 0.99,
    learning_rate: float = 0.1,
    passes: int = 10,
) -> Float[np.ndarray, "S S"]:
    """How much of state j follows state i, by temporal differences over a few episodes.

    M(s, .) <- (1 - a) M(s, .) + a (1_s + gamma M(s', .)),  without a successor in the last state of an episode.

    Few passes keep it local: what follows much later has hardly been propagated back, whatever gamma is.

    Args:
      episodes: the states of each episode in their order, from 0 to `num_states` - 1, with the one it ends in.
      num_states: S.
      gamma: discount per step.
      learning_rate: a, from 0 to 1.
      passes: how often all episodes are gone through.
    Returns:
      M, a discounted number of visits; 0 in the rows of states that were never visited.

    >>> successor_representation([np.array([0, 1])], 2, gamma=0.5, learning_rate=1.0, passes=2).tolist()
    [[1.0, 0.5], [0.0, 1.0]]
    """
    visits = np.zeros((num_states, num_states))
    own = np.eye(num_states)
    for _ in range(passes):
        for episode in episodes:
            for state, following in zip(episode, [*episode[1:], None], strict=True):
                later = 0 if following is None else gamma * visits[following]
                visits[state] += learning_rate * (own[state] + later - visits[state])
    return visits


def affinity_propagation(
    similarity: Float[np.ndarray, "N N"],
    preference: float | Float[np.ndarray, "N"],
    *,
    damping: float = 0.5,
    iterations: int = 1000,
) -> Int[np.ndarray, "N"]:
    """Choose exemplars among N items, and the exemplar that stands for each item, by passing messages.

    r(i, k) <- s(i, k) - max_{k' != k} (a(i, k') + s(i, k'))              how well suited k is to stand for i
    a(i, k) <- min(0, r(k, k) + sum_{i' not in {i, k}} max(0, r(i', k)))  how much others want k;  a(k, k) without min

    Messages are damped.  Exemplars are the k with  a(k, k) + r(k, k) > 0;  at the end each group takes the member that
    is most similar to all of it.

    Args:
      similarity: s(i, k), how well k would stand for i; need not be symmetric, its diagonal is not read.
      preference: s(k, k), how much k wants to stand for itself: the higher, the more groups.
      damping: weight of the previous message, from 0.5 to below 1.
      iterations: at most; fewer where the exemplars have settled.
    Returns:
      The index of the exemplar of every item; that of an exemplar is its own.  Where the messages find no exemplar, the
      one that comes nearest to being one stands for all.
    """
    items = np.arange(len(similarity))
    s = np.array(similarity, np.float64)
    s[items, items] = preference
    # ties would let messages oscillate for ever; noise of the size of rounding errors breaks them
    tie_break = np.random.default_rng(0).normal(size=s.shape)
    s += (np.finfo(np.float64).eps * s + np.finfo(np.float64).tiny * 100) * tie_break
    available, responsible = np.zeros_like(s), np.zeros_like(s)
    chosen, unchanged = np.zeros(len(s), bool), 0
    for _ in range(iterations):
        responsible = damping * responsible + (1 - damping) * _responsibility(s, available)
        available = damping * available + (1 - damping) * _availability(responsible)
        evidence = np.diagonal(available + responsible)
        unchanged = unchanged + 1 if np.array_equal(chosen, evidence > 0) else 0
        chosen = evidence > 0
        if unchanged >= SETTLED and chosen.any():
            break
    if not chosen.any():
        return np.full(len(s), np.diagonal(available + responsible).argmax())
    exemplar = _nearest(s, np.flatnonzero(chosen))
    together = exemplar[:, None] == exemplar
    suited = np.where(together, s, 0).sum(axis=0)
    middle = np.where(together, suited, -np.inf).argmax(axis=1)
    return _nearest(s, np.unique(middle))


def _responsibility(s: np.ndarray, available: np.ndarray) -> np.ndarray:
    items, wanted = np.arange(len(s)), available + s
    best = wanted.argmax(axis=1)
    first = wanted[items, best]
    wanted[items, best] = -np.inf
    rival = np.repeat(first[:, None], len(s), axis=1)
    rival[items, best] = wanted.max(axis=1)
    return s - (rival if len(s) > 1 else 0)


def _availability(responsible: np.ndarray) -> np.ndarray:
    items = np.arange(len(responsible))
    support = np.maximum(responsible, 0)
    support[items, items] = responsible[items, items]
    others = support.sum(axis=0) - support
    available = np.minimum(others, 0)
    available[items, items] = others[items, items]
    return available


def _nearest(s: np.ndarray, exemplars: np.ndarray) -> np.ndarray:
    """The best of the exemplars for every item; exemplars stand for themselves."""
    nearest = exemplars[s[:, exemplars].argmax(axis=1)]
    nearest[exemplars] = exemplars
    return nearest


def merge_groups(
    exemplar: Int[np.ndarray, "N"], similarity: Float[np.ndarray, "N N"], most: int
) -> Int[np.ndarray, "N"]:
    """Join the groups of the two most similar exemplars until no more than `most` groups are left.

    Args:
      exemplar: of every item, as `affinity_propagation` gives it.
      similarity: of the items.
      most: number of groups allowed.
    Returns:
      The exemplar of every item, among fewer.
    """
    exemplar = exemplar.copy()
    left = np.unique(exemplar)
    while len(left) > most:
        among = similarity[np.ix_(left, left)].astype(np.float64)
        np.fill_diagonal(among, -np.inf)
        joins, stays = np.unravel_index(among.argmax(), among.shape)
        exemplar[exemplar == left[joins]] = left[stays]
        left = np.delete(left, joins)
    return exemplar
