"""Child process with ONNX Runtime that computes values while a model is converted. All optimisers
of ONNX Runtime are off.

A crash, or a run that does not end, affects that process only. `constants` selects what is computed
and uses the results.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import LARGE_BYTES, count_bytes, inline, read_array
from simipu import CompileError

from popef._tools.arrays import Array
from popef._tools.child import run_python

TIMEOUT_SECONDS = 1_800
"""Maximum time that ONNX Runtime may take to compute the constants, in seconds."""
PLAIN_TYPES = frozenset(
    getattr(TensorProto, name)
    for name in "FLOAT FLOAT16 DOUBLE INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 "
    "BOOL".split()
)
"""Element types that numpy has. Tensors of other types are not exchanged with the child process as
arrays."""
_REFUSED = "ONNX Runtime cannot load the model: "
_WHERE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from \S+ failed:)?")
"""Prefix of ONNX Runtime's messages: a code, and the name of a temporary file."""
_SOURCE, _RESULT = "source.onnx", "result.onnx"

# The child process imports ONNX Runtime and numpy only: importing this package would take a second.
_CHILD = """
import numpy
import onnxruntime
sys.excepthook = lambda kind, error, trace: print(" ".join(str(error).split()), file=sys.stderr)
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
options.log_severity_level = 4
onnxruntime.disable_telemetry_events()
if sys.argv[1] == "take_apart":
    options.optimized_model_filepath = "result.onnx"
session = onnxruntime.InferenceSession("source.onnx", options, providers=["CPUExecutionProvider"])
if sys.argv[1] == "compute":
    names = [each.name for each in session.get_inputs()]
    fed = {name: numpy.load(f"in{i}.npy", mmap_mode="r") for i, name in enumerate(names)}
    for i, value in enumerate(session.run_with_ort_values(None, {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in fed.items()
    })):
        if value.data_type() in sys.argv[2].split(","):
            numpy.save(f"out{i}.npy", value.numpy())
"""
_NAMES = {"FLOAT16": "float16", "FLOAT": "float", "DOUBLE": "double", "BOOL": "bool"}
_PLAIN_NAMES = ",".join(
    f"tensor({_NAMES.get(name, name.lower())})"
    for name in map(TensorProto.DataType.Name, sorted(PLAIN_TYPES))
)
"""The plain element types by ONNX Runtime's names."""


def compute(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    tensors: Iterable[tuple[str, TensorProto]],
    names: Sequence[str],
) -> Mapping[str, Array]:
    """Compute tensors in the child process.

    `nodes` are operators of the opsets of `model`; `tensors` are their constants by name. Returns
    the tensors of `names` whose element type numpy has. Raises CompileError if the nodes cannot be
    computed.
    """
    with tempfile.TemporaryDirectory(prefix="poprt-") as folder:
        source = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
        source.graph.name = "constants"
        source.graph.node.extend(nodes)
        source.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        for name, tensor in tensors:
            if tensor.data_type in PLAIN_TYPES and count_bytes(tensor) >= LARGE_BYTES:
                np.save(Path(folder, f"in{len(source.graph.input)}.npy"), read_array(tensor))
                source.graph.input.append(
                    helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
                )
                continue
            constant = source.graph.initializer.add()
            constant.CopyFrom(tensor)
            constant.name = name
            inline(constant)
        _run(source, Path(folder), "compute", _PLAIN_NAMES)
        files = {name: Path(folder, f"out{i}.npy") for i, name in enumerate(names)}
        return {name: np.load(file) for name, file in files.items() if file.exists()}


def take_apart(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with operators that have no kernel in ONNX Runtime replaced by their
    standard definitions.

    Raises CompileError with ONNX Runtime's reason if it cannot load the model.
    """
    with tempfile.TemporaryDirectory(prefix="poprt-") as folder:
        _run(model, Path(folder), "take_apart")
        return onnx.load(Path(folder, _RESULT))


def _run(model: onnx.ModelProto, folder: Path, *arguments: str) -> None:
    onnx.save(model, folder / _SOURCE)
    try:
        # The child process looks for modules in its working directory first, so it gets one that
        # holds our files only.
        child = run_python(
            _CHILD, *arguments, seconds=TIMEOUT_SECONDS, cwd=folder, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        raise CompileError(
            f"folding constants took more than {TIMEOUT_SECONDS} s and was stopped"
        ) from None
    if child.returncode < 0:
        raise CompileError(
            f"ONNX Runtime crashed (signal {-child.returncode}) while folding the model's constants"
        )
    if child.returncode:
        reason = child.stderr.strip().splitlines()[-1:] or ["no message"]
        raise CompileError(_REFUSED + re.sub(_WHERE, "", reason[0]))


def is_refusal(error: CompileError) -> bool:
    """Return whether ONNX Runtime found the model invalid. A crash or a timeout does not show
    that."""
    return str(error).startswith(_REFUSED)


def reason_of(error: CompileError) -> str:
    """Return ONNX Runtime's message in an error."""
    return str(error).removeprefix(_REFUSED)
