"""Clients that send requests at a steady pace and check every answer against their own input.

They repeat nothing by themselves: a request without an answer is lost. Connections are kept, one
for each client.
"""

from __future__ import annotations

import http.client
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from server_processes import HOST
from tritonclient.utils import InferenceServerException, np_to_triton_dtype
from waiting import PATIENCE_SECONDS, wait_until

from fleet.models import Array, Model

CLIENTS = 16
"""Number of clients of each way."""
PER_SECOND = 4.0
"""Requests of each client: four ways of 16 clients make 256 a second, which leaves two cores half
idle."""
DEADLINE_SECONDS = 20
_JSON_LENGTH = "Inference-Header-Content-Length"
_LOSS_LETTERS = 200


@dataclass(frozen=True, slots=True)
class Way:
    """Path of clients to the servers: what is in between, the protocol ("http" or "grpc"), and the
    port."""

    through: str
    protocol: str
    port: int

    @property
    def name(self) -> str:
        """Name of the way in reports."""
        return f"{self.through} {self.protocol}"


@dataclass(frozen=True, slots=True)
class Question:
    """A model for requests, and the version; "" leaves it to the server."""

    model: Model
    version: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one request: the version that answered, the reason of the loss, or the fault of
    the answer."""

    client: int
    question: Question
    started: float
    seconds: float
    version: int | None = None
    loss: str = ""
    wrong: str = ""


@dataclass
class Tally:
    """The outcomes of the clients of one way."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def sent(self) -> int:
        """Requests that have come to an end."""
        return len(self.outcomes)

    @property
    def losses(self) -> list[Outcome]:
        """Requests without an answer."""
        return [outcome for outcome in self.outcomes if outcome.loss]

    @property
    def wrongs(self) -> list[Outcome]:
        """Answers that are not those to their requests."""
        return [outcome for outcome in self.outcomes if outcome.wrong]

    @property
    def most_lost_by_a_client(self) -> int:
        """The losses of the client that has most of them."""
        return max(Counter(outcome.client for outcome in self.losses).values(), default=0)

    @property
    def longest_seconds(self) -> float:
        """The longest that an answer took."""
        return max((outcome.seconds for outcome in self.outcomes if not outcome.loss), default=0)

    def versions_between(self, start: float, end: float) -> set[int]:
        """Return the versions that answered requests started in this time."""
        return {o.version for o in self.outcomes if o.version and start <= o.started <= end}

    def describe_losses(self) -> str:
        """Return the number of losses for each reason, as text."""
        reasons = Counter(
            f"{o.question.model.name}: {o.loss or o.wrong}" for o in self.losses + self.wrongs
        )
        return "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(5))


class Client(Protocol):
    """One client: `ask` returns the answer's `y`, or raises OSError, HTTPException or
    InferenceServerException."""

    def ask(self, question: Question, x: Array) -> Array:
        """Send one request and wait for its answer."""

    def close(self) -> None:
        """End the connection."""


class HttpClient:
    """Client on the standard library's connection, which sends nothing twice; it reconnects after
    an error."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=DEADLINE_SECONDS)

    def ask(self, question: Question, x: Array) -> Array:
        """Send one request and wait for its answer."""
        tensor = httpclient.InferInput("x", x.shape, np_to_triton_dtype(x.dtype))
        tensor.set_data_from_numpy(x)
        body, length = httpclient.InferenceServerClient.generate_request_body([tensor])
        version = f"/versions/{question.version}" if question.version else ""
        headers = {_JSON_LENGTH: str(length)} if length is not None else {}
        try:
            self._connection.request(
                "POST", f"/v2/models/{question.model.name}{version}/infer", body, headers
            )
            answer = self._connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
        if answer.status != http.client.OK:
            raise InferenceServerException(data.decode(errors="replace"), str(answer.status))
        header = answer.getheader(_JSON_LENGTH)
        result = httpclient.InferenceServerClient.parse_response_body(
            data, header_length=int(header) if header else None
        )
        return read_output(result)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def make_grpc_client(port: int) -> grpcclient.InferenceServerClient:
    """Return a client with a separate connection that sends nothing twice."""
    options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    return grpcclient.InferenceServerClient(f"{HOST}:{port}", channel_args=options)


def make_grpc_input(x: Array) -> grpcclient.InferInput:
    """Return `x` as a request's only input."""
    tensor = grpcclient.InferInput("x", x.shape, np_to_triton_dtype(x.dtype))
    tensor.set_data_from_numpy(x)
    return tensor


class GrpcClient:
    """Client with a separate channel; gRPC's own repetition of calls that were never sent is
    off."""

    def __init__(self, port: int) -> None:
        self._client = make_grpc_client(port)

    def ask(self, question: Question, x: Array) -> Array:
        """Send one request and wait for its answer."""
        result = self._client.infer(
            question.model.name,
            [make_grpc_input(x)],
            model_version=question.version,
            client_timeout=DEADLINE_SECONDS,
        )
        return read_output(result)

    def close(self) -> None:
        """End the connection."""
        self._client.close()


CLIENT_OF: dict[str, Callable[[int], Client]] = {"http": HttpClient, "grpc": GrpcClient}
"""Client class by protocol."""


class Traffic:
    """Clients of all ways that send requests while the block lasts; `tallies` has the outcomes by
    way.

    Each client sends the questions in turn, at its own times. These do not depend on the duration
    of answers, unless that exceeds the pause. On exit every client has got an answer to its last
    question.
    """

    def __init__(
        self,
        ways: Sequence[Way],
        questions: Sequence[Question],
        *,
        clients: int = CLIENTS,
        per_second: float = PER_SECOND,
    ) -> None:
        self.tallies = {way: Tally() for way in ways}
        self._questions = questions
        self._pause = 1 / per_second
        self._ended = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._work, args=(way, number), daemon=True)
            for way in ways
            for number in range(clients)
        ]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(DEADLINE_SECONDS + PATIENCE_SECONDS)
        assert not any(thread.is_alive() for thread in self._threads), (
            "a client outlasted its own deadline"
        )
        if self._failures:
            raise self._failures[0]

    def wait_for_answers(self, count: int = CLIENTS) -> None:
        """Wait until each way has `count` more right answers."""
        before = {way: _count_right(tally) for way, tally in self.tallies.items()}
        wait_until(
            lambda: (
                self._failures
                or all(
                    _count_right(tally) >= before[way] + count
                    for way, tally in self.tallies.items()
                )
            ),
            f"{count} more right answers of {[way.name for way in self.tallies]}; lost: "
            f"{self.describe()}",
        )

    def describe(self) -> str:
        """Return the lost and wrong answers as text."""
        return ", ".join(
            f"{way.name} {len(tally.losses)} lost, {len(tally.wrongs)} wrong of {tally.sent} "
            f"({tally.describe_losses()})"
            for way, tally in self.tallies.items()
        )

    def _work(self, way: Way, number: int) -> None:
        outcomes = self.tallies[way].outcomes
        questions = itertools.islice(itertools.cycle(self._questions), number, None)
        source = random.Random()
        try:
            with closing(CLIENT_OF[way.protocol](way.port)) as client:
                due = time.monotonic() + source.random() * self._pause
                while not self._ended.wait(max(0, due - time.monotonic())):
                    outcomes.append(_ask(client, number, next(questions), source))
                    due = max(due + self._pause, time.monotonic())
        except BaseException as failure:  # noqa: BLE001  raised in the test's thread
            self._failures.append(failure)


def _ask(client: Client, number: int, question: Question, source: random.Random) -> Outcome:
    x = question.model.draw(source)
    started = time.monotonic()
    y: Array | Exception
    try:
        y = client.ask(question, x)
    except (OSError, http.client.HTTPException, InferenceServerException) as error:
        y = error
    return judge(number, question, x, y, started)


def judge(
    client: int, question: Question, x: Array, y: Array | Exception, started: float
) -> Outcome:
    """Return the outcome of a request that has just ended with this answer or error."""
    seconds = time.monotonic() - started
    if isinstance(y, Exception):
        return Outcome(
            client, question, started, seconds, loss=f"{type(y).__name__}: {y}"[:_LOSS_LETTERS]
        )
    version = question.model.find_version(x, y)
    wrong = ""
    if version is None or question.version not in ("", str(version)):
        wrong = (
            f"asked for version {question.version or 'any'}, {x[0, :4]} was answered "
            f"{y.ravel()[:4]}"
        )
    return Outcome(client, question, started, seconds, version, wrong=wrong)


def read_output(result: Any) -> Array:
    """Return an answer's `y`; empty where it has none."""
    y = result.as_numpy("y")
    return np.empty(0) if y is None else np.asarray(y)


def _count_right(tally: Tally) -> int:
    return tally.sent - len(tally.losses) - len(tally.wrongs)
