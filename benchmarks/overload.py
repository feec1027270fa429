"""Goodput under overload: answers in time over capacity, with more requests offered than the server
can compute.

The model's time a batch is known (`sim_timing` paced); it runs with `drain_backlog` and without.
Its capacity is the throughput of closed-loop clients without deadlines, none of which may be
rejected. Then gRPC clients with deadlines offer a multiple of it in an open loop: each request is
sent at its time, regardless of the earlier ones.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import numpy as np
import report
import repository
import synthetic
from rich.table import Table
from rounds import parse_options
from tritonclient.grpc import service_pb2, service_pb2_grpc

STEPS, BATCH_SIZE = 10_000, 2
"""Steps of a run, and its rows: they take the modelled chip 28 ms, and the CPU less."""
PACED = {"sim_timing": "paced", "sim_threads": "1"}
GOALS = {3.0: 0.9, 10.0: 0.8}
"""Goodput over capacity, by offered load over capacity."""
SETTLING_SECONDS = 4.0
"""Time until the queue is as long as the deadlines; earlier answers are not counted."""
NUM_CHANNELS = 4


@dataclass(frozen=True, slots=True)
class Found:
    """Outcomes of the requests sent in the counted window, by status code."""

    codes: Counter[str]
    seconds: float

    @property
    def per_second(self) -> float:
        """Answers in time."""
        return self.codes["OK"] / self.seconds


class Sender(Protocol):
    """Sender of requests; its result has the interface of a gRPC call."""

    def send(self, number: int, deadline_seconds: float | None) -> Any:
        """Return a call's future; a call without an answer in time ends as something other than
        OK."""


class Client:
    """Sends requests of one row over a few connections."""

    def __init__(self, url: str, model: str, width: int = 16) -> None:
        self._channels = [
            grpc.insecure_channel(url, [("grpc.use_local_subchannel_pool", 1)])
            for _ in range(NUM_CHANNELS)
        ]
        self._stubs = [
            service_pb2_grpc.GRPCInferenceServiceStub(channel) for channel in self._channels
        ]
        self._request = service_pb2.ModelInferRequest(
            model_name=model,
            inputs=[{"name": "x", "datatype": "FP32", "shape": [1, width]}],
            raw_input_contents=[np.arange(width, dtype=np.float32).tobytes()],
        )

    def send(self, number: int, deadline_seconds: float | None) -> Any:
        """Return a call's future; a call without an answer in time ends as DEADLINE_EXCEEDED."""
        return self._stubs[number % NUM_CHANNELS].ModelInfer.future(
            self._request, timeout=deadline_seconds
        )

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            channel.close()


def offer(
    client: Sender,
    per_second: float,
    seconds: float,
    deadlines: Sequence[float],
    settling_seconds: float = SETTLING_SECONDS,
) -> Found:
    """Offer `per_second` requests a second, for an uncounted while and then for `seconds`.

    Answers in time are counted by the time of the answer. Deadlines in seconds take turns.
    """
    start = time.monotonic()
    counted_from, end = start + settling_seconds, start + settling_seconds + seconds
    codes: Counter[str] = Counter()
    lock, calls = threading.Lock(), []

    def count(call: Any) -> None:
        if counted_from <= time.monotonic() < end:
            with lock:
                codes[call.code().name] += 1

    number = 0
    while (now := time.monotonic()) < end:
        due = int((now - start) * per_second)
        for number in range(number, due):  # noqa: B020  continued where the last round ended
            call = client.send(number, deadlines[number % len(deadlines)])
            call.add_done_callback(count)
            calls.append(call)
        number = max(number, due)
        time.sleep(0.002)
    _await(calls)
    return Found(codes, seconds)


def _await(calls: Iterable[Any]) -> None:
    for call in calls:
        call.exception()


def load_closed(client: Sender, num_clients: int, seconds: float) -> Found:
    """Run `num_clients` clients without deadlines, which send a request after each answer."""
    codes: Counter[str] = Counter()
    lock = threading.Lock()
    end = time.monotonic() + seconds

    def run(number: int) -> None:
        while time.monotonic() < end:
            call = client.send(number, None)
            call.exception()
            with lock:
                codes[call.code().name] += 1

    threads = [threading.Thread(target=run, args=[number]) for number in range(num_clients)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Found(codes, time.monotonic() - start)


def write_models(models: Path) -> None:
    """Write the model, and its twin that drains nothing."""
    folder = models / "original"
    repository.write_poplar_model(folder, synthetic.make_steps(STEPS), BATCH_SIZE)
    repository.write_twin(models / "drained", folder, **PACED)
    repository.write_twin(models / "undrained", folder, drain_backlog="0", **PACED)
    for mode in ("drained", "undrained"):
        repository.write_twin(
            models / f"{mode}_asynchronous", models / mode, synchronous_execution="0"
        )


def measure(url: str, model: str, options: argparse.Namespace, table: Table) -> None:
    """Measure the model and add a row per load."""
    client = Client(url, model)
    try:
        load_closed(client, options.clients, 1.0)
        capacity = load_closed(client, options.clients, options.seconds)
        _add(table, model, f"{options.clients} clients without deadlines", capacity, 1.0, None)
        for factor in options.factors:
            offered = offer(
                client, factor * capacity.per_second, options.seconds, options.deadlines
            )
            ratio = offered.per_second / capacity.per_second
            goal = (
                GOALS.get(factor)
                if model.startswith("drained") and len(options.deadlines) == 1
                else None
            )
            deadlines = ", ".join(f"{deadline:g}" for deadline in options.deadlines)
            _add(table, model, f"{factor:g} x, {deadlines} s deadlines", offered, ratio, goal)
    finally:
        client.close()


def _add(
    table: Table, model: str, load: str, found: Found, ratio: float, goal: float | None
) -> None:
    refused = ", ".join(
        f"{name} {count}" for name, count in sorted(found.codes.items()) if name != "OK"
    )
    met = "" if goal is None else f">= {goal:.2f}" + ("" if ratio >= goal else " MISSED")
    table.add_row(model, load, f"{found.per_second:.1f}", f"{ratio:.2f}", met, refused)


def main() -> None:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--deadlines",
        type=float,
        nargs="+",
        default=[2.0],
        help="clients' deadlines in s (default 2)",
    )
    parser.add_argument("--clients", type=int, default=64, help="closed-loop clients (default 64)")
    parser.add_argument(
        "--factors", type=float, nargs="+", default=[3.0, 10.0], help="offered load over capacity"
    )
    parser.add_argument(
        "--models", nargs="+", default=["drained", "undrained", "drained_asynchronous"]
    )
    options = parse_options(parser, rounds=1, seconds=12.0, quick_rounds=1, quick_seconds=4.0)
    console = report.make_console()
    table = Table("model", "load", "answers/s in time", "of capacity", "goal", "others")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder / "models")
        with repository.serve(folder / "models", folder / "log") as server:
            for model in options.models:
                measure(server.grpc_url, model, options, table)
        log = (folder / "log").read_text()
    console.print(table)
    console.print(
        *[line for line in log.splitlines() if "overload" in line], sep="\n", markup=False
    )


if __name__ == "__main__":
    main()
