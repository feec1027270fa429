"""`poplar-triton profile` with models of strangers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hostile_graphs as hostile
import onnx
import pytest
from onnx import TensorProto, helper
from poplar_triton import cli
from waiting import PATIENCE_SECONDS


def save(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.slow
def test_profiling_has_a_limit_of_memory(tmp_path: Path) -> None:
    model = hostile.make_model(
        [helper.make_node("Relu", ["x"], ["y"])], doc_string="x" * (120 << 20)
    )
    command = [
        sys.executable,
        "-m",
        "poplar_triton.cli",
        "profile",
        save(model, tmp_path / "large.onnx"),
    ]
    done = subprocess.run(
        [*command, "--memory_limit", "150"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()[-1:]
    assert "needs more than its limit of 150 MiB of memory; --memory_limit raises the limit" in line


@pytest.mark.parametrize("location", ["/dev/zero", "../x", "pipe", "n" * 5000])
@pytest.mark.parametrize("kind", ["constant", "weight"])
def test_profiling_warns_by_name(tmp_path: Path, caplog, location: str, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    model = hostile.outside_constant(location)
    if kind == "weight":
        model = hostile.make_model(
            [helper.make_node("Add", ["x", "c"], ["y"])], [hostile.elsewhere("c", location)]
        )
    assert cli.main(["profile", str(save(model, tmp_path / "m.onnx"))]) == 0
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "external data of weight" in told
    assert "only its shape is used" in told
    assert len(told) < 500


def test_profiling_fills_no_more_than_a_model_can_hold(tmp_path: Path, capsys) -> None:
    """A file of 167 bytes made the estimator ask for 32 GiB."""
    tensor = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[1 << 33])
    file = save(hostile.make_model(hostile.added("c"), [tensor]), tmp_path / "m.onnx")
    assert cli.main(["profile", str(file)]) == 1
    assert "weight 'c' has no data and shape [8589934592]" in capsys.readouterr().err
