"""A policy with an external memory: it reads, by content, what it saw earlier in the episode.

Reference: a compact form of the agent of Hung et al. (2019), "Optimizing agent behavior over long time scales by
transporting value", arXiv:1810.06721, itself after Wayne et al. (2018), arXiv:1803.10760, and its public code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from jaxcredit.networks.actor_critic import PolicyNetwork, ResettingGRU
from jaxcredit.networks.attention import attention_weights
from jaxcredit.networks.initializers import orthogonal
from jaxcredit.networks.mlp import MLP, flatten_observation

if TYPE_CHECKING:
    import distrax

STRONG = 2.0  # reads weaker than this cost nothing: the threshold above which they transport value


@struct.dataclass
class MemoryCarry:
    """What a `MemoryActorCritic` knows before a step.

    Attributes:
      controller: `[B, units]` state of the GRU.
      memory: `[B, N, W]` latents of the last N steps, the latest one last.
      age: `[B]` int32, steps of the running episode so far; older rows are of other episodes and never read.
    """

    controller: jax.Array
    memory: jax.Array
    age: jax.Array


class Carries(NamedTuple):
    """What a window leaves behind, from which the carry after any of its steps can be cut out.

    Attributes:
      controller: `[T, B, units]` after each step.
      rows: `[N + T, B, W]` latents of the N steps before the window and of its own.
      age: `[T, B]` int32, after each step.
    """

    controller: jax.Array
    rows: jax.Array
    age: jax.Array


class Reads(NamedTuple):
    """What H heads read in each step.

    Attributes:
      content: `[T, B, H, W]`, weighted sum of the rows; 0 where there is nothing to read.
      weight: `[T, B, H, K]` of the K rows that count, in falling order; they sum to 1, or are all 0.
      index: `[T, B, H, K]` int32, the steps that wrote them, counted from the start of the window, so that rows from
        before the window are negative.  Without meaning where the weight is 0.
    """

    content: jax.Array
    weight: jax.Array
    index: jax.Array


class Encoder(nn.Module):
    """Describes an observation, a pytree `[T, B, ...]`, by a latent `[T, B, width]` in (-1, 1).

    Leaves `[T, B, height, width, channels]` go through two 3 x 3 convolutions first.

    Attributes:
      width: of the latent.
      channels: of the convolutions.
    """

    width: int
    channels: tuple[int, int] = (16, 32)

    @nn.compact
    def __call__(self, observation: Any) -> jax.Array:
        flat = flatten_observation(jax.tree.map(self._picture, observation), lead=2)
        hidden = nn.tanh(nn.Dense(2 * self.width, kernel_init=orthogonal(2**0.5))(flat))
        return nn.tanh(nn.Dense(self.width, kernel_init=orthogonal())(hidden))

    def _picture(self, x: jax.Array) -> jax.Array:
        if x.ndim != 5:
            return x
        pictures = jnp.asarray(x, jnp.float32).reshape(-1, *x.shape[2:])
        for channels in self.channels:
            pictures = nn.relu(nn.Conv(channels, (3, 3))(pictures))
        return pictures.reshape(*x.shape[:2], *pictures.shape[1:])


class MemoryActorCritic(PolicyNetwork):
    """A GRU that asks the episode's own past for what it needs; policy and critic see observation, state and answers.

    z_t = Encoder(o_t),  h_t = GRU(z_t, h_{t-1}),  key and strength of each head  k = W h_t,  beta = softplus(w . h_t),

    read = sum_i softmax_i(beta cos(k, z_i)) z_i  over the `top_k` rows of largest score among the last `rows` steps
    i < t of the episode,  pi = MLP(z_t, h_t, reads),  V = MLP(z_t, h_t, reads, stop_gradient(logits)).

    No gradient flows into what was written, so that all of a window can be read at once.  The two weights below are
    static, as all that a network is made of; the agent's `auxiliary_coefficient` scales both, and is traced.

    Attributes:
      actions, continuous, hidden: see `PolicyNetwork`.
      units: of the GRU.
      width: W, of the latents, which are the rows of the memory.
      rows: N, steps that are remembered.
      heads: H, reads per step.
      top_k: K, rows that one read takes in, where there are so many.
      reconstruction: weight of the squared error by which the latent must reproduce the observation; 0 leaves it out.
      strength_cost: weight of the cost of strong reads,  sum_heads max(2, beta).
    Raises:
      ValueError: a size below 1.

    Assumption: smaller than in the reference, and simpler: its latent also sees the controller's last state and reads
    as well as the previous action and reward, its controller is an LSTM of two layers, it reads rows that were never
    written as zeros, and it reconstructs action and reward too.  Where the previous action matters it belongs into the
    observation (`envs.wrappers.PreviousAction`), and is reconstructed with it.
    """

    hidden: tuple[int, ...] = (64,)
    units: int = 64
    width: int = 32
    rows: int = 128
    heads: int = 3
    top_k: int = 50
    reconstruction: float = 0.0
    strength_cost: float = 5e-5

    def __post_init__(self) -> None:
        for name in ("units", "width", "rows", "heads", "top_k"):
            size = getattr(self, name)
            if type(size) is not int or size < 1:
                raise ValueError(f"{name}={size!r} is not allowed; give a whole number of at least 1.")
        super().__post_init__()

    @property
    def recurrent(self) -> bool:
        return True

    def initial_carry(self, batch: int) -> MemoryCarry:
        """An empty memory for each of `batch` environments."""
        return MemoryCarry(
            controller=jnp.zeros((batch, self.units)),
            memory=jnp.zeros((batch, self.rows, self.width)),
            age=jnp.zeros(batch, jnp.int32),
        )

    def carry_after(self, carries: Carries, step: jax.Array, env: jax.Array) -> MemoryCarry:
        last = step[:, None] + 1 + jnp.arange(self.rows)
        return MemoryCarry(carries.controller[step, env], carries.rows[last, env[:, None]], carries.age[step, env])

    @nn.compact
    def __call__(
        self, carry: MemoryCarry, observation: Any, first: jax.Array
    ) -> tuple[MemoryCarry, distrax.Distribution, jax.Array, dict[str, Any]]:
        """Evaluate a sequence.

        Args:
          carry: what is known before the first step.
          observation: pytree `[T, B, ...]`.
          first: `[T, B]` bool, the step starts an episode.
        Returns:
          carry after the last step; the action distribution, batch shape `[T, B]`; values `[T, B]`; extras: `carries`;
          `recorded`, the reads as `TemporalValueTransport` wants them; `auxiliary_loss` `[T, B]`.
        """
        latent = Encoder(self.width, name="encoder")(observation)
        controller, state = ResettingGRU(self.units)(carry.controller, latent, first)
        before = steps_before(carry.age, first)
        rows = jnp.concatenate([jnp.moveaxis(carry.memory, 1, 0), jax.lax.stop_gradient(latent)])
        key = nn.Dense(self.heads * self.width, name="key")(state).reshape(*first.shape, self.heads, self.width)
        strength = nn.softplus(nn.Dense(self.heads, name="strength")(state))
        reads = read(key, strength, rows, jnp.minimum(before, self.rows), min(self.top_k, self.rows))

        x = jnp.concatenate([latent, state, reads.content.reshape(*first.shape, -1)], axis=-1)
        parameters = MLP(self.hidden, self.actions, scale=0.01, name="actor")(x)
        judged = jnp.concatenate([x, jax.lax.stop_gradient(parameters)], axis=-1)
        value = MLP(self.hidden, 1, name="critic")(judged)[..., 0]
        extras = {
            "carries": Carries(state, rows, before + 1),
            "recorded": {"read_weights": reads.weight, "read_strengths": strength, "read_index": reads.index},
            "auxiliary_loss": self._auxiliary_loss(observation, latent, strength),
        }
        carry = MemoryCarry(controller, jnp.moveaxis(rows[-self.rows :], 0, 1), before[-1] + 1)
        return carry, self.distribution(parameters), value, extras

    def _auxiliary_loss(self, observation: Any, latent: jax.Array, strength: jax.Array) -> jax.Array:
        loss = self.strength_cost * jnp.maximum(strength, STRONG).sum(axis=-1)
        if self.reconstruction:
            target = flatten_observation(observation, lead=2)
            guess = MLP((2 * self.width,), target.shape[-1], name="decoder")(latent)
            loss += self.reconstruction * 0.5 * jnp.square(guess - target).sum(axis=-1)
        return loss


def steps_before(age: jax.Array, first: jax.Array) -> jax.Array:
    """How many steps `[T, B]` of its episode came before each, if there were `age` `[B]` before the window."""
    step = jnp.arange(first.shape[0])[:, None]
    start = jax.lax.cummax(jnp.where(first, step, -age), axis=0)
    return step - start


def read(key: jax.Array, strength: jax.Array, rows: jax.Array, reach: jax.Array, top_k: int) -> Reads:
    """Read by content, with weights  softmax(strength cos(key, row))  over the `top_k` rows of largest score.

    Args:
      key: `[T, B, H, W]`; strength: `[T, B, H]`, not negative.
      rows: `[N + T, B, W]`, written one per step: the last T in the steps of this window.
      reach: `[T, B]`, how many of the rows before its own a step may read.
      top_k: K.
    """
    steps, heads = key.shape[0], key.shape[2]
    written = jnp.arange(rows.shape[0]) - (rows.shape[0] - steps)
    back = jnp.arange(steps)[:, None] - written
    allowed = (back >= 1) & (back <= reach.T[..., None])
    # attention divides by sqrt(W)
    query = direction(key) * strength[..., None] * key.shape[-1] ** 0.5
    content = jnp.moveaxis(rows, 1, 0)
    shared = jnp.broadcast_to(direction(content)[:, :, None], (*content.shape[:2], heads, content.shape[-1]))
    weight = attention_weights(jnp.moveaxis(query, 1, 0), shared, allowed)
    top, place = jax.lax.top_k(weight, top_k)
    weight = jnp.where(weight >= top[..., -1:], weight, 0)
    total = weight.sum(axis=-1, keepdims=True)
    some = jnp.where(total > 0, total, 1)
    mixed = jnp.einsum("bhtn,bnd->tbhd", weight / some, content)
    weight, index = (jnp.moveaxis(x, 2, 0) for x in (top / some, written[place]))
    return Reads(mixed, weight, index)


def direction(x: jax.Array) -> jax.Array:
    """x / |x| along the last axis, 0 for the null vector."""
    return x * jax.lax.rsqrt(jnp.square(x).sum(axis=-1, keepdims=True) + 1e-6)
