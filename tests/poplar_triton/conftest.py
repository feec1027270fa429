"""A script that stands for tritonserver: the folder of its wheel, and its behaviour."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from poplar_triton.serving import installation

SCRIPT = """#!{python} -IS
import json, os, signal, socket, sys

folder = os.path.dirname(os.path.abspath(__file__))
with open(folder + "/plan.json") as file:
    plan = json.load(file)
child = os.fork() if plan["child"] else 0
if plan["child"] and not child:
    signal.pause()
with open(folder + "/call.json", "w") as file:
    json.dump({{"arguments": sys.argv[1:], "environment": dict(os.environ), "child": child}}, file)
options = dict(argument.partition("=")[::2] for argument in sys.argv)
if plan["says"]:
    print(plan["says"], flush=True)


def stop(*_):
    os._exit(plan["status"])


signal.signal(signal.SIGINT, signal.SIG_IGN if plan["deaf"] else stop)
listener = socket.create_server(("127.0.0.1", int(options[plan["listens"]])))
while True:
    connection, _ = listener.accept()
    with connection:
        path = connection.recv(65536).split(b" ")[1:2]
        if path == [b"/v2/repository/index"]:
            status, body = plan["index"]
        elif path and path[0].endswith(b"/config"):
            status, body = "200 OK", json.dumps(plan["config"])
        elif path == [b"/v2/health/ready"]:
            status, body = plan["ready"], ""
        else:
            status, body = plan["live"], ""
        head = "HTTP/1.1 %s\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n" % (status, len(body))
        connection.sendall((head + body).encode())
    if path == [b"/v2/repository/index"] and plan["interrupts"]:
        os.kill(os.getppid(), plan["interrupts"])
    if path == [b"/v2/repository/index"] and plan["ends"]:
        stop()
"""
PLAN: dict[str, Any] = {
    "listens": "--http-port",
    "live": "200 OK",
    "ready": "200 OK",
    "index": ("200 OK", "[]"),
    "config": {},  # of every model
    "ends": False,  # once it has been asked for the index
    "interrupts": 0,  # a signal to its parent, once it has been asked for the index
    "deaf": False,  # to SIGINT
    "says": "",
    "child": False,  # has one, as it has stubs
    "status": 0,
}


@pytest.fixture
def triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the `tritonserver` folder of a wheel that has no server program yet."""
    triton = tmp_path / "wheel" / "pytriton" / "tritonserver"
    stub = triton / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}"
    for folder in (triton / "bin", triton / "backends" / "python", triton / "caches", stub):
        folder.mkdir(parents=True)
    (tmp_path / "wheel" / "nvidia_pytriton.libs").mkdir()
    (stub / "triton_python_backend_stub").touch()
    for name in (installation.LIBRARY, installation.UTILITIES):
        (triton / "backends" / "python" / name).write_text(name)
    monkeypatch.setattr(installation, "find_triton", lambda: triton)
    return triton


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a model repository with one model."""
    (tmp_path / "models" / "mine" / "1").mkdir(parents=True)
    return tmp_path / "models"


@pytest.fixture
def write_program(triton: Path) -> Callable[[str], None]:
    """Return a function that writes a text as the program `tritonserver`."""

    def write(text: str) -> None:
        program = triton / "bin" / "tritonserver"
        program.write_text(text)
        program.chmod(0o755)

    return write


@pytest.fixture
def play(triton: Path, write_program: Callable[[str], None]) -> Callable[..., Callable[[], dict]]:
    """Return a function that makes `tritonserver` behave as PLAN, with changes.

    That function returns another one, which tells how `tritonserver` was called.
    """

    def write(**changes: Any) -> Callable[[], dict]:
        write_program(SCRIPT.format(python=sys.executable))
        (triton / "bin" / "plan.json").write_text(json.dumps({**PLAN, **changes}))
        return lambda: json.loads((triton / "bin" / "call.json").read_text())

    return write
