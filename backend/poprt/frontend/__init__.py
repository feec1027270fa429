"""Front ends: they open source models and check them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simipu import CompileError

from poprt.frontend.frontends import (
    Model,
    OnnxFrontend,
    check_standard,
    describe_invalid,
    read_model,
)
from poprt.frontend.tensorflow_frontend import TensorflowFrontend

__all__ = [
    "Frontend",
    "Model",
    "OnnxFrontend",
    "TensorflowFrontend",
    "check_standard",
    "describe_invalid",
    "get_frontend",
    "read_model",
]

Frontend = OnnxFrontend | TensorflowFrontend


def get_frontend(path: str | Path, framework: str = "onnx", **options: Any) -> Frontend:
    """Return the front end for a framework.

    Args:
        path: the model's file or folder.
        framework: onnx or tensorflow.
        options: options of the front end.

    Returns:
        The front end.

    Raises:
        CompileError: for another framework.

    Example:
        >>> from poprt import frontend
        >>> frontend.get_frontend("model.onnx").load_model().graph.input[0].name
        'x'
    """
    if framework == "tensorflow":
        return TensorflowFrontend(path, **options)
    if framework != "onnx":
        raise CompileError(f"framework: expected onnx or tensorflow, found {framework!r}")
    return OnnxFrontend(path, **options)
