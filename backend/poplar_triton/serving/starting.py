"""Starts of a supervised tritonserver: how often it may be started, and what happens to its
processes until it is ready.

While it loads models, Triton (2.51) waits for the answer of each stub without a limit, also if the
stub has died. Only another start helps then.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from popef._tools.memory import offer_to_oom_killer
from popef._tools.stalls import LOOK_SECONDS
from popef._tools.text import name_some
from poplar_triton.errors import LostServerError
from poplar_triton.serving.repository import is_remote
from poplar_triton.serving.server import VICTIM_POINTS, TritonServer
from poplar_triton.serving.server_state import ServerPhase, ServerState, describe_dead
from poplar_triton.serving.stubs import Stall, StallWatch, Stub, StubWatch, ZombieWatch

RESTART_WINDOW_SECONDS = 600.0
"""Time in which restarts count towards --restart."""
FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS = 1.0, 30.0
"""Minimum time between the first restart within that time and the second one, and the maximum
between two restarts; it doubles each time. A server that has run for longer is restarted at
once."""
SILENCE_SECONDS = 30.0
"""Maximum time without a ready answer, or of a stall during a start. After it the server is given
up."""
Wait = Callable[[float], bool]
"""Function that waits some seconds, and returns whether to give up."""


class Restarts:
    """Restarts of one tritonserver: at most `most` in ten minutes."""

    def __init__(
        self, most: int, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most = most
        self._tell = tell
        self._clock = clock
        self._begun: deque[float] = deque()

    @property
    def is_one_left(self) -> bool:
        """Whether the server may be restarted now."""
        while self._begun and self._clock() - self._begun[0] > RESTART_WINDOW_SECONDS:
            self._begun.popleft()
        return len(self._begun) < self.most

    @property
    def count(self) -> str:
        """How many restarts there were of how many, for messages."""
        return f"{len(self._begun)} of {self.most}"

    def may_begin(self) -> bool:
        """Return whether the server may be restarted now; log it if restarts are used up."""
        if self.is_one_left:
            return True
        if self.most:
            window = f"{RESTART_WINDOW_SECONDS / 60:g} minutes"
            self._tell(f"tritonserver was started {self.most} times in {window}; giving up")
        return False

    def begin(self, wait: Wait) -> bool:
        """Count a restart, after the wait that is due before it. Return False if `wait` says to
        give up."""
        if self._begun:
            pause = min(FIRST_WAIT_SECONDS * 2.0 ** (len(self._begun) - 1), MAX_WAIT_SECONDS)
            seconds_left = self._begun[-1] + pause - self._clock()
            if seconds_left > 0 and wait(seconds_left):
                return False
        self._begun.append(self._clock())
        return True


class StartWatch:
    """Watches the processes of a server that is not ready yet, with the rules that hold for one
    that serves. `pause` is for `TritonServer.start`; `hand_over` is for the supervisor of the
    server that is ready."""

    def __init__(
        self,
        server: TritonServer,
        state: ServerState,
        tell: Callable[[str], None],
        *,
        heals_stubs: bool,
        restarts: bool,
        wait: Wait,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._state = state
        self._tell = tell
        self._heals_stubs = heals_stubs
        self._restarts = restarts
        self._wait = wait
        self._clock = clock
        self._watch: StubWatch | None = None
        self._stalls = StallWatch()
        self._known: set[Stub] = set()
        self._zombies = ZombieWatch(clock)
        """Children that died while they loaded a model, maybe before they were known as stubs."""
        self._looked_at = self._moved_at = clock()

    def pause(self, seconds: float) -> bool:
        """Wait, and look at the processes. Raises LostServerError for a server that waited for a
        dead stub for ever and was killed."""
        if self._clock() >= self._looked_at + LOOK_SECONDS:
            self._looked_at = self._clock()
            self._look()
        return self._wait(seconds)

    def hand_over(self) -> StubWatch:
        """Return the watch that knows the stubs of the start. A stub that has died since the last
        look is lost there; without a process it is not recognized any more."""
        watch = self._find_watch()
        watch.scan()
        watch.forget_reaped()
        return watch

    def _find_watch(self) -> StubWatch:
        """Return the watch of the server's stubs; the server has no process id before its start."""
        if self._watch is None:
            remote = is_remote(self._server.model_repository)
            self._watch = StubWatch(
                self._server.pid,
                is_remote=remote,
                read_loads=lambda: self._server.loaded_models,
            )
        return self._watch

    def _look(self) -> None:
        watch = self._find_watch()
        living, lost = watch.scan()
        for stub in set(living) - self._known:
            offer_to_oom_killer(stub.pid, VICTIM_POINTS)
        self._known = set(living)
        stalled = self._stalls.scan(watch.servers, living)
        for stall in self._state.note_stalls(stalled):
            self._end(stall)
        if not any(stall.stub is None for stall in stalled):
            self._moved_at = self._clock()
        self._state.is_silent = self._clock() > self._moved_at + SILENCE_SECONDS
        is_paused = self._stalls.is_any_paused(watch.servers)
        if dead := self._zombies.scan(watch.servers, is_paused=is_paused):
            self._state.note_stubs(living, [stub for stub in lost if stub.pid in dead])
            error = LostServerError(self._describe(dead, lost))
            self._server.kill()
            raise error

    def _describe(self, dead: Collection[int], stubs: Iterable[Stub]) -> str:
        """Return the error of a server whose children are dead; `stubs` are those known."""
        dead_stubs = [stub for stub in stubs if stub.pid in dead]
        what = describe_dead(dead_stubs) if dead_stubs else "dead: a process of tritonserver"
        pids = ", ".join(map(str, sorted(dead)))
        models = name_some(sorted(map(repr, self._server.loading_models)))
        loading = f" (still loading: {models})" if models else ""
        return f"{what} (process {pids}) in a load, whose end tritonserver waits for{loading}"

    def _end(self, stall: Stall) -> None:
        """Kill a process that makes no progress, if that may be healed. Otherwise only report
        it."""
        stub = stall.stub
        may_end = self._restarts if stub is None else self._heals_stubs
        self._tell(f"{stall}; killing it" if may_end else str(stall))
        if not may_end:
            return
        if stub is None:
            self._server.kill()
        else:
            with suppress(ProcessLookupError):
                os.kill(stub.pid, signal.SIGKILL)


def start_first(
    server: TritonServer,
    state: ServerState,
    restarts: Restarts,
    make_watch: Callable[[], StartWatch],
    tell: Callable[[str], None],
    wait: Wait,
) -> None:
    """Start a server for the first time; again, as often as it may be restarted, if it is lost
    before it is ready. Raises ServerError if it does not become ready."""
    while True:
        try:
            server.start(make_watch().pause)
            state.note_stalls([])
            return
        except LostServerError as error:
            state.note_stalls([])
            if not restarts.may_begin():
                raise
            tell(str(error))
        state.enter(ServerPhase.RESTARTING)
        restarts.begin(wait)
