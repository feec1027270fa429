"""`poplar-triton tfserving` as a whole: the processes that it starts, and what becomes of them."""

import os
import signal
import socket
import urllib.error
import urllib.request
from contextlib import closing

import hostile_graphs
import hostile_loads
import numpy as np
import pytest
from fault_clients import children, find_process, has_ended, kill
from poprt import Compiler, Converter
from sample_models import linear_model
from server_processes import CommandServer, TfServing
from tfserving_clients import Client, read_outputs, refused
from waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow  # each starts the command

ROW = {"x": np.ones((1, 4), np.float32)}
LATER = 'parameters { key: "creation_delay_sec" value: { string_value: "3" } }'
SLOW = 'parameters { key: "execute_delay_ms" value: { string_value: "500" } }'
NEVER = 'parameters { key: "creation_delay_sec" value: { string_value: "3600" } }'
STOPS = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture(scope="module")
def compiled():
    return Compiler.compile(Converter(batch_size=4).convert(linear_model()))


@pytest.fixture
def repository(compiled, tmp_path):
    folder = tmp_path / "models" / "linear"
    (folder / "1").mkdir(parents=True)
    compiled.export(folder / "1" / "executable.popef")
    return tmp_path / "models"


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


def find_workers(pid):
    return [
        each
        for each in children(pid)
        if each.state != "Z" and any("tfserving.worker" in word for word in each.command_line)
    ]


def wait_until_ended(processes):
    wait_until(lambda: all(map(has_ended, processes)), "the end of all processes")


def read_health(server, path):
    url = server.metrics_url.replace("/metrics", path)
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def count_answers(server):
    line = ':tensorflow:serving:request_count{model_name="linear",status="OK"} '
    found = [
        each for each in read_health(server, "/metrics")[1].splitlines() if each.startswith(line)
    ]
    return float(found[0].removeprefix(line)) if found else 0


def check_answer(server):
    with Client(server.grpc_url) as client:
        assert client.predict("linear", ROW)["z"].tolist() == [[2] * 4]


def test_killed_and_stopped_processes_are_restarted_and_their_counts_kept(repository, log):
    with TfServing(repository, "--processes", "2", log=log) as server:
        workers = find_workers(server.pid)
        assert len(workers) == 2
        for _ in range(10):
            check_answer(server)
        wait_until(lambda: count_answers(server) == 10, "all answers on the page")
        kill(workers[0])
        os.kill(workers[1].pid, signal.SIGSTOP)
        wait_until_ended(workers)
        wait_until(lambda: len(find_workers(server.pid)) == 2, "two processes again")
        wait_until(lambda: read_health(server, "/ready")[0] == 200, "a server that is ready")
        for _ in range(10):
            check_answer(server)
        wait_until(lambda: count_answers(server) == 20, "ten more answers")
        assert read_health(server, "/live")[0] == 200
        everything = [find_process(server.pid), *children(server.pid)]
        assert server.stop() == 0
        wait_until_ended(everything)
    assert log.read_text().count("ended by itself, status -9") == 1
    assert log.read_text().count("makes no progress: it is stopped; killing it") == 1
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("number", STOPS, ids=lambda number: number.name)
def test_a_stop_answers_what_is_under_way_and_leaves_no_process(repository, log, number):
    (repository / "linear" / "config.pbtxt").write_text(SLOW)
    with TfServing(repository, log=log) as server, Client(server.grpc_url) as client:
        everything = [find_process(server.pid), *children(server.pid)]
        first, second = client.send("linear", ROW), client.send("linear", ROW)
        first.result(PATIENCE_SECONDS)
        os.kill(server.pid, number)  # while the second is computed
        assert server.wait() == 0
        assert read_outputs(second.result(PATIENCE_SECONDS))["z"].tolist() == [[2] * 4]
        wait_until_ended(everything)
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("number", STOPS, ids=lambda number: number.name)
def test_a_stop_while_models_load_leaves_no_process(repository, log, number):
    (repository / "linear" / "config.pbtxt").write_text(NEVER)
    with TfServing(repository, log=log, waits=False) as server:
        wait_until(lambda: find_workers(server.pid), "a process that loads")
        everything = [find_process(server.pid), *children(server.pid)]
        assert server.stop(number=number) == 130
        wait_until_ended(everything)
    assert "Traceback" not in server.read_log()


@pytest.mark.parametrize("is_loading", [False, True])
def test_where_the_first_process_is_killed_the_others_end(repository, log, is_loading):
    if is_loading:
        (repository / "linear" / "config.pbtxt").write_text(NEVER)
    with TfServing(repository, log=log, waits=not is_loading) as server:
        wait_until(lambda: find_workers(server.pid), "a process that loads or serves")
        others = children(server.pid)
        os.kill(server.pid, signal.SIGKILL)
        wait_until_ended(others)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda it: it.name)
def test_a_process_killed_or_stopped_while_it_loads_is_restarted(repository, log, number):
    (repository / "linear" / "config.pbtxt").write_text(LATER)
    with TfServing(repository, log=log, rest=False, waits=False) as server:
        wait_until(lambda: find_workers(server.pid), "a process that loads")
        (worker,) = find_workers(server.pid)
        os.kill(worker.pid, number)
        wait_until(lambda: has_ended(worker), "its end")
        wait_until(lambda: read_health(server, "/ready")[0] == 200, "a server that is ready")
        assert server.stop() == 0
    how = "ended by itself, status -9"
    if number == signal.SIGSTOP:
        how = "makes no progress: it is stopped; killing it"
    assert f"process 0 {how}" in server.read_log()


def test_an_endless_model_does_not_hold_up_the_others_and_is_named(repository, log, monkeypatch):
    graph = hostile_graphs.endless_inference()
    monkeypatch.setitem(hostile_loads.GRAPHS, "endless", lambda: graph)
    for name in ("an_endless", "the_last_endless"):
        hostile_loads.write_graph(repository / name, "endless", 0)
    with TfServing(repository, "--start-seconds", "30", log=log) as server:
        check_answer(server)
    for name in ("an_endless", "the_last_endless"):
        line = f"model '{name}' version 1 is not served: model '{name}': it was not ready within "
        assert line in log.read_text()
    assert "the start's limit of 30 s" in log.read_text()


@pytest.mark.parametrize(("option", "what"), [("--port", "gRPC"), ("--rest_api_port", "REST")])
def test_a_busy_port_is_reported_in_one_line(repository, log, option, what):
    ports = {"--port": 0, "--rest_api_port": 0}
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        ports[option] = listener.getsockname()[1]
        words = ["tfserving", repository, *(word for pair in ports.items() for word in pair)]
        with CommandServer(*words, log=log, waits=False) as server:
            assert server.wait() == 1
    (line,) = server.read_log().splitlines()
    assert f"{what} port {ports[option]} of 127.0.0.1: cannot listen" in line


def test_a_model_that_does_not_load_is_reported_and_the_others_are_served(repository, log):
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "executable.popef").write_bytes(b"garbage")
    (repository / "other").mkdir()
    (repository / "other" / "config.pbtxt").write_text('backend: "onnxruntime"')
    with TfServing(repository, log=log) as server, Client(server.grpc_url) as client:
        check_answer(server)
        with refused("NOT_FOUND", "Servable not found for request: Latest(broken)"):
            client.predict("broken", ROW)
        ((version, state, message),) = client.read_status("broken")
        assert (version, state) == (1, 50)
        assert "executable.popef" in message
    text = log.read_text()
    assert "model 'broken' version 1 is not served: " in text
    assert "model 'other' is not served: no version folder, such as 1, in " in text


def test_if_no_model_loads_each_is_reported_and_a_repaired_one_is_served(repository, log, compiled):
    file = repository / "linear" / "1" / "executable.popef"
    file.write_bytes(b"garbage")
    with TfServing(repository, "--load_retry_interval_micros", "0", log=log) as server:
        assert "model 'linear' version 1 is not served: " in log.read_text()
        with Client(server.grpc_url) as client, refused("NOT_FOUND", "Latest(linear)"):
            client.predict("linear", ROW)
        compiled.export(file)
        with Client(server.grpc_url) as client:
            wait_until(
                lambda: client.read_status("linear") == [(1, 30, "")], "a model that is mended"
            )
        check_answer(server)


def test_a_label_of_a_version_that_is_not_served_ends_the_start(repository, log, tmp_path):
    config = tmp_path / "config"
    config.write_text(
        f'model_config_list {{ config {{ name: "m" base_path: "{repository / "linear"}" '
        "model_platform: "
        '"tensorflow" version_labels { key: "stable" value: 7 } } }'
    )
    with TfServing("--model_config_file", config, log=log, waits=False) as server:
        assert server.wait() == 1
    assert (
        "label 'stable' of model 'm' is for version 7, which is not served; expected one of [1]"
        in server.read_log()
    )
    assert "Traceback" not in server.read_log()
