"""Potential-based shaping: extra rewards that cancel along every episode, so that the optimal policy stays.

References:
  Ng, Harada and Russell (1999), "Policy invariance under reward transformations".
  Wiewiora, Cottrell and Elkan (2003), "Principled methods for advising reinforcement learning agents" (look-ahead and
    look-back).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, ScalarLike

from jaxcredit.core.estimator import Context, CreditEstimator, FittedAfterwards, Metrics, State
from jaxcredit.core.fields import within
from jaxcredit.core.trajectory import Trajectory, bootstrap_discount, over_columns


def shaping_reward(
    potential: Float[Array, "T"],
    next_potential: Float[Array, "T"],
    terminated: Bool[Array, "T"],
    *,
    gamma: ScalarLike,
) -> Float[Array, "T"]:
    """What to add to the reward of step t:  F_t = gamma (1 - terminated_t) Phi'_t - Phi_t.

    The discounted sum along an episode that ends naturally is  -Phi_0,  whatever the policy.  With potentials of states
    this is reward shaping; with potentials of state-action pairs, Phi'_t = Phi(s_{t+1}, a_{t+1}), look-ahead advice,
    where the policy must act by  argmax_a Q(s, a) + Phi(s, a).

    Args:
      potential: Phi_t of the state (or state and action) of step t, in reward units.
      next_potential: Phi'_t of what followed action t *before any reset*; not read behind a natural end.
      terminated: the episode ended naturally after action t.  A time limit keeps the potential of what followed.
      gamma: discount in [0, 1].
    Returns:
      F_t, in reward units.
    """
    discount = bootstrap_discount(gamma, terminated, potential.dtype)
    return jnp.where(terminated, 0, discount * next_potential) - potential


def look_back_reward(potential: Float[Array, "T"], first: Bool[Array, "T"], *, gamma: ScalarLike) -> Float[Array, "T"]:
    """Look-back advice:  F_t = Phi(s_t, a_t) - Phi(s_{t-1}, a_{t-1}) / gamma,  Phi = 0 before an episode.

    For learners on the policy's own actions (SARSA): unlike look-ahead it needs no bias of the policy.

    Args:
      potential: Phi(s_t, a_t), in reward units.
      first: step t starts an episode.
      gamma: discount, above 0.
    Returns:
      F_t, in reward units.
    """
    before = jnp.concatenate([jnp.zeros_like(potential[:1]), potential[:-1]])
    return potential - jnp.where(first, 0, before / jnp.asarray(gamma, potential.dtype))


@struct.dataclass
class Shaping(FittedAfterwards):
    """Add to `reward` the changes of a learned prediction, as a potential: redistribution that cannot mislead.

    With the return g_t that another estimator predicts after step t, and  Phi_t = g_{t-1},  Phi_0 = 0,  step t is paid

        r_t + gamma (1 - terminated_t) Phi_{t+1} - Phi_t.

    What the steps have been paid in advance is taken back at the natural end, where the potential is 0, so an episode's
    (discounted) return stays what it was, pathwise.  Phi_t is a function of what happened before step t alone, fixed
    before the episode is played, so every policy keeps its order and every action of every history its advantage,
    however wrong the prediction is.  At a time limit the potential of what followed stays, as for all who bootstrap
    there: the value of what followed is lower by the same.

    The original reward stays where it is.  Where it all comes at the end this is `RUDDER(residual="end")`; else rewards
    that come late are paid twice, and once taken back.

    Rewrites `reward` only: chain it with an estimator that computes advantages, of the same discount,
    `chain(Shaping(RUDDER()), GAE(gamma=1.0))`.  A critic that does not see the history sees the potential as noise.

    Attributes:
      predictor: an estimator with a method  `predicted_return(state, trajectory) -> [T, B]`,  g_t in reward units by
        what steps up to t show, shifted so that 0 is predicted before the first: `RUDDER`, `RewardDecomposition`,
        `SequenceModelling`, `AREL`, `Diaster`.  It is fitted as ever, *after* a batch has been shaped: a potential that
        knows an episode's own end would not be one.  What it would write into the trajectory is not used, its
        `residual` neither.
      gamma: discount.

    Raises:
      ValueError: a predictor that predicts no return.

    Reference: Ng et al. (1999); for redistribution as a potential, Arjona-Medina et al. (2019), arXiv:1806.07857.
    """

    predictor: CreditEstimator
    gamma: float = within(0, 1, 1.0)

    @property
    def needs_episodes(self) -> bool:
        return True

    @property
    def needs_next_observation(self) -> bool:
        return self.predictor.needs_next_observation

    def init(self, key: jax.Array, trajectory: Trajectory) -> State:
        return self.predictor.init(key, trajectory)

    def update(
        self, key: jax.Array, state: State, trajectory: Trajectory, *, context: Context | None = None
    ) -> tuple[State, Metrics]:
        return self.predictor.update(key, state, trajectory, context=context)

    def assign(
        self, key: jax.Array, state: State, trajectory: Trajectory, *, context: Context | None = None
    ) -> Trajectory:
        del key, context
        predict: Any = getattr(self.predictor, "predicted_return", None)
        if predict is None:
            raise ValueError(
                f"Shaping({type(self.predictor).__name__}()) has no potential: it takes estimators that predict the "
                "return step by step, with a method predicted_return(state, trajectory). RUDDER() is one."
            )
        following = predict(state, trajectory).astype(trajectory.reward.dtype)
        potential = jnp.concatenate([jnp.zeros_like(following[:1]), following[:-1]])
        shape = partial(shaping_reward, gamma=self.gamma)
        added = over_columns(shape, potential, following, trajectory.terminated)
        return trajectory.replace(reward=jnp.where(trajectory.mask, trajectory.reward + added, 0))
