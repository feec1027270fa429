"""Programs of files that no compiler of this project has checked, as strangers have them."""

from collections.abc import Mapping, Sequence

import onnx
import pytest
from onnx import helper, numpy_helper
from simipu import GraphOptions, choose_accelerator
from simipu.engines import opening
from simipu.engines.computed import ComputedGraph, Weights
from simipu.engines.program_graphs import lower_program
from simipu.engines.reference import ReferenceGraph
from simipu.executable import Program, ProgramKind
from simipu.numerics import KernelUse, Numerics
from simipu.streams import Direction, Stream

from popef._tools.arrays import Array


def make_program(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array],
    outputs: Mapping[str, int],
    opset: int = 18,
    shape: tuple[int, ...] = (1,),
) -> Program:
    """Return a program of a file that no compiler of this project has checked; `shape` is what its
    streams say of its outputs."""
    infos = {
        name: helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in inputs.items()
    }
    graph = helper.make_graph(
        nodes,
        "graph",
        list(infos.values()),
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    streams = [
        Stream(name, name, Direction.HOST_TO_DEVICE, value.dtype, value.shape)
        for name, value in inputs.items()
    ]
    streams += [
        Stream(name, name, Direction.DEVICE_TO_HOST, helper.tensor_dtype_to_np_dtype(kind), shape)
        for name, kind in outputs.items()
    ]
    return Program(5, "main", ProgramKind.MAIN, tuple(streams), model.SerializeToString())


def compute(
    program: Program,
    feeds: Mapping[str, Array],
    names: Sequence[str],
    engine: str = "onnxruntime",
    numerics: Numerics | None = None,
    weights: Weights | None = None,
) -> list[Array]:
    """Return the outputs called `names` of a program, as an engine computes them; "reference" is
    the onnx reference."""
    if engine == "openvino":
        pytest.importorskip("simipu.engines.openvino_graph", reason="openvino is not installed")
    chosen = (choose_accelerator("openvino", {}),) if engine == "openvino" else ()
    options = GraphOptions(1, accelerators=chosen, caches=False, memory_bytes=1 << 26)
    graph: ComputedGraph
    if engine == "reference":
        graph = ReferenceGraph(
            lower_program(program, weights or {}, options, numerics, KernelUse.NONE)
        )
    else:
        graph = opening.open_graph(program, weights or {}, options, numerics)
    try:
        return graph.run(names, feeds)
    finally:
        graph.close()
