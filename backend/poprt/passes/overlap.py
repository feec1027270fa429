"""Overlapping I/O: how many tiles a model needs for transfers while the others compute."""

from __future__ import annotations

import math

import onnx
from onnx import helper
from onnxgraph import find_inputs, graph_values, infer_shapes
from simipu.target import TARGETS

from poprt.passes.base_pass import Pass, Stage, register

IO_TILES = "poprt.num_io_tiles"
"""Of a model's metadata: the I/O tiles that it is to be compiled with."""
LEAST_IO_TILES = 32
"""PopART wants an even number of at least that many (its irlowering.cpp)."""
_BYTES_PER_TILE = TARGETS["ipu2"].bytes_per_tile
_MOST_IO_TILES = TARGETS["ipu2"].tiles_per_ipu // 2
"""Of which there is none larger that is a power of two and leaves as many to compute."""


@register("overlap_io", stage=Stage.CHECKS)
class OverlapIo(Pass):
    """Write into the model's metadata how many I/O tiles it is to be compiled with, so that its transfers
    overlap with computing, where the compiler option num_io_tiles does not say it.

    As PopRT's guide has it: the bytes of all inputs and outputs over the memory of a tile, rounded up to a
    power of two; here at least 32. What the real pass of that name does is not public: this is ours.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """A model whose inputs or outputs are not static, or too large for half of the tiles, stays as it
        is."""
        values = graph_values(infer_shapes(model).graph)
        names = [value.name for value in (*find_inputs(model.graph), *model.graph.output)]
        if not all(name in values for name in names):
            self.logger.warning("overlap_io: the inputs and outputs are not static: no I/O tiles are chosen")
            return model
        needed = max(1, math.ceil(sum(values[name].bytes for name in names) / _BYTES_PER_TILE))
        tiles = max(LEAST_IO_TILES, 1 << (needed - 1).bit_length())
        if tiles > _MOST_IO_TILES:
            self.logger.warning(
                "overlap_io: inputs and outputs would need %d I/O tiles: none are chosen", tiles
            )
            return model
        kept = {entry.key: entry.value for entry in model.metadata_props}
        helper.set_model_props(model, {**kept, IO_TILES: str(tiles)})
        return model
