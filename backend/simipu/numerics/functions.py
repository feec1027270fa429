"""Functions of one half: replacements, in float, of those whose kernels in ONNX Runtime are not
exact enough, and tables of all 65,536 values.

No result of any half is more than 0.501 units in the last place from the exact one. With a table an
activation of several operators becomes one lookup, which is bit-identical to the operators in
sequence. A region is computed element by element from one tensor in half and from constants:

    x -> Sigmoid -> s        root x: s, y
    x, s -> Mul -> y         y is read outside the region: y = table[x]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxgraph import (
    ByOperator,
    Site,
    Tape,
    Value,
    attribute,
    expand,
    has_data,
    iter_reads,
    make_identity,
)

from simipu.errors import LoadError
from simipu.numerics.half import HALVES, IR_VERSION
from simipu.numerics.kernels import BINARY
from simipu.operators import Rounding, operator_of

Function = Callable[[Tape, Site[Any]], Value]
"""Expansion of a function of the first input, with a result that is not rounded."""
_HALF_BITS, _DOUBLE_BITS = 11, 53
_MIN_HALF, _MIN_NORMAL, _FAR = 2.0**-24, 2.0**-14, 2.0**17
"""Smallest half, smallest normal half, and a number larger than all halves."""
_SATURATED = 100.0
"""Input at which the gate of Mish is 1 and the square of e^x is still finite."""
_TAIL_DEGREE, _TAIL_END, _BEYOND_TAIL = 9, 6.0, 64.0
"""Degree of the polynomial of `_fit_tail`, the end of its range, where the tail is less than the
smallest half, and an input at which the tail is 0 in float."""

_FUNCTIONS = ByOperator[Function]()
"""Functions whose kernels are not exact enough, found by comparing all halves."""


def function_of(node: onnx.NodeProto) -> Function | None:
    """Return the function that replaces ONNX Runtime's kernel for a node, or None to keep the
    kernel."""
    if node.op_type == "Gelu" and attribute(node, "approximate", b"none") != b"none":
        return None
    return None if node.domain else _FUNCTIONS.get(node.op_type)


def compute_float(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the nodes that compute a node whose result is no half. A Celu, which the standard has
    in float only, between casts from and to half, is replaced; other nodes are returned
    unchanged."""
    if node.op_type != "Celu" or node.domain:
        return [node]
    return expand(node, _celu, Tape(f"{node.output[0]}/function"))


@_FUNCTIONS.register("Sigmoid")
def _sigmoid(op: Tape, site: Site[Any]) -> Value:
    """Add 1 / (1 + e^-x). ONNX Runtime uses a rational function, which is inexact for small
    results."""
    one = op.constant(1.0)
    return one / (one + op.Exp(-site.x))


@_FUNCTIONS.register("HardSigmoid")
def _hard_sigmoid(op: Tape, site: Site[Any]) -> Value:
    value = _widen(op, site) * _float(site.get("alpha", 0.2)) + _float(site.get("beta", 0.5))
    return _find_nearest(op, op.Min(op.Max(value, 0), 1))


@_FUNCTIONS.register("LeakyRelu")
def _leaky_relu(op: Tape, site: Site[Any]) -> Value:
    product = _widen(op, site) * _float(site.get("alpha", 0.01))
    return op.Where(op.Less(site.x, 0.0), _find_nearest(op, product), site.x)


@_FUNCTIONS.register("Mish")
def _mish(op: Tape, site: Site[Any]) -> Value:
    """Add x tanh(log(1 + e^x)), as x n / (n + 2) with n = e^x (e^x + 2), which loses no precision
    for small results."""
    x = _widen(op, site)
    power = op.Exp(op.Min(x, _SATURATED))
    n = power * (power + 2)
    return _find_nearest(op, x * (n / (n + 2)))


@_FUNCTIONS.register("Swish")
def _swish(op: Tape, site: Site[Any]) -> Value:
    """Add x / (1 + e^(-alpha x)), with a gate of 0 for -inf as well."""
    x = _widen(op, site)
    power = op.Exp(x * _float(-site.get("alpha", 1.0)))
    return _find_nearest(op, x * (1 / (1 + power)))


@_FUNCTIONS.register("HardSwish")
def _hard_swish(op: Tape, site: Site[Any]) -> Value:
    """Add x min(max(x + 3, 0), 6) / 6."""
    x = _widen(op, site)
    gate = op.Min(op.Max(x + 3, 0), 6) / 6
    return _find_nearest(op, x * gate)


def _widen(op: Tape, site: Site[Any]) -> Value:
    return op.Cast(site.x, to=TensorProto.DOUBLE)


def _float(value: float) -> float:
    """Return the float of an attribute, which ONNX keeps in 32 bits, as a double."""
    return float(np.float32(value))


def _find_nearest(op: Tape, value: Value) -> Value:
    """Add nodes that convert a double of any size to the nearest half, as a float. Rounding it to
    the nearest float first would create a tie between two halves in one of 300 cases."""
    # Adding and subtracting something large leaves the leading bits, rounded to nearest even: a
    # multiple of the value itself (Veltkamp's splitting), or a constant for subnormals.
    multiple = value * (2.0 ** (_DOUBLE_BITS - _HALF_BITS) + 1)
    normal = multiple - (multiple - value)
    anchor = op.constant(1.5 * 2.0 ** (_DOUBLE_BITS - 1) * _MIN_HALF, np.float64)
    subnormal = value + anchor - anchor
    size = op.Abs(value)
    is_small, is_near = op.Less(size, _MIN_NORMAL), op.Less(size, _FAR)
    leading = op.Where(is_small, subnormal, normal)
    # Infinity minus infinity is NaN.
    return op.Cast(op.Where(is_near, leading, value), to=TensorProto.FLOAT)


@_FUNCTIONS.register("Elu")
def _elu(op: Tape, site: Site[Any]) -> Value:
    return _bend(op, site.x, site.get("alpha", 1.0))


@_FUNCTIONS.register("Celu")
def _celu(op: Tape, site: Site[Any]) -> Value:
    alpha = site.get("alpha", 1.0)
    return _bend(op, site.x, alpha, unit=alpha)


@_FUNCTIONS.register("Selu")
def _selu(op: Tape, site: Site[Any]) -> Value:
    alpha = site.get("alpha", 1.67326319217681884765625)
    gamma = float(site.get("gamma", 1.05070102214813232421875))
    return _bend(op, site.x, alpha) * gamma


def _bend(op: Tape, x: Value, alpha: float, unit: float = 1.0) -> Value:
    """Add x, or below zero alpha (e^(x / unit) - 1). The latter is computed as 2 t / (1 - t), with
    t the hyperbolic tangent of its half, which loses no precision for small x."""
    tangent = op.Tanh(op.Min(x, 0.0) / (2.0 * unit))
    negative = tangent * 2.0 / (1.0 - tangent) * alpha
    return op.Where(op.Greater(x, 0.0), x, negative)


@_FUNCTIONS.register("Gelu")
def _gelu(op: Tape, site: Site[Any]) -> Value:
    """Add max(x, 0) minus |x| times the tail of the normal distribution beyond |x|. On the left, 1
    + erf(x) would lose all precision."""
    # Bounded, so that an infinity is not multiplied by the tail of 0.
    size = op.Min(op.Abs(site.x), _BEYOND_TAIL)
    at = op.Reciprocal(size * 0.5 + 1.0)
    *others, last = _fit_tail()
    power = op.constant(last)
    for coefficient in reversed(others):
        power = power * at + coefficient
    tail = at * op.Exp(power - size * size * 0.5)
    return op.Relu(site.x) - size * tail


@cache
def _fit_tail() -> tuple[float, ...]:
    """Return the coefficients of the polynomial p, lowest first. With t = 1 / (1 + x / 2), t
    e^(p(t) - x^2 / 2) is the tail of the normal distribution beyond x."""
    x = np.linspace(0, _TAIL_END, 601)
    t = 1 / (1 + x / 2)
    tails = np.array([math.erfc(number / math.sqrt(2)) / 2 for number in x])
    return tuple(np.polyfit(t, np.log(tails / t) + x * x / 2, _TAIL_DEGREE)[::-1].tolist())


Lower = Callable[[onnx.ModelProto], onnx.ModelProto]
"""Function that converts a placed graph to the computed one, without kernels."""
_MAX_NODES, _WORTH_NODES = 32, 3
"""Maximum number of nodes of a function, and the number from which a lookup is faster than nodes
that are each as fast as one."""
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
        if len(self.nodes) >= _WORTH_NODES:
            return True
        return not all(_is_cheap(nodes[place]) for place in self.nodes)


def _is_cheap(node: onnx.NodeProto) -> bool:
    """Return whether an operator is a step, or as fast as a lookup."""
    return node.op_type in BINARY or operator_of(node).rounding is Rounding.EXACT


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
    read = {value.name for value in graph.output}
    for node in graph.node:
        inside = worth.get(node.output[0]) if node.output else None
        for name in iter_reads(node):
            if name in worth and not (inside and inside.root == worth[name].root):
                read.add(name)
    tables: dict[str, Table] = {}
    functions: dict[bytes, npt.NDArray[np.float16] | None] = {}
    for name, region in worth.items():
        if name not in read:
            continue
        function = _make_function(graph.node, region, name, constants, opsets)
        key = function.SerializeToString(deterministic=True)
        if key not in functions and len(functions) < MAX_TABLES:
            functions[key] = _tabulate(lower(function).SerializeToString(deterministic=True))
        values = functions.get(key)
        if values is not None:
            tables[name] = Table(region.root, values)
    return tables


def _find_constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return the constants of one element."""
    scalars = {
        tensor.name: tensor
        for tensor in graph.initializer
        if math.prod(tensor.dims) == 1 and has_data(tensor)
    }
    for node in graph.node:
        for entry in node.attribute:
            is_tensor = node.op_type == "Constant" and entry.type == onnx.AttributeProto.TENSOR
            if is_tensor and math.prod(entry.t.dims) == 1:
                scalars[node.output[0]] = entry.t
    return scalars


def _find_regions(
    nodes: Sequence[onnx.NodeProto],
    shapes: Mapping[str, object],
    halves: set[str],
    constants: Mapping[str, onnx.TensorProto],
) -> dict[str, _Region]:
    regions: dict[str, _Region] = {}
    for place, node in enumerate(nodes):
        is_function = operator_of(node).is_elementwise and len(node.output) == 1
        if not is_function or node.output[0] not in halves:
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
        places = sorted(
            {place, *(inner_place for region in inside for inner_place in region.nodes)}
        )
        if len(places) <= _MAX_NODES:
            regions[node.output[0]] = _Region(root, tuple(places))
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
    return _make_model(copies, names[result], opsets, values)


def _make_model(
    nodes: Sequence[onnx.NodeProto],
    result: str,
    opsets: Sequence[Any],
    values: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """Return a function of x as a model, of all halves to y."""
    half = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [HALVES]) for name in "xy"]
    nodes = [*nodes, make_identity(result, "y", "")]
    graph = helper.make_graph(nodes, "function", half[:1], half[1:], values)
    return helper.make_model(graph, opset_imports=list(opsets), ir_version=IR_VERSION)


def is_hard_swish(values: npt.NDArray[np.float16]) -> bool:
    """Return whether a table has what `v_hard_swish` of vectors.h computes of all finite halves:
    the same floats are computed here."""
    halves = np.arange(HALVES, dtype=np.uint16).view(np.float16)
    finite = np.isfinite(halves)
    x = halves[finite].astype(np.float32)
    gate = np.minimum(np.maximum(x + np.float32(3), np.float32(0)), np.float32(6))
    swish = (x * gate * np.float32(1 / 6)).astype(np.float16) + np.float16(0)
    swish[x == _MIN_HALF] = _MIN_HALF
    return np.array_equal(swish.view(np.uint16), values[finite].view(np.uint16))


def tabulate(op: Tape, result: str, opset: int, lower: Lower) -> npt.NDArray[np.float16]:
    """Return the values of all halves x of the function that the nodes of a tape compute."""
    model = _make_model(op.nodes, result, [helper.make_opsetid("", opset)])
    values = _tabulate(lower(model).SerializeToString(deterministic=True))
    if values is None:
        raise LoadError(
            f"activation function {op.prefix}: ONNX Runtime cannot compute it in opset {opset}; "
            "convert the model to opset 17"
        )
    return values


@lru_cache(maxsize=MAX_TABLES)
def _tabulate(model: bytes) -> npt.NDArray[np.float16] | None:
    """Return a function's values of all halves, or None if ONNX Runtime cannot compute it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    # Else the table, which is kept, keeps the whole arena of the session.
    options.enable_cpu_mem_arena = False
    halves = np.arange(HALVES, dtype=np.uint16).view(np.float16)
    try:
        session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
        values: npt.NDArray[np.float16] = session.run(["y"], {"x": halves})[0]
    except Exception:  # noqa: BLE001  no common base; the nodes report the error
        return None
    return values
