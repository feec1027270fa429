"""More gRPC requests with deadlines than a server can compute, each answer checked against its own
input."""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from functools import partial

import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from fleet.clients import Question, Tally, judge, make_grpc_client, make_grpc_input, read_output
from fleet.models import Array

DEADLINE_SECONDS = 1.0
NUM_CLIENTS = 4
PAUSE_SECONDS = 0.005
MAX_END_SECONDS = 10 * DEADLINE_SECONDS


def flood(port: int, question: Question, per_second: float, seconds: float) -> Tally:
    """Send requests at this rate, whatever becomes of those before; return once each has ended."""
    tally, source, ended = Tally(), random.Random(), threading.Semaphore(0)
    start, sent = time.monotonic(), 0
    with ExitStack() as closing:
        clients = [make_grpc_client(port) for _ in range(NUM_CLIENTS)]
        for client in clients:
            closing.callback(client.close)
        while (passed := time.monotonic() - start) < seconds:
            for number in range(sent, int(passed * per_second)):
                x = question.model.draw(source)
                clients[number % NUM_CLIENTS].async_infer(
                    question.model.name,
                    [make_grpc_input(x)],
                    partial(_count, tally, ended, number, question, x, time.monotonic()),
                    client_timeout=DEADLINE_SECONDS,
                )
                sent = number + 1
            time.sleep(PAUSE_SECONDS)
        for _ in range(sent):
            assert ended.acquire(timeout=MAX_END_SECONDS), "a call outlasted its own deadline"
    return tally


def _count(
    tally: Tally,
    ended: threading.Semaphore,
    number: int,
    question: Question,
    x: Array,
    started: float,
    result: grpcclient.InferResult | None,
    error: InferenceServerException | None,
) -> None:
    """Record the outcome of a request, in the client's thread."""
    y = error if error is not None else read_output(result)
    tally.outcomes.append(judge(number, question, x, y, started))
    ended.release()
