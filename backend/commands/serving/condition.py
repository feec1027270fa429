"""What a supervisor knows of its server: whether to send requests there, whether to give it up, and what has
happened, for a health port and for Prometheus."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from commands.serving.stalls import Stall
from commands.serving.stubs import Stub

_SILENT = "tritonserver has not said for long that it is ready"
_MOST_NAMED = 5
"""In one line."""


class Phase(Enum):
    """What the server is doing, with the reason for which it is not ready; "" where it may be."""

    STARTING = "tritonserver is starting"
    SERVING = ""
    RESTARTING = "tritonserver has ended and is started again"
    DRAINING = "draining: the server is about to stop"
    ENDED = "tritonserver has ended"


class Condition(Collector):
    """Written by the supervisor, read by the threads of the health port."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase = Phase.STARTING
        self._answers = False
        self._silent = False
        self._unready_models: list[str] = []
        self._hopeless = ""
        self._living: list[Stub] = []
        self._dead: list[Stub] = []
        self._models: set[str] = set()
        self._deaths: Counter[str] = Counter()
        self._stalled: list[Stall] = []
        self._stalls: Counter[str] = Counter(tritonserver=0, stub=0)
        self._reloads: Counter[tuple[str, str]] = Counter()
        self._restarts = 0
        self._drains = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    @property
    def unready_reason(self) -> str:
        """Why no requests should be sent; "" where they should."""
        with self._lock:
            return self._find_unready_reason()

    @property
    def hopeless_reason(self) -> str:
        """Why nothing but an end of it all can help; "" where something can, or need not."""
        with self._lock:
            if self._phase is Phase.ENDED:
                return str(self._phase.value)
            return self._hopeless or (_SILENT if self._silent else "")

    def enter(self, phase: Phase) -> None:
        """Note what the server is doing now."""
        with self._lock:
            self._drains += phase is Phase.DRAINING and self._phase is not phase
            if phase is Phase.RESTARTING:
                self._restarts += 1
                self._answers = False
            self._phase = phase

    def note_stubs(self, living: Iterable[Stub], dead: Iterable[Stub]) -> None:
        """Note which instances have a process and which have lost theirs; new ones among these count."""
        with self._lock:
            before = set(self._dead)
            self._living, self._dead = list(living), list(dead)
            self._models.update(stub.model for stub in (*self._living, *self._dead))
            self._deaths.update(stub.model for stub in self._dead if stub not in before)

    def note_answer(self, ready: bool) -> None:
        """Note whether the server says that it is ready."""
        with self._lock:
            self._answers = ready

    def note_unready_models(self, models: list[str]) -> None:
        """Note the models that are loaded and do not say that they are ready."""
        with self._lock:
            self._unready_models = models

    def note_silence(self, long: bool) -> None:
        """Note whether the server has not said for long that it is ready."""
        with self._lock:
            self._silent = long

    def note_stalls(self, stalled: list[Stall]) -> list[Stall]:
        """Note which processes make no progress now; those of them that are new, which count."""
        with self._lock:
            new = [each for each in stalled if each not in self._stalled]
            self._stalled = list(stalled)
            self._stalls.update(each.program for each in new)
            return new

    def note_reload(self, model: str, outcome: str) -> None:
        """Note how a reload ended: "success" or "failure"."""
        with self._lock:
            self._reloads[model, outcome] += 1

    def give_up(self, reason: str) -> None:
        """Note that it cannot be healed, or with "" that it can after all."""
        with self._lock:
            self._hopeless = reason

    def write_metrics(self) -> bytes:
        """The page for Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The series, as prometheus_client asks for them."""
        with self._lock:
            living = Counter(stub.model for stub in self._living)
            dead = Counter(stub.model for stub in self._dead)
            ready = not self._find_unready_reason()
            drains = self._phase is Phase.DRAINING
            models, deaths, reloads = sorted(self._models), Counter(self._deaths), Counter(self._reloads)
            restarts, all_drains, stalls = self._restarts, self._drains, dict(self._stalls)
        yield GaugeMetricFamily(
            "poplar_supervisor_ready", "1 while /ready of the health port says 200, else 0", int(ready)
        )
        yield GaugeMetricFamily(
            "poplar_supervisor_draining", "1 from the request to stop until the server stops", int(drains)
        )
        yield _per_model(
            GaugeMetricFamily(
                "poplar_supervisor_living_stubs", "Instances that have a process", labels=["model"]
            ),
            {model: living[model] for model in models},
        )
        yield _per_model(
            GaugeMetricFamily(
                "poplar_supervisor_dead_stubs", "Instances that have lost their process", labels=["model"]
            ),
            {model: dead[model] for model in models},
        )
        yield _per_model(
            CounterMetricFamily(
                "poplar_supervisor_stub_deaths", "Processes of instances that died", labels=["model"]
            ),
            {model: deaths[model] for model in models},
        )
        family = CounterMetricFamily(
            "poplar_supervisor_reloads", "Models loaded anew for a dead process", labels=["model", "outcome"]
        )
        for (model, outcome), count in sorted(reloads.items()):
            family.add_metric([model, outcome], count)
        yield family
        family = CounterMetricFamily(
            "poplar_supervisor_stalls", "Processes that were found to make no progress", labels=["program"]
        )
        for program, count in stalls.items():
            family.add_metric([program], count)
        yield family
        yield CounterMetricFamily("poplar_supervisor_restarts", "Times Triton was started again", restarts)
        yield CounterMetricFamily("poplar_supervisor_drains", "Times it was asked to stop", all_drains)

    def _find_unready_reason(self) -> str:
        if self._phase is not Phase.SERVING:
            return str(self._phase.value)
        if self._stalled:
            return name_some(sorted(map(str, self._stalled)))
        if not self._answers:
            return "tritonserver does not say that it is ready"
        if self._dead:
            return describe_dead(self._dead)
        if self._unready_models:
            return f"not ready: {name_some([f'model {model!r}' for model in self._unready_models])}"
        return ""


def describe_dead(dead: Iterable[Stub]) -> str:
    """Which instances have lost their process, in one line."""
    stubs = sorted(dead, key=lambda stub: stub.key)
    names = [f"{stub.instance} of model {stub.model!r} version {stub.version}" for stub in stubs]
    return f"dead: {name_some(names)}"


def name_some(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


def _per_model(
    family: GaugeMetricFamily | CounterMetricFamily, values: dict[str, int]
) -> GaugeMetricFamily | CounterMetricFamily:
    for model, value in values.items():
        family.add_metric([model], value)
    return family
