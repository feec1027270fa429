"""Profiling of many models under many settings: a child process for each task, as many at once as
there are cores.

A model may crash its child process or exceed the time limit. Then its row says so, and the work
continues. A child process writes a line for each case. Before them it writes an empty line when it
has the graph that the cases share, so that the parent knows which cases a crash affects.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO

from poprt.cli import finish, make_timeout, naming_memory
from poprt.terminal import show_progress
from simipu import CompileError

from popef._tools.child import fork_child, wait_for
from popef._tools.console import print_line
from popef._tools.control_groups import CONTROL_GROUPS, iter_groups
from popef._tools.memory import spare_memory_bytes
from popef._tools.stalls import PROC
from popef._tools.text import escape
from poplar_triton.profile.cases import ModelCase, Shard, Task, find_models, make_tasks
from poplar_triton.profile.journal import CaseResult, open_journal
from poplar_triton.profile.source import Estimator, OnnxSource, ProfileSettings, open_source

END_SECONDS = 5.0
"""Time that child processes have to exit after the request to end."""
_MAX_WARNINGS = 20
"""Maximum number of warnings of a case; a hostile model could have thousands."""
_MAX_CHARACTERS = 500
_OUTPUTS = (1, 2)
"""File descriptors of every process: stdout and stderr."""
_READ_BYTES = 1 << 20

Guard = Callable[[Callable[[], int], Callable[[str], None]], int]
"""Function that calls its first argument, and passes an error of it to the second in one line, as
popef._tools.console formats it."""


@dataclass(frozen=True, slots=True)
class CaseLimits:
    """Limits of each case: seconds, bytes of memory, and the folder of temporary files, which a
    killed child process leaves behind. `jobs` is the number of cases at a time."""

    seconds: int
    memory_bytes: int
    jobs: int
    scratch: Path


class ProfilingProcess:
    """Child process that works on a task; it has to be closed or ended."""

    def __init__(self, task: Task, limits: CaseLimits, guard: Guard) -> None:
        self._left = deque(task)
        self._limits = limits
        self._has_graph = False
        self._heard = b""
        self._pipe, to_parent = os.pipe()
        os.set_blocking(self._pipe, False)

        def work() -> int:
            with os.fdopen(to_parent, "wb") as stream:
                return _Work(stream, limits, guard).profile(task)

        self._child = fork_child(work, limits.memory_bytes)
        os.close(to_parent)
        self.handles = self._pipe, self._child.handle
        """Handles that become readable when the child process has news."""
        self._deadline = time.monotonic() + limits.seconds

    def read(self) -> list[tuple[ModelCase, CaseResult]]:
        """Return the cases that are done since the last call. The time limit of the next case
        starts now."""
        while (data := self._read_some()) is not None and data:
            self._heard += data
        *lines, self._heard = self._heard.split(b"\n")
        results = []
        for line in lines:
            self._deadline = time.monotonic() + self._limits.seconds
            if line:
                results.append((self._left.popleft(), CaseResult(**json.loads(line))))
            else:
                self._has_graph = True
        return results

    def has_ended(self) -> bool:
        """Return whether the child process has ended, or must end because it takes too long."""
        return time.monotonic() > self._deadline or self._child.has_ended()

    def close(self) -> tuple[list[tuple[ModelCase, CaseResult]], Task]:
        """End the child process. Return the last finished cases, including those it failed at, and
        the cases that are left."""
        error = self._find_error()
        results = self.read()
        os.close(self._pipe)
        num_failed = min(1, len(self._left)) if self._has_graph else len(self._left)
        failed = [(self._left.popleft(), CaseResult(None, error)) for _ in range(num_failed)]
        return results + failed, tuple(self._left)

    def interrupt(self) -> None:
        """Ask the child process to end."""
        self._child.send_signal(signal.SIGINT)

    def end(self, patience_seconds: float) -> None:
        """End the child process within a time limit; its results are discarded."""
        self._child.end(patience_seconds)
        os.close(self._pipe)

    def _find_error(self) -> str:
        if not self._child.has_ended():
            self._child.end()
            return str(make_timeout(self._limits.seconds))
        try:
            status = finish(self._child, self._limits.memory_bytes)
            return f"the child process ended without a result, with status {status}"
        except CompileError as error:
            return str(error)

    def _read_some(self) -> bytes | None:
        try:
            return os.read(self._pipe, _READ_BYTES)
        except BlockingIOError:
            return None


class _Work:
    """Work of the child process."""

    def __init__(self, stream: BinaryIO, limits: CaseLimits, guard: Guard) -> None:
        self._stream = stream
        self._limits = limits
        self._guard = guard

    def profile(self, task: Task) -> int:
        """Write a result for each case of the task."""
        _be_quiet()
        tempfile.tempdir = str(self._limits.scratch)
        warnings = _Warnings()
        logging.getLogger().handlers = [warnings]
        estimators: list[Estimator] = []

        def convert() -> None:
            source = open_source(task[0].model)
            if isinstance(source, OnnxSource):
                source.take_shapes(task[0].input_shape)
            estimators.append(Estimator(source))
            estimators[0].convert(task[0].settings)

        error = self._try(convert)
        shared = tuple(warnings.texts)
        if error is None:
            self._say(b"")
        for case in task:
            warnings.texts[:] = shared
            result = CaseResult(None, error) if error else self._profile(estimators[0], case)
            self._say(json.dumps(asdict(replace(result, warnings=warnings.texts))).encode())
        return 0

    def _say(self, line: bytes) -> None:
        self._stream.write(line + b"\n")
        self._stream.flush()

    def _profile(self, estimator: Estimator, case: ModelCase) -> CaseResult:
        profiles = []
        error = self._try(lambda: profiles.append(estimator.profile(case.settings).as_json()))
        return CaseResult(None, error) if error else CaseResult(profiles[0], None)

    def _try(self, work: Callable[[], None]) -> str | None:
        """Return the error of some work, or None if it succeeds."""
        errors: list[str] = []

        def guarded() -> int:
            with naming_memory(self._limits.memory_bytes):
                work()
            return 0

        status = self._guard(guarded, errors.append)
        if status and not errors:
            raise KeyboardInterrupt
        return escape(errors[0]) if errors else None


class _Warnings(logging.Handler):
    """Log handler that keeps the texts of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a text, unless there are too many."""
        if len(self.texts) < _MAX_WARNINGS:
            self.texts.append(escape(record.getMessage(), _MAX_CHARACTERS))


def _be_quiet() -> None:
    """Discard stdout and stderr, because C++ code would print messages about a model between the
    lines of the progress."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in _OUTPUTS:
        os.dup2(nowhere, output)


def end_all(workers: Iterable[ProfilingProcess]) -> None:
    """End several child processes together."""
    for worker in workers:
        worker.interrupt()
    deadline = time.monotonic() + END_SECONDS
    for worker in workers:
        worker.end(max(0, deadline - time.monotonic()))


def wait_for_news(workers: Iterable[ProfilingProcess], seconds: float) -> None:
    """Wait until a child process has news or has ended, up to a time limit."""
    wait_for((handle for worker in workers for handle in worker.handles), seconds)


_LOOK_SECONDS = 1.0
"""Time between two looks at the clock."""


def run(options: argparse.Namespace, points: Sequence[ProfileSettings]) -> int:
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
        remaining = [tuple(case for case in task if case.key not in done) for task in tasks]
        num_left = len(cases) - len(done)
        with (
            show_progress(f"{num_left} cases", num_left, threads=False) as on_step,
            closing(work_off(filter(None, remaining), limits, options.guard)) as results,
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
    tasks: Iterable[Task], limits: CaseLimits, guard: Guard
) -> Generator[tuple[ModelCase, CaseResult], None, None]:
    """Yield the cases with their results as they become known. All child processes end with this
    generator."""
    queue = deque(tasks)
    working: list[ProfilingProcess] = []
    try:
        while queue or working:
            while queue and len(working) < limits.jobs:
                working.append(ProfilingProcess(queue.popleft(), limits, guard))
            wait_for_news(working, _LOOK_SECONDS)
            for worker in list(working):
                yield from worker.read()
                if worker.has_ended():
                    working.remove(worker)
                    results, rest = worker.close()
                    yield from results
                    if rest:
                        queue.appendleft(rest)
    finally:
        end_all(working)


def choose_limits(
    jobs: int | None, seconds: int, memory_mib: int | None, scratch: Path
) -> CaseLimits:
    """Return limits under which all child processes together fit into memory. A given memory limit
    reduces their number."""
    usable, num_jobs = spare_memory_bytes(), jobs or usable_cores()
    if memory_mib is None:
        return CaseLimits(seconds, usable // num_jobs, num_jobs, scratch)
    fitting = max(1, usable // (memory_mib << 20))
    if fitting < num_jobs:
        text = (
            f"running {fitting} processes instead of {num_jobs}, because --memory_limit applies "
            "to each"
        )
        print_line(f"poplar-triton: {text}, and {usable >> 20} MiB are free", stderr=True)
    return CaseLimits(seconds, memory_mib << 20, min(num_jobs, fitting), scratch)


def usable_cores(proc: Path = PROC, groups: Path = CONTROL_GROUPS) -> int:
    """Return the number of cores that this process may use, or that the control groups around it
    allow if that is less."""
    cores = len(os.sched_getaffinity(0))
    for folder, is_old in iter_groups(proc, groups):
        with suppress(OSError, ValueError):
            if is_old:
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                quota, period = ((folder / name).read_text() for name in names)
            else:
                quota, period = (folder / "cpu.max").read_text().split()
            if int(quota) > 0:  # -1: unlimited
                cores = min(cores, math.ceil(int(quota) / int(period)))
    return cores
