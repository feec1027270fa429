"""Canary: a regular request to each model with inputs of zeros, with or without clients' requests.

It detects a failure that no process state shows: a stub that waits for itself for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from popef._tools.stalls import PROC
from popef._tools.zero_requests import make_inputs
from poplar_triton.errors import ServerError
from poplar_triton.serving.endpoint import HttpEndpoint, NoAnswerError
from poplar_triton.serving.server_state import ServerState
from poplar_triton.serving.stubs import Stall, Stub, Work, is_idle, read_work

LIMIT_SECONDS = 30.0
"""Time limit of an answer, which allows for a long queue."""
RETRY_SECONDS = 5.0
"""Maximum wait after a canary without an answer."""


@dataclass
class _WatchedVersion:
    """Version of a model that gets canaries."""

    next_at: float
    thread: threading.Thread | None = None
    works: dict[Stub, Work] = field(default_factory=dict)
    """Work that its stubs had done when the canary was sent."""
    fault: str = ""
    """Reason why its last canary had no answer."""
    hung: list[Stub] = field(default_factory=list)
    """Stubs that computed nothing while it waited for an answer."""
    is_excused: bool = False
    """Whether the log says that the model gets no canaries."""


class Canary:
    """Sends a canary to every version of a model each `seconds`, in threads of their own."""

    def __init__(
        self,
        endpoint: HttpEndpoint,
        state: ServerState,
        tell: Callable[[str], None],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        proc: Path = PROC,
    ) -> None:
        self._endpoint = endpoint
        self._state = state
        self._tell = tell
        self._seconds = seconds
        self._clock = clock
        self._proc = proc
        self._cases: dict[tuple[str, str], _WatchedVersion] = {}

    def check(self, living: Iterable[Stub]) -> list[Stall]:
        """Send canaries to the models of these stubs, each when it is due. Return the stubs that
        hang. Does not wait.

        Models with dead instances should not be among them, because their canaries are known to
        fail.
        """
        now = self._clock()
        versions: dict[tuple[str, str], list[Stub]] = {}
        for stub in living:
            versions.setdefault((stub.model, stub.version), []).append(stub)
        self._cases = {
            version: self._cases.get(version) or _WatchedVersion(now + self._seconds)
            for version in versions
        }
        for version, case in self._cases.items():
            is_busy = case.thread is not None and case.thread.is_alive()
            if not is_busy and now >= case.next_at:
                self._begin(version, case, versions[version])
        silent = [(model, case.fault) for (model, _), case in self._cases.items() if case.fault]
        self._state.silent_models = [
            f"model {model!r} ({fault})" for model, fault in sorted(silent)
        ]
        why = f"it used no CPU time for {LIMIT_SECONDS:g} s while a canary waited"
        return [
            Stall(stub.pid, why, stub)
            for version, case in self._cases.items()
            for stub in case.hung
            if stub in versions[version]
        ]

    def _begin(self, version: tuple[str, str], case: _WatchedVersion, stubs: list[Stub]) -> None:
        case.next_at = self._clock() + self._seconds
        case.works = {stub: read_work(stub.pid, self._proc) for stub in stubs}
        case.hung = []
        thread = threading.Thread(
            target=self._ask, args=(*version, case), name=f"canary of {version[0]}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the limit of threads is reached; the healer reports it
            return
        case.thread = thread

    def _ask(self, model: str, version: str, case: _WatchedVersion) -> None:
        try:
            config = self._endpoint.read_config(model, version)
            inputs = None if config is None else make_inputs(config)
        except (ServerError, ValueError) as error:
            if not case.is_excused:
                case.is_excused = True
                self._tell(f"model {model!r} version {version} gets no canary: {error}")
            return
        if inputs is None:
            return
        try:
            self._endpoint.infer_zeros(model, version, inputs, LIMIT_SECONDS)
        except NoAnswerError as error:
            fault = str(error)
            case.hung = self._find_hung(case) if error.is_late else []
        else:
            fault = ""
        if self._cases.get((model, version)) is not case:
            return  # the model has lost an instance meanwhile, or is gone
        self._state.note_canary(model, "failure" if fault else "success")
        if fault and not case.fault:
            self._tell(f"model {model!r} version {version} does not answer a canary: {fault}")
        elif case.fault and not fault:
            self._tell(f"model {model!r} version {version} answers canaries again")
        case.fault = fault
        wait = min(self._seconds, RETRY_SECONDS) if fault else self._seconds
        case.next_at = self._clock() + wait

    def _find_hung(self, case: _WatchedVersion) -> list[Stub]:
        """Return the stubs that have computed next to nothing since the request was sent; accepting
        the request takes a moment."""
        works = case.works.items()
        return [stub for stub, work in works if is_idle(work, read_work(stub.pid, self._proc))]
