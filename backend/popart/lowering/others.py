"""Rules of operators that draw numbers, and of those that act beside computing: they print, end the
run, or change a weight. What they act on becomes an output that no caller asks for; the session
acts on its value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from popart.errors import format_shape, popart_exception
from popart.lowering.elementwise import check_type
from popart.lowering.graph import Effect, EffectKind, Tensor
from popart.lowering.operation import Operation, chip_rule, rule, type_name

_RANDOM = {"Normal": {"mean": 0.0, "scale": 1.0}, "Uniform": {"low": 0.0, "high": 1.0}}
"""Attributes of the distributions, and their defaults."""
_FLAT = 2
"""Number of axes of rows of numbers."""


@rule("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def _draw(operation: Operation) -> Sequence[Tensor]:
    """Numbers are drawn in float; the session seeds the operator."""
    if operation.attribute("seed") is not None:
        raise popart_exception(
            f"{operation.identifier}: Optional seed attribute is not supported. Use "
            "session::setRandomSeed instead."
        )
    name, is_like = operation.node.op_type.removesuffix("Like"), "Like" in operation.node.op_type
    kind = operation.attribute("dtype")
    shape = operation.x.shape if is_like else operation.attribute("shape", ())
    element = int(kind or (operation.x.type if is_like else TensorProto.FLOAT))
    check_type(element)
    kept = {
        key: float(operation.attribute(key, default))
        for key, default in _RANDOM[name.removeprefix("Random")].items()
    }
    start, spread = kept.values()
    if name == "RandomUniform":
        spread -= start
    if spread > 0:
        made = operation.add(name, dtype=TensorProto.FLOAT, shape=list(shape), **kept)
        return [operation.cast(made, element)]
    # ONNX Runtime draws from proper distributions only.
    made = operation.add(name, dtype=TensorProto.FLOAT, shape=list(shape))
    scaled = operation.add("Mul", made, operation.constant(np.float32(spread)))
    moved = operation.add("Add", scaled, operation.constant(np.float32(start)))
    return [operation.cast(moved, element)]


@chip_rule("PrintTensor")
def _print(operation: Operation) -> Sequence[Tensor]:
    """Its input; the session prints its value."""
    title = operation.attribute("title") or operation.node.input[0]
    attributes = {entry.name: operation.attribute(entry.name) for entry in operation.node.attribute}
    operation.graph.add_effect(Effect(EffectKind.PRINT, str(title), attributes), operation.x)
    return [operation.x]


@chip_rule("Abort")
def _abort(operation: Operation) -> Sequence[Tensor]:
    """The session raises an error if the value is not zero; without an input always."""
    condition = operation.optional(0)
    if condition is None:
        condition = operation.constant(np.ones((), np.int32))
    if condition.size > 1:
        raise popart_exception("Conditional abort op can only test a scalar tensor")
    operation.graph.add_effect(
        Effect(EffectKind.ABORT), operation.cast(condition, TensorProto.FLOAT)
    )
    return []


@chip_rule("CopyVarUpdate")
def _update_variable(operation: Operation) -> Sequence[Tensor]:
    """The new value, which the variable has from the next run on."""
    variable, updater = operation.input(0), operation.input(1)
    if (variable.type, variable.shape) != (updater.type, updater.shape):
        raise popart_exception(
            f"{operation.describe()}: the variable is {type_name(variable)} "
            f"{format_shape(variable.shape)}, the updater {type_name(updater)} "
            f"{format_shape(updater.shape)}"
        )
    operation.graph.add_effect(Effect(EffectKind.UPDATE, operation.node.input[0]), updater)
    return [updater]


@chip_rule("SplineWeighting")
def _weigh_by_splines(operation: Operation) -> Sequence[Tensor]:
    """Sum over s of basis[e, s] times the product of input[e] and weight[weight_index[e, s]]."""
    x, weights, basis, indices = (operation.input(place) for place in range(4))
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
    chosen = operation.add("Gather", weights, operation.cast(indices, TensorProto.INT32), axis=0)
    rows = operation.reshape(x, [x.shape[0], 1, 1, x.shape[1]])
    made = operation.add("MatMul", rows, chosen)
    made = operation.reshape(made, [*basis.shape, weights.shape[2]])
    share = operation.reshape(basis, [*basis.shape, 1])
    axes = operation.numbers(np.asarray([1]))
    return [operation.add("ReduceSum", operation.add("Mul", made, share), axes, keepdims=0)]


@chip_rule("SplineBasis")
def _spline_basis(operation: Operation) -> Sequence[Tensor]:
    """B-splines of each coordinate at the knots around it, multiplied over the coordinates.

    Coordinate d of kernel_size k is scaled to k - degree knots if the spline is open, else to k; s
    counts the knots in base degree + 1 (torch-spline-conv, whose operator this is).
    """
    pseudo, sizes, is_open = (operation.input(place) for place in range(3))
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
    degree = int(operation.attribute("degree", 0))
    if not 1 <= degree <= 3:  # noqa: PLR2004
        raise popart_exception(
            f"SplineBasisOp::setup: the degree must be 1, 2 or 3, found {degree}"
        )
    edges, coordinates = pseudo.shape
    count = (degree + 1) ** coordinates
    steps = np.arange(count)[:, None] // (degree + 1) ** np.arange(coordinates) % (degree + 1)
    numbers = operation.cast(sizes, pseudo.type)
    opened = operation.cast(is_open, pseudo.type)
    knots = operation.add(
        "Sub", numbers, operation.add("Mul", opened, operation.like(degree, pseudo))
    )
    scaled = operation.add("Mul", pseudo, knots)
    first = operation.add("Floor", scaled)
    off = operation.reshape(operation.add("Sub", scaled, first), [edges, 1, coordinates])
    values = [_spline(operation, off, degree, step) for step in range(degree + 1)]
    stacked = operation.add("Concat", *values, axis=1)
    rows = operation.constant(np.broadcast_to(steps, (edges, count, coordinates)).astype(np.int64))
    axes = operation.numbers(np.asarray([2]))
    basis = operation.add(
        "ReduceProd", operation.add("GatherElements", stacked, rows, axis=1), axes, keepdims=0
    )
    whole = operation.reshape(operation.cast(first, TensorProto.INT32), [edges, 1, coordinates])
    places = operation.add("Add", whole, operation.constant(steps.astype(np.int32)))
    places = operation.add("Mod", places, sizes, fmod=0)
    before = operation.add(
        "CumSum",
        operation.add("Log", operation.in_float(numbers)),
        operation.numbers(np.int64(0)),
        exclusive=1,
    )
    strides = operation.cast(
        operation.add("Round", operation.add("Exp", before)), TensorProto.INT32
    )
    index = operation.add("ReduceSum", operation.add("Mul", places, strides), axes, keepdims=0)
    return [basis, operation.cast(index, sizes.type)]


def _spline(operation: Operation, v: Tensor, degree: int, step: int) -> Tensor:
    """Return the B-spline of a degree at knot `step` as a polynomial of the distance v."""
    coefficients = _SPLINES[degree][step]
    found = operation.like(np.full(v.shape, coefficients[-1]), v)
    for coefficient in reversed(coefficients[:-1]):
        found = operation.add("Add", operation.add("Mul", found, v), operation.like(coefficient, v))
    return found


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
