"""A profile as a Chrome trace, which Perfetto opens: the supersteps in order, with a row for each
of compute, exchange and sync."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from poprt.profiling.model_profile import Profile
from simipu.cost import OperatorCost

ROWS = {"sync": 1, "exchange": 2, "compute": 3}
"""Phases of a superstep in their order, with the thread ids of their rows."""


def make_trace(profile: Profile) -> dict[str, Any]:
    """Return trace events in microseconds at the chip's clock; `args.cycles` are exact and sum to
    the estimate's."""
    title = f"{profile.model}: one tile of {profile.chip}, modelled"
    named = [
        _meta("process_name", 0, title),
        *(_meta("thread_name", row, cause) for cause, row in ROWS.items()),
    ]
    return {
        "traceEvents": [*named, *_iter_events(profile)],
        "displayTimeUnit": "ns",
        "otherData": {
            "modelled": True,
            "model": profile.model,
            "target": profile.target.name,
            "batch_size": profile.batch_size,
            "precision": profile.precision,
            "partials_type": profile.estimate.options.partials_type,
            "supersteps": "the cycles of a node are spread evenly over its supersteps",
        },
    }


def _meta(name: str, row: int, value: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": row, "name": name, "args": {"name": value}}


def _iter_events(profile: Profile) -> Iterator[dict[str, Any]]:
    start = 0
    for operator in profile.steps:
        steps = max(1, operator.work.steps)
        for step in range(steps):
            for cause, total in _phases(operator).items():
                cycles = total * (step + 1) // steps - total * step // steps
                if cycles:
                    yield {
                        "ph": "X",
                        "pid": 1,
                        "tid": ROWS[cause],
                        "name": operator.name,
                        "cat": cause,
                        "ts": profile.target.seconds(start) * 1e6,
                        "dur": profile.target.seconds(cycles) * 1e6,
                        "args": {
                            "cycles": cycles,
                            "operator": operator.op_type,
                            "step": f"{step + 1} of {steps}",
                        },
                    }
                    start += cycles


def _phases(operator: OperatorCost) -> dict[str, int]:
    return {
        "sync": operator.sync_cycles,
        "exchange": operator.work.exchange,
        "compute": operator.work.compute,
    }
