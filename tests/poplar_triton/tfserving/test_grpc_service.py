"""TensorFlow Serving's gRPC over a socket, in front of models that are computed here."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from onnx import TensorProto, helper
from poplar_triton.tfserving import messages_pb2 as messages
from poplar_triton.tfserving.grpc_service import Health, make_handlers
from poplar_triton.tfserving.local import LocalModels
from poplar_triton.tfserving.metrics import Counters, make_memory
from poplar_triton.tfserving.models import Code, ServingError
from poplar_triton.tfserving.settings import ModelSource, VersionPolicy
from poplar_triton.tfserving.threads import Threads
from poplar_triton.tfserving.unfinished import UnfinishedCalls
from poprt import Compiler, Converter
from rest_servers import FLOATS, FakeModels, FakeServable
from sample_models import gather_model, make_model
from tensor_protos import make_tensor_proto
from tfserving_clients import (
    METADATA,
    PREDICT,
    STATUS,
    Client,
    make_request,
    make_spec,
    read_outputs,
    refused,
)
from waiting import PATIENCE_SECONDS, wait_until

ROW = {"x": np.array([[1, 2]], np.float32)}
HEALTH = "/grpc.health.v1.Health/Check"
NAMES = ["m", "gather", "x"]
WIDTH = 200_000


def scale_model(factor, width=2):
    """Return the model of y = factor * x and the sums of x's rows."""
    return make_model(
        [
            helper.make_node("Mul", ["x", "factor"], ["y"]),
            helper.make_node("ReduceSum", ["x", "axes"], ["total"], keepdims=0),
        ],
        {"x": (TensorProto.FLOAT, ["batch", width])},
        {"y": (TensorProto.FLOAT, ["batch", width]), "total": (TensorProto.FLOAT, ["batch"])},
        {"factor": np.float32(factor), "axes": np.array([1])},
    )


@contextmanager
def serve(models, *, as_content=False):
    """Serve `models` and yield the server's URL, its counters and its health service."""
    memory = make_memory(NAMES, 1)
    threads = Threads("gRPC of a test")
    unfinished = UnfinishedCalls(threads)
    running = SimpleNamespace(counters=Counters(memory, NAMES, 1), health=Health(unfinished))
    handlers = make_handlers(
        models, running.counters.observe, running.health, unfinished, as_content=as_content
    )
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(threads, handlers, options=options)
    running.url = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield running
    finally:
        running.health.close()
        server.stop(None).wait(PATIENCE_SECONDS)
        threads.shutdown()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, version, model in (
        ("m", 1, scale_model(1)),
        ("m", 2, scale_model(2)),
        ("gather", 5, gather_model()),
        ("wide", 1, scale_model(2, WIDTH)),
    ):
        (folder / name / str(version)).mkdir(parents=True)
        compiled = Compiler.compile(Converter(batch_size=4).convert(model))
        compiled.export(folder / name / str(version) / "executable.popef")
    opened = LocalModels(
        [
            ModelSource("m", folder / "m", VersionPolicy(latest=None), {"stable": 1}),
            *(ModelSource(name, folder / name) for name in ("gather", "wide")),
        ]
    )
    opened.refresh()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def server(models):
    with serve(models) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with Client(server.url) as asking:
        yield asking


def call(client, method, data, seconds=PATIENCE_SECONDS):
    """Send the data to the method and return the bytes of the response."""
    if not isinstance(data, bytes):
        data = data.SerializeToString()
    return client.channel.unary_unary(method)(data, timeout=seconds)


def predict(client, request):
    return messages.PredictResponse.FromString(call(client, PREDICT, request))


def count(server, line):
    found = dict(
        each.rpartition(" ")[::2] for each in server.counters.write_page().decode().splitlines()
    )
    return float(found.get(line, 0))


def test_a_request_is_answered_with_the_outputs_and_the_version(client):
    found = client.predict("m", ROW)
    assert (found["y"].tolist(), found["total"].tolist(), client.version) == ([[2, 4]], [3], 2)
    assert client.predict("m", ROW, ["total"]).keys() == {"total"}
    assert client.predict("m", ROW, version=1)["y"].tolist() == [[1, 2]]
    assert client.predict("m", ROW, version_label="stable")["y"].tolist() == [[1, 2]]
    assert client.version == 1


def test_the_answer_names_model_version_and_signature(client):
    request = make_request("m", ROW)
    request.model_spec.signature_name = "serving_default"
    spec = predict(client, request).model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 2, "serving_default")


@pytest.mark.parametrize("as_content", [False, True])
def test_outputs_are_typed_values_or_content_by_an_option(models, as_content):
    with serve(models, as_content=as_content) as running, Client(running.url) as client:
        request = make_request("m", ROW, ["y"])
        found = make_tensor_proto(packed=True).FromString(
            predict(client, request).outputs["y"].SerializeToString()
        )
    given = np.array([[2, 4]], np.float32)
    assert [dim.size for dim in found.tensor_shape.dim] == [1, 2]
    assert (list(found.float_val), found.tensor_content) == (
        ([], given.tobytes()) if as_content else ([2, 4], b"")
    )


def test_typed_values_of_a_client_are_read(client):
    request = make_request("m", {})
    tensor = make_tensor_proto(packed=True)(dtype=1, float_val=[5])
    for size in (3, 2):
        tensor.tensor_shape.dim.add(size=size)
    request.inputs["x"].MergeFromString(tensor.SerializeToString())
    assert read_outputs(predict(client, request))["y"].tolist() == [[10, 10]] * 3


def test_whole_numbers_of_64_bits_are_narrowed_or_refused_by_row(client):
    assert client.predict("gather", {"ids": np.array([[9, 0]])})["rows"][0, 0].tolist() == [
        27,
        28,
        29,
    ]
    with refused("INVALID_ARGUMENT", "input 'ids', row 1", "DT_INT32", str(2**40)):
        client.predict("gather", {"ids": np.array([[1, 2], [3, 2**40]])})
    with refused("INTERNAL", "model 'gather' could not compute the request"):
        client.predict("gather", {"ids": np.array([[99, 1]])})
    with refused("INVALID_ARGUMENT", "expected DT_FLOAT, found DT_DOUBLE"):
        client.predict("m", {"x": np.ones((1, 2))})


@pytest.mark.parametrize(
    ("model", "choice", "code", "words"),
    [
        ("n", {}, "NOT_FOUND", "Servable not found for request: Latest(n)"),
        ("", {}, "NOT_FOUND", "Servable not found for request: Latest()"),
        ("m", {"version": 9}, "NOT_FOUND", "Servable not found for request: Specific(m, 9)"),
        ("m", {"version": 0}, "NOT_FOUND", "Specific(m, 0)"),
        ("m", {"version": -(2**63)}, "NOT_FOUND", "Specific(m, -9223372036854775808)"),
        ("m", {"version_label": "x"}, "INVALID_ARGUMENT", "Unrecognized servable version label: x"),
        ("m", {"version_label": ""}, "INVALID_ARGUMENT", "Unrecognized servable version label: "),
    ],
)
def test_unknown_models_and_versions_are_named(client, model, choice, code, words):
    with refused(code, words):
        client.predict(model, ROW, **choice)
    metadata = messages.GetModelMetadataRequest(
        model_spec=make_spec(model, **choice), metadata_field=["signature_def"]
    )
    with refused(code, words):
        call(client, METADATA, metadata)


@pytest.mark.parametrize("method", [PREDICT, METADATA, STATUS])
def test_a_request_without_a_model_spec_is_refused(client, method):
    with refused("INVALID_ARGUMENT", "Missing ModelSpec"):
        call(client, method, b"")


@pytest.mark.parametrize("method", [PREDICT, METADATA, STATUS, HEALTH])
@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x7f", b"\x00" * 1000])
def test_bytes_that_are_no_message_are_refused(client, method, data):
    with refused("INVALID_ARGUMENT", f"found {len(data)} other bytes"):
        call(client, method, data)


def test_the_metadata_are_the_models_signature(client):
    request = messages.GetModelMetadataRequest(
        model_spec=make_spec("m"), metadata_field=["signature_def"]
    )
    answer = messages.GetModelMetadataResponse.FromString(call(client, METADATA, request))
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("m", 2)
    packed = answer.metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    found = messages.SignatureDefMap.FromString(packed.value).signature_def["serving_default"]
    assert [dim.size for dim in found.inputs["x"].tensor_shape.dim] == [-1, 2]
    assert found.outputs.keys() == {"y", "total"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([], "GetModelMetadataRequest must specify at least one metadata_field"),
        (["signature_def", "weights"], "Metadata field weights is not supported"),
    ],
)
def test_other_metadata_are_refused(client, fields, words):
    with refused("INVALID_ARGUMENT", words):
        call(
            client,
            METADATA,
            messages.GetModelMetadataRequest(model_spec=make_spec("m"), metadata_field=fields),
        )


def test_the_status_is_of_all_versions_or_of_the_one_that_is_named(client):
    assert client.read_status("m") == [(2, 30, ""), (1, 30, "")]
    assert client.read_status("m", version=2) == [(2, 30, "")]
    assert client.read_status("m", version_label="stable") == [(1, 30, "")]
    with refused("NOT_FOUND", "Could not find any versions of model n"):
        client.read_status("n")
    with refused("NOT_FOUND", "Could not find version 3 of model m"):
        client.read_status("m", version=3)


@pytest.mark.parametrize(
    "name",
    [
        "PredictionService/Classify",
        "PredictionService/Regress",
        "PredictionService/MultiInference",
        "ModelService/HandleReloadConfigRequest",
    ],
)
@pytest.mark.parametrize("data", [b"", b"\xff" * 100])
def test_methods_with_examples_and_reloads_are_unimplemented(client, name, data):
    with refused(
        "UNIMPLEMENTED",
        (f"{name.partition('/')[2]} is not supported by poplar-triton; use Predict"),
    ):
        call(client, f"/tensorflow.serving.{name}", data)


@pytest.mark.parametrize(
    "method",
    [
        "/tensorflow.serving.PredictionService/None",
        "/tensorflow.serving.SessionService/SessionRun",
        "/x/y",
    ],
)
def test_unknown_methods_are_unimplemented(client, method):
    with refused("UNIMPLEMENTED"):
        call(client, method, b"")


def test_megabytes_come_and_go(client):
    rows = np.random.default_rng(0).standard_normal((5, WIDTH)).astype(np.float32)
    np.testing.assert_array_equal(client.predict("wide", {"x": rows}, ["y"])["y"], 2 * rows)


def test_many_at_once_all_get_their_own_answer(server):
    def ask(number):
        with Client(server.url) as asking:
            for step in range(10):
                rows = np.full((1 + number % 5, 2), 100 * number + step, np.float32)
                np.testing.assert_array_equal(asking.predict("m", {"x": rows})["y"], 2 * rows)

    with ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(ask, number) for number in range(32)]:
            future.result(PATIENCE_SECONDS)


def test_each_call_is_counted_once_by_model_and_how_it_ended(server, client):
    lines = {
        code: f':tensorflow:serving:request_count{{model_name="{model}",status="{code}"}}'
        for model, code in (("m", "OK"), ("", "NOT_FOUND"), ("m", "INVALID_ARGUMENT"))
    }
    before = {code: count(server, line) for code, line in lines.items()}
    client.predict("m", ROW)
    with refused("NOT_FOUND"):
        client.predict("no such", ROW)
    with refused("INVALID_ARGUMENT"):
        client.predict("m", {})
    client.read_status("m")  # is not counted, as in TensorFlow Serving
    wait_until(
        lambda: (
            {code: count(server, line) - before[code] for code, line in lines.items()}
            == dict.fromkeys(lines, 1)
        ),
        "one more of each",
    )


def make_played(**options):
    """Return a scripted fake model and a server of it."""
    servable = FakeServable("x", 1, FLOATS, **options)
    return servable, serve(FakeModels({"x": [servable]}))


ONE = {"x": np.ones(1, np.float32)}


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("two\nlines\r\n\x1b[31m\x00\u202e", "two\\nlines\\r\\n\\x1b[31m\\x00\\u202e"),
        ("a" * 100_000, "a" * 100),
        ("\u00e4" * 100_000, "\u00e4" * 100),
        ("\x00\U0001f600%" * 30_000, "\\x00\U0001f600%"),
        ("\udcff" * 10_000, "\\xff"),
        ("", ""),
    ],
    ids=["control", "long", "long beyond ASCII", "long of all kinds", "surrogates", "empty"],
)
def test_any_text_of_an_error_reaches_the_client_in_one_short_line(text, start):
    _, server = make_played(error=ServingError(Code.FAILED_PRECONDITION, text))
    with server as running, Client(running.url) as client, pytest.raises(grpc.RpcError) as told:
        client.predict("x", ONE)
    assert told.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert told.value.details().startswith(start)
    assert told.value.details().isprintable()
    assert len(told.value.details().encode()) < 4000


@pytest.mark.parametrize("code", list(Code)[1:], ids=lambda code: code.name)
def test_every_code_is_grpcs_own(code):
    _, server = make_played(error=ServingError(code, "so it is"))
    with server as running, Client(running.url) as client, refused(code.name, "so it is"):
        client.predict("x", ONE)


def test_a_defect_says_that_it_is_ours_and_the_next_call_is_answered():
    servable, server = make_played(error=ZeroDivisionError("oh"))
    with server as running, Client(running.url) as client:
        with refused("INTERNAL", "poplar-triton: ZeroDivisionError('oh')"):
            client.predict("x", ONE)
        servable.error = None
        assert client.predict("x", ONE)["y"].tolist() == [2.5]


@pytest.mark.parametrize(("seconds", "is_told"), [(40.0, True), (None, False)])
def test_the_deadline_is_passed_on(seconds, is_told):
    servable, server = make_played()
    with server as running, Client(running.url) as client:
        client.predict("x", ONE, seconds=seconds)
    assert (0 < servable.seconds < 41) if is_told else servable.seconds is None


def test_a_call_is_cancelled_at_its_deadline():
    servable, server = make_played(is_stuck=True)
    with server as running, Client(running.url) as client:
        with refused("DEADLINE_EXCEEDED"):
            client.predict("x", ONE, seconds=0.2)
        assert servable.cancelled.wait(PATIENCE_SECONDS)


def test_a_call_of_a_disconnected_client_is_cancelled():
    servable, server = make_played(is_stuck=True)
    with server as running, Client(running.url) as client:
        asked = client.send("x", ONE)
        assert servable.started.wait(PATIENCE_SECONDS)
        asked.cancel()
        assert servable.cancelled.wait(PATIENCE_SECONDS)
        servable.is_stuck = False
        assert client.predict("x", ONE)["y"].tolist() == [2.5]


def test_a_request_that_waits_is_never_computed_once_its_client_has_gone(
    models, server, monkeypatch
):
    """Its deadline passed or it was cancelled; the requests that wait beside it are answered."""
    servable = models._models["m"].served[2]
    instance = servable._loaded.instance
    entered, go_on, computed = threading.Event(), threading.Event(), []
    execute = instance.execute

    def hold(requests):
        computed.extend(float(request.inputs["x"][0, 0]) for request in requests)
        entered.set()
        assert go_on.wait(PATIENCE_SECONDS)
        execute(requests)

    def waits(number):
        return len(servable._batcher._waiting) == number

    monkeypatch.setattr(instance, "execute", hold)
    monkeypatch.setattr(servable._batcher, "_is_quick", False)
    rows = {value: {"x": np.full((1, 2), value, np.float32)} for value in range(10, 15)}
    with Client(server.url) as client:
        first = client.send("m", rows[10])
        assert entered.wait(PATIENCE_SECONDS)
        cancelled = client.send("m", rows[11])
        wait_until(lambda: waits(1), "the second request")
        late = client.send("m", rows[12], seconds=0.5)
        wait_until(lambda: waits(2), "the third request")
        kept = client.send("m", rows[13])
        wait_until(lambda: waits(3), "the fourth request")
        cancelled.cancel()
        assert late.exception(PATIENCE_SECONDS).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        wait_until(
            lambda: (
                [entry._call.is_wanted() for entry in servable._batcher._waiting]
                == [False, False, True]
            ),
            "the server's knowledge of it",
        )
        go_on.set()
        for value, future in ((10, first), (13, kept)):
            found = read_outputs(future.result(PATIENCE_SECONDS))
            np.testing.assert_array_equal(found["y"], 2 * rows[value]["x"])
    assert computed == [10, 13]


@pytest.mark.slow  # a process is begun
def test_requests_of_many_values_are_answered_as_others_are(client):
    proto = make_tensor_proto(packed=False)(dtype=1)
    proto.tensor_shape.dim.add(size=1)
    proto.tensor_shape.dim.add(size=WIDTH)
    proto.float_val.extend(range(WIDTH))
    request = messages.PredictRequest(model_spec=make_spec("wide"))
    request.inputs["x"].MergeFromString(proto.SerializeToString())
    found = read_outputs(predict(client, request))["y"]
    np.testing.assert_array_equal(found, [np.arange(WIDTH, dtype=np.float32) * 2])
    request.inputs["x"].dtype = 7
    with refused("INVALID_ARGUMENT", "found DT_STRING"):
        predict(client, request)
