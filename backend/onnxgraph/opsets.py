"""Opsets in which the form or the meaning of an operator changed, for code that reads or writes
both forms."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto

BATCH_NORMALIZATION_IS_PER_CHANNEL = 9
"""Opset from which BatchNormalization in inference only normalises."""
CLIP_TAKES_BOUNDS = 11
"""Opset from which the bounds of a Clip are inputs."""
CONSTANT_OF_SHAPE_EXISTS = 9
"""Opset that introduced ConstantOfShape."""
DFT_TAKES_AXIS = 20
"""Opset from which the axis of a DFT is an input."""
DROPOUT_NEVER_TRAINS = 7
"""Opset from which, up to `DROPOUT_TAKES_MODE`, Dropout never trains."""
DROPOUT_TAKES_MODE = 12
"""Opset from which the ratio of a Dropout, and whether it trains, are inputs."""
EXPAND_EXISTS = 8
"""Opset that introduced Expand."""
EXTREMES_TAKE_INTEGERS = 12
"""Opset from which Min and Max accept whole numbers."""
GELU_EXISTS = 20
"""Opset that introduced Gelu."""
GEMM_BIAS_IS_OPTIONAL = 11
"""Opset from which Gemm may lack a bias."""
GEMM_BROADCASTS = 7
"""Opset from which Gemm broadcasts its bias without an attribute."""
GROUP_NORMALIZATION_SCALES_CHANNELS = 21
"""Opset from which GroupNormalization has a scale and a bias for each channel, not for each
group."""
IS_NAN_EXISTS = 9
"""Opset that introduced IsNaN."""
OPERANDS_BROADCAST = 7
"""Opset from which the operators of two operands broadcast them as numpy does."""
OPTIONAL_EXISTS = 15
"""Opset that introduced optional values."""
PAD_TAKES_SIZES = 11
"""Opset from which the sizes of a Pad, and its value, are inputs."""
QUANTIZE_HAS_TYPE = 21
"""Opset from which QuantizeLinear has its type as an attribute."""
AXES_ARE_INPUTS = 13
"""Opset from which ReduceSum, Squeeze and Unsqueeze take their axes as an input."""
REDUCTIONS_TAKE_AXES = 18
"""Opset from which the other reductions take their axes as an input, too."""
RESIZE_SCALES_FROM_MIDDLES = 11
"""Opset from which Resize scales from the middles of elements by default."""
ROUND_EXISTS = 11
"""Opset that introduced Round, and from which Clip and Slice take tensors."""
SCAN_HAS_NO_BATCH = 9
"""Opset from which a Scan's inputs have no batch axis."""
SIGN_EXISTS = 9
"""Opset that introduced Sign."""
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
_LATE_AXES: Mapping[str, Move] = {"axes": (REDUCTIONS_TAKE_AXES, 1, _WHOLE)}
MOVED: Mapping[str, Mapping[str, Move]] = {
    "Clip": {"min": (CLIP_TAKES_BOUNDS, 1, 0), "max": (CLIP_TAKES_BOUNDS, 2, 0)},
    "Pad": {"pads": (PAD_TAKES_SIZES, 1, _WHOLE), "value": (PAD_TAKES_SIZES, 2, 0)},
    "ReduceL1": _LATE_AXES,
    "ReduceL2": _LATE_AXES,
    "ReduceLogSum": _LATE_AXES,
    "ReduceLogSumExp": _LATE_AXES,
    "ReduceMax": _LATE_AXES,
    "ReduceMean": _LATE_AXES,
    "ReduceMin": _LATE_AXES,
    "ReduceProd": _LATE_AXES,
    "ReduceSum": {"axes": (AXES_ARE_INPUTS, 1, _WHOLE)},
    "ReduceSumSquare": _LATE_AXES,
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
}
"""Attributes that became inputs, by operator. A formula always writes attributes: `Tape` puts them
where its opset has them, and `Site.get` reads both forms."""
