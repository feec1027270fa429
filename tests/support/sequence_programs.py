"""Random programs on sequences of tensors of shape (2, 3), whose lengths are constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class _Program:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.tensors = ["x"]
        self.lengths: dict[str, int] = {}
        self.lengths[self.add("SequenceConstruct", "x", "x")] = 2

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        result = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [result], **attributes))
        return result

    def number(self, least: int, end: int) -> str:
        value = np.asarray(self.random.integers(least, end))
        self.weights.append(numpy_helper.from_array(value, f"k{len(self.weights)}"))
        return self.weights[-1].name

    def grow(self) -> None:
        sequence = str(self.random.choice([name for name, size in self.lengths.items() if size]))
        tensor = str(self.random.choice(self.tensors))
        steps = [self.change, self.insert, self.erase, self.take, self.split, self.last, self.same]
        steps[int(self.random.integers(len(steps)))](sequence, tensor, self.lengths[sequence])

    def change(self, _sequence: str, tensor: str, _length: int) -> None:
        self.tensors.append(self.add(str(self.random.choice(["Neg", "Abs", "Relu"])), tensor))

    def insert(self, sequence: str, tensor: str, length: int) -> None:
        place = [self.number(-length, length + 1)] if self.random.random() < 0.7 else []
        self.lengths[self.add("SequenceInsert", sequence, tensor, *place)] = length + 1

    def erase(self, sequence: str, _tensor: str, length: int) -> None:
        place = [self.number(-length, length)] if self.random.random() < 0.7 else []
        self.lengths[self.add("SequenceErase", sequence, *place)] = length - 1

    def take(self, sequence: str, _tensor: str, length: int) -> None:
        self.tensors.append(self.add("SequenceAt", sequence, self.number(-length, length)))

    def split(self, _sequence: str, tensor: str, _length: int) -> None:
        whole = self.add("Concat", tensor, tensor, axis=0)
        self.lengths[self.add("SplitToSequence", whole, self.number(2, 3), axis=0)] = 2

    def last(self, sequence: str, _tensor: str, _length: int) -> None:
        place = self.add("Sub", self.add("SequenceLength", sequence), self.number(1, 2))
        self.tensors.append(self.add("SequenceAt", sequence, place))

    def same(self, sequence: str, _tensor: str, length: int) -> None:
        self.lengths[self.add("Identity", sequence)] = length


def make_program(seed: int) -> onnx.ModelProto:
    """Return the program of a seed, with the input `x` and the outputs `y` and `z`."""
    program = _Program(seed)
    for _ in range(int(program.random.integers(3, 10))):
        program.grow()
    full = [name for name, length in program.lengths.items() if length]
    joined = program.add("ConcatFromSequence", full[-1], axis=0)
    nodes = [
        *program.nodes,
        helper.make_node("ReduceSum", [joined], ["y"], keepdims=0),
        helper.make_node("Identity", [program.tensors[-1]], ["z"]),
    ]
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [2, 3]), ("y", []), ("z", [2, 3]))
    }
    outputs = [values["y"], values["z"]]
    graph = helper.make_graph(nodes, "sequences", [values["x"]], outputs, program.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
