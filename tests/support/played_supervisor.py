"""A supervisor and a server without processes: what happens at each look is played."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any, cast

from poplar_triton.errors import ServerError
from poplar_triton.serving.server_state import ServerState
from poplar_triton.serving.stubs import Stall, Stub
from poplar_triton.serving.supervisor import SupervisionSettings, Supervisor
from waiting import PATIENCE_SECONDS

DEAD = Stub(7, 1, "m", "1", "m_0_0")
HERE = Stub(8, 1, "m", "1", "m_0_1")


class PlayedServer:
    """Server with its endpoint; `script` has what happens at each look."""

    def __init__(self, script: list[Callable[[], Any]]) -> None:
        self.endpoint = self
        self.script = script
        self.model_repository = "models"
        self.takes_models = False
        self.pid = 1
        self.start_seconds, self.ready_seconds, self.exit_seconds = 300.0, 7.0, 30
        self.ports, self.metrics_url = (1, 2, 3), "http://none"
        self.replaced: list[Stub] = []
        self.status: int | None = None
        self.ready = True
        self.served = ["m"]
        self.unready: list[str] = []
        self.living = [HERE]
        self.lost: list[Stub] = []
        self.servers = {1}
        self.stalled: list[Stall] = []
        self.kills = self.restrictions = 0
        self.starts = 0
        self.failing_starts = 0
        self.loads: list[str] = []
        self.stops = 0
        self.lost_models: dict[str, str] = {}

    def poll(self) -> int | None:
        if self.script:
            self.script.pop(0)()
        return self.status

    def scan(self) -> tuple[list[Stub], list[Stub]]:
        return self.living, list(self.lost)

    def had_loaded(self, stub: Stub) -> bool:
        return True

    def forget(self, stub: Stub) -> None:
        self.lost.remove(stub)

    def forget_reaped(self) -> None:
        pass

    def ignore(self, stub: Stub) -> None:
        self.stalled.clear()
        self.living.remove(stub)
        self.lost.append(stub)

    def restrict_memory(self) -> None:
        self.restrictions += 1

    def count_segments(self) -> int:
        return 3

    def kill(self) -> None:
        self.kills += 1
        self.status = -9

    def start(self, pause: Callable[[float], bool]) -> bool:
        self.starts += 1
        if self.starts <= self.failing_starts:
            raise ServerError("port is busy")
        self.status, self.lost, self.stalled = None, [], []
        return not pause(0)

    def stop(self) -> None:
        self.stops += 1

    def is_ready(self, seconds: float) -> bool:
        return self.ready

    def is_model_ready(self, model: str, version: str, seconds: float) -> bool:
        return model not in self.unready

    def find_lost_models(self) -> dict[str, str]:
        return dict(self.lost_models)

    def read_config(self, model: str, version: str = "", seconds: float = 0) -> Any:
        return {"instance_group": [{"name": "m_0", "count": 2}]} if model in self.served else None

    def load(self, model: str, config: Any = None, seconds: float = 0) -> None:
        self.loads.append(model)


class PlayedWatch:
    """Fake watch for stalls in the current play."""

    current: PlayedServer
    is_paused = False

    def scan(self, servers: Collection[int], stubs: Collection[Stub]) -> list[Stall]:
        """Return the stalls of the server's processes and of the living stubs."""
        assert servers == {1}
        return [
            stall for stall in self.current.stalled if stall.stub is None or stall.stub in stubs
        ]

    def is_any_paused(self, servers: Collection[int]) -> bool:
        """Return whether a server's process is stopped."""
        return self.is_paused or any(stall.stub is None for stall in self.current.stalled)


class Play:
    """Supervised server; `then` is what happens at each look, the last of it a request to stop."""

    def __init__(self, **settings: Any) -> None:
        self.lines: list[str] = []
        self.now = 0.0
        self.state = ServerState()
        self.server = PlayedWatch.current = PlayedServer([])
        self.seen: list[tuple[str, str]] = []
        self.supervisor = Supervisor(
            cast("Any", self.server),
            self.state,
            SupervisionSettings(**settings),
            self.lines.append,
            lambda: self.now,
        )

    def run(self, *then: Callable[[], Any], stop: bool = True) -> bool:
        def note() -> None:
            self.seen.append((self.state.unready_reason, self.state.hopeless_reason))

        self.server.script = [*then, *([note, self.supervisor.ask_to_stop] if stop else [])]
        return self.supervisor.run()

    def lose(self) -> None:
        self.server.lost = [DEAD]

    def recover(self) -> None:
        self.server.lost = []

    def die(self, status: int = -9) -> None:
        self.server.status = status

    def pass_time(self, seconds: float = 2.0) -> None:
        self.now += seconds


def wait_for(name: str) -> None:
    """Wait for the end of the threads of this name."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(PATIENCE_SECONDS)


def wait_for_reload() -> None:
    """Wait until the model is reloaded."""
    wait_for("reload of m")
