"""Align-RUDDER: demonstrations are aligned; each step is paid what it adds to the alignment with what they share.

The profile of the demonstrations is learned once, on the host (`learn_profile`); new episodes are aligned with it in
compiled code, and rewards are the differences of their scores.

Reference: Patil, Hofmarcher, Dinu, Dorfer, Blies, Brandstetter, Arjona-Medina and Hochreiter (2022), "Align-RUDDER:
Learning From Few Demonstrations by Reward Redistribution", arXiv:2009.14108, and its public code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from jaxcredit.core.estimator import Context, CreditEstimator
from jaxcredit.core.fields import INFINITY, check_fields, choice, static, within
from jaxcredit.core.frozen import Frozen
from jaxcredit.core.recurrence import backward_recurrence
from jaxcredit.core.trajectory import Trajectory, episode_returns, require
from jaxcredit.networks.mlp import flatten_observation
from jaxcredit.redistribution.alignment import align_sequences, alignment_table, position_scores, substitution_scores
from jaxcredit.redistribution.contribution import RESIDUALS, Residual, redistribute_differences
from jaxcredit.redistribution.events import affinity_propagation, merge_groups, successor_representation

NO_EVENT = -1


@struct.dataclass
class Profile(Frozen):
    """What demonstrations share, in the order in which they share it.

    Attributes:
      event: `[S]` int32, the event that each state is, or -1 for states that no demonstration visits.
      score: `[P, K]`, what each event is worth at each of the P positions, without unit.
      scale: `[]`, reward units per score: the demonstrations' mean return over their mean score.
    """

    event: Any
    score: Any
    scale: float = within(-INFINITY, INFINITY, 1.0)

    def __post_init__(self) -> None:
        check_fields(self)


# Learning the profile, on the host ----------------------------------------------------------------------------------


def learn_profile(
    episodes: Sequence[Int[np.ndarray, "_"]],
    returns: Float[np.ndarray, "N"],
    num_states: int,
    *,
    max_events: int = 15,
    preference: float = -0.5,
    min_share: float = 0.5,
    gap: float = 0.0,
) -> Profile:
    """Turn demonstrations into events, align them and keep what they have in common.

    States are clustered by affinity propagation on their successor representation; the states in which demonstrations
    end are one more event.  Repetitions of an event are dropped, the sequences aligned, their profile scored, and
    scale = mean return / mean (S(whole demonstration) - S(first state)).

    Args:
      episodes: the states of each demonstration in their order, from 0 to `num_states` - 1, with the one it ends in.
      returns: of each demonstration, in reward units.
      num_states: S.
      max_events: most events beside the end; the most similar clusters are merged until they are so few.
      preference: of affinity propagation, against similarities from 0 to some: the higher, the more events.
      min_share: a position of the profile is a column in which more than this share of demonstrations has an event.
      gap: cost of an event that stands alone in the alignment.
    Returns:
      The `Profile`.
    Raises:
      ValueError: no demonstration, an episode of less than two states, or not one return for each.

    Assumption: as in the public code, clusters are of states, similarities are successor representations of the
    demonstrations alone, and gaps cost nothing.  Other than there, states that no demonstration visits are no event,
    and positions are what the majority shares, see `position_scores`.
    """
    if not episodes or min(len(episode) for episode in episodes) < 2 or len(returns) != len(episodes):
        raise ValueError(
            f"learn_profile() needs demonstrations of at least two states and one return for each; got lengths "
            f"{[len(episode) for episode in episodes]} and {len(returns)} returns."
        )
    event = _events(episodes, num_states, max_events, preference)
    sequences = [_without_repetitions(event[episode]) for episode in episodes]
    count = np.bincount(np.concatenate(sequences))
    frequency = count / count.sum()
    alignment = align_sequences(sequences, substitution_scores(frequency), gap=gap)
    score = position_scores(alignment, frequency, min_share=min_share)
    free = np.zeros(len(score))
    gained = []
    for sequence in sequences:
        reached = alignment_table(score[:, sequence].T, np.full(len(sequence), gap), free + gap).max(axis=1)
        gained.append(reached[-1] - reached[1])
    mean_gain = np.mean(gained)
    scale = np.mean(returns) / mean_gain if mean_gain > 0 else 0.0
    return Profile(jnp.asarray(event, jnp.int32), jnp.asarray(score, jnp.float32), float(scale))


def _events(
    episodes: Sequence[np.ndarray], num_states: int, max_events: int, preference: float
) -> Int[np.ndarray, "S"]:
    """Events 0, 1, .. of the states in the order of their first visit, -1 for unvisited ones."""
    order, first = np.unique(np.concatenate(episodes), return_index=True)
    place = np.searchsorted(order, np.arange(num_states))
    similarity = successor_representation([place[episode] for episode in episodes], len(order))
    exemplar = merge_groups(affinity_propagation(similarity, preference), similarity, max_events)
    ends = np.isin(order, [episode[-1] for episode in episodes])
    group = np.where(ends, len(order), exemplar)
    _, where, which = np.unique(group, return_index=True, return_inverse=True)
    earliest = np.array([first[which == i].min() for i in range(len(where))])
    event = np.full(num_states, NO_EVENT)
    event[order] = earliest.argsort().argsort()[which]
    return event


def _without_repetitions(sequence: np.ndarray) -> np.ndarray:
    return sequence[np.concatenate([[True], np.diff(sequence) != 0])]


# Redistribution, in compiled code -----------------------------------------------------------------------------------


def first_alignment(score: Float[Array, "P K"], gap: ScalarLike = 0.0) -> Float[Array, "Q"]:
    """Scores of an episode in which nothing has happened yet, see `extend_alignment`."""
    return -jnp.asarray(gap, score.dtype) * jnp.arange(score.shape[0] + 1, dtype=score.dtype)


def extend_alignment(
    best: Float[Array, "Q"], event: Int[Array, ""], score: Float[Array, "P K"], gap: ScalarLike = 0.0
) -> Float[Array, "Q"]:
    """Add one event to an episode that is being aligned with a profile.

    D(t, j) = max( D(t-1, j-1) + score_j(event),  D(t-1, j) - gap,  D(t, j-1) - gap )

    Args:
      best: D(t-1, .), best scores of the events so far against the first j positions, j = 0 .. P (Q = P + 1).
      event: from 0 to K - 1; a negative one is none and changes nothing.
      score: of the profile.
      gap: cost of an event, or of a position, that is left out.
    Returns:
      D(t, .); its largest entry is S, the score of the events so far against the best part of the profile.
    """
    skipped = -first_alignment(score, gap)
    taken = best[:-1] + score[:, jnp.maximum(event, 0)]
    entered = (best - jnp.asarray(gap, score.dtype)).at[1:].max(taken)
    extended = jax.lax.cummax(entered + skipped) - skipped
    return jnp.where(event >= 0, extended, best)


def prefix_scores(
    event: Int[Array, "T"], score: Float[Array, "P K"], mask: Bool[Array, "T"], *, gap: ScalarLike = 0.0
) -> Float[Array, "T"]:
    """Score S(tau_t) of every beginning of an episode against a profile: how much of it has been done by step t.

    Args:
      event: of each step; -1 is none.  An event that lasts counts once.
      score: of the profile, see `position_scores`.
      mask: True on the episode's own steps; padded steps repeat the last score.
      gap: cost of an event, or of a position passed over, that is left out of the alignment.
    Returns:
      S of the events up to and with step t, in the unit of `score`.

    >>> score = jnp.array([[2.0, -9.0], [-9.0, 3.0]])  # first event 0, then event 1
    >>> prefix_scores(jnp.array([0, -1, 0, 1]), score, jnp.ones(4, bool)).tolist()
    [2.0, 2.0, 2.0, 5.0]
    """
    lasts = event == jnp.concatenate([jnp.full(1, NO_EVENT, event.dtype), event[:-1]])
    event = jnp.where(mask & ~lasts, event, NO_EVENT)

    def step(best: Array, event: Array) -> tuple[Array, Array]:
        best = extend_alignment(best, event, score, gap)
        return best, best.max()

    return jax.lax.scan(step, first_alignment(score, gap), event)[1]


def profile_redistribution(
    event: Int[Array, "T1"],
    episode_return: Float[Array, ""],
    mask: Bool[Array, "T"],
    score: Float[Array, "P K"],
    scale: ScalarLike,
    *,
    gap: ScalarLike = 0.0,
    residual: Residual = "end",
) -> Float[Array, "T"]:
    """Pay each step what it adds to the alignment with the profile:  R_t = (S(tau_t) - S(tau_{t-1})) C.

    What is then missing to the return goes to the last step, or to all equally: the sum is the return, always.

    Args:
      event: of the first state, then of what followed each action, one more than steps; -1 is none.
      episode_return: undiscounted return of the episode, in reward units.
      mask: True on the episode's own steps; padded steps get exactly 0.
      score: of the profile.
      scale: C, reward units per score.
      gap: see `prefix_scores`.
      residual: see `redistribute_differences`.
    Returns:
      Redistributed rewards, in reward units; they sum to `episode_return`.
    Raises:
      ValueError: unknown `residual`.
    """
    after_first = jnp.concatenate([jnp.ones(1, bool), mask])
    reached = jnp.asarray(scale, score.dtype) * prefix_scores(event, score, after_first, gap=gap)
    reached = reached.astype(episode_return.dtype)
    return redistribute_differences(reached[1:], episode_return, mask, residual=residual, baseline=reached[0])


def cloned_values(
    state: Int[Array, "T B"],
    action: Int[Array, "T B"],
    reward: Float[Array, "T B"],
    mask: Bool[Array, "T B"],
    initial: Float[Array, "S A"],
) -> Float[Array, "S A"]:
    """Start a table of action values by cloning demonstrations:  Q(s, a) = sum of returns after (s, a) / visits of s.

    That is the mean return after (s, a) times the share of a among the actions taken in s.

    Args:
      state: index of each state of B demonstrations.
      action: index of each action.
      reward: follows the action, in reward units.
      mask: False on padding.
      initial: Q where no demonstration took the action, in reward units.
    Returns:
      Q, in reward units.
    """
    reward = jnp.where(mask, reward, 0)
    to_go = backward_recurrence(jnp.ones_like(reward), reward, jnp.zeros_like(reward[0]))
    zeros = jnp.zeros_like(initial)
    taken = zeros.at[state, action].add(mask.astype(initial.dtype))
    total = zeros.at[state, action].add(jnp.where(mask, to_go, 0).astype(initial.dtype))
    return jnp.where(taken > 0, total / jnp.maximum(taken.sum(axis=1, keepdims=True), 1), initial)


def whole_observation(observation: Any) -> Any:
    """All of the observation: what `AlignRUDDER` tells states apart by unless it is told otherwise."""
    return observation


@struct.dataclass
class AlignRUDDER(CreditEstimator):
    """Replace `reward` by the differences of an episode's alignment score with the profile of demonstrations.

    Build it by `AlignRUDDER.from_demonstrations(demonstrations)`.  Rewrites `reward` only: chain it with an estimator
    that computes advantages, `chain(credit, GAE(gamma=1.0))`.  Nothing is learned during training.  Redistributed
    rewards sum to each episode's undiscounted return.  A state is taken for the demonstrations' nearest one, if it is
    near enough.

    Attributes:
      known: `[S, D]`, the different states of the demonstrations, as `view` shows them.
      profile: what the demonstrations share, see `Profile`.
      radius: how far, at most, a state lies from the one of the demonstrations that it is taken for (in the largest
        of the D differences); beyond it is no event.
      gap: cost of an event, or of a position passed over, that is left out of the alignment.
      view: static; of an observation, the part that tells states apart.  Leave out what never recurs, as the time.
      residual: where the part goes that the profile does not explain, see `redistribute_differences`.
    """

    known: Any
    profile: Profile
    radius: float = within(0, INFINITY, 1e-3)
    gap: float = within(0, INFINITY, 0.0)
    view: Callable[[Any], Any] = static(whole_observation)
    residual: Residual = choice("end", RESIDUALS)

    @classmethod
    def from_demonstrations(
        cls,
        demonstrations: Trajectory,
        *,
        view: Callable[[Any], Any] = whole_observation,
        max_events: int = 15,
        preference: float = -0.5,
        min_share: float = 0.5,
        gap: float = 0.0,
        **fields: Any,
    ) -> AlignRUDDER:
        """Learn the profile of demonstrations, on the host.

        Args:
          demonstrations: whole episodes `[T, B]`, with `next_observation`.
          view: of one observation, the part that tells states apart; see the class.
          max_events, preference, min_share, gap: see `learn_profile`.
          **fields: further fields of the estimator.
        Returns:
          The estimator.
        Raises:
          ValueError: demonstrations without `next_observation`, or without a single step.
        """
        seen = np.asarray(_states(demonstrations, view))
        mask = np.asarray(demonstrations.mask)
        lengths = mask.sum(axis=0)
        known, index = np.unique(
            np.concatenate([seen[: n + 1, b] for b, n in enumerate(lengths)]), axis=0, return_inverse=True
        )
        episodes = np.split(index.ravel(), np.cumsum(lengths + 1)[:-1])
        returns = np.asarray(episode_returns(demonstrations.reward, demonstrations.mask), np.float64)
        profile = learn_profile(
            episodes, returns, len(known), max_events=max_events, preference=preference, min_share=min_share, gap=gap
        )
        return cls(known=jnp.asarray(known), profile=profile, gap=gap, view=view, **fields)

    @property
    def needs_episodes(self) -> bool:
        return True

    @property
    def needs_next_observation(self) -> bool:
        return True

    def events(self, trajectory: Trajectory) -> Int[Array, "T1 B"]:
        """Events of the first states, then of what followed each action; -1 where there is none."""
        state = nearest(_states(trajectory, self.view), self.known, self.radius)
        return jnp.where(state >= 0, self.profile.event[state], NO_EVENT)

    def assign(
        self, key: jax.Array, state: Any, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, state, context
        profile = jax.lax.stop_gradient(self.profile)

        def of_episode(event: Array, total: Array, mask: Array) -> Array:
            return profile_redistribution(
                event, total, mask, profile.score, profile.scale, gap=self.gap, residual=self.residual
            )

        total = episode_returns(trajectory.reward, trajectory.mask)
        reward = jax.vmap(of_episode, (1, 0, 1), 1)(self.events(trajectory), total, trajectory.mask)
        return trajectory.replace(reward=reward)


def nearest(x: Float[Array, "*N D"], known: Float[Array, "S D"], radius: ScalarLike) -> Int[Array, "*N"]:
    """Index of the nearest known vector (by the largest difference), -1 where none lies within `radius`."""

    def compare(best: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        distance = jnp.abs(x - other[1]).max(axis=-1)
        closer = distance < best[0]
        return (jnp.where(closer, distance, best[0]), jnp.where(closer, other[0], best[1])), None

    none = jnp.full(x.shape[:-1], jnp.inf, x.dtype), jnp.full(x.shape[:-1], -1, jnp.int32)
    order = jnp.arange(known.shape[0], dtype=jnp.int32)
    distance, index = jax.lax.scan(compare, none, (order, known))[0]
    return jnp.where(distance <= radius, index, -1)


def _states(trajectory: Trajectory, view: Callable[[Any], Any]) -> Float[Array, "T1 B D"]:
    """The first state and all that followed an action, as `view` shows them."""
    (following,) = require(trajectory, "AlignRUDDER", "next_observation")
    first = jax.tree.map(lambda x: x[:1], trajectory.observation)
    every = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, following)
    return flatten_observation(jax.vmap(jax.vmap(view))(every), lead=2)
