"""Loads models anew whose instances have lost their processes."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from triton_poplar.parameters import RELOAD_PARAMETER

from commands.errors import ServerError
from commands.serving.condition import Condition
from commands.serving.endpoint import Endpoint

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 60.0
"""After a reload that brought nothing, before the next: twice as long each time."""
MOST_RELOADS = 8
"""In a row without success; after that the model counts as beyond healing, and is still tried."""
CALM_SECONDS = 60.0
"""A model whose instances live so long after a reload is healed."""


@dataclass
class _Case:
    """A model that is reloaded, or was."""

    attempts: int = 0
    next_at: float = 0.0
    thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


def _mark(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with a parameter that no earlier one has."""
    mark = {"string_value": uuid.uuid4().hex}
    return {**config, "parameters": {**config.get("parameters", {}), RELOAD_PARAMETER: mark}}


class Healer:
    """Each model on its own: a slow or broken one keeps no other waiting.

    A reload is a `load` with the configuration that the model is served with, and a mark: where neither files
    nor configuration have changed Triton does nothing. The old instances serve until the new ones do; never
    `unload`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        condition: Condition,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._condition = condition
        self._tell = tell
        self._clock = clock
        self._cases: dict[str, _Case] = {}

    def attend(self, models: Iterable[str]) -> None:
        """Reload these models, whose instances are dead now, each when it is due. Does not wait."""
        now = self._clock()
        dead = set(models)
        for model in dead:
            case = self._cases.setdefault(model, _Case())
            if not case.is_busy and now >= case.next_at:
                self._begin(model, case, now)
        for model, case in list(self._cases.items()):
            if model not in dead and not case.is_busy and now >= case.next_at + CALM_SECONDS:
                del self._cases[model]
        lost = sorted(model for model in dead if self._cases[model].attempts > MOST_RELOADS)
        names = ", ".join(map(repr, lost))
        self._condition.give_up(f"{MOST_RELOADS} reloads did not bring back {names}" if lost else "")

    def is_busy(self, model: str) -> bool:
        """Whether a reload of it is under way: until its end the dead instances are asked still, though the
        new ones have processes."""
        return model in self._cases and self._cases[model].is_busy

    def forget(self) -> None:
        """The server is another one now."""
        self._cases.clear()
        self._condition.give_up("")

    def _begin(self, model: str, case: _Case, now: float) -> None:
        wait = FIRST_WAIT_SECONDS * 2.0 ** min(case.attempts, MOST_RELOADS)
        case.attempts += 1
        case.next_at = now + min(wait, LONGEST_WAIT_SECONDS)
        case.thread = threading.Thread(
            target=self._reload, args=(model,), name=f"reload of {model}", daemon=True
        )
        case.thread.start()

    def _reload(self, model: str) -> None:
        began = self._clock()
        try:
            config = self._endpoint.read_config(model)
            self._endpoint.load(model, None if config is None else _mark(config))
        except ServerError as error:
            self._condition.note_reload(model, "failure")
            self._tell(f"model {model!r}: reload failed: {error}")
        else:
            self._condition.note_reload(model, "success")
            self._tell(f"model {model!r}: reloaded in {self._clock() - began:.1f} s")
