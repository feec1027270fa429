"""Tests of which processes make no progress: in a simulated /proc with a clock that is moved, and
with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from fake_time import FakeTime
from played_proc import PlayedProc

from popef._tools.stalls import LOOK_SECONDS, PROC, StallDetector, read_stat


class Play:
    """Watch of process 7 in a simulated /proc with a simulated clock."""

    def __init__(self, folder):
        self.proc = PlayedProc(folder)
        self.time = FakeTime()
        self.watch = StallDetector(folder, lambda: self.time.now_ns / 1e9)

    def look(self, state, **status):
        """Return the result of the next look."""
        self.proc.say(7, state, **status)
        self.time.sleep(LOOK_SECONDS)
        return self.watch.find_stalled([7]).get(7)

    def find_stall_seconds(self, state, **status):
        """Return the seconds until the process counts as stalled; None for never."""
        for count in range(50):
            if self.look(state, **status):
                return round(count * LOOK_SECONDS, 1)
        return None


@pytest.fixture
def play(tmp_path):
    return Play(tmp_path)


@pytest.mark.parametrize(
    ("state", "seconds"), [("T", 1.0), ("t", 1.0), ("D", 3.0), ("S", None), ("R", None)]
)
def test_a_process_is_stalled_once_it_has_been_in_such_a_state_for_so_long(play, state, seconds):
    assert play.find_stall_seconds(state) == seconds


def test_the_reason_is_told(play):
    for _ in range(20):
        found = play.look("T"), play.look("T")
    assert found == ("it is stopped", "it is stopped")
    for _ in range(20):
        found = play.look("D")
    assert found == "it waits for a disk"


@pytest.mark.parametrize("work", ["cpu", "faults"])
def test_computing_or_taking_memory_counts_as_progress(play, work):
    assert not [stall for i in range(40) if (stall := play.look("D", **{work: i // 4}))]


def test_a_process_that_went_on_in_between_begins_anew(play):
    for _ in range(8):
        assert not [stall for state in "TTTTR" if (stall := play.look(state))]


def test_another_process_under_the_same_number_begins_anew(play):
    assert not [stall for i in range(40) if (stall := play.look("T", started=i // 4))]


def test_after_a_pause_of_the_whole_machine_nothing_is_stalled_at_once(play):
    play.look("T")
    play.time.sleep(60)
    assert play.look("T") is None, "two looks are no proof"
    assert play.look("T") == "it is stopped"


@pytest.mark.parametrize("place", ["get_signal", "do_freezer_trap"])
def test_a_frozen_control_group_is_seen(play, place):
    """The kernel reports its processes as sleeping."""
    play.look("S")
    play.proc.wait_in(7, "futex_do_wait")
    assert play.find_stall_seconds("S") is None
    play.proc.wait_in(7, place)
    assert play.find_stall_seconds("S") == 1.0
    assert play.look("S") == "its control group is frozen"


def test_a_process_that_is_gone_or_dead_is_not_stalled(play):
    assert play.find_stall_seconds("Z") is None
    assert play.watch.find_stalled([8]) == {}


def test_of_a_real_process(monkeypatch):
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        os.kill(child.pid, signal.SIGSTOP)
        end = time.monotonic() + 10
        while (stat := read_stat(child.pid)).state != "T" and time.monotonic() < end:
            time.sleep(0.001)
        assert (stat.state, stat.parent) == ("T", os.getpid())
        clock = FakeTime()
        watch = StallDetector(PROC, lambda: clock.now_ns / 1e9)
        found = []
        for _ in range(7):
            found.append(watch.find_stalled([child.pid, os.getpid()]))
            clock.sleep(LOOK_SECONDS)
        assert found == [{}] * 5 + [{child.pid: "it is stopped"}] * 2
        child.kill()
