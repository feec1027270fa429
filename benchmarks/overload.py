"""Goodput under overload: answers in time over capacity, with more offered than the server can compute.

One model whose time a batch is known (`sim_timing` paced), with `drain_backlog` and without. Its capacity is
what closed-loop clients without deadlines get, none of whom may be refused. Then gRPC clients with deadlines
offer a multiple of it in an open loop: each request is sent at its time, whatever became of those before.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import report
import repository
import synthetic
from rich.table import Table
from tritonclient.grpc import service_pb2, service_pb2_grpc

STEPS, BATCH_SIZE = 10_000, 2
"""The steps of a run of so many rows take the modelled chip 28 ms, and the CPU less."""
PACED = {"sim_timing": "paced", "sim_threads": "1"}
GOALS = {3.0: 0.9, 10.0: 0.8}
"""Goodput over capacity, by offered load over capacity."""
SETTLING_SECONDS = 4.0
"""Until the queue is as long as the deadlines; what is answered before is not counted."""
NUM_CHANNELS = 4


@dataclass(frozen=True, slots=True)
class Found:
    """What became of requests, by status code, of those sent in the counted window."""

    codes: Counter[str]
    seconds: float

    @property
    def per_second(self) -> float:
        """Answers in time."""
        return self.codes["OK"] / self.seconds


class Client:
    """Sends requests of one row over a few connections."""

    def __init__(self, url: str, model: str) -> None:
        self._channels = [
            grpc.insecure_channel(url, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(NUM_CHANNELS)
        ]
        self._stubs = [service_pb2_grpc.GRPCInferenceServiceStub(each) for each in self._channels]
        self._request = service_pb2.ModelInferRequest(
            model_name=model,
            inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 16]}],
            raw_input_contents=[np.arange(16, dtype=np.float32).tobytes()],
        )

    def send(self, number: int, deadline_seconds: float | None) -> Any:
        """A call's future; one without an answer in time ends as DEADLINE_EXCEEDED."""
        return self._stubs[number % NUM_CHANNELS].ModelInfer.future(self._request, timeout=deadline_seconds)

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            channel.close()


def offer(client: Client, per_second: float, seconds: float, deadline_seconds: float) -> Found:
    """Offer so many requests a second for SETTLING_SECONDS and then `seconds`, of which what was answered in
    time is counted by the time of the answer."""
    start = time.monotonic()
    counted_from, end = start + SETTLING_SECONDS, start + SETTLING_SECONDS + seconds
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
            call = client.send(number, deadline_seconds)
            call.add_done_callback(count)
            calls.append(call)
        number = max(number, due)
        time.sleep(0.002)
    _await(calls)
    return Found(codes, seconds)


def _await(calls: Iterable[Any]) -> None:
    for call in calls:
        call.exception()


def load_closed(client: Client, num_clients: int, seconds: float) -> Found:
    """Have so many clients without deadlines send a request each time that they have an answer."""
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
    """The model, and its twin that drains nothing."""
    folder = models / "original"
    repository.write_poplar_model(folder, synthetic.make_steps(STEPS), BATCH_SIZE)
    repository.write_twin(models / "drained", folder, **PACED)
    repository.write_twin(models / "undrained", folder, drain_backlog="0", **PACED)
    for mode in ("drained", "undrained"):
        repository.write_twin(models / f"{mode}_asynchronous", models / mode, synchronous_execution="0")


def measure(url: str, model: str, options: argparse.Namespace, table: Table) -> None:
    """A row per load."""
    client = Client(url, model)
    try:
        load_closed(client, options.clients, 1.0)
        capacity = load_closed(client, options.clients, options.seconds)
        _add(table, model, f"{options.clients} clients without deadlines", capacity, 1.0, None)
        for factor in options.factors:
            found = offer(client, factor * capacity.per_second, options.seconds, options.deadline)
            ratio = found.per_second / capacity.per_second
            goal = GOALS.get(factor) if model.startswith("drained") else None
            _add(table, model, f"{factor:g} x, {options.deadline:g} s deadlines", found, ratio, goal)
    finally:
        client.close()


def _add(table: Table, model: str, load: str, found: Found, ratio: float, goal: float | None) -> None:
    refused = ", ".join(f"{name} {count}" for name, count in sorted(found.codes.items()) if name != "OK")
    met = "" if goal is None else f">= {goal:.2f}" + ("" if ratio >= goal else " MISSED")
    table.add_row(model, load, f"{found.per_second:.1f}", f"{ratio:.2f}", met, refused)


def main() -> None:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=12.0, help="counted of each load (default 12)")
    parser.add_argument("--deadline", type=float, default=2.0, help="clients' deadline in s (default 2)")
    parser.add_argument("--clients", type=int, default=64, help="closed-loop clients (default 64)")
    parser.add_argument(
        "--factors", type=float, nargs="+", default=[3.0, 10.0], help="offered load over capacity"
    )
    parser.add_argument("--models", nargs="+", default=["drained", "undrained", "drained_asynchronous"])
    options = parser.parse_args()
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
    console.print(*[line for line in log.splitlines() if "overload" in line], sep="\n", markup=False)


if __name__ == "__main__":
    main()
