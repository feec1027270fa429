"""Nodes of the kernels' domain, which replace products and elementwise operators in the computed
graph if the library of `simipu.kernels` is available. kernels.h defines what they compute and what
their attributes mean.

`fuse` joins them, so that a value is written once. A chain that is the only reader of its source
becomes the last steps of the node that computes the source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import onnx
from onnx import helper
from onnxgraph import attribute, iter_nodes, iter_reads

from simipu.numerics.quarter import F143, QuarterFormat
from simipu.operators import Rounding

if TYPE_CHECKING:
    from simipu.numerics.convolution import Convolution

KERNELS = "simipu"
"""Domain of the kernels; only `lower` makes nodes of it."""
PRODUCT, CONV, CHAIN, RECURRENT = "Product", "Conv", "Chain", "Recurrent"
FIXED_INPUTS = {PRODUCT: 2, CONV: 2, CHAIN: 1, RECURRENT: 2}
"""Number of inputs before the operands of steps."""
MAX_STEPS = 32
"""Maximum number of steps of one node; further steps become another node."""
MAX_AXES = 6
"""Maximum number of axes of a chain: `MAX_CHAIN_AXES` of kernels.h."""


class StepKind(IntEnum):
    """Kind of a step, `enum kind` of kernels.h."""

    NONE = 0
    ADD = 1
    SUBTRACT = 2
    TAKE = 3
    MULTIPLY = 4
    DIVIDE = 5
    UNDER = 6
    MAXIMUM = 7
    MINIMUM = 8
    TABLE = 9
    F143 = 10
    F152 = 11


class Rounded(IntEnum):
    """Rounding of a step, `enum rounding` of kernels.h."""

    KEPT = 0
    ROUNDED = 1
    GROWING = 2
    PLAIN = 3


ROUNDINGS = {
    Rounding.EXACT: Rounded.KEPT,
    Rounding.BOUNDED: Rounded.PLAIN,
    Rounding.GROWING: Rounded.GROWING,
    Rounding.ROUNDED: Rounded.ROUNDED,
    Rounding.SUMMED: Rounded.ROUNDED,
    Rounding.PRODUCT: Rounded.ROUNDED,
}
BINARY = {
    "Add": (StepKind.ADD, StepKind.ADD),
    "Sub": (StepKind.SUBTRACT, StepKind.TAKE),
    "Mul": (StepKind.MULTIPLY, StepKind.MULTIPLY),
    "Div": (StepKind.DIVIDE, StepKind.UNDER),
    "Max": (StepKind.MAXIMUM, StepKind.MAXIMUM),
    "Min": (StepKind.MINIMUM, StepKind.MINIMUM),
}
"""Kinds of an operator of two inputs, if its first input is x, and if its second one is: the steps
that the kernels of this room have."""
QUARTER_FORMATS = {"": 0, "F143": 1, "F152": 2}


class KnownFunction(IntEnum):
    """What a table is known to have, `enum function` of kernels.h: the number of its step."""

    ANY = 0
    HARD_SWISH = 1


@dataclass(frozen=True, slots=True)
class KernelStep:
    """Operation on a value x: its other operand is the tensor `operand`, or `number` if that is
    ""."""

    kind: StepKind
    rounded: Rounded = Rounded.KEPT
    operand: str = ""
    number: float = 0.0


@dataclass(frozen=True, slots=True)
class CodedWeight:
    """An 8-bit weight in its stored form, and the scale by which its values are multiplied, an
    exponent of 2."""

    name: str
    quarter: QuarterFormat
    scale: int


def quarter_step(quarter: QuarterFormat, scale: int) -> KernelStep:
    """Return a step that rounds to the values of an 8-bit format at a scale."""
    return KernelStep(StepKind.F143 if quarter is F143 else StepKind.F152, number=2.0**scale)


def make_kernel(
    op_type: str, inputs: Sequence[str], result: str, steps: Sequence[KernelStep], **attributes: Any
) -> onnx.NodeProto:
    """Return a node of the kernels' domain."""
    operands = list(dict.fromkeys(step.operand for step in steps if step.operand))
    name, read = f"{result}/{op_type}", [*inputs, *operands]
    node = helper.make_node(op_type, read, [result], name, domain=KERNELS, **attributes)
    if steps:
        places = {name: place for place, name in enumerate(operands)} | {"": -1}
        triples = [(step.kind, step.rounded, places[step.operand]) for step in steps]
        flat = [int(number) for triple in triples for number in triple]
        node.attribute.append(helper.make_attribute("steps", flat))
        node.attribute.append(helper.make_attribute("numbers", [step.number for step in steps]))
    return node


def read_steps(node: onnx.NodeProto) -> list[KernelStep]:
    """Return the steps of a node of the kernels' domain."""
    flat, numbers = attribute(node, "steps", []), attribute(node, "numbers", [])
    operands = [*node.input[FIXED_INPUTS[node.op_type] :], ""]
    fields = zip(flat[::3], flat[1::3], flat[2::3], numbers, strict=True)
    return [
        KernelStep(StepKind(kind), Rounded(rounded), operands[place], number)
        for kind, rounded, place, number in fields
    ]


def extend_kernel(node: onnx.NodeProto, steps: Sequence[KernelStep], result: str) -> onnx.NodeProto:
    """Return the node with further steps. A rounding that follows a computation directly becomes
    part of its step; that of a sum that is a half already is omitted."""
    fixed, joined = node.input[: FIXED_INPUTS[node.op_type]], read_steps(node)
    has_halves = attribute(node, "block", 0) > 0 and not attribute(node, "raises", 0)
    for step in steps:
        is_rounding = step.kind is StepKind.NONE
        if is_rounding and step.rounded is Rounded.ROUNDED and has_halves and not joined:
            continue
        if is_rounding and joined and joined[-1].rounded is Rounded.KEPT:
            joined[-1] = replace(joined[-1], rounded=step.rounded)
        else:
            joined.append(step)
    extended = make_kernel(node.op_type, fixed, result, joined)
    extended.attribute.extend(
        entry for entry in node.attribute if entry.name not in ("steps", "numbers")
    )
    return extended


def make_product(
    node: onnx.NodeProto,
    sides: Sequence[str | CodedWeight],
    result: str,
    block: int,
    flags: Mapping[str, int],
) -> onnx.NodeProto:
    """Return a node that computes a MatMul or Gemm without scales and bias."""
    attributes = {"block": block, **flags, "threads": 0}
    for side, name, transposed in zip(sides, ("left", "right"), ("transA", "transB"), strict=True):
        is_transposed = node.op_type == "Gemm" and attribute(node, transposed, 0)
        attributes |= {f"trans_{name}": int(is_transposed), **_code_attributes(name, side)}
    names = [_name(side) for side in sides]
    return make_kernel(PRODUCT, names, result, [], **attributes)


def make_convolution(
    conv: Convolution,
    pads: Sequence[int],
    sides: Sequence[str | CodedWeight],
    result: str,
    block: int,
    flags: Mapping[str, int],
) -> onnx.NodeProto:
    """Return a node that computes a Conv without bias; `pads` are before and after each spatial
    axis."""
    return make_kernel(
        CONV,
        [_name(side) for side in sides],
        result,
        [],
        block=block,
        **flags,
        threads=0,
        group=conv.groups,
        strides=list(conv.strides),
        dilations=list(conv.dilations),
        pads=list(pads),
        packed_rows=conv.packed_rows(block) if block else 1,
        slic_taps=conv.slic_taps if block else 0,
        blocked_source=0,
        blocked_result=0,
        **_code_attributes("filters", sides[1]),
    )


def _name(side: str | CodedWeight) -> str:
    return side if isinstance(side, str) else side.name


def _code_attributes(name: str, side: str | CodedWeight) -> dict[str, int]:
    if isinstance(side, str):
        return {f"{name}_format": 0, f"{name}_scale": 0}
    return {f"{name}_format": QUARTER_FORMATS[side.quarter.name], f"{name}_scale": side.scale}


def set_threads(graph: onnx.GraphProto, threads: int) -> None:
    """Set the number of the session's threads in the products of a graph and its bodies."""
    for node in iter_nodes(graph):
        for entry in node.attribute if node.domain == KERNELS else ():
            if entry.name == "threads":
                entry.i = threads


def takes_narrow(node: onnx.NodeProto, place: int) -> bool:
    """Return whether a node's input may be a weight in half."""
    if node.domain == KERNELS:
        return node.op_type != RECURRENT and place >= int(node.op_type == CHAIN)
    return node.op_type == "Gather" and not node.domain and place == 0


Dims = tuple[int | str | None, ...]
"""Sizes; names of open ones, None for unknown ones."""
_MATRIX = 2


def fuse(
    nodes: Sequence[onnx.NodeProto], kept: set[str], dims: Mapping[str, Dims]
) -> list[onnx.NodeProto]:
    """Return the nodes of one graph, in order, joined. Nodes outside the graph read the tensors
    `kept`. Unused nodes are removed."""
    nodes = _drop_unused(_skip_copies(nodes, kept), kept)
    readers = Counter(name for node in nodes for name in iter_reads(node))
    makers: dict[str, int] = {}
    fused: list[onnx.NodeProto | None] = []
    for node in nodes:
        is_chain = node.domain == KERNELS and node.op_type == CHAIN
        place = makers.get(node.input[0], -1) if is_chain else -1
        maker = fused[place] if place >= 0 else None
        source = node.input[0] if node.input else ""
        is_private = readers[source] == 1 and source not in kept
        if maker is not None and is_private and _fits(maker, node, dims):
            # Other operands of the chain may be computed after the maker: the joined node takes the
            # chain's position.
            fused[place] = None
            node = extend_kernel(maker, read_steps(node), node.output[0])
        if node.domain == KERNELS:
            makers[node.output[0]] = len(fused)
        fused.append(node)
    return [node for node in fused if node is not None]


def _skip_copies(nodes: Sequence[onnx.NodeProto], kept: set[str]) -> Sequence[onnx.NodeProto]:
    """Make kernels read the sources of Identities, if other kernels compute these and nothing else
    reads the copies. Return the nodes, of which some are unused then."""
    kernels = [node for node in nodes if node.domain == KERNELS]
    made = {node.output[0] for node in kernels}
    others = (node for node in nodes if node.domain != KERNELS)
    shown = kept.union(*(iter_reads(node) for node in others))
    sources = {
        node.output[0]: node.input[0]
        for node in nodes
        if node.op_type == "Identity" and not node.domain and node.input[0] in made
    }
    for node in kernels:
        for place, name in enumerate(node.input):
            if name in sources and name not in shown:
                node.input[place] = sources[name]
    return nodes


def _drop_unused(nodes: Sequence[onnx.NodeProto], kept: set[str]) -> list[onnx.NodeProto]:
    read, read_nodes = set(kept), []
    for node in reversed(nodes):
        if not read.isdisjoint(node.output):
            read_nodes.append(node)
            read.update(iter_reads(node))
    return read_nodes[::-1]


def _fits(maker: onnx.NodeProto, chain: onnx.NodeProto, dims: Mapping[str, Dims]) -> bool:
    """Return whether the node that computes the source can also read the chain's operands. A chain
    accepts operands that keep its shape; products accept operands for whole batches, rows and
    columns."""
    result, source = dims.get(chain.output[0]), dims.get(chain.input[0])
    steps = read_steps(chain)
    if len(read_steps(maker)) + len(steps) > MAX_STEPS:
        return False
    operands = [step.operand for step in steps if step.operand and step.kind is not StepKind.TABLE]
    if not operands:
        return True
    if result is None or None in result or source != result:
        return False
    if maker.op_type == CHAIN:
        return True
    columns = 1 if maker.op_type != CONV else len(result) - FIXED_INPUTS[CONV]
    return all(_fits_groups(dims.get(name), result, columns) for name in operands)


def _fits_groups(operand: Dims | None, result: Dims, columns: int) -> bool:
    if operand is None or len(operand) > len(result) or len(result) < _MATRIX:
        return False
    # A kernel addresses an operand by batch, row and column only. So the batches' axes are together
    # all broadcast or none, and likewise the columns' axes.
    operand = (1,) * (len(result) - len(operand)) + operand
    row = len(result) - columns - 1
    for group in (slice(0, row), slice(row, row + 1), slice(row + 1, None)):
        part, sizes = operand[group], result[group]
        if part != sizes and any(size != 1 for size in part):
            return False
    return True
