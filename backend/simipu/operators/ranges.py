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
from onnxgraph import STANDARD_DOMAINS, Chain

from simipu.operators.entry import Body, GraphContext, Guard

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
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
    "output_padding": (0, _INT32_MAX),
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
    """Return which attribute of a node of the standard has a whole number out of range, or ""."""
    if node.domain not in STANDARD_DOMAINS:
        return ""
    for found in node.attribute:
        if found.type not in (onnx.AttributeProto.INT, onnx.AttributeProto.INTS):
            continue
        least, most = _RANGES.get(found.name, (_INT32_MIN, _INT32_MAX))
        numbers = [found.i] if found.type == onnx.AttributeProto.INT else found.ints
        wrong = [number for number in numbers if not least <= number <= most]
        if wrong and found.name not in _WIDE.get(node.op_type, ()):
            return f"attribute {found.name!r}: expected {least} to {most}, found {wrong[0]}"
    return ""


def add_range_check(chain: Chain, values: str, limits: tuple[str, str], title: str) -> str:
    """Add nodes that end the run, with `title` in the error's text, unless all `values` (int64) are
    within `limits`, both included. Return the name of the same values: only who reads these has the
    check."""
    is_low, is_high = chain.add("Less", values, limits[0]), chain.add("Less", limits[1], values)
    place = chain.add("Cast", chain.add("Or", is_low, is_high), to=TensorProto.INT64)
    inputs = [chain.shape([0]), place]
    name = chain.new_name()
    chain.nodes.append(helper.make_node("Gather", inputs, [name], title, axis=0))
    return chain.add("Add", values, name)


def narrow_input(place: int, what: str) -> Guard:
    """Return a guard of an operator of whose input `place` ONNX Runtime takes the lower 32 bits."""

    def guard(node: onnx.NodeProto, around: GraphContext) -> Body | None:
        name = node.input[place] if len(node.input) > place else ""
        known = around.constants.get(name)
        if not name or around.types.get(name) == TensorProto.INT32 or _is_narrow(known):
            return None
        return add_check

    def add_check(chain: Chain, node: onnx.NodeProto, _around: GraphContext) -> None:
        title = (
            f"{what} of {node.op_type} {node.name or node.output[0]}: expected {_INT32_MIN} to "
            f"{_INT32_MAX}"
        )
        limits = (chain.constant(_INT32_MIN, np.int64), chain.constant(_INT32_MAX, np.int64))
        wide = chain.add("Cast", node.input[place], to=TensorProto.INT64)
        checked = onnx.NodeProto()
        checked.CopyFrom(node)
        checked.input[place] = add_range_check(chain, wide, limits, title)
        checked.name = f"{chain.new_name()}/{node.op_type}"
        chain.nodes.append(checked)

    return guard


def _is_narrow(constant: onnx.TensorProto | None) -> bool:
    if constant is None:
        return False
    values = numpy_helper.to_array(constant)
    return bool(((values >= _INT32_MIN) & (values <= _INT32_MAX)).all())
