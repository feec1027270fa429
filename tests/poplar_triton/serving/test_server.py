"""A script that stands for the embedded server.

Tests check how it is called, when it counts as ready, and what it leaves behind.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from poplar_triton.errors import ServerError
from poplar_triton.serving import installation, server, server_resources
from poplar_triton.serving.repository import check_backends, check_repository
from poplar_triton.serving.server import TritonServer
from waiting import wait_until

from popef._tools.stalls import find_zombies

BACKEND = Path(server.__file__).parents[2] / "poplar" / "model.py"


@pytest.fixture(autouse=True)
def shared_memory(tmp_path, monkeypatch):
    """Replace /dev/shm by a folder and return it."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(server_resources, "SHARED_MEMORY", folder)
    return folder


def test_the_call_names_repository_backends_and_ports_and_ends_with_the_users_options(
    repository, triton, play
):
    called = play()
    with TritonServer(
        repository, options=["--log-verbose=1", "--http-thread-count", "2"]
    ) as started:
        arguments = called()["arguments"]
        options = dict(argument.partition("=")[::2] for argument in arguments[:-2])
        backends = Path(options["--backend-directory"])
        assert {file.name for file in (backends / "poplar").iterdir()} == {
            "model.py",
            "triton_python_backend_stub",
            installation.UTILITIES,
        }
        assert (backends / "poplar" / "model.py").samefile(BACKEND)
        assert str(triton / "backends" / "python" / installation.UTILITIES) in (
            (backends / "python" / installation.UTILITIES).read_text()
        )
        # Triton refuses a library that is a link.
        assert not (backends / "python" / installation.LIBRARY).is_symlink()
        assert (backends / "python" / installation.LIBRARY).read_text() == installation.LIBRARY
    http, grpc, metrics = started.ports
    assert len({http, grpc, metrics}) == 3
    prefix = options["--backend-config"]
    assert arguments == [
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        f"--cache-directory={triton / 'caches'}",
        f"--http-port={http}",
        f"--grpc-port={grpc}",
        f"--metrics-port={metrics}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
        f"--backend-config={prefix}",
        "--exit-on-error=false",
        "--strict-readiness=false",
        "--grpc-http2-max-ping-strikes=0",
        "--log-verbose=1",
        "--http-thread-count",
        "2",
    ]
    assert prefix.startswith(f"python,shm-region-prefix-name=poplar_{os.getpid()}_")
    assert (started.http_url, started.grpc_url, started.metrics_url) == (
        f"127.0.0.1:{http}",
        f"127.0.0.1:{grpc}",
        f"http://127.0.0.1:{metrics}/metrics",
    )


def test_the_stub_finds_this_interpreter_and_the_wheels_libraries_first(
    repository, triton, play, monkeypatch
):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    called = play()
    with TritonServer(repository):
        environment = called()["environment"]
        first, rest = environment["PATH"].split(":", 1)
        assert (Path(first) / "python3").samefile(sys.executable)
    assert rest == "/usr/bin:/bin"
    wheel = triton.parent.parent / "nvidia_pytriton.libs"
    assert environment["LD_LIBRARY_PATH"] == f"{sysconfig.get_config_var('LIBDIR')}:/mine:{wheel}"


def test_an_interpreter_of_another_name_gets_a_link(tmp_path, monkeypatch):
    alone = tmp_path / "bin" / "python-of-mine"
    alone.parent.mkdir()
    alone.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(alone))
    assert installation.link_interpreter(tmp_path) == tmp_path
    assert (tmp_path / "python3").readlink() == alone
    (alone.parent / "python3").symlink_to("/bin/sh")
    (tmp_path / "other").mkdir()
    assert installation.link_interpreter(tmp_path / "other") == tmp_path / "other", (
        "python3 there is another"
    )


def test_of_a_server_that_was_stopped_nothing_is_left(repository, play, shared_memory):
    called = play(status=0)
    with TritonServer(repository) as started:
        call = called()
        prefix = call["arguments"][9].rpartition("=")[2]
        folder = Path(call["arguments"][1].partition("=")[2]).parent
        assert folder.is_dir()
        assert started.poll() is None
        assert Path(f"/proc/{started.pid}").is_dir()
        for name in (f"{prefix}1", f"{prefix}2", "another"):
            (shared_memory / name).touch()
    assert started.exit_status == started.poll() == 0
    assert not Path(f"/proc/{started.pid}").exists()
    assert not folder.exists()
    assert [file.name for file in shared_memory.iterdir()] == ["another"]


def test_a_server_that_does_not_stop_is_killed_with_its_children(repository, play, monkeypatch):
    monkeypatch.setattr(server, "STOP_MARGIN_SECONDS", 0.1)
    called = play(deaf=True, child=True)
    with TritonServer(repository, options=["--exit-timeout-secs=0"]) as started:
        child = os.pidfd_open(called()["child"])
    assert started.exit_status == -signal.SIGKILL
    assert select.select([child], [], [], 20)[0], "it has ended"
    os.close(child)


def test_a_server_with_a_dead_process_gets_its_own_exit_timeout_only(repository, play, monkeypatch):
    monkeypatch.setattr(server, "STOP_MARGIN_SECONDS", "no number: not waited for")
    called = play(deaf=True, child=True)
    with TritonServer(repository, options=["--exit-timeout-secs=0"]) as started:
        os.kill(called()["child"], signal.SIGKILL)
        wait_until(lambda: find_zombies([started.pid]), "it is dead")
    assert started.exit_status == -signal.SIGKILL


def test_a_server_that_was_ready_gets_longer_to_stop_than_one_that_loads(
    repository, play, monkeypatch
):
    monkeypatch.setattr(server, "STOP_UNREADY_SECONDS", 0)
    play()
    with TritonServer(repository) as started:
        pass
    assert started.exit_status == 0


def test_ready_is_what_the_server_says(repository, play):
    play(ready="400 Bad Request")
    with TritonServer(repository) as started:
        assert not started.is_ready()
    assert not started.is_ready()
    play()
    with TritonServer(repository) as started:
        assert started.is_ready()


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        ({"live": "403 Forbidden"}, []),  # --http-restricted-api
        ({"listens": "--grpc-port"}, ["--allow-http=false"]),
        ({"listens": "--grpc-port"}, ["--allow-http=true", "--allow-http", "0"]),
        ({"listens": "--grpc-port"}, ["--allow-http=False"]),
    ],
)
def test_a_server_that_cannot_be_asked_counts_as_up(repository, play, plan, options):
    play(**plan)
    with TritonServer(repository, options=options) as started:
        assert started.poll() is None
    assert started.exit_status == 0


def test_a_server_that_is_up_but_not_live_has_failed(repository, play):
    play(live="400 Bad Request")
    with pytest.raises(ServerError, match=r"^tritonserver is running, but its start failed: "):
        TritonServer(repository).__enter__()


@pytest.mark.parametrize(
    "options", [[], ["--allow-http=true"], ["--allow-http=false", "--allow-http=1"]]
)
def test_a_server_that_listens_for_grpc_alone_unasked_is_waited_for_in_vain(
    repository, play, monkeypatch, options
):
    monkeypatch.setattr(server, "START_SECONDS", 0.3)
    play(listens="--grpc-port")
    with (
        pytest.raises(ServerError, match=r"was not ready after 0\.3 s: no reason given"),
        TritonServer(repository, options=options),
    ):
        pass


def test_a_start_that_fails_gives_up_what_it_had_made(
    repository, write_program, tmp_path, monkeypatch
):
    monkeypatch.setattr(server_resources.tempfile, "tempdir", str(tmp_path))
    write_program("#!/bin/sh\nexit 3\n")
    with pytest.raises(ServerError, match="stopped with status 3"):
        TritonServer(repository).__enter__()
    assert not list(tmp_path.glob("poplar-triton-*"))


def index(*models):
    return "200 OK", str(list(models)).replace("'", '"')


def test_models_that_are_not_available_have_failed_with_tritons_reason(repository, play):
    models = (
        {"name": "good", "state": "READY"},
        {"name": "bad", "state": "UNAVAILABLE", "reason": "no file"},
        {"name": "odd", "state": "UNAVAILABLE"},
        {"name": "asked for later"},
    )
    play(index=index(*models))
    with TritonServer(repository) as started:
        assert started.failed_models() == {"bad": "no file", "odd": ""}


@pytest.mark.parametrize("answer", [("403 Forbidden", "[]"), ("200 OK", "no JSON")])
def test_a_server_that_does_not_tell_its_models_is_an_error(repository, play, answer):
    play(index=answer)
    with (
        TritonServer(repository) as started,
        pytest.raises(ServerError, match="tritonserver does not report its models"),
    ):
        started.failed_models()


@pytest.mark.parametrize(
    "options",
    [
        ["--model-control-mode=explicit"],
        ["--model-control-mode", "poll"],
        ["--model-control-mode=none", "--model-control-mode=poll"],
    ],
)
def test_models_may_come_later_where_the_options_say_so(tmp_path, play, options):
    play()
    (tmp_path / "empty").mkdir()
    with TritonServer(tmp_path / "empty", options=options) as started:
        assert started.poll() is None


@pytest.mark.parametrize(
    "options",
    [
        ["--model-control-mode=none"],
        ["--model-control-mode"],
        ["--model-control-mode=poll", "--model-control-mode=none"],
    ],
)
def test_an_empty_repository_is_refused_else(tmp_path, options):
    (tmp_path / "empty" / "folder").mkdir(parents=True)
    (tmp_path / "empty" / "1.txt").touch()
    with (
        pytest.raises(
            ServerError, match=r"expected folders with a config\.pbtxt or a version folder"
        ),
        TritonServer(tmp_path / "empty", options=options),
    ):
        pass


@pytest.mark.parametrize("path", ["my models/m", "models/a$(touch evil)b", "models/it's"])
def test_a_path_that_a_shell_would_read_otherwise_is_refused(tmp_path, path):
    """Triton puts it into a shell's command: it ran `touch`, or waited for ever."""
    (tmp_path / path / "1").mkdir(parents=True)
    with (
        pytest.raises(ServerError, match=r"expected no blank, .*; rename it, or serve a link"),
        TritonServer((tmp_path / path).parent),
    ):
        pass


@pytest.mark.parametrize("inside", ["mine/config.pbtxt", "mine/1/model.onnx"])
def test_a_model_folder_has_a_configuration_or_a_version(tmp_path, inside):
    (tmp_path / "models" / inside).parent.mkdir(parents=True)
    (tmp_path / "models" / inside).touch()
    (tmp_path / "models" / "notes").mkdir()
    check_repository(tmp_path / "models")


def test_a_port_is_taken_as_it_is_or_any_free_one_for_0():
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        reason = (
            rf"^gRPC port {port} is not free \(.+\); process {os.getpid()} \(.+\) already "
            rf"listens on it: end"
        )
        with pytest.raises(ServerError, match=reason):
            server.hold_port(port, "gRPC")
    with server.hold_port(port, "gRPC") as held:
        assert held.getsockname()[1] == port
    with server.hold_port(0, "HTTP") as held:
        assert held.getsockname()[1] >= 1024
    with pytest.raises(ServerError, match="metrics port: expected 0 to 65535, found 65536"):
        server.hold_port(65536, "metrics")


def is_free(port):
    """Return whether a program that does not know of a server can take the port."""
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_ports_of_a_stopped_server_stay_reserved(repository, play):
    """The clients of the one would send their requests to the other."""
    play()
    with TritonServer(repository) as started:
        _, *unused = started.ports  # of the first one, a connection may linger
        started.stop()
        assert started.poll() is not None
        assert not any(map(is_free, unused))
        assert started.start(lambda _: False)
    assert all(map(is_free, unused))


def test_others_may_not_read_what_tritonserver_writes(repository, play):
    """Its shared memory contains requests, for instance."""
    play()
    with TritonServer(repository) as started:
        status = Path(f"/proc/{started.pid}/status").read_text()
    assert "Umask:\t0077\n" in status


def read_oom_score(pid):
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def test_tritonserver_dies_with_who_has_started_it_and_before_it_when_memory_runs_out():
    read, write = os.pipe()
    starter = os.fork()
    if not starter:
        try:
            process = subprocess.Popen(["sleep", "60"], preexec_fn=server._make_preparation())
            os.write(write, f"{process.pid} {read_oom_score(process.pid)}".encode())
            signal.pause()
        finally:
            os._exit(1)
    os.close(write)
    with open(read) as answers:
        started, score = map(int, os.read(answers.fileno(), 100).split())
    assert score == min(read_oom_score("self") + server.VICTIM_POINTS, 1000)
    handle = os.pidfd_open(started)
    os.kill(starter, signal.SIGKILL)
    os.waitpid(starter, 0)
    assert select.select([handle], [], [], 10)[0], "it has ended"
    os.close(handle)


def test_a_port_whose_last_connection_lingers_is_free():
    """The end of a server that stopped a moment ago stays in the state TIME_WAIT."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            listener.accept()[0].close()
            client.recv(1)
    with server.hold_port(port, "HTTP") as held:
        assert held.getsockname()[1] == port


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Create an importable, empty package pytriton and return its folder."""
    package = tmp_path / "site" / "pytriton"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "pytriton", raising=False)
    return package


def test_the_server_is_that_of_the_installed_wheel(wheel):
    program = wheel / "tritonserver" / "bin" / "tritonserver"
    program.parent.mkdir(parents=True)
    program.touch()
    assert installation.find_triton() == wheel / "tritonserver"


def test_a_wheel_without_a_server_is_as_good_as_none(wheel, monkeypatch):
    reason = r"no embedded Triton server: `pip install --no-deps nvidia-pytriton"
    with pytest.raises(ServerError, match=reason):
        installation.find_triton()
    monkeypatch.setattr(installation.util, "find_spec", lambda _: None)
    with pytest.raises(ServerError, match=reason):
        installation.find_triton()


def test_a_wheel_without_a_stub_for_this_python_says_for_which_it_has_one(tmp_path):
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for known in ("3.8", "3.9", version):
        (tmp_path / "python_backend_stubs" / known).mkdir(parents=True)
    with pytest.raises(
        ServerError, match=rf"no stub for Python {version}; it has 3\.\d+, 3\.\d+, 3\.\d+"
    ):
        installation.find_stub(tmp_path)
    stub = tmp_path / "python_backend_stubs" / version / "triton_python_backend_stub"
    stub.touch()
    assert installation.find_stub(tmp_path) == stub


def write_config(repository, text):
    folder = repository / "models" / "mine"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(text)
    return repository / "models"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('backend: "popler"', "backend 'popler' is not known; did you mean poplar?"),
        ("backend:'Poplar'", "backend 'Poplar' is not known; did you mean poplar?"),
        ('# poplar\nname: "m" backend : "poplr" # x', "did you mean poplar?"),
        ('input [{name: "a{"}]\nbackend: "onnxruntim"', "did you mean onnxruntime?"),
        ('platform: "onnxruntime_onx"', "platform 'onnxruntime_onx' is not known; did you mean"),
        ('platform: "tensorflow_saved_model"', "did you mean tensorflow_savedmodel?"),
    ],
)
def test_a_misspelt_backend_is_an_error_before_the_server_starts(tmp_path, text, told):
    """Triton would try to load it again for minutes."""
    repository = write_config(tmp_path, text)
    with pytest.raises(ServerError, match=re.escape(told)) as caught:
        check_backends(repository)
    assert "mine/config.pbtxt" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        'backend: "poplar"',
        'backend: "openvino"',
        'backend: "our_own"',
        'platform: "onnxruntime_onnx"',
        'platform: "ensemble"',
        'parameters { key: "backend" value: { string_value: "popler" } }',
        'parameters: [{ backend: "popler" }]',
        'name: "backend: \\"popler\\""',
        '# backend: "popler"',
        "backend",
        "}}}",
        '"',
        "",
    ],
)
def test_a_known_backend_and_one_like_no_other_are_tritons_to_judge(tmp_path, text):
    check_backends(write_config(tmp_path, text))


def test_a_backend_that_is_installed_is_no_misspelling(tmp_path):
    check_backends(write_config(tmp_path, 'backend: "poplar2"'), {"poplar2"})


def test_the_server_names_a_misspelt_backend_before_it_starts(tmp_path):
    repository = write_config(tmp_path, 'backend: "popler"')
    with pytest.raises(ServerError, match=r"did you mean poplar\?"), TritonServer(repository):
        pass
