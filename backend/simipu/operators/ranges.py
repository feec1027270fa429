"""Ranges of whole numbers: nodes that end a run whose number is out of range, and the inputs and
attributes whose range an engine does not check by itself.

ONNX has no operator that raises an error. A Gather from a tensor of one element at place 1 does:
ONNX Runtime's message has the name of the node, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import STANDARD_DOMAINS, Results, Site, Tape, describe_node

from simipu.errors import LoadError
from simipu.operators.entry import Body, GraphContext, Guard

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_INT64_MIN = -(2**63)
_MAX_AXES = 64
"""More axes than any tensor has."""
_RANGES: Mapping[str, tuple[int, int]] = {
    "axes": (-_MAX_AXES, _MAX_AXES - 1),
    "axis": (-_MAX_AXES, _MAX_AXES - 1),
    "batch_axis": (0, _MAX_AXES - 1),
    "batch_dims": (0, _MAX_AXES - 1),
    "time_axis": (0, _MAX_AXES - 1),
    "group": (1, _INT32_MAX),
    "dilations": (1, _INT32_MAX),
    "strides": (1, _INT32_MAX),
    "kernel_shape": (1, _INT32_MAX),
    "output_height": (1, _INT32_MAX),
    "output_padding": (0, _INT32_MAX),
    "output_width": (1, _INT32_MAX),
    "pooled_shape": (1, _INT32_MAX),
    "sampling_ratio": (0, _INT32_MAX),
    "p": (1, _INT32_MAX),
}
"""Ranges of attributes of standard operators. Those that have none here have 32 bits: ONNX Runtime
and OpenVINO take the lower half of most others, or end the process."""
_WIDE = {
    "Constant": {"value_int", "value_ints"},
    "EyeLike": {"k"},
    "Shape": {"start", "end"},
    "Slice": {"starts", "ends"},
}
"""Attributes that may have any value, by operator: 2^63 - 1 is the end of an axis."""


def find_attribute_fault(node: onnx.NodeProto) -> str:
    """Return which attribute of a node of the standard has a number out of range, or ""."""
    if node.domain not in STANDARD_DOMAINS:
        return ""
    if fault := _find_spread_fault(node):
        return fault
    for entry in node.attribute:
        if entry.type not in (onnx.AttributeProto.INT, onnx.AttributeProto.INTS):
            continue
        least, most = _RANGES.get(entry.name, (_INT32_MIN, _INT32_MAX))
        numbers = [entry.i] if entry.type == onnx.AttributeProto.INT else entry.ints
        wrong = [number for number in numbers if not least <= number <= most]
        if wrong and entry.name not in _WIDE.get(node.op_type, ()):
            return f"attribute {entry.name!r}: expected {least} to {most}, found {wrong[0]}"
    return ""


def _find_spread_fault(node: onnx.NodeProto) -> str:
    """Return what is wrong with a distribution: ONNX Runtime ends the process for a normal one
    without a spread, and for a uniform one whose ends are in the wrong order."""
    values = {entry.name: entry.f for entry in node.attribute}
    scale = values.get("scale", 1.0)
    if node.op_type.startswith("RandomNormal") and not 0 < scale < np.inf:
        return f"attribute 'scale': expected a positive number, found {scale}"
    low, high = values.get("low", 0.0), values.get("high", 1.0)
    if node.op_type.startswith("RandomUniform") and not low <= high:
        return f"attributes 'low' and 'high': expected low <= high, found {low} and {high}"
    return ""


def add_range_check(op: Tape, values: str, limits: tuple[str, str], title: str) -> str:
    """Add nodes that end the run, with `title` in the error's text, unless all `values` (int64) are
    within `limits`, both included. Return the name of the same values: only who reads these has the
    check."""
    is_low, is_high = op.add("Less", values, limits[0]), op.add("Less", limits[1], values)
    place = op.add("Cast", op.add("Or", is_low, is_high), to=TensorProto.INT64)
    inputs = [op.ints([0]), place]
    name = op.new_name()
    op.nodes.append(helper.make_node("Gather", inputs, [name], f"{name}: {title}", axis=0))
    return op.add("Add", values, name)


def narrow_input(place: int, what: str, least: int | None) -> Guard:
    """Return a guard of an operator whose input `place` has numbers of 32 bits from `least` on
    (None: also any negative one). ONNX Runtime
    takes the lower 32 bits of some, and computes others, such as negative lengths, as if they were
    sizes (docs/upstream.md has the reports). OpenVINO does not check them: a constant out of range
    is rejected for every engine."""
    lowest = _INT64_MIN if least is None else least

    def guard(node: onnx.NodeProto, around: GraphContext) -> Body | None:
        name = node.input[place] if len(node.input) > place else ""
        if not name:
            return None
        if name not in around.constants:
            return add_check
        wrong = _find_wrong(around.constants[name], lowest)
        if wrong is not None:
            raise LoadError(f"{describe(node)}, found {wrong}")
        return None

    def describe(node: onnx.NodeProto) -> str:
        expected = f"at most {_INT32_MAX}" if least is None else f"{least} to {_INT32_MAX}"
        return f"{what} of {describe_node(node)}: expected {expected}"

    def add_check(op: Tape, site: Site[GraphContext]) -> Results:
        limits = (op.ints(lowest), op.ints(_INT32_MAX))
        inputs = list(site.node.input)
        wide = op.Cast(inputs[place], to=TensorProto.INT64)
        inputs[place] = add_range_check(op, wide, limits, describe(site.node))
        return op.copy(site.node, inputs)

    return guard


def _find_wrong(constant: onnx.TensorProto, least: int) -> int | None:
    values = numpy_helper.to_array(constant).reshape(-1).tolist()
    return next((value for value in values if not least <= value <= _INT32_MAX), None)
