"""Tiny ONNX models that tests compile, and PopEF files with content that poprt does not compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from simipu import Direction, Program, ProgramKind, SimulatedExecutable, Stream
from simipu.chip.target import TARGETS

import popef

Values = Mapping[str, tuple[int, Sequence[Any]]]
"""Element type and shape by name."""


def make_model(
    nodes: list[onnx.NodeProto],
    inputs: Values,
    outputs: Values,
    weights: Mapping[str, Any],
    opset: int = 17,
) -> onnx.ModelProto:
    """Return an ONNX model; inputs and outputs map names to (element type, shape)."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, *spec) for name, spec in inputs.items()],
        [helper.make_tensor_value_info(name, *spec) for name, spec in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


TYPES = {
    "bool": TensorProto.BOOL,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16,
    "int32": TensorProto.INT32,
    "uint32": TensorProto.UINT32,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
}
"""Element types by numpy name that TensorFlow, Triton and PopEF all have, except those of 64
bits."""


def types_model() -> onnx.ModelProto:
    """Return a model with inputs of all TYPES, each of which is returned unchanged."""
    nodes = [helper.make_node("Identity", [name], [f"{name}_back"]) for name in TYPES]
    inputs = {name: (kind, ["n", 2]) for name, kind in TYPES.items()}
    return make_model(nodes, inputs, {f"{name}_back": spec for name, spec in inputs.items()}, {})


def linear_model(width: int = 4, seed: int = 0) -> onnx.ModelProto:
    """Return y = relu(x @ w + b), x of shape [batch, width]; z = x * 2."""
    random = np.random.default_rng(seed)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="multiply"),
        helper.make_node("Add", ["product", "b"], ["sum"], name="add_bias"),
        helper.make_node("Relu", ["sum"], ["y"], name="activate"),
        helper.make_node("Mul", ["x", "two"], ["z"], name="double"),
    ]
    weights = {
        "w": random.standard_normal((width, 3)).astype(np.float32),
        "b": random.standard_normal(3).astype(np.float32),
        "two": np.float32(2),
    }
    shape = ["batch", width]
    return make_model(
        nodes,
        {"x": (TensorProto.FLOAT, shape)},
        {"y": (TensorProto.FLOAT, ["batch", 3]), "z": (TensorProto.FLOAT, shape)},
        weights,
    )


def gather_model() -> onnx.ModelProto:
    """Return rows of a table of 10 by 3, which counts up from 0, by pairs of indices; others than 0
    to 9 are rejected."""
    return make_model(
        [helper.make_node("Gather", ["table", "ids"], ["rows"])],
        {"ids": (TensorProto.INT64, ["n", 2])},
        {"rows": (TensorProto.FLOAT, ["n", 2, 3])},
        {"table": np.arange(30, dtype=np.float32).reshape(10, 3)},
    )


def loudness_model() -> onnx.ModelProto:
    """Return y = x over the loudest value of the whole batch.

    A row's answer depends on its neighbours, as in audio front ends.
    """
    return make_model(
        [
            helper.make_node("Abs", ["x"], ["size"]),
            helper.make_node(
                "ReduceMax", ["size"], ["loudest"], name="loudest_of_all", axes=[0, 1], keepdims=1
            ),
            helper.make_node("Div", ["x", "loudest"], ["y"]),
        ],
        {"x": (TensorProto.FLOAT, ["batch", 4])},
        {"y": (TensorProto.FLOAT, ["batch", 4])},
        {},
    )


def steps_model(steps: int = 5) -> onnx.ModelProto:
    """Return a time-major LSTM with zeros for its state.

    It maps x [steps, batch, 2] to y [steps, batch, 3] and last [batch, 3].
    """
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node(
            "LSTM", ["x", "w", "r", "", "", "state", "state"], ["all", "end"], hidden_size=3
        ),
        helper.make_node("Squeeze", ["all", "one"], ["y"]),
        helper.make_node("Squeeze", ["end", "zero"], ["last"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["batch"]),
        helper.make_node("Concat", ["one", "batch", "three"], ["sizes"], axis=0),
        helper.make_node("ConstantOfShape", ["sizes"], ["state"]),
    ]
    weights = {
        "w": random.standard_normal((1, 12, 2)).astype(np.float32),
        "r": random.standard_normal((1, 12, 3)).astype(np.float32),
        "zero": np.array([0]),
        "one": np.array([1]),
        "three": np.array([3]),
    }
    return make_model(
        [*nodes[3:], *nodes[:3]],
        {"x": (TensorProto.FLOAT, [steps, "batch", 2])},
        {"y": (TensorProto.FLOAT, [steps, "batch", 3]), "last": (TensorProto.FLOAT, ["batch", 3])},
        weights,
    )


def loop_model() -> onnx.ModelProto:
    """Return a model that runs a loop as often as its input says, and counts."""
    int64 = TensorProto.INT64
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["again"], ["again_out"]),
            helper.make_node("Add", ["carried", "one"], ["carried_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", int64, []),
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", int64, []),
        ],
        [
            helper.make_tensor_value_info("again_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried_out", int64, []),
        ],
    )
    return make_model(
        [helper.make_node("Loop", ["turns", "yes", "zero"], ["sum"], body=body)],
        {"turns": (int64, [])},
        {"sum": (int64, [])},
        {"yes": np.array(True), "zero": np.array(0, np.int64), "one": np.array(1, np.int64)},
    )


def write_handmade(path: Path, model: onnx.ModelProto) -> None:
    """Write a PopEF file whose main program is `model` unchanged: any operator, any type, every
    shape fixed."""
    streams = tuple(
        Stream(value.name, value.name, direction, *_type_and_shape(value))
        for direction, values in (
            (Direction.HOST_TO_DEVICE, model.graph.input),
            (Direction.DEVICE_TO_HOST, model.graph.output),
        )
        for value in values
    )
    program = Program(5, "main_program", ProgramKind.MAIN, streams, model.SerializeToString())
    write_executable(path, SimulatedExecutable("handmade", TARGETS["ipu2"], (program,)))


def write_executable(path: Path, executable: SimulatedExecutable) -> None:
    """Write a PopEF file of an executable of one program, unchanged."""
    (program,) = executable.programs
    kinds = {
        Direction.HOST_TO_DEVICE: popef.TensorType.INPUT,
        Direction.DEVICE_TO_HOST: popef.TensorType.OUTPUT,
    }
    anchors = [
        popef.Anchor(
            name=stream.tensor,
            handle=stream.handle,
            tensorInfo=popef.TensorInfo(
                shape=stream.shape, dataType=popef.numpyDTypeToPopefType(stream.dtype)
            ),
            type=kinds[stream.direction],
            programs=[program.index],
        )
        for stream in program.streams
    ]
    flow = popef.ProgramFlow(load=[], main=[program.index], save=[])
    metadata = popef.Metadata(
        replicationFactor=1,
        numIpus=1,
        executable=executable.name,
        ipuVersion=2,
        anchors=anchors,
        programFlow=flow,
    )
    with popef.Writer(path) as writer:
        with writer.createExecutable(executable.name) as blob:
            blob.write(executable.serialize())
        writer.writeMetadata(metadata)


def _type_and_shape(value: onnx.ValueInfoProto) -> tuple[np.dtype[Any], tuple[int, ...]]:
    tensor = value.type.tensor_type
    return np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)), tuple(
        dim.dim_value for dim in tensor.shape.dim
    )
