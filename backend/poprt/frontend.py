"""Reads source models. Only ONNX: a model of another framework is exported to ONNX first."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnxgraph import without_weights
from onnxgraph.weights import inline, is_outlined
from simipu import CompileError

from poprt.opening import open_model


class OnnxFrontend:
    """Loads an ONNX model from a file, or from a folder that holds exactly one."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def get_onnx_name(self) -> Path:
        """The ONNX file meant by the path. Raises CompileError when there is none, or more than one."""
        if not self.path.is_dir():
            if not self.path.is_file():
                raise CompileError(f"input model {self.path}: no such file")
            return self.path
        files = sorted(self.path.glob("*.onnx"))
        if len(files) != 1:
            names = ", ".join(file.name for file in files) or "none"
            raise CompileError(
                f"folder {self.path} must hold exactly one ONNX file, found {names}; name the file"
            )
        return files[0]

    def load_model(self) -> onnx.ModelProto:
        """The model, checked against the ONNX standard. Raises CompileError when it is not a valid one."""
        model = self.open_model()
        for tensor in model.graph.initializer:
            inline(tensor)
        return model

    def open_model(self) -> onnx.ModelProto:
        """The same with large weights left where they are (ours): for `Converter` and `Compiler` of this
        process only."""
        file = self.get_onnx_name()
        try:
            model = open_model(file)
            # The checker writes and reads what it checks, and cannot with more than 2 GiB.
            onnx.checker.check_model(
                without_weights(model, {t.name for t in model.graph.initializer if is_outlined(t)})
            )
        except (DecodeError, onnx.checker.ValidationError, OSError, ValueError) as error:
            raise CompileError(f"{file} is not a valid ONNX model: {error}") from error
        return model


def get_frontend(path: str | Path, framework: str = "onnx") -> OnnxFrontend:
    """The front end for `framework`; CompileError for any but onnx."""
    if framework != "onnx":
        raise CompileError(
            f"framework {framework!r} has no front end here, only onnx; export the model to ONNX"
        )
    return OnnxFrontend(path)
