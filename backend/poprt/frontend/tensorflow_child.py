"""The program of the child process, the only one that imports TensorFlow and tf2onnx. It makes
model.onnx (or model.zip) from a TensorFlow model, as request.json in its working folder says.

tf2onnx silently ignores names that it does not know, or fails deep inside TensorFlow. This program
therefore looks up each name in the model first. It writes the fault of a request to error.txt, in
one line.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

REQUEST, ERROR, MODEL, LARGE_MODEL = "request.json", "error.txt", "model.onnx", "model.zip"
_SEPARATORS = ",[]"
"""Separators of tf2onnx's lists of names."""
_DEFAULT = "serving_default"
"""TensorFlow's own name for the signature that a server uses."""


class ChildRequestError(Exception):
    """Error for a request that names something the model does not have."""


class TensorNames:
    """Names of tensors on one side of a model.

    Each has a tensor name (`inputs:0`) and a name in the signature (`inputs`).
    """

    def __init__(self, kind: str, by_tensor: Mapping[str, str]) -> None:
        self._kind = kind
        self._by_tensor = by_tensor
        self._tensors = {name: tensor for tensor, name in by_tensor.items()}

    def find(self, name: str, option: str) -> str:
        """Return the tensor that `name` means. Raises RequestError if there is none."""
        tensor = name if name in self._by_tensor else self._tensors.get(name)
        if tensor is None:
            listed = ", ".join(f"{own} ({tensor})" for tensor, own in self._by_tensor.items())
            raise ChildRequestError(
                f"{option} names {name!r}; the model's {self._kind}s are {listed}"
            )
        return tensor

    def choose(self, given: Sequence[str] | None, option: str) -> dict[str, str]:
        """Return the ONNX names of the given tensors (None: all), by tensor."""
        if given is None:
            return dict(self._by_tensor)
        return {self.find(name, option): name for name in given}


def find_saved_names(path: str, tag: str, signature: str) -> tuple[str, TensorNames, TensorNames]:
    """Return the selected signature, and the names of its inputs and outputs.

    Raises RequestError.
    """
    import tensorflow

    try:
        loaded = tensorflow.saved_model.load(path, tags=[tag])
    except (OSError, RuntimeError, ValueError) as error:
        raise ChildRequestError(f"{path} cannot be loaded with tag {tag!r}: {error}") from error
    signatures = {
        name: signature_function
        for name, signature_function in loaded.signatures.items()
        if not name.startswith("_")
    }
    name = signature or (
        _DEFAULT
        if _DEFAULT in signatures
        else next(iter(signatures), "")
        if len(signatures) == 1
        else ""
    )
    if name not in signatures:
        listed = ", ".join(sorted(signatures)) or "none"
        raise ChildRequestError(
            f"--signature_def is {signature!r}; the signatures of {path} are {listed}"
        )
    function = signatures[name]
    fed = function.inputs[: len(function.inputs) - len(function.captured_inputs)]
    structure = tensorflow.nest.flatten(function.structured_input_signature)
    inputs = {tensor.name: spec.name for tensor, spec in zip(fed, structure, strict=True)}
    outputs = {
        tensor.name: own
        for tensor, own in zip(function.outputs, sorted(function.structured_outputs), strict=True)
    }
    return name, TensorNames("input", inputs), TensorNames("output", outputs)


def find_graph_names(path: str) -> tuple[TensorNames, TensorNames]:
    """Return every tensor of a frozen graph by its own name, as inputs and as outputs.

    Raises RequestError.
    """
    import tensorflow

    graph = tensorflow.compat.v1.GraphDef()
    try:
        graph.ParseFromString(Path(path).read_bytes())
        with tensorflow.Graph().as_default() as tf_graph:
            tensorflow.import_graph_def(graph, name="")
    except Exception as error:  # protobuf's and TensorFlow's errors share no base class
        raise ChildRequestError(f"{path} is no frozen graph of TensorFlow: {error}") from error
    names = {
        tensor.name: tensor.name for node in tf_graph.get_operations() for tensor in node.outputs
    }
    return TensorNames("tensor", names), TensorNames("tensor", names)


def make_arguments(request: Mapping[str, Any]) -> list[str]:
    """Return the arguments of tf2onnx's command line.

    Raises RequestError that says which option names something that does not exist.
    """
    path = request["path"]
    if request["saved_model"]:
        signature, inputs, outputs = find_saved_names(
            path, request["tag"], request["signature_def"]
        )
        words = ["--saved-model", path, "--tag", request["tag"], "--signature_def", signature]
    else:
        inputs, outputs = find_graph_names(path)
        words = ["--graphdef", path]
    fed = inputs.choose(request["inputs"], "--inputs")
    chosen = outputs.choose(request["outputs"], "--outputs")
    shapes = {
        inputs.find(name, "--input_shape"): dims for name, dims in request["input_shape"].items()
    }
    words += ["--opset", str(request["opset"])]
    words += ["--inputs", _join(name + _write_shape(shapes.get(name)) for name in fed)]
    words += ["--rename-inputs", _join(_refuse_separators(fed.values()))]
    words += ["--outputs", _join(chosen)]
    words += ["--rename-outputs", _join(_refuse_separators(chosen.values()))]
    for side, names in (("inputs", inputs), ("outputs", outputs)):
        if requested := request[f"{side}_as_nchw"]:
            transposed = (
                names.find(requested_name, f"--{side}_as_nchw") for requested_name in requested
            )
            words += [f"--{side}-as-nchw", _join(transposed)]
    if request["is_large"]:
        return [*words, "--large_model", "--output", LARGE_MODEL]
    return [*words, "--output", MODEL]


def _write_shape(dims: Sequence[int] | None) -> str:
    return "" if dims is None else f"[{_join(map(str, dims))}]"


def _refuse_separators(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        if any(separator in name for separator in _SEPARATORS):
            raise ChildRequestError(
                f"the model's name {name!r} holds one of {_SEPARATORS!r}, which tf2onnx cannot take"
            )
        yield name


def _join(words: Iterable[str]) -> str:
    return ",".join(words)


def main() -> int:
    """Convert the model as the request says; return 1 and write error.txt if that fails."""
    request = json.loads(Path(REQUEST).read_text(encoding="utf-8"))
    try:
        sys.argv = ["tf2onnx", *make_arguments(request)]
    except ChildRequestError as error:
        Path(ERROR).write_text(" ".join(str(error).split()), encoding="utf-8")
        return 1
    runpy.run_module("tf2onnx.convert", run_name="__main__")
    return 0
