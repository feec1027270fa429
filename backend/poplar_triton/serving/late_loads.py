"""Loads the models that a server's start cut short or did not try: they may be sound, and once the
start is over each load may take the time of its own limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from triton_poplar.server_start import CUT_SHORT, NOT_TRIED

from poplar_triton.errors import ServerError
from poplar_triton.serving.endpoint import LOAD_SECONDS
from poplar_triton.serving.server import TritonServer

MAX_ATTEMPTS = 3
"""Maximum number of loads of a model. Only a load that the server itself still counts to its start,
or whose result it does not tell, is repeated."""
PAUSE_SECONDS = 5.0
"""Pause after such a load."""


def is_late(reason: str) -> bool:
    """Return whether the start is the reason for which a model is not loaded."""
    return CUT_SHORT in reason


class LateLoads:
    """Loads models one after the other, in a thread of its own: first those that were not tried,
    which are less likely to be endless than those that were cut short.

    Until they are loaded or rejected, models count: the server is not ready. Those that were cut
    short count no longer than the start may take, so that endless ones do not hold up the others.
    """

    def __init__(
        self,
        server: TritonServer,
        models: Mapping[str, str],
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._tell = tell
        self._clock = clock
        self._reasons = dict(models)
        self._due = sorted(models, key=lambda name: (NOT_TRIED not in models[name], name))
        self._attempts = dict.fromkeys(models, 0)
        self._thread: threading.Thread | None = None
        self._loading = self._error = self._reason = ""
        self._next_at = clock()
        self._counts_until = clock() + server.start_seconds

    @property
    def counted(self) -> Mapping[str, str]:
        """Models that are not loaded yet, and the reason for each, as long as they count."""
        counts_all = self._clock() < self._counts_until
        return {
            model: reason
            for model, reason in self._reasons.items()
            if counts_all or NOT_TRIED in reason
        }

    def advance(self) -> dict[str, str]:
        """Begin the next load if none is under way. Return the model whose load has just been lost,
        if any, with the reason. Does not wait for a load."""
        if self._thread is not None and self._thread.is_alive():
            return {}
        lost = self._end() if self._loading else {}
        if self._due and self._clock() >= self._next_at:
            self._begin(self._due[0])
        return lost

    def _begin(self, model: str) -> None:
        thread = threading.Thread(
            target=self._load, args=(model,), name=f"load of {model}", daemon=True
        )
        self._next_at = self._clock() + PAUSE_SECONDS
        with suppress(RuntimeError):  # the limit of threads is reached; it is tried again
            thread.start()
            self._due.remove(model)
            self._thread, self._loading = thread, model

    def _load(self, model: str) -> None:
        self._attempts[model] += 1
        self._error = self._reason = ""
        try:
            self._server.endpoint.load(model, None, LOAD_SECONDS)
        except ServerError as error:
            self._reason = self._find_loss(model)
            self._error = str(error).partition("\n")[0] or "no reason given"

    def _end(self) -> dict[str, str]:
        """Note how the last load ended, and return the model if it was lost."""
        model, self._loading = self._loading, ""
        if is_late(self._reason) and self._attempts[model] < MAX_ATTEMPTS:
            self._due.append(model)
            return {}
        del self._reasons[model]
        self._next_at = self._clock()
        if not self._error:
            self._tell(f"model {model!r} is loaded")
        elif self._reason and not is_late(self._reason):
            self._tell(f"model {model!r} is not loaded: {self._reason}")
            return {model: self._reason}
        else:
            self._tell(f"model {model!r} is not served: {self._error}")
        return {}

    def _find_loss(self, model: str) -> str:
        """Return why a model may be sound though its load failed; "" if it is rejected."""
        with suppress(ServerError):
            return self._server.find_lost_models().get(model, "")
        return self._reasons[model]
