"""Counters of an instance: plain numbers that are cheap to count, and the table of metrics made of
them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Triton completes configurations in a process that must not load ONNX Runtime
    from model_runtime import RunCost

DEFAULT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Default upper bounds of the histograms' buckets, in seconds."""

ERROR_KINDS = tuple("bad_request run timeout device_lost cancelled stopped drained expired".split())
"""Kinds of errors, by which the metrics count them.

- bad_request: refused before it ran
- run: failed in its run, for instance through an index outside a table
- timeout: its run took longer than the limit
- device_lost: the engine's process died
- cancelled: by the client, while it waited or was computed
- stopped: the model was unloaded first
- drained: refused with a backlog under overload
- expired: waited longer in the backend than its timeout, or than the queue policy's
"""


class Histogram:
    """Durations by bucket. `bounds` are the buckets' upper bounds in seconds, ascending. Each bound
    belongs to its bucket, as Prometheus' `le` says. Longer durations than the last bound are
    counted, too."""

    __slots__ = ("_bounds_ns", "_counts", "bounds", "sum_ns")

    def __init__(self, bounds: tuple[float, ...] = DEFAULT_BUCKETS) -> None:
        self.bounds = bounds
        self._bounds_ns = [round(bound * 1e9) for bound in bounds]
        self._counts = [0] * (len(bounds) + 1)
        self.sum_ns = 0

    def add(self, ns: int) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds_ns, ns)] += 1
        self.sum_ns += ns

    def iter_buckets(self) -> Iterator[tuple[str, int]]:
        """Yield the label `le` of each bucket and how many durations are at most that long.

        The bucket of the longest comes first. So a duration that is counted meanwhile never makes a
        bucket larger than a longer one.
        """
        bounds = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return iter([*zip(bounds, accumulate(self._counts.copy()), strict=True)][::-1])


@dataclass(slots=True)
class Statistics:
    """Sums since the instance was created. `capacity` is the number of rows of a full run."""

    capacity: int
    batches: int = 0
    late_batches: int = 0
    rows: int = 0
    flushes: int = 0
    requests: int = 0
    queue_wait_ns: int = 0
    compute_ns: int = 0
    execution_ns: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    queue_depth: int = 0
    ipu_cycles: int = 0
    ipu_seconds: float = 0.0
    ipu_modelled_seconds: float = 0.0
    latency: Histogram = field(default_factory=Histogram)
    waiting: Histogram = field(default_factory=Histogram)

    def add_request(self, arrived_ns: int, started_ns: int, answered_ns: int, error: str) -> None:
        """Count an answered request. `started_ns` is 0 if none of its rows was read, `error` its
        kind of error, or empty."""
        self.requests += 1
        waited_ns = (started_ns or answered_ns) - arrived_ns
        if started_ns:
            self.queue_wait_ns += waited_ns
        if error:
            self.errors[error] += 1
        else:
            self.latency.add(answered_ns - arrived_ns)
        if error != "bad_request":
            self.waiting.add(waited_ns)

    def add_run(
        self, start_ns: int, end_ns: int, rows: int, lateness_ns: int, cost: RunCost
    ) -> None:
        """Count a run of the main programs. `lateness_ns` is how late it was if runs are paced."""
        self.batches += 1
        self.rows += rows
        self.compute_ns += end_ns - start_ns
        self.ipu_cycles += cost.cycles
        self.ipu_seconds += cost.seconds
        self.ipu_modelled_seconds += cost.modelled_seconds
        if rows < self.capacity:
            self.flushes += 1
        if lateness_ns:
            self.late_batches += 1


@dataclass(frozen=True, slots=True)
class Metric:
    """Prometheus metric of an instance, labelled with model, version, instance, process, numerics
    (sim_numerics) and kernels (what computes half precision)."""

    name: str
    help: str
    value: Callable[[Statistics], float]
    is_counter: bool = True


METRICS = (
    Metric(
        "poplar_requests_total", "Requests answered, with results or an error", lambda s: s.requests
    ),
    Metric("poplar_batches_total", "Runs of the main program", lambda s: s.batches),
    Metric("poplar_rows_total", "Rows computed", lambda s: s.rows),
    Metric(
        "poplar_padded_rows_total",
        "Rows of the compiled batches that contained no row of a request",
        lambda s: s.batches * s.capacity - s.rows,
    ),
    Metric("poplar_flushes_total", "Runs with an incomplete batch", lambda s: s.flushes),
    Metric(
        "poplar_queue_rows",
        "Rows that wait for a run now",
        lambda s: s.queue_depth,
        is_counter=False,
    ),
    Metric(
        "poplar_queue_wait_seconds_total",
        "Time that requests waited in the backend's queues until their first row was read",
        lambda s: s.queue_wait_ns / 1e9,
    ),
    Metric(
        "poplar_compute_seconds_total",
        "Wall-clock time of the runs on the CPU",
        lambda s: s.compute_ns / 1e9,
    ),
    Metric(
        "poplar_execution_seconds_total",
        "Time from the arrival of each call's requests at the backend to the last of their "
        "responses",
        lambda s: s.execution_ns / 1e9,
    ),
    Metric("poplar_ipu_cycles_total", "Modelled IPU cycles", lambda s: s.ipu_cycles),
    Metric("poplar_ipu_seconds_total", "Modelled IPU time", lambda s: s.ipu_seconds),
    Metric(
        "poplar_modelled_seconds_total",
        "Modelled time of the IPU and the host transfers, as used by `sim_timing` paced",
        lambda s: s.ipu_modelled_seconds,
    ),
    Metric(
        "poplar_late_batches_total",
        "Runs whose rows the CPU computed only after their modelled end; 0 unless `sim_timing` is "
        "paced",
        lambda s: s.late_batches,
    ),
)
ERRORS = Metric(
    "poplar_errors_total", "Requests answered with an error, by kind", lambda s: s.errors.total()
)


@dataclass(frozen=True, slots=True)
class HistogramMetric:
    """Prometheus histogram of an instance: counters `NAME_bucket` with a label `le`, `NAME_sum` in
    seconds, and `NAME_count`."""

    name: str
    help: str
    value: Callable[[Statistics], Histogram]

    def series_names(self) -> tuple[str, str, str]:
        """Return the names of the histogram's buckets, sum and count."""
        return f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count"


HISTOGRAMS = (
    HistogramMetric(
        "poplar_request_seconds",
        "Time from a request's arrival at the backend to its response, for requests answered with "
        "results",
        lambda s: s.latency,
    ),
    HistogramMetric(
        "poplar_request_queue_seconds",
        "Time that a request waited in the backend until its run, or until it was rejected",
        lambda s: s.waiting,
    ),
)
LOAD = ("poplar_load_seconds", "Load time of the instance")
BUILD_INFO = (
    "poplar_build_info",
    "Always 1; labels: version of this software, versions of onnxruntime and python",
)


def describe_metrics() -> str:
    """Return the table for the documentation."""
    rows = ["| metric | kind | meaning |", "| --- | --- | --- |"]
    rows += [
        f"| `{m.name}` | {'counter' if m.is_counter else 'gauge'} | {m.help} |" for m in METRICS
    ]
    rows.append(f"| `{ERRORS.name}` | counter | {ERRORS.help}: {', '.join(ERROR_KINDS)} |")
    rows += [f"| `{m.name}` | histogram | {m.help} |" for m in HISTOGRAMS]
    rows += [f"| `{name}` | gauge | {text} |" for name, text in (LOAD, BUILD_INFO)]
    return "\n".join(rows)
