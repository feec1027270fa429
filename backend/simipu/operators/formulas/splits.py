"""The ways to split a product over tiles and time that the planner tries."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from simipu.target import Target

Array = npt.NDArray[Any]

_MOST_ROUNDS = 8
"""Times the fewest groups that a tile must take: more were never better."""
_SERIAL_N, _SERIAL_K = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), (1, 2, 4, 8, 16)
"""Of the splits that poplin tries, enough that another does not change the cheapest plan's cycles by much;
all of them would take minutes for a large model."""


def find_rounds(groups: int, tiles: int) -> list[int]:
    """Groups that a tile takes one after the other: as few as can be, or more where that leaves more tiles
    for each of them."""
    fewest = math.ceil(groups / tiles)
    found, most = [], 0.0
    for rounds in range(fewest, min(groups, _MOST_ROUNDS * fewest) + 1):
        share = (tiles // math.ceil(groups / rounds)) / rounds
        if share >= most:
            most = share
            found.append(rounds)
    return found


def find_splits(
    groups: int, rounds: int, rows: int, k_blocks: int, n: int, units: int, target: Target, serial: bool
) -> Array:
    """What is tried with so many groups one after the other and so many AMP units: the rounds, shares of the
    groups, units, blocks of n, the splits of k and n over tiles, those of n and k in time, and the rows of a
    tile."""
    shares, n_blocks = math.ceil(groups / rounds), math.ceil(n / units)
    tiles = max(1, target.num_tiles // shares)
    splits = _split_channels(k_blocks, n_blocks, tiles, serial)
    limit = tiles // (splits[0] * splits[1])
    fewest = np.ceil(rows / np.minimum(limit, rows))
    # As few rows as can be; as many as the workers take in the same time; all, so that weights need not be
    # sent to several tiles.
    workers = target.workers_per_tile
    tried = [fewest, np.minimum(np.ceil(fewest / workers) * workers, rows), np.full_like(fewest, rows)]
    same = np.array([[rounds], [shares], [units], [n_blocks]])
    ways = np.vstack([np.broadcast_to(same, (len(same), len(fewest))), splits])
    return np.vstack([np.tile(ways, len(tried)), np.concatenate(tried)])


@lru_cache(maxsize=4096)
def _split_channels(k_blocks: int, n_blocks: int, tiles: int, serial: bool) -> Array:
    """The splits of k and n over tiles, then of n and k in time, that leave every part a block."""
    in_time: list[Any] = [_SERIAL_N, _SERIAL_K] if serial else [[1], [1]]
    grid: list[Any] = [_splits(k_blocks, tiles), _splits(n_blocks, tiles), *in_time]
    k_split, n_split, n_serial, k_serial = found = np.stack(
        [axis.ravel() for axis in np.meshgrid(*map(np.array, grid), indexing="ij")]
    )
    possible = (
        (k_split * n_split <= tiles) & (n_split * n_serial <= n_blocks) & (k_split * k_serial <= k_blocks)
    )
    possible &= (n_serial == 1) | (k_serial == 1)
    tried: Array = found[:, possible]
    return tried


def _splits(blocks: int, limit: int) -> Array:
    """For every number of blocks that a part may have the fewest parts that do with it: other splits take
    more tiles and are no faster. More tiles only add to them."""
    root = np.arange(1, math.isqrt(blocks) + 2)
    parts: Array = np.unique(np.concatenate([root, (blocks - 1) // root + 1]))
    found: Array = parts[parts <= min(limit, blocks)]
    return found
