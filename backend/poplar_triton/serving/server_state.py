"""State of a supervised server, for a health port and for Prometheus: whether to send it requests,
whether it is beyond recovery, and what has happened."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from popef._tools.version import __version__
from poplar_triton.serving.resource_use import ResourceUse
from poplar_triton.serving.stubs import Stall, Stub

_SILENT = "tritonserver has not been ready for a long time"
_MAX_NAMED = 5
"""Maximum number of names in one line."""


class Phase(Enum):
    """Phase of the server, with the reason for which it is not ready; "" if it may be ready."""

    STARTING = "tritonserver is starting"
    SERVING = ""
    RESTARTING = "tritonserver has ended and is restarting"
    DRAINING = "draining: the server is about to stop"
    ENDED = "tritonserver has ended"


class ServerState(Collector):
    """State that the supervisor writes and the threads of the health port read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase = Phase.STARTING
        self._answers = False
        self._silent = False
        self._unready_models: list[str] = []
        self._silent_models: list[str] = []
        self._canaries: Counter[tuple[str, str]] = Counter()
        self._hopeless = ""
        self._living: list[Stub] = []
        self._dead: list[Stub] = []
        self._models: set[str] = set()
        self._deaths: Counter[str] = Counter()
        self._stalled: list[Stall] = []
        self._stalls: Counter[str] = Counter(tritonserver=0, stub=0)
        self._reloads: Counter[tuple[str, str]] = Counter()
        self._reload_seconds: defaultdict[str, float] = defaultdict(float)
        self._start_seconds = 0.0
        self._holding = ResourceUse()
        self._leaks: Counter[str] = Counter(threads=0, segments=0, stubs=0)
        self._restarts = 0
        self._drains = 0
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
            if self._phase is Phase.ENDED:
                return str(self._phase.value)
            return self._hopeless or (_SILENT if self._silent else "")

    def enter(self, phase: Phase) -> None:
        """Set the current phase of the server."""
        with self._lock:
            self._drains += phase is Phase.DRAINING and self._phase is not phase
            if phase is Phase.RESTARTING:
                self._restarts += 1
                self._answers = False
            self._phase = phase

    def note_stubs(self, living: Iterable[Stub], dead: Iterable[Stub]) -> None:
        """Record which instances have a process and which have lost theirs; count new ones among
        these."""
        with self._lock:
            before = set(self._dead)
            self._living, self._dead = list(living), list(dead)
            self._models.update(stub.model for stub in (*self._living, *self._dead))
            self._deaths.update(stub.model for stub in self._dead if stub not in before)

    def note_answer(self, ready: bool) -> None:
        """Record whether the server says that it is ready."""
        with self._lock:
            self._answers = ready

    def note_unready_models(self, models: list[str]) -> None:
        """Record the loaded models that do not say that they are ready."""
        with self._lock:
            self._unready_models = models

    def note_silent_models(self, models: list[str]) -> None:
        """Record the models that do not answer a canary, each with the reason."""
        with self._lock:
            self._silent_models = models

    def note_canary(self, model: str, outcome: str) -> None:
        """Record how a canary ended: "success" or "failure"."""
        with self._lock:
            self._canaries[model, outcome] += 1

    def note_silence(self, long: bool) -> None:
        """Record whether the server has not said for long that it is ready."""
        with self._lock:
            self._silent = long

    def note_stalls(self, stalled: list[Stall]) -> list[Stall]:
        """Record which processes make no progress now, and count the new ones among them."""
        with self._lock:
            new = [each for each in stalled if each not in self._stalled]
            self._stalled = list(stalled)
            self._stalls.update(each.program for each in new)
            return new

    def note_reload(self, model: str, outcome: str, seconds: float = 0.0) -> None:
        """Record how a reload ended, "success" or "failure", and the duration of a successful
        one."""
        with self._lock:
            self._reloads[model, outcome] += 1
            self._reload_seconds[model] += seconds

    def note_start(self, seconds: float) -> None:
        """Record how long it took until the server was ready with all its models."""
        with self._lock:
            self._start_seconds = seconds

    def note_resource_use(self, use: ResourceUse) -> None:
        """Record which resources of the machine the server holds."""
        with self._lock:
            self._holding = use

    def note_leak(self, **left: int) -> None:
        """Record what heals have left in the server: threads, segments, stubs."""
        with self._lock:
            self._leaks.update(left)

    def set_hopeless(self, reason: str) -> None:
        """Record the reason why the server cannot be healed, or "" if it can after all."""
        with self._lock:
            self._hopeless = reason

    def write_metrics(self) -> bytes:
        """Return the page for Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the time series, as prometheus_client requires."""
        with self._lock:
            living = Counter(stub.model for stub in self._living)
            dead = Counter(stub.model for stub in self._dead)
            ready = not self._find_unready_reason()
            drains = self._phase is Phase.DRAINING
            models, deaths, reloads = (
                sorted(self._models),
                Counter(self._deaths),
                Counter(self._reloads),
            )
            restarts, all_drains, stalls = self._restarts, self._drains, dict(self._stalls)
        yield GaugeMetricFamily(
            "poplar_supervisor_ready",
            "1 while /ready of the health port returns 200, else 0",
            int(ready),
        )
        yield GaugeMetricFamily(
            "poplar_supervisor_draining",
            "1 from the stop request until the server stops",
            int(drains),
        )
        yield _per_model(
            GaugeMetricFamily(
                "poplar_supervisor_living_stubs", "Instances with a live process", labels=["model"]
            ),
            {model: living[model] for model in models},
        )
        yield _per_model(
            GaugeMetricFamily(
                "poplar_supervisor_dead_stubs",
                "Instances that have lost their process",
                labels=["model"],
            ),
            {model: dead[model] for model in models},
        )
        yield _per_model(
            CounterMetricFamily(
                "poplar_supervisor_stub_deaths",
                "Processes of instances that died",
                labels=["model"],
            ),
            {model: deaths[model] for model in models},
        )
        family = CounterMetricFamily(
            "poplar_supervisor_reloads",
            "Model reloads for a dead process",
            labels=["model", "outcome"],
        )
        for (model, outcome), count in sorted(reloads.items()):
            family.add_metric([model, outcome], count)
        yield family
        family = CounterMetricFamily(
            "poplar_supervisor_stalls", "Processes that made no progress", labels=["program"]
        )
        for program, count in stalls.items():
            family.add_metric([program], count)
        yield family
        yield from self._collect_resources()
        yield CounterMetricFamily("poplar_supervisor_restarts", "Restarts of Triton", restarts)
        yield CounterMetricFamily("poplar_supervisor_drains", "Stop requests", all_drains)

    def _collect_resources(self) -> Iterator[Metric]:
        """Yield metrics of the server's build, its load time and the resources that it holds."""
        with self._lock:
            use, leaks, start = self._holding, dict(self._leaks), self._start_seconds
            reload_seconds = dict(sorted(self._reload_seconds.items()))
            canaries = sorted(self._canaries.items())
        build = GaugeMetricFamily(
            "poplar_supervisor_build_info", "Always 1; label: the version", labels=["version"]
        )
        build.add_metric([__version__], 1)
        yield build
        yield GaugeMetricFamily(
            "poplar_supervisor_start_seconds",
            "Duration of Triton's last start, with all its models",
            start,
        )
        yield _per_model(
            CounterMetricFamily(
                "poplar_supervisor_reload_seconds",
                "Duration of successful reloads",
                labels=["model"],
            ),
            reload_seconds,
        )
        asked = CounterMetricFamily(
            "poplar_supervisor_canaries",
            "Requests of --canary-seconds",
            labels=["model", "outcome"],
        )
        for (model, outcome), count in canaries:
            asked.add_metric([model, outcome], count)
        yield asked
        yield GaugeMetricFamily(
            "poplar_supervisor_server_threads", "Threads of tritonserver", use.threads
        )
        yield GaugeMetricFamily(
            "poplar_supervisor_server_segments", "Shared-memory segments of its stubs", use.segments
        )
        yield GaugeMetricFamily(
            "poplar_supervisor_server_memory_bytes",
            "Private memory of tritonserver and its stubs, without mapped files and shared memory",
            use.memory_bytes,
        )
        left = CounterMetricFamily(
            "poplar_supervisor_heal_leaks",
            "Resources that reloads left in tritonserver",
            labels=["what"],
        )
        for what, count in leaks.items():
            left.add_metric([what], count)
        yield left

    def _find_unready_reason(self) -> str:
        if self._phase is not Phase.SERVING:
            return str(self._phase.value)
        if self._stalled:
            return name_some(sorted(map(str, self._stalled)))
        if not self._answers:
            return "tritonserver does not report that it is ready"
        if self._dead:
            return describe_dead(self._dead)
        if self._silent_models:
            return f"no response to a canary: {name_some(self._silent_models)}"
        if self._unready_models:
            return f"not ready: {name_some([f'model {model!r}' for model in self._unready_models])}"
        return ""


def describe_dead(dead: Iterable[Stub]) -> str:
    """Describe in one line which instances have lost their process."""
    stubs = sorted(dead, key=lambda stub: stub.key)
    names = [f"{stub.instance} of model {stub.model!r} version {stub.version}" for stub in stubs]
    return f"dead: {name_some(names)}"


def name_some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{', '.join(names[:_MAX_NAMED])}{more}"


def _per_model(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]
) -> GaugeMetricFamily | CounterMetricFamily:
    for model, value in values.items():
        family.add_metric([model], value)
    return family
