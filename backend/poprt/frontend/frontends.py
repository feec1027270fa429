"""Front ends that read source models: ONNX here, TensorFlow in `tensorflow_frontend`.

Models of other frameworks must be exported to ONNX first (README).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import onnx
from google.protobuf.message import DecodeError
from onnxgraph import iter_nodes, without_weights
from onnxgraph.weights import inline, is_outlined
from simipu import CompileError
from simipu.placement import strip_placement

from poprt.frontend.opening import open_model
from poprt.frontend.tensorflow_frontend import TensorflowFrontend

Frontend: TypeAlias = "OnnxFrontend | TensorflowFrontend"


class OnnxFrontend:
    """Loads an ONNX model from a file, or from a folder that holds exactly one."""

    def __init__(self, path: str | Path, **_options: Any) -> None:
        self.path = Path(path)

    def get_onnx_name(self, dir_or_name: str | Path | None = None) -> Path:
        """Return the ONNX file of a path.

        Args:
            dir_or_name: a file or a folder; None means this front end's path.

        Returns:
            The file.

        Raises:
            CompileError: if there is no ONNX file, or more than one.
        """
        path = Path(dir_or_name or self.path)
        if not path.is_dir():
            if not path.is_file():
                raise CompileError(f"input model {path}: no such file")
            return path
        files = sorted(path.glob("*.onnx"))
        if len(files) != 1:
            names = ", ".join(file.name for file in files) or "none"
            raise CompileError(
                f"folder {path} must hold exactly one ONNX file, found {names}; name the file"
            )
        return files[0]

    def load_model(self) -> onnx.ModelProto:
        """Load the model and check it against the ONNX standard.

        Returns:
            The model.

        Raises:
            CompileError: if it is not valid.
        """
        model = self.open_model()
        for tensor in model.graph.initializer:
            inline(tensor)
        return model

    def open_model(self) -> onnx.ModelProto:
        """Load the model like `load_model`, but leave large weights where they are (ours).

        Returns:
            The model, only for `Converter` and `Compiler` in this process.

        Raises:
            CompileError: if it is not valid.
        """
        file = self.get_onnx_name()
        try:
            model = open_model(file)
            check_standard(model, {t.name for t in model.graph.initializer if is_outlined(t)})
        except (DecodeError, onnx.checker.ValidationError, OSError, ValueError) as error:
            raise CompileError(f"{file} is not a valid ONNX model: {error}") from error
        return model


def check_standard(model: onnx.ModelProto, heavy: set[str]) -> None:
    """Raise onnx.checker.ValidationError if the standard does not allow the model; skip the weights
    `heavy`.

    Two extensions of the standard pass: Casts with a scale in models converted to 8 bits, and
    places of nodes in models for several IPUs.
    """
    # The checker serialises and parses the model, which fails above 2 GiB.
    light = without_weights(model, heavy)
    strip_placement(light.graph)
    for node in iter_nodes(light.graph):
        if node.op_type == "Cast":
            for index in reversed(
                [i for i, each in enumerate(node.attribute) if each.name == "scale"]
            ):
                del node.attribute[index]
    onnx.checker.check_model(light)


Model = onnx.ModelProto | bytes | str | Path
"""A model, its bytes, or its file."""


def read_model(model: Model) -> onnx.ModelProto:
    """Return the model itself, or load it from the bytes or the file.

    Large weights stay where they are, so the result is for this process only. Raises CompileError
    if there is no model.
    """
    if isinstance(model, (str, Path)):
        return OnnxFrontend(model).open_model()
    return _parse(model) if isinstance(model, bytes) else model


def _parse(data: bytes) -> onnx.ModelProto:
    try:
        return onnx.load_model_from_string(data)
    except DecodeError as error:
        raise CompileError(
            f"{len(data)} bytes: expected a serialised ONNX model, found {error}"
        ) from error


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
        raise CompileError(
            f"framework {framework!r} has no front end; there are onnx and tensorflow"
        )
    return OnnxFrontend(path, **options)
