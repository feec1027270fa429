"""Detection of patterns that overflow in half.

Sums of integer products, as in models with dynamically quantized weights, are in the hundreds of
thousands before they are scaled: float_to_half always scales them in float (`find_unscaled`). Other
patterns it leaves in float if it is asked to (`find_overflowing`).

The real tool's own patterns are not public; these are ours. A pattern starts at an operator that
makes large numbers from small ones:

- Exp, Cosh and Sinh: half ends at exp(11.1);
- Pow by a constant above 1, and a product of a tensor with itself, as in the variance of a norm and
  in GELU: half ends at 256 squared;
- sums over at least MANY elements (ReduceSum, ReduceSumSquare, ReduceL1, ReduceL2, ReduceMean,
  CumSum): the sum of as many times 64 is beyond half;
- the addition of a mask before a Softmax. A mask is a constant of -LARGE or less, or the result of
  a product with one.

The pattern continues through operators that pass large numbers on, as sums and reshapes. It ends
with an operator that brings them back into range, as a division, a root or a logarithm, and
includes it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import (
    find_makers,
    find_users,
    graph_values,
    has_data,
    is_outlined,
    iter_bodies,
    iter_graphs,
    read_array,
)
from simipu.operators import OfLarge, Rounding, operator_of

from popef._tools.arrays import Array
from poprt.passes.interface.surgery import read_constant

MANY = 1024
"""Minimum number of elements of a sum that may overflow."""
LARGE = 1e4
"""Minimum magnitude of a constant that counts as a mask: models have -10000, -FLT_MAX and values
between."""
_MAX_STEPS = 8
"""Maximum number of steps from where numbers become large to where they are small again; a norm's
variance takes 4."""


_Constants = ChainMap[str, TensorProto]


def find_unscaled(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the outputs of the nodes that turn sums of integer products into floats and scale
    them, in a graph and its bodies: the Casts, the products by scales, and those of two scales,
    which may be too small for half."""
    results: set[str] = set()
    for part in iter_graphs(graph):
        makers, users = find_makers(part), find_users(part)
        products = [node for node in part.node if operator_of(node).is_integer_product]
        sums = [node.output[0] for node in products]
        seen = set(sums)
        while sums:
            for node in users.get(sums.pop(), ()):
                if _passes_sums(node) and node.output[0] not in seen:
                    seen.add(node.output[0])
                    sums.append(node.output[0])
                if node.op_type == "Cast":
                    results.add(node.output[0])
                    results |= _find_scaling(node.output[0], makers, users)
    return frozenset(results)


def _find_scaling(
    name: str, makers: Mapping[str, onnx.NodeProto], users: Mapping[str, Sequence[onnx.NodeProto]]
) -> set[str]:
    """Return the outputs of the products of a tensor, and of those that make the other factors."""
    results = set()
    for node in users.get(name, ()):
        if node.op_type == "Mul":
            results.add(node.output[0])
            factors = [makers[factor] for factor in node.input if factor in makers]
            results |= {factor.output[0] for factor in factors if factor.op_type == "Mul"}
    return results


def _passes_sums(node: onnx.NodeProto) -> bool:
    """Return whether exporters write an operator between an integer product and its Cast: those
    that move elements, and the sum with a bias."""
    operator = operator_of(node)
    return operator.moves is not None or operator.neutral == 0


def _stays_large(node: onnx.NodeProto) -> bool:
    """Return whether an operator of such formulas passes a large number on."""
    operator = operator_of(node)
    moves = operator.moves is not None or operator.sums_along_axes
    return moves or operator.of_large is OfLarge.LARGE


def find_overflowing(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the outputs of the nodes of such patterns, in a graph with known types and in its
    bodies."""
    return frozenset(_find(graph, ChainMap()))


def _find(graph: onnx.GraphProto, outer: _Constants) -> set[str]:
    constants = outer.new_child({tensor.name: tensor for tensor in graph.initializer})
    for node in graph.node:
        constant = read_constant(node)
        if constant is not None:
            constants[node.output[0]] = constant
    look = _Look(graph, constants)
    results: set[str] = set()
    for node in graph.node:
        for body in iter_bodies(node):
            results |= _find(body, constants)
        if look.is_large(node):
            look.follow(node, results)
        elif node.op_type == "Softmax":
            results |= look.find_mask(node)
    return results


class _Look:
    """Search in one graph, with the makers, users and sizes of its tensors."""

    def __init__(self, graph: onnx.GraphProto, constants: _Constants) -> None:
        self._constants = constants
        self._makers, self._users = find_makers(graph), find_users(graph)
        self._sizes = {name: value.size for name, value in graph_values(graph).items()}
        self._steps: dict[str, int] = {}
        """Steps from where numbers became large to each output; a graph is walked once."""

    def is_large(self, node: onnx.NodeProto) -> bool:
        """Return whether a node makes large numbers from small ones."""
        operator = operator_of(node)
        if node.op_type == "Pow":
            return self._holds(node.input[1], lambda values: float(np.max(values)) > 1)
        if node.op_type == "Mul":
            return node.input[0] == node.input[1]
        if operator.sums_along_axes:
            input_size, output_size = (
                self._sizes.get(name, 0) for name in (node.input[0], node.output[0])
            )
            return input_size >= MANY * (max(1, output_size) if operator.is_reduction else 1)
        # Other operators that may exceed half rarely do: what this pass finds is computed in float,
        # so that it looks for known patterns only.
        return operator.is_elementwise and operator.rounding is Rounding.GROWING

    def follow(self, first: onnx.NodeProto, found: set[str]) -> None:
        """Add the outputs of the pattern that starts at `first` to `found`."""
        waiting = [(first, 0)]
        while waiting:
            node, step = waiting.pop()
            if step > _MAX_STEPS or self._steps.get(node.output[0], _MAX_STEPS + 1) <= step:
                continue
            self._steps[node.output[0]] = step
            found.update(filter(None, node.output))
            if step and not _stays_large(node):
                continue
            for user in self._users.get(node.output[0], ()):
                if _stays_large(user) or operator_of(user).of_large is OfLarge.SMALL:
                    waiting.append((user, step + 1))

    def find_mask(self, softmax: onnx.NodeProto) -> set[str]:
        """Return the outputs of a Softmax and of the nodes that add a mask to its operand; none if
        there is no mask."""
        add = self._makers.get(softmax.input[0])
        if add is None or operator_of(add).neutral != 0:
            return set()
        for name in add.input:
            maker = self._makers.get(name)
            scale = [] if maker is None or maker.op_type != "Mul" else list(maker.input)
            if self._is_mask(name) or any(map(self._is_mask, scale)):
                results = {softmax.output[0], add.output[0]}
                return results | ({name} if scale else set())
        return set()

    def _is_mask(self, name: str) -> bool:
        return self._holds(name, lambda values: float(np.max(np.abs(values))) >= LARGE)

    def _holds(self, name: str, is_so: Callable[[Array], bool]) -> bool:
        """Return whether a tensor is a constant of numbers that fulfils a condition. Outlined
        constants are weights, and do not count."""
        tensor = self._constants.get(name)
        if tensor is None or is_outlined(tensor) or not has_data(tensor):
            return False
        values = read_array(tensor)
        return bool(values.size) and values.dtype.kind in "fiu" and is_so(values)
