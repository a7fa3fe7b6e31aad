"""What a credit estimator is, and how estimators compose."""

from __future__ import annotations

from typing import Any

import jax
from flax import struct

from jaxcredit.core.fields import check_fields
from jaxcredit.core.frozen import Frozen
from jaxcredit.core.trajectory import Trajectory

State = Any
Metrics = dict[str, Any]


@struct.dataclass
class Context:
    """What an estimator that simulates may use; everything else ignores it."""

    env: Any = struct.field(pytree_node=False)
    env_params: Any
    policy: Any = struct.field(pytree_node=False)
    policy_params: Any


@struct.dataclass
class CreditEstimator(Frozen):
    """A configuration that is a pytree, with three pure methods.  Subclass it; only `assign` must be written.

    Float fields are leaves (traced: sweep them), everything else is declared with `struct.field(pytree_node=False)`.
    Trajectories are batches `[T, B, ...]`.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def needs_episodes(self) -> bool:
        """True: works on whole episodes (one per column, padded to the horizon); the agent collects them so."""
        return False

    @property
    def needs_next_observation(self) -> bool:
        """True: reads `trajectory.next_observation`, which doubles observation memory and is else not collected."""
        return False

    def init(self, key: jax.Array, trajectory: Trajectory) -> State:
        """Return the initial state (parameters, statistics, replay) for trajectories shaped like the example."""
        del key, trajectory
        return ()

    def update(
        self, key: jax.Array, state: State, trajectory: Trajectory, *, context: Context | None = None
    ) -> tuple[State, Metrics]:
        """Fit the learned part on a batch `[T, B, ...]`; return the new state and scalar metrics."""
        del key, trajectory, context
        return state, {}

    def assign(
        self, key: jax.Array, state: State, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        """Write credit into the trajectory `[T, B, ...]`."""
        raise TypeError(f"{type(self).__name__} does not say how to assign credit: write its `assign` method.")

    def update_and_assign(
        self, key: jax.Array, state: State, trajectory: Trajectory, *, context: Context | None = None
    ) -> tuple[State, Trajectory, Metrics]:
        """Fit on the batch, then assign with the new state: what agents call, once per batch."""
        update_key, assign_key = jax.random.split(key)
        state, metrics = self.update(update_key, state, trajectory, context=context)
        return state, self.assign(assign_key, state, trajectory, context=context), metrics


@struct.dataclass
class FittedAfterwards(CreditEstimator):
    """Base of estimators whose credit for a batch must not know that batch: assign with the old state, then fit."""

    def update_and_assign(
        self, key: jax.Array, state: State, trajectory: Trajectory, *, context: Context | None = None
    ) -> tuple[State, Trajectory, Metrics]:
        """Assign with what earlier batches taught, then fit on this one."""
        update_key, assign_key = jax.random.split(key)
        assigned = self.assign(assign_key, state, trajectory, context=context)
        state, metrics = self.update(update_key, state, trajectory, context=context)
        return state, assigned, metrics


@struct.dataclass
class Chain(CreditEstimator):
    """Estimators in a row: each rewrites the trajectory, with its state fitted first, and passes it on.

    Attributes:
      members: the estimators, applied left to right; `credit.1.lam` is a field of the second.
    """

    members: tuple[CreditEstimator, ...]

    @property
    def needs_episodes(self) -> bool:
        return any(member.needs_episodes for member in self.members)

    @property
    def needs_next_observation(self) -> bool:
        return any(member.needs_next_observation for member in self.members)

    def init(self, key: jax.Array, trajectory: Trajectory) -> State:
        states = []
        for i, member in enumerate(self.members):
            init_key, assign_key = jax.random.split(jax.random.fold_in(key, i))
            states.append(member.init(init_key, trajectory))
            trajectory = jax.eval_shape(member.assign, assign_key, states[-1], trajectory)
        return tuple(states)

    def update(
        self, key: jax.Array, state: State, trajectory: Trajectory, *, context: Context | None = None
    ) -> tuple[State, Metrics]:
        state, _, metrics = self.update_and_assign(key, state, trajectory, context=context)
        return state, metrics

    def assign(
        self, key: jax.Array, state: State, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        for i, (member, member_state) in enumerate(zip(self.members, state, strict=True)):
            before = trajectory
            trajectory = member.assign(jax.random.fold_in(key, i), member_state, trajectory, context=context)
            _check_order(member, before, trajectory)
        return trajectory

    def update_and_assign(
        self, key: jax.Array, state: State, trajectory: Trajectory, *, context: Context | None = None
    ) -> tuple[State, Trajectory, Metrics]:
        states, metrics = [], {}
        for i, (member, member_state) in enumerate(zip(self.members, state, strict=True)):
            before = trajectory
            new_state, trajectory, member_metrics = member.update_and_assign(
                jax.random.fold_in(key, i), member_state, trajectory, context=context
            )
            _check_order(member, before, trajectory)
            states.append(new_state)
            metrics |= {f"{i}.{name}": value for name, value in member_metrics.items()}
        return tuple(states), trajectory, metrics


def _check_order(member: CreditEstimator, before: Trajectory, after: Trajectory) -> None:
    written = before.advantage is not None or before.action_advantage is not None
    if written and after.reward is not before.reward:
        raise ValueError(
            f"{type(member).__name__} rewrites the reward after an earlier member has computed advantages from it, so "
            "nothing would read it. Put it first: chain(RUDDER(), GAE())."
        )


def chain(*estimators: CreditEstimator) -> Chain:
    """Compose estimators left to right: `chain(RUDDER(), GAE(gamma=1.0))` redistributes, then computes advantages.

    Args:
      *estimators: at least one `CreditEstimator`.
    Returns:
      An estimator whose state is the tuple of the members' states and whose metrics carry the prefixes `0.`, `1.`, ...
    Raises:
      ValueError: no estimator, or something that is none.
    """
    if not estimators:
        raise ValueError("chain() needs at least one estimator, for example chain(GAE(gamma=0.99)).")
    for i, estimator in enumerate(estimators):
        if not isinstance(estimator, CreditEstimator):
            raise ValueError(
                f"chain() takes CreditEstimator instances; argument {i} is {estimator!r}. "
                "Pass an instance (GAE(), not GAE) of a subclass of CreditEstimator."
            )
    return Chain(members=tuple(estimators))
