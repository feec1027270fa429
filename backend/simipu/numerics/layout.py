"""Layout of the tensors between convolutions: their kernels read and write the channels of a field
plain, or in blocks of CHANNEL_BLOCK, where the channels of a position are neighbours (kernels.h).
Chains of elementwise steps between them write what they read.

    plain       [rows, channels, ...]
    in blocks   [rows, channels / CHANNEL_BLOCK, ..., CHANNEL_BLOCK]

Values and the order of sums are the same in both. `block_channels` chooses blocks for tensors that
only such nodes write and read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnxgraph import attribute, iter_reads

from simipu.numerics.kernels import CHAIN, CONV, KERNELS, Dims, StepKind, read_steps

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
    writers = [writer for node in nodes if (writer := _find_writer(node, dims))]
    tied: dict[str, set[str]] = {}
    for writer in writers:
        joined = set[str]().union(*(tied.get(name, {name}) for name in writer.group))
        tied.update(dict.fromkeys(joined, joined))
    blocked = {writer.result for writer in writers if writer.can_write} - kept
    # Every read of a tensor in blocks is one of these.
    reads = Counter(name for writer in writers for name in writer.blocked_reads)
    blocked -= (Counter(name for node in nodes for name in iter_reads(node)) - reads).keys()
    blocked = {name for name in blocked if tied[name] <= blocked}
    for writer in writers:
        writer.set_layout(blocked)


@dataclass(frozen=True, slots=True)
class _Writer:
    """A convolution or a chain of a kernel, and what it can read and write in blocks."""

    node: onnx.NodeProto
    operands: tuple[str, ...] = ()
    """Operands that have the shape of the result, and lie in memory as it does."""
    can_read: bool = False
    can_write: bool = False

    @property
    def source(self) -> str:
        """Name of a convolution's field, or of what a chain begins with."""
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


def _find_writer(node: onnx.NodeProto, dims: Mapping[str, Dims]) -> _Writer | None:
    """Return the convolution or the chain of a node, or None for another node."""
    if node.domain != KERNELS or node.op_type not in (CONV, CHAIN):
        return None
    source, result = (dims.get(name) for name in (node.input[0], node.output[0]))
    if source is None or result is None:
        return _Writer(node)
    steps = [step for step in read_steps(node) if step.operand and step.kind is not StepKind.TABLE]
    operands = tuple(dict.fromkeys(step.operand for step in steps))
    same_shape = tuple(name for name in operands if dims.get(name) == result)
    others = [dims.get(name) for name in operands if name not in same_shape]
    if node.op_type == CHAIN:
        fits = source == result and None not in result and all(map(_is_of_one, others))
        return _Writer(node, (node.input[0], *same_shape), False, fits and _is_in_blocks(result))
    if not _is_blockable(node, source, dims.get(node.input[1])):
        return _Writer(node)
    fits = all(_is_of_channels(operand, len(result)) for operand in others)
    return _Writer(node, same_shape, _is_in_blocks(source), fits and _is_in_blocks(result))


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


def _is_of_one(operand: Dims | None) -> bool:
    """Return whether an operand is one value for all elements."""
    return operand is not None and set(operand) <= {1}


def _known(dims: Dims) -> tuple[int, ...]:
    """Return the sizes; none if one of them is open."""
    sizes = tuple(size for size in dims if isinstance(size, int))
    return sizes if len(sizes) == len(dims) else ()
