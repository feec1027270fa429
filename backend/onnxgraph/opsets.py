"""Opsets in which the form or the meaning of an operator changed, for code that reads or writes
both forms."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto

BATCH_NORMALIZATION_IS_PER_CHANNEL = 9
"""Opset from which BatchNormalization in inference only normalises."""
CLIP_TAKES_BOUNDS = 11
"""Opset from which the bounds of a Clip are inputs."""
DROPOUT_NEVER_TRAINS = 7
"""Opset from which, up to `DROPOUT_TAKES_MODE`, Dropout never trains."""
DROPOUT_TAKES_MODE = 12
"""Opset from which the ratio of a Dropout, and whether it trains, are inputs."""
EXPAND_EXISTS = 8
"""Opset that introduced Expand."""
GEMM_BROADCASTS = 7
"""Opset from which Gemm broadcasts its bias without an attribute."""
GROUP_NORMALIZATION_SCALES_CHANNELS = 21
"""Opset from which GroupNormalization has a scale and a bias for each channel, not for each
group."""
OPTIONAL_EXISTS = 15
"""Opset that introduced optional values."""
PAD_TAKES_SIZES = 11
"""Opset from which the sizes of a Pad, and its value, are inputs."""
AXES_ARE_INPUTS = 13
"""Opset from which ReduceSum, Squeeze and Unsqueeze take their axes as an input."""
REDUCTIONS_TAKE_AXES = 18
"""Opset from which the other reductions take their axes as an input, too."""
RESIZE_SCALES_FROM_MIDDLES = 11
"""Opset from which Resize scales from the middles of elements by default."""
SCAN_HAS_NO_BATCH = 9
"""Opset from which a Scan's inputs have no batch axis."""
SLICE_TAKES_BOUNDS = 10
"""Opset from which the bounds, axes and steps of a Slice are inputs."""
SOFTMAX_HAS_ONE_AXIS = 13
"""Opset from which Softmax, LogSoftmax and Hardmax apply to their axis only, by default the last
one."""
SPLIT_TAKES_SIZES = 13
"""Opset from which the sizes of a Split are an input."""
TOP_K_TAKES_COUNT = 10
"""Opset from which the number of results of a TopK is an input."""

Move = tuple[int, int, int]
"""Opset from which an attribute is an input, the place of that input, and its element type; 0
stands for the type of the first input."""
_WHOLE = TensorProto.INT64
_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSumSquare"
).split()
"""Reductions whose axes became an input later than those of ReduceSum. Opset facts stand in this
module; the operators' entries, in a room above, do not depend on the opset."""
MOVED: Mapping[str, Mapping[str, Move]] = {
    "Clip": {"min": (CLIP_TAKES_BOUNDS, 1, 0), "max": (CLIP_TAKES_BOUNDS, 2, 0)},
    "Pad": {"pads": (PAD_TAKES_SIZES, 1, _WHOLE), "value": (PAD_TAKES_SIZES, 2, 0)},
    "ReduceSum": {"axes": (AXES_ARE_INPUTS, 1, _WHOLE)},
    "Slice": {
        "starts": (SLICE_TAKES_BOUNDS, 1, _WHOLE),
        "ends": (SLICE_TAKES_BOUNDS, 2, _WHOLE),
        "axes": (SLICE_TAKES_BOUNDS, 3, _WHOLE),
        "steps": (SLICE_TAKES_BOUNDS, 4, _WHOLE),
    },
    "Split": {"split": (SPLIT_TAKES_SIZES, 1, _WHOLE)},
    "Squeeze": {"axes": (AXES_ARE_INPUTS, 1, _WHOLE)},
    "TopK": {"k": (TOP_K_TAKES_COUNT, 1, _WHOLE)},
    "Unsqueeze": {"axes": (AXES_ARE_INPUTS, 1, _WHOLE)},
    **{name: {"axes": (REDUCTIONS_TAKE_AXES, 1, _WHOLE)} for name in _REDUCTIONS},
}
"""Attributes that became inputs, by operator. A formula always writes attributes: `Tape` puts them
where its opset has them, and `Site.get` reads both forms."""
