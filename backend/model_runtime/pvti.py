"""Recorder of tracepoints and graphs into a Chrome trace that Perfetto (https://ui.perfetto.dev)
opens.

It offers what libpvti offers to users of the real library, under libpvti's names where they exist
(`PVTI_OPTIONS`, `Tracepoint`, `Graph`, `addSeries`). libpvti's channels and `.pvti` file are not
simulated. The callers decide what to record.
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsFloat

_log = logging.getLogger("model_runtime")

Args = Mapping[str, object]
_Thread = tuple[int, str]
# Sequence number, phase, name, start in ns, duration in ns, thread, args. A plain tuple: a
# NamedTuple takes longer to make.
_Event = tuple[int, str, str, int, int, _Thread, Args | None]

_CAPACITY = 200_000  # about 75 MB of events with one argument each, 20 MB of file
_SLICE, _COUNTER, _INSTANT = "X", "C", "i"  # "ph" in the Trace Event Format

_encode = json.JSONEncoder(separators=(",", ":")).encode
_local = threading.local()


@dataclass(frozen=True, slots=True)
class Options:
    """Options in `PVTI_OPTIONS`: `enable` and `directory` are libpvti's, with its defaults; `file`
    is our addition."""

    enable: bool = True
    directory: str = ""
    file: str = ""


def parse_options(text: str) -> Options:
    """Parse options from a JSON object.

    Other keys, such as libpvti's `channels` and `duration`, are logged and ignored. Raises
    ValueError for malformed text.
    """
    options = json.loads(text)
    if not isinstance(options, dict):
        raise ValueError(f"expected a JSON object, found {text}")
    enable = {"true": True, "false": False}.get(str(options.pop("enable", True)).lower())
    paths = {key: options.pop(key, "") for key in ("directory", "file")}
    if enable is None or not all(isinstance(path, str) for path in paths.values()):
        raise ValueError(
            f"expected true or false for enable, strings for directory and file, found {text}"
        )
    if options:
        _log.warning(
            "PVTI_OPTIONS: ignoring %s; known are enable, directory and file",
            ", ".join(map(repr, options)),
        )
    return Options(enable, **paths)


@dataclass(slots=True)
class Tracepoint:
    """Slice between entering and leaving a `with` block, on the thread that runs it.

    Made by `Trace.tracepoint`.
    """

    _trace: Trace
    _label: str
    _args: Args
    _start_ns: int = 0

    def __enter__(self) -> None:
        self._start_ns = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self._trace.add_slice(self._label, self._start_ns, time.perf_counter_ns(), self._args)


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a graph; made by `Graph.addSeries`."""

    _trace: Trace
    _graph: str
    _name: str

    def add(self, value: SupportsFloat, time_ns: int | None = None) -> None:
        """Add a value in the graph's unit, now or at `time_ns` (`time.perf_counter_ns`).

        NaN and infinities are ignored.
        """
        number = float(value)
        if math.isfinite(number):  # JSON has no others
            start_ns = time.perf_counter_ns() if time_ns is None else time_ns
            self._trace.add_value(self._graph, self._name, number, start_ns)


@dataclass(frozen=True, slots=True)
class Graph:
    """Series that share a unit; made by `Trace.graph`."""

    _trace: Trace
    _name: str
    _unit: str

    def addSeries(self, name: str) -> Series:
        """Return a series of that name; two series of one name are one line."""
        # The format has no place for units.
        title = f"{self._name} ({self._unit})" if self._unit else self._name
        return Series(self._trace, title, name)


class Trace:
    """The last `capacity` events of one model instance, written to one file; all methods are
    thread-safe.

    Callers hold `Trace | None` and record if it is not None. An open trace is closed when the
    interpreter exits.
    """

    def __init__(
        self, name: str, options: Options | None = None, capacity: int = _CAPACITY
    ) -> None:
        self._name = name
        self._path = _choose_path(name, options or Options())
        self._claimed = False
        self._closed = False
        self._pid = os.getpid()
        self._sequence = itertools.count()
        self._events: deque[_Event] = deque(maxlen=capacity)
        self._graphs: dict[str, Graph] = {}
        self._lock = threading.Lock()
        atexit.register(self.close)

    @classmethod
    def from_environment(cls, name: str, environ: Mapping[str, str] = os.environ) -> Trace | None:
        """Return the trace that `PVTI_OPTIONS` enables.

        Returns None if the variable is unset, disables tracing or, with a warning, is malformed.
        """
        text = environ.get("PVTI_OPTIONS", "")
        if not text.strip():
            return None
        try:
            options = parse_options(text)
            return cls(name, options) if options.enable else None
        except (ValueError, RecursionError, OSError) as error:
            # libpvti captures with its defaults then; not to fill a server's disk by a typing error
            # is safer.
            _log.warning(
                'PVTI_OPTIONS: %s; nothing is traced. Expected for example \'{"enable":"true"}\'',
                error,
            )
            return None

    def tracepoint(self, label: str, /, **args: object) -> Tracepoint:
        """Return a context manager that records its block as a slice; `args` appear beside the
        label."""
        return Tracepoint(self, label, args)

    def add_slice(self, label: str, start_ns: int, end_ns: int, args: Args | None = None) -> None:
        """Record a slice of this thread by its times of `time.perf_counter_ns`; `args` must stay
        unchanged."""
        self._record(_SLICE, label, start_ns, end_ns - start_ns, args)

    def instant(self, label: str) -> None:
        """Record an instant event on this thread, now."""
        self._record(_INSTANT, label, time.perf_counter_ns(), 0, None)

    def graph(self, name: str, unit: str = "") -> Graph:
        """Return the graph of that name, made with `unit` on the first call."""
        return self._graphs.setdefault(name, Graph(self, name, unit))

    def write(self) -> Path | None:
        """Write the events recorded so far, in place of this trace's earlier file, and return the
        path.

        Returns None if writing fails, which is logged. The file is written atomically, under a new
        name.
        """
        if os.getpid() != self._pid:  # a fork has a copy of the events, not the right to the file
            return None
        with self._lock:
            try:
                self._replace_file()
            except (OSError, ValueError) as error:  # ValueError: a NUL in the path
                _log.warning("PVTI trace of %s: cannot write %s: %s", self._name, self._path, error)
                return None
            return self._path

    def close(self) -> None:
        """Write for the last time and free the memory; do nothing on the second call."""
        if not self._closed:
            self._closed = True
            atexit.unregister(self.close)
            self.write()

    def add_value(self, graph: str, series: str, value: float, time_ns: int) -> None:
        """Add a value to a line of a graph; called by Series, which leaves out values without a
        JSON form."""
        self._record(_COUNTER, graph, time_ns, 0, {series: value})

    def _record(
        self, phase: str, name: str, start_ns: int, duration_ns: int, args: Args | None
    ) -> None:
        # Both next() and append() are atomic: recording takes no lock.
        self._events.append(
            (next(self._sequence), phase, name, start_ns, duration_ns, _this_thread(), args)
        )

    def _replace_file(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Imported here: it takes 0.4 MiB with its compressors, and few models are traced.
        import tempfile

        with tempfile.TemporaryDirectory(dir=self._path.parent, prefix=".pvti-") as directory:
            part = Path(directory, "part")
            with part.open("w", encoding="ascii") as file:
                file.writelines(self._iter_lines(self._events.copy()))
            if not self._claimed:
                self._path, self._claimed = _reserve_file(self._path), True
            os.replace(part, self._path)

    def _iter_lines(self, events: deque[_Event]) -> Iterator[str]:
        full = len(events) == self._events.maxlen
        dropped = max(event[0] for event in events) + 1 - len(events) if full else 0
        other = {"name": self._name, "clock": "time.perf_counter_ns", "dropped_events": dropped}
        # The kernel gives the numbers of dead threads to new ones; a number can have one name only,
        # so the last.
        threads = {tid: name for *_, (tid, name), _ in events}
        yield f'{{"displayTimeUnit":"ns","otherData":{_encode(other)},"traceEvents":[\n'
        yield _encode(_describe_name("process_name", self._pid, self._pid, self._name))
        for tid, name in threads.items():
            yield ",\n" + _encode(_describe_name("thread_name", self._pid, tid, name))
        for event in events:
            yield ",\n" + _encode(_describe_event(event, self._pid))
        yield "\n]}\n"


def _this_thread() -> _Thread:
    try:
        thread: _Thread = _local.thread
    except AttributeError:
        thread = _local.thread = (threading.get_native_id(), threading.current_thread().name)
    return thread


def _describe_name(what: str, pid: int, tid: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _describe_event(event: _Event, pid: int) -> dict[str, object]:
    """Return the event in the Trace Event Format, whose times are in microseconds."""
    _, phase, name, start_ns, duration_ns, (tid, _), args = event
    fields: dict[str, object] = {"ph": phase, "name": name, "pid": pid, "tid": tid}
    fields["ts"] = start_ns / 1000
    if phase == _SLICE:
        fields["dur"] = duration_ns / 1000
    if phase == _INSTANT:
        fields["s"] = "t"  # scope: the thread
    if args:
        fields["args"] = {key: _to_json_value(value) for key, value in args.items()}
    return fields


def _to_json_value(value: object) -> object:
    finite = isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    return value if finite else str(value)


def _choose_path(name: str, options: Options) -> Path:
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:100]  # a file name has 255 bytes on Linux
    path = Path(f"{safe}_{time.strftime('%Y-%m-%d_%H-%M-%S')}_{os.getpid()}.json")
    if options.file:
        file = Path(options.file)
        path = file.parent / f"{file.stem}_{safe}{file.suffix}"
    # The working directory may change before the trace is written.
    return Path(options.directory, path).absolute()


def _reserve_file(path: Path) -> Path:
    """Create an empty new file: `path`, or else `path` with the first free number from 2."""
    candidate, number = path, 1
    while True:
        try:
            candidate.touch(exist_ok=False)
        except FileExistsError:
            number += 1
            candidate = path.parent / f"{path.stem}_{number}{path.suffix}"
        else:
            return candidate
