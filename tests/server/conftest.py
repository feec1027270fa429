"""A real tritonserver for the whole test run, on a repository of tiny models."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from compiled_models import compile_once
from onnx import TensorProto, helper
from poplar_triton.serving.installation import backend_file
from poplar_triton.serving.server import TritonServer
from poprt import Compiler, Converter
from poprt.triton.model_folder import write_triton_model
from sample_models import gather_model, linear_model, make_model, types_model, write_handmade

import popef

ACCELERATED = """
optimization {
  execution_accelerators {
    cpu_execution_accelerator: [
      { name: "openvino" parameters { key: "num_of_threads" value: "1" } }
    ]
  }
}
"""


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.server)


def write_model(folder: Path, model: onnx.ModelProto, *, batch: int | None = 4, **convert) -> Path:
    """Write a complete model folder as poprt writes it, and return it."""
    write_triton_model(compile_once(model, batch=batch, **convert), folder)
    return folder


def wide_model() -> onnx.ModelProto:
    """Return a model with the types that the chip lacks but a PopEF file may have."""
    types = {
        "float64": TensorProto.DOUBLE,
        "int64": TensorProto.INT64,
        "uint64": TensorProto.UINT64,
    }
    nodes = [helper.make_node("Identity", [name], [f"{name}_back"]) for name in types]
    inputs = {name: (kind, [4, 2]) for name, kind in types.items()}
    return make_model(nodes, inputs, {f"{name}_back": spec for name, spec in inputs.items()}, {})


def state_model() -> onnx.ModelProto:
    return make_model(
        [
            helper.make_node("ReduceSum", ["state"], ["total"], keepdims=0),
            helper.make_node("Neg", ["state"], ["next"]),
        ],
        {"state": (TensorProto.FLOAT, [2, 3])},
        {"total": (TensorProto.FLOAT, []), "next": (TensorProto.FLOAT, [2, 3])},
        {},
    )


def guide_model() -> onnx.ModelProto:
    """Return the model of Listing 1.1.

    Its input has 8 x 8 x 1 halves, its outputs 3 and 1, and its tensors have TensorFlow's names.
    """
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Flatten", ["infeed_1.0"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["outfeed_2.0"]),
        helper.make_node("ReduceMean", ["outfeed_2.0"], ["outfeed_2.1"], axes=[1]),
    ]
    return make_model(
        nodes,
        {"infeed_1.0": (TensorProto.FLOAT, ["n", 8, 8, 1])},
        {
            "outfeed_2.0": (TensorProto.FLOAT, ["n", 3]),
            "outfeed_2.1": (TensorProto.FLOAT, ["n", 1]),
        },
        {"w": random.standard_normal((64, 3)).astype(np.float32)},
    )


LISTING_1_3 = """
name: "my_fp16_model"
backend: "poplar"
max_batch_size: 256000
dynamic_batching {
    preferred_batch_size: [2560]
    max_queue_delay_microseconds: 500000
}
input [
    {
        name: "input"
        data_type: TYPE_FP16
        dims: [ 8, 8, 1 ]
    }
]
output [
    {
        name: "my_output"
        data_type: TYPE_FP16
        dims: [ 3 ]
    },
    {
        name: "my_other_output"
        data_type: TYPE_FP16
        dims: [ 1 ]
    }
]
parameters [
    {
        key: "synchronous_execution"
        value:{string_value: "1"}
    },
    {
        key: "timeout_ns"
        value:{string_value: "500000"}
    },
    {
        key: "executable_path"
        value:{string_value: "/path/to/executable.popef"}
    },
    {
        key: "weights_path"
        value:{string_value: "/path/to/weights.popef"}
    },
    {
        key: "name_map_file_path"
        value:{string_value: "/path/to/name_map.json"}
    },
    {
        key: "check_package_hash"
        value:{string_value: "true"}
    }
]
instance_group [{ kind: KIND_CPU },{ kind: KIND_CPU }]
"""


def write_guide_model(repository: Path, elsewhere: Path) -> None:
    """Write Listing 1.3 with only its paths changed; its files lie outside the repository."""
    elsewhere.mkdir()
    (repository / "my_fp16_model" / "1").mkdir(parents=True)
    from poprt import CompilerOptions

    options = CompilerOptions(constant_weights=False)
    compiled = Compiler.compile(
        Converter(batch_size=256, precision="fp16").convert(guide_model()), None, options
    )
    compiled.export(elsewhere / "executable.popef", elsewhere / "weights.popef")
    names = {"infeed_1.0": "input", "outfeed_2.0": "my_output", "outfeed_2.1": "my_other_output"}
    (elsewhere / "name_map.json").write_text(json.dumps(names))
    (repository / "my_fp16_model" / "config.pbtxt").write_text(
        LISTING_1_3.replace("/path/to", str(elsewhere))
    )


def edit_config(folder: Path, old: str, new: str) -> None:
    config = folder / "config.pbtxt"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))


def write_broken_models(repository: Path) -> dict[str, str]:
    """Write one model for each kind of damage.

    Returns:
        The message that the server's log must contain, by model name.
    """
    expected = {}

    def broken(name: str, message: str) -> Path:
        expected[name] = message
        return write_model(repository / name, linear_model())

    executable = broken("truncated", "executable.popef") / "1/executable.popef"
    executable.write_bytes(executable.read_bytes()[:-5])
    (broken("garbage", "executable.popef") / "1/executable.popef").write_bytes(os.urandom(1000))
    (broken("missing", "executable_path") / "1/executable.popef").unlink()
    executable = broken("two_executables", "executable") / "1/executable.popef"
    with popef.Writer(executable) as writer:
        for name in ("first", "second"):
            with writer.createExecutable(name) as blob:
                blob.write(b"code")
    (
        broken("list_map", "expected a JSON object of strings, found a list") / "1/name_map.json"
    ).write_text("[]")
    folder = broken("unknown_anchor", "anchor 'q' does not exist in the PopEF file")
    (folder / "1/name_map.json").write_text('{"q": "x"}')
    folder = broken("same_name", "maps both 'y' and 'z' to 'same'")
    (folder / "1/name_map.json").write_text('{"y": "same", "z": "same"}')
    edit_config(
        broken("wrong_dims", "expected [4] of the PopEF file"),
        "TYPE_FP32\n  dims: [4]",
        "TYPE_FP32\n  dims: [5]",
    )
    edit_config(broken("wrong_type", "config.pbtxt has type TYPE_FP16"), "TYPE_FP32", "TYPE_FP16")
    edit_config(broken("wrong_name", "lists input 'q'"), 'name: "x"', 'name: "q"')
    edit_config(
        broken("bad_flag", "expected 0, 1, true or false"),
        'string_value: "1"',
        'string_value: "yes"',
    )
    misspelt = broken(
        "misspelt", "'synchronus_execution' is not known; did you mean synchronous_execution?"
    )
    edit_config(misspelt, "synchronous_execution", "synchronus_execution")
    with (broken("decoupled", "sets decoupled: true") / "config.pbtxt").open("a") as config:
        config.write("model_transaction_policy { decoupled: true }\n")
    folder = broken("hidden_name", "expected a name without control characters")
    (folder / "1/name_map.json").write_text(r'{"y": "\u001b[2J"}')
    write_other_hash(broken("other_hash", "differs from poplar hash"))
    write_fp8(broken("fp8", "which Triton does not support;"))
    return expected


def write_other_hash(folder: Path) -> None:
    """Replace the good executable by one with another package hash."""
    import dataclasses

    compiled = copy.copy(compile_once(linear_model()))
    compiled.executable = dataclasses.replace(compiled.executable, package_hash="abc")
    compiled.export(folder / "1/executable.popef")


def write_fp8(folder: Path) -> None:
    compiled = Compiler.compile(Converter(batch_size=4).convert(linear_model()))
    info = popef.TensorInfo(shape=(4, 4), dataType=popef.DataType.F8143)
    compiled.metadata.anchors()[0].setTensorInfo(info)
    compiled.export(folder / "1/executable.popef")


def write_lenient_hash(repository: Path) -> None:
    """Write a model with the same foreign executable and the check of the hash turned off."""
    folder = write_model(repository / "lenient", linear_model())
    write_other_hash(folder)
    add_parameter(folder, "check_package_hash", "False")


def add_parameter(folder: Path, name: str, value: str) -> None:
    edit_config(
        folder,
        "parameters {",
        f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\nparameters {{',
    )


PATIENT_QUEUE = """dynamic_batching { default_queue_policy {
    default_timeout_microseconds: 86400000000 allow_timeout_override: true } }"""


def write_slow_model(repository: Path) -> None:
    """Write a model of 80 rows a second in calls of four; its queue obeys a request's timeout."""
    slow = write_model(repository / "slow", linear_model())
    add_parameter(slow, "execute_delay_ms", "50")
    edit_config(slow, "max_batch_size: 4000", "max_batch_size: 4")
    edit_config(slow, "dynamic_batching { }", PATIENT_QUEUE)


def large_model() -> onnx.ModelProto:
    """Return the model y = x * 300 / 300, whose products with large x do not fit into half."""
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["product"]),
        helper.make_node("Div", ["product", "factor"], ["y"]),
    ]
    spec = (TensorProto.FLOAT, ["n", 2])
    return make_model(nodes, {"x": spec}, {"y": spec}, {"factor": np.array([300], np.float32)})


def write_incomplete_models(repository: Path) -> None:
    """Write models whose configurations are incomplete.

    They lack everything but the backend, everything, and one tensor.
    """
    accelerated = write_model(repository / "accelerated", linear_model()) / "config.pbtxt"
    accelerated.write_text(accelerated.read_text() + ACCELERATED)
    (write_model(repository / "backend_only", linear_model()) / "config.pbtxt").write_text(
        'backend: "poplar"\n'
    )
    (write_model(repository / "unnamed.poplar", linear_model()) / "config.pbtxt").unlink()
    names = repository / "unnamed.poplar" / "1" / "name_map.json"
    names.write_text('{"x": "x", "y": "friendly", "z": "z"}')
    small = 'backend: "poplar"\nmax_batch_size: 8\n'
    (write_model(repository / "own_batch", linear_model()) / "config.pbtxt").write_text(small)
    (write_model(repository / "no_batch", state_model(), batch=None) / "config.pbtxt").write_text(
        'backend: "poplar"\n'
    )


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("server")
    repository = root / "repository"
    write_model(repository / "linear", linear_model())
    write_model(repository / "gather", gather_model(), batch=8)
    write_model(repository / "types", types_model())
    write_model(repository / "state", state_model(), batch=None)
    several = write_model(repository / "several", linear_model())
    edit_config(several, "{ kind: KIND_CPU }", "[{ kind: KIND_CPU }, { kind: KIND_CPU count: 2 }]")
    dropped = write_model(repository / "dropped", linear_model())
    edit_config(dropped, 'backend: "poplar"', 'backend: "python"')
    shutil.copyfile(backend_file(), dropped / "1" / "model.py")
    asynchronous = write_model(repository / "asynchronous", linear_model())
    edit_config(asynchronous, 'string_value: "1"', 'string_value: "0"')
    add_parameter(asynchronous, "timeout_ns", "500000")
    write_slow_model(repository)
    write_incomplete_models(repository)
    (repository / "wide" / "1").mkdir(parents=True)
    write_handmade(repository / "wide" / "1" / "executable.popef", wide_model())
    (repository / "wide" / "config.pbtxt").write_text('backend: "poplar"\nmax_batch_size: 4\n')
    write_guide_model(repository, root / "elsewhere")
    write_lenient_hash(repository)
    write_model(repository / "large", large_model(), precision="fp16")
    add_parameter(
        write_model(repository / "large_fast", large_model(), precision="fp16"),
        "sim_numerics",
        "fast",
    )
    return repository


@pytest.fixture(scope="session")
def broken_models(repository: Path) -> dict[str, str]:
    return write_broken_models(repository)


@pytest.fixture(scope="session")
def server(
    repository: Path, broken_models: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    log = tmp_path_factory.mktemp("log") / "tritonserver.log"
    with TritonServer(repository, log=log) as running:
        running.log = log  # type: ignore[attr-defined]
        yield running


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """Return a server of the slow model alone, which starts in a tenth of the other one's time."""
    repository = tmp_path_factory.mktemp("slow_server")
    write_slow_model(repository)
    with TritonServer(repository) as running:
        yield running


@pytest.fixture
def http(server: TritonServer) -> Iterator[httpclient.InferenceServerClient]:
    with httpclient.InferenceServerClient(server.http_url, concurrency=8) as client:
        yield client


@pytest.fixture
def grpc(server: TritonServer) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        yield client
