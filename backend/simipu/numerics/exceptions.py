"""Floating-point exceptions of operators in float: nodes that end the run at an invalid value.

Values in half are checked by the kernels that round them. Float is not rounded, so that nodes of
ONNX find what is invalid, and a kernel raises the exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import Tape

from simipu.numerics.kernels import CHAIN, KernelStep, StepKind, make_kernel
from simipu.operators import Rounding, operator_of


def check_floats(
    nodes: Sequence[onnx.NodeProto],
    node: onnx.NodeProto,
    types: Mapping[str, int],
    flags: Mapping[str, Any],
) -> list[onnx.NodeProto]:
    """Return nodes that compute what others do, and end the run where a float is invalid.

    A value is invalid if it is NaN, or infinite although no operand of the operator holds an
    infinity or NaN. Operators that only move values are not checked.

    Args:
        nodes: Nodes that compute the operator.
        node: The operator.
        types: Types of tensors.
        flags: Attributes of kernels.
    """
    operands = [name for name in node.input if types.get(name) == TensorProto.FLOAT]
    results = [name for name in node.output if types.get(name) == TensorProto.FLOAT]
    if operator_of(node).orders and operands:
        return _check_operands(nodes, operands, flags)
    if not results or operator_of(node).rounding_of(node) is Rounding.EXACT:
        return list(nodes)
    names = {name: f"{name}/unchecked" for name in results}
    for inner in nodes:
        inner.input[:] = [names.get(name, name) for name in inner.input]
        inner.output[:] = [names.get(name, name) for name in inner.output]
    checked = list(nodes)
    for name, source in names.items():
        op = Tape(f"{name}/check")
        lost = op.add("IsNaN", _sum_zeros(op, [source]))
        if operands:
            are_numbers = op.add("Not", op.add("IsNaN", _sum_zeros(op, operands)))
            lost = op.add("Or", _any_nan(op, source), op.add("And", lost, are_numbers))
        op.add_as(name, "Mul", source, _raise_if(op, lost, flags))
        checked += op.nodes
    return checked


def _check_operands(
    nodes: Sequence[onnx.NodeProto], given: Sequence[str], flags: Mapping[str, Any]
) -> list[onnx.NodeProto]:
    """Return the nodes of a comparison, before which the run ends if an operand holds NaN."""
    op = Tape(f"{nodes[0].output[0]}/check")
    lost = reduce(
        lambda left, right: op.add("Or", left, right),
        [_any_nan(op, name) for name in given],
    )
    checked = op.add("Mul", given[0], _raise_if(op, lost, flags))
    for node in nodes:
        node.input[:] = [checked if name == given[0] else name for name in node.input]
    return [*op.nodes, *nodes]


def _sum_zeros(op: Tape, names: Sequence[str]) -> str:
    """Return a scalar that is 0 if all values are finite, otherwise NaN: inf * 0 is NaN."""
    zero = op.constant(0)
    sums = [op.add("ReduceSum", op.add("Mul", name, zero), keepdims=0) for name in names]
    return reduce(lambda left, right: op.add("Add", left, right), sums)


def _any_nan(op: Tape, name: str) -> str:
    """Return a scalar that tells whether a value is NaN."""
    flags = op.add("Cast", op.add("IsNaN", name), to=TensorProto.FLOAT)
    return op.add("Greater", op.add("ReduceSum", flags, keepdims=0), op.constant(0))


def _raise_if(op: Tape, lost: str, flags: Mapping[str, Any]) -> str:
    """Return the scalar 1 of a kernel that ends the run if a condition holds."""
    marker = op.add("Where", lost, op.constant(np.nan), op.constant(1))
    name = op.new_name()
    op.nodes.append(make_kernel(CHAIN, [marker], name, [KernelStep(StepKind.MAXIMUM)], **flags))
    return name
