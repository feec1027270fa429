"""Rules of operators that draw numbers, and of those that act beside computing: they print, end the
run, or change a weight. What they act on becomes an output that no caller asks for; the session
acts on its value."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto
from onnxgraph import Results

from popart.errors import format_shape, popart_exception
from popart.lowering.elementwise import check_type
from popart.lowering.graph import Effect, EffectKind, Graph, Tensor
from popart.lowering.operation import Operation, chip_rule, rule, type_name

_RANDOM = {"Normal": {"mean": 0.0, "scale": 1.0}, "Uniform": {"low": 0.0, "high": 1.0}}
"""Attributes of the distributions, and their defaults."""
_FLAT = 2
"""Number of axes of rows of numbers."""


@rule("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def _draw(op: Graph, node: Operation) -> Results:
    """Numbers are drawn in float; the session seeds the operator."""
    if node.get("seed") is not None:
        raise popart_exception(
            f"{node.identifier}: Optional seed attribute is not supported. Use "
            "session::setRandomSeed instead."
        )
    name, is_like = node.node.op_type.removesuffix("Like"), "Like" in node.node.op_type
    kind = node.get("dtype")
    shape = node.x.shape if is_like else node.get("shape", ())
    element = int(kind or (node.x.element_type if is_like else TensorProto.FLOAT))
    check_type(element)
    parameters = {
        key: float(node.get(key, default))
        for key, default in _RANDOM[name.removeprefix("Random")].items()
    }
    start, spread = parameters.values()
    if name == "RandomUniform":
        spread -= start
    # ONNX Runtime draws from proper distributions only.
    is_proper = spread > 0
    drawn = op.add(
        name, dtype=TensorProto.FLOAT, shape=list(shape), **(parameters if is_proper else {})
    )
    return op.cast(drawn if is_proper else drawn * spread + start, element)


@chip_rule("PrintTensor")
def _print(op: Graph, node: Operation) -> Results:
    """Its input; the session prints its value."""
    title = node.get("title") or node.node.input[0]
    attributes = {entry.name: node.get(entry.name) for entry in node.node.attribute}
    op.add_effect(Effect(EffectKind.PRINT, str(title), attributes), node.x)
    return node.x


@chip_rule("Abort")
def _abort(op: Graph, node: Operation) -> Results:
    """The session raises an error if the value is not zero; without an input always."""
    condition = node.optional(0)
    if condition is None:
        condition = op.constant(np.ones((), np.int32))
    if condition.size > 1:
        raise popart_exception("Conditional abort op can only test a scalar tensor")
    op.add_effect(Effect(EffectKind.ABORT), op.cast(condition, TensorProto.FLOAT))
    return []


@chip_rule("CopyVarUpdate")
def _update_variable(op: Graph, node: Operation) -> Results:
    """The new value, which the variable has from the next run on."""
    variable, updater = node.input(0), node.input(1)
    if (variable.element_type, variable.shape) != (updater.element_type, updater.shape):
        raise popart_exception(
            f"{node.describe()}: the variable is {type_name(variable)} "
            f"{format_shape(variable.shape)}, the updater {type_name(updater)} "
            f"{format_shape(updater.shape)}"
        )
    op.add_effect(Effect(EffectKind.UPDATE, node.node.input[0]), updater)
    return updater


@chip_rule("SplineWeighting")
def _weigh_by_splines(op: Graph, node: Operation) -> Results:
    """Sum over s of basis[e, s] times the product of input[e] and weight[weight_index[e, s]]."""
    x, weights, basis, indices = (node.input(place) for place in range(4))
    for name, tensor, rank in (
        ("input", x, _FLAT),
        ("weight", weights, _FLAT + 1),
        ("basis", basis, _FLAT),
        ("weightIndex", indices, _FLAT),
    ):
        if tensor.rank != rank:
            raise popart_exception(
                f"SplineWeightingOp::setup: {name} tensor is not a {rank}-D tensor. "
                f"{name[0].upper()}{name[1:]} tensor rank = {tensor.rank}."
            )
    chosen = op.Gather(weights, op.cast(indices, TensorProto.INT32), axis=0)
    rows = op.reshape(x, [x.shape[0], 1, 1, x.shape[1]])
    products = op.reshape(op.MatMul(rows, chosen), [*basis.shape, weights.shape[2]])
    return op.ReduceSum(products * op.reshape(basis, [*basis.shape, 1]), axes=[1], keepdims=0)


@chip_rule("SplineBasis")
def _spline_basis(op: Graph, node: Operation) -> Results:
    """B-splines of each coordinate at the knots around it, multiplied over the coordinates.

    Coordinate d of kernel_size k is scaled to k - degree knots if the spline is open, else to k; s
    counts the knots in base degree + 1 (torch-spline-conv, whose operator this is).
    """
    pseudo, sizes, is_open = (node.input(place) for place in range(3))
    for name, tensor, rank in (
        ("pseudo", pseudo, _FLAT),
        ("kernelSize", sizes, 1),
        ("isOpenSpline", is_open, 1),
    ):
        if tensor.rank != rank:
            raise popart_exception(
                f"SplineBasisOp::setup: {name} tensor is not a {rank}-D tensor. "
                f"{name[0].upper()}{name[1:]} tensor rank = {tensor.rank}."
            )
    degree = int(node.get("degree", 0))
    if not 1 <= degree <= 3:  # noqa: PLR2004
        raise popart_exception(
            f"SplineBasisOp::setup: the degree must be 1, 2 or 3, found {degree}"
        )
    edges, coordinates = pseudo.shape
    count = (degree + 1) ** coordinates
    steps = np.arange(count)[:, None] // (degree + 1) ** np.arange(coordinates) % (degree + 1)
    numbers = op.cast(sizes, pseudo.element_type)
    scaled = pseudo * (numbers - op.cast(is_open, pseudo.element_type) * degree)
    first = op.Floor(scaled)
    off = op.reshape(scaled - first, [edges, 1, coordinates])
    values = [_spline(op, off, degree, step) for step in range(degree + 1)]
    stacked = op.Concat(*values, axis=1)
    rows = op.constant(np.broadcast_to(steps, (edges, count, coordinates)).astype(np.int64))
    basis = op.ReduceProd(op.GatherElements(stacked, rows, axis=1), axes=[2], keepdims=0)
    corner = op.reshape(op.cast(first, TensorProto.INT32), [edges, 1, coordinates])
    places = op.Mod(corner + steps, sizes, fmod=0)
    # A stride is the product of the sizes before: the rounded exponential of a sum of logarithms.
    before = op.CumSum(op.Log(op.in_float(numbers)), op.ints(0), exclusive=1)
    strides = op.cast(op.Round(op.Exp(before)), TensorProto.INT32)
    index = op.ReduceSum(places * strides, axes=[2], keepdims=0)
    return [basis, op.cast(index, sizes.element_type)]


def _spline(op: Graph, v: Tensor, degree: int, step: int) -> Tensor:
    """Return the B-spline of a degree at knot `step` as a polynomial of the distance v."""
    coefficients = _SPLINES[degree][step]
    value = op.like(np.full(v.shape, coefficients[-1]), v.element_type)
    for coefficient in reversed(coefficients[:-1]):
        value = value * v + coefficient
    return value


_SPLINES = {
    1: ((1.0, -1.0), (0.0, 1.0)),
    2: ((0.5, -1.0, 0.5), (0.5, 1.0, -1.0), (0.0, 0.0, 0.5)),
    3: (
        (1 / 6, -0.5, 0.5, -1 / 6),
        (4 / 6, 0.0, -1.0, 0.5),
        (1 / 6, 0.5, 0.5, -0.5),
        (0.0, 0.0, 0.0, 1 / 6),
    ),
}
"""Coefficients of the B-splines by degree and knot, of the powers of v from the lowest."""
