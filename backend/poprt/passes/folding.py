"""Passes that compute what does not depend on the inputs, and drop what shapes make idle, by ONNX Runtime's
basic optimiser.

It runs in a process of its own: some valid models crash the optimiser, which must not take the compiler with
it.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from onnxgraph import change_without_weights, infer_shapes, iter_bodies, used_names, weights
from onnxgraph.edit import forget_values, keep_opsets
from onnxgraph.weights import has_data, inline
from simipu import CompileError, CompileMemoryError
from simipu.demand import measure
from simipu.operators import operator_of

from poprt.branches import raise_for_branch
from poprt.origins import OF_SHAPES
from poprt.passes.base_pass import Pass, Stage, register

TIMEOUT_SECONDS = 1_800
_REFUSED = "ONNX Runtime cannot load the model: "
_WHERE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from \S+ failed:)?")
"""What ONNX Runtime puts before its reasons: a code, and the name of a temporary file."""
_INLINED = "_inlfunc_"
"""How ONNX Runtime begins the names of what it takes an operator apart into where it has no kernel."""

# Nothing but ONNX Runtime is imported in the child: this package would take it a second.
_CHILD = """
import ctypes
import signal
import sys
import onnxruntime
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: when the parent dies, so does this
sys.excepthook = lambda kind, error, trace: print(" ".join(str(error).split()), file=sys.stderr)
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
options.optimized_model_filepath = sys.argv[2]
options.log_severity_level = 3
onnxruntime.disable_telemetry_events()
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
"""


@register(
    "constant_folding",
    stage=Stage.FOLDING,
    default=True,
    depend=("const_input_shape",),
)
class ConstantFolding(Pass):
    """Compute everything in a model with static input shapes that does not depend on its inputs.

    Weights without data stay so, and nothing is computed with them. Standard ONNX operators only come out.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Raises CompileError with ONNX Runtime's reason, which names the node, or the branch of an If that
        is invalid."""
        left = _weights_left(model.graph)
        left |= {tensor.name for tensor in model.graph.initializer if not has_data(tensor)}
        change_without_weights(model, left, _fold)
        return model


@register("check_constants", stage=Stage.FOLDING, default=True, is_ours=True, before=("constant_folding",))
class CheckConstants(Pass):
    """Refuse constants that no model can hold: what ONNX Runtime says of them, and when, its versions do not
    agree upon."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Raises CompileMemoryError."""
        demand = measure(infer_shapes(model))
        if demand.folded_bytes > onnx.checker.MAXIMUM_PROTOBUF:
            raise CompileMemoryError(
                f"the constants of the model make tensor {demand.folded!r} of {demand.folded_bytes} bytes; a "
                f"model can hold {onnx.checker.MAXIMUM_PROTOBUF}"
            )
        return model


def _fold(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        folded = _optimise(model)
        if any(name.startswith(_INLINED) for node in folded.graph.node for name in node.output):
            folded = _optimise(folded)  # it takes apart last, and does not fold what that leaves to be folded
    except CompileError as error:
        if _is_refusal(error):
            raise_for_branch(model, _judge)
        raise
    forget_values(folded.graph)
    keep_opsets(folded, {node.domain for node in folded.graph.node} | {""})
    return folded


def _optimise(model: onnx.ModelProto) -> onnx.ModelProto:
    for tensor in model.graph.initializer:
        inline(tensor)
    with tempfile.TemporaryDirectory(prefix="poprt-") as folder:
        source, result = Path(folder, "source.onnx"), Path(folder, "folded.onnx")
        onnx.save(model, source)
        command = [sys.executable, "-c", _CHILD, str(source), str(result)]
        try:
            child = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise CompileError(
                f"folding constants took more than {TIMEOUT_SECONDS} s and was stopped"
            ) from None
        if child.returncode < 0:
            raise CompileError(
                f"ONNX Runtime crashed (signal {-child.returncode}) while folding the model's constants"
            )
        if child.returncode or not result.exists():
            reason = child.stderr.strip().splitlines()[-1:] or ["no message"]
            raise CompileError(_REFUSED + re.sub(_WHERE, "", reason[0]))
        return onnx.load(result)


def _judge(model: onnx.ModelProto) -> str | None:
    try:
        _optimise(model)
    except CompileError as error:
        return str(error).removeprefix(_REFUSED) if _is_refusal(error) else None
    return None


def _is_refusal(error: CompileError) -> bool:
    """Whether ONNX Runtime found the model invalid: a crash or a timeout says nothing of that."""
    return str(error).startswith(_REFUSED)


def _weights_left(graph: onnx.GraphProto) -> set[str]:
    """The large weights that the optimiser would only read and write again: they do not travel there and
    back."""
    if any(node.op_type == "BatchNormalization" for node in graph.node):
        return set()  # products may take it up into their weights
    dynamic = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
    wanted = {value.name for value in graph.output}
    for node in graph.node:
        if node.op_type not in OF_SHAPES and dynamic.intersection(node.input):
            dynamic.update(node.output)
        if not operator_of(node).reads_mapped_weights or not dynamic.intersection(node.input):
            wanted.update(node.input)
        for subgraph in iter_bodies(node):
            wanted |= used_names(subgraph)
    return {tensor.name for tensor in graph.initializer if math.prod(tensor.dims) >= weights.LARGE} - wanted
