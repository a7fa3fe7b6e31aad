"""COCOA: an action is paid, for every later reward, by how much more of its outcome it brings than the policy.

The outcome of a reward is what the coefficients condition on: its value (COCOA-reward), the state it came in ("HCA+"),
or a learned feature.

Reference: Meulemans et al. (2023), "Would I have gotten that reward? Long-term credit assignment by counterfactual
contribution analysis", arXiv:2306.16803.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, ScalarLike


def contribution_credit(
    coefficient: Float[Array, "T T A"],
    reward: Float[Array, "T"],
    action: Int[Array, "T"],
    probability: Float[Array, "T A"],
    mask: Bool[Array, "T"],
    *,
    gamma: ScalarLike = 1.0,
    immediate: Float[Array, "T A"] | None = None,
) -> Float[Array, "T A"]:
    """Credit of every action in every step:  rho_t(a) + sum_{k>t} gamma^{k-t} w(s_t, a, u_k) r_k,

    rho_t(a) = 1(a = A_t) r_t / pi(A_t|s_t),  or a model of the reward. Unbiased, up to a part that is the same for all
    actions, where the outcome determines the reward. With discounting w must be that of outcomes at a distance of k - t
    steps, or of outcomes counted with the same discount (`future_outcomes`).

    Args:
      coefficient: w of step t (first axis) for the outcome of step k (second axis) and every action; read for k > t.
      reward: r_t, follows action t.
      action: action taken, int.
      probability: pi(a|s_t).
      mask: True on the episode's own steps; padded steps get and give exactly 0.
      gamma: discount per step, in [0, 1].
      immediate: rho, what every action is expected to be paid at once, in reward units; None samples it.
    Returns:
      Credit of every action in reward units, to be weighed by the policy:  gradient = sum_a grad pi(a|s) credit(a).
    Raises:
      ValueError: a coefficient that is not `[T, T, A]`.
    """
    steps = reward.shape[0]
    if coefficient.shape != (steps, *probability.shape):
        raise ValueError(
            f"coefficient has shape {coefficient.shape}; with {steps} steps and {probability.shape[-1]} actions "
            f"{(steps, *probability.shape)} is needed: decisions, outcomes, actions."
        )

    def of_step(step: Array, coefficient: Array, action: Array, probability: Array, immediate: Array | None) -> Array:
        return decision_credit(
            coefficient, reward, action, probability, mask, step, gamma=gamma, immediate=immediate
        )  # fmt: skip

    return jax.vmap(of_step)(jnp.arange(steps), coefficient, action, probability, immediate)


def decision_credit(
    coefficient: Float[Array, "T A"],
    reward: Float[Array, "T"],
    action: Int[Array, ""],
    probability: Float[Array, "A"],
    mask: Bool[Array, "T"],
    step: Int[Array, ""],
    *,
    gamma: ScalarLike = 1.0,
    immediate: Float[Array, "A"] | None = None,
) -> Float[Array, "A"]:
    """`contribution_credit` of the one decision in `step`; `coefficient` holds w for the outcome of every step."""
    coefficient, probability = coefficient.astype(reward.dtype), probability.astype(reward.dtype)
    reward = jnp.where(mask, reward, 0)
    ahead = jnp.arange(reward.shape[0]) - step
    later = mask & (ahead > 0)
    discount = jnp.asarray(gamma, reward.dtype) ** jnp.where(later, ahead, 0)
    contributed = ((discount * jnp.where(later, reward, 0))[:, None] * jnp.where(later[:, None], coefficient, 0)).sum(0)
    if immediate is None:
        taken = probability[action]
        sampled = jnp.where(taken > 0, reward[step] / jnp.where(taken > 0, taken, 1), 0)
        immediate = jnp.where(jnp.arange(probability.shape[0]) == action, sampled, 0)
    return jnp.where(mask[step], immediate.astype(reward.dtype) + contributed, 0)
