"""Folds constants and drops what shapes make idle, by ONNX Runtime's basic optimiser.

It runs in a process of its own: some valid models crash the optimiser, which must not take the compiler with it.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from simipu import CompileError
from simipu.numerics import iter_subgraphs

from poprt import weights
from poprt.weights import drop_weights, has_data, used_names, without_weights

TIMEOUT_SECONDS = 1_800
_LEAVES = frozenset({"MatMul", "Gemm", "Gather"})
"""Operators whose weights the optimiser leaves as they are, as long as the other operand depends on the inputs."""
_OF_SHAPES = frozenset({"Shape", "Size"})

# Nothing but ONNX Runtime is imported in the child: this package would take it a second.
_CHILD = """
import sys
import onnxruntime
sys.excepthook = lambda kind, error, trace: print(" ".join(str(error).split()), file=sys.stderr)
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
options.optimized_model_filepath = sys.argv[2]
options.log_severity_level = 3
onnxruntime.disable_telemetry_events()
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
"""


def fold(model: onnx.ModelProto) -> None:
    """Compute, in place, everything in `model` (static input shapes) that does not depend on its inputs.

    Weights without data stay so, and nothing is computed with them. Standard ONNX operators only come out. Raises CompileError
    with ONNX Runtime's reason, which names the node.
    """
    left = _weights_left(model.graph) | {tensor.name for tensor in model.graph.initializer if not has_data(tensor)}
    folded = _optimise(without_weights(model, left))
    inputs = [value for value in folded.graph.input if value.name not in left]
    del folded.graph.input[:], folded.graph.value_info[:]
    folded.graph.input.extend(inputs)
    domains = {node.domain for node in folded.graph.node}
    imports = [entry for entry in folded.opset_import if entry.domain in domains or not entry.domain]
    del folded.opset_import[:]
    folded.opset_import.extend(imports)
    drop_weights(model.graph, left & used_names(folded.graph))
    _clear(model, "graph")
    _clear(model.graph, "initializer")
    model.MergeFrom(folded)


def _optimise(model: onnx.ModelProto) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory(prefix="poprt-") as folder:
        source, result = Path(folder, "source.onnx"), Path(folder, "folded.onnx")
        onnx.save(model, source)
        command = [sys.executable, "-c", _CHILD, str(source), str(result)]
        try:
            child = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise CompileError(f"folding constants took more than {TIMEOUT_SECONDS} s and was stopped") from None
        if child.returncode < 0:
            raise CompileError(f"ONNX Runtime crashed (signal {-child.returncode}) while folding the model's constants")
        if child.returncode or not result.exists():
            reason = child.stderr.strip().splitlines()[-1:] or ["no message"]
            raise CompileError(f"ONNX Runtime cannot load the model: {reason[0]}")
        return onnx.load(result)


def _weights_left(graph: onnx.GraphProto) -> set[str]:
    """The large weights that the optimiser would only read and write again: they do not travel there and back."""
    if any(node.op_type == "BatchNormalization" for node in graph.node):
        return set()  # products may take it up into their weights
    dynamic = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
    wanted = {value.name for value in graph.output}
    for node in graph.node:
        if node.op_type not in _OF_SHAPES and dynamic.intersection(node.input):
            dynamic.update(node.output)
        if node.op_type not in _LEAVES or not dynamic.intersection(node.input):
            wanted.update(node.input)
        for subgraph in iter_subgraphs(node):
            wanted |= used_names(subgraph)
    return {tensor.name for tensor in graph.initializer if math.prod(tensor.dims) >= weights.LARGE} - wanted


def _clear(message: onnx.ModelProto | onnx.GraphProto, kept: str) -> None:
    for field, _ in message.ListFields():
        if field.name != kept:
            message.ClearField(field.name)
