"""Ways to split a product over tiles and time that the planner tries."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from popef._tools.arrays import Array
from simipu.chip.target import Target

_MAX_ROUNDS = 8
"""Maximum number of groups of a tile, relative to the minimum; more were never better."""
_SERIAL_N, _SERIAL_K = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), (1, 2, 4, 8, 16)
"""Serial splits that are tried, a subset of poplin's. Others would hardly change the cheapest
plan's cycles; all of them would take minutes for a large model."""


def find_rounds(groups: int, tiles: int) -> list[int]:
    """Return the numbers of groups that a tile may take one after the other: the minimum, or more
    if that leaves more tiles for each of them."""
    # 2,048 groups on a C600 need two rounds, which leaves one tile for each group of a round: a
    # group has 1 / 2 of a tile. In three rounds 683 groups have two tiles each, 2 / 3 of a tile,
    # which is tried as well. In four rounds it would be 2 / 4 again.
    fewest = math.ceil(groups / tiles)
    numbers, most = [], 0.0
    for rounds in range(fewest, min(groups, _MAX_ROUNDS * fewest) + 1):
        share = (tiles // math.ceil(groups / rounds)) / rounds
        if share >= most:
            most = share
            numbers.append(rounds)
    return numbers


def find_splits(
    sizes: tuple[int, int, int, int], rounds: int, units: int, target: Target, serial: bool
) -> Array:
    """Return the ways to try with `rounds` groups one after the other and `units` AMP units.
    `sizes` are the number of groups, rows, blocks of k and columns n of the product. The
    rows of the result are the rounds, shares of the groups, units, blocks of n, the splits of k and
    n over tiles, those of n and k in time, and the rows of a tile."""
    # A share of the groups has tiles of its own. Their number is divided by the splits of k and n,
    # and what is left is the limit for the split of the rows.
    groups, rows, k_blocks, n = sizes
    shares, n_blocks = math.ceil(groups / rounds), math.ceil(n / units)
    tiles = max(1, target.num_tiles // shares)
    splits = _split_channels(k_blocks, n_blocks, tiles, serial)
    limit = tiles // (splits[0] * splits[1])
    fewest = np.ceil(rows / np.minimum(limit, rows))
    # The fewest rows; as many as the workers process in the same time; all, so that weights are not
    # sent to several tiles.
    workers = target.workers_per_tile
    as_fast = np.minimum(np.ceil(fewest / workers) * workers, rows)
    tried = [fewest, as_fast, np.full_like(fewest, rows)]
    same = np.array([[rounds], [shares], [units], [n_blocks]])
    ways = np.vstack([np.broadcast_to(same, (len(same), len(fewest))), splits])
    return np.vstack([np.tile(ways, len(tried)), np.concatenate(tried)])


@lru_cache(maxsize=4096)
def _split_channels(k_blocks: int, n_blocks: int, tiles: int, serial: bool) -> Array:
    """Return the splits of k and n over tiles, then of n and k in time, that leave at least one
    block to every part."""
    in_time: list[Any] = [_SERIAL_N, _SERIAL_K] if serial else [[1], [1]]
    grid: list[Any] = [_splits(k_blocks, tiles), _splits(n_blocks, tiles), *in_time]
    k_split, n_split, n_serial, k_serial = columns = np.stack(
        [axis.ravel() for axis in np.meshgrid(*map(np.array, grid), indexing="ij")]
    )
    possible = (
        (k_split * n_split <= tiles)
        & (n_split * n_serial <= n_blocks)
        & (k_split * k_serial <= k_blocks)
    )
    # Serial parts are of n or of k, never of both.
    possible &= (n_serial == 1) | (k_serial == 1)
    tried: Array = columns[:, possible]
    return tried


def _splits(blocks: int, limit: int) -> Array:
    """Return, for every number of blocks that a part may have, the fewest parts that suffice. Other
    splits take more tiles and are no faster."""
    # 10 blocks in 1, 2, 3, 4, 5 or 10 parts: a part has at most 10, 5, 4, 3, 2 or 1 of them. With
    # 6 to 9 parts one still has 2. There are at most about 2 * sqrt(blocks) such numbers: the small
    # numbers of parts, and those that small parts lead to.
    root = np.arange(1, math.isqrt(blocks) + 2)
    parts = np.sort(np.concatenate([root, (blocks - 1) // root + 1]))
    parts = parts[np.diff(parts, prepend=0) > 0]  # np.unique imports numpy.ma: 15 ms
    parts_up_to: Array = parts[parts <= min(limit, blocks)]
    return parts_up_to
