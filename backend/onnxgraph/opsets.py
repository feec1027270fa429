"""Opsets in which the form or the meaning of an operator changed, for code that reads or writes
both forms."""

from __future__ import annotations

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
