"""Model repositories as Graphcore's SDKs wrote them: machine code, anchors named as by PopART,
PopTorch and TensorFlow, weights as tensor data, and name maps."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import popef

MACHINE_CODE = b"\x7fELF machine code of a chip"
FRAMEWORKS = ("popart", "poptorch", "tensorflow")


def dense_model(width: int, out: int, seed: int = 0, batch: int | str = "N") -> onnx.ModelProto:
    """Return y = relu(x w + b), of x [batch, width], named as an exporter names them."""
    random = np.random.default_rng(seed)
    weights = {
        "fc.weight": random.standard_normal((width, out)).astype(np.float32),
        "fc.bias": random.standard_normal(out).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "fc.weight", "fc.bias"], ["h"]),
            helper.make_node("Relu", ["h"], ["y"]),
        ],
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, out])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


_NAMES = {
    "popart": ({"x": "x"}, {"y": "y"}),
    "poptorch": ({"x": "input"}, {"y": "fc/fc/Gemm:0"}),
    "tensorflow": ({"x": "infeed_1.0"}, {"y": "outfeed_2.0"}),
}
"""Anchors of the graph's inputs and outputs, by framework."""


def write_model(
    folder: Path,
    model: onnx.ModelProto,
    framework: str = "popart",
    batch: int = 4,
    *,
    name_map: Mapping[str, str] | None = None,
    half: bool = False,
    version: int = 1,
    names: tuple[Mapping[str, Sequence[int]], Mapping[str, Sequence[int]]] | None = None,
) -> Path:
    """Write a model folder and return that of its version. `names` has other inputs and outputs
    with their shapes, and then there are no weights."""
    into = folder / str(version)
    into.mkdir(parents=True)
    if names is not None:
        model = _hollow(*names)
    inputs, outputs = (
        _NAMES[framework] if names is None else [{n: n for n in side} for side in names]
    )
    kind = popef.DataType.F16 if half else popef.DataType.F32
    anchors = [
        *_anchors(model.graph.input, inputs, popef.TensorType.INPUT, kind, batch),
        *_anchors(model.graph.output, outputs, popef.TensorType.OUTPUT, kind, batch),
        *(
            popef.Anchor(
                name=tensor.name,
                handle=f"h2d_{tensor.name}",
                type=popef.TensorType.INPUT,
                tensorInfo=popef.TensorInfo(shape=tuple(tensor.dims), dataType=kind),
                programs=[0],
            )
            for tensor in model.graph.initializer
        ),
    ]
    metadata = popef.Metadata(
        numIpus=1,
        executable="e" * 16,
        ipuVersion=2,
        anchors=anchors,
        programFlow=popef.ProgramFlow(load=[0], main=[1], save=[2]),
    )
    with popef.Writer(into / "executable.popef") as writer:
        if framework == "poptorch":
            blob = pickle.dumps({"version": "3.3.0", "model": None}, 4)
            _write_opaque(writer, "poptorch", metadata, blob)
        if framework == "tensorflow":
            _write_opaque(writer, "tensorflow", metadata, b"\x0a\x053.3.0\x12\x0a0123456abc")
        writer.writeMetadata(metadata)
        with writer.createExecutable(metadata.executable()) as stream:
            stream.write(MACHINE_CODE)
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor)
            array = array.astype(np.float16 if half else np.float32)
            info = popef.TensorInfo(
                shape=array.shape, dataType=popef.numpyDTypeToPopefType(array.dtype)
            )
            data_info = popef.TensorDataInfo(name=tensor.name, tensorInfo=info)
            with writer.createTensorData(data_info) as data:
                data.write(np.ascontiguousarray(array).data)
    if name_map is not None:
        (into / "name_map.json").write_text(json.dumps(name_map))
    return into


def _anchors(
    values: Sequence[onnx.ValueInfoProto],
    names: Mapping[str, str],
    kind: popef.TensorType,
    data_type: popef.DataType,
    batch: int,
) -> list[popef.Anchor]:
    anchors = []
    for value in values:
        dims = [dim.dim_value or batch for dim in value.type.tensor_type.shape.dim]
        info = popef.TensorInfo(shape=dims, dataType=data_type)
        name = names[value.name]
        anchors.append(
            popef.Anchor(name=name, handle=name, type=kind, tensorInfo=info, programs=[1])
        )
    return anchors


def _write_opaque(writer: popef.Writer, name: str, metadata: popef.Metadata, data: bytes) -> None:
    with writer.createOpaqueBlob(name, metadata.executable()) as stream:
        stream.write(data)


def _hollow(
    inputs: Mapping[str, Sequence[int]], outputs: Mapping[str, Sequence[int]]
) -> onnx.ModelProto:
    """Return a model that only declares tensors."""
    fed, fetched = (
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
            for name, dims in side.items()
        ]
        for side in (inputs, outputs)
    )
    return helper.make_model(helper.make_graph([], "hollow", fed, fetched))
