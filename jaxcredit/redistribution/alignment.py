"""Alignment of event sequences: several of them under each other, and the profile that they share.  On the host.

References: Needleman and Wunsch (1970), "A general method applicable to the search for similarities in the amino acid
sequence of two proteins"; Feng and Doolittle (1987), "Progressive sequence alignment"; scores as in Patil et al.
(2022), "Align-RUDDER", arXiv:2009.14108.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

GAP = -1


def substitution_scores(frequency: Float[np.ndarray, "K"], *, epsilon: float = 1e-12) -> Float[np.ndarray, "K K"]:
    """What it is worth to put event i under event j:  s_ij = ln(q_ij / (p_i p_j)).

    q_ii = p_i - eps,  q_ij = eps / (K - 1)  are the probabilities with which they shall stand under each other.
    Only equal events score, and rare ones more:  s_ii = -ln p_i  nearly.

    Args:
      frequency: p, share of each event among all, positive.
      epsilon: probability of each event to stand under another one.
    Returns:
      The scores, without unit, symmetric.
    Raises:
      ValueError: an epsilon so large that unequal events would score.
    """
    events = len(frequency)
    if not 0 < epsilon < min(frequency.min(), max(events - 1, 1) * frequency.min() ** 2):
        raise ValueError(
            f"epsilon={epsilon} is not allowed: it must be positive and small against the rarest event's frequency, "
            f"{frequency.min():.3g}, and against its square times the number of other events."
        )
    together = np.full((events, events), epsilon / max(events - 1, 1))
    np.fill_diagonal(together, frequency - epsilon)
    return np.log(together / np.outer(frequency, frequency))


def alignment_table(
    match: Float[np.ndarray, "M L"],
    skipped_row: Float[np.ndarray, "M"],
    skipped_column: Float[np.ndarray, "L"],
) -> Float[np.ndarray, "M+1 L+1"]:
    """Best score of every prefix of one sequence against every prefix of another one.

    D(i, j) = max( D(i-1, j-1) + match_ij,  D(i-1, j) - skipped_row_i,  D(i, j-1) - skipped_column_j )

    Args:
      match: score of the i-th of the one under the j-th of the other.
      skipped_row, skipped_column: cost of each standing alone, at least 0.
    Returns:
      D, from D(0, 0) = 0; D(M, L) is the score of the global alignment.
    """
    passed = np.concatenate([[0], np.cumsum(skipped_column)])
    rows = [-passed]
    for scores, cost in zip(match, skipped_row, strict=True):
        entered = rows[-1] - cost
        entered[1:] = np.maximum(entered[1:], rows[-1][:-1] + scores)
        rows.append(np.maximum.accumulate(entered + passed) - passed)
    return np.stack(rows)


def align_sequences(
    sequences: Sequence[Int[np.ndarray, "_"]], score: Float[np.ndarray, "K K"], *, gap: float = 0.0
) -> Int[np.ndarray, "N L"]:
    """Put several event sequences under each other, so that the sum of scores over all pairs is large.

    Progressive: always the two groups that resemble each other most (on average over their members' pairwise scores,
    relative to what the shorter one could score) are aligned as wholes, column under column.

    Args:
      sequences: events from 0 to K - 1, of any length from 1.
      score: of every pair of events, see `substitution_scores`.
      gap: cost of an event that stands alone, per pair of sequences, at least 0.
    Returns:
      One row per sequence, in their order; -1 where a sequence has no event.
    Raises:
      ValueError: no sequence, or an empty one.

    >>> align_sequences([np.array([0, 1, 2]), np.array([0, 2])], np.eye(3)).tolist()
    [[0, 1, 2], [0, -1, 2]]
    """
    if not sequences or not all(len(sequence) for sequence in sequences):
        raise ValueError("align_sequences() needs at least one sequence, and at least one event in each of them.")
    groups = [np.asarray(sequence)[None] for sequence in sequences]
    members = [[i] for i in range(len(groups))]
    alike = _resemblance(groups, score, gap)
    np.fill_diagonal(alike, -np.inf)
    while len(groups) > 1:
        first, second = sorted(np.unravel_index(alike.argmax(), alike.shape))
        sizes = len(members[first]), len(members[second])
        average = (sizes[0] * alike[first] + sizes[1] * alike[second]) / sum(sizes)
        alike[first], alike[:, first], alike[first, first] = average, average, -np.inf
        alike = np.delete(np.delete(alike, second, 0), second, 1)
        groups[first] = _align_groups(groups[first], groups.pop(second), score, gap)
        members[first] += members.pop(second)
    return groups[0][np.argsort(members[0])]


def position_scores(
    alignment: Int[np.ndarray, "N L"],
    frequency: Float[np.ndarray, "K"],
    *,
    min_share: float = 0.5,
    epsilon: float = 1e-8,
) -> Float[np.ndarray, "P K"]:
    """The profile of an alignment: what each event is worth at each position.

    s_jk = ln((n_jk / n_j + eps) / p_k),  n_jk the sequences with event k in column j, n_j those with any.

    Args:
      alignment: one row per sequence, -1 is a gap.
      frequency: p, share of each event among all, positive.
      min_share: a column becomes a position if more than this share of the sequences have an event there.
      epsilon: keeps the logarithm finite.
    Returns:
      The scores of the P positions, without unit; very negative for events that do not occur there.  Without any
      common column (demonstrations that share nothing) P is 0.

    Assumption: the reference makes a position of every column.  What only a minority did is no part of the strategy
    that the demonstrations share; with few of them such columns would score as high as common ones.
    """
    events = np.arange(len(frequency))
    count = (alignment[:, :, None] == events).sum(axis=0)
    total = count.sum(axis=1, keepdims=True)
    common = total[:, 0] > min_share * len(alignment)
    return np.log((count[common] / total[common] + epsilon) / frequency)


def _resemblance(groups: list[np.ndarray], score: np.ndarray, gap: float) -> np.ndarray:
    """Score of every pair of sequences, relative to the smaller of their scores against themselves."""
    known: dict[tuple[bytes, bytes], float] = {}

    def against(a: np.ndarray, b: np.ndarray) -> float:
        one, other = a.tobytes(), b.tobytes()
        if (one, other) not in known:
            known[one, other] = known[other, one] = _group_table(a, b, score, gap)[-1, -1]
        return known[one, other]

    table = np.array([[against(a, b) for b in groups] for a in groups])
    own = np.diagonal(table)
    return table / np.maximum(np.minimum(own[:, None], own), 1e-12)


def _align_groups(a: np.ndarray, b: np.ndarray, score: np.ndarray, gap: float) -> np.ndarray:
    """Two alignments under each other, rows of the first on top."""
    table = _group_table(a, b, score, gap)
    match, skipped, _ = _costs(a, b, score, gap)
    i, j, columns = a.shape[1], b.shape[1], []
    alone_a, alone_b = np.full(len(a), GAP), np.full(len(b), GAP)
    while i or j:
        if i and j and np.isclose(table[i, j], table[i - 1, j - 1] + match[i - 1, j - 1], rtol=0, atol=1e-9):
            i, j = i - 1, j - 1
            columns.append(np.concatenate([a[:, i], b[:, j]]))
        elif i and (not j or np.isclose(table[i, j], table[i - 1, j] - skipped[i - 1], rtol=0, atol=1e-9)):
            i -= 1
            columns.append(np.concatenate([a[:, i], alone_b]))
        else:
            j -= 1
            columns.append(np.concatenate([alone_a, b[:, j]]))
    return np.stack(columns[::-1], axis=1)


def _group_table(a: np.ndarray, b: np.ndarray, score: np.ndarray, gap: float) -> np.ndarray:
    return alignment_table(*_costs(a, b, score, gap))


def _costs(a: np.ndarray, b: np.ndarray, score: np.ndarray, gap: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over all pairs of rows: score of column under column, cost of a column of `a`, and of `b`, alone."""
    share_a, share_b = (_shares(group, len(score)) for group in (a, b))
    filled_a, filled_b = share_a.sum(axis=1), share_b.sum(axis=1)
    half_empty = np.outer(filled_a, 1 - filled_b) + np.outer(1 - filled_a, filled_b)
    return share_a @ score @ share_b.T - gap * half_empty, gap * filled_a, gap * filled_b


def _shares(group: np.ndarray, events: int) -> np.ndarray:
    """Share of the rows with each event, `[columns, K]`."""
    return (group[:, :, None] == np.arange(events)).mean(axis=0)
