"""What an instance has done: plain numbers that cost next to nothing to count, and the table of metrics made
of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

ERROR_KINDS = ("bad_request", "run", "timeout", "device_lost", "cancelled", "stopped", "drained")
"""bad_request: refused before it ran. run: it failed in its run, as an index outside a table does. timeout:
its run took longer than the limit. device_lost: the engine's process died. cancelled: by the client, while it
waited. stopped: the model was unloaded first. drained: refused with a backlog under overload."""


@dataclass(slots=True)
class Statistics:
    """Sums since the instance was created. `capacity`, `cycles`, `seconds` and `modelled_seconds` are those
    of one run of its session: of the last one, where they differ."""

    capacity: int
    cycles: int
    seconds: float
    modelled_seconds: float
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

    def add_run(self, start_ns: int, end_ns: int, rows: int, lateness_ns: int) -> None:
        """Count a run of the main programs, late by so much where it is paced."""
        self.batches += 1
        self.rows += rows
        self.compute_ns += end_ns - start_ns
        self.ipu_cycles += self.cycles
        self.ipu_seconds += self.seconds
        self.ipu_modelled_seconds += self.modelled_seconds
        if rows < self.capacity:
            self.flushes += 1
        if lateness_ns:
            self.late_batches += 1


@dataclass(frozen=True, slots=True)
class Metric:
    """A Prometheus metric of an instance, labelled with model, version, instance, process, numerics
    (sim_numerics) and kernels (what computes half precision)."""

    name: str
    help: str
    value: Callable[[Statistics], float]
    is_counter: bool = True


METRICS = (
    Metric("poplar_requests_total", "Requests answered, with results or an error", lambda s: s.requests),
    Metric("poplar_batches_total", "Runs of the main program", lambda s: s.batches),
    Metric("poplar_rows_total", "Rows computed", lambda s: s.rows),
    Metric(
        "poplar_padded_rows_total",
        "Rows of the compiled batches that held no request's row",
        lambda s: s.batches * s.capacity - s.rows,
    ),
    Metric("poplar_flushes_total", "Runs with an incomplete batch", lambda s: s.flushes),
    Metric("poplar_queue_rows", "Rows waiting for a run now", lambda s: s.queue_depth, is_counter=False),
    Metric(
        "poplar_queue_wait_seconds_total",
        "Time that requests waited in the backend's queues for the first of their rows to be read",
        lambda s: s.queue_wait_ns / 1e9,
    ),
    Metric("poplar_compute_seconds_total", "Time that runs took on the CPU", lambda s: s.compute_ns / 1e9),
    Metric(
        "poplar_execution_seconds_total",
        "Time from the arrival of each call's requests at the backend to the last of their answers",
        lambda s: s.execution_ns / 1e9,
    ),
    Metric(
        "poplar_ipu_cycles_total",
        "Modelled cycles that the IPU would have taken",
        lambda s: s.ipu_cycles,
    ),
    Metric(
        "poplar_ipu_seconds_total",
        "Modelled time that the IPU would have taken",
        lambda s: s.ipu_seconds,
    ),
    Metric(
        "poplar_modelled_seconds_total",
        "Modelled time that the IPU and the host's transfers would have taken, as `sim_timing` paced has it",
        lambda s: s.ipu_modelled_seconds,
    ),
    Metric(
        "poplar_late_batches_total",
        "Runs whose rows the CPU had computed only after their modelled end; 0 unless `sim_timing` is paced",
        lambda s: s.late_batches,
    ),
)
ERRORS = Metric("poplar_errors_total", "Requests answered with an error, by kind", lambda s: s.errors.total())


def describe_metrics() -> str:
    """The table of the documentation."""
    rows = ["| metric | kind | meaning |", "| --- | --- | --- |"]
    rows += [f"| `{m.name}` | {'counter' if m.is_counter else 'gauge'} | {m.help} |" for m in METRICS]
    rows.append(f"| `{ERRORS.name}` | counter | {ERRORS.help}: {', '.join(ERROR_KINDS)} |")
    return "\n".join(rows)
