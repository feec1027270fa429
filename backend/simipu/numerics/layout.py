"""Layout of the tensors between convolutions: their kernels read and write the channels of a field
plain, or in blocks of CHANNEL_BLOCK, where the channels of a position are neighbours (kernels.h).

    plain       [rows, channels, ...]
    in blocks   [rows, channels / CHANNEL_BLOCK, ..., CHANNEL_BLOCK]

Values and the order of sums are the same in both. `block_channels` chooses blocks for tensors that
only convolutions write and read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnxgraph import attribute, iter_reads

from simipu.numerics.kernels import CONV, KERNELS, Dims, StepKind, read_steps

CHANNEL_BLOCK = 16
"""Number of neighbouring channels, as in kernels.h."""
MAX_TAPS = 1024
"""Maximum number of kernel positions of a group of one channel, as in kernels.h."""
MAX_ELEMENTS = 1 << 30
"""Maximum number of elements of a row with its padding; kernels reject 2**31."""


def block_channels(
    nodes: Sequence[onnx.NodeProto], kept: set[str], dims: Mapping[str, Dims]
) -> None:
    """Set `blocked_source` and `blocked_result` of the convolutions of one graph. Nodes outside the
    graph read the tensors `kept`.

    An operand with the shape of a result lies in memory as the result does. So such tensors form
    groups, and a group is in blocks if every node that writes or reads one of them can do that.
    """
    convolutions = [conv for node in nodes if (conv := _Convolution.of(node, dims))]
    tied: dict[str, set[str]] = {}
    for conv in convolutions:
        joined = set[str]().union(*(tied.get(name, {name}) for name in conv.group))
        tied.update(dict.fromkeys(joined, joined))
    blocked = {convolution.result for convolution in convolutions if convolution.can_write} - kept
    # Every read of a tensor in blocks is one of these.
    reads = Counter(name for convolution in convolutions for name in convolution.blocked_reads)
    blocked -= (Counter(name for node in nodes for name in iter_reads(node)) - reads).keys()
    blocked = {name for name in blocked if tied[name] <= blocked}
    for conv in convolutions:
        conv.set_layout(blocked)


@dataclass(frozen=True, slots=True)
class _Convolution:
    """A convolution of a kernel, and what it can read and write in blocks."""

    node: onnx.NodeProto
    operands: tuple[str, ...] = ()
    """Operands of steps that have the shape of the result."""
    can_read: bool = False
    can_write: bool = False

    @staticmethod
    def of(node: onnx.NodeProto, dims: Mapping[str, Dims]) -> _Convolution | None:
        """Return the convolution of a node, or None for another node."""
        if node.domain != KERNELS or node.op_type != CONV:
            return None
        source, filters, result = (
            dims.get(tensor_name) for tensor_name in (*node.input[:2], node.output[0])
        )
        if source is None or result is None or not _is_blockable(node, source, filters):
            return _Convolution(node)
        steps = [
            step for step in read_steps(node) if step.operand and step.kind is not StepKind.TABLE
        ]
        operands = tuple(dict.fromkeys(step.operand for step in steps))
        same_shape = tuple(name for name in operands if dims.get(name) == result)
        channels = (operand for operand in operands if operand not in same_shape)
        fits = all(_is_of_channels(dims.get(name), len(result)) for name in channels)
        return _Convolution(node, same_shape, _is_in_blocks(source), _is_in_blocks(result) and fits)

    @property
    def source(self) -> str:
        """Name of the field."""
        return self.node.input[0]

    @property
    def result(self) -> str:
        """Name of the result."""
        return self.node.output[0]

    @property
    def group(self) -> tuple[str, ...]:
        """Names of the tensors that lie in memory as the result does."""
        return (self.result, *self.operands)

    @property
    def blocked_reads(self) -> tuple[str, ...]:
        """Names of the tensors that it can read in blocks, as often as it reads them."""
        return (*[self.source] * self.can_read, *self.operands * self.can_write)

    def set_layout(self, blocked: Collection[str]) -> None:
        """Set the attributes of the node."""
        layout = {"blocked_source": self.source, "blocked_result": self.result}
        for entry in self.node.attribute:
            if entry.name in layout:
                entry.i = int(layout[entry.name] in blocked)


def _is_blockable(node: onnx.NodeProto, source: Dims, filters: Dims | None) -> bool:
    """Return whether the kernel accepts blocks for a convolution (`can_be_blocked` of kernels.h):
    one group, or groups of one channel and one output."""
    sizes, weights = _known(source[1:]), _known(filters or ())
    if not sizes or not weights:
        return False
    outputs, channels, *kernel = weights
    groups = attribute(node, "group", 1)
    is_depthwise = channels == 1 and outputs == groups and math.prod(kernel) <= MAX_TAPS
    pads, axes = attribute(node, "pads"), len(kernel)
    padded = map(sum, zip(sizes[1:], pads[:axes], pads[axes:], strict=True))
    return (groups == 1 or is_depthwise) and math.prod(padded, start=sizes[0]) <= MAX_ELEMENTS


def _is_in_blocks(field: Dims) -> bool:
    """Return whether a field has whole blocks of channels, and more than one position: the layouts
    of a single one are the same."""
    sizes = _known(field[1:])
    return bool(sizes) and sizes[0] % CHANNEL_BLOCK == 0 and math.prod(sizes[1:]) > 1


def _is_of_channels(operand: Dims | None, rank: int) -> bool:
    """Return whether an operand has one value for each channel, or one for all."""
    return operand is not None and set(operand[2 - rank :]) <= {1}


def _known(dims: Dims) -> tuple[int, ...]:
    """Return the sizes; none if one of them is open."""
    sizes = tuple(size for size in dims if isinstance(size, int))
    return sizes if len(sizes) == len(dims) else ()
