"""Pass for overlapped I/O: the number of tiles that transfers need while the other tiles
compute."""

from __future__ import annotations

import math

import onnx
from onnx import helper
from onnxgraph import find_inputs, graph_values, infer_shapes
from simipu.target import TARGETS

from poprt.rewrite.base import Pass, Stage, register

IO_TILES = "poprt.num_io_tiles"
"""Key of a model's metadata: number of I/O tiles to compile it with."""
MIN_IO_TILES = 32
"""Minimum number of I/O tiles; PopART requires an even number of at least that many (its
irlowering.cpp)."""
_BYTES_PER_TILE = TARGETS["ipu2"].bytes_per_tile
_MAX_IO_TILES = TARGETS["ipu2"].tiles_per_ipu // 2
"""Maximum number of I/O tiles: half of the tiles, so that at least as many are left to compute."""


@register("overlap_io", stage=Stage.CHECKS)
class OverlapIo(Pass):
    """Write into the model's metadata how many I/O tiles it is to be compiled with, so that its
    transfers overlap with computing, where the compiler option num_io_tiles does not say it.

    As PopRT's guide has it: the bytes of all inputs and outputs over the memory of a tile, rounded
    up to a power of two; here at least 32. What the real pass of that name does is not public: this
    is ours.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Choose the number of I/O tiles. The model does not change if its inputs or outputs are
        not static, or too large for half of the tiles."""
        values = graph_values(infer_shapes(model).graph)
        names = [value.name for value in (*find_inputs(model.graph), *model.graph.output)]
        if not all(name in values for name in names):
            self.logger.warning(
                "overlap_io: the inputs and outputs are not static: no I/O tiles are chosen"
            )
            return model
        needed = max(1, math.ceil(sum(values[name].bytes for name in names) / _BYTES_PER_TILE))
        tiles = max(MIN_IO_TILES, 1 << (needed - 1).bit_length())
        if tiles > _MAX_IO_TILES:
            self.logger.warning(
                "overlap_io: inputs and outputs would need %d I/O tiles: none are chosen", tiles
            )
            return model
        kept = {entry.key: entry.value for entry in model.metadata_props}
        helper.set_model_props(model, {**kept, IO_TILES: str(tiles)})
        return model
