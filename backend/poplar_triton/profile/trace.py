"""A profile as a Chrome trace, which Perfetto opens.

It has the supersteps in order, with a row for each of compute, exchange and sync, and counters of
the memory and of the exchange.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from poprt.performance import Profile, tiles_of

ROWS = {"sync": 1, "exchange": 2, "compute": 3}
"""Phases of a superstep in their order, with the thread ids of their rows."""
MEMORY = {
    "fullest tile: live bytes": "live_bytes",
    "one tile: bytes of copied operands": "copies_bytes",
}
"""Counters of the memory, with the fields of the node's cost that they show."""
ALL_TILES = "all tiles: bytes of live tensors"
RECEIVED = "fullest tile: bytes received in a superstep"


def make_trace(profile: Profile) -> dict[str, Any]:
    """Return trace events in microseconds at the chip's clock; `args.cycles` are exact and sum to
    the estimate's."""
    title = f"{profile.model}: one tile of {profile.chip}, modelled"
    events = [
        _meta("process_name", 0, title),
        *(_meta("thread_name", row, cause) for cause, row in ROWS.items()),
    ]
    return {
        "traceEvents": [*events, *_iter_events(profile)],
        "displayTimeUnit": "ns",
        "otherData": {
            "modelled": True,
            "model": profile.model,
            "target": profile.target.label,
            "batch_size": profile.batch_size,
            "precision": profile.precision,
            "partials_type": profile.estimate.options.partials_type,
            "supersteps": "the cycles of a node are spread evenly over its supersteps",
            "counters": "bytes of one IPU, the one that runs the node; received bytes are spread "
            "evenly over the supersteps",
        },
    }


def _meta(name: str, row: int, value: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": row, "name": name, "args": {"name": value}}


def _iter_events(profile: Profile) -> Iterator[dict[str, Any]]:
    start, tiles = 0, tiles_of(profile)

    def count(name: str, num_bytes: int) -> dict[str, Any]:
        now = profile.target.seconds(start) * 1e6
        return {"ph": "C", "pid": 1, "name": name, "ts": now, "args": {"bytes": num_bytes}}

    for operator in profile.steps:
        work, steps = operator.work, max(1, operator.work.steps)
        phases = {"sync": operator.sync_cycles, "exchange": work.exchange, "compute": work.compute}
        received, _ = tiles.received_bytes(operator)
        for name, attribute in MEMORY.items():
            yield count(name, getattr(operator, attribute))
        yield count(ALL_TILES, operator.tensor_bytes)
        for step in range(steps):
            for cause, total in phases.items():
                cycles = _share(total, step, steps)
                if not cycles:
                    continue
                if cause == "exchange":
                    yield count(RECEIVED, _share(received, step, steps))
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
                if cause == "exchange":
                    yield count(RECEIVED, 0)
    for name in (*MEMORY, ALL_TILES):
        yield count(name, 0)


def _share(total: int, step: int, steps: int) -> int:
    """Return the part of a step if `total` is spread evenly over `steps`."""
    return total * (step + 1) // steps - total * step // steps
