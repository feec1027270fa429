"""Random graphs whose input has a size of 0: chains of operators that read, make and fill tensors
without elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

F = TensorProto.FLOAT
_ELEMENTWISE = "Relu Neg Exp Tanh Sigmoid Abs Sqrt Erf Softplus Gelu HardSwish Floor Sign".split()


class _Chain:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.shape = [int(self.random.choice([0, 0, 1, 2, 3])) for _ in range(3)]
        if 0 not in self.shape:
            self.shape[int(self.random.integers(3))] = 0
        self.given = list(self.shape)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.last = "x"

    def weight(self, *shape: int) -> str:
        return self.constant(self.random.standard_normal(shape).astype(np.float32))

    def constant(self, value: npt.ArrayLike) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def add(self, op_type: str, *more: str, **attributes: Any) -> None:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, [self.last, *more], [name], **attributes))
        self.last = name

    def size(self, least: int = 0) -> int:
        return int(self.random.integers(least, 3))

    def grow(self) -> None:
        steps = [
            self.element, self.product, self.total, self.turn, self.join, self.soften, self.plus,
            self.flatten, self.widen, self.pad, self.gather, self.slice, self.tile, self.count,
            self.normalise, self.choose,
        ]  # fmt: skip
        if self.shape:
            axis = int(self.random.integers(len(self.shape)))
            steps[int(self.random.integers(len(steps)))](axis)

    def element(self, _axis: int) -> None:
        self.add(str(self.random.choice(_ELEMENTWISE)))

    def product(self, _axis: int) -> None:
        size = self.size(1)
        self.add("MatMul", self.weight(self.shape[-1], size))
        self.shape = [*self.shape[:-1], size]

    def total(self, axis: int) -> None:
        op_type = "ReduceMax" if self.shape[axis] and self.random.random() < 0.5 else "ReduceSum"
        self.add(op_type, self.constant(np.asarray([axis])))
        self.shape[axis] = 1

    def turn(self, _axis: int) -> None:
        perm = [int(place) for place in self.random.permutation(len(self.shape))]
        self.add("Transpose", perm=perm)
        self.shape = [self.shape[place] for place in perm]

    def join(self, axis: int) -> None:
        size = self.size()
        shape = [size if place == axis else each for place, each in enumerate(self.shape)]
        self.add("Concat", self.weight(*shape), axis=axis)
        self.shape[axis] += size

    def soften(self, axis: int) -> None:
        self.add("Softmax", axis=axis)

    def plus(self, _axis: int) -> None:
        self.add("Add", self.weight(*(1 if self.random.random() < 0.5 else n for n in self.shape)))

    def flatten(self, axis: int) -> None:
        self.add("Flatten", axis=axis)
        self.shape = [math.prod(self.shape[:axis]), math.prod(self.shape[axis:])]

    def widen(self, axis: int) -> None:
        self.add("Unsqueeze", self.constant(np.asarray([axis])))
        self.shape.insert(axis, 1)

    def pad(self, _axis: int) -> None:
        rank = len(self.shape)
        pads = [int(size) for size in self.random.integers(0, 2, 2 * rank)]
        self.add("Pad", self.constant(np.asarray(pads)))
        self.shape = [
            n + before + behind
            for n, before, behind in zip(self.shape, pads[:rank], pads[rank:], strict=True)
        ]

    def gather(self, axis: int) -> None:
        count = self.size() if self.shape[axis] else 0
        self.add("Gather", self.constant(np.zeros(count, np.int64)), axis=axis)
        self.shape[axis] = count

    def slice(self, axis: int) -> None:
        end = self.size()
        self.add("Slice", *(self.constant(np.asarray([number])) for number in (0, end, axis)))
        self.shape[axis] = min(self.shape[axis], end)

    def tile(self, _axis: int) -> None:
        times = [self.size() for _ in self.shape]
        self.add("Tile", self.constant(np.asarray(times)))
        self.shape = [size * time for size, time in zip(self.shape, times, strict=True)]

    def count(self, axis: int) -> None:
        self.add("CumSum", self.constant(np.int64(axis)))

    def normalise(self, _axis: int) -> None:
        self.add("LayerNormalization", self.weight(self.shape[-1]), self.weight(self.shape[-1]))

    def choose(self, _axis: int) -> None:
        self.nodes.append(
            helper.make_node(
                "Where",
                [self.constant(self.random.random(self.shape) < 0.5), self.last, self.weight()],
                [f"t{len(self.nodes)}"],
            )
        )
        self.last = f"t{len(self.nodes) - 1}"


def make_empty_graph(seed: int) -> onnx.ModelProto:
    """Return the graph of a seed, with the input `x` and the output `y`."""
    op = _Chain(seed)
    for _ in range(int(op.random.integers(1, 5))):
        op.grow()
    op.nodes.append(helper.make_node("Identity", [op.last], ["y"]))
    graph = helper.make_graph(
        op.nodes,
        "empty",
        [helper.make_tensor_value_info("x", F, op.given)],
        [helper.make_tensor_value_info("y", F, op.shape)],
        op.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
