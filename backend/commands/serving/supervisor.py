"""Keeps a tritonserver serving: sees what Triton does not tell, heals it, starts it again, and stops it so
that no request is lost."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from commands.errors import ServerError
from commands.serving.condition import Condition, Phase, describe_dead
from commands.serving.healer import Healer
from commands.serving.inquest import Inquest
from commands.serving.server import TritonServer, is_remote, offer_to_oom_killer
from commands.serving.stalls import Stall, StallWatch
from commands.serving.stubs import Stub, StubWatch

LOOK_SECONDS = 0.2
"""Between two looks at the processes."""
ASK_SECONDS = 1.0
"""Between two questions whether the server is ready, and how long its answer may take."""
ASK_MODELS_SECONDS = 5.0
"""The same for every model; as often as the server where one is not ready."""
SILENCE_SECONDS = 30.0
"""A server that has not said for so long that it is ready is given up."""
RESTART_WINDOW_SECONDS = 600.0
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 30.0
"""Before the second restart within that time, and at most."""


class OnDeadStub(Enum):
    """What to do when an instance has lost its process, beside saying so."""

    REPORT = "report"
    RELOAD = "reload"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class Settings:
    """How to supervise: seconds to serve on after the request to stop, and how often in ten minutes Triton
    may be started again."""

    drain_seconds: float = 0.0
    on_dead_stub: OnDeadStub = OnDeadStub.REPORT
    restarts: int = 0


class StopRequest:
    """How often it was asked to stop. A signal's handler counts it: whatever has a lock could be interrupted
    while it holds that lock, and wait for itself for ever."""

    def __init__(self) -> None:
        self.count = 0

    def wait(self, seconds: float, count: int = 1) -> bool:
        """Let time pass until it was asked so often; whether it was."""
        end = time.monotonic() + seconds
        while self.count < count and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
        return self.count >= count


class Supervisor:
    """Watches a server that is ready, until it is asked to stop or cannot go on.

    `tell` gets a line per event.
    """

    def __init__(
        self,
        server: TritonServer,
        condition: Condition,
        settings: Settings,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._condition = condition
        self._settings = settings
        self._tell = tell
        self._clock = clock
        self._stop = StopRequest()
        self._healer = Healer(server.endpoint, condition, tell, clock)
        self._started: deque[float] = deque()
        self._served: set[str] = set()
        self._begin()

    def catch_signals(self) -> None:
        """From now on SIGTERM and SIGINT ask to stop, and once more not to wait for the end of the drain."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self.ask_to_stop())

    def ask_to_stop(self) -> None:
        """Have `run` drain and return; asked once more, at once."""
        self._stop.count += 1

    def run(self) -> bool:
        """Supervise; True when asked to stop, False where the server has ended, or had to be, and may not
        be started again. The server itself is stopped by who has started it."""
        self._condition.enter(Phase.SERVING)
        while not self._stop.wait(LOOK_SECONDS):
            status = self._server.poll()
            if status is not None:
                self._tell(f"tritonserver ended by itself, status {status}")
                if not self._start_again():
                    break
            elif not self._look():
                self._drain()
                self._tell("stopping tritonserver for its dead instances")
                self._server.stop()
                if not self._start_again():
                    break
        if self._stop.count:
            self._drain()
            return True
        self._condition.enter(Phase.ENDED)
        return False

    def _begin(self) -> None:
        """With a server that has just been started."""
        remote = is_remote(self._server.model_repository)
        self._watch = StubWatch(self._server.pid, is_remote=remote)
        self._inquest = Inquest(self._server.endpoint, is_remote=remote)
        self._stalls = StallWatch()
        self._known: set[Stub] = set()
        self._healer.forget()
        self._lost: list[Stub] = []
        self._dead: set[Stub] = set()
        self._unready: list[str] = []
        self._asked_at = self._asked_models_at = float("-inf")
        self._answered_at = self._clock()

    def _look(self) -> bool:
        """Bring what is known up to date and heal; False where Triton has to be started again for it."""
        living, lost = self._watch.look()
        stalled = self._stalls.look(self._watch.servers, living)
        for stall in self._condition.note_stalls(stalled):
            self._end(stall)
        if any(stall.stub is None for stall in stalled):
            self._note_answer(False)  # no question would be answered
            return True
        if stalled:
            living, lost = self._watch.look()
        for stub in set(living) - self._known:
            offer_to_oom_killer(stub.pid)
        self._known = set(living)
        self._inquest.meet(living)
        self._served = {stub.model for stub in (*living, *lost)}
        due = self._clock() >= self._asked_at + ASK_SECONDS
        if due or self._dead or lost != self._lost:
            self._hold_inquest(lost)
        self._condition.note_stubs(living, self._dead)
        if due:
            self._ask()
            if self._unready or self._clock() >= self._asked_models_at + ASK_MODELS_SECONDS:
                self._ask_models(living)
        if self._settings.on_dead_stub is OnDeadStub.RELOAD:
            self._healer.attend({stub.model for stub in self._dead})
        return not (self._dead and self._settings.on_dead_stub is OnDeadStub.EXIT)

    def _end(self, stall: Stall) -> None:
        """Kill a process that makes no progress, where a dead one is brought back; else only say so."""
        stub = stall.stub
        may_end = (
            self._settings.restarts if stub is None else self._settings.on_dead_stub is not OnDeadStub.REPORT
        )
        self._tell(f"{stall}; it is killed" if may_end else str(stall))
        if not may_end:
            return
        if stub is None:
            self._server.kill()
            return
        with suppress(ProcessLookupError):
            os.kill(stub.pid, signal.SIGKILL)
        self._watch.give_up(stub)

    def _hold_inquest(self, lost: list[Stub]) -> None:
        self._lost = lost
        dead, gone = self._inquest.divide(lost) if lost else (set(), [])
        dead |= {stub for stub in self._dead if self._healer.is_busy(stub.model)}
        for stub in gone:
            if not self._healer.is_busy(stub.model):  # else it may be served again in a moment
                self._watch.forget(stub)
        for stub in sorted(dead - self._dead, key=lambda each: each.key):
            self._tell(f"{describe_dead([stub])} (process {stub.pid})")
        if self._dead and not dead:
            self._tell("no instance is dead any more")
        self._dead = dead

    def _ask(self) -> None:
        """Whether the server is ready; one that has been silent for long is given up."""
        self._asked_at = self._clock()
        self._note_answer(self._server.endpoint.is_ready(ASK_SECONDS))

    def _note_answer(self, ready: bool) -> None:
        self._condition.note_answer(ready)
        if ready:
            self._answered_at = self._clock()
        self._condition.note_silence(self._clock() - self._answered_at > SILENCE_SECONDS)

    def _ask_models(self, living: list[Stub]) -> None:
        """Whether all that is loaded says that it is ready: of what loads or unloads it is not expected."""
        began = self._asked_models_at = self._clock()
        endpoint = self._server.endpoint
        self._unready = []
        for model, version in sorted({(stub.model, stub.version) for stub in living}):
            ready = False
            with suppress(ServerError):
                ready = endpoint.is_model_ready(model, version, ASK_SECONDS)
                if not ready and endpoint.read_config(model, version) is not None:
                    self._unready.append(model)
            if not ready and self._clock() > began + ASK_SECONDS:
                break  # nobody looks at the processes while a question is not answered
        self._condition.note_unready_models(self._unready)

    def _start_again(self) -> bool:
        """Start the server that has ended once more; False where that may not be, or was given up for a
        request to stop."""
        self._condition.note_stubs((), ())
        self._condition.note_stalls([])
        while not self._stop.count and self._may_start():
            self._condition.enter(Phase.RESTARTING)
            if self._stop.wait(self._find_wait()):
                return False
            self._started.append(self._clock())
            try:
                if not self._server.start_again(self._stop.wait):
                    return False
            except ServerError as error:
                self._tell(str(error))
                continue
            self._tell(
                f"tritonserver is ready again (start {len(self._started)} of {self._settings.restarts})"
            )
            self._begin()
            self._restore_models()
            self._condition.enter(Phase.SERVING)
            return True
        return False

    def _restore_models(self) -> None:
        """Load what a client had loaded into the server that has ended."""
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

    def _may_start(self) -> bool:
        most = self._settings.restarts
        while self._started and self._clock() - self._started[0] > RESTART_WINDOW_SECONDS:
            self._started.popleft()
        if len(self._started) < most:
            return True
        if most:
            self._tell(
                f"tritonserver was started {most} times in {RESTART_WINDOW_SECONDS / 60:g} minutes; giving up"
            )
        return False

    def _find_wait(self) -> float:
        """The first restart is at once."""
        return (
            min(FIRST_WAIT_SECONDS * 2.0 ** (len(self._started) - 1), LONGEST_WAIT_SECONDS)
            if self._started
            else 0
        )

    def _drain(self) -> None:
        """Say that no more requests should come, and serve those that do meanwhile."""
        self._condition.enter(Phase.DRAINING)
        seconds = self._settings.drain_seconds
        if not seconds:
            return
        self._tell(f"draining: serving goes on for {seconds:g} s")
        end = self._clock() + seconds
        while self._server.poll() is None and (left := end - self._clock()) > 0:
            if self._stop.wait(min(left, LOOK_SECONDS), 2):
                return
