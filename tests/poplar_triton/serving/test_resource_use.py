"""What a server uses of the machine, and when little is left, in files that a test writes."""

from __future__ import annotations

import pytest
from poplar_triton.serving.resource_use import (
    LeakMeter,
    ResourceUse,
    find_shortage,
    measure_resource_use,
)

MIB = 1 << 20


def test_resources_of_server_and_stubs_are_read_from_proc(tmp_path):
    for pid, threads, memory in ((1, 98, 40), (2, 8, 100), (3, 8, 60)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text(
            f"Name:\tThreads: 7\nVmRSS:\t 999 kB\nRssAnon:\t {memory} kB\nRssFile:\t 50 kB\n"
            f"Threads:\t{threads}\n"
        )
    assert measure_resource_use([1], [2, 3, 4], 5, tmp_path) == ResourceUse(98, 5, 200 << 10)


class Machine:
    """Machine made of files: control groups, and a folder that is a file system with free space."""

    def __init__(self, folder):
        self.proc, self.groups = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)

    def belong(self, *lines):
        (self.proc / "self" / "cgroup").write_text("".join(f"{line}\n" for line in lines))

    def say(self, group, **values):
        folder = self.groups / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in values.items():
            (folder / name.replace("__", ".")).write_text(f"{value}\n")

    def poll(self, num_threads=0):
        return find_shortage(num_threads, self.proc, self.groups, self.proc)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    class Room:
        f_blocks, f_bfree, f_frsize = 100, 50, MIB

    monkeypatch.setattr("poplar_triton.serving.resource_use.os.statvfs", lambda _: Room)
    made = Machine(tmp_path)
    made.room = Room
    return made


def test_a_machine_without_limits_has_no_shortage(machine):
    assert machine.poll() == "", "there is not even a list of control groups"
    machine.belong("0::/")
    assert machine.poll() == ""
    machine.say(
        "",
        pids__current=1000,
        pids__max="max",
        memory__current=MIB,
        memory__max="max",
        memory__stat="x",
    )
    assert machine.poll() == ""


@pytest.mark.parametrize(
    ("used", "expected"), [(84, ""), (85, "85 of 100 threads and processes of the control")]
)
def test_threads_run_short_before_they_run_out(machine, used, expected):
    machine.belong("0::/a/b")
    machine.say("a", pids__current=used, pids__max=100)
    machine.say("a/b", pids__current=used, pids__max="max")
    found = machine.poll()
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


def test_a_reload_has_room_for_its_threads(machine):
    machine.belong("0::/")
    machine.say("", pids__current=50, pids__max=100)
    assert machine.poll(50) == ""
    found = (
        "50 of 100 threads and processes of the control group are in use and a reload needs "
        "up to 51"
    )
    assert machine.poll(51) == found


def test_pages_of_files_are_no_memory_that_is_short(machine):
    machine.belong("0::/pod")
    stat = "anon 1\nactive_file {}\ninactive_file 0\nworkingset_x 5"
    machine.say(
        "pod", memory__current=90 * MIB, memory__max=100 * MIB, memory__stat=stat.format(10 * MIB)
    )
    assert machine.poll() == ""
    machine.say("pod", memory__stat=stat.format(MIB))
    assert machine.poll() == "89 of 100 MiB of memory of the control group are in use"


def test_control_groups_of_version_1_are_read(machine):
    machine.belong("8:pids:/docker/x", "5:cpu,memory:/docker/x", "1:name=systemd:/")
    machine.say("pids", pids__current=9, pids__max=10)  # a container sees its own at the root
    assert machine.poll() == "9 of 10 threads and processes of the control group are in use"
    machine.say("pids", pids__current=1)
    machine.say(
        "memory",
        memory__usage_in_bytes=95 * MIB,
        memory__limit_in_bytes=100 * MIB,
        memory__stat=f"total_active_file {MIB}\ntotal_inactive_file {MIB}",
    )
    assert machine.poll() == "93 of 100 MiB of memory of the control group are in use"


def test_shared_memory_runs_short(machine):
    machine.room.f_bfree = 15
    assert machine.poll() == f"85 of 100 MiB of {machine.proc} are in use"


def test_a_leak_is_the_growth_after_a_heal_has_settled():
    meter = LeakMeter()
    assert meter.scan(ResourceUse(98, 3, 10), 0, is_healing=False) is None
    assert meter.scan(ResourceUse(100, 3, 10), 1, is_healing=False) is None, "nothing is healed"
    for now in (2, 3, 4):
        assert meter.scan(ResourceUse(200, 6, 20), now, is_healing=True) is None
    assert meter.scan(ResourceUse(200, 6, 20), 8, is_healing=False) is None, (
        "the old ones may end yet"
    )
    assert meter.scan(ResourceUse(171, 5, 9), 9, is_healing=False) == ResourceUse(71, 2, 0)
    assert meter.scan(ResourceUse(180, 5, 9), 10, is_healing=False) is None


def test_a_server_that_is_dead_from_its_start_has_nothing_to_be_compared_with():
    meter = LeakMeter()
    assert meter.scan(ResourceUse(200), 0, is_healing=True) is None
    assert meter.scan(ResourceUse(250), 9, is_healing=False) is None
