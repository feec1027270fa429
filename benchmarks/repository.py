"""Model folders for the benchmarks: the poplar models, and the Python models of a few lines that
they are compared with."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from google.protobuf import text_format
from poplar_triton import recipes
from poplar_triton.serving.server import TritonServer
from poprt import Compiler, CompilerOptions, Converter
from poprt.triton.model_folder import write_triton_model
from rich.console import Console
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup
from tritonclient.utils import np_to_triton_dtype

EXAMPLES = Path(__file__).parents[1] / "model_repository"
CACHE = recipes.default_cache(EXAMPLES)
NUMPY = 1
"""The major version with which the stub's own tensors work."""
BATCH_SIZE = 16
"""Compiled batch of the models made here."""

FLOOR = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        Response, Tensor = pb_utils.InferenceResponse, pb_utils.Tensor
        return [Response([Tensor("y", request.inputs()[0].as_numpy())]) for request in requests]
"""
"""The leanest Python-backend model: an identity."""
SENDERS = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        Response, Tensor = pb_utils.InferenceResponse, pb_utils.Tensor
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        for request in requests:
            response = Response([Tensor("y", request.inputs()[0].as_numpy())])
            request.get_response_sender().send(response, final)
"""
"""The leanest identity that answers through response senders, inside `execute`."""
THREADED = """
import queue
import threading
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.requests = queue.SimpleQueue()
        threading.Thread(target=self.respond, daemon=True).start()

    def execute(self, requests):
        for request in requests:
            self.requests.put((request.get_response_sender(), request.inputs()[0].as_numpy()))

    def respond(self):
        Response, Tensor = pb_utils.InferenceResponse, pb_utils.Tensor
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        while True:
            sender, array = self.requests.get()
            sender.send(Response([Tensor("y", array)]), final)
"""
"""The leanest identity that answers through response senders, from a thread."""
ONNXRUNTIME = """
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = {threads}
        self.session = onnxruntime.InferenceSession({file!r}, options)

    def execute(self, requests):
        responses = []
        for request in requests:
            inputs = {{tensor.name(): {array} for tensor in request.inputs()}}
            arrays = self.session.run({outputs!r}, inputs)
            tensors = [pb_utils.Tensor(name, array) for name, array in zip({outputs!r}, arrays)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""
"""Model of a user who has an ONNX file and no IPU."""
OPENVINO = """
import sys
sys.modules["openvino_telemetry"] = None  # else it sends usage data
import openvino
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        settings = {{
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": {threads},
            "INFERENCE_PRECISION_HINT": "f32",
        }}
        compiled = openvino.Core().compile_model({file!r}, "CPU", settings)
        self.request = compiled.create_infer_request()

    def execute(self, requests):
        responses = []
        for request in requests:
            inputs = {{tensor.name(): {array} for tensor in request.inputs()}}
            results = self.request.infer(inputs, share_inputs=True)
            tensors = [pb_utils.Tensor(name, results[name]) for name in {outputs!r}]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""
"""Source of a Python-backend model that calls OpenVINO on the same file."""


def read_config(folder: Path) -> ModelConfig:
    """Read the configuration of the model in `folder`."""
    return text_format.Parse((folder / "config.pbtxt").read_text(), ModelConfig())


def write_config(folder: Path, config: ModelConfig) -> ModelConfig:
    """Write this configuration for the model in `folder`, with the folder's name, and return it."""
    config.name = folder.name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config))
    return config


def write_poplar_model(
    folder: Path,
    model: onnx.ModelProto,
    batch_size: int = BATCH_SIZE,
    options: CompilerOptions | None = None,
) -> ModelConfig:
    """Compile `model`, whose tensors have a free leading dimension, to a batch; returns its
    configuration."""
    write_triton_model(
        Compiler.compile(Converter(batch_size=batch_size).convert(model), None, options), folder
    )
    return read_config(folder)


def write_twin(folder: Path, original: Path, **parameters: str) -> ModelConfig:
    """Write the poplar model in `original` again, with other parameters in its configuration."""
    shutil.copytree(original, folder)
    config = read_config(folder)
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    return write_config(folder, config)


def build_examples() -> list[recipes.Recipe]:
    """Return the recipes of the example models, which are compiled if necessary."""
    recipes.build(EXAMPLES, console=Console(stderr=True))
    return recipes.read_recipes(EXAMPLES)


def copy_example(name: str, folder: Path) -> ModelConfig:
    """Copy a compiled example model."""
    shutil.copytree(EXAMPLES / name, folder)
    return write_config(folder, read_config(folder))


def write_python_model(folder: Path, like: ModelConfig, source: str) -> ModelConfig:
    """Write a model of the python backend with the tensors, batching and instances of `like`."""
    config = ModelConfig()
    config.CopyFrom(like)
    config.backend = "python"
    config.parameters.clear()
    config.ClearField("optimization")
    write_config(folder, config)
    (folder / "1" / "model.py").write_text(source)
    return config


def write_onnxruntime_model(
    folder: Path,
    like: ModelConfig,
    names: Mapping[str, str],
    file: Path,
    source: str = ONNXRUNTIME,
) -> ModelConfig:
    """Write the user's model `source` on the ONNX file `file`, for the same requests as the poplar
    model with configuration `like`.

    `names` gives the tensors' names in `like` by those in the file. Instances share the cores as
    poplar's do.
    """
    originals = {friendly: name for name, friendly in names.items()}
    types = _tensor_types(file)
    config = ModelConfig()
    config.CopyFrom(like)
    for tensor in (*config.input, *config.output):
        tensor.name = originals[tensor.name]
        tensor.data_type = types[tensor.name]
    for output in config.output:
        output.label_filename = ""
    num_threads = (
        config.parameters["sim_threads"].string_value if "sim_threads" in config.parameters else ""
    )
    threads = int(num_threads or max(1, len(os.sched_getaffinity(0)) // count_instances(config)))
    outputs = [tensor.name for tensor in config.output]
    array = (
        _SCALARS.format(names=scalars) if (scalars := _find_scalars(file)) else "tensor.as_numpy()"
    )
    source = source.format(threads=threads, file=str(file.resolve()), outputs=outputs, array=array)
    return write_python_model(folder, config, source)


_SCALARS = "tensor.as_numpy().reshape(()) if tensor.name() in {names} else tensor.as_numpy()"
"""Triton sends a scalar as a tensor of one element."""


def _find_scalars(file: Path) -> list[str]:
    graph = onnx.load(file, load_external_data=False).graph
    return [
        value.name
        for value in graph.input
        if value.type.tensor_type.HasField("shape") and not _rank(value)
    ]


def _rank(value: onnx.ValueInfoProto) -> int:
    return len(value.type.tensor_type.shape.dim)


def _tensor_types(file: Path) -> dict[str, int]:
    """Return Triton's data types of an ONNX file's inputs and outputs."""
    graph = onnx.load(file, load_external_data=False).graph
    types = {}
    for value in (*graph.input, *graph.output):
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        types[value.name] = DataType.Value(f"TYPE_{np_to_triton_dtype(dtype)}")
    return types


def read_names(folder: Path) -> dict[str, str]:
    """Return the friendly names of a poplar model's tensors by those in its ONNX file."""
    names: dict[str, str] = json.loads((folder / "1" / "name_map.json").read_text())
    return names


def count_instances(config: ModelConfig) -> int:
    """Return the instances of a model on a machine without a GPU; Triton's default is one."""
    return sum(group.count or 1 for group in config.instance_group) or 1


def set_accelerator(config: ModelConfig, name: str) -> None:
    """Have a model computed by an accelerator of the CPU, or by the CPU kernels ("")."""
    config.ClearField("optimization")
    if name:
        config.optimization.execution_accelerators.cpu_execution_accelerator.add(name=name)


def set_instances(config: ModelConfig, count: int) -> None:
    """Have `count` instances of a model."""
    del config.instance_group[:]
    config.instance_group.add(count=count, kind=ModelInstanceGroup.KIND_CPU)


@contextmanager
def serve(repository: Path, log: Path) -> Iterator[TritonServer]:
    """Run a server with every model of `repository`.

    Raises SystemExit that says which models do not load and why, or what the machine lacks.
    """
    configs = [file.read_text(encoding="utf-8") for file in repository.glob("*/config.pbtxt")]
    has_python = any('backend: "python"' in config for config in configs)
    if has_python and int(np.__version__.split(".")[0]) > NUMPY:
        raise SystemExit(
            "benchmarks: the Python-backend models compared with need numpy 1, found "
            f"{np.__version__}: the stub's binding misreads the arrays of numpy 2; run them with "
            "`make bench` or .venv/bench/bin/python, whose Python is 3.12 or older"
        )
    with TritonServer(repository, log=log) as server:
        if failed := server.failed_models():
            reasons = "\n".join(f"{name}: {reason}" for name, reason in failed.items())
            raise SystemExit(f"benchmarks: {len(failed)} models do not load\n{reasons}")
        yield server
