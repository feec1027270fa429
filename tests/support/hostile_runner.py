"""Runner that sends hostile requests to a real server, valid ones between them, and judges the
answers.

A case is wrong if it gets no answer or several. It is also wrong if it is answered although it must
be rejected, if the answer is wrong, or if the answer reports a defect of the backend. The same seed
and number make the same case.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import grpc
import hostile_grpc
import hostile_http
import numpy as np
import tritonclient.grpc.service_pb2 as pb
from fault_clients import iter_processes, resident_bytes, shared_segments
from hostile_grpc import GrpcCase
from hostile_models import MODELS, REGION, REGION_BYTES, SLOW, Array, Served, Wanted
from http_cases import HttpCase, write_request
from poplar_triton.serving.endpoint import HOST
from poplar_triton.serving.server import TritonServer
from waiting import PATIENCE_SECONDS

CLIENTS = 4
"""Number of clients of each protocol."""
SOUND_EVERY = 4
"""Number of hostile requests before each valid one."""
LEAK_BYTES = 1000
"""A process that grows by more with every request keeps something of it."""
SLACK_BYTES = 16 << 20
"""Additional bytes that the server's allocator may keep, of bodies of a megabyte."""
DEFECTS = ("poplar backend:", "is not healthy", "Traceback")
"""Words in an answer that show a fault of something other than the request."""
SERVICE = "/inference.GRPCInferenceService/"
SENTINEL = write_request("/v2/health/live", method="GET")


class WrongAnswerError(Exception):
    """A case with a wrong outcome; the message describes it."""


@dataclass
class Report:
    """Outcomes of the cases: the count of each status by protocol and kind, and the faults."""

    outcomes: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, protocol: str, kind: str, outcome: str) -> None:
        self.outcomes.setdefault((protocol, kind), Counter())[outcome] += 1

    def merge(self, other: Report) -> None:
        for key, counts in other.outcomes.items():
            self.outcomes.setdefault(key, Counter()).update(counts)
        self.faults += other.faults

    def count(self, protocol: str) -> int:
        """Return the number of cases that went over one protocol, including the valid ones."""
        return sum(
            counts.total()
            for (asked_protocol, _), counts in self.outcomes.items()
            if asked_protocol == protocol
        )


class _Buffer(io.BufferedReader):
    """The answers of one connection, which the end of one of them does not close."""

    def makefile(self, *_: object) -> _Buffer:
        return self

    def close(self) -> None:
        pass


class HttpClient:
    """Writes bytes to the server and reads whole answers, over a connection that it keeps while the
    server does."""

    def __init__(self, server: TritonServer) -> None:
        self._address = (HOST, server.ports[0])
        self._socket: socket.socket | None = None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, case: HttpCase) -> str:
        """Send a case and return the statuses received; raises WrongAnswerError."""
        try:
            return self._close_after(case) if case.closes else self._keep(case)
        except TimeoutError:
            self.close()
            raise WrongAnswerError(f"no answer within {PATIENCE_SECONDS:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise WrongAnswerError(f"{type(error).__name__}: {error}") from error

    def _connect(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, PATIENCE_SECONDS)
            self._buffer = _Buffer(socket.SocketIO(self._socket, "r"))
        return self._socket

    def _keep(self, case: HttpCase) -> str:
        self._connect().sendall(case.data)
        statuses = []
        for _ in range(case.answers):
            answer, body = self._read()
            judge_http(case, answer, body)
            statuses.append(str(answer.status))
            if answer.will_close:
                self._check_end()
                return " ".join(statuses)
        self._connect().sendall(SENTINEL)
        answer, body = self._read()
        if (answer.status, body) != (200, b""):
            self.close()
            raise WrongAnswerError(f"a second answer: {answer.status} {body[:200]!r}")
        return " ".join(sorted(statuses))

    def _close_after(self, case: HttpCase) -> str:
        self.close()
        count = 0
        connection = self._connect()
        with suppress(OSError):  # the server may end it while we still write
            connection.sendall(case.data)
            connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError, http.client.RemoteDisconnected):
            while True:
                answer, body = self._read()
                judge_http(case, answer, body)
                count += 1
        self.close()
        if count > case.answers:
            raise WrongAnswerError(f"{count} answers, expected {case.answers} at most")
        return str(answer.status) if count else "closed"

    def _read(self) -> tuple[http.client.HTTPResponse, bytes]:
        """Read an answer; Triton sends the body of an error to HEAD, too."""
        answer = http.client.HTTPResponse(self._buffer)  # type: ignore[arg-type]
        answer.begin()
        return answer, answer.read()

    def _check_end(self) -> None:
        rest = self._buffer.read()
        self.close()
        if rest:
            raise WrongAnswerError(f"{len(rest)} bytes after the last answer: {rest[:200]!r}")


def judge_http(case: HttpCase, answer: http.client.HTTPResponse, body: bytes) -> None:
    """Raise WrongAnswerError unless an answer is one that its case may get."""
    text = body.decode(errors="replace")
    _judge(case.wanted, answer.status < 400, text)
    if case.wanted is Wanted.ANSWERED:
        assert case.model is not None
        _compare(
            case.model,
            case.rows,
            _read_outputs(body, answer.headers.get("Inference-Header-Content-Length")),
        )


def _read_outputs(body: bytes, length: str | None) -> dict[str, Array]:
    """Return the outputs of an answer, in JSON or after it."""
    place = len(body) if length is None else int(length)
    outputs = {}
    for output in json.loads(body[:place])["outputs"]:
        dtype = {"FP32": np.float32, "INT32": np.int32}[output["datatype"]]
        if "data" in output:
            array = np.array(output["data"], dtype)
        else:
            size = output["parameters"]["binary_data_size"]
            array, place = np.frombuffer(body[place : place + size], dtype), place + size
        outputs[output["name"]] = array.reshape(output["shape"])
    return outputs


class GrpcClient:
    """Sends messages as bytes."""

    def __init__(self, server: TritonServer) -> None:
        # A separate channel: channels with the same address and options share a connection.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self._channel = grpc.insecure_channel(server.grpc_url, options)

    def close(self) -> None:
        self._channel.close()

    def send(self, case: GrpcCase) -> str:
        """Send a case and return the code received; raises WrongAnswerError."""
        deadline = case.deadline_seconds or PATIENCE_SECONDS
        code, text, answers = "OK", "", []
        try:
            if case.is_stream:
                stream = self._channel.stream_stream(SERVICE + case.method)
                answers = list(
                    stream(iter(case.messages), timeout=deadline, compression=case.compression)
                )
            else:
                unary = self._channel.unary_unary(SERVICE + case.method)
                call = unary.future(
                    case.messages[0], timeout=deadline, compression=case.compression
                )
                if case.called_off_seconds is not None:
                    time.sleep(case.called_off_seconds)
                    call.cancel()
                answers = [call.result()]
        except grpc.FutureCancelledError:
            code = "CANCELLED"
        except grpc.RpcError as error:
            code, text = error.code().name, error.details() or ""
        self._judge(case, code, text, answers)
        return code

    def _judge(self, case: GrpcCase, code: str, text: str, answers: Sequence[bytes]) -> None:
        if code == "CANCELLED" and case.called_off_seconds is None:
            raise WrongAnswerError(f"called off: {text}")
        if code == "DEADLINE_EXCEEDED" and case.deadline_seconds is None:
            raise WrongAnswerError(f"no answer within {PATIENCE_SECONDS:g} s")
        expected = len(case.messages) if case.answers is None else case.answers
        if code == "OK" and len(answers) != expected:
            raise WrongAnswerError(f"{len(answers)} answers, expected {expected}")
        if case.is_stream:
            text += "".join(
                pb.ModelStreamInferResponse.FromString(answer).error_message for answer in answers
            )
        _judge(case.wanted, code == "OK", f"{code} {text}")
        if case.wanted is Wanted.ANSWERED:
            assert case.model is not None
            answer = pb.ModelInferResponse.FromString(answers[0])
            _compare(case.model, case.rows, _read_message(answer))


def _read_message(answer: pb.ModelInferResponse) -> dict[str, Array]:
    types = {"FP32": np.float32, "INT32": np.int32}
    pairs = zip(answer.outputs, answer.raw_output_contents, strict=True)
    return {
        out.name: np.frombuffer(data, types[out.datatype]).reshape(out.shape) for out, data in pairs
    }


def _judge(wanted: Wanted, is_answered: bool, text: str) -> None:
    if defect := next((words for words in DEFECTS if words in text), None):
        raise WrongAnswerError(f"a defect ({defect}): {text[:1000]!r}")
    if wanted is not Wanted.EITHER and is_answered != (wanted is Wanted.ANSWERED):
        raise WrongAnswerError(f"must be {wanted.value}, found {text[:500]!r}")


def _compare(model: Served, rows: Array | None, outputs: dict[str, Array]) -> None:
    assert rows is not None
    with np.errstate(over="ignore"):
        expected = model.compute(rows)
    if outputs.keys() != {model.output} or not np.array_equal(
        outputs[model.output], expected, equal_nan=model.dtype.kind == "f"
    ):
        raise WrongAnswerError(f"{model.name}: {rows.tolist()} was answered {outputs}")


PROTOCOLS: dict[str, tuple[Any, Any]] = {
    "http": (HttpClient, hostile_http),
    "grpc": (GrpcClient, hostile_grpc),
}


def run_cases(server: TritonServer, numbers: range, seed: int) -> Report:
    """Send the cases of these numbers, even ones over HTTP and odd ones over gRPC, from many
    clients at once."""
    shares = [
        (protocol, [*numbers][place::2][client::CLIENTS])
        for client in range(CLIENTS)
        for place, protocol in enumerate(PROTOCOLS)
    ]
    total = Report()
    with ThreadPoolExecutor(len(shares)) as pool:
        for report in pool.map(lambda share: _work(server, share[0], share[1], seed), shares):
            total.merge(report)
    return total


def _work(server: TritonServer, protocol: str, numbers: Sequence[int], seed: int) -> Report:
    make_client, module = PROTOCOLS[protocol]
    kinds = list(module.KINDS.items())
    report, client = Report(), make_client(server)
    try:
        for place, number in enumerate(numbers):
            name, make = kinds[number // 2 % len(kinds)]
            _send(client, protocol, name, make, f"{seed} {number}", report)
            if place % SOUND_EVERY == 0:
                _send(
                    client, protocol, "sound", module.make_sound, f"{seed} {number} sound", report
                )
            if server.poll() is not None:
                report.faults.append(
                    f"{protocol} {name} {number}: the server has ended, with status {server.poll()}"
                )
                break
    finally:
        client.close()
    return report


def _send(client: Any, protocol: str, kind: str, make: Any, seed: str, report: Report) -> None:
    case = make(Random(seed))
    try:
        outcome = client.send(case)
    except WrongAnswerError as error:
        outcome = "WRONG"
        report.faults.append(f"{protocol} {kind} of seed {seed!r}: {error}")
    report.add(protocol, kind, outcome)


def check_models(server: TritonServer) -> list[str]:
    """Return the faults of the models now: each must be ready and answer correctly over both
    protocols."""
    report = Report()
    for protocol, (make_client, module) in PROTOCOLS.items():
        client = make_client(server)
        for model in (*MODELS, *SLOW):
            _send(
                client,
                protocol,
                "sound",
                partial(module.make_sound, model=model),
                model.name,
                report,
            )
        client.close()
    failed = [
        f"{model} is not served: {reason}" for model, reason in server.failed_models().items()
    ]
    return report.faults + failed + ([] if server.is_ready() else ["the server is not ready"])


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of the server's processes: bytes of memory and open files of each, and bytes of its
    segments of /dev/shm."""

    resident: dict[str, int]
    files: dict[str, int]
    segments: dict[str, int]


def measure(server: TritonServer) -> Usage:
    """Return the present usage of the server, its stubs and their children."""
    names = _name_processes(server)
    resident = {name: resident_bytes(pid) for pid, name in names.items()}
    files = {name: len(os.listdir(f"/proc/{pid}/fd")) for pid, name in names.items()}
    return Usage(resident, files, shared_segments(server))


def _name_processes(server: TritonServer) -> dict[int, str]:
    """Return names by process id: the server, a stub by its instance, and a stub's child by its
    parent's."""
    living = {
        process.pid: process
        for process in iter_processes()
        if process.session == server.pid and process.state != "Z"
    }
    names = {
        pid: next((word for word in process.command_line if word.endswith("_0_0")), "")
        for pid, process in living.items()
    }
    names[server.pid] = "server"
    return {
        pid: name or f"child of {names.get(living[pid].parent, '?')}" for pid, name in names.items()
    }


def describe_growth(before: Usage, after: Usage, requests: int) -> list[str]:
    """Return how processes, memory, files and shared memory have changed over so many requests."""
    faults = []
    if before.resident.keys() != after.resident.keys():
        faults.append(f"the processes were {sorted(before.resident)}, are {sorted(after.resident)}")
    if before.segments != after.segments:
        faults.append(f"the segments of /dev/shm were {before.segments}, are {after.segments}")
    for name in before.resident.keys() & after.resident.keys():
        grown = after.resident[name] - before.resident[name]
        if grown > SLACK_BYTES + LEAK_BYTES * requests:
            faults.append(f"{name} has grown by {grown} bytes in {requests} requests")
        if after.files[name] > before.files[name] + 2 * CLIENTS:
            faults.append(f"{name} had {before.files[name]} open files, has {after.files[name]}")
    return faults


@contextmanager
def shared_region(server: TritonServer) -> Iterator[None]:
    """Let the requests of hostile_models.REGION name a region that there is, until the block is
    left."""
    file = Path(f"/dev/shm/{REGION}_{os.getpid()}")
    file.write_bytes(bytes(REGION_BYTES))
    try:
        client = HttpClient(server)
        body = json.dumps({"key": f"/{file.name}", "offset": 0, "byte_size": REGION_BYTES}).encode()
        path = f"/v2/systemsharedmemory/region/{REGION}/register"
        client.send(HttpCase(write_request(path, body), Wanted.EITHER))
        client.close()
        yield
    finally:
        file.unlink()
