"""Send hostile requests to a real server and load hostile executables.

Usage: python tests/server/hostile_check.py --count 10000.

It prints the outcomes of every kind, the faults, and the memory of the server's processes after a
third of the requests and at the end. It exits 1 if anything was wrong.
The same --seed sends the same requests.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from poplar_triton.serving.server import TritonServer

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import hostile_loads
import hostile_models
from hostile_runner import (
    Report,
    Usage,
    check_models,
    describe_growth,
    measure,
    run_cases,
    shared_region,
)


def check_requests(folder: Path, count: int, seed: int) -> list[str]:
    """Send `count` requests and return their faults and those of the server afterwards."""
    hostile_models.write_repository(folder / "repository")
    os.environ.update(hostile_models.ENVIRONMENT)
    third = count // 3
    with TritonServer(
        folder / "repository", options=hostile_models.OPTIONS, log=folder / "log"
    ) as server:
        with shared_region(server):
            start = time.monotonic()
            report = run_cases(server, range(third), seed)
            before = measure(server)
            report.merge(run_cases(server, range(third, count), seed))
            seconds = time.monotonic() - start
            faults = report.faults + check_models(server)
            after = measure(server)
        faults += describe_growth(before, after, count - third)
    print_outcomes(report)
    print(
        f"over HTTP {report.count('http')} requests, over gRPC {report.count('grpc')}, sound ones "
        f"too, in {seconds:.0f} s"
    )
    print_usage(before, after)
    return faults


def check_loads(folder: Path, count: int, first: int) -> list[str]:
    """Load `count` damaged payloads and every hostile graph.

    Returns:
        The faults of the loads, and those of the server afterwards.
    """
    hostile_loads.write_repository(folder / "repository")
    os.environ.update(hostile_loads.ENVIRONMENT)
    third = count // 3
    with TritonServer(
        folder / "repository", options=hostile_loads.OPTIONS, log=folder / "log"
    ) as server:
        start = time.monotonic()
        report = hostile_loads.load_all(
            server, range(first, first + third), list(hostile_loads.GRAPHS)
        )
        before = measure(server)
        report.merge(hostile_loads.load_all(server, range(first + third, first + count), []))
        seconds = time.monotonic() - start
        after = measure(server)
        faults = report.faults + describe_growth(before, after, count - third)
    print_outcomes(report)
    print(f"{report.count('load')} loads in {seconds:.0f} s")
    print_usage(before, after)
    return faults


def print_outcomes(report: Report) -> None:
    """Print one line per protocol and kind."""
    for (protocol, kind), counts in sorted(report.outcomes.items()):
        outcomes = ", ".join(f"{outcome} {count}" for outcome, count in counts.most_common(8))
        print(f"{protocol:5}{kind:32}{counts.total():6}  {outcomes}")


def print_usage(before: Usage, after: Usage) -> None:
    """Print one line per process, and one for the shared memory."""
    print(f"{'process':32}{'MiB after a third':>20}{'MiB at the end':>20}{'open files':>16}")
    for name in sorted(before.resident.keys() & after.resident.keys()):
        sizes = "".join(f"{usage.resident[name] / (1 << 20):20.1f}" for usage in (before, after))
        print(f"{name:32}{sizes}{before.files[name]:>10} {after.files[name]:>5}")
    shared = "".join(
        f"{sum(usage.segments.values()) / (1 << 20):20.1f}" for usage in (before, after)
    )
    print(f"{'/dev/shm':32}{shared}")


def main() -> int:
    """Run the checks and return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="how many requests")
    parser.add_argument(
        "--payloads",
        type=int,
        default=0,
        help="how many damaged payloads to load, and every hostile graph",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the requests, and number of the first payload"
    )
    given = parser.parse_args()
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        if given.count:
            faults += check_requests(Path(folder, "requests"), given.count, given.seed)
        if given.payloads:
            faults += check_loads(Path(folder, "loads"), given.payloads, given.seed)
    for fault in faults[:50]:
        print(f"WRONG: {fault}")
    print(f"{len(faults)} wrong")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
