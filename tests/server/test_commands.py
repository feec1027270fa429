"""The poplar-triton command on a real server: ready, stopped by Ctrl-C, and nothing left behind."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import pytest
from fault_clients import children
from onnx import numpy_helper
from poplar_triton.errors import ServerError
from poplar_triton.serving.command import _find_request
from poplar_triton.serving.server import TritonServer
from sample_models import linear_model
from server_processes import CommandServer
from waiting import PATIENCE_SECONDS, wait_until

from .conftest import write_model

ZEROS_ANSWER = np.maximum(numpy_helper.to_array(linear_model().graph.initializer[1]), 0)
"""Answer y of the linear model to zeros: its bias after Relu."""
COMMAND = [sys.executable, "-m", "poplar_triton.cli"]
FREE_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")


def run(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        **options,
    )


def run_shell(command, folder):
    """Run a line that a command has printed, as a user would, and return what it prints."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    return subprocess.run(
        ["sh", "-c", command],
        stdout=subprocess.PIPE,
        check=True,
        timeout=PATIENCE_SECONDS,
        cwd=folder,
    ).stdout


def runs_triton(pid):
    return any("tritonserver" in word for child in children(pid) for word in child.command_line)


def segments_of(server):
    """Return the server's segments in /dev/shm; their names begin with the command's process id."""
    return list(Path("/dev/shm").glob(f"poplar_{server.pid}_*"))


@pytest.fixture
def small_repository(tmp_path):
    write_model(tmp_path / "repository" / "linear", linear_model())
    return tmp_path / "repository"


def test_serve_prints_its_urls_names_what_failed_and_leaves_nothing_behind(
    small_repository, tmp_path
):
    (write_model(small_repository / "broken", linear_model()) / "1/executable.popef").write_bytes(
        b"garbage"
    )
    words = ("serve", small_repository, *FREE_PORTS, "--", "--log-verbose=0")
    with CommandServer(*words, log=tmp_path / "log") as server:
        request = re.search(r"Try: (.*)", server.read_log())[1]
        answer = json.loads(run_shell(request, tmp_path))
        assert answer["model_name"] == "linear"
        (values,) = (each["data"] for each in answer["outputs"] if each["name"] == "y")
        np.testing.assert_allclose(values, ZEROS_ANSWER, rtol=1e-6)
        assert segments_of(server)
        assert server.stop(number=signal.SIGINT) == 0
        wait_until(lambda: not server.find_processes(), "all its processes have ended")
        assert segments_of(server) == []
    assert "model 'broken' is not served: Internal: ModelConfigError" in server.read_log()


def test_the_request_that_serve_prints_is_to_the_model_with_the_most_readable_answer(tmp_path):
    """It is run as it is printed: a label, although a model of halves comes first."""
    repository = tmp_path / "models"
    write_model(repository / "a_model_of_halves", linear_model(), precision="fp16")
    labelled = write_model(repository / "labelled", linear_model())
    config = (labelled / "config.pbtxt").read_text()
    named = config.replace('name: "y"', 'name: "y" label_filename: "labels.txt"')
    assert named != config
    (labelled / "config.pbtxt").write_text(named)
    (labelled / "labels.txt").write_text("cat\ndog\nfox\n")
    with TritonServer(repository, log=tmp_path / "log") as server:
        request = _find_request(server, ["a_model_of_halves", "labelled"])
        answer = json.loads(run_shell(request, tmp_path))
        other = run_shell(_find_request(server, ["a_model_of_halves"]), tmp_path).decode()
    (output,) = answer["outputs"]
    (label,) = output["data"]
    best = int(ZEROS_ANSWER.argmax())
    assert label.split(":")[1:] == [str(best), ("cat", "dog", "fox")[best]]
    values = re.search(r"^y FP16 \[1, 3\] (.*)$", other, re.MULTILINE)[1].split()
    np.testing.assert_allclose(list(map(float, values)), ZEROS_ANSWER, rtol=1e-3)
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["log"]


PRECISIONS = {
    "fp32": (("--precision", "fp32"), True),
    "fp16": (("--precision", "fp16"), False),
    "fp16_of_fp32": (("--precision", "fp16", "--io_precision", "fp32"), True),
    "fp32_of_fp16": (("--precision", "fp32", "--io_precision", "fp16"), False),
}
"""Options of poprt, and whether a request can be JSON, by the name of the model's folder."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compile a model with each of the options and serve all of them.

    Yields the server, and what poprt prints by the name of the folder.
    """
    root = tmp_path_factory.mktemp("printed")
    onnx.save(linear_model(), root / "m.onnx")
    printed = {}
    for name, (options, _) in PRECISIONS.items():
        folder = root / "models" / name
        words = ["-i", str(root / "m.onnx"), "--batch_size", "2", "--triton_model_dir", str(folder)]
        printed[name] = subprocess.run(
            [sys.executable, "-m", "poprt", *words, *options],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_SECONDS,
        ).stdout
    with TritonServer(root / "models", log=root / "log") as server:
        yield server, printed


@pytest.mark.parametrize("name", PRECISIONS)
def test_the_request_that_poprt_prints_is_answered(compiled, tmp_path, name):
    (server, printed), (_, has_json) = compiled, PRECISIONS[name]
    request = re.search(r"ask it: (.*)", printed[name])[1]
    assert ("--io_precision fp32" in printed[name]) is not has_json
    found = run_shell(request.replace("127.0.0.1:8000", server.http_url), tmp_path)
    if has_json:
        values = [each["data"] for each in json.loads(found)["outputs"] if each["name"] == "y"]
    else:
        line = re.search(r"^y FP16 \[1, 3\] (.*)$", found.decode(), re.MULTILINE)[1]
        values = list(map(float, line.split()))
    np.testing.assert_allclose(np.ravel(values), ZEROS_ANSWER, rtol=1e-3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_leaves_nothing_behind(small_repository, tmp_path, number):
    with CommandServer(
        "serve", small_repository, *FREE_PORTS, log=tmp_path / "log", waits=False
    ) as server:
        wait_until(lambda: runs_triton(server.pid), "its tritonserver starts")
        assert server.stop(number=number) == 130
        wait_until(lambda: not server.find_processes(), "all its processes have ended")
        assert segments_of(server) == []
    assert "Traceback" not in server.read_log()


def test_a_busy_port_is_a_clear_error(small_repository):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        done = run("serve", str(small_repository), "--http-port", port)
    assert done.returncode == 1
    assert f"HTTP port {port} is not free" in done.stderr
    assert "--http-port N" in done.stderr
    assert "make serve PORT=N" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_busy_port_is_an_error_before_anything_is_compiled(small_repository):
    (small_repository / "linear" / "recipe.json").write_text("a recipe that would be an error")
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        done = run("serve", str(small_repository), "--build", "--grpc-port", port, "--http-port=0")
    assert f"gRPC port {port} is not free" in done.stderr
    assert "recipe" not in done.stderr


def test_serve_compiles_first_what_has_a_recipe_and_ends_where_that_fails(small_repository):
    (small_repository / "linear" / "recipe.json").write_text("no recipe")
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    done = run("serve", str(small_repository), "--build", *ports)
    assert done.returncode == 1
    assert "recipe.json: is not JSON" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_repository_is_a_clear_error(tmp_path):
    done = run("serve", str(tmp_path / "none"))
    assert done.returncode == 1
    assert f"{tmp_path}/none: No such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            ["--no-such-option"],
            "stopped with status 1 before it was ready: unrecognized option '--no-such-option'",
        ),
        (
            ["--cache-config", "nope,size=1"],
            "is running, but its start failed: .*unable to find 'libtritoncache_nope.so'",
        ),
    ],
)
def test_a_server_that_cannot_start_ends_and_says_why(tmp_path, small_repository, options, reason):
    with (
        pytest.raises(ServerError, match=reason),
        TritonServer(small_repository, options=options, log=tmp_path / "log"),
    ):
        pass


@pytest.mark.parametrize(
    "options", [["--cache-config", "local,size=1048576"], ["--allow-http=false"]]
)
def test_a_server_with_such_options_is_ready(tmp_path, small_repository, options):
    with TritonServer(small_repository, options=options, log=tmp_path / "log") as server:
        assert server.poll() is None
    assert server.exit_status == 0


def test_a_server_with_restricted_apis_is_asked_with_their_keys(tmp_path, small_repository):
    restricted = [
        "--http-restricted-api=model-repository,health:k=v",
        "--grpc-restricted-protocol=model-repository:k=v",
    ]
    with TritonServer(small_repository, options=restricted, log=tmp_path / "log") as server:
        assert server.failed_models() == {}
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(
                f"http://{server.http_url}/v2/health/ready", timeout=PATIENCE_SECONDS
            )
        answer = urllib.request.urlopen(
            f"http://{server.http_url}/v2/models/linear", timeout=PATIENCE_SECONDS
        )
        assert b'"linear"' in answer.read()


def test_our_line_is_the_last_after_tritons_usage(small_repository):
    ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    done = run("serve", str(small_repository), *ports, "--", "--rate-limit=x")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "poplar-triton: error: tritonserver stopped with status 1 before it was ready: "
        'Bad option: "--rate-limit". invalid argument for --rate-limit'
    )


def test_install_copies_the_backend_beside_the_python_backend(tmp_path):
    (tmp_path / "python").mkdir()
    assert run("install", str(tmp_path)).returncode == 1
    (tmp_path / "python" / "libtriton_python.so").touch()
    done = run("install", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "class TritonPythonModel" in (tmp_path / "poplar" / "model.py").read_text()


def test_doctor_finds_nothing_missing_here():
    done = run("doctor", "--json")
    assert done.returncode == 0, done.stdout


def test_doctor_names_what_the_stub_lacks(tmp_path):
    """An interpreter lacks packages: each missing one comes with a remedy."""
    done = run("doctor", env={**os.environ, "PYTHONNOUSERSITE": "1", "COLUMNS": "200"})
    assert "tritonserver" in done.stdout
    assert run("nonsense").returncode == 2
