"""Tests of the memory that a process may take: files of a played kernel, and real limits."""

import subprocess
import sys

import pytest

from popef._tools.memory import spare_memory_bytes, usable_memory_bytes

GIB = 1 << 30


class Machine:
    """Files of a kernel: a machine of 64 GiB, of which 48 are available."""

    def __init__(self, folder):
        self.proc, self.groups = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.groups.mkdir()
        kib = {"MemTotal": 64 << 20, "MemFree": 1 << 20, "MemAvailable": 48 << 20}
        lines = [f"{name}:     {value} kB\n" for name, value in kib.items()]
        (self.proc / "meminfo").write_text("".join(lines))

    def place(self, *lines):
        (self.proc / "self" / "cgroup").write_text("".join(f"{line}\n" for line in lines))

    def add(self, path, **files):
        (self.groups / path).mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (self.groups / path / f"memory.{name}").write_text(f"{value}\n")

    @property
    def usable(self):
        return usable_memory_bytes(self.proc, self.groups) / GIB

    @property
    def spare(self):
        return spare_memory_bytes(self.proc, self.groups) / GIB


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def pages(prefix="", **counts):
    return "".join(f"{prefix}{name} {count}\n" for name, count in {"anon": 1, **counts}.items())


def test_without_groups_the_machine_counts_less_a_reserve(machine):
    assert (machine.usable, machine.spare) == (64, 47)


@pytest.mark.parametrize("kind", ["max", "high"])
def test_the_smallest_limit_of_nested_groups_counts_whatever_its_level(machine, kind):
    """Version 2; the limit is on none of the ends, and the process's own group has a larger one."""
    machine.place("0::/pods/pod/container")
    machine.add("pods/pod/container", max=32 * GIB, current=1, stat=pages())
    machine.add("pods/pod", max="max", current=1, stat=pages(active_file=0, inactive_file=0))
    machine.add("pods", **{"max": "max", kind: 8 * GIB, "current": 3 * GIB})
    machine.add("pods", stat=pages(active_file=GIB, inactive_file=GIB // 2))
    assert machine.usable == 8
    assert machine.spare == 8 - (3 - 1.5) - 8 / 16


def test_version_1_has_a_tree_for_memory(machine):
    machine.place("8:pids:/other", "4:cpu,memory:/a/b", "0::/")
    machine.add("memory/a/b", limit_in_bytes=2**63 - 4096, usage_in_bytes=GIB, stat="")
    stat = pages("total_", active_file=GIB, inactive_file=0) + pages(active_file=0)
    machine.add("memory/a", limit_in_bytes=4 * GIB, usage_in_bytes=2 * GIB, stat=stat)
    assert (machine.usable, machine.spare) == (4, 4 - (2 - 1) - 4 / 16)


@pytest.mark.parametrize("path", ["/kubepods/pod1/abc", "/../../abc", "/"])
def test_a_path_of_the_host_leads_to_the_groups_of_the_container(machine, path):
    machine.place(f"0::{path}")
    stat = pages(active_file=0, inactive_file=0)
    machine.add(".", max=2 * GIB, current=GIB, stat=stat)
    assert (machine.usable, machine.spare) == (2, 2 - 1 - 2 / 16)


def test_a_full_group_leaves_the_least_memory(machine):
    machine.place("0::/a")
    machine.add("a", max=GIB, current=GIB, stat=pages(active_file=0, inactive_file=0))
    assert machine.spare == 1 / 16


@pytest.mark.parametrize("text", ["", "garbage", "0::", "4:memory", "0::/" + "a/" * 5000])
def test_files_of_another_form_are_no_limits(machine, text):
    machine.place(text)
    assert (machine.usable, machine.spare) == (64, 47)


def run(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_limit_of_the_process_counts(kind):
    run(
        "import resource; from popef._tools.memory import spare_memory_bytes\n"
        f"resource.setrlimit(resource.{kind}, (1 << 29, 1 << 29))\n"
        "spare = spare_memory_bytes(); assert spare < 1 << 29, spare"
    )


def test_growth_ends_at_the_limit_and_at_what_is_free():
    run(
        "import numpy as np\n"
        "from popef._tools import memory\n"
        "def fits(mib):\n"
        "    try: return bool(np.empty(mib << 20, np.uint8).size)\n"
        "    except MemoryError: return False\n"
        "assert fits(300)\n"
        "memory.GROWTH.start(256 << 20)\n"
        "assert fits(200) and not fits(300)\n"
        "memory.spare_memory_bytes = lambda: 400 << 20\n"
        "memory.GROWTH.start(1 << 30, share=2)\n"
        "assert fits(150) and not fits(250)\n"
        "memory.GROWTH.stop()\n"
        "assert fits(300)\n"
    )
