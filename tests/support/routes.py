"""Shortest ways through a room, as tables that a compiled policy looks up."""

import numpy as np

from envs.grid import MOVES

FAR = 10_000


def walking(free):
    """Action of a shortest way `[R, C, R, C]` from every free cell (last axes) to every target (first axes)."""
    rows, columns = free.shape
    table = np.zeros((rows, columns, rows, columns), np.int32)
    for target in np.argwhere(free):
        distance = np.full(free.shape, FAR)
        distance[tuple(target)] = 0
        for _ in range(free.sum()):
            ahead = [np.roll(distance, -move, axis=(0, 1)) for move in MOVES]
            ahead = np.where(free, np.min(ahead, axis=0) + 1, FAR)
            distance = np.minimum(distance, ahead)
        ahead = np.stack([np.roll(distance, -move, axis=(0, 1)) for move in MOVES])
        table[tuple(target)] = ahead.argmin(axis=0)
    return table


def facing(free, directions, solid):
    """What an agent that turns and walks does to come to face a target: 0 left, 1 right, 2 forward, 3 it faces it.

    Args:
      free: `[R, C]`, cells to walk on; directions: `[4, 2]`, rows and columns of a step; solid: nobody walks onto the
        target itself.
    Returns:
      table `[R, C, R, C, 4]` by target, cell and direction.
    """
    rows, columns = free.shape
    table = np.zeros((rows, columns, rows, columns, 4), np.int32)
    for target in np.argwhere(free):
        walkable = free.copy()
        walkable[tuple(target)] &= not solid
        distance = np.full((rows, columns, 4), FAR)
        for heading, step in enumerate(directions):
            before = tuple(target - step)
            distance[(*before, heading)] = 0 if walkable[before] else FAR
        for _ in range(4 * free.sum()):
            choices = _choices(distance, walkable, directions)
            distance = np.minimum(distance, choices.min(axis=0) + 1)
        table[tuple(target)] = np.where(distance == 0, 3, _choices(distance, walkable, directions).argmin(axis=0))
    return table


def _choices(distance, walkable, directions):
    ahead = [np.roll(distance[..., d], -step, axis=(0, 1)) for d, step in enumerate(directions)]
    blocked = [np.roll(~walkable, -step, axis=(0, 1)) for step in directions]
    forward = np.where(np.stack(blocked, axis=-1), FAR, np.stack(ahead, axis=-1))
    return np.stack([np.roll(distance, 1, axis=-1), np.roll(distance, -1, axis=-1), forward])
