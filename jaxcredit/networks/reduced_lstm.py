"""Sequence models that add up evidence: the reduced LSTM of RUDDER with more or fewer gates, and its parallel form.

Reference: Arjona-Medina et al. (2019), "RUDDER: Return Decomposition for Delayed Rewards", arXiv:1806.07857, and the
  cell of its tutorial and demonstration code.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxcredit.core.recurrence import forward_recurrence, shares_of_last
from jaxcredit.networks.initializers import orthogonal

Gate = Literal["input", "recurrent", "output", "forget", "full"]
GATES = ("input", "recurrent", "output", "forget", "full")
MONOTONIC = ("input", "recurrent")
# what each kind computes besides the content z, and where the bias of that gate starts
PARTS = {
    "recurrent": ("i",),
    "output": ("i", "o"),
    "forget": ("i", "o", "f"),
    "full": ("i", "o", "f"),
}
BIAS = {"i": -1.0, "o": 1.0, "f": 3.0}


class Memory(NamedTuple):
    """What a memory holds after every step; on padded steps what it held before.

    Attributes:
      hidden: `[T, B, H]` h_t = o_t c_t, what it shows.
      evidence: `[T, B, H]` i_t z_t, what step t wrote into the cells; 0 on padded steps.
      forget: `[T, B, H]` f_t, the factor on what was there before; 1 on padded steps.
      output: `[T, B, H]` o_t.
    """

    hidden: jax.Array
    evidence: jax.Array
    forget: jax.Array
    output: jax.Array


class ReducedLSTM(nn.Module):
    """Cells that add up evidence:  c_t = f_t c_{t-1} + i_t z_t,  h_t = o_t c_t,  z_t = tanh(W x_t + b),  c_{-1} = 0.

    Gates are sigmoids, and 1 where a kind does not have them.  Each kind but the first has the gates of those before:

      "input"      i_t looks at x_t only.  Nothing recurs but the sum, so that all steps are computed in parallel.
      "recurrent"  i_t looks at h_{t-1} only: the paper's reduced LSTM.
      "output"     and o_t looks at h_{t-1} only;
      "forget"     and f_t looks at h_{t-1} only;
      "full"       z and all gates look at both x_t and h_{t-1}.

    The order is that in which the authors advise to add gates where the return cannot be fitted.

    Attributes:
      units: number of cells, H.
      gate: which kind.
      monotonic: z_t is a sigmoid, so that cells only grow.

    Assumption: biases start at -1 (input), 1 (output) and 3 (forget gate).
    """

    units: int
    gate: Gate = "input"
    monotonic: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> Memory:
        """Read x `[T, B, D]` under mask `[T, B]`, where padded steps may hold anything."""
        keep = mask[..., None]
        x = jnp.where(keep, x, 0)
        return self._parallel(x, keep) if self.gate == "input" else self._recurrent(x, keep)

    def _parallel(self, x: jax.Array, keep: jax.Array) -> Memory:
        content, gate = jnp.split(nn.Dense(2 * self.units, name="forward")(x), 2, axis=-1)
        evidence = jnp.where(keep, nn.sigmoid(gate) * self._squash(content), 0)
        one = jnp.ones_like(evidence)
        return Memory(added_up(evidence), evidence, one, one)

    def _recurrent(self, x: jax.Array, keep: jax.Array) -> Memory:
        parts, full = PARTS[self.gate], self.gate == "full"
        columns = len(parts) * self.units
        start = jnp.repeat(jnp.array([BIAS[part] for part in parts], jnp.float32), self.units)
        bias = self.param("gate_bias", lambda key: start)
        backward = self.param("backward", orthogonal(0.1), (self.units, columns + full * self.units))
        # what looks at x is one product for all steps
        forward = nn.Dense(self.units, name="forward")(x)
        if full:
            forward = jnp.concatenate([forward, nn.Dense(columns, use_bias=False, name="forward_gates")(x)], axis=-1)

        def step(carry: tuple[jax.Array, jax.Array], inputs: tuple[jax.Array, jax.Array]) -> Any:
            (cell, output), (forward, keep) = carry, inputs
            recurrent = output * cell @ backward
            content, gates = jnp.split(forward + recurrent, [self.units], axis=-1) if full else (forward, recurrent)
            values = jnp.split(nn.sigmoid(gates + bias), len(parts), axis=-1)
            gate = dict.fromkeys("iof", jnp.ones_like(cell)) | dict(zip(parts, values, strict=True))
            evidence = jnp.where(keep, gate["i"] * self._squash(content), 0)
            forget = jnp.where(keep, gate["f"], 1)
            cell = forget * cell + evidence
            output = jnp.where(keep, gate["o"], output)
            return (cell, output), Memory(output * cell, evidence, forget, output)

        nothing = jnp.zeros_like(forward[0, :, : self.units])
        return jax.lax.scan(step, (nothing, nothing), (forward, keep))[1]

    def _squash(self, content: jax.Array) -> jax.Array:
        return nn.sigmoid(content) if self.monotonic else nn.tanh(content)


def added_up(x: jax.Array) -> jax.Array:
    """Sums along time of x `[T, ...]`, each with its own step."""
    return forward_recurrence(jnp.ones_like(x), x, jnp.zeros_like(x[0]))


class Prediction(NamedTuple):
    """What a `ReturnPredictor` says of each episode, after each of its steps; repeated on padded steps.

    Attributes:
      total: `[T, B]` g_t, the return.
      before: `[]` g_{-1}, the return before anything is known.
      auxiliary: `[T, B, 3]`, see `auxiliary_loss` of redistribution/rudder.py.
      relevance: `[T, B]` share of each step in the last prediction by `lrp_lstm`; 0 on padded steps.  None with a
        nonlinear read-out, for which it is not defined.
    """

    total: jax.Array
    before: jax.Array
    auxiliary: jax.Array
    relevance: jax.Array | None


class ReturnPredictor(nn.Module):
    """Predicts the return of an episode after each of its steps: a `ReducedLSTM` and a read-out.

    g_t = u . h_t + v,  as in the paper, plus  w . tanh(W h_t + b)  if asked for.  The linear read-out of an input-gated
    memory pays every step what it adds on average, whatever else happens; the nonlinear part can tell that two
    decisions count only together, but pays for that in noise.

    Attributes:
      units, gate: size and kind of the memory, see `ReducedLSTM`.
      readout: hidden units of the read-out's nonlinear part; 0 leaves it out.
      monotonic: contents and the weights u are positive, so that no step lowers the prediction.
      chunk: 0, or the even number of steps of a chunk.  Longer episodes are then read in chunks that overlap by half,
        each from an empty memory; of steps read twice the second reading counts, which knows what came before.  The
        prediction is the sum of what the steps changed in their chunks.
    Raises:
      ValueError: monotonic with gates that could lower the prediction, or with a nonlinear read-out; an odd chunk.
    """

    units: int
    gate: Gate = "input"
    readout: int = 0
    monotonic: bool = False
    chunk: int = 0

    def __post_init__(self) -> None:
        if self.monotonic and (self.readout or self.gate not in MONOTONIC):
            raise ValueError(
                f"monotonic=True with gate={self.gate!r} and readout={self.readout} is not monotonic: an output or "
                f"forget gate or a nonlinear read-out can lower the prediction. Choose gate {' or '.join(MONOTONIC)} "
                "and readout=0."
            )
        if self.chunk % 2 or self.chunk < 0:
            raise ValueError(f"chunk={self.chunk} is not allowed; give an even number, or 0 for whole episodes.")
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> Prediction:
        """Read x `[T, B, D]` under mask `[T, B]`."""
        steps = x.shape[0]
        chunked = 0 < self.chunk < steps
        if chunked:
            x, mask = in_chunks(x, self.chunk), in_chunks(mask, self.chunk)
        memory = ReducedLSTM(self.units, self.gate, self.monotonic)(x, mask)
        weight = self.param("weight", nn.initializers.lecun_normal(), (self.units, 1))[:, 0]
        weight = nn.softplus(weight) if self.monotonic else weight
        before = self.param("bias", nn.initializers.zeros, ())
        auxiliary_weight = self.param("auxiliary_weight", nn.initializers.lecun_normal(), (self.units, 3))
        auxiliary_bias = self.param("auxiliary_bias", nn.initializers.zeros, (3,))
        read = self._read_out(memory, jnp.column_stack([weight, auxiliary_weight]))
        total, auxiliary = read[..., 0] + before, read[..., 1:] + auxiliary_bias
        if self.readout:
            hidden, out = nn.Dense(self.readout), nn.Dense(1, use_bias=False)
            total += out(nn.tanh(hidden(memory.hidden)))[..., 0]
            before += out(nn.tanh(hidden(jnp.zeros_like(memory.hidden[0, 0]))))[0]
        shares = (shares_of_last(memory.forget, memory.evidence) * memory.output[-1]) @ weight
        if not chunked:
            return Prediction(total, before, auxiliary, None if self.readout else shares)
        change = joined(jnp.diff(total, axis=0, prepend=before), steps)
        relevance = None if self.readout else joined(shares, steps)
        return Prediction(before + jnp.cumsum(change, axis=0), before, joined(auxiliary, steps), relevance)

    def _read_out(self, memory: Memory, weights: jax.Array) -> jax.Array:
        """h_t W, `[T, B, H] -> [T, B, 4]`.  Where cells only add up, sum what is read instead of reading the sums."""
        if self.gate != "input":
            return memory.hidden @ weights
        return added_up(memory.evidence @ weights)


def in_chunks(x: jax.Array, chunk: int) -> jax.Array:
    """Cut `[T, B, ...]` into N chunks that overlap by half, `[chunk, N B, ...]`; what lies behind the end is 0."""
    half = chunk // 2
    number = -(-(x.shape[0] - half) // half)
    padded = jnp.pad(x, [(0, (number + 1) * half - x.shape[0])] + [(0, 0)] * (x.ndim - 1))
    place = jnp.arange(chunk)[:, None] + half * jnp.arange(number)
    return padded[place].reshape(chunk, number * x.shape[1], *x.shape[2:])


def joined(x: jax.Array, steps: int) -> jax.Array:
    """Put chunks `[chunk, N B, ...]` together again, `[T, B, ...]`: all of the first, the second half of the others."""
    chunk, half = x.shape[0], x.shape[0] // 2
    number = -(-(steps - half) // half)
    x = x.reshape(chunk, number, -1, *x.shape[2:])
    halves = jnp.moveaxis(x[half:], 1, 0)
    return jnp.concatenate([x[:half, 0], halves.reshape(-1, *x.shape[2:])])[:steps]
