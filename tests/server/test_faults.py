"""Faults as clients see them.

Processes die, values are rejected, runs take too long, and requests are cancelled.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import queue
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpcclient
from fault_clients import (
    Answer,
    Client,
    Load,
    children,
    find_engine,
    find_stub,
    has_ended,
    iter_processes,
    kill,
    read_error,
    read_result,
    resident_bytes,
    shared_segments,
    wait_until_busy,
)
from onnx import TensorProto, helper
from poplar_triton.serving.server import TritonServer
from poprt import Compiler, Converter
from poprt.triton.model_folder import write_triton_model
from sample_models import gather_model, linear_model, make_model
from waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.timed

MODES = ["sync", "async"]
PROTOCOLS = ["http", "grpc"]
LONG_ROWS = 4096
"""Rows of a request of the slow model that computes for seconds."""


def slow_model() -> onnx.ModelProto:
    """Return the model y = x by way of 64 products with an identity matrix: 134 MFLOP a row."""
    width, depth = 1024, 64
    names = ["wide", *(f"product_{step}" for step in range(depth))]
    nodes = [helper.make_node("Mul", ["x", "ones"], ["wide"])]
    nodes += [
        helper.make_node("MatMul", [before, "eye"], [after])
        for before, after in itertools.pairwise(names)
    ]
    nodes.append(helper.make_node("ReduceMax", [names[-1]], ["y"], axes=[1], keepdims=1))
    weights = {"eye": np.eye(width, dtype=np.float32), "ones": np.ones((1, width), np.float32)}
    return make_model(
        nodes, {"x": (TensorProto.FLOAT, ["n", 1])}, {"y": (TensorProto.FLOAT, ["n", 1])}, weights
    )


def slow_at_last_model() -> onnx.ModelProto:
    """Return the model y = 2 x, followed by one operator of some 20 ms a row, the run's last."""
    width = 512
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["y"]),
        helper.make_node("Mul", ["y", "ones"], ["wide"]),
        helper.make_node("MatMul", ["wide", "eye"], ["product"]),
    ]
    weights = {
        "eye": np.eye(width, dtype=np.int32),
        "ones": np.ones((1, width, width), np.int32),
        "two": np.int32(2),
    }
    outputs = {
        "y": (TensorProto.INT32, ["n", 1, 1]),
        "product": (TensorProto.INT32, ["n", width, width]),
    }
    return make_model(nodes, {"x": (TensorProto.INT32, ["n", 1, 1])}, outputs, weights)


TABLE = np.arange(30, dtype=np.float32).reshape(10, 3)


def write_models(
    repository: Path,
    name: str,
    model: onnx.ModelProto,
    *,
    batch: int,
    instances: int = 1,
    **parameters: str,
) -> None:
    """Write the model in both modes; NAME_async has no synchronous_execution, unlike NAME_sync."""
    compiled = Compiler.compile(Converter(batch_size=batch).convert(model))
    for mode in MODES:
        given = {**parameters, **({"synchronous_execution": "1"} if mode == "sync" else {})}
        folder = repository / f"{name}_{mode}"
        write_triton_model(compiled, folder)
        config = folder / "config.pbtxt"
        entries = [
            f'{{ key: "{key}" value: {{ string_value: "{value}" }} }}'
            for key, value in given.items()
        ]
        tensors = config.read_text().partition("parameters {")[0]
        config.write_text(
            f"{tensors}parameters [{', '.join(entries)}]\ninstance_group [{{ kind: KIND_CPU count: "
            f"{instances} }}]\n"
        )


def write_plain(repository: Path) -> None:
    write_models(repository, "gather", gather_model(), batch=8)
    write_models(repository, "delayed", gather_model(), batch=8, execute_delay_ms="200")
    write_models(repository, "isolated_gather", gather_model(), batch=8, sim_isolation="process")
    write_models(
        repository,
        "isolated_slow",
        slow_model(),
        batch=LONG_ROWS,
        sim_isolation="process",
        sim_threads="1",
    )


def write_limited(repository: Path) -> None:
    for isolation in ("none", "process"):
        options = {"sim_isolation": isolation, "sim_threads": "1"}
        write_models(repository, f"slow_{isolation}", slow_model(), batch=LONG_ROWS, **options)
    write_models(repository, "last", slow_at_last_model(), batch=96, sim_threads="1")


def write_explicit(repository: Path) -> None:
    """Write a model `pair` whose stubs sleep most of the time.

    Triton ends if a stub is killed while it holds a lock that they share with Triton.
    """
    write_models(repository, "pair", linear_model(), batch=4, instances=2, execute_delay_ms="20")
    write_models(repository, "bystander", linear_model(), batch=4)


EXIT_SOON = "--exit-timeout-secs=5"
"""Short exit timeout; with a dead stub Triton always takes all of it (30 s by default)."""

SERVERS = {
    "plain": (write_plain, [], {}),
    "limited": (write_limited, [], {"POPLAR_RUNTIME_OPTIONS": '{"target.hostSyncTimeout":"1"}'}),
    "explicit": (
        write_explicit,
        ["--model-control-mode=explicit", "--load-model=*", EXIT_SOON],
        {},
    ),
}
"""The function that writes a server's models, its options, and its environment, by name."""


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """Start the server that `asks` names; pytest sorts the tests by it, so one runs at a time."""
    write, options, environment = SERVERS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    write(folder / "repository")
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            running = stack.enter_context(
                TritonServer(folder / "repository", options=options, log=folder / "log")
            )
        assert running.failed_models() == {}
        yield running


def asks(name: str) -> pytest.MarkDecorator:
    """Return the mark for tests of the server of that name."""
    return pytest.mark.parametrize("server", [name], indirect=True)


@pytest.fixture
def client(server: TritonServer) -> Iterator[Client]:
    with Client(server, "grpc") as client:
        yield client


class Outcome(NamedTuple):
    """Result of a request, and whether it equals what the model computes."""

    model: str
    answer: Answer
    is_right: bool


def ask_linear(client: Client, model: str, number: int) -> Outcome:
    x = np.full((1 + number % 9, 4), number % 1000, np.float32)
    answer = client.ask(model, {"x": x}, ["z"])
    return Outcome(
        model, answer, answer.code == "OK" and np.array_equal(answer.outputs["z"], 2 * x)
    )


def ask_long(server: TritonServer, protocol: str, model: str) -> Answer:
    """Send the slow model a request that takes seconds, from a client of its own."""
    with Client(server, protocol) as client:
        return ask_slow(client, model, 0, LONG_ROWS).answer


def ask_slow(client: Client, model: str, number: int, rows: int) -> Outcome:
    x = np.full((rows, 1), 1 + number % 1000, np.float32)
    answer = client.ask(model, {"x": x})
    return Outcome(model, answer, answer.code == "OK" and np.array_equal(answer.outputs["y"], x))


@asks("explicit")
@pytest.mark.parametrize("mode", MODES)
def test_the_other_instances_and_models_serve_on_when_a_stub_is_killed(server, http, mode):
    model, bystander = f"pair_{mode}", f"bystander_{mode}"

    def ask(client, number):
        return ask_linear(client, model if number % 4 else bystander, number)

    with Load(server, ask, clients=8, deadline_seconds=10) as load:
        load.wait_for(100)
        before = len(load.outcomes)
        kill(find_stub(server, f"{model}_0_0"))
        load.wait_for(1, lambda outcome: not outcome.is_right)
        for name in (model, bystander):
            load.wait_for(
                100, lambda outcome, name=name: outcome.model == name and outcome.is_right
            )
    assert all(outcome.is_right for outcome in load.outcomes[:before])
    failures = [outcome for outcome in load.outcomes if not outcome.is_right]
    assert {outcome.model for outcome in failures} == {model}
    for outcome in failures:
        # A request that an asynchronous stub had taken is never answered by Triton: only its
        # client's deadline ends it.
        is_lost = mode == "async" and outcome.answer.code == "DEADLINE_EXCEEDED"
        assert is_lost or (
            outcome.answer.code == "INTERNAL" and "is not healthy" in outcome.answer.message
        ), outcome

    http.unload_model(model)
    http.load_model(model)
    wait_until(lambda: http.is_model_ready(model), "the model is ready again")
    with Load(server, ask, clients=8) as load:
        load.wait_for(100, lambda outcome: outcome.model == model)
    assert [outcome for outcome in load.outcomes if not outcome.is_right] == []


@asks("plain")
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mode", MODES)
def test_the_batch_in_an_engine_process_that_is_killed_gets_unavailable(
    server, client, mode, protocol
):
    model = f"isolated_slow_{mode}"
    stub = find_stub(server, f"{model}_0_0")
    engines = [find_engine(stub)]
    for _ in range(2):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask_long, server, protocol, model)
            wait_until_busy(engines[-1], asked)
            kill(engines[-1])
        answer = asked.result()
        assert answer.code == "UNAVAILABLE"
        assert (
            "the engine's process died (signal SIGKILL); a new one takes its place"
            in answer.message
        )
        assert ask_slow(client, model, 1, 3).is_right
        engines.append(find_engine(stub))
    assert len({engine.pid for engine in engines}) == 3
    assert [child.pid for child in children(stub.pid)] == [engines[-1].pid]


@asks("plain")
@pytest.mark.parametrize("mode", MODES)
def test_killing_engine_processes_under_load_costs_the_batches_in_them_only(server, mode):
    model, kills, clients = f"isolated_slow_{mode}", 5, 4
    stub = find_stub(server, f"{model}_0_0")
    killed = set()
    with Load(
        server, lambda client, number: ask_slow(client, model, number, 32), clients=clients
    ) as load:
        for _ in range(kills):
            load.wait_for(2 * clients, lambda outcome: outcome.is_right)
            engine = find_engine(stub, killed)
            kill(engine)
            killed.add(engine.pid)
        find_engine(stub, killed)
        load.wait_for(2 * clients, lambda outcome: outcome.is_right)
    failures = [outcome for outcome in load.outcomes if not outcome.is_right]
    assert {outcome.answer.code for outcome in failures} == {"UNAVAILABLE"}
    assert all("signal SIGKILL" in outcome.answer.message for outcome in failures)
    assert len(failures) <= kills * clients
    assert len(children(stub.pid)) == 1


@asks("plain")
@pytest.mark.parametrize("mode", MODES)
def test_killing_an_idle_engine_process_costs_no_request(server, client, mode):
    model = f"isolated_slow_{mode}"
    stub = find_stub(server, f"{model}_0_0")
    engine = find_engine(stub)
    kill(engine)
    wait_until(lambda: has_ended(engine), "its end")
    outcome = ask_slow(client, model, 1, 3)
    assert outcome.is_right, outcome.answer
    assert [child.pid for child in children(stub.pid)] == [find_engine(stub, {engine.pid}).pid]


@pytest.mark.parametrize("victim", ["engine", "stub"])
def test_a_server_whose_processes_were_killed_leaves_nothing_when_it_stops(tmp_path, victim):
    write_models(
        tmp_path / "repository", "gather", gather_model(), batch=8, sim_isolation="process"
    )
    with TritonServer(tmp_path / "repository", options=[EXIT_SOON], log=tmp_path / "log") as server:
        for mode in MODES:
            stub = find_stub(server, f"gather_{mode}_0_0")
            engine = find_engine(stub)
            kill(engine if victim == "engine" else stub)
            wait_until(lambda engine=engine: has_ended(engine), "the end of the engine's process")
        segments = set(shared_segments(server))
        os.kill(server.pid, signal.SIGINT)
        wait_until(lambda: server.poll() is not None, "the server's end")
        # Check before the end of the block, which kills all remaining processes.
        wait_until(
            lambda: all(has_ended(p) for p in iter_processes() if p.session == server.pid),
            "the end of all processes",
        )
    assert len(segments) == 2
    assert not segments & {file.name for file in Path("/dev/shm").iterdir()}


@asks("plain")
@pytest.mark.parametrize(
    "model", ["gather_sync", "gather_async", "isolated_gather_sync", "isolated_gather_async"]
)
def test_an_index_outside_the_table_fails_its_own_request_only(server, model):
    """The requests are sent together, so that runs join them."""

    def ask(client, number):
        index = 1000 + number if number % 5 == 0 else number % 10
        return number, client.ask(model, {"ids": np.full((1 + number % 3, 2), index, np.int32)})

    with Load(server, ask, clients=16) as load:
        load.wait_for(300)
    assert {number % 5 for number, _ in load.outcomes} == {0, 1, 2, 3, 4}
    for number, answer in load.outcomes:
        if number % 5 == 0:
            assert answer.code == "INTERNAL"
            assert f"idx={1000 + number} must be within" in answer.message
        else:
            assert answer.code == "OK", answer.message
            np.testing.assert_array_equal(
                answer.outputs["rows"], TABLE[np.full((1 + number % 3, 2), number % 10)]
            )


@asks("limited")
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "model", ["slow_none_sync", "slow_none_async", "slow_process_sync", "slow_process_async"]
)
def test_a_run_that_takes_too_long_gets_an_error_that_names_the_limit(
    server, client, model, protocol
):
    stub = find_stub(server, f"{model}_0_0")
    computer = find_engine(stub) if "process" in model else stub
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask_long, server, protocol, model)
        wait_until_busy(computer, asked)
        # It waits while the long request runs, and its answer is still correct.
        assert ask_slow(client, model, 1, 1).is_right
    answer = asked.result()
    assert answer.code == "UNAVAILABLE"
    assert "took longer than" in answer.message
    assert " 1 s " in answer.message
    assert ask_slow(client, model, 2, 3).is_right
    assert len(children(stub.pid)) == ("process" in model)


@asks("limited")
@pytest.mark.parametrize("model", ["last_sync", "last_async"])
def test_a_run_whose_last_operator_takes_too_long_does_not_fail_the_next(client, model):
    long = client.ask(model, {"x": np.ones((96, 1, 1), np.int32)}, ["y"])
    assert long.code in ("OK", "UNAVAILABLE")
    quick = client.ask(model, {"x": np.full((1, 1, 1), 7, np.int32)}, ["y"])
    assert quick.code == "OK", quick.message
    assert quick.outputs["y"].tolist() == [[[14]]]


@asks("plain")
@pytest.mark.parametrize("mode", MODES)
def test_calling_off_half_of_many_requests_leaves_the_others_their_answers(
    server, client, grpc, mode
):
    model, count = f"delayed_{mode}", 200
    ids = [np.full((1 + number % 3, 2), number % 10, np.int32) for number in range(count)]
    came: queue.SimpleQueue[tuple[int, Answer]] = queue.SimpleQueue()

    def send(number):
        tensor = grpcclient.InferInput("ids", ids[number].shape, "INT32")
        tensor.set_data_from_numpy(ids[number])

        def keep(result, error):
            came.put((number, read_result(result) if error is None else read_error(error)))

        return grpc.async_infer(model, [tensor], keep)

    calls = [send(number) for number in range(count)]
    for call in calls[1::2]:
        call.cancel()
    answers = dict(came.get(timeout=PATIENCE_SECONDS) for _ in range(count))
    assert len(answers) == count
    for number, answer in answers.items():
        if number % 2 and answer.code == "CANCELLED":
            continue
        assert answer.code == "OK", answer.message
        np.testing.assert_array_equal(answer.outputs["rows"], TABLE[ids[number]])
    assert any(answer.code == "CANCELLED" for answer in answers.values())
    for number in range(3):
        np.testing.assert_array_equal(
            client.ask(model, {"ids": ids[number]}).outputs["rows"], TABLE[ids[number]]
        )
    assert came.empty()


@dataclass(frozen=True, slots=True)
class Case:
    """Request to the gather model, with its expected result.

    The `message` of a bad one holds text that only its own error contains.
    """

    number: int
    ids: np.ndarray
    code: str = "OK"
    message: str = ""
    output: str = "rows"
    reaches_the_backend: bool = False

    def describe_fault(self, answer: Answer) -> str | None:
        """Return what is wrong with the request's answer, or None."""
        if (answer.code, self.message in answer.message) != (self.code, True):
            return (
                f"request {self.number}: expected {self.code} with {self.message!r}, found {answer}"
            )
        if self.code == "OK" and answer.request_id != str(self.number):
            return f"request {self.number} got the answer of request {answer.request_id}"
        if self.code == "OK" and not np.array_equal(answer.outputs["rows"], TABLE[self.ids]):
            return (
                f"request {self.number}: rows {self.ids.tolist()} are wrong: "
                f"{answer.outputs['rows'].tolist()}"
            )
        return None


def make_case(number: int) -> Case:
    """Return a case: one in two is good, and each of five kinds of bad ones is one in ten."""
    random = np.random.default_rng(number)
    rows = int(random.integers(1, 10))
    ids = random.integers(0, 10, (rows, 2), np.int32)
    match random.integers(10):
        case 0:
            ids[random.integers(rows), random.integers(2)] = 1000 + number
            return Case(
                number, ids, "INTERNAL", f"idx={1000 + number} must be", reaches_the_backend=True
            )
        case 1:
            width = 3 + number % 500
            return Case(
                number,
                np.zeros((rows, width), np.int32),
                "INVALID_ARGUMENT",
                f"got [{rows},{width}]",
            )
        case 2:
            return Case(
                number,
                ids.astype(np.float32),
                "INVALID_ARGUMENT",
                f"[request id: {number}] inference input 'ids' data",
            )
        case 3:
            return Case(
                number,
                ids,
                "INVALID_ARGUMENT",
                f"output 'nothing_{number}'",
                output=f"nothing_{number}",
            )
        case 4:
            return Case(
                number,
                ids[:0],
                "INVALID_ARGUMENT",
                f"[request id: {number}] input byte size mismatch",
            )
    return Case(number, ids, reaches_the_backend=True)


def ask_mixed(server: TritonServer, model: str, cases: list[Case], clients: int = 16) -> list[str]:
    """Send all cases from many clients at once, over both protocols in turn.

    Returns:
        The faults of the answers.
    """

    def work(index):
        with Client(server, PROTOCOLS[index % 2]) as client:
            answers = [
                (case, client.ask(model, {"ids": case.ids}, [case.output], str(case.number)))
                for case in cases[index::clients]
            ]
        return [fault for case, answer in answers if (fault := case.describe_fault(answer))]

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        return [fault for faults in pool.map(work, range(clients)) for fault in faults]


LEAK_BYTES = 1000
"""Limit of a process's growth per request; a process that grows faster leaks memory."""


@asks("plain")
@pytest.mark.parametrize("mode", MODES)
def test_each_of_many_mixed_requests_gets_its_own_answer_and_memory_stays_flat(server, http, mode):
    model = f"gather_{mode}"
    pids = [server.pid, find_stub(server, f"{model}_0_0").pid]
    assert (
        ask_mixed(server, model, [make_case(number) for number in range(10_000, 12_000)])[:3] == []
    )
    resident, segments = [resident_bytes(pid) for pid in pids], shared_segments(server)

    def count_answers():
        statistics = http.get_inference_statistics(model)["model_stats"][0]["inference_stats"]
        return int(statistics["success"]["count"]), int(statistics["fail"]["count"])

    (before, _), cases = count_answers(), [make_case(number) for number in range(10_000)]
    assert ask_mixed(server, model, cases)[:3] == []
    answered = before + sum(case.reaches_the_backend for case in cases)
    wait_until(
        lambda: count_answers() == (answered, 0), f"Triton counts {answered} requests answered"
    )
    growth = [resident_bytes(pid) - size for pid, size in zip(pids, resident, strict=True)]
    assert max(growth) < LEAK_BYTES * len(cases)
    assert shared_segments(server) == segments
