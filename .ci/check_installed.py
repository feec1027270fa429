"""Run every command once in an environment with the wheels, and check one answer. Run by
`.ci/check_dist`.

Imports nothing of the project, so that only the installed programs are tested.
"""

from __future__ import annotations

import importlib.metadata
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import tritonclient.http as httpclient
from onnx import TensorProto, helper

PROGRAMS = Path(sys.executable).parent
SECONDS = 120
"""Timeout of a command, and of the server's start and stop."""


def main() -> int:
    """Compile y = 2x, serve it and query it. Return 0 if the answer is correct and the server exits
    0."""
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # sent by `timeout`; also ends the child processes
    folder = Path.cwd()
    for program in ("popef", "popef_dump", "poprt", "poprt_exec", "poplar-triton"):
        call(program, "--help")
    check_kernels()
    save_model(folder / "double.onnx")
    model = folder / "models" / "double"
    call("poprt", "-i", "double.onnx", "--batch_size", "4", "--triton_model_dir", model)
    call("popef_dump", "--json", model / "1" / "executable.popef")
    (folder / "backends" / "python").mkdir(parents=True)
    (folder / "backends" / "python" / "libtriton_python.so").touch()  # identifies a server
    call("poplar-triton", "install", folder / "backends")
    assert (folder / "backends" / "poplar" / "model.py").stat().st_size
    status = serve_and_ask(folder / "models")
    check_distributions()
    return status


def check_distributions() -> None:
    """Check that the packages of the SDK are distributions, and that the rest works without
    them."""
    versions = {
        each: importlib.metadata.version(each)
        for each in ("popart", "popdist", "poptorch", "pva", "tensorflow-ipu")
    }
    assert all(version.startswith("3.4.0+sim.") for version in versions.values()), versions
    run_python("import popart, popdist, popdist.popart, pva; assert popdist.getNumInstances() == 1")
    uninstall = [sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", *versions]
    subprocess.run(uninstall, check=True, timeout=SECONDS)
    run_python(
        "import importlib.util, popef, poprt, model_runtime, poplar_triton\n"
        f"assert not any(map(importlib.util.find_spec, {tuple(versions)}))"
    )


def run_python(source: str) -> None:
    """Run a Python program in the environment, which must exit 0."""
    subprocess.run([sys.executable, "-I", "-c", source], check=True, timeout=SECONDS)


def call(program: str, *arguments: str | Path) -> None:
    """Run an installed program, which must exit 0."""
    subprocess.run(
        [PROGRAMS / program, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=SECONDS
    )


def check_kernels() -> None:
    """Check with `doctor` that the wheel contains working kernels."""
    command = [PROGRAMS / "poplar-triton", "doctor", "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS)
    found = {finding["subject"]: finding["found"] for finding in json.loads(done.stdout)}
    assert found["kernels"] in ("avx512", "avx2", "portable"), found["kernels"]


def save_model(path: Path) -> None:
    """Save y = x + x, whose rows are independent."""
    shape = ["n", 3]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path
    )


def serve_and_ask(repository: Path) -> int:
    """Serve on free ports, send one request, stop. Return the server's exit status."""
    ports = [word for name in ("http", "grpc", "metrics") for word in (f"--{name}-port", "0")]
    command = [PROGRAMS / "poplar-triton", "serve", repository, *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            ask(
                next(
                    line.rpartition("/")[2].strip()
                    for line in server.stdout
                    if line.startswith("HTTP")
                )
            )
        finally:
            server.terminate()  # also ends tritonserver; SIGKILL would not
        return server.wait(SECONDS)


def ask(url: str) -> None:
    """Send one request and check the answer."""
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = httpclient.InferInput("x", rows.shape, "FP32")
    tensor.set_data_from_numpy(rows)
    with httpclient.InferenceServerClient(url, network_timeout=SECONDS) as client:
        found = client.infer("double", [tensor]).as_numpy("y")
    np.testing.assert_array_equal(found, 2 * rows)
    print(f"the installed wheels answer {found.tolist()} to {rows.tolist()}")


if __name__ == "__main__":
    sys.exit(main())
