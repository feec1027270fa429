"""Loads and unloads that Triton does not end because a process died in them. The dead process is
that of no served instance, so that it is not one of the dead instances, which are healed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from popef._tools.text import name_some
from poplar_triton.serving.server import TritonServer
from poplar_triton.serving.server_state import ServerState, describe_dead
from poplar_triton.serving.stubs import Stub, StubWatch, ZombieWatch


class StuckCalls:
    """Reports the processes of one server that died in a load or an unload.

    A model that another process serves is not affected. Any other counts as dead, but no longer
    than Triton waits for its unload when it stops: only a restart ends the call, and the other
    models need none.
    """

    def __init__(
        self,
        server: TritonServer,
        state: ServerState,
        tell: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._server = server
        self._state = state
        self._tell = tell
        self._clock = clock
        self._zombies = ZombieWatch(clock)
        self._accounted: set[int] = set()
        """Dead processes that are reported, as dead instances or here."""
        self._counted: dict[Stub, float] = {}
        """Stubs that count as dead, each with the time until which it does."""

    @property
    def dead(self) -> list[Stub]:
        """Stubs that count as dead."""
        return list(self._counted)

    def account(self, pids: Iterable[int]) -> None:
        """Leave out these processes: their deaths are reported, or meant."""
        self._accounted.update(pids)

    def scan(self, watch: StubWatch, living: Iterable[Stub], lost: Iterable[Stub]) -> None:
        """Look for dead processes of a server that is not stopped. `living` and `lost` are the
        stubs of its last scan."""
        serving = {stub.key: stub for stub in living}
        dead = self._zombies.scan(watch.servers, is_paused=False)
        undecided = {stub.pid for stub in lost}
        for pid in set(dead) - self._accounted - undecided:
            self._accounted.add(pid)
            stub, _ = watch.find_ended(pid)
            if stub is None:
                self._report_unknown(pid)
            else:
                self._report(stub, serving.get(stub.key))
        for stub, until in list(self._counted.items()):
            if stub.key in serving or stub.pid not in dead:
                del self._counted[stub]
            elif self._clock() >= until:
                del self._counted[stub]
                self._tell(
                    f"model {stub.model!r}: process {stub.pid} no longer counts; only a restart of "
                    "tritonserver frees what its model holds"
                )

    def _report(self, stub: Stub, serving: Stub | None) -> None:
        self._state.note_death(stub)
        what = f"{describe_dead([stub])} (process {stub.pid})"
        if serving is None:
            self._counted[stub] = self._clock() + self._server.exit_seconds
            self._tell(f"{what} in a load or an unload, which tritonserver does not end")
        elif (serving.started, serving.pid) > (stub.started, stub.pid):
            self._tell(f"{what}; process {serving.pid} has replaced it")
        else:
            self._tell(
                f"{what} in a load, which tritonserver does not end; process {serving.pid} serves "
                "on, and only a restart lets another load of the model end"
            )

    def _report_unknown(self, pid: int) -> None:
        """Report a process that died before it was seen as a stub."""
        models = sorted(self._server.loading_models)
        which = f" (still loading: {name_some([*map(repr, models)])})" if models else ""
        self._tell(
            f"dead: a process of tritonserver (process {pid}) in a load, which tritonserver does "
            f"not end{which}"
        )
        if len(models) == 1:
            self._state.note_death(Stub(pid, 0, models[0], "", ""))
