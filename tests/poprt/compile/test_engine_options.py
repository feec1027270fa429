"""Options of Poplar's engine in the environment, for all that compiles."""

import json

import onnx
import pva
import pytest
from poprt import Compiler, CompilerOptions, Converter
from poprt.cli.command import main
from poprt.compile import profile_executable
from sample_models import linear_model
from simipu import CompileError, OutOfMemoryError

VARIABLE = "POPLAR_ENGINE_OPTIONS"
FILES = {"profile.json", "profile.pop"}


@pytest.fixture
def converted():
    return Converter(batch_size=4).convert(linear_model())


@pytest.fixture
def asks(monkeypatch):
    """Return a function that sets the variable."""

    def set_options(**options):
        named = {name.replace("_", "."): value for name, value in options.items()}
        monkeypatch.setenv(VARIABLE, json.dumps(named))

    return set_options


def written(folder):
    return {file.name for file in folder.iterdir()} if folder.exists() else set()


def compile_alone(model, folder):
    Compiler.compile(model)


def compile_and_export(model, folder):
    Compiler.compile_and_export(model, None, folder / "m.popef")


def summarize(model, folder):
    Compiler.compile_and_get_summary_report(model)


def run_command(model, folder):
    onnx.save(model, folder / "m.onnx")
    words = ["--input_model", folder / "m.onnx", "--export_popef", "--output_dir", folder / "out"]
    assert main(list(map(str, words))) == 0


WAYS = [compile_alone, compile_and_export, summarize, run_command]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["all", "outputGraphProfile", "outputExecutionProfile"])
def test_a_report_is_written_if_the_environment_asks_for_one(tmp_path, converted, asks, way, name):
    asks(**{f"autoReport_{name}": "true", "autoReport_directory": str(tmp_path / "reports")})
    way(converted, tmp_path)
    assert written(tmp_path / "reports" / "inference") == FILES
    profile = json.loads((tmp_path / "reports" / "inference" / "profile.json").read_text())
    (expected,) = profile_executable(Compiler.compile(converted), CompilerOptions())
    assert profile["total_cycles"] == expected.as_json()["total_cycles"]
    assert pva.openReport(tmp_path / "reports" / "inference" / "profile.pop")


@pytest.mark.parametrize("way", WAYS)
def test_no_report_is_written_unasked(tmp_path, converted, asks, way):
    asks(autoReport_all="false", autoReport_directory=str(tmp_path / "reports"))
    way(converted, tmp_path)
    assert not (tmp_path / "reports").exists()


def test_the_options_of_the_program_count_too_and_the_environment_overrides_them(
    tmp_path, converted, asks
):
    own = {"autoReport.all": "true", "autoReport.directory": str(tmp_path / "own")}
    Compiler.compile(converted, None, CompilerOptions(engine_options=own))
    assert written(tmp_path / "own" / "inference") == FILES
    asks(autoReport_directory=str(tmp_path / "other"))
    Compiler.compile(converted, None, CompilerOptions(engine_options=own))
    assert written(tmp_path / "other" / "inference") == FILES
    asks(autoReport_all=False)
    (tmp_path / "own" / "inference" / "profile.json").unlink()
    Compiler.compile(converted, None, CompilerOptions(engine_options=own))
    assert written(tmp_path / "own" / "inference") == {"profile.pop"}


def test_an_executable_does_not_record_where_its_report_is(tmp_path, converted, asks):
    plain = Compiler.compile(converted)
    plain.export(tmp_path / "plain.popef")
    asks(autoReport_all="true", autoReport_directory=str(tmp_path / "reports"))
    Compiler.compile(converted).export(tmp_path / "asked.popef")
    assert (tmp_path / "asked.popef").read_bytes() == (tmp_path / "plain.popef").read_bytes()


def test_debug_options_change_the_executable(converted, asks, monkeypatch):
    half = Converter(batch_size=4, precision="fp16").convert(linear_model())
    asks(debug_nanOverflowException="true")
    by_environment = Compiler.compile(half).executable.serialize()
    monkeypatch.delenv(VARIABLE)
    options = CompilerOptions(engine_options={"debug.nanOverflowException": "true"})
    assert bytes(by_environment) == bytes(
        Compiler.compile(half, None, options).executable.serialize()
    )
    assert bytes(by_environment) != bytes(Compiler.compile(half).executable.serialize())


def test_memory_is_not_limited_if_the_environment_says_so(asks):
    big = Converter(input_shape={"x": [100_000_000, 4]}).convert(linear_model())
    options = CompilerOptions(num_ipus=1, skip_dry_run=True)
    with pytest.raises(OutOfMemoryError):
        Compiler.compile(big, None, options)
    asks(debug_allowOutOfMemory="true")
    Compiler.compile(big, None, options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{'autoReport.all': 'true'}", "expected a JSON object"),
        ("autoReport.all", "expected a JSON object"),
        ("[1]", "expected a JSON object of texts"),
        ('{"autoReport.all": {"true": 1}}', "expected a JSON object of texts"),
        ('{"autoReport.all": "yes"}', "expected true or false, found 'yes'"),
        ('{"debug.allowOutOfMemory": 1}', "expected true or false, found '1'"),
    ],
)
def test_text_that_is_no_options_is_an_error_that_names_the_variable(
    tmp_path, converted, monkeypatch, capsys, way, text, expected
):
    monkeypatch.setenv(VARIABLE, text)
    if way is run_command:
        onnx.save(converted, tmp_path / "m.onnx")
        words = ["--input_model", str(tmp_path / "m.onnx"), "--export_popef"]
        assert main([*words, "--output_dir", str(tmp_path)]) == 1
        said = capsys.readouterr().err
    else:
        with pytest.raises(CompileError) as caught:
            way(converted, tmp_path)
        said = str(caught.value)
    assert VARIABLE in said
    assert expected in said
