"""Entries of operators that move, select or make up elements."""

from __future__ import annotations

from collections.abc import Mapping

from simipu.operators import guards
from simipu.operators.entries.makers import (
    EXACT,
    OF_OTHERS,
    ONE_SHAPE,
    drawn,
    elementwise,
    family,
    reading,
    writing,
)
from simipu.operators.entry import Indexing, Moves, Operator, Task
from simipu.operators.formulas import composite, layout
from simipu.operators.formulas import moving as moves
from simipu.operators.formulas.elementwise import Elementwise
from simipu.operators.formulas.vertices import InnerLoop
from simipu.operators.ranges import narrow_input
from simipu.operators.rules import computing as rows
from simipu.operators.rules import moving as places

IPU_COPY = "IpuCopy"
"""Our own operator, with its name in PopART, which copies a tensor to another IPU."""
REGIONS = "its regions are numbered over the whole batch"


MOVING: Mapping[str, Operator] = {
    **family("Constant", cost=None, rounding=EXACT, sdk="yes"),
    **family(
        "ConstantOfShape",
        whole_batch=ONE_SHAPE,
        cost=None,
        rounding=EXACT,
        shaped_by=(0,),
        sizes=0,
        sdk="yes",
    ),
    **elementwise("Identity", None, EXACT, sdk="yes", moves=Moves.COPIED),
    **family("Dropout", rows.dropout, None, EXACT, sdk="yes", draws_if=2, moves=Moves.COPIED),
    **family(
        "Flatten",
        places.flatten,
        None,
        EXACT,
        view=layout.reshaped_view,
        sdk="yes",
        moves=Moves.RESHAPED,
    ),
    **family(
        "Unsqueeze",
        places.unsqueeze,
        None,
        EXACT,
        view=layout.reshaped_view,
        shaped_by=(1,),
        sdk="yes",
        moves=Moves.SQUEEZED,
    ),
    **family(
        "Squeeze",
        places.squeeze,
        None,
        EXACT,
        view=layout.reshaped_view,
        shaped_by=(1,),
        sdk="yes",
        moves=Moves.SQUEEZED,
    ),
    **family(
        "Reshape",
        places.reshape,
        None,
        EXACT,
        view=layout.reshaped_view,
        shaped_by=(1,),
        sizes=1,
        sdk="yes",
        moves=Moves.RESHAPED,
    ),
    **family(
        "Shape",
        whole_batch="what it says is of the compiled batch",
        cost=None,
        reads_shape=True,
        sdk="yes",
    ),
    **family(
        "Size", whole_batch="what it says is of the compiled batch", cost=None, reads_shape=True
    ),
    **family(
        "Transpose",
        places.transpose,
        None,
        EXACT,
        view=layout.transposed_view,
        guard=guards.transpose,
        sdk="yes",
        moves=Moves.PERMUTED,
    ),
    **family(
        "Concat", places.concat, None, EXACT, view=layout.joined_view, sdk="yes", moves=Moves.JOINED
    ),
    **family(
        "Slice",
        places.slice_,
        None,
        EXACT,
        view=layout.cut_view,
        shaped_by=(1, 2, 3, 4),
        sdk="yes",
        moves=Moves.SELECTED,
    ),
    **family(
        "Split",
        rows.along(0),
        None,
        EXACT,
        view=layout.cut_view,
        shaped_by=(1,),
        sdk="yes",
        moves=Moves.SELECTED,
    ),
    **family(
        "Expand",
        places.expand,
        None,
        EXACT,
        view=layout.spread_out_view,
        shaped_by=(1,),
        sizes=1,
        sdk="yes",
        moves=Moves.REPEATED,
    ),
    **family(
        "Tile",
        places.tile,
        None,
        EXACT,
        view=layout.spread_out_view,
        shaped_by=(1,),
        sdk="yes",
        moves=Moves.REPEATED,
    ),
    **family(
        "Pad",
        places.pad,
        None,
        EXACT,
        view=layout.cut_view,
        apart=(3,),
        shaped_by=(1,),
        sdk="yes",
        int64_inputs=(3,),
        moves=Moves.SELECTED,
    ),
    **family("Trilu", places.trilu, moves.move, EXACT, unguarded_indices=1, moves=Moves.SELECTED),
    **family(
        "DepthToSpace",
        places.depth_to_space,
        moves.move,
        EXACT,
        sdk=OF_OTHERS,
        moves=Moves.PERMUTED,
        task=Task.ENLARGING,
    ),
    **family(
        "SpaceToDepth",
        places.space_to_depth,
        moves.move,
        EXACT,
        sdk=OF_OTHERS,
        moves=Moves.PERMUTED,
    ),
    **family(
        "Resize",
        places.resize,
        composite.resized,
        shaped_by=(1, 2, 3),
        floats_only=True,
        sdk="yes",
        task=Task.ENLARGING,
    ),
    **family(
        "Upsample",
        places.upsample,
        composite.resized,
        shaped_by=(1,),
        last_opset=9,
        sdk="yes",
        ignored_by_reference=("scales",),
        task=Task.ENLARGING,
    ),
    **family(
        "OneHot",
        places.one_hot,
        moves.move,
        EXACT,
        apart=(2,),
        shaped_by=(1,),
        sdk="yes",
        int64_inputs=(0, 1, 2),
    ),
    **family("ReverseSequence", places.reverse_sequence, moves.move, EXACT, moves=Moves.PERMUTED),
    **family(
        "EyeLike", whole_batch="its diagonal runs across the rows", cost=moves.move, rounding=EXACT
    ),
    **family("Range", whole_batch=ONE_SHAPE, cost=moves.move, shaped_by=(0, 1, 2)),
    **reading(
        "Gather",
        places.gather,
        Indexing.ALONG_AXIS,
        apart=(0, 1),
        reads_mapped_weights=True,
        sdk="yes",
        moves=Moves.SELECTED,
    ),
    **reading(
        "GatherElements",
        places.gather_elements,
        Indexing.ALONG_AXIS,
        moves.gather_elements,
        sdk="PopRT's indices_workaround prepares its indices",
        aligned=(1,),
        moves=Moves.SELECTED,
    ),
    **reading("GatherND", places.gather_nd, Indexing.TUPLES, apart=(0, 1), moves=Moves.SELECTED),
    **writing(
        "ScatterElements",
        places.scatter_elements,
        Indexing.ALONG_AXIS,
        sdk="yes",
        aligned=(0, 1, 2),
    ),
    **writing("ScatterND", places.scatter_nd, Indexing.TUPLES, apart=(1,)),
    **writing(
        "Scatter",
        places.scatter_elements,
        Indexing.ALONG_AXIS,
        last_opset=10,
        sdk="yes",
        aligned=(0, 1, 2),
    ),
    **family(
        "TensorScatter", rows.leading_axes(0, 1, 2), composite.written, EXACT, unguarded_indices=2
    ),
    **family("Col2Im", rows.leading_axis, composite.folded, shaped_by=(1, 2)),
    **family("GridSample", rows.leading_axes(0, 1), composite.sampled),
    **family(
        "RotaryEmbedding", rows.rotary_embedding, composite.rotary, apart=(1, 2), unchecked_input=3
    ),
    **family(
        "MaxUnpool",
        whole_batch="its indices number elements over the whole batch",
        cost=moves.gather,
        rounding=EXACT,
        shaped_by=(2,),
        unguarded_indices=1,
        moves=Moves.SELECTED,
        task=Task.ENLARGING,
    ),
    **family(
        "RoiAlign",
        whole_batch=REGIONS,
        cost=composite.regions,
        last_opset=21,
        unguarded_indices=2,
        guard=guards.regions,
        sdk="yes",
        task=Task.DETECTION,
        wrong_in_reference=True,
    ),
    **family("AffineGrid", places.affine_grid, composite.affine_grid, shaped_by=(1,)),
    **family(
        "OptionalGetElement", rows.elementwise, None, EXACT, tensors_only=False, moves=Moves.COPIED
    ),
    **family(
        "OptionalHasElement",
        whole_batch="it says one thing of the whole batch",
        cost=None,
        tensors_only=False,
    ),
    **family(
        IPU_COPY,
        rows.elementwise,
        moves.copy_between_ipus,
        EXACT,
        body=guards.pass_on,
        moves=Moves.COPIED,
    ),
}

MAKING: Mapping[str, Operator] = {
    **family(
        "BlackmanWindow HammingWindow HannWindow", whole_batch=ONE_SHAPE, cost=None, shaped_by=(0,)
    ),
    **family(
        "MelWeightMatrix",
        whole_batch=ONE_SHAPE,
        cost=None,
        shaped_by=(0, 1),
        guard=narrow_input(1, "dft_length", 0),
        task=Task.AUDIO,
    ),
    **drawn(
        "RandomUniform RandomUniformLike", Elementwise(InnerLoop(3, 4), InnerLoop(3, 2)), sdk="yes"
    ),
    **drawn(
        "RandomNormal RandomNormalLike", Elementwise(InnerLoop(2, 4), InnerLoop(2, 2)), sdk="yes"
    ),
    **family(
        "DFT",
        rows.fourier,
        composite.fourier,
        shaped_by=(1, 2),
        guard=narrow_input(1, "dft_length", 1),
        unchecked_input=2,
        task=Task.AUDIO,
    ),
    **family(
        "STFT",
        rows.leading_axis,
        composite.short_fourier,
        apart=(2,),
        shaped_by=(1, 3),
        guard=narrow_input(3, "frame_length", 1),
        task=Task.AUDIO,
    ),
}
