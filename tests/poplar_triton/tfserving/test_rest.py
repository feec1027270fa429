from __future__ import annotations

from collections.abc import Iterator

import pytest
from poplar_triton.tfserving.models import Code, ServingError
from rest_servers import (
    LIMITS,
    PREDICT,
    ROW,
    SECONDS,
    RestServer,
    make_models,
    open_connection,
    read_status,
    serve,
    wait_for,
    write_request,
)

JSON = "application/json"
RESERVED = "%21%23%24%25%26%27%28%29%2A%2B%2C%2F%3A%3B%3D%3F%40%5B%5D"


@pytest.fixture(scope="module")
def server() -> Iterator[RestServer]:
    with serve(make_models()) as running:
        yield running


@pytest.mark.parametrize(
    "where", ["half", "half/versions/3", "half/versions/0003", "half/labels/stable"]
)
def test_rows_are_answered_in_rows(server, where):
    answer = server.post(f"/v1/models/{where}:predict", {"instances": [1.0, 2.0, 5.0]})
    assert (answer.status, answer.headers["Content-Type"]) == (200, JSON)
    assert answer.document == {"predictions": [2.5, 3.0, 4.5]}


def test_columns_are_answered_in_columns(server):
    answer = server.post(PREDICT, {"signature_name": "serving_default", "inputs": [3.0, 4.0]})
    assert answer.document == {"outputs": [3.5, 4.0]}


def test_several_outputs_have_their_names(server):
    rows = [{"a": [1, 2], "b": [3, 4]}, {"a": [5, 6], "b": [7, 8]}]
    assert server.post("/v1/models/several:predict", {"instances": rows}).document == {
        "predictions": rows
    }
    columns = {"a": [[1, 2], [5, 6]], "b": [[3, 4], [7, 8]]}
    assert server.post("/v1/models/several:predict", {"inputs": columns}).document == {
        "outputs": columns
    }


def test_paths_do_not_mind_case_and_methods_do(server):
    assert server.post("/V1/Models/half/VERSIONS/3:predict", {"instances": [1.0]}).status == 200
    answer = server.post("/v1/models/half:PREDICT", {"instances": [1.0]})
    assert (answer.status, answer.error) == (400, "Malformed request: POST /v1/models/half:PREDICT")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/foo"),
        ("POST", "/v1/foo"),
        ("GET", "/v1/models/debug/model_name"),
        ("POST", "/v1/models"),
        ("GET", "/v1/models/half:predict"),
        ("GET", "/v1/models/half/version/50:predict"),
        ("POST", "/v1/models/half/version/50:regress"),
        ("POST", "/v1/models/half/versions/HELLO:regress"),
        ("POST", "/v1/models/half/versions/-1:predict"),
        ("POST", "/v1/models/half/metadata"),
        ("POST", "/v1/models/half/label/stable:regress"),
        ("POST", "/v1/models/half/versions/3/labels/stable:regress"),
        ("GET", "/v1/models/half/versions/3/labels/stable"),
        ("POST", "/v1/models/half:predict?x=1"),
        ("POST", "/v1/models/half:multi_inference"),
        *((method, "/v1/models/half:predict") for method in ("PUT", "DELETE", "PATCH")),
        *((method, "/v1/models/half/metadata") for method in ("PUT", "DELETE", "PATCH", "POST")),
        *((method, "/v1/models/half") for method in ("PUT", "DELETE", "PATCH", "POST")),
    ],
)
def test_a_method_or_path_without_a_route_is_a_malformed_request(server, method, path):
    answer = server.ask(method, path, ROW if method == "POST" else None)
    assert (answer.status, answer.headers["Content-Type"]) == (400, JSON)
    assert answer.error == f"Malformed request: {method} {path}"


@pytest.mark.parametrize("path", ["/v1/models/half", "/v1/models/half/metadata", PREDICT])
def test_head_has_no_route_either(server, path):
    answer = server.ask("HEAD", path)
    assert (answer.status, answer.headers["Content-Type"]) == (400, JSON)


def test_metadata_in_capitals_is_a_status_as_in_tensorflow_serving(server):
    assert "model_version_status" in server.get("/v1/models/half/METADATA").document
    assert "metadata" in server.get("/V1/Models/half/metadata").document


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "path", ["/", "/statuspage", "/v1", "/v2/models/half", "/v1models", "//v1/models/half"]
)
def test_other_paths_are_not_found(server, method, path):
    answer = server.ask(method, path)
    assert (answer.status, answer.headers["Content-Type"].split(";")[0]) == (404, "text/html")
    assert b"404 Not Found" in answer.body


def test_a_model_has_to_be_named(server):
    answer = server.get("/v1/models")
    assert (answer.status, answer.error) == (400, "Missing model name in request.")


@pytest.mark.parametrize("version", ["9223372036854775808", "18446744073709551615", "9" * 5000])
def test_versions_are_numbers_of_64_bits(server, version):
    answer = server.post(f"/v1/models/half/versions/{version}:predict", {})
    assert answer.status == 400
    assert answer.error.startswith("Failed to convert version: ")
    assert len(answer.error) < 3000


def test_names_and_labels_are_percent_encoded(server):
    path = f"/v1/models/name{RESERVED}/labels/label{RESERVED}"
    assert server.post(f"/v1/models/name{RESERVED}:predict", {"instances": [2.0]}).document == {
        "predictions": [3.0]
    }
    answer = server.get(path)
    assert answer.status == 404
    assert "name!#$%&'()*+,/:;=?@[]" in answer.error


@pytest.mark.parametrize(
    ("path", "what"),
    [("/v1/models/%ff", "model name"), ("/v1/models/half/labels/%C3", "model version label")],
)
def test_names_that_are_no_text_are_refused(server, path, what):
    answer = server.get(path)
    assert (answer.status, answer.error) == (
        400,
        f"Failed to decode {what}:{path.rpartition('/')[2]}",
    )


@pytest.mark.parametrize(
    "name", ["%00", "%0a%0d", "%1b%5b2J", "..%2f..%2fetc", "a" * 7000, "%2e%2e", "%E2%80%AE"]
)
def test_hostile_names_are_not_found(server, name):
    for answer in (server.get(f"/v1/models/{name}"), server.post(f"/v1/models/{name}:predict", {})):
        assert answer.status == 404
        assert answer.error.isprintable()
        assert len(answer.error) < 3000


def test_unknown_models_versions_and_labels_are_distinguished(server):
    rows = {"instances": [1.0]}
    assert server.post("/v1/models/foo:predict", rows).status == 404
    assert server.post("/v1/models/foo/versions/50:predict", rows).status == 404
    assert server.post("/v1/models/half/versions/99:predict", rows).status == 404
    answer = server.post("/v1/models/half/labels/nonesuch:predict", rows)
    assert (answer.status, answer.error) == (400, "Unrecognized servable version label: nonesuch")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("", "JSON Parse error: The document is empty"),
        ("instances = [1, 2]", "JSON Parse error: Invalid value. at offset: 0"),
        (
            '{"instances": ["x", "y"]}',
            'JSON Value: "x" Type: String is not of expected type: float',
        ),
        ('{"signature_name": 100}', "'signature_name' key must be a string value."),
        ('{"signature_name": "other", "instances": [1]}', '"other" not found in signature def'),
        ('{"instances": [[1.0, 2.0]]}', "expected shape [-1]"),
    ],
)
def test_bodies_that_are_not_requests_are_refused(server, body, error):
    answer = server.ask("POST", PREDICT, body)
    assert (answer.status, answer.headers["Content-Type"]) == (400, JSON)
    assert error in answer.error


@pytest.mark.parametrize("method", ["classify", "regress"])
def test_classify_and_regress_are_unimplemented(server, method):
    answer = server.post(f"/v1/models/half/versions/3:{method}", {"examples": [{"x": 1.0}]})
    assert answer.status == 501
    assert answer.error.startswith(f"{method.capitalize()} is not supported")


def test_the_status_names_versions_states_and_errors(server):
    def describe(version: str) -> dict[str, object]:
        return {
            "version": version,
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }

    answer = server.get("/v1/models/half")
    assert (answer.status, answer.headers["Content-Type"]) == (200, JSON)
    assert answer.document == {"model_version_status": [describe("7"), describe("3")]}
    for path in ("/v1/models/half/versions/3", "/v1/models/half/labels/stable"):
        assert server.get(path).document == {"model_version_status": [describe("3")]}
    missing = server.get("/v1/models/foo")
    assert (missing.status, missing.error) == (404, "Could not find any versions of model foo")


def test_the_metadata_is_the_signature(server):
    def describe(name: str) -> dict[str, object]:
        shape = {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
        return {name: {"dtype": "DT_FLOAT", "tensor_shape": shape, "name": f"{name}:0"}}

    expected = {
        "model_spec": {"name": "half", "signature_name": "", "version": "3"},
        "metadata": {
            "signature_def": {
                "signature_def": {
                    "serving_default": {
                        "inputs": describe("x"),
                        "outputs": describe("y"),
                        "method_name": "tensorflow/serving/predict",
                        "defaults": {},
                    }
                }
            }
        },
    }
    for where in ("versions/3", "labels/stable"):
        answer = server.get(f"/v1/models/half/{where}/metadata")
        assert (answer.status, answer.headers["Content-Type"]) == (200, JSON)
        assert answer.document == expected
    assert server.get("/v1/models/half/metadata").document["model_spec"]["version"] == "7"
    assert server.get("/v1/models/half/METADATA").document == server.get("/v1/models/half").document


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.CANCELLED, 499),
        (Code.UNKNOWN, 500),
        (Code.INVALID_ARGUMENT, 400),
        (Code.DEADLINE_EXCEEDED, 504),
        (Code.NOT_FOUND, 404),
        (Code.ALREADY_EXISTS, 409),
        (Code.PERMISSION_DENIED, 403),
        (Code.RESOURCE_EXHAUSTED, 429),
        (Code.FAILED_PRECONDITION, 400),
        (Code.ABORTED, 409),
        (Code.OUT_OF_RANGE, 400),
        (Code.UNIMPLEMENTED, 501),
        (Code.INTERNAL, 500),
        (Code.UNAVAILABLE, 503),
        (Code.DATA_LOSS, 500),
        (Code.UNAUTHENTICATED, 401),
    ],
)
def test_every_code_has_its_status(code, status):
    models = make_models()
    models.versions["half"][0].error = ServingError(code, "it says so\n\x1b[2J" + "long" * 10_000)
    with serve(models) as server:
        answer = server.post(PREDICT, {"instances": [1.0]})
        assert (answer.status, answer.headers["Content-Type"]) == (status, JSON)
        assert answer.error.startswith("it says so\\n")
        assert len(answer.error) < 3000
        line = f':tensorflow:serving:request_count{{model_name="half",status="{code.name}"}}'
        assert server.count(line) == 1


def test_a_defect_of_ours_is_an_answer_too():
    models = make_models()
    models.versions["half"][0].error = ZeroDivisionError("nobody thought of it")
    with serve(models) as server:
        answer = server.post(PREDICT, {"instances": [1.0]})
        assert answer.status == 500
        assert "nobody thought of it" in answer.error
        assert server.get("/v1/models/half").status == 200


def test_an_answer_has_its_time():
    models = make_models()
    stuck = models.versions["half"][0]
    stuck.is_stuck = True
    with serve(models, rest_seconds=0.2) as server:
        answer = server.post(PREDICT, {"instances": [1.0]})
        assert answer.status == 504
        assert "--rest_api_timeout_in_ms" in answer.error
        assert stuck.cancelled.wait(SECONDS)
        assert 0 < stuck.seconds <= 0.2
        assert server.post("/v1/models/half/versions/3:predict", {"instances": [1.0]}).status == 200


def test_no_timeout_is_no_deadline():
    models = make_models()
    with serve(models, rest_seconds=0) as server:
        assert server.post(PREDICT, {"instances": [1.0]}).status == 200
    assert models.versions["half"][0].seconds is None


def test_a_client_that_goes_away_gives_its_request_up():
    models = make_models()
    stuck = models.versions["half"][0]
    stuck.is_stuck = True
    with serve(models) as server:
        with open_connection(server) as connection:
            connection.sendall(write_request(ROW))
            assert stuck.started.wait(SECONDS)
        assert stuck.cancelled.wait(SECONDS)
        line = ':tensorflow:serving:request_count{model_name="half",status="CANCELLED"}'
        assert wait_for(lambda: server.count(line) == 1)


def test_requests_beyond_those_under_way_are_turned_away():
    models = make_models()
    stuck = models.versions["half"][0]
    stuck.is_stuck = True
    with serve(models, LIMITS) as server:
        connections = [open_connection(server) for _ in range(LIMITS.calls)]
        for connection in connections:
            connection.sendall(write_request(ROW))

        def is_full() -> bool:
            if server.get("/v1/models/half").status == 429:
                return True
            connections.append(open_connection(server))  # the request may have taken one's place
            connections[-1].sendall(write_request(ROW))
            return False

        assert wait_for(is_full)
        for connection in connections:
            connection.close()
        assert wait_for(lambda: server.get("/v1/models/half").status == 200)


def test_pages_of_other_origins_may_ask_where_they_are_let():
    with serve(make_models(), cors=True) as server:
        for answer in (
            server.get("/v1/models/half"),
            server.post(PREDICT, {"instances": [1.0]}),
            server.get("/v1/models/foo"),
            server.ask("OPTIONS", PREDICT, headers={"Origin": "https://example.org"}),
        ):
            assert answer.headers["Access-Control-Allow-Origin"] == "*"
            assert answer.headers["Access-Control-Allow-Methods"] == "POST, GET"
            assert answer.headers["Access-Control-Allow-Headers"] == "Content-Type"


def test_pages_of_other_origins_may_not_ask_elsewhere(server):
    answer = server.ask("OPTIONS", PREDICT, headers={"Origin": "https://example.org"})
    assert (answer.status, answer.body) == (200, b"")
    assert not [name for name in answer.headers if name.startswith("Access-Control")]
    assert server.ask("OPTIONS", PREDICT).status == 400


def test_the_metrics_have_their_path(server):
    server.post(PREDICT, {"instances": [1.0]})
    answer = server.get("/monitoring/prometheus/metrics")
    assert (answer.status, answer.headers["Content-Type"].split(";")[0]) == (200, "text/plain")
    assert b':tensorflow:serving:request_count{model_name="half",status="OK"}' in answer.body
    assert server.get("/monitoring/prometheus/metrics?x").status == 400
    assert server.get("/monitoring/prometheus").status == 404


def test_the_metrics_can_be_elsewhere_or_off():
    with serve(make_models(), metrics_path="/m") as server:
        assert server.get("/m").status == 200
        assert server.get("/monitoring/prometheus/metrics").status == 404
    with serve(make_models(), metrics_path="") as server:
        assert server.get("/monitoring/prometheus/metrics").status == 404


def test_predictions_and_metadata_are_counted():
    with serve(make_models()) as server:
        server.post(PREDICT, {"instances": [1.0]})
        server.get("/v1/models/half/metadata")
        server.post("/v1/models/nonesuch:predict", {"instances": [1.0]})
        for api in ("Predict", "GetModelMetadata"):
            labels = f'API="{api}",entrypoint="REST",model_name="half"'
            assert server.count(f":tensorflow:serving:request_latency_count{{{labels}}}") == 1
        assert (
            server.count(':tensorflow:serving:request_count{model_name="",status="NOT_FOUND"}') == 1
        )


def test_malformed_http_is_counted_and_logged_in_one_line(caplog):
    with serve(make_models()) as server:
        for _ in range(20):
            with open_connection(server) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\n\x1b bad: x\r\n\r\n")
                assert read_status(connection) == 400
        assert server.count("poplar_malformed_requests_total") == 20
        assert server.get("/v1/models/half").status == 200
    assert [record.getMessage().count("\n") for record in caplog.records] == [0]
    assert "rejected a request that is not HTTP" in caplog.text
    assert len(caplog.text) < 500
