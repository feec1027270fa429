"""Passes that rewrite nodes whose attributes ONNX's shape inference, ONNX Runtime and the
specification interpret differently. After these passes all three agree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import GraphView, Results, Site, Tape, Value, attribute, infer_shapes, iter_graphs
from onnxgraph.opsets import EXPAND_EXISTS, PAD_TAKES_SIZES
from simipu import CompileError
from simipu.operators import Family, names_where

from poprt.rewrite.base import Pass, Stage, register
from poprt.rewrite.explanations import describe_node
from poprt.rewrite.rules import NodeRule

_POOLS = names_where(lambda entry: entry.family is Family.POOL)
_settle = partial(register, stage=Stage.INTERFACE, default=True, is_ours=True)
_SAME = ("SAME_UPPER", "SAME_LOWER")
_INT32_MAX = 2**31 - 1
_SPATIAL = 2
"""First axis along which a window moves."""

Pads = list[tuple[int, int]]
"""Padding before and behind each spatial axis."""


class _Reshaping(NodeRule):
    """Base class of rules that may change the shape of a result. Shapes behind such a node are then
    inferred again."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Run until no shape changes."""
        self._is_stale = True
        while self._is_stale:
            self._is_stale = False
            model = super().run(model)
        return model


@_settle("settle_windows", before="constant_folding shape_inference")
class SettleWindows(_Reshaping):
    """Write the padding of pools and convolutions down where ONNX Runtime and ONNX's shape
    inference find another, or none.

    Sizes with `auto_pad` SAME are ceil(input / stride), of a ConvTranspose input * stride, whatever
    the dilations, the output padding, and windows smaller than their stride. With `ceil_mode` a
    window that would start behind the input and the padding before it is left out. ONNX Runtime
    rejects an output padding of a stride or more.
    """

    op_types = _POOLS | {"Conv", "ConvInteger", "ConvTranspose", "QLinearConv"}
    prefix = "padded"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Return the node with explicit padding, if it needs it."""
        node, view = site.node, site.facts
        shape = view.shape(node.input[0])
        kernel = _find_kernel(node, view)
        if (
            self._is_stale
            or shape is None
            or kernel is None
            or len(shape) != _SPATIAL + len(kernel)
        ):
            return None
        window = _Window(node, shape[_SPATIAL:], kernel)
        padding = window.find_pads()
        if padding is None and window.exceeds_stride:
            padding = window.explicit_pads
        if padding is None and not window.rounds_twice:
            return None
        dropped, attributes = ["ceil_mode"], {}
        source, result, rests = site.x, window.sizes(padding), [(0, 0)] * len(kernel)
        if padding is not None and window.exceeds_stride:
            padding, rests = window.split_output_padding(padding)
            dropped.append("output_padding")
        if padding is not None and window.counts_pads and attribute(node, "ceil_mode", 0):
            # What a window has behind the padding is not counted, and the padding is.
            source, padding = _pad_apart(op, source, window.explicit_pads, padding)
            dropped.append("count_include_pad")
        if padding is not None:
            dropped += ["auto_pad", "output_shape"]
            pads = [before for before, _ in padding] + [behind for _, behind in padding]
            if (
                view.is_float(source)
                and op.opset >= PAD_TAKES_SIZES
                and _is_padded_apart(node, pads, kernel)
            ):
                # The value that does not change the pool's result.
                fill = -np.inf if node.op_type == "MaxPool" else 0.0
                source = op.Pad(
                    source,
                    pads=[0, 0, *pads[: len(kernel)], 0, 0, *pads[len(kernel) :]],
                    value=fill,
                )
                pads = [0] * len(pads)
            attributes["pads"] = pads
        sizes = view.shape(node.output[0])
        self._is_stale = sizes is None or list(sizes[_SPATIAL:]) != result
        inputs = [source, *node.input[1:]]
        if any(map(any, rests)):
            (last,) = op.copy(node, inputs[:2], dropped, **attributes)
            last.element_type = site.x.element_type
            return _append_zeros(op, last, site.optional(2), rests)
        return op.copy(node, inputs, dropped, **attributes)


def _pad_apart(op: Tape, source: Value, pads: Pads, whole: Pads) -> tuple[Value, Pads]:
    """Return a padded tensor, and what is left of the `whole` padding of its spatial axes. Padding
    behind the last window is left out: another window could begin there."""
    pads = [
        (before, min(behind, last)) for (before, behind), (_, last) in zip(pads, whole, strict=True)
    ]
    rest = [(0, last - behind) for (_, behind), (_, last) in zip(pads, whole, strict=True)]
    if any(map(any, pads)):
        sides = [[0, 0, *side] for side in zip(*pads, strict=True)]
        source = op.Pad(source, pads=[*sides[0], *sides[1]], value=0.0)
    return source, rest


def _append_zeros(
    op: Tape, result: Value, bias: Value | None, rests: Sequence[tuple[int, int]]
) -> Value:
    """Add, behind each spatial axis of a ConvTranspose's result, so many zeros, to which its bias
    is added too, and cut so many positions off before it."""
    rank = _SPATIAL + len(rests)
    for axis, (count, cut) in enumerate(rests, _SPATIAL):
        if count:
            pads = [0] * (2 * rank)
            pads[rank + axis] = count
            result = op.Pad(result, pads=pads, value=0)
        if cut:
            result = op.Slice(result, starts=[cut], ends=[_INT32_MAX], axes=[axis])
    if bias is not None:
        result = op.Add(result, op.Reshape(bias, op.ints([1, -1, *[1] * len(rests)])))
    return result


def _is_padded_apart(node: onnx.NodeProto, pads: Sequence[int], kernel: Sequence[int]) -> bool:
    """Return whether a Pad has to pad a pool. ONNX Runtime rejects padding of at least the kernel's
    size. A Pad cannot replace padding that is counted, or where elements are numbered."""
    has_indices = len(node.output) > 1 and bool(node.output[1])
    is_simple = node.op_type == "LpPool" or (node.op_type == "MaxPool" and not has_indices)
    return is_simple and any(
        pad >= size for pad, size in zip(pads, [*kernel, *kernel], strict=True)
    )


class _Window:
    """Attributes of a node, with one value for each spatial axis."""

    def __init__(self, node: onnx.NodeProto, given: Sequence[int], kernel: Sequence[int]) -> None:
        rank = len(kernel)
        self._node, self._given = node, given
        self._strides = list(attribute(node, "strides") or [1] * rank)
        dilations = list(attribute(node, "dilations") or [1] * rank)
        self._extents = [
            (size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)
        ]
        auto = attribute(node, "auto_pad", b"NOTSET")
        self._auto = auto.decode() if isinstance(auto, bytes) else auto
        pads = list(attribute(node, "pads") or []) if self._auto == "NOTSET" else []
        pads = pads or [0] * (2 * rank)
        self._pads: Pads = list(zip(pads[:rank], pads[rank:], strict=True))
        self._axes = list(zip(given, self._extents, self._strides, strict=True))
        self._is_dilated = any(step > 1 for step in dilations)

    def find_pads(self) -> Pads | None:
        """Return the explicit padding, or None if all interpret the node's attributes alike."""
        if self._node.op_type == "ConvTranspose":
            return self._find_transposed()
        if self._auto in _SAME:
            return self._find_same() if self._is_dilated or self._skips() else None
        return self._find_ceiled() if attribute(self._node, "ceil_mode", 0) else None

    @property
    def counts_pads(self) -> bool:
        """Flag of an AveragePool with explicit padding that is counted."""
        counts = attribute(self._node, "count_include_pad", 0)
        return bool(counts) and self._auto not in _SAME

    @property
    def rounds_twice(self) -> bool:
        """Flag that the node has `ceil_mode` and a padding that leaves nothing to round."""
        return self._auto in _SAME and bool(attribute(self._node, "ceil_mode", 0))

    @property
    def exceeds_stride(self) -> bool:
        """Flag of a ConvTranspose whose output padding is a stride or more."""
        pairs = zip(self._output_padding(), self._strides, strict=True)
        return self._node.op_type == "ConvTranspose" and any(more >= step for more, step in pairs)

    @property
    def explicit_pads(self) -> Pads:
        """Padding that the node gives; zeros with `auto_pad` VALID."""
        return self._pads

    def split_output_padding(self, pads: Pads) -> tuple[Pads, list[tuple[int, int]]]:
        """Return padding without an output padding, and how many zeros the result then lacks behind
        each axis, and how many positions it has too many before it.

        Output padding adds positions that no input reaches. Less padding behind shows as many, as
        long as there is some. Where padding before the axis leaves nothing but such positions, it
        is cut off at the end, because ONNX Runtime has no empty results.
        """
        shown, rests = [], []
        for (size, extent, stride), more, (before, behind) in zip(
            self._axes, self._output_padding(), pads, strict=True
        ):
            reached = stride * (size - 1) + extent
            cut = before if before >= reached else 0
            shown.append((before - cut, 0 if cut else max(0, behind - more)))
            rests.append((max(0, more - behind), cut))
        return shown, rests

    def sizes(self, pads: Pads | None) -> list[int]:
        """Return the sizes of the result with that padding, or with `auto_pad` SAME."""
        if pads is None:
            return [-(-size // stride) for size, _, stride in self._axes]
        if self._node.op_type == "ConvTranspose":
            added = self._output_padding()
            return [
                stride * (size - 1) + more + extent - sum(pad)
                for (size, extent, stride), more, pad in zip(self._axes, added, pads, strict=True)
            ]
        return [
            (size + sum(pad) - extent) // stride + 1
            for (size, extent, stride), pad in zip(self._axes, pads, strict=True)
        ]

    def _skips(self) -> bool:
        """Return whether windows are smaller than their stride, so that padding of SAME would be
        negative. ONNX Runtime rejects it for pools, or moves the windows of an LpPool and of a
        convolution by half of it: 1 has no half."""
        if self._node.op_type in _POOLS:
            return any(extent < stride for _, extent, stride in self._axes)
        return any(total < -1 for total in self._same_totals())

    def _same_totals(self) -> list[int]:
        """Return the padding of both sides of each axis together, with `auto_pad` SAME."""
        return [
            (-(-size // stride) - 1) * stride + extent - size for size, extent, stride in self._axes
        ]

    def _find_same(self) -> Pads:
        is_upper = self._auto == "SAME_UPPER"
        return [self._part(max(0, total), is_upper=is_upper) for total in self._same_totals()]

    def _find_ceiled(self) -> Pads | None:
        """Return padding with which no window is cut off or left out: the last one ends with it.

          input      padding
        |1 2 3 4 5 6|.        kernel 1, stride 2: ceil(6 / 2) = 3 steps, so 4 windows, of which the
         ^   ^   ^   x        last would start at 6, behind the input
        """
        pads, is_changed = [], False
        for (size, extent, stride), (before, behind) in zip(self._axes, self._pads, strict=True):
            windows = steps = -(-(size + before + behind - extent) // stride) + 1
            while windows > 1 and (windows - 1) * stride >= size + before:
                windows -= 1
            is_changed |= windows < steps
            pads.append((before, max(0, (windows - 1) * stride + extent - size - before)))
        return pads if is_changed else None

    def _find_transposed(self) -> Pads | None:
        output_shape = list(attribute(self._node, "output_shape") or [])[-len(self._axes) :]
        added = self._output_padding()
        if not output_shape and not (self._auto in _SAME and any(added)):
            return None
        sizes = output_shape or [size * stride for size, _, stride in self._axes]
        full_sizes = self.sizes([(0, 0)] * len(self._axes))
        totals = [size - want for size, want in zip(full_sizes, sizes, strict=True)]
        if min(totals) < 0:
            if output_shape:
                return None
            # ONNX Runtime does not pad less than zero: the result is smaller.
            totals = [max(0, total) for total in totals]
        return [self._part(total, is_upper=self._auto == "SAME_UPPER") for total in totals]

    def _output_padding(self) -> list[int]:
        return list(attribute(self._node, "output_padding") or [0] * len(self._axes))

    def _part(self, total: int, *, is_upper: bool) -> tuple[int, int]:
        """Return both halves of an axis's padding. If it is odd, the larger half is behind for
        SAME_UPPER."""
        half = total // 2
        return (half, total - half) if is_upper else (total - half, half)


def _find_kernel(node: onnx.NodeProto, view: GraphView) -> Sequence[int] | None:
    kernel: Sequence[int] | None = attribute(node, "kernel_shape")
    if kernel is not None or node.op_type in _POOLS:
        return kernel
    shape = view.shape(node.input[3 if node.op_type == "QLinearConv" else 1])
    return None if shape is None else shape[_SPATIAL:]


_ROWS_FIRST = (1, 0, 2)
"""Permutation between (steps, rows, size) and (rows, steps, size), and between (directions, rows,
size) and (rows, directions, size)."""
_OUTPUT = (2, 0, 1, 3)
"""Permutation from (steps, directions, rows, size) to (rows, steps, directions, size)."""
_STATES = range(5, 7)
"""Inputs with the initial states, of shape (directions, rows, size), or rows first."""


@_settle("settle_layouts", before="constant_folding")
class SettleLayouts(NodeRule):
    """Transpose around recurrent networks with `layout` 1 (rows first), because ONNX Runtime
    supports steps first only."""

    op_types = names_where(lambda entry: entry.family is Family.RECURRENT)
    prefix = "steps_first"
    needs_shapes = False

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Return the node with steps first, between Transposes."""
        node = site.node
        if not site.get("layout", 0):
            return None
        inputs = list(node.input)
        for place in (0, *_STATES):
            if site.optional(place) is not None:
                inputs[place] = op.Transpose(inputs[place], perm=_ROWS_FIRST)
        results = op.copy(node, inputs, ["layout"])
        return [
            op.Transpose(result, perm=_ROWS_FIRST if place else _OUTPUT) if result else None
            for place, result in enumerate(results)
        ]


_DEFAULTS: dict[str, tuple[str, Any]] = {
    "MeanVarianceNormalization": ("axes", [0, 2, 3]),
    "STFT": ("onesided", 1),
}
"""Attributes whose default ONNX's shape inference (1.23) fails on or misreads."""


@_settle("settle_defaults", before="constant_folding")
class SettleDefaults(NodeRule):
    """Write down attributes that a node leaves out and whose default ONNX's shape inference gets
    wrong: the axes of a MeanVarianceNormalization, and that an STFT is one-sided."""

    op_types = frozenset(_DEFAULTS)
    needs_shapes = False

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Return the node with the attribute, if it lacks it."""
        name, default = _DEFAULTS[site.node.op_type]
        return op.copy(site.node, **{name: default}) if site.get(name) is None else None


@_settle("settle_slices", before="constant_folding")
class SettleSlices(_Reshaping):
    """Write Slices of opsets before 10 so that ONNX's shape inference finds their sizes: it needs
    axes in ascending order, starts that are not before the first element, counted from the end, and
    no end before its start."""

    op_types = frozenset(("Slice",))

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Return the node with sorted axes and with bounds within them."""
        shape, starts = site.facts.shape(site.node.input[0]), attribute(site.node, "starts")
        if shape is None or starts is None:
            return None
        ends = list(attribute(site.node, "ends"))
        axes = list(site.get("axes") or range(len(starts)))
        if not len(starts) == len(ends) == len(set(axes)):
            return None
        bounds = sorted(
            (axis % len(shape), *_limit_bounds(start, end, shape[axis]))
            for axis, start, end in zip(axes, starts, ends, strict=True)
            if -len(shape) <= axis < len(shape)
        )
        limited = [list(column) for column in zip(*bounds, strict=True)]
        if len(bounds) < len(axes) or limited in ([axes, list(starts), ends], []):
            return None
        self._is_stale = True
        return op.copy(site.node, **dict(zip(("axes", "starts", "ends"), limited, strict=True)))


def _limit_bounds(start: int, end: int, size: int) -> tuple[int, int]:
    """Return the bounds of a slice along an axis, with which it is the same. Others than negative
    ones and those of nothing stay: the axis may be the batch."""
    first, last, _ = slice(start, end).indices(size)
    return (0, 0) if last <= first else (max(start, -size), max(end, -size))


@_settle("settle_slopes", before="constant_folding")
class SettleSlopes(_Reshaping):
    """Expand the input of a PRelu to the shape of a larger slope, because ONNX's shape inference
    gives the result the input's shape, while ONNX Runtime broadcasts both."""

    op_types = frozenset(("PRelu",))
    prefix = "expanded"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Return the node behind an Expand, if its slope has more axes or larger sizes."""
        source, slope = (site.facts.shape(name) for name in site.node.input)
        if self._is_stale or source is None or slope is None or op.opset < EXPAND_EXISTS:
            return None
        try:
            shape = np.broadcast_shapes(source, slope)
        except ValueError:
            return None
        if shape == tuple(source):
            return None
        self._is_stale = True
        return op.copy(site.node, [op.Expand(site.x, op.ints(shape)), site.node.input[1]])


@_settle("settle_conditions", before="constant_folding")
class SettleConditions(NodeRule):
    """Write a Compress whose condition is a constant as a Gather, whose size is known."""

    op_types = frozenset(("Compress",))
    prefix = "picked"

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Return a Gather of the chosen elements by their indices. Without an axis the input is
        flattened first."""
        condition, axis = site.facts.value(site.node.input[1]), site.get("axis")
        if condition is None:
            return None
        source = op.Reshape(site.x, op.ints([-1])) if axis is None else site.x
        places = op.constant(np.flatnonzero(condition), np.int64)
        return op.Gather(source, places, axis=axis or 0)


_DIGITS = re.compile(r"\d+")


@_settle("settle_bits", takes="precision", before="half_to_float double_to_float constant_folding")
class SettleBits(NodeRule):
    """Compute BitCasts of constants while their types are those that were given, and refuse those
    whose bits the conversion would change: of 64 bits, and of halves where a model becomes one in
    half."""

    op_types = frozenset(("BitCast",))

    def __init__(self, precision: str = "fp32") -> None:
        self._precision = precision

    def replace(self, op: Tape, site: Site[GraphView]) -> Results | None:
        """Return the result as a constant. Raise CompileError for a node that reads bits which the
        chip does not have."""
        source, to = site.x.element_type, site.get("to")
        kinds = [TensorProto.DataType.Name(kind) for kind in (source, to)]
        value = site.facts.value(site.node.input[0])
        if value is not None and value.ndim:
            cast = value.view(helper.tensor_dtype_to_np_dtype(to))
            return op.Constant(value=numpy_helper.from_array(cast))
        if any(_DIGITS.findall(kind)[-1:] == ["64"] or kind == "DOUBLE" for kind in kinds):
            fault = "the chip has no types of 64 bits"
        elif self._precision != "fp32" and "FLOAT16" in kinds:
            fault = "a model in half computes them from floats again"
        else:
            return None
        raise CompileError(
            f"node {describe_node(site.node)}: it reads the bits of {kinds[0]} as those of "
            f"{kinds[1]}, which would be others: {fault}; export the model without BitCast there"
        )


@_settle("settle_bodies", before="constant_folding")
class SettleBodies(Pass):
    """Write the types of inputs and outputs down that bodies of Loop, Scan and If leave out: what
    changes a type looks for it there."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Declare the types. Types that cannot be inferred stay open."""
        untyped = [list(filter(_lacks_type, _borders(graph))) for graph in iter_graphs(model.graph)]
        if not any(untyped[1:]):
            return model
        for open_values, inferred in zip(
            untyped, iter_graphs(infer_shapes(model).graph), strict=True
        ):
            types = {value.name: value.type.tensor_type.elem_type for value in _borders(inferred)}
            for value in open_values:
                if types.get(value.name):
                    value.type.tensor_type.elem_type = types[value.name]
        return model


def _borders(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    return [*graph.input, *graph.output]


def _lacks_type(value: onnx.ValueInfoProto) -> bool:
    kind = value.type.WhichOneof("value")
    return kind is None or (kind == "tensor_type" and not value.type.tensor_type.elem_type)
