"""Spread of a tensor over the tiles: the number of its elements on each tile.

Tiles are numbered as poplin and poputil number them: a plan starts at tile 0, and its splits
follow each other in the order groups, sums, rows, columns (ConvProgramTree, linearizeTileIndices).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np

from popef._tools.arrays import Array

VECTOR_BYTES = 8
"""Bytes of the vectors that a linear mapping does not cut: poputil's grain is the target's vector
width (TileMapping.cpp, calcLinearTileMapping)."""

_MAX_LEVELS = 4
"""Maximum number of different loads of a tile that a text lists."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of a product: `total` elements in `parts` parts of `size`, of which the last
    has what is left. Without a size, tiles along the axis share the elements of the others."""

    parts: int
    size: int = 0
    total: int = 1

    def sizes(self) -> Array:
        """Return the elements of each part."""
        if not self.size:
            return np.ones(self.parts, dtype=np.int64)
        remaining = self.total - self.size * np.arange(self.parts, dtype=np.int64)
        return np.clip(remaining, 0, self.size)


@dataclass(frozen=True, slots=True)
class Grid:
    """Spread that a plan chose."""

    axes: tuple[Axis, ...]
    """Groups, sums, rows and columns of the product; the last axis has neighbouring tiles."""
    repeats: int = 1
    """Elements for each place of the grid: the positions of a kernel."""

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return self.repeats * math.prod(axis.total for axis in self.axes)

    def count(self) -> Array:
        """Return the elements of each tile."""
        # A cell of the grid without the shared axis has `cell` elements. Its tiles along the shared
        # axis have equal parts of them:
        #     row_split 2, n_split 3, k_split 2:     k 0 | cell / 2 of each of 6 cells
        #                                            k 1 | the other halves
        cell = self.repeats * reduce(np.multiply.outer, (axis.sizes() for axis in self.axes))
        for place, axis in enumerate(self.axes):
            if not axis.size and axis.parts > 1:
                shape = [axis.parts if i == place else 1 for i in range(len(self.axes))]
                part = np.arange(axis.parts, dtype=np.int64).reshape(shape)
                cell = cell * (part + 1) // axis.parts - cell * part // axis.parts
        counts: Array = cell.ravel()
        return counts


@dataclass(frozen=True, slots=True)
class Linear:
    """Even spread in whole vectors, as poputil's mapTensorLinearly does it."""

    elements: int
    num_tiles: int
    grain: int

    def count(self) -> Array:
        """Return the elements of each tile."""
        # As few tiles as possible without a fuller fullest one: 11 vectors on 8 tiles take 6 tiles
        # of at most 2 (Util.cpp, splitRegions).
        grains = math.ceil(self.elements / self.grain)
        used_tiles = math.ceil(grains / math.ceil(grains / self.num_tiles)) if grains else 0
        ends = np.arange(used_tiles + 1, dtype=np.int64) * grains // max(1, used_tiles) * self.grain
        counts: Array = np.diff(np.minimum(ends, self.elements))
        return counts


@dataclass(frozen=True, slots=True)
class Packed:
    """Spread of which only the elements of the fullest tile are known: as many on each tile, until
    none is left."""

    elements: int
    fullest: int

    def count(self) -> Array:
        """Return the elements of each tile."""
        starts = np.arange(0, self.elements, max(1, self.fullest), dtype=np.int64)
        counts: Array = np.minimum(self.elements - starts, self.fullest)
        return counts


Spread = Grid | Linear | Packed


@lru_cache(maxsize=4096)
def count_elements(spread: Spread) -> Array:
    """Return the elements of each tile, from tile 0 to the last that has any, to be read only."""
    counts = spread.count()
    last = np.flatnonzero(counts)
    counts = counts[: int(last[-1]) + 1] if len(last) else counts[:0]
    counts.flags.writeable = False
    return counts


def list_levels(spread: Spread) -> list[tuple[int, int]]:
    """Return the numbers of tiles with as many elements, and these elements, the most first."""
    counts = count_elements(spread)
    sizes, tiles = np.unique(counts[counts > 0], return_counts=True)
    return list(zip(tiles[::-1].tolist(), sizes[::-1].tolist(), strict=True))


def describe_spread(spread: Spread) -> str:
    """Return the numbers of tiles with as many elements as text, the fullest tiles first."""
    levels = list_levels(spread)
    shown = ", ".join(f"{tiles:,} x {elements:,}" for tiles, elements in levels[:_MAX_LEVELS])
    left_out = sum(tiles for tiles, _ in levels[_MAX_LEVELS:])
    return f"{shown}, {left_out:,} with fewer" if left_out else shown
