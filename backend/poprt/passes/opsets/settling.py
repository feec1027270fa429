"""Passes that rewrite nodes whose attributes ONNX's shape inference, ONNX Runtime and the
specification interpret differently. After these passes all three agree."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    NUMPY_FLOATS,
    GraphView,
    NodeBuilder,
    attribute,
    drop_attribute,
    infer_shapes,
    iter_graphs,
    set_attribute,
)
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

    op_types = _POOLS | {"Conv", "ConvTranspose"}

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Return the node with explicit padding, if it needs it."""
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
        found = window.find_pads()
        if found is None and window.exceeds_stride:
            found = window.explicit_pads
        if found is None and not window.rounds_twice:
            return None
        made = copy.deepcopy(node)
        drop_attribute(made, "ceil_mode")
        around = view.start(node, "padded")
        result, rests = window.sizes(found), [(0, 0)] * len(kernel)
        if found is not None and window.exceeds_stride:
            found, rests = window.split_output_padding(found)
            drop_attribute(made, "output_padding")
        if found is not None:
            drop_attribute(made, "auto_pad")
            drop_attribute(made, "output_shape")
            pads = [before for before, _ in found] + [behind for _, behind in found]
            kind = view.type(node.input[0])
            if (
                kind in NUMPY_FLOATS
                and view.opset >= PAD_TAKES_SIZES
                and _is_padded_apart(node, pads, kernel)
            ):
                made.input[0] = _pad_apart(around, node, pads, kind)
                pads = [0] * len(pads)
            set_attribute(made, "pads", pads)
        sizes = view.shape(node.output[0])
        self._is_stale = sizes is None or list(sizes[_SPATIAL:]) != result
        if any(map(any, rests)):
            _append_zeros(around, made, rests, view.type(node.input[0]))
        else:
            around.nodes.append(made)
        return around.nodes


def _append_zeros(
    around: NodeBuilder, made: onnx.NodeProto, rests: Sequence[tuple[int, int]], kind: int
) -> None:
    """Add a ConvTranspose; behind each spatial axis of its result so many zeros, to which its bias
    is added too; and cut so many positions off before it."""
    rank, name, bias = _SPATIAL + len(rests), made.output[0], made.input[2:3]
    del made.input[2:]
    made.output[0] = last = around.new_name()
    around.nodes.append(made)
    for axis, (count, cut) in enumerate(rests, _SPATIAL):
        if count:
            dtype = helper.tensor_dtype_to_np_dtype(kind)
            last = around.pad(last, rank, axis - rank, count, 0, dtype)
        if cut:
            last = around.slice(last, cut, _INT32_MAX, axis)
    if any(bias):
        channels = around.shape([1, -1, *[1] * len(rests)])
        around.add("Add", last, around.add("Reshape", bias[0], channels))
    around.nodes[-1].output[0] = name


def _is_padded_apart(node: onnx.NodeProto, pads: Sequence[int], kernel: Sequence[int]) -> bool:
    """Return whether a Pad has to pad a pool. ONNX Runtime rejects padding of at least the kernel's
    size. A Pad cannot replace padding that is counted, or where elements are numbered."""
    has_indices = len(node.output) > 1 and bool(node.output[1])
    is_simple = node.op_type == "LpPool" or (node.op_type == "MaxPool" and not has_indices)
    return is_simple and any(
        pad >= size for pad, size in zip(pads, [*kernel, *kernel], strict=True)
    )


def _pad_apart(around: NodeBuilder, node: onnx.NodeProto, pads: Sequence[int], kind: int) -> str:
    """Add a Pad with the value that does not change the pool's result."""
    half = len(pads) // 2
    sizes = around.shape([0, 0, *pads[:half], 0, 0, *pads[half:]])
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    value = around.constant(-np.inf if node.op_type == "MaxPool" else 0.0, dtype)
    return around.add("Pad", node.input[0], sizes, value)


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
        """Return whether ONNX Runtime rejects a pool because a window smaller than its stride gives
        a negative padding."""
        is_refused = self._node.op_type == "MaxPool" or (
            self._node.op_type == "AveragePool"
            and not attribute(self._node, "count_include_pad", 0)
        )
        return is_refused and any(extent < stride for _, extent, stride in self._axes)

    def _find_same(self) -> Pads:
        totals = [
            max(0, (-(-size // stride) - 1) * stride + extent - size)
            for size, extent, stride in self._axes
        ]
        return [self._part(total, is_upper=self._auto == "SAME_UPPER") for total in totals]

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
        wanted = list(attribute(self._node, "output_shape") or [])[-len(self._axes) :]
        added = self._output_padding()
        if not wanted and not (self._auto in _SAME and any(added)):
            return None
        sizes = wanted or [size * stride for size, _, stride in self._axes]
        whole = self.sizes([(0, 0)] * len(self._axes))
        totals = [size - want for size, want in zip(whole, sizes, strict=True)]
        if min(totals) < 0:
            if wanted:
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
    given: Sequence[int] | None = attribute(node, "kernel_shape")
    if given is not None or node.op_type in _POOLS:
        return given
    shape = view.shape(node.input[1])
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

    op_types = frozenset(("GRU", "LSTM", "RNN"))
    needs_shapes = False

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Return the node with steps first, between Transposes."""
        if not attribute(node, "layout", 0):
            return None
        made = copy.deepcopy(node)
        drop_attribute(made, "layout")
        around = view.start(node, "steps_first")
        for place in (0, *_STATES):
            if node.input[place : place + 1] not in ([], [""]):
                made.input[place] = around.add("Transpose", node.input[place], perm=_ROWS_FIRST)
        around.nodes.append(made)
        for place, name in enumerate(node.output):
            if name:
                made.output[place] = around.new_name()
                perm = _ROWS_FIRST if place else _OUTPUT
                around.add_as(name, "Transpose", made.output[place], perm=perm)
        return around.nodes


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

    def replace(self, node: onnx.NodeProto, _view: GraphView) -> list[onnx.NodeProto] | None:
        """Return the node with the attribute, if it lacks it."""
        name, default = _DEFAULTS[node.op_type]
        if attribute(node, name) is not None:
            return None
        made = copy.deepcopy(node)
        set_attribute(made, name, default)
        return [made]


@_settle("settle_slices", before="constant_folding")
class SettleSlices(_Reshaping):
    """Limit the starts of Slices of opsets before 10 to their axes, because ONNX's shape inference
    finds no size for a start before the first element, counted from the end."""

    op_types = frozenset(("Slice",))

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Return the node with bounds within the axis."""
        shape, starts = view.shape(node.input[0]), attribute(node, "starts")
        if shape is None or starts is None:
            return None
        axes = attribute(node, "axes") or range(len(starts))
        made = copy.deepcopy(node)
        for name in ("starts", "ends"):
            bounds = zip(attribute(node, name), axes, strict=True)
            set_attribute(made, name, [max(bound, -shape[axis]) for bound, axis in bounds])
        if made == node:
            return None
        self._is_stale = True
        return [made]


@_settle("settle_slopes", before="constant_folding")
class SettleSlopes(_Reshaping):
    """Expand the input of a PRelu to the shape of a larger slope, because ONNX's shape inference
    gives the result the input's shape, while ONNX Runtime broadcasts both."""

    op_types = frozenset(("PRelu",))

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Return the node behind an Expand, if its slope has more axes or larger sizes."""
        source, slope = (view.shape(name) for name in node.input)
        if self._is_stale or source is None or slope is None or view.opset < EXPAND_EXISTS:
            return None
        try:
            shape = np.broadcast_shapes(source, slope)
        except ValueError:
            return None
        if shape == tuple(source):
            return None
        made = copy.deepcopy(node)
        around = view.start(node, "expanded")
        made.input[0] = around.add("Expand", node.input[0], around.shape(shape))
        around.nodes.append(made)
        self._is_stale = True
        return around.nodes


@_settle("settle_conditions", before="constant_folding")
class SettleConditions(NodeRule):
    """Write a Compress whose condition is a constant as a Gather, whose size is known."""

    op_types = frozenset(("Compress",))

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Return a Gather of the chosen elements by their indices. Without an axis the input is
        flattened first."""
        condition = view.value(node.input[1])
        if condition is None:
            return None
        around, axis = view.start(node, "picked"), attribute(node, "axis")
        source = node.input[0]
        if axis is None:
            source = around.add("Reshape", source, around.shape([-1]))
        places = around.constant(np.flatnonzero(condition), np.int64)
        around.add_as(node.output[0], "Gather", source, places, axis=axis or 0)
        return around.end(node)


_DIGITS = re.compile(r"\d+")


@_settle("settle_bits", takes="precision", before="half_to_float double_to_float constant_folding")
class SettleBits(NodeRule):
    """Compute BitCasts of constants while their types are those that were given, and refuse those
    whose bits the conversion would change: of 64 bits, and of halves where a model becomes one in
    half."""

    op_types = frozenset(("BitCast",))

    def __init__(self, precision: str = "fp32") -> None:
        super().__init__()
        self._precision = precision

    def replace(self, node: onnx.NodeProto, view: GraphView) -> list[onnx.NodeProto] | None:
        """Return the result as a constant. Raise CompileError for a node that reads bits which the
        chip does not have."""
        source, to = view.type(node.input[0]), attribute(node, "to")
        kinds = [TensorProto.DataType.Name(kind) for kind in (source, to)]
        value = view.value(node.input[0])
        if value is not None and value.ndim:
            cast = value.view(helper.tensor_dtype_to_np_dtype(to))
            made = numpy_helper.from_array(cast, node.output[0])
            return [helper.make_node("Constant", [], node.output, node.name, value=made)]
        if any(_DIGITS.findall(kind)[-1:] == ["64"] or kind == "DOUBLE" for kind in kinds):
            fault = "the chip has no types of 64 bits"
        elif self._precision != "fp32" and "FLOAT16" in kinds:
            fault = "a model in half computes them from floats again"
        else:
            return None
        raise CompileError(
            f"node {describe_node(node)}: it reads the bits of {kinds[0]} as those of {kinds[1]}, "
            f"which would be others: {fault}; export the model without BitCast there"
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
        for open_values, known in zip(untyped, iter_graphs(infer_shapes(model).graph), strict=True):
            types = {value.name: value.type.tensor_type.elem_type for value in _borders(known)}
            for value in open_values:
                if types.get(value.name):
                    value.type.tensor_type.elem_type = types[value.name]
        return model


def _borders(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    return [*graph.input, *graph.output]


def _lacks_type(value: onnx.ValueInfoProto) -> bool:
    kind = value.type.WhichOneof("value")
    return kind is None or (kind == "tensor_type" and not value.type.tensor_type.elem_type)
