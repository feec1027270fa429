"""Tests of the profile that options of the engine ask for."""

import json

import pva
import pytest

torch = pytest.importorskip("torch")

import poptorch  # noqa: E402

VARIABLE = "POPLAR_ENGINE_OPTIONS"


def compile_product(options):
    executor = poptorch.inferenceModel(torch.nn.Linear(16, 8).eval(), options)
    executor.compile(torch.ones(4, 16))
    return executor


def test_profiling_writes_the_estimate_to_the_folder_of_the_models_name(tmp_path):
    options = poptorch.Options().enableProfiling(str(tmp_path)).modelName("product")
    executor = compile_product(options)
    found = json.loads((tmp_path / "product" / "profile.json").read_text())
    assert found["cycles"] == executor._loaded.compilation.executable.executable.program(5).cycles
    assert (found["model"], found["batch_size"], found["modelled"]) == ("product", 4, True)
    assert len(found["ipus"]) == 1
    report = pva.openReport(tmp_path / "product" / "profile.pop")
    assert report.execution.totalCycles.total == found["total_cycles"]


def test_the_environment_asks_for_a_profile_and_names_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compile_product(poptorch.Options())
    assert not list(tmp_path.rglob("*.json"))
    monkeypatch.setenv(VARIABLE, json.dumps({"autoReport.all": "true"}))
    compile_product(poptorch.Options())
    assert (tmp_path / "inference" / "profile.json").is_file()
    asked = {"autoReport.all": True, "autoReport.directory": str(tmp_path / "elsewhere")}
    monkeypatch.setenv(VARIABLE, json.dumps(asked))
    compile_product(poptorch.Options().enableProfiling(str(tmp_path / "options")))
    assert (tmp_path / "elsewhere" / "inference" / "profile.json").is_file()
    assert not (tmp_path / "options").exists()


@pytest.mark.parametrize("text", ["autoReport.all", "[1]", '{"autoReport.all": {"true": 1}}'])
def test_an_environment_that_is_no_object_of_texts_is_an_error(text, monkeypatch):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(poptorch.Error, match="POPLAR_ENGINE_OPTIONS: expected a JSON object"):
        compile_product(poptorch.Options())


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(poptorch.Error, match=r"the profile .*profile.json cannot be written"):
        compile_product(poptorch.Options().enableProfiling(str(file)))
