"""Reads source models: ONNX here, TensorFlow in `tensorflow_frontend`; models of other frameworks are
exported to ONNX first (README)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import onnx
from google.protobuf.message import DecodeError
from onnxgraph import iter_nodes, without_weights
from onnxgraph.weights import inline, is_outlined
from simipu import CompileError
from simipu.places import strip_places

from poprt.opening import open_model
from poprt.tensorflow_frontend import TensorflowFrontend

Frontend: TypeAlias = "OnnxFrontend | TensorflowFrontend"


class OnnxFrontend:
    """Loads an ONNX model from a file, or from a folder that holds exactly one."""

    def __init__(self, path: str | Path, **_options: Any) -> None:
        self.path = Path(path)

    def get_onnx_name(self, dir_or_name: str | Path | None = None) -> Path:
        """The ONNX file meant by a path, its own by default. Raises CompileError when there is none, or more
        than one."""
        path = Path(dir_or_name or self.path)
        if not path.is_dir():
            if not path.is_file():
                raise CompileError(f"input model {path}: no such file")
            return path
        files = sorted(path.glob("*.onnx"))
        if len(files) != 1:
            names = ", ".join(file.name for file in files) or "none"
            raise CompileError(f"folder {path} must hold exactly one ONNX file, found {names}; name the file")
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
            check_standard(model, {t.name for t in model.graph.initializer if is_outlined(t)})
        except (DecodeError, onnx.checker.ValidationError, OSError, ValueError) as error:
            raise CompileError(f"{file} is not a valid ONNX model: {error}") from error
        return model


def check_standard(model: onnx.ModelProto, heavy: set[str]) -> None:
    """Raises onnx.checker.ValidationError for what is no model by the standard; the weights `heavy` are not
    looked at.

    One that was converted to 8 bits has Casts with a scale, one for several IPUs places of nodes, which the
    standard does not have: they pass.
    """
    # The checker writes and reads what it checks, and cannot with more than 2 GiB.
    light = without_weights(model, heavy)
    strip_places(light.graph)
    for node in iter_nodes(light.graph):
        if node.op_type == "Cast":
            for index in reversed([i for i, each in enumerate(node.attribute) if each.name == "scale"]):
                del node.attribute[index]
    onnx.checker.check_model(light)


Model = onnx.ModelProto | bytes | str | Path
"""A model, the bytes of one, or the file."""


def read_model(model: Model) -> onnx.ModelProto:
    """The model itself, or what the bytes or the file hold, large weights where they are (for this process
    only). Raises CompileError where they hold none."""
    if isinstance(model, (str, Path)):
        return OnnxFrontend(model).open_model()
    return _parse(model) if isinstance(model, bytes) else model


def _parse(data: bytes) -> onnx.ModelProto:
    try:
        return onnx.load_model_from_string(data)
    except DecodeError as error:
        raise CompileError(f"{len(data)} bytes: expected a serialised ONNX model, found {error}") from error


def get_frontend(path: str | Path, framework: str = "onnx", **options: Any) -> Frontend:
    """The front end for `framework`, with its options; CompileError for any but onnx and tensorflow."""
    if framework == "tensorflow":
        return TensorflowFrontend(path, **options)
    if framework != "onnx":
        raise CompileError(f"framework {framework!r} has no front end; there are onnx and tensorflow")
    return OnnxFrontend(path, **options)
