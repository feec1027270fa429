"""Fixtures of supervisors that are played."""

from types import SimpleNamespace

import pytest
from played_supervisor import PlayedWatch
from poplar_triton.serving import starting, stuck_calls, supervisor


@pytest.fixture
def quick(monkeypatch):
    """Let hardly any time pass between looks, and take stubs and stalls from the fake server."""
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(starting, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(starting, "LOOK_SECONDS", 0.0)
    offered: list[int] = []
    monkeypatch.setattr(starting, "StubWatch", lambda *_, **__: PlayedWatch.current)
    no_zombies = SimpleNamespace(scan=lambda *_, **__: [])
    monkeypatch.setattr(stuck_calls, "ZombieWatch", lambda _: no_zombies)
    for module in (supervisor, starting):
        monkeypatch.setattr(module, "StallWatch", PlayedWatch)
        monkeypatch.setattr(module, "offer_to_oom_killer", lambda pid, points: offered.append(pid))
    return offered


@pytest.fixture
def killed(monkeypatch):
    """Return the pids of the stubs to kill; no process is killed, because the pids are invented."""
    pids: list[int] = []
    monkeypatch.setattr(supervisor.os, "kill", lambda pid, _: pids.append(pid))
    return pids
