"""State of a supervised server, for a health port and for Prometheus: whether to send it requests,
whether it is beyond recovery, and what has happened."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from popef._tools.text import name_some
from popef._tools.version import __version__
from poplar_triton.serving.resource_use import ResourceUse
from poplar_triton.serving.stubs import Stall, Stub

_SILENT = "tritonserver has not been ready for a long time"
_Values: TypeAlias = "float | Mapping[str, float] | Mapping[tuple[str, str], float]"
"""Value of a metric without labels, or the values by their label or labels."""


class ServerPhase(Enum):
    """Phase of the server, with the reason for which it is not ready; "" if it may be ready."""

    STARTING = "tritonserver is starting"
    SERVING = ""
    RESTARTING = "tritonserver has ended and is restarting"
    DRAINING = "draining: the server is about to stop"
    ENDED = "tritonserver has ended"


_WATCHED = (ServerPhase.STARTING, ServerPhase.RESTARTING, ServerPhase.SERVING)
"""Phases in which a stalled process is the reason for which the server is not ready."""


class ServerState(Collector):
    """State that the supervisor writes and the threads of the health port read.

    The public attributes are replaced, never changed.
    """

    def __init__(self) -> None:
        self.answers = False
        """Whether the server says that it is ready."""
        self.is_silent = False
        """Whether the server has not said for long that it is ready."""
        self.unready_models: list[str] = []
        """Loaded models that do not say that they are ready."""
        self.silent_models: list[str] = []
        """Models that do not answer a canary, each with the reason."""
        self.lost_models: Mapping[str, str] = {}
        """Models that did not load because a process of theirs was killed or stopped, and the
        reason for each."""
        self.late_models: Mapping[str, str] = {}
        """Models that the start had no time for, and that are loaded now, and the reason for
        each."""
        self.hopeless = ""
        """Reason why the server cannot be healed; "" if it can."""
        self.start_seconds = 0.0
        """Time until the server was ready with all its models."""
        self.resource_use = ResourceUse()
        """Resources of the machine that the server holds."""
        self._lock = threading.Lock()
        self._phase = ServerPhase.STARTING
        self._canaries: Counter[tuple[str, str]] = Counter()
        self._living: list[Stub] = []
        self._dead: list[Stub] = []
        self._models: set[str] = set()
        self._deaths: Counter[str] = Counter()
        self._counted: set[Stub] = set()
        """Stubs whose deaths are counted. While a load replaces a dead one, it is not dead."""
        self._stalled: list[Stall] = []
        self._stalls: Counter[str] = Counter(tritonserver=0, stub=0)
        self._reloads: Counter[tuple[str, str]] = Counter()
        self._reload_seconds: defaultdict[str, float] = defaultdict(float)
        self._leaks: Counter[str] = Counter(threads=0, segments=0, stubs=0)
        self._restarts = self._drains = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    @property
    def unready_reason(self) -> str:
        """Reason not to send requests; "" if the server is ready."""
        with self._lock:
            return self._find_unready_reason()

    @property
    def hopeless_reason(self) -> str:
        """Reason why only ending everything helps; "" if the server can recover, or need not."""
        with self._lock:
            if self._phase is ServerPhase.ENDED:
                return str(self._phase.value)
            return self.hopeless or (_SILENT if self.is_silent else "")

    def enter(self, phase: ServerPhase) -> None:
        """Set the current phase of the server."""
        with self._lock:
            self._drains += phase is ServerPhase.DRAINING and self._phase is not phase
            if phase is ServerPhase.RESTARTING:
                self._restarts += 1
                self.answers = False
            self._phase = phase

    def note_stubs(self, living: Iterable[Stub], dead: Iterable[Stub]) -> None:
        """Record which instances have a process and which have lost theirs; count new ones among
        these."""
        with self._lock:
            self._living, self._dead = list(living), list(dead)
            self._models.update(stub.model for stub in (*self._living, *self._dead))
            self._count_deaths(self._dead)

    def note_death(self, stub: Stub) -> None:
        """Count the death of a process whose instance is not dead."""
        with self._lock:
            self._models.add(stub.model)
            self._count_deaths([stub])

    def _count_deaths(self, stubs: Iterable[Stub]) -> None:
        new = set(stubs) - self._counted
        self._deaths.update(stub.model for stub in new)
        self._counted |= new

    def note_canary(self, model: str, outcome: str) -> None:
        """Record how a canary ended: "success" or "failure"."""
        with self._lock:
            self._canaries[model, outcome] += 1

    def note_stalls(self, stalled: list[Stall]) -> list[Stall]:
        """Record which processes make no progress now, and count the new ones among them."""
        with self._lock:
            new = [stall for stall in stalled if stall not in self._stalled]
            self._stalled = list(stalled)
            self._stalls.update(stall.program for stall in new)
            return new

    def note_reload(self, model: str, outcome: str, seconds: float = 0.0) -> None:
        """Record how a reload ended, "success" or "failure", and the duration of a successful
        one."""
        with self._lock:
            self._reloads[model, outcome] += 1
            self._reload_seconds[model] += seconds

    def note_leak(self, **left: int) -> None:
        """Record what heals have left in the server: threads, segments, stubs."""
        with self._lock:
            self._leaks.update(left)

    def write_metrics(self) -> bytes:
        """Return the page for Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> list[Metric]:
        """Return the time series, as prometheus_client requires."""
        with self._lock:
            return [*self._list_instance_metrics(), *self._list_server_metrics()]

    def _list_instance_metrics(self) -> list[Metric]:
        """Return the metrics of the instances: whether they live, and what was done for them."""
        models = sorted(self._models)
        living = Counter(stub.model for stub in self._living)
        dead = Counter(stub.model for stub in self._dead)
        return [
            _gauge(
                "ready",
                "1 while /ready of the health port returns 200, else 0",
                int(not self._find_unready_reason()),
            ),
            _gauge(
                "draining",
                "1 from the stop request until the server stops",
                int(self._phase is ServerPhase.DRAINING),
            ),
            _gauge(
                "living_stubs",
                "Instances with a live process",
                {model: living[model] for model in models},
                "model",
            ),
            _gauge(
                "dead_stubs",
                "Instances that have lost their process",
                {model: dead[model] for model in models},
                "model",
            ),
            _counter(
                "stub_deaths",
                "Processes of instances that died",
                {model: self._deaths[model] for model in models},
                "model",
            ),
            _counter(
                "reloads",
                "Model reloads for a dead process",
                dict(sorted(self._reloads.items())),
                "model",
                "outcome",
            ),
            _counter("stalls", "Processes that made no progress", self._stalls, "program"),
        ]

    def _list_server_metrics(self) -> list[Metric]:
        """Return the metrics of the server: its build, load time, resources and starts."""
        use = self.resource_use
        return [
            _gauge("build_info", "Always 1; label: the version", {__version__: 1}, "version"),
            _gauge(
                "start_seconds",
                "Duration of Triton's last start, with all its models",
                self.start_seconds,
            ),
            _counter(
                "reload_seconds",
                "Duration of successful reloads",
                dict(sorted(self._reload_seconds.items())),
                "model",
            ),
            _counter(
                "canaries",
                "Requests of --canary-seconds",
                dict(sorted(self._canaries.items())),
                "model",
                "outcome",
            ),
            _gauge("server_threads", "Threads of tritonserver", use.threads),
            _gauge("server_segments", "Shared-memory segments of its stubs", use.segments),
            _gauge(
                "server_memory_bytes",
                "Private memory of tritonserver and its stubs, without mapped files and "
                "shared memory",
                use.memory_bytes,
            ),
            _counter(
                "heal_leaks", "Resources that reloads left in tritonserver", self._leaks, "what"
            ),
            _counter("restarts", "Restarts of Triton", self._restarts),
            _counter("drains", "Stop requests", self._drains),
        ]

    def _find_unready_reason(self) -> str:
        if self._stalled and self._phase in _WATCHED:
            return name_some(sorted(map(str, self._stalled)))
        if self._phase is not ServerPhase.SERVING:
            return str(self._phase.value)
        if not self.answers:
            return "tritonserver does not report that it is ready"
        if self._dead:
            return describe_dead(self._dead)
        if self.lost_models or self.late_models:
            lost = sorted({**self.lost_models, **self.late_models}.items())
            return f"not loaded: {name_some([f'{name!r} ({reason})' for name, reason in lost])}"
        if self.silent_models:
            return f"no response to a canary: {name_some(self.silent_models)}"
        if self.unready_models:
            return f"not ready: {name_some([f'model {model!r}' for model in self.unready_models])}"
        return ""


def describe_dead(dead: Iterable[Stub]) -> str:
    """Describe in one line which instances have lost their process."""
    stubs = sorted(dead, key=lambda stub: stub.key)
    return f"dead: {name_some([stub.title for stub in stubs])}"


def _gauge(name: str, text: str, values: _Values, *labels: str) -> Metric:
    return _fill(GaugeMetricFamily(f"poplar_supervisor_{name}", text, labels=labels), values)


def _counter(name: str, text: str, values: _Values, *labels: str) -> Metric:
    return _fill(CounterMetricFamily(f"poplar_supervisor_{name}", text, labels=labels), values)


def _fill(family: GaugeMetricFamily | CounterMetricFamily, values: _Values) -> Metric:
    for key, value in values.items() if isinstance(values, Mapping) else (((), values),):
        family.add_metric((key,) if isinstance(key, str) else key, value)
    return family
