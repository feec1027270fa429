"""Profiling of many models under many settings: a child process for each task, as many at once as
there are cores.

A model may crash its child process or exceed the time limit. Then its row says so, and the work
continues.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from poprt.terminal import show_progress

from popef._tools.console import print_line
from popef._tools.memory import usable_memory_bytes
from poplar_triton.profile.cases import Case, Shard, Task, find_models, make_tasks
from poplar_triton.profile.estimator import Settings
from poplar_triton.profile.journal import Result, open_journal
from poplar_triton.profile.worker import Guard, Limits, Worker, end_all, wait_for_news

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_LOOK_SECONDS = 1.0
"""Time between two looks at the clock."""


def run(options: argparse.Namespace, points: Sequence[Settings]) -> int:
    """Profile into the table --output. Return 0 when each case has a row, whatever it says."""
    tasks = make_tasks(
        find_models(options.model), points, dict(options.input_shape), options.shard or Shard()
    )
    cases = [case for task in tasks for case in task]
    with (
        open_journal(options.output) as journal,
        tempfile.TemporaryDirectory(prefix="poplar-triton-") as scratch,
    ):
        limits = choose_limits(
            options.jobs, options.time_limit, options.memory_limit, Path(scratch)
        )
        journal.require_only(cases)
        done = {case.key for case in cases if journal.has(case, retrying=options.retry_failed)}
        left = [tuple(case for case in task if case.key not in done) for task in tasks]
        num_left = len(cases) - len(done)
        with (
            show_progress(f"{num_left} cases", num_left, threads=False) as on_step,
            closing(work_off(filter(None, left), limits, options.guard)) as results,
        ):
            for case, result in results:
                journal.add(case, result)
                on_step(case.model.name)
        num_failed = journal.finish(cases)
    for file in journal.files:
        print_line(f"wrote {file}")
    print_line(f"{len(cases)} cases, {len(done)} of them done before, {num_failed} with an error")
    return 0


def work_off(
    tasks: Iterable[Task], limits: Limits, guard: Guard
) -> Generator[tuple[Case, Result], None, None]:
    """Yield the cases with their results as they become known. All child processes end with this
    generator."""
    left = deque(tasks)
    working: list[Worker] = []
    try:
        while left or working:
            while left and len(working) < limits.jobs:
                working.append(Worker(left.popleft(), limits, guard))
            wait_for_news(working, _LOOK_SECONDS)
            for worker in list(working):
                yield from worker.read()
                if worker.has_ended():
                    working.remove(worker)
                    found, rest = worker.close()
                    yield from found
                    if rest:
                        left.appendleft(rest)
    finally:
        end_all(working)


def choose_limits(jobs: int | None, seconds: int, memory_mib: int | None, scratch: Path) -> Limits:
    """Return limits under which all child processes together fit into memory. A given memory limit
    reduces their number."""
    usable, wanted = usable_memory_bytes(), jobs or usable_cores()
    if memory_mib is None:
        return Limits(seconds, usable // wanted, wanted, scratch)
    fitting = max(1, usable // (memory_mib << 20))
    if fitting < wanted:
        text = (
            f"running {fitting} processes instead of {wanted}, because --memory_limit applies "
            "to each"
        )
        print_line(f"poplar-triton: {text}, and {usable >> 20} MiB are available", stderr=True)
    return Limits(seconds, memory_mib << 20, min(wanted, fitting), scratch)


def usable_cores() -> int:
    """Return the number of cores that this process may use, or that its container allows if that is
    less."""
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = _QUOTA.read_text().split()
        cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
    return cores
