"""What the grid worlds share: the four moves."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

UP, DOWN, LEFT, RIGHT = range(4)
# Rows and columns that each action adds.
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]], np.int32)


def moved(row: Array, column: Array, action: Array, size: int) -> tuple[Array, Array]:
    """Row and column after a move in a square of `size` cells a side, whose edges are walls."""
    step = jnp.asarray(MOVES)[action]
    return jnp.clip(row + step[0], 0, size - 1), jnp.clip(column + step[1], 0, size - 1)
