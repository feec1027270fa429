"""Counters of all processes of a server, in shared memory, so that any process can answer for all.

The names are TensorFlow Serving's own, so that its dashboards find them, and the backend's, as on
Triton's page.
"""

from __future__ import annotations

import bisect
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from io import FileIO

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from triton_poplar.statistics import ERROR_KINDS, ERRORS, METRICS, Statistics

from poplar_triton.tfserving.models import Code

Observe = Callable[[str, str, str, Code, float], None]
"""Function that is called once per request: model, API, entry point, result code, seconds."""

APIS, ENTRY_POINTS = ("Predict", "GetModelMetadata"), ("GRPC", "REST")
_BUCKETS = tuple(10 * 1.8**power for power in range(33))
"""Upper bounds of the buckets in microseconds: TensorFlow Serving's own."""
_REQUESTS, _LATENCY = ":tensorflow:serving:request_count", ":tensorflow:serving:request_latency"
_NUM_LATENCY = len(_BUCKETS) + 2
"""Number of counters for one API and entry point: one for each bucket, one for longer requests, and
the sum."""
_LATENCIES = len(Code)
_STATISTICS = _LATENCIES + len(APIS) * len(ENTRY_POINTS) * _NUM_LATENCY
_ERRORS = _STATISTICS + len(METRICS)
_MALFORMED = _ERRORS + len(ERROR_KINDS)
_SLOTS = _MALFORMED + 1
"""Number of counters of a model: requests by code, latencies, the backend's sums, and its errors by
kind. The last one counts requests that are not HTTP, for the model without a name."""
_MALFORMED_NAME = "poplar_malformed_requests_total"
_MICROSECONDS = 1e6


def make_memory(models: Sequence[str], processes: int) -> FileIO:
    """Return a file in memory for the counters of `processes` processes, which inherit it."""
    memory = FileIO(os.memfd_create("tfserving counters"), "r+")
    memory.truncate(processes * (1 + len(models)) * _SLOTS * np.dtype(np.float64).itemsize)
    return memory


class Counters:
    """Counters of all processes of a server, in `memory`; process `index` writes its own. Models
    that are not among `models` count as one without a name, so that names from untrusted clients
    are not kept."""

    def __init__(
        self, memory: FileIO, models: Sequence[str], processes: int, index: int = 0
    ) -> None:
        self._models = ["", *models]
        mapped = mmap.mmap(memory.fileno(), 0)
        self._all = np.frombuffer(mapped).reshape(processes, len(self._models), _SLOTS)
        self._own = memoryview(mapped).cast("d")
        self._places = {
            name: (index * len(self._models) + place) * _SLOTS
            for place, name in enumerate(self._models)
        }
        self._lock = threading.Lock()
        self._earlier: dict[str, list[float]] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def observe(self, model: str, api: str, entry_point: str, code: Code, seconds: float) -> None:
        """Count a request, and its duration if it was answered with results."""
        own, place = self._own, self._places.get(model, self._places[""])
        kind = APIS.index(api) * len(ENTRY_POINTS) + ENTRY_POINTS.index(entry_point)
        latencies = place + _LATENCIES + kind * _NUM_LATENCY
        us = seconds * _MICROSECONDS
        with self._lock:
            own[place + code] += 1
            if code is Code.OK:
                own[latencies + bisect.bisect_left(_BUCKETS, us)] += 1
                own[latencies + _NUM_LATENCY - 1] += us

    def count_malformed(self) -> None:
        """Count a request that is not valid HTTP."""
        with self._lock:
            self._own[self._places[""] + _MALFORMED] += 1

    def publish(self, model: str, statistics: Sequence[Statistics]) -> None:
        """Update the backend's sums of a model: those of all its versions that this process has
        loaded. The counts of an ended process that this one replaces stay."""
        values = [
            sum(metric.value(statistic) for statistic in statistics) for metric in METRICS
        ] + [sum(statistic.errors[kind] for statistic in statistics) for kind in ERROR_KINDS]
        place = self._places[model] + _STATISTICS
        earlier = self._earlier.setdefault(model, list(self._own[place : place + len(values)]))
        for offset, value in enumerate(values):
            counts = offset >= len(METRICS) or METRICS[offset].is_counter
            self._own[place + offset] = value + (earlier[offset] if counts else 0)

    def write_page(self) -> bytes:
        """Return the page for Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the time series, as prometheus_client requires."""
        sums = self._all.sum(axis=0)
        # "unknown", because for a counter prometheus_client would change the name in the TYPE line.
        requests = Metric(_REQUESTS, "Requests, by result", "unknown")
        latency = HistogramMetricFamily(
            _LATENCY,
            "Microseconds of the requests answered with results",
            labels=["model_name", "API", "entrypoint"],
        )
        for name, numbers in zip(self._models, sums, strict=True):
            for code in Code:
                if count := numbers[code]:
                    requests.add_sample(_REQUESTS, {"model_name": name, "status": code.name}, count)
            _add_latencies(latency, name, numbers)
        yield requests
        yield latency
        yield from self._collect_statistics(sums)

    def _collect_statistics(
        self, sums: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    ) -> Iterator[Metric]:
        for offset, metric in enumerate(METRICS):
            family = Metric(metric.name, metric.help, "unknown" if metric.is_counter else "gauge")
            for name, numbers in zip(self._models[1:], sums[1:], strict=True):
                family.add_sample(metric.name, {"model": name}, numbers[_STATISTICS + offset])
            yield family
        errors = Metric(ERRORS.name, ERRORS.help, "unknown")
        for name, numbers in zip(self._models[1:], sums[1:], strict=True):
            for offset, kind in enumerate(ERROR_KINDS):
                errors.add_sample(
                    ERRORS.name, {"model": name, "kind": kind}, numbers[_ERRORS + offset]
                )
        yield errors
        malformed = Metric(
            _MALFORMED_NAME, "Requests to the REST port that are not HTTP", "unknown"
        )
        malformed.add_sample(_MALFORMED_NAME, {}, sums[0][_MALFORMED])
        yield malformed


def _add_latencies(
    family: HistogramMetricFamily,
    model: str,
    numbers: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> None:
    for kind in range(len(APIS) * len(ENTRY_POINTS)):
        place = _LATENCIES + kind * _NUM_LATENCY
        counts = numbers[place : place + _NUM_LATENCY - 1].cumsum()
        if counts[-1]:
            api, entry_point = divmod(kind, len(ENTRY_POINTS))
            bounds = [*(f"{bound:g}" for bound in _BUCKETS), "+Inf"]
            family.add_metric(
                [model, APIS[api], ENTRY_POINTS[entry_point]],
                list(zip(bounds, counts, strict=True)),
                numbers[place + _NUM_LATENCY - 1],
            )
