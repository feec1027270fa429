"""Classifies instances that have lost their process, and reloads the models of the dead ones:
those that Triton still serves.

A process also ends in order: its model is unloaded, gets fewer instances or did not load, or the
process only completed the configuration.
"""

from __future__ import annotations

import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from triton_poplar.parameters import RELOAD_PARAMETER

from poplar_triton.errors import ServerError
from poplar_triton.serving.endpoint import LOAD_SECONDS, Endpoint
from poplar_triton.serving.server_state import ServerState
from poplar_triton.serving.stubs import Stub

_GPU = re.compile(r"_gpu\d+$")


class DeadStubClassifier:
    """Queries a server for what it serves. If the server does not answer, a lost instance counts as
    dead if its process had loaded; else only an answer decides.

    It does not use the repository index, because Triton reads the repository for it. If the
    repository's store is unreachable, Triton answers no other request on that thread for half a
    minute.

    A server with models from a store (`is_remote`) does not tell a stub the name of its model if
    the instance group has a name of its own. Then the group is looked up in the models'
    configurations.
    """

    def __init__(self, endpoint: Endpoint, *, is_remote: bool = False) -> None:
        self._endpoint = endpoint
        self._is_remote = is_remote
        self._names: set[str] = set()
        self._met: set[str] = set()

    def learn_models(self, living: Iterable[Stub]) -> None:
        """Learn the names of a store's models when one is new: it has just been loaded from
        there."""
        met = {stub.model for stub in living} if self._is_remote else set()
        if not met <= self._met:
            self._met = met
            with suppress(ServerError):
                self._names = {model.name for model in self._endpoint.list_models()}

    def classify(
        self, lost: Iterable[Stub], had_loaded: Callable[[Stub], bool]
    ) -> tuple[set[Stub], list[Stub]]:
        """Return the dead stubs among these, under their models' names, and the stubs whose
        instances are not served. `had_loaded` returns whether a stub's load had succeeded."""
        dead, gone = set(), []
        for stub in lost:
            try:
                identified = self._identify(stub)
                if self._has(identified):
                    dead.add(identified)
                else:
                    gone.append(stub)
            except ServerError:
                if had_loaded(stub):
                    dead.add(stub)
        return dead, gone

    def _identify(self, stub: Stub) -> Stub:
        """Return the stub under the name of its model."""
        if not self._is_remote or stub.model in self._names:
            return stub
        group = _split(stub.instance)[0]
        names = (name for name in sorted(self._names) if group in (self._read_groups(name) or ()))
        return replace(stub, model=next(names, stub.model))

    def _has(self, stub: Stub) -> bool:
        """Return whether the server serves such an instance."""
        groups = self._read_groups(stub.model, stub.version)
        group, place = _split(stub.instance)
        return groups is not None and (not groups or place < groups.get(group, 0))

    def _read_groups(self, model: str, version: str = "") -> Mapping[str, int] | None:
        """Return how many instances each group of a model has, or None if the model is not
        served."""
        config = self._endpoint.read_config(model, version)
        return None if config is None else _count_instances(config)


def _count_instances(config: Mapping[str, Any]) -> dict[str, int]:
    return {
        str(group.get("name", "")): int(group.get("count", 1))
        for group in config.get("instance_group", ())
    }


def _split(instance: str) -> tuple[str, int]:
    """Return an instance's group and its index there."""
    group, _, place = _GPU.sub("", instance).rpartition("_")
    return group, int(place) if place.isdecimal() else 0


FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS = 1.0, 60.0
"""Minimum and maximum wait between a reload that did not help and the next one; the wait doubles
each time."""
STORE_WAIT_SECONDS = 1.0
"""Maximum wait while the store of the models does not answer. So models are healed within seconds
of its return."""
STORE_SECONDS = 1.0
"""Timeout for a store to accept a connection."""
_NO_FILES = "failed to poll from model repository"
"""Triton's message after half a minute if it cannot reach a model's files."""
TELL_SECONDS = 30.0
"""Time between two log lines about the same failure."""
MAX_RELOADS = 8
"""Maximum number of successive reloads without success. After that the model counts as beyond
healing, but is still retried."""
MAX_SERVER_RELOADS = 16
"""Maximum number of reloads of one tritonserver. Each leaves up to 71 threads, two segments of
shared memory and a process of 100 MiB in it (measured with Triton 2.51). So a container of 3 GiB is
full after 28."""
SLOW_SECONDS = 30.0
"""Duration of a reload after which it is reported while it lasts."""
CALM_SECONDS = 60.0
"""Time after a reload for which a model's instances must live until the model counts as healed."""


class _NoStoreError(ServerError):
    """Error of a store of the models that does not answer."""


@dataclass
class _ModelReload:
    """Model that is being reloaded, or was."""

    attempts: int = 0
    next_at: float = 0.0
    thread: threading.Thread | None = None
    began: float = 0.0
    is_told: bool = False
    is_hung: bool = False
    """Whether its last reload did not end in time."""
    lacks_store: bool = False
    """Whether its last reload found no store."""
    told: tuple[str, float] = ("", 0.0)
    """Last failure that was logged, and when."""

    @property
    def is_busy(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


def _mark(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with a fresh reload token."""
    mark = {"string_value": uuid.uuid4().hex}
    return {**config, "parameters": {**config.get("parameters", {}), RELOAD_PARAMETER: mark}}


class Healer:
    """Reloads each model on its own, so that a slow or broken model does not delay another.

    A reload is a `load` with the configuration with which the model is served, and a mark. Without
    the mark Triton does nothing if neither files nor configuration have changed. The old instances
    serve until the new ones do, so there is never an `unload`. If the `store` of the models, an
    address and port, accepts no connection, Triton gets no request: it would try for half a minute
    and could load no other model meanwhile.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        state: ServerState,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        limit_seconds: float = LOAD_SECONDS,
        store: tuple[str, int] | None = None,
    ) -> None:
        self._store = store
        self._limit_seconds = limit_seconds
        self._successes: list[str] = []
        self._num_taken = 0
        self._endpoint = endpoint
        self._state = state
        self._tell = tell
        self._clock = clock
        self._cases: dict[str, _ModelReload] = {}

    def reload(self, models: Iterable[str], lost: Iterable[str] = ()) -> None:
        """Reload these models, whose instances are dead now, and load the `lost` ones, which never
        loaded, each when it is due. Does not wait."""
        now = self._clock()
        dead = set(models)
        ailing = dead.union(lost)
        for model in ailing:
            case = self._cases.setdefault(model, _ModelReload())
            if not case.is_busy and now >= case.next_at:
                self._begin(model, case, now)
            elif case.is_busy and not case.is_told and now >= case.began + SLOW_SECONDS:
                case.is_told = True
                self._tell(f"model {model!r}: reload running for {now - case.began:.0f} s")
        for model, case in list(self._cases.items()):
            if model not in ailing and not case.is_busy and now >= case.next_at + CALM_SECONDS:
                del self._cases[model]
        hopeless = sorted(model for model in dead if self._cases[model].attempts > MAX_RELOADS)
        names = ", ".join(map(repr, hopeless))
        self._state.hopeless = f"{MAX_RELOADS} reloads did not recover {names}" if hopeless else ""

    @property
    def is_at_work(self) -> bool:
        """Whether a reload is under way that is not slow yet."""
        return any(case.is_busy and not case.is_told for case in self._cases.values())

    @property
    def has_tried(self) -> bool:
        """Whether this server has had a reload, which may have left something in it."""
        return bool(self._cases) or bool(self._successes)

    def find_exhaustion(self) -> str:
        """Return why the server should be restarted, or "": a reload hangs, or there were many."""
        hung = sorted(repr(model) for model, case in self._cases.items() if case.is_hung)
        if hung:
            limit = f"{self._limit_seconds:g} s"
            return f"a reload of {', '.join(hung)} that did not end within {limit}"
        is_busy = any(case.is_busy for case in self._cases.values())
        if is_busy or len(self._successes) < MAX_SERVER_RELOADS:
            return ""
        return f"the resources that {len(self._successes)} reloads left"

    def take_reloaded(self) -> set[str]:
        """Return the models whose reload has succeeded since the last call."""
        reloaded = self._successes[self._num_taken :]
        self._num_taken += len(reloaded)
        return set(reloaded)

    def is_busy(self, model: str) -> bool:
        """Return whether a reload of the model is under way. Until its end Triton still sends
        requests to the dead instances, though the new ones have processes."""
        return model in self._cases and self._cases[model].is_busy

    def forget(self) -> None:
        """Forget all models, because the server is a new one."""
        self._cases.clear()
        self._successes.clear()
        self._num_taken = 0
        self._state.hopeless = ""

    def _begin(self, model: str, case: _ModelReload, now: float) -> None:
        wait = min(FIRST_WAIT_SECONDS * 2.0 ** min(case.attempts, MAX_RELOADS), MAX_WAIT_SECONDS)
        case.attempts += not case.lacks_store
        case.began, case.is_told = now, False
        case.next_at = now + (min(wait, STORE_WAIT_SECONDS) if case.lacks_store else wait)
        thread = threading.Thread(
            target=self._reload, args=(model, case), name=f"reload of {model}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            self._state.note_reload(model, "failure")
            self._tell_failure(
                case, f"model {model!r}: no reload: {error}; the thread limit is reached"
            )
        else:
            case.thread = thread

    def _reload(self, model: str, case: _ModelReload) -> None:
        began = self._clock()
        try:
            self._check_store()
            config = self._endpoint.read_config(model)
            self._endpoint.load(
                model, None if config is None else _mark(config), self._limit_seconds
            )
        except ServerError as error:
            case.is_hung = self._clock() >= began + self._limit_seconds
            case.lacks_store = self._store is not None and (
                isinstance(error, _NoStoreError) or _NO_FILES in str(error)
            )
            self._state.note_reload(model, "failure")
            self._tell_failure(case, f"model {model!r}: reload failed: {error}")
        else:
            case.lacks_store = False
            seconds = self._clock() - began
            self._state.note_reload(model, "success", seconds)
            self._tell(f"model {model!r}: reloaded in {seconds:.1f} s")
            self._successes.append(model)

    def _check_store(self) -> None:
        if self._store is None:
            return
        try:
            socket.create_connection(self._store, timeout=STORE_SECONDS).close()
        except OSError as error:
            host, port = self._store
            raise _NoStoreError(
                f"the store at {host}:{port} does not accept connections ({error})"
            ) from error

    def _tell_failure(self, case: _ModelReload, text: str) -> None:
        """Log the failure. A store that does not answer is logged once, and again now and then."""
        text_before, at = case.told
        if not case.lacks_store or text != text_before or self._clock() >= at + TELL_SECONDS:
            case.told = text, self._clock()
            self._tell(text)
