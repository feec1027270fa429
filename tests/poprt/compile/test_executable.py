"""Tests of executables in memory and in files, the engine cache, and the summary report."""

import numpy as np
import pytest
from model_runtime import ModelRunner
from poprt import Compiler, CompilerOptions, Converter
from poprt.compile.executable import Executable
from sample_models import linear_model
from simipu import CompileError

import popef

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def converted():
    return Converter(batch_size=2).convert(linear_model())


def answer(path):
    with ModelRunner(path) as runner:
        return runner.execute({"x": X})["y"]


def test_an_executable_is_read_from_its_files_and_written_again(converted, tmp_path):
    options = CompilerOptions(constant_weights=False, opaque_blobs={"mine": b"blob"})
    made = Compiler.compile(converted, None, options)
    made.export(tmp_path / "one.popef", tmp_path / "weights.popef")
    found = Executable([tmp_path / "one.popef", str(tmp_path / "weights.popef")])
    assert found.weights.keys() == made.weights.keys()
    assert found.getOpaqueBlobs() == {"mine": b"blob"}
    found.appendOpaqueBlobs(("yours", b"1"))
    found.appendOpaqueBlobs({"theirs": b"2"})
    found.export(tmp_path / "two.popef")
    again = Executable(str(tmp_path / "two.popef"))
    assert set(again.getOpaqueBlobs()) == {"mine", "yours", "theirs"}
    assert again.rows == made.rows
    assert again.cycles == made.cycles
    expected = answer([tmp_path / "one.popef", tmp_path / "weights.popef"])
    np.testing.assert_array_equal(answer(tmp_path / "two.popef"), expected)


def test_an_executable_is_a_popef_model(converted):
    model = Compiler.compile(converted).getPopefModel()
    assert [
        anchor.name() for anchor in popef.user_anchors(model.metadata, popef.TensorType.INPUT)
    ] == ["x"]
    assert len(model.executable.executable()) > 0


@pytest.mark.parametrize("content", [None, b"", b"no popef"])
def test_a_file_that_is_no_executable_is_rejected_by_name(content, tmp_path):
    if content is not None:
        (tmp_path / "x.popef").write_bytes(content)
    with pytest.raises(CompileError, match=r"x\.popef: expected an executable of poprt, found: "):
        Executable(tmp_path / "x.popef")


def test_a_compiled_model_is_read_from_the_cache(converted, tmp_path, monkeypatch):
    options = CompilerOptions(enable_engine_caching=True, cache_path=str(tmp_path / "cache"))
    first = Compiler.compile(converted, None, options)
    (file,) = (tmp_path / "cache").iterdir()
    assert file.name.removesuffix(".popef").isdecimal()

    def fail(*_arguments):
        raise AssertionError("compiled again")

    options.opaque_blobs = {"mine": b"1"}
    with monkeypatch.context() as patch:
        patch.setattr("poprt.compile.compiler.take_steps", fail)
        second = Compiler.compile(converted, None, options)
    assert second.executable.name == first.executable.name
    assert second.getOpaqueBlobs() == {"mine": b"1"}
    for changed in (
        lambda: Compiler.compile(converted, ["y"], options),
        lambda: Compiler.compile(Converter(batch_size=3).convert(linear_model()), None, options),
        lambda: Compiler.compile(
            Converter(batch_size=2).convert(linear_model(seed=1)), None, options
        ),
        lambda: Compiler.compile(converted, None, vary(options, batches_per_step=2)),
    ):
        before = len(list(file.parent.iterdir()))
        changed()
        assert len(list(file.parent.iterdir())) == before + 1


def vary(options, **values):
    made = CompilerOptions(enable_engine_caching=True, cache_path=options.cache_path)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def test_a_damaged_or_unwritable_cache_costs_a_compilation(converted, tmp_path, caplog):
    options = CompilerOptions(enable_engine_caching=True, cache_path=str(tmp_path / "cache"))
    Compiler.compile(converted, None, options)
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(file.read_bytes()[:100])
    Compiler.compile(converted, None, options)
    assert "the cached executable is compiled anew" in caplog.text
    np.testing.assert_array_equal(answer(file).shape, (2, 3))
    (tmp_path / "file").touch()
    options.cache_path = str(tmp_path / "file")
    Compiler.compile(converted, None, options)
    assert "the executable is not cached" in caplog.text


def test_a_summary_report_says_what_a_batch_takes(converted):
    report = Compiler.compile_and_get_summary_report(
        converted, None, CompilerOptions(ipu_version="ipu21")
    )
    assert "batch 2, fp32 on C600 (ipu21), modelled: " in report
    assert "Mul" in report
    assert "\x1b" not in report
