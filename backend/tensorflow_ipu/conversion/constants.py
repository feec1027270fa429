"""Inputs of a graph that its operators need when they are compiled: axes, sizes, k."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import tensorflow as tf


def find_constant_placeholders(graph: tf.Graph) -> set[str]:
    """Return the names of the placeholders whose values operators need as constants.

    Args:
        graph: The graph of a segment.

    Returns:
        Names of tensors.
    """
    pending = [
        operation.inputs[place]
        for operation in graph.get_operations()
        for place in iter_constant_inputs(operation)
    ]
    found, seen = set(), set()
    while pending:
        tensor = pending.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        if tensor.op.type == "Placeholder":
            found.add(tensor.name)
        elif tensor.op.type not in ("Shape", "Size", "Rank"):
            pending.extend(tensor.op.inputs)
    return found


def iter_constant_inputs(operation: tf.Operation) -> Iterator[int]:
    """Yield the places of the inputs that have to be known when an operation is compiled."""
    places: Sequence[int] = _CONSTANT_INPUTS.get(operation.type, ())
    for place in places:
        if -len(operation.inputs) <= place < len(operation.inputs):
            yield place


_CONSTANT_INPUTS: Final[dict[str, tuple[int, ...]]] = {
    **dict.fromkeys(("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm"), (1,)),
    **dict.fromkeys(("ArgMax", "ArgMin", "Reshape", "Pad", "PadV2", "MirrorPad", "Tile"), (1,)),
    **dict.fromkeys(("Transpose", "ExpandDims", "TopKV2", "OneHot", "ReverseV2"), (1,)),
    **dict.fromkeys(("Cumsum", "Cumprod", "ResizeBilinear", "ResizeNearestNeighbor"), (1,)),
    **dict.fromkeys(("BroadcastTo", "ResizeBicubic", "ResizeArea", "ConjugateTranspose"), (1,)),
    **dict.fromkeys(("Fill", "Concat", "Split", "Conv2DBackpropInput"), (0,)),
    **dict.fromkeys(("RandomUniform", "RandomStandardNormal", "TruncatedNormal"), (0,)),
    **dict.fromkeys(("RandomUniformInt", "ParameterizedTruncatedNormal", "RandomGamma"), (0,)),
    **dict.fromkeys(("StatelessRandomUniform", "StatelessRandomNormal"), (0,)),
    **dict.fromkeys(("StatelessTruncatedNormal", "StatelessRandomUniformInt"), (0,)),
    **dict.fromkeys(("Conv3DBackpropInputV2", "Empty"), (0,)),
    **dict.fromkeys(("SpaceToBatchND", "BatchToSpaceND", "SplitV", "Slice"), (1, 2)),
    **dict.fromkeys(("GatherV2", "UnsortedSegmentSum", "UnsortedSegmentMax", "ScatterNd"), (2,)),
    **dict.fromkeys(("UnsortedSegmentMin", "UnsortedSegmentProd", "LinSpace"), (2,)),
    "ConcatV2": (-1,),
    "StridedSlice": (1, 2, 3),
    "Range": (0, 1, 2),
    "TensorListReserve": (0, 1),
    "EmptyTensorList": (0, 1),
    "Bincount": (1,),
    "Multinomial": (1,),
    "Roll": (2,),
    "Conv2DBackpropFilter": (1,),
    "MatrixBandPart": (1, 2),
    "MatrixDiagV3": (1, 2, 3),
    "MatrixDiagPartV3": (1,),
}
"""Places of inputs that XLA wants to be constants too, by TensorFlow's operators, which are no
entries of the table of ONNX operators."""
