"""Front end for TensorFlow models: it runs tf2onnx in a child process.

A TensorFlow model is a program: load only trusted models. TensorFlow's and tf2onnx's imports, logs
and crashes stay in that process, which checks every name that it is given (`tensorflow_child`).
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnxgraph import inline
from simipu import CompileError

from popef._tools.arguments import split_names
from popef._tools.child import run_python
from popef._tools.file_kinds import HEAD_BYTES, recognize_substitute
from popef._tools.text import escape
from poprt.frontend import tensorflow_child as child
from poprt.frontend.frontends import open_model

TIMEOUT_SECONDS = 3_600
"""Maximum time of a conversion, in seconds: as long as `--time_limit` by default."""
_PACKAGES = ("tensorflow", "tf2onnx")
_LARGE_BYTES = 1 << 30
"""Minimum size of a source model whose weights are stored outside the ONNX file (limit: 2 GiB)."""
_MAX_LARGE_BYTES = 1 << 36
"""Maximum size of a large model after unpacking; more cannot be converted."""
_LOG_BYTES = 1 << 14
"""Number of bytes at the end of the child process's output that hold the reason of a failure."""
_NAME = re.compile(r"([^\[\],]+)(?:\[([^\]]*)\])?(?:,|$)")
_SOURCE_NODES = frozenset(("Placeholder", "PlaceholderWithDefault"))
Meta = dict[str, tuple[list[int], int]]
"""Shape (-1 for an unknown size) and TensorFlow's number of the type, by the tensor's name."""

_log = logging.getLogger("poprt")


class TensorflowFrontend:
    """Loads a TensorFlow SavedModel, or a frozen graph (`saved_model=False`), as ONNX of `opset`.

    Names are lists, or texts separated by commas: names of tensors (`Identity:0`) or from the
    signature (`output_0`).

    Args:
        path: folder of the SavedModel, or file of the frozen graph.
        saved_model: whether `path` is a SavedModel.
        signature_def: the signature to use; "" means serving_default, else the only one.
        tag: the SavedModel's tag; "" means serve.
        opset: opset of the ONNX model.
        inputs_as_nchw: inputs to transpose from NHWC to NCHW.
        outputs_as_nchw: outputs to transpose from NHWC to NCHW.
        inputs: names of the inputs, each of which may be followed by its shape as in tf2onnx
            (`x:0[1,224,224,3]`); None means all of the signature's, by its names.
        input_shape: sizes by name.
        outputs: names of the outputs; None means all of the signature's, by its names.

    Raises:
        CompileError: if TensorFlow or tf2onnx is not installed, or `path` holds no such model.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        saved_model: bool = True,
        signature_def: str = "",
        tag: str = "",
        opset: int = 11,
        inputs_as_nchw: str | Sequence[str] | None = None,
        outputs_as_nchw: str | Sequence[str] | None = None,
        inputs: str | Sequence[str] | None = None,
        input_shape: Mapping[str, Sequence[int]] | None = None,
        outputs: str | Sequence[str] | None = None,
        **_options: Any,
    ) -> None:
        check_packages()
        self.path = Path(path).resolve()
        expected = "a folder with saved_model.pb" if saved_model else "a file with a frozen graph"
        if not (self.path / "saved_model.pb" if saved_model else self.path).is_file():
            raise CompileError(f"input model {path}: expected {expected}; there is none")
        file = self.path / "saved_model.pb" if saved_model else self.path
        if substitute := recognize_substitute(_read_head(file)):
            raise CompileError(f"input model {file}: expected {expected}, found {substitute}")
        fed, shapes = self.split_nodename_and_shape(_join(inputs)) if inputs else (None, None)
        output_names = split_names([_join(outputs)]) if outputs else None
        if not saved_model and not (fed and output_names):
            raise CompileError(
                f"frozen graph {path}: --inputs and --outputs have to name its tensors"
            )
        self._request = {
            "path": str(self.path),
            "saved_model": saved_model,
            "signature_def": signature_def or "",
            "tag": tag or "serve",
            "opset": opset,
            "inputs": fed,
            "outputs": output_names,
            "inputs_as_nchw": split_names([_join(inputs_as_nchw)]) if inputs_as_nchw else [],
            "outputs_as_nchw": split_names([_join(outputs_as_nchw)]) if outputs_as_nchw else [],
            "input_shape": {
                name: [int(size) for size in dims]
                for name, dims in {**(shapes or {}), **(input_shape or {})}.items()
            },
            "is_large": _count_bytes(self.path) >= _LARGE_BYTES,
        }

    def load_model(self) -> onnx.ModelProto:
        """Return the model as ONNX.

        Raises CompileError that names what the model lacks, or that ends with tf2onnx's message.
        """
        with tempfile.TemporaryDirectory(prefix="poprt-") as folder:
            self._convert(Path(folder))
            file = _unpack(Path(folder)) if self._request["is_large"] else Path(folder, child.MODEL)
            model = open_model(file)
            for tensor in model.graph.initializer:
                inline(tensor)
            return model

    def open_model(self) -> onnx.ModelProto:
        """Return the model as ONNX, like `load_model`: no file could hold the weights."""
        return self.load_model()

    def _convert(self, folder: Path) -> None:
        folder.joinpath(child.REQUEST).write_text(json.dumps(self._request), encoding="utf-8")
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
        with folder.joinpath("log").open("w+b") as log:
            try:
                ended = run_python(
                    f"from {child.__name__} import main; sys.exit(main())",
                    seconds=TIMEOUT_SECONDS,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                )
            except subprocess.TimeoutExpired:
                raise CompileError(
                    f"{self.path}: tf2onnx took longer than {TIMEOUT_SECONDS} s and was ended"
                ) from None
            log.seek(max(0, log.tell() - _LOG_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        for line in lines:
            _log.debug("tf2onnx: %s", escape(line))
        if not ended.returncode:
            return
        error = folder / child.ERROR
        if error.exists():
            raise CompileError(escape(error.read_text(encoding="utf-8")))
        reason = escape(lines[-1]) if lines else f"it ended with status {ended.returncode}"
        raise CompileError(
            f"{self.path}: tf2onnx cannot convert it: {reason} (--logging_level DEBUG shows all "
            "that it said)"
        )

    def get_inputs_meta(self, graph: Any) -> Meta:
        """Return shape and type of a TensorFlow graph's placeholders, by name.

        `graph` is a GraphDef or a Graph.
        """
        return {
            f"{node.name}:0": _describe(node) for node in _nodes(graph) if node.op in _SOURCE_NODES
        }

    def get_outputs_meta(self, graph: Any) -> Meta:
        """Return shape and type of the tensors that no node of the graph reads, by name."""
        nodes = _nodes(graph)
        read = {name.lstrip("^").partition(":")[0] for node in nodes for name in node.input}
        return {f"{node.name}:0": _describe(node) for node in nodes if node.name not in read}

    @staticmethod
    def split_nodename_and_shape(name: str) -> tuple[list[str], dict[str, list[int]] | None]:
        """Return the names in `x:0[1,28,28,3],y:0`, and the shapes by name; None if no shape is
        given.

        Raises CompileError for another form.
        """
        names: list[str] = []
        shapes: dict[str, list[int]] = {}
        place = 0
        while place < len(name):
            match = _NAME.match(name, place)
            if match is None:
                raise CompileError(
                    f"inputs {name!r}: expected NAME or NAME[d0,d1,...] with commas between"
                )
            own, dims = match.group(1).strip(), match.group(2)
            names.append(own)
            if dims is not None:
                shapes[own] = _read_sizes(own, dims)
            place = match.end()
        return names, shapes or None


def check_packages() -> None:
    """Raise CompileError that says what to install if TensorFlow or tf2onnx is missing."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise CompileError(
            f"--framework tensorflow needs the package {missing[0]}, which is not installed: "
            "pip install 'poplar-triton[tensorflow]'"
        )


def _join(names: str | Sequence[str] | None) -> str:
    return names if isinstance(names, str) else ",".join(names or ())


def _read_sizes(name: str, text: str) -> list[int]:
    try:
        return [int(size) for size in text.split(",")]
    except ValueError:
        raise CompileError(
            f"inputs: the shape of {name!r}: expected numbers, found {text!r}"
        ) from None


def _read_head(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(HEAD_BYTES)


def _count_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")))


def _unpack(folder: Path) -> Path:
    """Unpack tf2onnx's archive for large models and return the model's file; the other files are
    next to it."""
    with zipfile.ZipFile(folder / child.LARGE_MODEL) as archive:
        if sum(member.file_size for member in archive.infolist()) > _MAX_LARGE_BYTES:
            raise CompileError(f"the model would take more than {_MAX_LARGE_BYTES >> 30} GiB")
        archive.extractall(folder / "model")
    return next((folder / "model").glob("*.onnx"))


def _nodes(graph: Any) -> list[Any]:
    return list((graph.as_graph_def() if hasattr(graph, "as_graph_def") else graph).node)


def _describe(node: Any) -> tuple[list[int], int]:
    dims = [dim.size for dim in node.attr["shape"].shape.dim]
    return dims, node.attr["dtype"].type or node.attr["T"].type
