"""Policy and critic, with or without memory, for discrete and continuous actions.

Every policy network of the library has the form `apply(params, carry, observation, first) -> (carry, distribution,
value, extras)` on time-major sequences `[T, B, ...]`; a single step is a sequence of length one.  In its extras,

  `carries`         describes the hidden states after all steps; `carry_after` makes carries of it;
  `recorded`        named arrays `[T, B, ...]` that join the trajectory's extras, if the network has any;
  `auxiliary_loss`  `[T, B]`, what the network itself wants to become smaller, if anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxcredit.networks.initializers import orthogonal
from jaxcredit.networks.mlp import MLP, flatten_observation

if TYPE_CHECKING:
    import distrax


class ResettingGRU(nn.Module):
    """A GRU over a sequence `[T, B, D]` whose hidden state is zeroed at the steps that start an episode."""

    units: int

    @nn.compact
    def __call__(self, carry: jax.Array, x: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
        cell = nn.GRUCell(self.units, recurrent_kernel_init=orthogonal(), kernel_init=orthogonal(2**0.5))

        def step(
            cell: nn.GRUCell, carry: jax.Array, inputs: tuple[jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array]:
            x, first = inputs
            return cell(jnp.where(first[:, None], 0, carry), x)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        return scan(cell, carry, (x, first))


class PolicyNetwork(nn.Module):
    """Base of networks with a policy head and a value head.

    Attributes:
      actions: number of actions (discrete) or dimensions of an action (continuous).
      continuous: a diagonal Gaussian with a learned, state-independent scale instead of a categorical distribution.
      hidden: widths of both heads' hidden layers.
    """

    actions: int
    continuous: bool = False
    hidden: tuple[int, ...] = (64, 64)

    def carry_after(self, carries: Any, step: jax.Array, env: jax.Array) -> Any:
        """The carries `[n, ...]` after some steps of some environments, int `[n]` each, from `extras["carries"]`."""
        return jax.tree.map(lambda x: x[step, env], carries)

    def distribution(self, parameters: jax.Array) -> distrax.Distribution:
        """The distribution of actions with these logits `[..., A]` or locations `[..., D]`."""
        if not self.continuous:
            return as_distribution(parameters)
        log_scale = self.param("log_scale", nn.initializers.zeros, (self.actions,))
        scale = jnp.broadcast_to(jnp.exp(log_scale), parameters.shape)
        return as_distribution({"loc": parameters, "scale_diag": scale})


class ActorCritic(PolicyNetwork):
    """A policy head and a value head, apart from each other, on the observation or on a GRU's state.

    Attributes:
      actions, continuous, hidden: see `PolicyNetwork`.
      memory: units of the GRU in front of both heads; 0 is a feed-forward network.
    """

    memory: int = 0

    @property
    def recurrent(self) -> bool:
        return self.memory > 0

    def initial_carry(self, batch: int) -> Any:
        """Hidden state `[batch, memory]` at the start of an episode; `()` without memory."""
        return jnp.zeros((batch, self.memory)) if self.recurrent else ()

    @nn.compact
    def __call__(
        self, carry: Any, observation: Any, first: jax.Array
    ) -> tuple[Any, distrax.Distribution, jax.Array, dict[str, Any]]:
        """Evaluate a sequence.

        Args:
          carry: hidden state `[B, memory]` before the first step, or `()`.
          observation: pytree `[T, B, ...]`.
          first: `[T, B]` bool, the step starts an episode.
        Returns:
          carry after the last step; the action distribution, batch shape `[T, B]`; values `[T, B]`; extras, where
          `carries` `[T, B, ...]` is the hidden state after each step.
        """
        x = flatten_observation(observation, lead=2)
        carries: Any = ()
        if self.recurrent:
            width = self.hidden[0] if self.hidden else self.memory
            x = nn.tanh(nn.Dense(width, kernel_init=orthogonal(2**0.5))(x))
            carry, x = ResettingGRU(self.memory)(carry, x, first)
            carries = x
        parameters = MLP(self.hidden, self.actions, scale=0.01, name="actor")(x)
        value = MLP(self.hidden, 1, name="critic")(x)[..., 0]
        return carry, self.distribution(parameters), value, {"carries": carries}


def as_distribution(parameters: Any) -> distrax.Distribution:
    """The distribution of actions with these parameters: logits `[..., A]`, or `loc` and `scale_diag` `[..., D]`."""
    import distrax

    if isinstance(parameters, dict):
        return distrax.MultivariateNormalDiag(**parameters)
    return distrax.Categorical(logits=parameters)


def distribution_parameters(distribution: Any) -> Any:
    """What `Trajectory.logits` stores, the inverse of `as_distribution`."""
    import distrax

    if isinstance(distribution, distrax.Categorical):
        return distribution.logits
    return {"loc": distribution.loc, "scale_diag": distribution.scale_diag}


def sample(parameters: Any, noise: jax.Array) -> jax.Array:
    """Draw actions from distributions with noise that was drawn before (`draw_noise`).

    Args:
      parameters: logits `[..., A]`, or `loc` and `scale_diag` `[..., D]`.
      noise: Gumbel noise `[..., A]`, or normal noise `[..., D]`.
    Returns:
      argmax(logits + noise), `[...]` int32; or loc + scale * noise, `[..., D]`.
    """
    if isinstance(parameters, dict):
        return parameters["loc"] + parameters["scale_diag"] * noise
    return jnp.argmax(parameters + noise, axis=-1)


def draw_noise(key: jax.Array, continuous: bool, shape: tuple[int, ...]) -> jax.Array:
    """The noise that `sample` needs, of the shape of the logits `[..., A]` or of the locations `[..., D]`."""
    return jax.random.normal(key, shape) if continuous else jax.random.gumbel(key, shape)
