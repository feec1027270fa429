"""Processes that are killed or stopped while a real Triton loads its models, and models whose load
never ends, with the proportions of the default limits."""

import itertools
import os
import re
import shutil
import signal
from contextlib import contextmanager

import hostile_graphs
import hostile_loads
import pytest
from fleet.cases import EXPLICIT
from fleet.models import Model, write_version
from fleet.servers import Server
from waiting import wait_until

pytestmark = pytest.mark.timed

SOUND, SLOW = Model("sound"), Model("slow")
DELAY = 'parameters { key: "creation_delay_sec" value { string_value: "4" } }\n'
QUICK_EXIT = "--exit-timeout-secs=3"
HEALING = ("--on-dead-stub", "reload", "--restart", "3")
START_SECONDS = 40
"""Time limit of the starts with endless models: their loads take less, whatever the number."""


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


@pytest.fixture
def repository(tmp_path):
    """Return a repository with a sound model, and one that takes seconds to load."""
    repository = tmp_path / "models"
    for model in (SOUND, SLOW):
        write_version(repository / model.name, model, 1)
    shutil.rmtree(tmp_path / "caches")  # no file is known: each is loaded in a child first
    with (repository / SLOW.name / "config.pbtxt").open("a") as config:
        config.write(DELAY)
    return repository


@pytest.fixture
def start(repository, tmp_path):
    """Return a function that starts a supervised server and does not wait for it."""
    numbers = itertools.count()

    @contextmanager
    def begin(*options, triton=()):
        name = f"server{next(numbers)}"
        with Server(
            name, repository, tmp_path, options, [*EXPLICIT, QUICK_EXIT, *triton]
        ) as server:
            yield server

    return begin


def read_events(server):
    """Return the supervisor's own lines without times and process ids."""
    lines = server.log.read_text().splitlines()
    own = [match[1] for line in lines if (match := re.fullmatch(r"poplar-triton: \S+Z (.*)", line))]
    return [re.sub(r" \(process \d+\)", "", line) for line in own]


def wait_for_loading_stub(server):
    """Wait for the slow model's instance, which has a delay before it loads."""
    wait_until(lambda: "InstanceInitialize: slow_0_0" in server.log.read_text(), "slow_0 loads")
    wait_until(lambda: server.find_stubs("slow"), "a stub")


STALLED = "stalled: slow_0_0 of model 'slow' version 1 makes no progress: it is stopped; killing it"
DEAD = re.compile(
    "dead: (slow_0_0 of model 'slow' version 1|a process of tritonserver) in a load, "
    r"whose end tritonserver waits for \(still loading: 'slow'(, 'sound')?\)"
)
"""Line of a stub that died; one that dies at once has no name yet."""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda it: it.name)
def test_a_stub_that_is_killed_or_stopped_while_it_loads_costs_a_restart(start, number):
    with start(*HEALING) as server:
        wait_for_loading_stub(server)
        server.kill_stub("slow", number)
        server.wait_until_ready()
        assert server.find_versions("slow") == ["1"]
        stalled = [STALLED] if number == signal.SIGSTOP else []
        events = read_events(server)
        assert events[: len(stalled)] == stalled
        assert DEAD.fullmatch(events[len(stalled)])
        assert server.read_metric("poplar_supervisor_restarts_total") == 1
        assert server.read_metric("poplar_supervisor_stalls_total", program="stub") == len(stalled)


def test_a_stub_that_is_killed_as_soon_as_all_models_are_loaded_is_healed(start):
    """The server is not ready yet, so that the supervisor has not looked at the stubs yet."""
    with start(*HEALING) as server:
        loaded = ("successfully loaded 'slow'", "successfully loaded 'sound'")
        wait_until(lambda: all(words in server.log.read_text() for words in loaded), "the loads")
        server.kill_stub("slow")
        wait_until(lambda: find_healing(server), "the supervisor heals it")
        server.wait_until_ready()
        assert server.find_versions("slow") == ["1"]


def find_healing(server):
    """Return the lines that say that a model is reloaded, or the server started again."""
    words = ("reloaded in", "is ready again", "in a load, whose end")
    return [line for line in read_events(server) if any(each in line for each in words)]


def test_without_a_restart_the_server_ends_at_once_and_names_the_stub(start):
    with start() as server:
        wait_for_loading_stub(server)
        server.kill_stub("slow")
        assert server.wait() == 1
        assert DEAD.search(re.sub(r" \(process \d+\)", "", server.log.read_text()))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda it: it.name)
def test_a_triton_that_is_killed_or_stopped_while_it_loads_is_started_again(start, number):
    with start(*HEALING) as server:
        wait_for_loading_stub(server)
        server.kill_triton(number)
        server.wait_until_ready()
        assert server.find_versions("slow") == ["1"]
        events = read_events(server)
        if number == signal.SIGSTOP:
            line = "stalled: tritonserver makes no progress: it is stopped; killing it"
            assert events.pop(0) == line
        assert events[0].startswith("tritonserver stopped with status -9 before it was ready: ")
        assert server.read_metric("poplar_supervisor_restarts_total") == 1


def test_a_stop_that_is_only_reported_is_named_by_ready(start):
    with start() as server:
        wait_for_loading_stub(server)
        stub = server.kill_stub("slow", signal.SIGSTOP)
        wait_until(lambda: "stalled: slow_0_0" in server.ask_ready()[1], "/ready names the stall")
        os.kill(stub.pid, signal.SIGCONT)
        server.wait_until_ready()
        assert read_events(server)[0] == STALLED.removesuffix("; killing it")


def kill_loaders(server, count, number):
    """Kill or stop that many processes that load a model first, one after the other."""
    killed = set()
    while len(killed) < count:
        wait_until(lambda: set(server.find_loaders()) - killed, "a process that loads first")
        for pid in set(server.find_loaders()) - killed:
            os.kill(pid, number)
            killed.add(pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda it: it.name)
def test_a_first_load_that_is_killed_or_stopped_is_tried_again(start, number, repository):
    (repository / "slow").rename(repository.parent / "slow")
    with start(*HEALING) as server:
        kill_loaders(server, 1, number)
        server.wait_until_ready()
        assert server.find_versions("sound") == ["1"]
        assert "; loading it again" in server.log.read_text()
        assert read_events(server) == []


def test_a_model_that_is_lost_is_named_by_ready_and_loaded_by_the_supervisor(start, repository):
    (repository / "slow").rename(repository.parent / "slow")
    with start("--on-dead-stub", "reload") as server:
        kill_loaders(server, 3, signal.SIGKILL)
        wait_until(lambda: "not loaded: 'sound'" in server.ask_ready()[1], "/ready names it")
        server.wait_until_ready()
        assert server.find_versions("sound") == ["1"]
        # On a busy machine the supervisor may see the death of a stub first.
        assert re.fullmatch(
            r"model 'sound'( is loaded|: reloaded in .* s)", read_events(server)[-1]
        )


def write_endless(repository, count):
    """Write endless models before and after the others in the order of the names."""
    graph = hostile_graphs.endless_inference()
    hostile_loads.GRAPHS["endless_inference"] = lambda: graph
    names = [f"{'a' if number % 2 else 'z'}_endless_{number}" for number in range(count)]
    for name in names:
        hostile_loads.write_graph(repository / name, "endless_inference", 0)
    return names


def test_endless_models_do_not_hold_up_the_others_and_are_named(start, repository):
    """Triton loads them one after the other: they are more than its threads."""
    names = write_endless(repository, 2)
    triton = ["--model-load-thread-count=1"]
    with start("--start-seconds", str(START_SECONDS), triton=triton) as server:
        server.wait_until_ready()
        assert server.find_versions("sound") == ["1"]
        for name in names:
            assert re.search(rf"model '{name}': it was not ready within \d", server.log.read_text())
            assert f"model '{name}' is not served" in server.log.read_text()
