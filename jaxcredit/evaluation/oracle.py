"""Exact answers for small decision processes by dynamic programming: gathers over sparse tables, one dense solve.

Every function is pure, jits, maps over tables and policies, and computes in the table's precision:
`mdp.astype(jnp.float64)` under `jax.enable_x64(True)` gives double.  Recursions run over `mdp.horizon` steps: a time
limit that is not part of the state cuts what lies beyond it.  Only `stationary_values` knows no horizon.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from jaxcredit.core.linear import solve
from jaxcredit.core.mdp import TabularMDP
from jaxcredit.redistribution.contribution import redistribute_differences


def action_values(mdp: TabularMDP, value: Float[Array, "S"], gamma: ArrayLike = 1.0) -> Float[Array, "S A"]:
    """Look one step ahead:  Q(s, a) = sum_k p_k (r_k + gamma (1 - terminal_k) V(s'_k)).

    Args:
      mdp: the table.
      value: V of the following states, in reward units.
      gamma: discount per step.
    Returns:
      Q, in reward units; the advantage is `action_values(mdp, value) - value[:, None]`.
    """
    following = jnp.where(mdp.terminal, 0, jnp.asarray(gamma, value.dtype) * value[mdp.successor])
    # what cannot happen pays nothing, whatever the table says
    return jnp.where(mdp.probability > 0, mdp.probability * (mdp.reward + following), 0).sum(axis=-1)


def optimal_values(mdp: TabularMDP, gamma: ArrayLike = 1.0) -> Float[Array, "S"]:
    """Value of every state under the best policy, with `mdp.horizon` steps to go:  V(s) = max_a Q(s, a).

    Where the state contains the time, this is the exact value of every state.

    Args:
      mdp: the table.
      gamma: discount per step.
    Returns:
      V, in reward units.  The optimum of the task is `mdp.initial @ optimal_values(mdp)`.
    """
    return _backward_induction(mdp, gamma, lambda q: q.max(axis=1))


def policy_values(mdp: TabularMDP, policy: Float[Array, "S A"], gamma: ArrayLike = 1.0) -> Float[Array, "S"]:
    """Value of every state under a policy, with `mdp.horizon` steps to go:  V(s) = sum_a pi(a|s) Q(s, a).

    Args:
      mdp: the table.
      policy: probability of every action in every state; rows sum to 1.
      gamma: discount per step.
    Returns:
      V, in reward units.
    """
    return _backward_induction(mdp, gamma, lambda q: (policy * q).sum(axis=1))


def visits(mdp: TabularMDP, policy: Float[Array, "S A"], gamma: ArrayLike = 1.0) -> Float[Array, "S"]:
    """Expected (discounted) number of visits per episode:  d(s) = sum_t gamma^t P(S_t = s),  t < horizon.

    Args:
      mdp: the table.
      policy: probability of every action in every state.
      gamma: discount per step.
    Returns:
      d, a number of steps; of state-action pairs it is `visits(...)[:, None] * policy`.
    """

    def step(present: Array, _: None) -> tuple[Array, Array]:
        flow = jnp.where(mdp.terminal, 0, present[:, None, None] * policy[:, :, None] * mdp.probability)
        following = jnp.zeros_like(present).at[mdp.successor].add(jnp.asarray(gamma, flow.dtype) * flow)
        return following, present

    start = jnp.asarray(mdp.initial, mdp.reward.dtype)
    return jax.lax.scan(step, start, length=mdp.horizon)[1].sum(axis=0)


def policy_gradient(mdp: TabularMDP, logits: Float[Array, "S A"], gamma: ArrayLike = 1.0) -> Float[Array, "S A"]:
    """Exact gradient of the expected return  J = E sum_t gamma^t r_t  in the logits of a softmax policy.

    Where the state contains the time this is  dJ/dlogits(s, a) = d(s) pi(a|s) A(s, a)  with the `visits` d.

    Args:
      mdp: the table.
      logits: of every action in every state; log-probabilities are.
      gamma: discount per step.
    Returns:
      The gradient, in reward units.
    """

    def expected_return(logits: Array) -> Array:
        return mdp.initial @ policy_values(mdp, jax.nn.softmax(logits), gamma)

    return jax.grad(expected_return)(jnp.asarray(logits, mdp.reward.dtype))


def expected_lambda_advantages(
    mdp: TabularMDP,
    policy: Float[Array, "S A"],
    value: Float[Array, "S"],
    gamma: ArrayLike = 1.0,
    lam: ArrayLike = 1.0,
) -> Float[Array, "S A"]:
    """What lambda-advantages with a given critic are worth on average:  E[ sum_k (gamma lam)^k delta_{t+k} | s, a ].

    Monte Carlo is lam = 1, TD errors are lam = 0, no baseline is a critic of zeros.  With the exact critic it is the
    advantage, whatever lam; the difference is the estimator's bias.

    Args:
      mdp: the table.
      policy: probability of every action in every state.
      value: the critic, in reward units.
      gamma: discount per step.
      lam: decay of the trace.
    Returns:
      Expected advantage of every action, in reward units.
    """
    error = action_values(mdp, value, gamma) - value[:, None]
    decay = jnp.asarray(gamma, error.dtype) * jnp.asarray(lam, error.dtype)

    def step(later: Array, _: None) -> tuple[Array, None]:
        return (policy * (error + decay * expected_next(mdp, later))).sum(axis=1), None

    # `later` is the expected advantage of the state's own next action
    later = jax.lax.scan(step, jnp.zeros_like(value), length=mdp.horizon - 1)[0]
    return error + decay * expected_next(mdp, later)


def redistributed_mdp(mdp: TabularMDP, action_value: Float[Array, "S A"]) -> TabularMDP:
    """The table whose reward is RUDDER's optimal redistribution.

    The step of (s', a') after an outcome (s, a, r) pays  r - Q(s, a) + Q(s', a'),  the first one Q(s, a); the last adds
    what is left,  r - Q(s, a)  of its own outcome.  Rewards of every episode that ends naturally sum to its return, so
    that every policy keeps its value; with the exact Q of the policy, nothing is left to expect after any step.

    Args:
      mdp: the table.
      action_value: Q, undiscounted.
    Returns:
      A table with one state per first state and per outcome (the reward depends on what happened before):
      `S + S A K` states; the first S are the states without a past.
    Reference: Arjona-Medina et al. (2019), arXiv:1806.07857, Theorem 2, for rewards that need not come at the end.
    """
    shape = mdp.successor.shape
    states, outcomes = shape[0], math.prod(shape)
    unpaid = (mdp.reward - action_value[:, :, None]).reshape(outcomes)
    here = jnp.concatenate([jnp.arange(states), mdp.successor.reshape(outcomes)])
    carried = jnp.concatenate([jnp.zeros(states, unpaid.dtype), unpaid])
    own = jnp.where(mdp.terminal, mdp.reward - action_value[:, :, None], 0)
    successor = states + jnp.arange(outcomes, dtype=jnp.int32).reshape(shape)
    return TabularMDP(
        initial=jnp.concatenate([mdp.initial, jnp.zeros(outcomes, mdp.initial.dtype)]),
        successor=successor[here],
        probability=mdp.probability[here],
        reward=(carried[:, None, None] + action_value[:, :, None][here] + own[here]),
        terminal=mdp.terminal[here],
        observation=mdp.observation[here],
        horizon=mdp.horizon,
    )


def optimal_redistribution(
    action_value: Float[Array, "T"], reward: Float[Array, "T"], mask: Bool[Array, "T"]
) -> Float[Array, "T"]:
    """Pay each step what it changed in the expected return:  R_t = g_t - g_{t-1},  g_t = sum_{k<t} r_k + Q(s_t, a_t).

    The residual (the luck of the last reward) goes to the last step, so that the sum is the return.

    Args:
      action_value: Q(s_t, a_t), exact and undiscounted.
      reward: follows action t.
      mask: True on the episode's own steps.
    Returns:
      Redistributed rewards, in reward units.
    Reference: Arjona-Medina et al. (2019), arXiv:1806.07857, Theorem 2.
    """
    reward = jnp.where(mask, reward, 0)
    return redistribute_differences(jnp.cumsum(reward) - reward + action_value, reward.sum(), mask)


def expected_next(mdp: TabularMDP, x: Float[Array, "S *U"]) -> Float[Array, "S A *U"]:
    """Mean of x over what follows every state and action; nothing follows a terminal outcome."""
    weight = jnp.where(mdp.terminal, 0, mdp.probability)
    return jnp.einsum("sak,sak...->sa...", weight, x[mdp.successor])


def stationary_values(mdp: TabularMDP, policy: Float[Array, "S A"], gamma: ArrayLike = 1.0) -> Float[Array, "S"]:
    """Value of every state under a policy without a time limit:  V = r_pi + gamma P_pi V,  solved at once.

    For tasks whose state does not contain the time and whose end has no bound. P_pi is dense, `[S, S]`: for tables of
    up to a few hundred states.

    Args:
      mdp: the table; its horizon is ignored.
      policy: probability of every action in every state; rows sum to 1.
      gamma: discount per step.
    Returns:
      V, in reward units; nan where gamma is 1 and the episode may go on for ever: there is no value then.
    """
    weight = policy[:, :, None] * mdp.probability
    # what cannot happen pays nothing, whatever the table says
    reward = jnp.where(weight > 0, weight * mdp.reward, 0).sum(axis=(1, 2))
    follows = jnp.where(mdp.terminal, 0, weight)
    states = jnp.arange(mdp.num_states)
    onwards = jnp.zeros((mdp.num_states, mdp.num_states), reward.dtype)
    onwards = onwards.at[states[:, None, None], mdp.successor].add(follows)
    endless = _may_go_on_for_ever(weight, mdp) & (jnp.asarray(gamma) >= 1)
    onwards = jnp.where(endless[:, None], 0, onwards)
    system = jnp.eye(mdp.num_states, dtype=reward.dtype) - jnp.asarray(gamma, reward.dtype) * onwards
    return jnp.where(endless, jnp.nan, solve(system, reward[:, None])[:, 0])


def _may_go_on_for_ever(weight: Float[Array, "S A K"], mdp: TabularMDP) -> Bool[Array, "S"]:
    """Which states may lead to one from where no end can be reached; `weight` is the chance of every outcome."""
    possible = weight > 0

    def reaches(start: Array, through: Array) -> Array:
        def grow(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            found = carry[0]
            return found | (through & found[mdp.successor]).any(axis=(1, 2)), found

        return jax.lax.while_loop(lambda carry: (carry[0] != carry[1]).any(), grow, (start, jnp.zeros_like(start)))[0]

    onwards = possible & ~mdp.terminal
    ends = (possible & mdp.terminal).any(axis=(1, 2))
    return reaches(~reaches(ends, onwards), onwards)


def _backward_induction(mdp: TabularMDP, gamma: ArrayLike, backup: Callable[[Array], Array]) -> Array:
    def step(value: Array, _: None) -> tuple[Array, None]:
        return backup(action_values(mdp, value, gamma)), None

    nothing = jnp.zeros(mdp.num_states, mdp.reward.dtype)
    return jax.lax.scan(step, nothing, length=mdp.horizon)[0]
