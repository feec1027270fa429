"""The stubs of a server, read from a /proc made of files."""

from __future__ import annotations

import shutil

import pytest
from poplar_triton.serving.stubs import StubWatch

SERVER = 100
STUB = "/opt/backends/python/triton_python_backend_stub"


class Processes:
    """Fake /proc in which processes start, die and are reaped."""

    def __init__(self, folder):
        self.folder = folder
        self.clock = 0
        folder.mkdir()
        (folder / "meminfo").touch()
        self.start(SERVER, "tritonserver", parent=1)

    def start(self, pid, *words, parent=SERVER):
        self.clock += 1
        (self.folder / str(pid)).mkdir(exist_ok=True)
        self.say(pid, "S", parent, self.clock)
        (self.folder / str(pid) / "cmdline").write_bytes("\0".join([*words, ""]).encode())

    def say(self, pid, state, parent, started):
        fields = [state, parent, *[0] * 17, started, 0]
        line = f"{pid} (triton) (x) Z 1) {' '.join(map(str, fields))}\n"
        (self.folder / str(pid) / "stat").write_text(line)

    def stub(self, pid, instance="m_0_0", path="/models/m/1/model.py", parent=SERVER):
        self.start(
            pid,
            STUB,
            path,
            "shm",
            "1",
            "1",
            str(SERVER),
            "/opt",
            "336",
            instance,
            "/opt",
            parent=parent,
        )

    def kill(self, pid):
        """Turn the process into a zombie, whose command line is empty."""
        started = (self.folder / str(pid) / "stat").read_text().split()[-2]
        self.say(pid, "Z", SERVER, started)
        (self.folder / str(pid) / "cmdline").write_bytes(b"")

    def reap(self, pid):
        shutil.rmtree(self.folder / str(pid))


@pytest.fixture
def processes(tmp_path):
    return Processes(tmp_path / "proc")


@pytest.fixture
def loads():
    """Return the times at which the last loads of models succeeded, for the test to fill."""
    return {}


@pytest.fixture
def look(processes, loads):
    """Return a function that returns the pids of the living and of the lost stubs."""
    watch = StubWatch(SERVER, read_loads=lambda: loads, proc=processes.folder)

    def see():
        living, lost = watch.scan()
        return sorted(stub.pid for stub in living), sorted(stub.pid for stub in lost)

    see.watch = watch
    return see


def test_a_stub_is_known_by_model_version_and_instance(processes, look):
    processes.stub(7, "group_3", "/models/a model/12/model.py")
    ((stub,), _) = look.watch.scan()
    assert (stub.pid, stub.key) == (7, ("a model", "12", "group_3"))


def test_processes_of_others_and_other_programs_are_no_stubs(processes, look):
    processes.stub(5, parent=1)
    processes.start(6, "bash", "-c", STUB)
    processes.start(8, STUB, "too", "few")
    processes.stub(7)
    processes.start(9, "worker of the model", parent=7)
    assert look() == ([7], [])


def test_a_server_behind_a_script_is_found(processes, look):
    processes.start(101, "tritonserver", parent=SERVER)
    processes.stub(7, parent=101)
    assert look() == ([7], [])


def test_a_process_becomes_a_stub_when_it_calls_its_program(processes, look):
    processes.start(7, "tritonserver")
    assert look() == ([], [])
    processes.stub(7)
    assert look() == ([7], [])


@pytest.mark.parametrize("end", ["kill", "reap"])
def test_a_stub_that_has_ended_is_lost_until_it_is_forgotten(processes, look, end):
    """Newer servers reap the process when they are asked for readiness."""
    processes.stub(7)
    processes.stub(8, "m_0_1")
    look()
    getattr(processes, end)(7)
    for _ in range(2):
        assert look() == ([8], [7])
    (lost,) = look.watch.scan()[1]
    look.watch.forget(lost)
    assert look() == ([8], [])


def test_a_zombie_that_was_reaped_stays_lost(processes, look):
    processes.stub(7)
    look()
    processes.kill(7)
    look()
    processes.reap(7)
    assert look() == ([], [7])


def test_a_zombie_of_an_instance_that_lives_again_does_not_count(processes, look):
    processes.stub(7)
    look()
    processes.kill(7)
    look()
    processes.stub(9)
    for _ in range(2):
        assert look() == ([9], [])
    processes.kill(9)
    assert look() == ([], [9])


def test_an_old_sibling_that_lives_on_does_not_stand_for_the_new_one(processes, look, loads):
    """An instance that cannot be unloaded stays, but its newer process is the one that serves."""
    processes.stub(7)
    look()
    processes.stub(8)
    assert look() == ([8], [])
    loads["m"] = processes.clock
    processes.kill(8)
    assert look() == ([], [8])
    processes.stub(9)
    processes.kill(9)
    assert look() == ([], [8]), "a reload that failed has not made the old sibling serve again"


@pytest.mark.parametrize("end", ["kill", "reap"])
@pytest.mark.parametrize("name", ["m", "m\x1b"])
def test_a_process_that_never_finished_loading_replaces_nothing(processes, look, loads, end, name):
    path = f"/models/{name}/1/model.py"
    processes.stub(7, path=path)
    loads[name.replace("\x1b", r"\x1b")] = processes.clock
    for pid in (8, 9, 10):
        look()
        processes.stub(pid, path=path)
        assert look() == ([pid], [])
        getattr(processes, end)(pid)
        assert look() == ([7], [])
        assert look() == ([7], [])
    loads["m"] = processes.clock + 1  # the instance was only changed: its process is the old one
    assert look() == ([7], [])
    processes.kill(7)
    assert look()[0] == []
    assert len(look()[1]) == 1


def test_reloads_that_fail_are_no_new_deaths_of_a_dead_instance(processes, look, loads):
    processes.stub(7)
    loads["m"] = processes.clock
    look()
    processes.kill(7)
    assert look() == ([], [7])
    for pid in (8, 9):
        processes.stub(pid)
        look()
        processes.reap(pid)
        assert look() == ([], [7])


def test_without_a_log_of_loads_a_living_process_stands_for_its_instance(processes, look):
    processes.stub(7)
    look()
    processes.stub(8)
    look()
    processes.kill(8)
    assert look() == ([7], [])
    processes.kill(7)
    assert look()[0] == []


def test_another_process_under_the_same_number_is_another(processes, look):
    processes.stub(7)
    look()
    processes.reap(7)
    processes.start(7, "cron", parent=1)
    assert look() == ([], [7])


def test_versions_are_apart(processes, look):
    processes.stub(7, path="/models/m/1/model.py")
    processes.stub(8, path="/models/m/2/model.py")
    look()
    processes.kill(7)
    assert look() == ([8], [7])


def test_out_of_a_store_the_model_is_named_by_its_instance(processes):
    processes.stub(7, "my_model_0_3", "/tmp/folderQx12Ab/1/model.py")
    processes.stub(8, "own name_0", "/tmp/folderQx12Ac/1/model.py")
    living, _ = StubWatch(SERVER, is_remote=True, proc=processes.folder).scan()
    assert {stub.model for stub in living} == {"my_model", "folderQx12Ac"}


def test_an_ignored_stub_is_lost_even_if_it_does_not_end(processes, look):
    processes.stub(7)
    ((stub,), _) = look.watch.scan()
    look.watch.ignore(stub)
    for _ in range(2):
        assert look() == ([], [7])
    processes.stub(8)
    assert look() == ([8], [])


def test_a_server_behind_a_script_is_one_of_the_servers(processes, look):
    processes.start(101, "tritonserver", parent=SERVER)
    processes.stub(7, parent=101)
    look()
    assert look.watch.servers == {SERVER, 101}
