"""Lower bounds on the work of an operator on the machine that computes it: multiply-adds, or
elements read, of one run. They bound the work of graphs from unknown sources, and do not concern
the chip.

A count function gets the shapes of the inputs that are present, and of the outputs. Attributes are
read with the type that the standard defines, whatever type the graph declares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx

Shape = tuple[int, ...]
Count = Callable[[onnx.NodeProto, Sequence[Shape], Sequence[Shape]], int]
_OPERANDS = 2


def count_shape(shape: Sequence[int]) -> int:
    """Return the number of elements. An axis of 0 counts as 1, because operators iterate over the
    other axes."""
    return math.prod(max(1, size) for size in shape)


def count_elements(_: onnx.NodeProto, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Return the number of elements of all inputs and outputs; each is read once."""
    return sum(map(count_shape, (*inputs, *outputs)))


def _of_operands(count: Callable[[Sequence[Shape], int], int]) -> Count:
    """Return a count function that calls `count` with the shapes of the inputs and the number of
    elements of the results. An operator without two operands that are not scalars counts its
    elements instead."""

    def counted(node: onnx.NodeProto, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
        if len(inputs) < _OPERANDS or not all(inputs[:_OPERANDS]):
            return count_elements(node, inputs, outputs)
        return count(inputs, sum(map(count_shape, outputs)))

    return counted


matmul = _of_operands(lambda inputs, elements: elements * inputs[0][-1])
gemm = _of_operands(lambda inputs, elements: elements * max(inputs[0]))
"""Upper bound for Gemm: either side of the left operand may be the summed one."""
convolution = _of_operands(lambda inputs, elements: elements * count_shape(inputs[1][1:]))
transposed_convolution = _of_operands(
    lambda inputs, _: count_shape(inputs[0]) * count_shape(inputs[1][1:])
)
recurrent = _of_operands(
    lambda inputs, _: count_shape(inputs[0][:2]) * sum(map(count_shape, inputs[1:3]))
)
"""Count of a recurrent operator: every step multiplies its input and its state with their
weights."""
suppression = _of_operands(lambda inputs, _: count_shape(inputs[1]) * max(inputs[0]))
"""Count of NonMaxSuppression: every box is compared with every other of its class."""


def pool(node: onnx.NodeProto, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Return the count of a pool: every result reads its window, as far as that is within the
    input."""
    if not inputs:
        return count_elements(node, inputs, outputs)
    kernel = next(
        (list(entry.ints) for entry in node.attribute if entry.name == "kernel_shape"), []
    )
    sizes = inputs[0][len(inputs[0]) - len(kernel) :]
    return sum(map(count_shape, outputs)) * count_shape(
        tuple(map(min, zip(kernel, sizes, strict=False)))
    )


def einsum(node: onnx.NodeProto, inputs: Sequence[Shape], _: Sequence[Shape]) -> int:
    """Return the count of the most expensive order: the product of the sizes of all labels."""
    text = next((entry.s for entry in node.attribute if entry.name == "equation"), b"")
    equation = text.decode("utf-8", "replace")
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, inputs, strict=False):
        letters = term.replace("...", "")
        sizes.update(zip(letters, shape[len(shape) - len(letters) :], strict=False))
        sizes["..."] = max(sizes.get("...", 1), count_shape(shape[: len(shape) - len(letters)]))
    return count_shape(tuple(sizes.values()))
