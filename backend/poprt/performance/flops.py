"""FLOPs of models and nodes, as the real tool's scripts query them: the operations of the
arithmetic, whatever hardware executes them. `poplar-triton profile` estimates the time on the chip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import onnx
from onnxgraph import CHIP_DOMAIN, attribute, graph_values, infer_shapes, iter_bodies
from simipu import CompileError
from simipu.operators import Family, find_operator

Shapes = Sequence[Sequence[int]]
Count = Callable[[onnx.NodeProto, Shapes, Shapes], int]

_FLOPS_PER_MAC = 2
_SOFTMAX_FLOPS = 5
"""FLOPs of a Softmax for each element: maximum, difference, exponential, sum, quotient."""
_NORM_FLOPS = 8
"""FLOPs of a norm for each element: mean, difference, square, mean, quotient, scale and bias, as in
the formula of layer norm."""
_PRODUCTS = (Family.PRODUCT, Family.CONVOLUTION, Family.RECURRENT)


class Profiler:
    """Selects the function that counts the FLOPs of an operator."""

    @staticmethod
    def get_profiler(op_type: str) -> Count:
        """Return a function that counts the FLOPs of nodes of a type.

        It counts 2 for a multiply-add, 1 for each element of a computed result, and 0 for operators
        that only move or rename. An unknown shape is empty, and counts as one element.

        Args:
            op_type: the operator's type, such as "Conv".

        Returns:
            A function of a node, the shapes of its inputs and those of its outputs.
        """
        if op_type == "Gemm":
            return _count_gemm
        operator = find_operator(op_type)
        if operator.family is Family.OTHER:
            operator = find_operator(op_type, CHIP_DOMAIN)
        if operator.family in _PRODUCTS:
            return lambda node, taken, made: (
                _FLOPS_PER_MAC * operator.count(node, _tuples(taken), _tuples(made))
            )
        if operator.family is Family.POOL:
            return lambda node, taken, made: operator.count(node, _tuples(taken), _tuples(made))
        if operator.family is Family.REDUCTION:
            return lambda _node, taken, _made: _size(taken[0]) if taken else 0
        if operator.family in (Family.SOFTMAX, Family.NORM):
            flops_per_element = _NORM_FLOPS if operator.family is Family.NORM else _SOFTMAX_FLOPS
            return lambda _node, _taken, made: flops_per_element * _size(made[0]) if made else 0
        if operator.computes_nothing or find_operator(op_type).computes_nothing:
            return lambda _node, _taken, _made: 0
        return lambda _node, _taken, made: _size(made[0]) if made else 0


def get_model_flops(model: onnx.ModelProto, use_print: bool = True) -> int:
    """Return the FLOPs of one run of a model with static shapes.

    An If counts as its more expensive branch, a loop as one iteration. `use_print` also prints the
    FLOPs of each operator type. Raises CompileError for an unknown shape.
    """
    by_type: dict[str, int] = {}
    total = _count_graph(infer_shapes(model).graph, {}, by_type)
    if use_print:
        for op_type, flops in sorted(by_type.items(), key=lambda item: -item[1]):
            print(f"{op_type}: {flops}")
        print(f"total: {total}")
    return total


def _count_graph(
    graph: onnx.GraphProto, outer: dict[str, tuple[int, ...]], by_type: dict[str, int]
) -> int:
    shapes = {**outer, **{name: value.shape for name, value in graph_values(graph).items()}}
    total = 0
    for node in graph.node:
        bodies = [_count_graph(body, shapes, by_type) for body in iter_bodies(node)]
        if bodies:
            total += max(bodies)
            continue
        unknown = next(
            (name for name in (*node.input, *node.output) if name and name not in shapes), None
        )
        if unknown is not None:
            raise CompileError(
                f"node {node.name or node.op_type!r}: the shape of {unknown!r} is not known; fix "
                "the sizes of the inputs first, as Converter(input_shape=...) does"
            )
        input_shapes, output_shapes = (
            [shapes[name] for name in names if name] for names in (node.input, node.output)
        )
        flops = Profiler.get_profiler(node.op_type)(node, input_shapes, output_shapes)
        by_type[node.op_type] = by_type.get(node.op_type, 0) + flops
        total += flops
    return total


def _count_gemm(node: onnx.NodeProto, taken: Shapes, made: Shapes) -> int:
    summed = taken[0][0 if attribute(node, "transA", 0) else -1] if taken and len(taken[0]) else 1
    return _FLOPS_PER_MAC * int(summed) * _size(made[0]) if made else 0


def _size(shape: Iterable[int]) -> int:
    return math.prod(int(size) for size in shape)


def _tuples(shapes: Shapes) -> list[tuple[int, ...]]:
    return [tuple(map(int, shape)) for shape in shapes]
