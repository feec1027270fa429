"""Tests of which old instances of a reloaded model no longer serve."""

from __future__ import annotations

import pytest
from played_proc import PlayedProc
from poplar_triton.serving.stubs import IDLE_SECONDS, OrphanWatch, Stub

OLD = Stub(7, 1, "m", "1", "m_0_1")


class Watched:
    def __init__(self, folder):
        self.proc, self.now = PlayedProc(folder), 0.0
        self.watch = OrphanWatch(lambda: self.now, folder)
        self.proc.say(7, "S", cpu=5)

    def scan(self, *reloaded, after=0.0, replaced=(OLD,)):
        self.now += after
        return self.watch.scan(replaced, set(reloaded))


@pytest.fixture
def watched(tmp_path):
    return Watched(tmp_path)


def test_an_old_instance_that_is_idle_after_a_reload_is_an_orphan(watched):
    assert watched.scan("m") == []
    assert watched.scan(after=IDLE_SECONDS - 1) == []
    assert watched.scan(after=1) == [OLD]


def test_a_load_by_another_client_makes_no_orphans(watched):
    """The old instances serve until the load has ended, idle or not."""
    assert watched.scan("n") == watched.scan(after=1000) == []


def test_an_old_instance_that_computes_is_no_orphan(watched):
    watched.scan("m")
    watched.proc.say(7, "S", cpu=16)
    assert watched.scan(after=IDLE_SECONDS) == []
    watched.proc.say(7, "S", cpu=20, faults=3)
    assert watched.scan(after=IDLE_SECONDS) == [OLD], "a moment now and then is nothing"


def test_an_instance_whose_child_computes_is_no_orphan(watched):
    watched.scan("m")
    for cpu in range(1, 4):
        watched.proc.say(8, "R", parent=7, cpu=20 * cpu)
        assert watched.scan(after=IDLE_SECONDS) == []


def test_one_that_has_ended_is_forgotten(watched):
    watched.scan("m")
    assert watched.scan(replaced=()) == watched.scan(after=1000) == []
