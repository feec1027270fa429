"""ONNX Runtime as an oracle: without its optimisers, some of which change answers."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime


def unoptimised_session(model: onnx.ModelProto | bytes | Path) -> onnxruntime.InferenceSession:
    """Return a session that computes the graph of a model as written."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return onnxruntime.InferenceSession(
        str(source) if isinstance(source, Path) else source,
        options,
        providers=["CPUExecutionProvider"],
    )
