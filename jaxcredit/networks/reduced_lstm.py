"""Sequence models that add up evidence: the reduced LSTM of RUDDER, its parallel form, and the full LSTM."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxcredit.core.recurrence import forward_recurrence
from jaxcredit.networks.initializers import orthogonal

Gate = Literal["input", "recurrent", "full"]
GATES = ("input", "recurrent", "full")


class ReducedLSTM(nn.Module):
    """An accumulator without forget and output gate:  c_t = c_{t-1} + i_t z_t,  z_t = tanh(W_z x_t + b_z),  c_{-1} = 0.

    Attributes:
      units: number of cells.
      gate: where the input gate i_t looks.
        "input": i_t = sigmoid(W_i x_t + b_i).  Nothing recurs but the sum, so all steps are computed in parallel.
        "recurrent": i_t = sigmoid(R_i c_{t-1} + b_i), the paper's reduced LSTM.
        "full": an ordinary LSTM with all gates.
    Reference: Arjona-Medina et al. (2019), "RUDDER: Return Decomposition for Delayed Rewards", arXiv:1806.07857, and
      the cell of its tutorial and demonstration code.
    """

    units: int
    gate: Gate = "input"

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Evaluate x `[T, B, D]` under mask `[T, B]`; returns the cells `[T, B, units]`, held still on padded steps."""
        keep = mask[..., None]
        if self.gate == "full":
            return self._lstm(jnp.where(keep, x, 0), keep)
        if self.gate == "recurrent":
            return self._recurrent(jnp.where(keep, nn.tanh(nn.Dense(self.units)(x)), 0))
        content, gate = jnp.split(nn.Dense(2 * self.units)(x), 2, axis=-1)
        evidence = jnp.where(keep, nn.sigmoid(gate) * nn.tanh(content), 0)
        return forward_recurrence(jnp.ones_like(evidence), evidence, jnp.zeros_like(evidence[0]))

    def _recurrent(self, content: jax.Array) -> jax.Array:
        weight = self.param("gate", orthogonal(0.1), (self.units, self.units))
        bias = self.param("gate_bias", nn.initializers.constant(-1.0), (self.units,))

        def step(cell: jax.Array, content: jax.Array) -> tuple[jax.Array, jax.Array]:
            cell = cell + nn.sigmoid(cell @ weight + bias) * content
            return cell, cell

        return jax.lax.scan(step, jnp.zeros_like(content[0]), content)[1]

    def _lstm(self, x: jax.Array, keep: jax.Array) -> jax.Array:
        cell = nn.OptimizedLSTMCell(self.units, recurrent_kernel_init=orthogonal())

        def step(cell: nn.OptimizedLSTMCell, carry: tuple[jax.Array, jax.Array], inputs: tuple[jax.Array, jax.Array]):
            x, keep = inputs
            following, _ = cell(carry, x)
            carry = jax.tree.map(lambda new, old: jnp.where(keep, new, old), following, carry)
            return carry, carry[1]

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        zeros = jnp.zeros((x.shape[1], self.units))
        return scan(cell, (zeros, zeros), (x, keep))[1]


class ReturnPredictor(nn.Module):
    """Predicts the return of an episode after each of its steps: a `ReducedLSTM` and a read-out.

    g_t = u . c_t + v,  as in the paper, plus  w . tanh(W c_t + b)  if asked for.  The linear read-out of an input-gated
    memory pays every step what it adds on average, whatever else happens; the nonlinear part can tell that two
    decisions count only together, but pays for that in noise.

    Attributes:
      units, gate: size and kind of the memory, see `ReducedLSTM`.
      readout: hidden units of the read-out's nonlinear part; 0 leaves it out.
    """

    units: int
    gate: Gate = "input"
    readout: int = 0

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Map x `[T, B, D]`, mask `[T, B]` to predictions `[T, B]`; on padded steps the last one is repeated."""
        cell = ReducedLSTM(self.units, self.gate)(x, mask)
        prediction = nn.Dense(1)(cell)
        if self.readout:
            prediction += nn.Dense(1, use_bias=False)(nn.tanh(nn.Dense(self.readout)(cell)))
        return prediction[..., 0]
