"""Models that are loaded, unloaded and changed on a real tritonserver.

Its scheduler, and what operators see of it, are tested here, too.
"""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
import tritonclient.utils.shared_memory as shared_memory
from fault_clients import has_ended, iter_processes
from life_cycle_models import (
    DELAY_SECONDS,
    FACTORS,
    MODES,
    SERVERS,
    TABLE_ROWS,
    WARM_UP_REQUESTS,
    WIDTH,
    exchange,
    lookup_model,
    make_rows,
    scale_model,
    write_model,
)
from poplar_triton.serving.server import TritonServer
from poprt import Compiler, Converter
from triton_clients import (
    REFUSED,
    infer,
    phases,
    read_metric,
    read_metrics,
    send,
    traffic,
    wait_for_all,
)
from triton_poplar.statistics import ERROR_KINDS
from tritonclient.utils import InferenceServerException
from waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.timed

in_both_modes = pytest.mark.parametrize("mode", MODES)


def on(kind):
    """Return the mark that runs a test on that server of `SERVERS`.

    pytest groups the tests by it, so that one server runs at a time.
    """
    return pytest.mark.parametrize("server", [kind], indirect=True)


@pytest.fixture(scope="module")
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("life_cycle")
    options = SERVERS[request.param](folder / "repository")
    (folder / "traces").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PVTI_OPTIONS", json.dumps({"enable": "true", "directory": str(folder / "traces")})
        )
        with TritonServer(folder / "repository", options=options, log=folder / "log") as running:
            running.log, running.traces = folder / "log", folder / "traces"
            yield running
    assert not crashes(running)


@pytest.fixture(autouse=True)
def server_lives(server):
    """Check before and after each test that tritonserver has not crashed.

    A crashed tritonserver hangs and keeps its connections: later tests would wait for their limits.
    """
    assert not crashes(server)
    yield
    assert not crashes(server)


def crashes(server):
    return re.findall(r"Signal \((?:6|11)\) received", server.log.read_text(errors="replace"))


# Explicit mode: load, unload, reload


@on("explicit")
@in_both_modes
def test_requests_are_answered_or_refused_while_a_model_is_unloaded_and_loaded(server, http, mode):
    model = f"reloaded_{mode}"
    folder = server.model_repository / model
    with traffic(server.grpc_url, model) as clients:
        wait_for_all(clients, 2.0)
        http.unload_model(model)
        wait_for_all(clients, REFUSED)
        write_model(folder, scale_model(5))
        http.load_model(model)
        wait_for_all(clients, 5.0)
        write_model(folder, scale_model(7))
        http.load_model(model)
        wait_for_all(clients, 7.0)
    assert [phases(client) for client in clients] == [[2.0, REFUSED, 5.0, 7.0]] * len(clients)


# Cancelled requests


def occupy(server, grpc, model, *sent):
    """Keep a model busy that takes one request at a time.

    It gets two equal requests, one of which runs while the other waits.
    Then it gets `sent`, pairs of a number and options.

    Returns:
        The futures of all requests, once all but one wait in Triton's queue.
    """

    def pending():
        return read_metric(server.metrics_url, "nv_inference_pending_request_count", model=model)

    wait_until(lambda: pending() == 0, "the requests of other tests leave")
    futures = [send(grpc, model, {"x": make_rows(1)}, priority=2) for _ in range(2)]
    wait_until(lambda: pending() == 1, "a request runs and one waits")
    futures += [send(grpc, model, {"x": make_rows(number)}, **options) for number, options in sent]
    wait_until(lambda: pending() == len(futures) - 1, "the others wait")
    return futures


@on("explicit")
@in_both_modes
def test_cancelled_requests_leave_the_queue_and_their_neighbour_alone(server, grpc, mode):
    model = f"busy_{mode}"

    def count_cancelled():
        return read_metric(
            server.metrics_url, "nv_inference_request_failure", model=model, reason="CANCELED"
        )

    before = count_cancelled()
    *cancelled, kept = occupy(server, grpc, model, (3, {}), (4, {}))
    for request in cancelled:
        request.call.cancel()
    np.testing.assert_array_equal(kept.result(PATIENCE_SECONDS)["y"], make_rows(8))
    for request in cancelled:
        with pytest.raises(InferenceServerException, match="cancelled"):
            request.result(PATIENCE_SECONDS)
    wait_until(lambda: count_cancelled() == before + 2, "the two that waited are dropped")
    np.testing.assert_array_equal(infer(grpc, model, {"x": make_rows(5)})["y"], make_rows(10))


@on("explicit")
@in_both_modes
def test_a_client_that_gives_up_waiting_does_not_disturb_the_model(grpc, mode):
    model = f"busy_{mode}"
    with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
        infer(grpc, model, {"x": make_rows(1)}, client_timeout=0.2)
    np.testing.assert_array_equal(infer(grpc, model, {"x": make_rows(5)})["y"], make_rows(10))


# Triton's scheduler, which comes before either mode


@on("explicit")
def test_a_request_of_high_priority_overtakes(server, grpc):
    order = []
    requests = occupy(server, grpc, "busy_synchronous", (2, {"priority": 2}), (3, {"priority": 1}))
    for request in requests:
        request.add_done_callback(lambda done: order.append(done.result()["y"].flat[0]))
    wait_until(lambda: len(order) == 4, "all answers come")
    assert order == [2, 6, 2, 4]


@on("explicit")
def test_requests_that_wait_too_long_get_their_own_error(server, grpc):
    """Priority 3 has a timeout of 1 us; requests with other priorities may ask for one."""
    sent = ((2, {"priority": 3}), (3, {"timeout": 1}), (4, {"timeout": 200_000_000}))
    first, second, by_policy, by_request, patient = occupy(server, grpc, "busy_synchronous", *sent)
    for request in (by_policy, by_request):
        with pytest.raises(InferenceServerException, match="Request timeout expired") as caught:
            request.result(PATIENCE_SECONDS)
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
    for request, expected in ((first, 2), (second, 2), (patient, 8)):
        np.testing.assert_array_equal(request.result(PATIENCE_SECONDS)["y"], make_rows(expected))


@on("explicit")
def test_a_request_too_many_for_the_queue_is_refused(server, grpc):
    accepted = occupy(server, grpc, "busy_synchronous", (1, {}), (1, {}))
    with pytest.raises(InferenceServerException, match="Exceeds maximum queue size"):
        infer(grpc, "busy_synchronous", {"x": make_rows(1)})
    for request in accepted:
        np.testing.assert_array_equal(request.result(PATIENCE_SECONDS)["y"], make_rows(2))


# What Triton does around a model


def count(http, model, *path):
    """Return one number of Triton's statistics of the model."""
    found = http.get_inference_statistics(model)["model_stats"][0]
    for key in path:
        found = found[key]
    return found


@on("explicit")
@in_both_modes
def test_a_model_is_warmed_up_before_it_is_ready(http, grpc, mode):
    model = f"warm_{mode}"
    assert count(http, model, "inference_count") == WARM_UP_REQUESTS
    np.testing.assert_array_equal(infer(grpc, model, {"x": make_rows(7)})["y"], make_rows(14))


@on("explicit")
@in_both_modes
def test_an_equal_request_is_answered_from_the_cache(http, grpc, mode):
    model = f"cached_{mode}"
    for number in (3, 3, 4, 3):
        np.testing.assert_array_equal(
            infer(grpc, model, {"x": make_rows(number)})["y"], make_rows(2 * number)
        )
    hits = [
        count(http, model, "inference_stats", key, "count") for key in ("cache_hit", "cache_miss")
    ]
    assert (hits, count(http, model, "execution_count")) == ([2, 2], 2)


@on("explicit")
@pytest.mark.parametrize(("model", "added"), [("ensemble", 0), ("script", 1)])
@pytest.mark.parametrize("rows", [1, 6])
def test_models_that_ask_both_modes_get_the_right_answers(grpc, model, added, rows):
    answer = infer(grpc, model, {"in": make_rows(5, rows)})
    np.testing.assert_array_equal(answer["out"], make_rows(5 * 2 * 3 + added, rows))


def unregister(client, name):
    """Unregister the region and return True, or return False while its request still uses it."""
    try:
        client.unregister_system_shared_memory(name)
    except InferenceServerException as error:
        if "currently in use" not in str(error):
            raise
        return False
    return True


@on("explicit")
@in_both_modes
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tensors_travel_in_shared_memory(http, grpc, mode, protocol):
    client, module = {"http": (http, httpclient), "grpc": (grpc, grpcclient)}[protocol]
    rows = np.arange(6 * WIDTH, dtype=np.float32).reshape(6, WIDTH)
    name = f"{protocol}_{mode}_{os.getpid()}"
    region = shared_memory.create_shared_memory_region(name, f"/{name}", 2 * rows.nbytes)
    try:
        shared_memory.set_shared_memory_region(region, [rows])
        client.register_system_shared_memory(name, f"/{name}", 2 * rows.nbytes)
        x = module.InferInput("x", rows.shape, "FP32")
        x.set_shared_memory(name, rows.nbytes)
        y = module.InferRequestedOutput("y")
        y.set_shared_memory(name, rows.nbytes, rows.nbytes)
        client.infer(f"plain_{mode}", [x], outputs=[y])
        written = shared_memory.get_contents_as_numpy(region, np.float32, [2, *rows.shape])
        np.testing.assert_array_equal(written[1], FACTORS[mode] * rows)
        np.testing.assert_array_equal(written[0], rows)
        wait_until(
            lambda: unregister(client, name),
            "Triton lets go of the region, a moment after the answer",
        )
    finally:
        shared_memory.destroy_shared_memory_region(region)


# Metrics


@on("explicit")
@in_both_modes
def test_the_metrics_tell_what_the_instances_did(server, grpc, mode):
    model = f"counted_{mode}"
    ids, factor = np.full((1, 1), 4, np.int32), np.ones((1, 3), np.float32)
    for rows in (1, 1, 1, 6):
        answer = infer(grpc, model, {"ids": ids.repeat(rows, 0), "factor": factor.repeat(rows, 0)})
        assert answer["rows"].tolist() == [[12, 13, 14]] * rows
    for _ in range(2):
        with pytest.raises(InferenceServerException, match="has no input 'factor'"):
            infer(grpc, model, {"ids": ids})
    for _ in range(3):
        with pytest.raises(InferenceServerException, match="could not compute"):
            infer(grpc, model, {"ids": ids + TABLE_ROWS, "factor": factor})
    cycles = Compiler.compile(Converter(batch_size=4).convert(lookup_model())).cycles
    expected = {
        "requests": 9,
        "batches": 5,
        "rows": 9,
        "padded_rows": 11,
        "flushes": 4,
        "ipu_cycles": 5 * cycles,
    }

    def counters():
        return {
            name: read_metric(server.metrics_url, f"poplar_{name}_total", model=model, version="1")
            for name in expected
        }

    wait_for_value(counters, expected)
    metrics = read_metrics(server.metrics_url)
    assert {
        series["instance"] for series, _ in metrics["poplar_rows_total"] if series["model"] == model
    } == {
        f"{model}_0_0",
        f"{model}_0_1",
    }
    errors = {
        kind: read_metric(server.metrics_url, "poplar_errors_total", model=model, kind=kind)
        for kind in ERROR_KINDS
    }
    assert errors == {**dict.fromkeys(ERROR_KINDS, 0), "bad_request": 2, "run": 3}
    computed, executed = (
        read_metric(server.metrics_url, f"poplar_{name}_seconds_total", model=model)
        for name in ("compute", "execution")
    )
    assert 0 < computed < executed


def wait_for_value(read, expected):
    """Wait until the value is as expected; metrics are published once a second."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: read() == expected, "the values are published", PATIENCE_SECONDS)
    assert read() == expected


@on("explicit")
@in_both_modes
def test_the_execution_time_of_the_metrics_begins_when_a_request_arrives(server, grpc, mode):
    """Every call of busy models waits inside the backend."""
    model = f"busy_{mode}"
    infer(grpc, model, {"x": make_rows(1)})

    def seconds_per_call():
        calls, seconds = (
            read_metric(server.metrics_url, f"poplar_{name}_total", model=model)
            for name in ("requests", "execution_seconds")
        )
        return seconds / calls if calls else 0

    wait_until(
        lambda: seconds_per_call() >= DELAY_SECONDS,
        "the wait is in the execution time",
        PATIENCE_SECONDS,
    )


@on("explicit")
def test_the_metrics_of_a_model_go_on_after_every_reload(server, http, grpc):
    """Old and new instance have one name and live together for a while."""
    model = "reloaded_synchronous"

    def requests():
        return read_metric(server.metrics_url, "poplar_requests_total", model=model)

    def unloads():
        return server.log.read_text(errors="replace").count(f"successfully unloaded '{model}'")

    for _ in range(2):
        unloaded = unloads()
        (server.model_repository / model / "1" / "executable.popef").touch()
        http.load_model(model)
        wait_until(lambda before=unloaded: unloads() > before, "the old instance leaves")
        answered = requests()
        infer(grpc, model, {"x": make_rows(1)})
        wait_for_value(requests, answered + 1)


# Poll mode


@on("poll")
@in_both_modes
def test_a_changed_executable_is_picked_up_and_no_request_is_refused(server, mode):
    model = f"executable_{mode}"
    with traffic(server.grpc_url, model) as clients:
        wait_for_all(clients, 2.0)
        write_model(server.model_repository / model, scale_model(5))
        wait_for_all(clients, 5.0)
    assert [phases(client) for client in clients] == [[2.0, 5.0]] * len(clients)


@on("poll")
def test_a_changed_configuration_is_picked_up(server, grpc):
    def ask():
        return infer(grpc, "configuration", {"x": make_rows(1, 9)})["y"]

    def is_refused():
        try:
            ask()
        except InferenceServerException as error:
            return "batch-size must be <= 8" in error.message()

    np.testing.assert_array_equal(ask(), make_rows(2, 9))
    exchange(
        server.model_repository / "configuration" / "config.pbtxt",
        "max_batch_size: 4000",
        "max_batch_size: 8",
    )
    wait_until(is_refused, "the smaller batch size counts")
    np.testing.assert_array_equal(
        infer(grpc, "configuration", {"x": make_rows(1, 8)})["y"], make_rows(2, 8)
    )


@on("poll")
def test_a_broken_replacement_leaves_the_old_model_serving_until_it_is_mended(server):
    folder = server.model_repository / "broken"
    with traffic(server.grpc_url, "broken") as clients:
        wait_for_all(clients, 2.0)
        (folder / "1" / "part").write_bytes(b"garbage")
        os.replace(folder / "1" / "part", folder / "1" / "executable.popef")
        wait_until(
            lambda: "failed to load 'broken' version 1" in server.log.read_text(errors="replace"),
            "the load fails",
        )
        answered = [len(client) for client in clients]
        wait_until(
            lambda: all(len(c) > before for c, before in zip(clients, answered, strict=True)),
            "more answers come",
        )
        write_model(folder, scale_model(5))
        wait_for_all(clients, 5.0)
    assert [phases(client) for client in clients] == [[2.0, 5.0]] * len(clients)


# Backend options


@on("poll")
def test_an_executable_serves_on_a_machine_that_it_fits(grpc):
    np.testing.assert_array_equal(
        infer(grpc, "configuration", {"x": make_rows(4)})["y"], make_rows(8)
    )


@on("other machine")
def test_an_executable_of_another_version_or_size_names_the_option(server):
    failed = server.failed_models()
    assert (
        "backend option sim_ipu_version is 21, but the executable was compiled for 2;"
        in failed["ipu2"]
    )
    assert (
        "backend option sim_tiles_per_IPU is 4, but the executable was compiled for 1472"
        in failed["ipu21"]
    )


@on("no machine")
def test_without_the_simulator_there_is_no_ipu(server, http):
    assert "No IPU can be attached" in server.failed_models()["ipu2"]
    assert "use_sim_if_no_hw" in server.failed_models()["ipu2"]
    with pytest.raises(InferenceServerException, match="no available versions"):
        infer(http, "ipu2", {"x": make_rows(1)})


# Graceful shutdown

UNDER_WAY = 7


@dataclasses.dataclass
class Stopped:
    """Outcome of a server that got SIGINT while each slow model had requests in flight.

    The requests came over HTTP and gRPC.
    """

    answers: dict
    late: str
    status: int
    segments: list
    processes: list
    traces: list


@pytest.fixture(scope="module")
def stopped(server):
    def pending(mode):
        return read_metric(
            server.metrics_url, "nv_inference_pending_request_count", model=f"slow_{mode}"
        )

    def ask_over_http(mode):
        with httpclient.InferenceServerClient(
            server.http_url, network_timeout=PATIENCE_SECONDS
        ) as http:
            return infer(http, f"slow_{mode}", {"x": make_rows(0)})

    late = []
    with (
        concurrent.futures.ThreadPoolExecutor() as pool,
        grpcclient.InferenceServerClient(server.grpc_url) as grpc,
    ):
        for mode, number in itertools.product(MODES, range(4)):
            infer(grpc, f"pair_{mode}", {"x": make_rows(number, 6)})
        under_way = {mode: [pool.submit(ask_over_http, mode)] for mode in MODES}
        for mode, number in itertools.product(MODES, range(1, UNDER_WAY)):
            under_way[mode].append(send(grpc, f"slow_{mode}", {"x": make_rows(number)}))
        wait_until(
            lambda: all(pending(mode) == UNDER_WAY - 1 for mode in MODES),
            "one request runs, the others wait",
        )
        os.kill(server.pid, signal.SIGINT)
        # Triton accepts requests over gRPC as long as a request over HTTP is in flight.
        wait_until(lambda: late.append(refusal(grpc)) or late[-1], "the server refuses requests")
        answers = {
            mode: [future.result(PATIENCE_SECONDS)["y"].flat[0] for future in futures]
            for mode, futures in under_way.items()
        }
    wait_until(lambda: server.poll() is not None, "the server stops")
    return Stopped(
        answers,
        late[-1],
        server.poll(),
        list(
            Path("/dev/shm").glob(f"{server._resources.prefix}*-*")
        ),  # segments; the lock stays to the end
        [p for p in iter_processes() if p.session == server.pid and not has_ended(p)],
        [json.loads(file.read_text()) for file in server.traces.iterdir()],
    )


def refusal(grpc):
    """Return why a request is rejected, or None if it is answered."""
    try:
        infer(grpc, "pair_synchronous", {"x": make_rows(1)})
    except InferenceServerException as error:
        return f"{error.status()}: {error.message()}"


@on("stopping")
def test_a_stopping_server_answers_what_is_under_way(stopped):
    assert stopped.answers == {mode: [2 * number for number in range(UNDER_WAY)] for mode in MODES}


@on("stopping")
def test_a_stopping_server_refuses_what_comes_later(stopped):
    """Models without any request left are already unloaded."""
    assert (
        "has stopped accepting new inference requests" in stopped.late
        or "no available versions" in stopped.late
    )


@on("stopping")
def test_a_stopped_server_leaves_nothing_behind(stopped):
    assert (stopped.status, stopped.segments, stopped.processes) == (0, [], [])


@on("stopping")
def test_every_instance_leaves_a_trace_with_its_runs_and_counters(stopped):
    traces = {trace["otherData"]["name"]: trace["traceEvents"] for trace in stopped.traces}
    names = {f"{model}_{mode}" for model in ("slow", "pair") for mode in MODES}
    instances = {
        (name, f"{name}_0_{number}")
        for name in names
        for number in range(2 if "pair" in name else 1)
    }
    assert traces.keys() == {f"{name}_{instance}" for name, instance in instances}
    runs = dict.fromkeys(names, 0)
    counted = dict.fromkeys(names, 0)
    for name, instance in instances:
        for event in traces[f"{name}_{instance}"]:
            if (event["ph"], event["name"]) == ("X", "run"):
                assert event["dur"] > 0
                assert event["args"]["IPU cycles (modelled)"] > 0
                runs[name] += event["args"]["rows"]
            elif (event["ph"], event["name"]) == ("C", f"{name} batch size (rows)"):
                counted[name] += event["args"][instance]
    assert runs == counted
    assert (runs["slow_synchronous"], runs["slow_asynchronous"], runs["pair_asynchronous"]) == (
        UNDER_WAY,
        UNDER_WAY,
        24,
    )
