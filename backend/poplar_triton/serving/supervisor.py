"""Starts a tritonserver and keeps it serving: detects what Triton does not report, heals it, loads
what the start had no time for, restarts it, and stops it without losing a request. `starting`
watches it until it is ready."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial

from popef._tools.memory import offer_to_oom_killer
from poplar_triton.errors import ServerError
from poplar_triton.serving.canary import Canary
from poplar_triton.serving.endpoint import HttpEndpoint
from poplar_triton.serving.healer import DeadStubClassifier, Healer
from poplar_triton.serving.late_loads import LateLoads, is_late
from poplar_triton.serving.repository import find_store, is_remote
from poplar_triton.serving.resource_use import LeakMeter, find_shortage, measure_resource_use
from poplar_triton.serving.server import VICTIM_POINTS, TritonServer
from poplar_triton.serving.server_state import ServerPhase, ServerState, describe_dead
from poplar_triton.serving.starting import (
    SILENCE_SECONDS,
    Restarts,
    StartWatch,
    Wait,
    start_first,
)
from poplar_triton.serving.stubs import OrphanWatch, Stall, StallWatch, Stub
from poplar_triton.serving.stuck_calls import StuckCalls
from poplar_triton.serving.traffic import TrafficWatch

LOOK_SECONDS = 0.2
"""Time between two looks at the processes."""
ASK_SECONDS = 1.0
"""Time between two checks whether the server is ready, and the timeout of a check."""
ASK_MODELS_SECONDS = 5.0
"""Time between two checks of every model. If a model is not ready, it is checked as often as the
server."""


class OnDeadStub(Enum):
    """Action when an instance has lost its process, in addition to reporting it."""

    REPORT = "report"
    RELOAD = "reload"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class SupervisionSettings:
    """Settings of supervision: seconds to serve after the request to stop, and the maximum while
    requests still come; how often in ten minutes Triton may be restarted; and seconds between two
    canaries (0: none)."""

    drain_seconds: float = 0.0
    max_drain_seconds: float = 0.0
    on_dead_stub: OnDeadStub = OnDeadStub.REPORT
    restarts: int = 0
    canary_seconds: float = 0.0


class StopRequest:
    """Number of requests to stop. A signal handler counts them: a handler that takes a lock could
    interrupt the holder of that lock and wait for itself for ever."""

    def __init__(self) -> None:
        self.count = 0

    def catch_signals(self) -> None:
        """Count SIGTERM and SIGINT from now on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def wait(self, seconds: float, count: int = 1) -> bool:
        """Wait until there were `count` requests or the time is over; return whether there were."""
        end = time.monotonic() + seconds
        while self.count < count and (seconds_left := end - time.monotonic()) > 0:
            time.sleep(min(seconds_left, LOOK_SECONDS))
        return self.count >= count

    def _ask(self, *_: object) -> None:
        self.count += 1


class Supervisor:
    """Starts a server, and watches it until it is asked to stop or the server cannot go on.

    `tell` gets a line per event.
    """

    def __init__(
        self,
        server: TritonServer,
        state: ServerState,
        settings: SupervisionSettings,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._state = state
        self._settings = settings
        self._tell = tell
        self._clock = clock
        self._stop = StopRequest()
        self._restarts = Restarts(settings.restarts, tell, clock)
        self._served: set[str] = set()
        self._start_watch = self._watch_start(self._stop.wait)

    def catch_signals(self) -> None:
        """Handle SIGTERM and SIGINT from now on: the first asks to stop, the second not to wait for
        the end of the drain."""
        self._stop.catch_signals()

    def ask_to_stop(self) -> None:
        """Make `run` drain and return; a second call makes it return at once."""
        self._stop.count += 1

    def start(self, wait: Wait) -> None:
        """Start the server, which is healed from now on. `wait` pauses, and raises an exception to
        give up. Raises ServerError if the server does not become ready."""
        watch = partial(self._watch_start, wait)
        start_first(self._server, self._state, self._restarts, watch, self._tell, wait)

    def run(self) -> bool:
        """Supervise the server, which is ready. Return True when asked to stop, and False if the
        server has ended, or had to be ended, and may not be restarted. The caller, who entered the
        server, also stops it."""
        store = find_store(self._server.model_repository)
        endpoint, seconds = self._server.endpoint, self._server.start_seconds
        self._healer = Healer(endpoint, self._state, self._tell, self._clock, seconds, store)
        self._begin()
        self._state.enter(ServerPhase.SERVING)
        while not self._stop.wait(LOOK_SECONDS):
            status = self._server.poll()
            if status is not None:
                self._tell(f"tritonserver ended by itself, status {status}")
                self._server.stop()  # its stubs, which would compete with the next one's
                if not self._start_again():
                    break
            elif reason := self._scan():
                self._drain()
                self._tell(f"stopping tritonserver for {reason}")
                self._server.stop()
                if not self._start_again():
                    break
        if self._stop.count:
            self._drain()
            return True
        self._state.enter(ServerPhase.ENDED)
        return False

    def _watch_start(self, wait: Wait) -> StartWatch:
        self._start_watch = StartWatch(
            self._server,
            self._state,
            self._tell,
            heals_stubs=self._settings.on_dead_stub is not OnDeadStub.REPORT,
            restarts=bool(self._settings.restarts),
            wait=wait,
            clock=self._clock,
        )
        return self._start_watch

    def _begin(self) -> None:
        """Reset the supervisor's state for a server that has just been started."""
        remote = is_remote(self._server.model_repository)
        self._watch = self._start_watch.hand_over()
        self._classifier = DeadStubClassifier(self._server.endpoint, is_remote=remote)
        self._stalls = StallWatch()
        self._known: set[Stub] = set()
        self._canary = self._make_canary()
        self._leaks = LeakMeter()
        self._orphans = OrphanWatch(self._clock)
        self._stuck = StuckCalls(self._server, self._state, self._tell, self._clock)
        self._state.start_seconds = self._server.ready_seconds
        self._shortage = ""
        self._num_threads = 0  # of a reload: while it loads both the old and the new have theirs
        self._healer.forget()
        self._lost: list[Stub] = []
        self._dead: set[Stub] = set()
        self._unready: list[str] = []
        self._asked_at = self._asked_models_at = float("-inf")
        self._answered_at = self._clock()
        self._find_lost_models()

    def _find_lost_models(self) -> None:
        """Find the models that have not loaded, but may: they are named, and loaded now or healed
        as far as that is allowed."""
        lost: dict[str, str] = {}
        with suppress(ServerError):  # a server that does not list its models; it was warned of
            lost = self._server.find_lost_models()
        for model, reason in sorted(lost.items()):
            self._tell(f"model {model!r} is not loaded: {reason}")
        late = {model: reason for model, reason in lost.items() if is_late(reason)}
        self._state.lost_models = {name: lost[name] for name in lost.keys() - late.keys()}
        takes_models = self._server.takes_models
        self._late = LateLoads(self._server, late if takes_models else {}, self._tell, self._clock)
        self._state.late_models = self._late.counted

    def _make_canary(self) -> Canary | None:
        seconds, endpoint = self._settings.canary_seconds, self._server.endpoint
        if not seconds or not isinstance(endpoint, HttpEndpoint):
            return None
        return Canary(endpoint, self._state, self._tell, seconds, self._clock)

    def _scan(self) -> str:
        """Update the state and heal. Return the reason for which Triton has to be restarted, or
        ""."""
        living, lost = self._watch.scan()
        stalled = self._stalls.scan(self._watch.servers, living)
        # A question that is not answered would delay the looks that find the stall.
        is_paused = self._stalls.is_any_paused(self._watch.servers)
        due = not is_paused and self._clock() >= self._asked_at + ASK_SECONDS
        if self._canary is not None:
            dead = {stub.model for stub in (*self._dead, *lost)}
            stalled += self._canary.check(stub for stub in living if stub.model not in dead)
        for stall in self._state.note_stalls(stalled):
            self._end(stall)
        if any(stall.stub is None for stall in stalled):
            self._note_answer(False)  # it would answer no request
            return ""
        if stalled:
            living, lost = self._watch.scan()
        for stub in set(living) - self._known:
            offer_to_oom_killer(stub.pid, VICTIM_POINTS)
        if due:
            self._server.restrict_memory()
            self._measure(living)
            self._stuck.scan(self._watch, living, lost)
        self._known = set(living)
        self._classifier.learn_models(living)
        self._served = {stub.model for stub in (*living, *lost)}
        if due or (not is_paused and (self._dead or lost != self._lost)):
            self._classify_lost(lost)
        self._state.note_stubs(living, [*self._dead, *self._stuck.dead])
        if due:
            self._forget_found_models()
            self._ask()
            if self._state.answers and (
                self._unready or self._clock() >= self._asked_models_at + ASK_MODELS_SECONDS
            ):
                self._ask_models(living)
        self._state.lost_models = {**self._state.lost_models, **self._late.advance()}
        self._state.late_models = self._late.counted
        return self._heal()

    def _heal(self) -> str:
        """Heal dead instances. Return the reason for which Triton has to be restarted for it, or
        ""."""
        if self._settings.on_dead_stub is OnDeadStub.RELOAD:
            reason = self._healer.find_exhaustion() or self._shortage
            if reason and self._restarts.is_one_left:
                return reason
            self._healer.reload({stub.model for stub in self._dead}, self._state.lost_models)
            if reason and self._dead:
                self._state.hopeless = reason  # only a restart would help, and it is not allowed
        if self._settings.on_dead_stub is not OnDeadStub.EXIT:
            return ""
        if self._state.lost_models and self._restarts.is_one_left:
            return "its models that are not loaded"
        return "its dead instances" if self._dead or self._stuck.dead else ""

    def _forget_found_models(self) -> None:
        """Forget the lost models that are served meanwhile."""
        models = set()
        for model in self._state.lost_models:
            with suppress(ServerError):
                if self._server.endpoint.read_config(model) is not None:
                    models.add(model)
                    self._tell(f"model {model!r} is loaded")
        if models:
            lost = self._state.lost_models
            self._state.lost_models = {name: lost[name] for name in lost.keys() - models}

    def _measure(self, living: list[Stub]) -> None:
        """Measure what the server holds and what heals have left in it, and check that there is
        enough for the next heal."""
        replaced = self._watch.replaced
        pids = [stub.pid for stub in (*living, *replaced)]
        use = measure_resource_use(self._watch.servers, pids, self._server.count_segments())
        self._state.resource_use = use
        is_healing = bool(self._dead) or self._healer.is_at_work
        if leak := self._leaks.scan(use, self._clock(), is_healing=is_healing):
            self._state.note_leak(threads=leak.threads, segments=leak.segments)
            self._num_threads = max(self._num_threads, 2 * leak.threads)
            self._tell(
                f"reloads left {leak.threads} threads and {leak.segments} segments in tritonserver"
            )
        for stub in self._orphans.scan(replaced, self._healer.take_reloaded()):
            self._tell(
                f"replaced: {stub.title} (process {stub.pid}) is still alive but no longer serves; "
                "killing it"
            )
            self._state.note_leak(stubs=1)
            self._stuck.account([stub.pid])
            with suppress(ProcessLookupError):
                os.kill(stub.pid, signal.SIGKILL)
        has_left = self._healer.has_tried and not self._healer.is_at_work
        shortage = find_shortage(self._num_threads) if has_left else ""
        if shortage and not self._shortage and not self._restarts.is_one_left:
            advice = "--restart does not allow another restart, which would free some"
            self._tell(f"warning: {shortage}; {advice}")
        self._shortage = shortage

    def _end(self, stall: Stall) -> None:
        """Kill a process that makes no progress, if it may be healed or restarted after that.
        Otherwise only report it."""
        stub = stall.stub
        may_heal = self._settings.on_dead_stub is not OnDeadStub.REPORT
        may_end = self._settings.restarts if stub is None else may_heal
        self._tell(f"{stall}; killing it" if may_end else str(stall))
        if not may_end:
            return
        if stub is None:
            self._server.kill()
            return
        with suppress(ProcessLookupError):
            os.kill(stub.pid, signal.SIGKILL)
        self._watch.ignore(stub)

    def _classify_lost(self, lost: list[Stub]) -> None:
        self._lost = lost
        dead, gone = (
            self._classifier.classify(lost, self._watch.had_loaded) if lost else (set(), [])
        )
        dead |= {stub for stub in self._dead if self._healer.is_busy(stub.model)}
        for stub in gone:
            if not self._healer.is_busy(stub.model):  # else it may be served again in a moment
                self._watch.forget(stub)
        for stub in sorted(dead - self._dead, key=lambda stub: stub.key):
            self._tell(f"{describe_dead([stub])} (process {stub.pid})")
        if self._dead and not dead:
            self._tell("all instances are alive again")
        self._dead = dead
        self._stuck.account(stub.pid for stub in dead)

    def _ask(self) -> None:
        """Check whether the server is ready. A server that has been silent for long is given up."""
        self._asked_at = self._clock()
        self._note_answer(self._server.endpoint.is_ready(ASK_SECONDS))

    def _note_answer(self, ready: bool) -> None:
        self._state.answers = ready
        if ready:
            self._answered_at = self._clock()
        self._state.is_silent = self._clock() - self._answered_at > SILENCE_SECONDS

    def _ask_models(self, living: list[Stub]) -> None:
        """Check whether every loaded model says that it is ready. Models that load or unload are
        not expected to be."""
        began = self._asked_models_at = self._clock()
        endpoint = self._server.endpoint
        self._unready = []
        for model, version in sorted({(stub.model, stub.version) for stub in living}):
            ready = False
            with suppress(ServerError):
                ready = endpoint.is_model_ready(model, version, ASK_SECONDS)
                if not ready and endpoint.read_config(model, version, ASK_SECONDS) is not None:
                    self._unready.append(model)
            if not ready and self._clock() > began + ASK_SECONDS:
                break  # the processes are not watched during an unanswered request
        self._state.unready_models = self._unready

    def _start_again(self) -> bool:
        """Restart the server that has ended. Return False if that is not allowed, or was given up
        for a request to stop."""
        while not self._stop.count and self._restarts.may_begin():
            self._state.note_stubs((), ())
            self._state.note_stalls([])
            self._state.enter(ServerPhase.RESTARTING)
            if not self._restarts.begin(self._stop.wait):
                return False
            try:
                if not self._server.start(self._watch_start(self._stop.wait).pause):
                    return False
            except ServerError as error:
                self._tell(str(error))
                continue
            self._tell(f"tritonserver is ready again (start {self._restarts.count})")
            self._begin()
            self._restore_models()
            self._state.enter(ServerPhase.SERVING)
            return True
        self._state.note_stubs((), ())
        self._state.note_stalls([])
        return False

    def _restore_models(self) -> None:
        """Load the models that a client had loaded into the server that has ended."""
        for model in sorted(self._served if self._server.takes_models else ()):
            if self._stop.count:
                return
            try:
                if self._server.endpoint.read_config(model) is not None:
                    continue
                self._server.endpoint.load(model)
            except ServerError as error:
                self._tell(f"model {model!r}, which was served before, did not load: {error}")
            else:
                self._tell(f"model {model!r}, which was served before, is loaded again")

    def _drain(self) -> None:
        """Announce the drain, and serve the requests that still arrive."""
        self._state.enter(ServerPhase.DRAINING)
        seconds = self._settings.drain_seconds
        if not seconds and not self._settings.max_drain_seconds:
            return
        self._tell(f"draining: serving continues for {seconds:g} s")
        began = self._clock()
        if not self._serve_until(began + seconds):
            return
        if self._settings.max_drain_seconds > seconds:
            self._drain_traffic(began + self._settings.max_drain_seconds)

    def _drain_traffic(self, end: float) -> None:
        """Continue to serve while requests still come, until `end` at most."""
        traffic = TrafficWatch(self._server.ports[:2], self._server.metrics_url, self._clock)
        is_told = False
        while (seconds_left := end - self._clock()) > 0 and traffic.is_busy():
            if not is_told:
                text = f"serving continues for at most {seconds_left:.0f} s"
                self._tell(f"draining: requests may still arrive; {text}")
                is_told = True
            if not self._serve_until(self._clock() + min(seconds_left, LOOK_SECONDS)):
                return

    def _serve_until(self, end: float) -> bool:
        """Wait. Return False if the server has ended, or has to stop at once."""
        while (seconds_left := end - self._clock()) > 0:
            if self._server.poll() is not None or self._stop.wait(
                min(seconds_left, LOOK_SECONDS), 2
            ):
                return False
        return True
