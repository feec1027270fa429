"""Graphs whose indices are out of range, in each place that an index can come from, and whose data
is smaller than the graph declares. Each is loaded and run in this process, which may die of it.

Run as a program with the name of an operator, it prints a line for each case: its title, and how it
ended. All elements of the data are `ELEMENT`, so another value in an answer is not the model's.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from simipu import GraphOptions, LoadError, RunError, choose_accelerator, open_graph
from simipu.executable import Program, ProgramKind
from simipu.streams import Direction, Stream

from popef._tools.arrays import Array

ELEMENT = 7.0
SIZES = 4, 3
OPERATORS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "Gather": ((2,), {"axis": 0}),
    "Gather of one": ((), {"axis": 0}),
    "Gather of opset 9": ((2,), {"axis": 0}),
    "GatherElements": ((2, 3), {"axis": 0}),
    "GatherND": ((2, 1), {}),
    "ScatterElements": ((2, 3), {"axis": 0}),
    "ScatterND": ((2, 1), {}),
    "ScatterElements of opset 11": ((2, 3), {"axis": 0}),
    "ScatterElements too wide": ((2, 60), {"axis": 0}),
    "GatherElements too wide": ((2, 60), {"axis": 0}),
}
"""Shapes of the indices and attributes."""
OPSETS = {"Gather of opset 9": 9, "ScatterElements of opset 11": 11}
VALUES = 4, -5, (1 << 32) + 1, -(1 << 63)
PLACES = "graph", "node", "weight", "request", "sum", "sibling", "branch"
Case = tuple[str, int, str, str]
"""Operator, index, and where the index and the data come from."""
DATA = "input", "computed", "weight", "declared larger", "empty"
ENGINES = "cpu", "openvino"
CHECKS = "error", "clamp"


class Builder:
    """The parts of a graph, and what it is fed with."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.infos: list[onnx.ValueInfoProto] = []
        self.feeds: dict[str, Array] = {}
        self.weights: dict[str, Array] = {}

    def feed(self, name: str, value: Array, shape: Sequence[int | str]) -> None:
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        self.feeds[name] = value

    def hold(self, name: str, value: Array) -> None:
        self.tensors.append(numpy_helper.from_array(value, name))

    def hold_apart(self, name: str, value: Array) -> None:
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        tensor = TensorProto(name=name, data_type=kind, dims=value.shape)
        tensor.data_location = TensorProto.EXTERNAL
        self.tensors.append(tensor)
        self.weights[name] = value

    def add(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))

    def make_program(self, shape: tuple[int, ...], opset: int) -> Program:
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(
            self.nodes, "graph", self.inputs, [output], self.tensors, value_info=self.infos
        )
        imports = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=9)
        streams = [
            Stream(f"in {name}", name, Direction.HOST_TO_DEVICE, value.dtype, value.shape)
            for name, value in self.feeds.items()
        ]
        kind = np.dtype(np.float32)
        streams.append(Stream("out", "y", Direction.DEVICE_TO_HOST, kind, shape))
        return Program(5, "main", ProgramKind.MAIN, tuple(streams), model.SerializeToString())


def build(
    name: str, value: int, place: str, data: str
) -> tuple[Program, dict[str, Array], dict[str, Array]]:
    """Return a program, its weights and its inputs."""
    op_type = name.split()[0]
    shape, attributes = OPERATORS[name]
    indices: Array = np.full(shape, 0 if name.endswith("too wide") else value, np.int64)
    builder = Builder()
    _add_data(builder, data)
    _add_indices(builder, indices, place)
    operands = ["data", "indices"]
    if op_type.startswith("Scatter"):
        size = (2, SIZES[1]) if op_type == "ScatterND" else shape
        builder.hold("updates", np.full(size, ELEMENT, np.float32))
        operands.append("updates")
    if place == "branch":
        _add_branches(builder, op_type, operands, attributes)
    else:
        builder.add(op_type, operands, "found", **attributes)
    builder.hold("one", np.array(1, np.float32))
    builder.add("Mul", ["found", "one"], "scaled")
    if place == "sibling":
        _add_siblings(builder, indices)
    builder.nodes[-1].output[0] = "y"
    return builder.make_program(SIZES, OPSETS.get(name, 17)), builder.weights, builder.feeds


def _add_data(builder: Builder, data: str) -> None:
    value = np.full((0, SIZES[1]) if data == "empty" else SIZES, ELEMENT, np.float32)
    if data == "weight":
        builder.hold_apart("data", value)
        builder.feed("x", value, SIZES)
        return
    source = "data" if data in ("input", "empty") else "x"
    builder.feed(source, value, ["N", SIZES[1]] if data != "input" else SIZES)
    if data == "computed":
        builder.add("Neg", ["x"], "less")
        builder.add("Neg", ["less"], "data")
    elif data == "declared larger":
        builder.add("Shape", ["x"], "shape")
        builder.add("Reshape", ["x", "shape"], "data")
        info = helper.make_tensor_value_info("data", TensorProto.FLOAT, [1 << 20, SIZES[1]])
        builder.infos.append(info)


def _add_indices(builder: Builder, indices: Array, place: str) -> None:
    if place == "node":
        value = numpy_helper.from_array(indices)
        builder.nodes.append(helper.make_node("Constant", [], ["indices"], value=value))
    elif place == "weight":
        builder.hold_apart("indices", indices)
    elif place in ("request", "sibling"):
        builder.feed("indices", indices, indices.shape)
    elif place == "sum":
        builder.hold("smaller", indices - 1)
        builder.hold("unit", np.array(1, np.int64))
        builder.add("Add", ["smaller", "unit"], "indices")
    else:
        builder.hold("indices", indices)


def _add_condition(builder: Builder) -> None:
    builder.hold("zero", np.array(0, np.float32))
    builder.add("ReduceMax", [builder.inputs[0].name], "total", keepdims=0)
    builder.add("Greater", ["total", "zero"], "go")


def _add_branches(
    builder: Builder, op_type: str, operands: Sequence[str], attributes: dict[str, Any]
) -> None:
    """Have both branches of an If do the same."""
    _add_condition(builder)
    branches: dict[str, Any] = {}
    for branch in ("then_branch", "else_branch"):
        node = helper.make_node(op_type, operands, [f"{branch}/found"], **attributes)
        info = helper.make_tensor_value_info(f"{branch}/found", TensorProto.FLOAT, None)
        branches[branch] = helper.make_graph([node], branch, [], [info])
    builder.nodes.append(helper.make_node("If", ["go"], ["found"], **branches))


def _add_siblings(builder: Builder, indices: Array) -> None:
    """Add bodies whose own initializers are called `indices`, like an input of the graph."""
    _add_condition(builder)
    branches: dict[str, Any] = {}
    for branch in ("then_branch", "else_branch"):
        node = helper.make_node("Identity", ["indices"], [f"{branch}/own"])
        info = helper.make_tensor_value_info(f"{branch}/own", TensorProto.INT64, indices.shape)
        own = numpy_helper.from_array(0 * indices, "indices")
        branches[branch] = helper.make_graph([node], branch, [], [info], [own])
    builder.nodes.append(helper.make_node("If", ["go"], ["own"], **branches))
    builder.add("Cast", ["own"], "own float", to=TensorProto.FLOAT)
    builder.add("ReduceMax", ["own float"], "own sum", keepdims=0)
    builder.add("Add", ["scaled", "own sum"], "with own")


def run(case: Case, engine: str, check: str) -> str:
    """Load and run a case, and return how it ended: "load" or "run" for an error of ours, or the
    values of the answer."""
    program, weights, feeds = build(*case)
    chosen = (choose_accelerator("openvino", {}),) if engine == "openvino" else ()
    options = GraphOptions(num_threads=1, index_check=check, accelerators=chosen)
    try:
        graph = open_graph(program, weights, options, None)
    except LoadError:
        return "load"
    try:
        (answer,) = graph.run(["y"], feeds)
    except RunError:
        return "run"
    return " ".join(sorted({str(value) for value in answer.ravel()})) or "none"


def iter_cases(name: str) -> Iterator[Case]:
    """Yield the cases of an operator."""
    values = VALUES[:1] if name.endswith("too wide") else VALUES
    for value, place, data in itertools.product(values, PLACES, DATA):
        yield name, value, place, data


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    # Bodies may make tensors of unknown size, which only an isolated engine computes. Here it does.
    from simipu.engines import admission

    admission._check_memory = lambda *_: None
    for case in iter_cases(sys.argv[1]):
        for engine, check in itertools.product(ENGINES, CHECKS):
            print(*case, engine, check, run(case, engine, check), sep="|", flush=True)
