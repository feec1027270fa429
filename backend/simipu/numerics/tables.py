"""Functions of one half as tables of all 65,536 values. An activation of several operators becomes
one lookup, which is bit-identical to the operators in sequence.

A region is computed element by element from one tensor in half and from constants:

    x -> Sigmoid -> s        root x: s, y
    x, s -> Mul -> y         y is read outside the region: y = table[x]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxgraph.building import make_identity

from simipu.numerics.half import HALVES
from simipu.numerics.operator_fusion import list_taken

Lower = Callable[[onnx.ModelProto], onnx.ModelProto]
"""Function that converts a placed graph to the computed one, without kernels."""
_FUNCTIONS = frozenset(
    "Abs Acos Acosh Asin Asinh Atan Atanh Celu Ceil Clip Cos Cosh Elu Erf ErfV2 Exp Floor Gelu "
    "HardSigmoid HardSwish Identity LeakyRelu Log Mish Neg Reciprocal Relu Round Selu Sigmoid Sign "
    "Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu".split()
)
"""Operators whose result is a function of one half, if their other inputs are constants. An
operator that is missing here is computed by its kernel, which is only slower."""
_CHEAP = frozenset("Abs Add Clip Div Identity Max Min Mul Neg Relu Sub".split())
"""Operators that are steps, or as fast as a lookup."""
_OPERATORS = _FUNCTIONS | frozenset("Add Div Max Min Mul Pow Sub".split())
"""Those, and operators that are such functions if an operand is a constant."""
_MAX_NODES, _WORTH_NODES = 32, 3
MAX_TABLES = 64
"""Maximum number of tables of a graph, 128 KiB and some milliseconds each: further functions are
computed by their operators."""


@dataclass(frozen=True, slots=True)
class Table:
    """A tensor that is a function of another, with its value for each half, by the half's bits."""

    root: str
    values: npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class _Region:
    root: str
    nodes: tuple[int, ...]

    def is_worth(self, nodes: Sequence[onnx.NodeProto]) -> bool:
        """Return whether a lookup is faster than its nodes."""
        operators = {nodes[place].op_type for place in self.nodes}
        return bool(operators - _CHEAP) or len(self.nodes) >= _WORTH_NODES


def find_tables(
    graph: onnx.GraphProto,
    shapes: Mapping[str, object],
    halves: set[str],
    opsets: Sequence[Any],
    lower: Lower,
) -> dict[str, Table]:
    """Return the tensors of a graph of the chip's types that lookups can compute, and that a node
    other than such a lookup reads. `lower` lowers the operators to compute the tables."""
    # Every tensor of a region is a function of its root. Only those that something outside the
    # region reads need a table: the outputs of the graph, and what nodes of other regions, or of
    # none, read. Equal functions share a table.
    constants = _find_constants(graph)
    regions = _find_regions(graph.node, shapes, halves, constants)
    worth = {name: region for name, region in regions.items() if region.is_worth(graph.node)}
    taken = {value.name for value in graph.output}
    for node in graph.node:
        inside = worth.get(node.output[0]) if node.output else None
        for name in list_taken(node):
            if name in worth and not (inside and inside.root == worth[name].root):
                taken.add(name)
    found: dict[str, Table] = {}
    functions: dict[bytes, npt.NDArray[np.float16] | None] = {}
    for name, region in worth.items():
        if name not in taken:
            continue
        function = _make_function(graph.node, region, name, constants, opsets)
        key = function.SerializeToString(deterministic=True)
        if key not in functions and len(functions) < MAX_TABLES:
            functions[key] = _tabulate(lower(function).SerializeToString(deterministic=True))
        values = functions.get(key)
        if values is not None:
            found[name] = Table(region.root, values)
    return found


def _find_constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return the constants of one element."""
    found = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_location != TensorProto.EXTERNAL and math.prod(tensor.dims) == 1
    }
    for node in graph.node:
        for each in node.attribute:
            is_tensor = node.op_type == "Constant" and each.type == onnx.AttributeProto.TENSOR
            if is_tensor and math.prod(each.t.dims) == 1:
                found[node.output[0]] = each.t
    return found


def _find_regions(
    nodes: Sequence[onnx.NodeProto],
    shapes: Mapping[str, object],
    halves: set[str],
    constants: Mapping[str, onnx.TensorProto],
) -> dict[str, _Region]:
    regions: dict[str, _Region] = {}
    for place, node in enumerate(nodes):
        if node.op_type not in _OPERATORS or len(node.output) != 1 or node.output[0] not in halves:
            continue
        variables = [name for name in node.input if name and name not in constants]
        inside = [regions.get(name, _Region(name, ())) for name in variables]
        roots = {region.root for region in inside}
        if len(roots) != 1 or not halves.issuperset(roots):
            continue
        (root,) = roots
        # A constant of more axes than the value would change its shape.
        if shapes.get(root) is None or shapes.get(node.output[0]) != shapes[root]:
            continue
        found = sorted({place, *(each for region in inside for each in region.nodes)})
        if len(found) <= _MAX_NODES:
            regions[node.output[0]] = _Region(root, tuple(found))
    return regions


def _make_function(
    nodes: Sequence[onnx.NodeProto],
    region: _Region,
    result: str,
    constants: Mapping[str, onnx.TensorProto],
    opsets: Sequence[Any],
) -> onnx.ModelProto:
    """Return a region as a model of its own, from all halves x to y. Its tensors are renamed, so
    that equal functions give equal models."""
    names = {region.root: "x", "": ""}
    copies: list[onnx.NodeProto] = []
    values: list[onnx.TensorProto] = []
    for place in region.nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(nodes[place])
        for name in copy.input:
            if name not in names:
                names[name] = f"c{len(names)}"
                tensor = onnx.TensorProto()
                tensor.CopyFrom(constants[name])
                tensor.name = names[name]
                del tensor.dims[:]
                values.append(tensor)
        names[copy.output[0]] = f"t{len(names)}"
        copy.input[:] = [names[name] for name in copy.input]
        copy.output[:] = [names[copy.output[0]]]
        copy.ClearField("name")
        copies.append(copy)
    copies.append(make_identity(names[result], "y", ""))
    half = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [HALVES]) for name in "xy"]
    graph = helper.make_graph(copies, "function", half[:1], half[1:], values)
    return helper.make_model(graph, opset_imports=list(opsets), ir_version=_IR_VERSION)


_IR_VERSION = 9
"""IR version that every supported ONNX Runtime reads."""


@lru_cache(maxsize=MAX_TABLES)
def _tabulate(model: bytes) -> npt.NDArray[np.float16] | None:
    """Return a function's values of all halves, or None if ONNX Runtime cannot compute it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    halves = np.arange(HALVES, dtype=np.uint16).view(np.float16)
    try:
        session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
        values: npt.NDArray[np.float16] = session.run(["y"], {"x": halves})[0]
    except Exception:  # noqa: BLE001  no common base; the nodes report the error
        return None
    return values
