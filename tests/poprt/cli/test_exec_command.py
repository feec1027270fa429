"""Tests of poprt_exec poprt_run_popef: every runner on random data."""

import sys

import pytest
from onnx import TensorProto, helper
from packable_models import row_sums_model
from poprt import Compiler, CompilerOptions
from poprt.cli import exec_command as exec_cli
from poprt.passes import get_pass
from sample_models import linear_model, make_model

from popef._tools import console


def host_concat_model():
    shape = [4, 1]
    return make_model(
        [helper.make_node("Concat", ["a", "b", "c"], ["y"], axis=1)],
        dict.fromkeys("abc", (TensorProto.FLOAT, shape)),
        {"y": (TensorProto.FLOAT, [4, 3])},
        {},
    )


@pytest.fixture
def run(capsys):
    def call(file, *options):
        status = exec_cli.main(
            ["poprt_run_popef", "--popef", str(file), "--iteration", "3", *options]
        )
        found = capsys.readouterr()
        return status, dict(line.split(": ") for line in found.out.splitlines()), found.err

    return call


@pytest.mark.parametrize(
    ("options", "batch"),
    [
        ([], "4"),
        (["--numThreads", "2", "--batchSize", "7"], "7"),
        (["--runner", "lightRunner"], "4"),
        (["--runner", "hostConcatRunner"], "4"),
    ],
)
def test_a_file_is_run_and_timed(options, batch, run, compile_popef):
    status, figures, _ = run(compile_popef(linear_model()), *options)
    assert status == 0
    assert figures["Batch size"] == batch
    assert int(figures["Iterations"]) == 3 * (2 if "--numThreads" in options else 3)
    assert figures.keys() >= {"Max latency", "P99 latency", "Throughput"}


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_long_run_shows_its_progress_on_a_terminal_only(
    is_terminal, run, compile_popef, monkeypatch
):
    monkeypatch.setattr(console, "_PATIENCE_SECONDS", 0)
    monkeypatch.setattr(console, "_REDRAW_SECONDS", 0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    _, _, err = run(compile_popef(linear_model()), "--numThreads", "1")
    shown = "\rrunning  33 %\rrunning  66 %\rrunning 100 %\n"
    assert err == (shown if is_terminal else "")


def test_samples_are_packed(run, tmp_path):
    file = tmp_path / "packed.popef"
    Compiler.compile(row_sums_model()).export(file)
    words = (
        "--runner packRunner --maxValidNum 5 --packTimeout 500 --dynamicInputName ids "
        "--maskName mask"
    )
    status, figures, _ = run(file, *words.split(), "--batchSize", "1")
    assert (status, figures["Batch size"]) == (0, "1")


def test_joined_inputs_are_joined(run, tmp_path):
    model = get_pass("apply_host_concat_split", [(TensorProto.FLOAT, (4, 1))])(host_concat_model())
    blobs = {entry.key: entry.value for entry in model.metadata_props}
    assert blobs
    file = tmp_path / "joined.popef"
    Compiler.compile_and_export(model, None, file, CompilerOptions(opaque_blobs=blobs))
    assert run(file, "--runner", "hostConcatRunner")[0] == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--index", "1"], "--index 1: the file has no output graph1/..., only y, z"),
        (
            ["--runner", "packRunner", "--dynamicInputName", "q"],
            "dynamic input 'q': expected one of x",
        ),
    ],
)
def test_tensors_that_the_file_lacks_are_named(options, reason, run, compile_popef):
    status, _, error = run(compile_popef(linear_model()), *options)
    assert status == 1
    assert reason in error
