"""TensorFlow Serving's own clients (`make test-tensorflow`) beside Triton's on all example models.

The models are computed in the server's own process and forwarded to Triton.
"""

from __future__ import annotations

import importlib
import json
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import inputs
import numpy as np
import pytest
import repository
import tritonclient.grpc as grpcclient
from poplar_triton.serving.server import TritonServer
from server_processes import TfServing
from tfserving_clients import refused
from triton_clients import infer
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.tensorflow
MODELS = ("document_orientation", "magika", "sentence_similarity", "text_recognition")
NUM_ROWS = 3
MODULES = {
    "predict": "predict_pb2",
    "metadata": "get_model_metadata_pb2",
    "status": "get_model_status_pb2",
    "management": "model_management_pb2",
    "classify": "classification_pb2",
    "regress": "regression_pb2",
    "infer": "inference_pb2",
    "prediction_service": "prediction_service_pb2_grpc",
    "model_service": "model_service_pb2_grpc",
}
LISTS = {"float32": "float_val", "float16": "half_val", "int32": "int_val"}
"""Fields of typed values for the types that the examples take; a half is stored as its bits."""

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def api() -> SimpleNamespace:
    """Return the client's modules, and TensorFlow as `tf`."""
    found = {
        name: importlib.import_module(f"tensorflow_serving.apis.{each}")
        for name, each in MODULES.items()
    }
    return SimpleNamespace(tf=importlib.import_module("tensorflow"), **found)


@pytest.fixture(scope="module")
def triton(tmp_path_factory) -> Iterator[TritonServer]:
    with TritonServer(repository.EXAMPLES, log=tmp_path_factory.mktemp("triton") / "log") as server:
        assert server.failed_models() == {}, "see `make models`"
        yield server


@pytest.fixture(scope="module", params=["in process", "forwarded"])
def server(request, triton, tmp_path_factory) -> Iterator[TfServing]:
    log = tmp_path_factory.mktemp("tfserving") / "log"
    models = (
        [repository.EXAMPLES] if request.param == "in process" else ["--triton", triton.grpc_url]
    )
    with TfServing(*models, log=log) as running:
        yield running


@pytest.fixture(scope="module")
def channel(server) -> Iterator[grpc.Channel]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc_url, options) as channel:
        yield channel


@pytest.fixture(scope="module")
def prediction(api, channel) -> Any:
    return api.prediction_service.PredictionServiceStub(channel)


@pytest.fixture(scope="module", params=MODELS)
def model(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def given(model) -> Arrays:
    """Return rows that the model takes."""
    config = repository.read_config(repository.EXAMPLES / model)
    columns = zip(*inputs.make_rows(config, NUM_ROWS), strict=True)
    return {
        tensor.name: np.stack(column) for tensor, column in zip(config.input, columns, strict=True)
    }


@pytest.fixture(scope="module")
def expected(triton, model, given) -> Arrays:
    """Return Triton's own answer to the rows."""
    with grpcclient.InferenceServerClient(triton.grpc_url) as client:
        return infer(client, model, given)


def make_request(api, model: str, tensors: dict[str, Any], outputs=()) -> Any:
    request = api.predict.PredictRequest(output_filter=outputs)
    request.model_spec.name = model
    for name, tensor in tensors.items():
        request.inputs[name].CopyFrom(tensor)
    return request


def as_protos(api, given: Arrays) -> dict[str, Any]:
    return {name: api.tf.make_tensor_proto(array) for name, array in given.items()}


def as_typed(api, array: np.ndarray) -> Any:
    """Return a tensor with a list of values, which make_tensor_proto makes for few values only."""
    proto = api.tf.make_tensor_proto(array)
    proto.ClearField("tensor_content")
    values = getattr(proto, LISTS[array.dtype.name])
    del values[:]
    bits = array.view(np.uint16) if array.dtype == np.float16 else array
    values.extend(bits.ravel().tolist())
    return proto


def check_answer(api, answer: Any, expected: Arrays) -> None:
    """Check that the answer equals the expected one bit for bit."""
    assert answer.outputs.keys() == expected.keys()
    for name, right in expected.items():
        found = api.tf.make_ndarray(answer.outputs[name])
        assert (found.dtype, found.shape) == (right.dtype, right.shape)
        assert found.tobytes() == right.tobytes()


def test_predict_is_tritons_answer(api, prediction, model, given, expected):
    answer = prediction.Predict(make_request(api, model, as_protos(api, given)), PATIENCE_SECONDS)
    check_answer(api, answer, expected)
    assert (answer.model_spec.name, answer.model_spec.version.value) == (model, 1)
    assert answer.model_spec.signature_name == "serving_default"


def test_contents_and_typed_values_say_the_same(api, prediction, model, given, expected):
    contents = as_protos(api, given)
    for name, array in given.items():
        contents[name].tensor_content = array.tobytes()
    typed = {name: as_typed(api, array) for name, array in given.items()}
    for tensors in (contents, typed):
        answer = prediction.Predict(make_request(api, model, tensors), PATIENCE_SECONDS)
        check_answer(api, answer, expected)


def test_the_last_value_counts_for_the_rest(api, prediction, triton, model, given):
    """The list of values ends with the first row."""
    whole = {
        name: np.full_like(array, array.flat[array[0].size - 1]) for name, array in given.items()
    }
    for name, array in given.items():
        whole[name][0] = array[0]
    with grpcclient.InferenceServerClient(triton.grpc_url) as client:
        expected = infer(client, model, whole)
    tensors = {name: as_typed(api, array) for name, array in whole.items()}
    for name, array in whole.items():
        del getattr(tensors[name], LISTS[array.dtype.name])[array[0].size :]
    answer = prediction.Predict(make_request(api, model, tensors), PATIENCE_SECONDS)
    check_answer(api, answer, expected)


def test_wide_integers_become_the_models(api, prediction, model, given, expected):
    narrow = [name for name, array in given.items() if array.dtype == np.int32]
    if not narrow:
        pytest.skip("the model takes no integers")
    wide = {**given, **{name: given[name].astype(np.int64) for name in narrow}}
    answer = prediction.Predict(make_request(api, model, as_protos(api, wide)), PATIENCE_SECONDS)
    check_answer(api, answer, expected)
    wide[narrow[0]][1, 0] = 2**40
    with refused("INVALID_ARGUMENT", narrow[0], "row 1", str(2**40)):
        prediction.Predict(make_request(api, model, as_protos(api, wide)), PATIENCE_SECONDS)


def test_a_filter_chooses_the_outputs(api, prediction, model, given, expected):
    for name in expected:
        request = make_request(api, model, as_protos(api, given), [name])
        check_answer(api, prediction.Predict(request, PATIENCE_SECONDS), {name: expected[name]})
    with refused("INVALID_ARGUMENT", "nothing"):
        prediction.Predict(
            make_request(api, model, as_protos(api, given), ["nothing"]), PATIENCE_SECONDS
        )


def test_wrong_requests_are_refused_by_name(api, prediction, model, given):
    protos = as_protos(api, given)
    name = next(iter(given))
    strings = {
        **protos,
        name: api.tf.make_tensor_proto(np.full(given[name].shape, b"text", object)),
    }
    for tensors, words in (
        ({}, [name]),
        ({**protos, "other": protos[name]}, ["other"]),
        (strings, [name, "DT_STRING"]),
        ({**protos, name: api.tf.make_tensor_proto(given[name][..., :0])}, [name, "shape"]),
    ):
        with refused("INVALID_ARGUMENT", *words):
            prediction.Predict(make_request(api, model, tensors), PATIENCE_SECONDS)


def test_metadata_has_tritons_signature(api, prediction, triton, model):
    request = api.metadata.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = model
    answer = prediction.GetModelMetadata(request, PATIENCE_SECONDS)
    found = api.metadata.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(found)
    signature = found.signature_def["serving_default"]
    assert signature.method_name == "tensorflow/serving/predict"
    with grpcclient.InferenceServerClient(triton.grpc_url) as client:
        metadata = client.get_model_metadata(model)
    for infos, tensors in (
        (signature.inputs, metadata.inputs),
        (signature.outputs, metadata.outputs),
    ):
        assert infos.keys() == {tensor.name for tensor in tensors}
        for tensor in tensors:
            info = infos[tensor.name]
            assert [dim.size for dim in info.tensor_shape.dim] == list(tensor.shape)
            dtype = api.tf.dtypes.as_dtype(info.dtype).as_numpy_dtype
            assert grpcclient.np_to_triton_dtype(dtype) == tensor.datatype


def test_the_status_is_available(api, channel, model):
    request = api.status.GetModelStatusRequest()
    request.model_spec.name = model
    answer = api.model_service.ModelServiceStub(channel).GetModelStatus(request, PATIENCE_SECONDS)
    (version,) = answer.model_version_status
    assert (version.version, version.state) == (1, api.status.ModelVersionStatus.AVAILABLE)
    assert version.status.error_code == 0


def test_methods_with_examples_are_unimplemented(api, prediction, channel):
    service = api.model_service.ModelServiceStub(channel)
    for call, request in (
        (prediction.Classify, api.classify.ClassificationRequest()),
        (prediction.Regress, api.regress.RegressionRequest()),
        (prediction.MultiInference, api.infer.MultiInferenceRequest()),
        (service.HandleReloadConfigRequest, api.management.ReloadConfigRequest()),
    ):
        with refused("UNIMPLEMENTED", "is not supported"):
            call(request, PATIENCE_SECONDS)


def test_unknown_models_versions_and_labels_are_refused(api, prediction, model):
    request = make_request(api, "none", {})
    with refused("NOT_FOUND", "Servable not found for request: Latest(none)"):
        prediction.Predict(request, PATIENCE_SECONDS)
    request.model_spec.name = model
    request.model_spec.version.value = 7
    with refused("NOT_FOUND", f"Servable not found for request: Specific({model}, 7)"):
        prediction.Predict(request, PATIENCE_SECONDS)
    request.model_spec.version_label = "stable"
    with refused("INVALID_ARGUMENT", "Unrecognized servable version label: stable"):
        prediction.Predict(request, PATIENCE_SECONDS)
    request = make_request(api, model, {})
    request.model_spec.signature_name = "other"
    with refused("FAILED_PRECONDITION", 'Serving signature key "other" not found'):
        prediction.Predict(request, PATIENCE_SECONDS)


def test_deadlines_and_cancellation_leave_the_server_well(api, prediction, model, given, expected):
    request = make_request(api, model, as_protos(api, given))
    with refused("DEADLINE_EXCEEDED", ""):
        prediction.Predict(request, 1e-4)
    future = prediction.Predict.future(request, PATIENCE_SECONDS)
    future.cancel()
    assert future.cancelled()
    answer = prediction.Predict(request, PATIENCE_SECONDS)
    for name, right in expected.items():
        # Not bit for bit: a run shared with cancelled requests rounds differently.
        np.testing.assert_allclose(
            api.tf.make_ndarray(answer.outputs[name]), right, rtol=1e-2, atol=1e-3
        )


def ask_rest(server: TfServing, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"{server.rest_url}/{path}", data, PATIENCE_SECONDS) as answer:
        return json.load(answer)


def check_values(found: Any, right: np.ndarray) -> None:
    array = np.array(found, right.dtype)
    assert array.shape == right.shape
    assert array.tobytes() == right.tobytes()


def test_rest_in_columns_is_tritons_answer(server, model, given, expected):
    body = {"inputs": {name: array.tolist() for name, array in given.items()}}
    answer = ask_rest(server, f"{model}:predict", body)["outputs"]
    for name, right in expected.items():
        check_values(answer[name] if len(expected) > 1 else answer, right)


def test_rest_in_rows_is_tritons_answer(server, model, given, expected):
    rows = [{name: array[row].tolist() for name, array in given.items()} for row in range(NUM_ROWS)]
    answer = ask_rest(server, f"{model}/versions/1:predict", {"instances": rows})["predictions"]
    for name, right in expected.items():
        check_values([row[name] for row in answer] if len(expected) > 1 else answer, right)


def test_rest_tells_status_and_metadata(server, model, given):
    (version,) = ask_rest(server, model)["model_version_status"]
    assert version == {
        "version": "1",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    metadata = ask_rest(server, f"{model}/metadata")
    signature = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["inputs"].keys() == given.keys()
