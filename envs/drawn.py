"""Environments to look at: a board of cells, as text in a terminal or as an image in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt8

from envs.base import EpisodicEnvironment

PyTree = Any

TILE_SIZE = 16
GRID_SHADE = 0.85


class DrawnEnvironment(EpisodicEnvironment):
    """One whose state is a board of cells of a few kinds.  Subclasses write `board`, `glyphs` and `tiles`.

    Attributes:
      glyphs: one character for every kind of cell.
      tiles: one square image for every kind, `[K, S, S, 3]` uint8.
    """

    glyphs: ClassVar[str]
    tiles: ClassVar[np.ndarray]

    def board(self, state: PyTree, params: PyTree) -> Int[Array, "R C"]:
        """Kind of every cell of the whole board, seen from above, with the agent on it."""
        raise NotImplementedError

    def caption(self, state: PyTree, params: PyTree) -> str:
        """What there is to say about a (concrete) state besides its board."""
        raise NotImplementedError

    def render(self, state: PyTree, params: PyTree) -> UInt8[Array, "H W 3"]:
        """The whole board as an RGB image, S pixels a cell.  Pure: it compiles, and a `vmap` makes a film."""
        cells = jnp.asarray(self.tiles)[self.board(state, params)]
        rows, columns, size = cells.shape[:3]
        return cells.swapaxes(1, 2).reshape(rows * size, columns * size, 3)

    def render_text(self, state: PyTree, params: PyTree) -> str:
        """The caption, then the whole board, one character a cell.  For concrete states, outside of compiled code."""
        board = np.asarray(self.board(state, params))
        rows = ["".join(self.glyphs[kind] for kind in row) for row in board]
        return "\n".join([self.caption(state, params), *rows])


def plain_tiles(colours: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """A square `[K, S, S, 3]` of each colour, its upper and left edges darker so that cells can be counted."""
    tiles = np.tile(np.array(colours, np.uint8)[:, None, None], (1, TILE_SIZE, TILE_SIZE, 1))
    shade = np.ones((TILE_SIZE, TILE_SIZE, 1))
    shade[0], shade[:, 0] = GRID_SHADE, GRID_SHADE
    return (tiles * shade).astype(np.uint8)
