"""Tests of the effect of the commands' limits on hostile models, and of the limits themselves in
separate processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import hostile_graphs as hostile
import onnx
import pytest
from onnx import helper
from poprt import Compiler, cli
from simipu import CompileMemoryError
from waiting import PATIENCE_SECONDS, wait_until

POPRT = [sys.executable, "-m", "poprt"]


def run(*words: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a command and return its status and output."""
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=timeout, check=False
    )


def save(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.slow
def test_a_compilation_has_a_limit_of_time(tmp_path: Path) -> None:
    """The grandchild process that folds constants ends with the compilation."""
    model = save(hostile.constant_chain(), tmp_path / "chain.onnx")
    done = run(*POPRT, "-i", model, "--export_popef", "--output_dir", tmp_path, "--time_limit", 1)
    assert done.returncode == 1
    assert (
        done.stderr
        == "poprt: error: it took longer than its limit of 1 s and was ended; --time_limit raises "
        "the limit\n"
    )
    assert not list(tmp_path.glob("*.popef"))


@pytest.mark.slow
def test_a_compilation_has_a_limit_of_memory(tmp_path: Path) -> None:
    model = hostile.make_model(
        [helper.make_node("Relu", ["x"], ["y"])], doc_string="x" * (120 << 20)
    )
    file = save(model, tmp_path / "large.onnx")
    done = run(*POPRT, "-i", file, "--memory_limit", 150)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()[-1:]
    assert "needs more than its limit of 150 MiB of memory; --memory_limit raises the limit" in line


@pytest.mark.slow
def test_an_interrupt_ends_all_of_it(tmp_path: Path) -> None:
    model = save(hostile.constant_chain(), tmp_path / "chain.onnx")
    command = [*POPRT, "-i", str(model), "--export_popef", "--output_dir", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: _descendants(process.pid), "its child starts")
        children = _descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 130
    # A grandchild dies with its parent, but the kernel takes a moment.
    wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "its children end"
    )


def _descendants(pid: int) -> list[int]:
    try:
        children = [
            int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except FileNotFoundError:
        return []
    return [each for child in children for each in (child, *_descendants(child))]


@pytest.mark.slow
def test_a_wrong_call_stays_one(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").touch()
    done = run(*POPRT, "-i", str(tmp_path / "x.onnx"), "--compiler_options", "num_ipus=0")
    assert done.returncode == 2
    assert (
        done.stderr
        == "poprt: error: compiler option num_ipus: expected 1 to 65536, found 0; see poprt --help\n"
    )


def test_a_crash_is_one_line(tmp_path: Path) -> None:
    """The signal stands for C++ code that a model crashes."""
    (tmp_path / "x.onnx").touch()
    script = (
        "import os, sys; from poprt import cli, frontend\n"
        "frontend.OnnxFrontend.open_model = lambda *words: os.kill(os.getpid(), 11)\n"
        f"sys.argv = ['poprt', '-i', {str(tmp_path / 'x.onnx')!r}]; sys.exit(cli.main())"
    )
    done = run(sys.executable, "-c", script)
    assert done.returncode == 1
    assert done.stderr.startswith("poprt: error: onnx or ONNX Runtime crashed (SIGSEGV)")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            hostile.large_constant(),
            "the constants of the model make tensor 'c' of 4398046511104 bytes; a model can hold",
        ),
        (hostile.dear_product(), "the constants of the model make tensor 'w' of 4294967296 bytes"),
        (hostile.endless_loop(), "runs 4611686018427387904 times, and nothing ends it before"),
        (hostile.concat_bomb(), "the graph computes a shape of"),
        (hostile.function_bomb(), "nodes once they are inlined"),
        (hostile.nested_graphs(), "inside nodes more than 16 deep"),
        (hostile.outside_constant("/dev/zero"), "expected a file inside the model's folder"),
        (hostile.outside_of_branch("../x"), "expected a file inside the model's folder"),
        (hostile.outside_of_sparse("/dev/zero"), "expected a file inside the model's folder"),
        (
            hostile.outside_constant("pipe"),
            "expected a regular file, found a folder, a device or a pipe",
        ),
        (hostile.outside_constant("n" * 5000), "found one that the system rejects"),
    ],
)
def test_compiling_refuses(tmp_path: Path, capsys, model: onnx.ModelProto, message: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = save(model, tmp_path / "m.onnx")
    assert cli.main(["-i", str(file), "--export_popef", "--output_dir", str(tmp_path / "out")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_model_that_no_machine_could_run_is_rejected() -> None:
    with pytest.raises(
        CompileMemoryError,
        match=r"the model could not be run: node .* takes \d+ multiply-adds, more than",
    ):
        Compiler.compile(hostile.dear_product(1 << 13))
