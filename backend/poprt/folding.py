"""Folds constants and drops what shapes make idle, by ONNX Runtime's basic optimiser.

It runs in a process of its own: some valid models crash the optimiser, which must not take the compiler with it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from simipu import CompileError

TIMEOUT_SECONDS = 1_800

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


def fold(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` (static input shapes) with everything computed that does not depend on its inputs.

    Standard ONNX operators only come out. Raises CompileError with ONNX Runtime's reason, which names the node.
    """
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
        folded = onnx.load(result)
    used = {node.domain for node in folded.graph.node}
    imports = [entry for entry in folded.opset_import if entry.domain in used or not entry.domain]
    del folded.opset_import[:]
    folded.opset_import.extend(imports)
    del folded.graph.value_info[:]
    return folded
