"""Models of several graphs on one chip, each of which answers through a real server.

They are fused, sharded and pipelined, overlapped, or have a user's operator.
"""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from onnx import TensorProto, helper
from poplar_triton.serving.server import TritonServer
from poprt import Compiler, CompilerOptions, Converter
from poprt.compile.converter import MFConverter, Sharder
from poprt.passes import register_op_body
from poprt.passes.inlining.custom_operators import _BODIES
from poprt.triton.model_folder import write_triton_model
from sample_models import linear_model, make_model
from triton_clients import read_metric
from tritonclient.utils import InferenceServerException
from waiting import wait_until

F = TensorProto.FLOAT
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def halves() -> onnx.ModelProto:
    """Return a model of the sum of two inputs in half precision."""
    pair = {name: (TensorProto.FLOAT16, [3]) for name in ("a", "b")}
    return make_model(
        [helper.make_node("Add", ["a", "b"], ["sum"], name="sum")],
        pair,
        {"sum": (TensorProto.FLOAT16, [3])},
        {},
    )


def thrice() -> onnx.ModelProto:
    node = helper.make_node("Thrice", ["x"], ["y"], name="thrice", domain="my.ops")
    model = make_model([node], {"x": (F, ["n", 4])}, {"y": (F, ["n", 4])}, {})
    model.opset_import.append(helper.make_opsetid("my.ops", 1))
    return model


def empty() -> onnx.ModelProto:
    """Return a model whose input has rows without elements, and one of its outputs too."""
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Concat", ["x", "k"], ["z"], axis=1),
    ]
    outputs = {"y": (F, ["n", 0]), "z": (F, ["n", 2])}
    return make_model(nodes, {"x": (F, ["n", 0]), "k": (F, ["n", 2])}, outputs, {})


def linear(**options) -> CompilerOptions:
    return CompilerOptions(ipu_version="ipu21", **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("whole")
    repository = root / "repository"
    converted = Converter(batch_size=2).convert(linear_model())
    fused = Compiler.compile(MFConverter().convert([converted, Converter().convert(halves())]))
    write_triton_model(fused, repository / "fused")
    for name in ("completed", "asynchronous"):
        write_triton_model(fused, repository / name)
        synchronous = "1" if name == "completed" else "0"
        (repository / name / "config.pbtxt").write_text(
            'backend: "poplar"\nparameters { key: "synchronous_execution" value: { string_value: '
            f'"{synchronous}" }} }}\n'
        )
    points = {"multiply": 0, "add_bias": 1}
    sharded = Sharder(points, points).run(converted)
    how = linear(
        num_ipus=3, virtual_graph_mode="manual", enable_pipelining=True, batches_per_step=3
    )
    write_triton_model(Compiler.compile(sharded, None, how), repository / "pipelined")
    overlapped = Compiler.compile(converted, None, linear(num_io_tiles=32))
    write_triton_model(overlapped, repository / "overlapped")
    known = dict(_BODIES)
    register_op_body("Thrice", "my.ops")(
        lambda node, _opset: [
            helper.make_node("Add", [node.input[0], node.input[0]], ["twice"]),
            helper.make_node("Add", ["twice", node.input[0]], [node.output[0]]),
        ]
    )
    write_triton_model(
        Compiler.compile(Converter(batch_size=2).convert(thrice())), repository / "custom"
    )
    _BODIES.clear()
    _BODIES.update(known)
    compiled = Compiler.compile(Converter(batch_size=2).convert(empty()))
    write_triton_model(compiled, repository / "empty")
    write_triton_model(compiled, repository / "empty_completed")
    (repository / "empty_completed" / "config.pbtxt").write_text('backend: "poplar"\n')
    with TritonServer(repository, log=root / "tritonserver.log") as running:
        yield running


def ask(server, model, inputs, outputs=None, protocol="grpc"):
    module, url = (
        (httpclient, server.http_url) if protocol == "http" else (grpcclient, server.grpc_url)
    )
    with module.InferenceServerClient(url) as client:
        given = []
        for name, array in inputs.items():
            types = {"float32": "FP32", "float16": "FP16", "int32": "INT32"}
            given.append(module.InferInput(name, list(array.shape), types[array.dtype.name]))
            given[-1].set_data_from_numpy(array)
        wanted = [module.InferRequestedOutput(name) for name in outputs] if outputs else None
        result = client.infer(model, given, outputs=wanted)
        response = result.get_response()
        named = response["outputs"] if protocol == "http" else json_outputs(response)
        return {each["name"]: result.as_numpy(each["name"]) for each in named}


def json_outputs(response):
    return [{"name": each.name} for each in response.outputs]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["fused", "completed", "asynchronous"])
def test_a_fused_model_answers_with_the_model_whose_inputs_are_given(whole, model, protocol):
    found = ask(whole, model, {"graph0/x": X}, protocol=protocol)
    assert sorted(found) == ["graph0/y", "graph0/z"]
    np.testing.assert_array_equal(found["graph0/z"], 2 * X)
    pair = {"graph1/a": np.ones(3, np.float16), "graph1/b": np.arange(3, dtype=np.float16)}
    found = ask(whole, model, {**pair, "index": np.array([1], np.int32)}, protocol=protocol)
    assert list(found) == ["graph1/sum"]
    np.testing.assert_array_equal(found["graph1/sum"], [1, 2, 3])


@pytest.mark.parametrize(
    ("inputs", "outputs", "reason"),
    [
        (
            {"graph1/a": np.ones(3, np.float16)},
            None,
            "input 'graph1/b' is not given; the inputs of model 1 of the fused",
        ),
        (
            {"graph0/x": X, "index": np.array([7], np.int32)},
            None,
            "the number of a model, 0 to 1, found 7",
        ),
        ({"graph0/x": X, "index": np.array([1], np.int32)}, None, "input 'graph1/a' is not given"),
        ({"index": np.array([0], np.int32)}, None, "input 'graph0/x' is not given"),
        ({"graph0/x": X}, ["graph1/sum"], "outputs of another; available outputs"),
        ({"graph0/x": X[:1]}, None, "unexpected shape for input 'graph0/x'"),
    ],
)
def test_a_request_for_no_one_model_is_refused(whole, inputs, outputs, reason):
    with pytest.raises(InferenceServerException, match=reason):
        ask(whole, "fused", inputs, outputs)


def test_outputs_of_the_model_can_be_chosen(whole):
    assert list(ask(whole, "fused", {"graph0/x": X}, ["graph0/z"])) == ["graph0/z"]


@pytest.mark.parametrize("model", ["pipelined", "overlapped"])
def test_several_chips_and_io_tiles_change_no_answer(whole, model):
    np.testing.assert_array_equal(ask(whole, model, {"x": X})["z"], 2 * X)


def test_a_users_operator_is_served_without_the_users_code(whole):
    np.testing.assert_array_equal(ask(whole, "custom", {"x": X})["y"], 3 * X)


def test_each_request_to_a_fused_model_counts_the_cycles_of_its_own(whole):
    def read(name):
        return read_metric(whole.metrics_url, f"poplar_{name}", model="fused", version="1")

    def is_published():
        """Return whether all requests are, in the metrics that are published after the cycles too."""
        with httpclient.InferenceServerClient(whole.http_url) as client:
            counts = client.get_inference_statistics("fused")["model_stats"][0]["inference_stats"]
        answered = counts["success"]["count"] + counts["fail"]["count"]
        counted = read("request_seconds_count") + read("errors_total")
        return answered == read("requests_total") == counted

    taken = []
    pair = {"graph1/a": np.ones(3, np.float16), "graph1/b": np.ones(3, np.float16)}
    for inputs in ({"graph0/x": X}, pair):
        wait_until(is_published, "the requests of other tests are counted")
        before = read("ipu_cycles_total")
        ask(whole, "fused", inputs)
        wait_until(is_published, "the request is counted")
        taken.append(read("ipu_cycles_total") - before)
    assert taken[0] > taken[1] > 0


def test_the_server_asks_for_no_input_of_a_fused_model(whole):
    with httpclient.InferenceServerClient(whole.http_url) as client:
        config = client.get_model_config("completed")
    assert all(each["optional"] for each in config["input"]), json.dumps(config)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["empty", "empty_completed"])
def test_tensors_without_elements_are_served(whole, model, protocol):
    pair = np.float32([[1, 2], [3, 4], [5, 6]])
    found = ask(whole, model, {"x": np.zeros((3, 0), np.float32), "k": pair}, protocol=protocol)
    assert found["y"].shape == (3, 0)
    np.testing.assert_array_equal(found["z"], pair)
    with pytest.raises(InferenceServerException, match="'x'"):
        ask(whole, model, {"x": np.zeros((3, 1), np.float32), "k": pair}, protocol=protocol)
