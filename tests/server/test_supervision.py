"""`poplar-triton serve` with a real Triton: what it observes, reloads, restarts and stops.

tests/deploy has the tests under load and behind proxies.
"""

from __future__ import annotations

import http.client
import itertools
import os
import queue
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from certificates import make_certificate
from fleet.models import Model
from fleet.repositories import LocalRepository, fill
from fleet.servers import Server, watch
from poplar_triton.serving.installation import find_triton
from server_processes import STOP_SECONDS
from triton_clients import read_metric
from waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.timed

SEVERAL = Model("several", instances=2)
OTHER = Model("other")
QUICK_EXIT = "--exit-timeout-secs=3"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Return a repository of two models, one with two instances."""
    folder = tmp_path_factory.mktemp("supervision") / "models"
    fill(LocalRepository(folder), [SEVERAL, OTHER])
    return folder


@pytest.fixture
def start(repository, tmp_path):
    """Return a function that starts a supervised server and waits until it is ready."""
    numbers = itertools.count()

    @contextmanager
    def begin(*options, triton=(), at=repository):
        name = f"server{next(numbers)}"
        with Server(name, at, tmp_path, options, [QUICK_EXIT, *triton]) as server:
            server.wait_until_ready()
            yield server

    return begin


def ask(server, model="several", **connection):
    """Send one request over gRPC and check the answer."""
    x = np.arange(512, dtype=np.float32).reshape(1, 512)
    tensor = grpcclient.InferInput("x", x.shape, "FP32")
    tensor.set_data_from_numpy(x)
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}", **connection) as client:
        result = client.infer(model, [tensor], client_timeout=PATIENCE_SECONDS)
    np.testing.assert_array_equal(result.as_numpy(result.get_response().outputs[0].name), 2 * x)


@contextmanager
def stream(server, model="several"):
    """Make a call on an open stream and return its error."""
    answers = queue.Queue()
    tensor = grpcclient.InferInput("x", [1, 512], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 512), np.float32))
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.put(error))

        def call():
            client.async_stream_infer(model, [tensor])
            return answers.get(timeout=PATIENCE_SECONDS)

        yield call
        client.stop_stream()


def read_events(server):
    """Return the supervisor's own lines without times, process ids, instances and seconds."""
    lines = server.log.read_text().splitlines()
    own = [found[1] for line in lines if (found := re.fullmatch(r"poplar-triton: \S+Z (.*)", line))]
    return [re.sub(r" \(process \d+\)| in \d+\.\d s|(?<=several_0)_\d", "", line) for line in own]


DEAD = "dead: several_0 of model 'several' version 1"
HEALED = [DEAD, "model 'several': reloaded", "all instances are alive again"]


STALLED = (
    "stalled: several_0 of model 'several' version 1 makes no progress: it is stopped; killing it"
)


def read_resident_mib(pid):
    (line,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(line) / 1024


def kill_and_heal(server, number=signal.SIGKILL, **connection):
    server.kill_stub("several", number)
    wait_until(
        lambda: not server.is_ready(), "/ready tells the dead or stalled instance", PATIENCE_SECONDS
    )
    wait_until(server.is_ready, "the model is healed")
    for _ in range(6):
        ask(server, **connection)


def test_a_dead_instance_is_reported_while_it_is_served(start):
    with start() as server:
        server.kill_stub("several")
        wait_until(lambda: not server.is_ready(), "/ready tells the dead instance")
        time.sleep(2)
        status, text = server.ask_ready()
        assert (status, re.sub(r"_\d of", " of", text)) == (503, f"{DEAD}\n")
        assert server.ask(server.health_port, "GET", "/live")[0] == 200
        assert server.read_metric("poplar_supervisor_dead_stubs", model="several") == 1
        assert server.read_metric("poplar_supervisor_living_stubs") == 2
        assert server.stop(STOP_SECONDS) == 0
        assert read_events(server)[:1] == [DEAD]


def test_dead_and_stalled_stubs_are_healed_and_clients_cannot_load_models(start):
    with start("--on-dead-stub", "reload", "--canary-seconds", "1") as server:
        assert "restricted" in server.load("several")
        assert not [path for path in server.find_segments() if path.stat().st_mode & 0o077]
        kill_and_heal(server)
        kill_and_heal(server, signal.SIGSTOP)
        assert server.read_metric("poplar_supervisor_reloads_total", outcome="success") == 2
        assert read_resident_mib(server.pid) < 40
        assert (
            server.read_metric("poplar_supervisor_canaries_total", model="other", outcome="success")
            > 2
        )
        assert server.stop(STOP_SECONDS) == 0
        assert read_events(server)[:7] == [*HEALED, STALLED, *HEALED]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Return a folder with a key and a certificate of this machine's own."""
    folder = tmp_path_factory.mktemp("certificate")
    make_certificate(folder)
    return folder


def test_it_heals_through_tls_with_http_off(start, certificate):
    triton = [
        "--allow-http=false",
        "--grpc-use-ssl=true",
        f"--grpc-server-cert={certificate / 'certificate'}",
        f"--grpc-server-key={certificate / 'key'}",
    ]
    with start("--on-dead-stub", "reload", triton=triton) as server:
        kill_and_heal(server, ssl=True, root_certificates=str(certificate / "certificate"))


def test_it_heals_another_server_program_through_restricted_apis(start, tmp_path):
    script = tmp_path / "tritonserver"
    script.write_text(f'#!/bin/sh\n"{find_triton()}/bin/tritonserver" "$@"\n')
    script.chmod(0o755)
    apis = "health,metadata,model-repository,model-config"
    triton = [
        "--model-control-mode=explicit",
        "--load-model=*",
        f"--http-restricted-api={apis}:admin=a secret=",
        f"--grpc-restricted-protocol={apis}:admin=another",
    ]
    with start("--on-dead-stub", "reload", "--server", str(script), triton=triton) as server:
        assert server.ask(server.http_port, "GET", "/v2/health/ready")[0] == 403
        kill_and_heal(server)
    assert not Path("/proc", str(server.pid)).exists()


def test_a_model_that_was_unloaded_is_not_dead(start):
    with start(triton=["--model-control-mode=explicit", "--load-model=*"]) as server:
        server.kill_stub("other")
        wait_until(lambda: not server.is_ready(), "/ready tells the dead instance")
        assert (
            server.ask(server.http_port, "POST", "/v2/repository/models/other/unload", b"{}")[0]
            == 200
        )
        wait_until(server.is_ready, "the model is gone")
        assert server.find_versions("other") == []


def test_a_stub_that_dies_in_an_unload_is_reported_and_the_server_stops(start, tmp_path):
    """Triton waits for the stub's answer: the model stays UNLOADING."""
    models = tmp_path / "models"
    fill(LocalRepository(models), [Model("several", delay_ms=10_000)])
    triton = ["--model-control-mode=explicit", "--load-model=*"]
    with start(triton=triton, at=models) as server, ThreadPoolExecutor() as clients:
        requests = []

        def does_one_wait():
            """Send one more request, because those that arrive together are joined to one run."""
            requests.append(clients.submit(ask, server))
            time.sleep(1)
            url = f"http://127.0.0.1:{server.metrics_port}/metrics"
            return read_metric(url, "nv_inference_pending_request_count") >= 1

        wait_until(does_one_wait, "one runs, one waits")
        server.unload("several")
        server.kill_stub("several")
        wait_until(lambda: DEAD in re.sub("_0_0", "_0", server.ask_ready()[1]), "/ready tells it")
        assert server.read_metric("poplar_supervisor_stub_deaths_total", model="several") == 1
        wait_until(server.is_ready, "the exit timeout is over")
        assert all(request.exception() for request in requests)
        assert server.stop(STOP_SECONDS) == 0


def test_loads_that_fail_leave_the_old_version_serving_and_the_server_ready(start, tmp_path):
    """The new executable is read, and rejected only in the instances' own processes."""
    models = tmp_path / "models"
    fill(LocalRepository(models), [SEVERAL])
    executable = models / "several/1/executable.popef"
    damaged = executable.with_name("damaged")
    damaged.write_bytes(executable.read_bytes().replace(b"Mul", b"Mxl"))
    triton = ["--model-control-mode=explicit", "--load-model=*"]
    with start("--on-dead-stub", "reload", triton=triton, at=models) as server:
        damaged.rename(executable)
        with watch(server) as ready:
            for _ in range(2):
                assert "Mxl" in server.load("several")
                ask(server)
            time.sleep(2)  # the supervisor asks every second what is served
        assert [status for _, status, _ in ready.changes] == [200]
        assert server.read_metric("poplar_supervisor_living_stubs") == 2
        for name in ("dead_stubs", "stub_deaths_total", "reloads_total"):
            assert server.read_metric(f"poplar_supervisor_{name}") == 0, name
        assert read_events(server) == []


def test_a_triton_that_stalls_is_started_again_with_what_was_loaded(start):
    triton = ["--model-control-mode=explicit", "--load-model=several"]
    with start("--restart", "1", triton=triton) as server:
        assert server.load("other") == ""
        wait_until(lambda: server.read_metric("poplar_supervisor_living_stubs") == 3, "it is seen")
        time.sleep(2)  # the supervisor asks every second what is served
        os.kill(server.find_triton().pid, signal.SIGSTOP)
        wait_until(lambda: not server.is_ready(), "/ready tells it", PATIENCE_SECONDS)
        wait_until(server.is_ready, "it was started again")
        ask(server, "several")
        ask(server, "other")
        server.kill_triton()
        assert server.wait() == 1, "once is all"
        assert "model 'other', which was served before, is loaded again" in read_events(server)


def test_with_exit_a_dead_instance_has_triton_started_again(start):
    with start("--on-dead-stub", "exit", "--restart", "1") as server:
        kill_and_heal(server)
        server.kill_stub("several")
        assert server.wait(STOP_SECONDS) == 1


def test_while_it_drains_it_serves_and_nothing_holds_the_stop_for_ever(start):
    """An open connection and a dead instance hold Triton for its whole exit timeout.

    Calls on an open stream are answered for longer than the drain.
    """
    with start("--drain-seconds", "1", "--max-drain-seconds", "20") as server:
        server.kill_stub("other")
        with closing(http.client.HTTPConnection("127.0.0.1", server.http_port)) as connection:
            connection.request("GET", "/v2/health/live")
            connection.getresponse().read()
            with stream(server) as call:
                os.kill(server.pid, signal.SIGTERM)
                wait_until(lambda: "draining" in server.ask_ready()[1], "/ready tells the drain")
                ask(server)
                for _ in range(30):
                    assert call() is None
                    time.sleep(0.1)
            assert server.wait(STOP_SECONDS) == 0


def test_left_overs_of_a_killed_server_are_removed_at_the_next_start(start, tmp_path):
    def find_mine(prefix):
        return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]

    with start() as first:
        (prefix,) = set(
            re.findall(r"poplar_\d+_\w{8}_", " ".join(first.find_stubs()[0].command_line))
        )
        first.kill()
        assert find_mine(prefix)
        with start():
            assert find_mine(prefix) == []


def test_instances_end_with_a_server_that_died_in_the_middle_of_their_call_to_it(start):
    with start() as server:
        stubs = server.find_stubs()
        ask(server)  # its metrics are sent to the server within a second
        os.kill(server.find_triton().pid, signal.SIGSTOP)
        time.sleep(2)
        os.kill(server.pid, signal.SIGKILL)  # and Triton dies with its supervisor
        wait_until(
            lambda: not any(Path("/proc", str(stub.pid)).exists() for stub in stubs), "they ended"
        )
