"""`poplar-triton tune` on a real server."""

import json

import pytest
from poplar_triton.cli import main
from poplar_triton.tune.candidates import read_candidate
from poprt import Compiler, Converter
from poprt.triton import read_config
from poprt.triton.model_folder import write_triton_model


@pytest.mark.slow
def test_the_fastest_of_the_measured_configurations_is_written(linear, tmp_path, capsys):
    folder = tmp_path / "m"
    write_triton_model(Compiler.compile(Converter(batch_size=4).convert(linear)), folder)
    before = read_candidate(read_config(folder / "config.pbtxt"))
    words = ["tune", str(folder), "--budget-seconds", "25", "--clients", "2", "--json", "--write"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    measured = [each for each in told["measured"] if "per_second" in each]
    assert len(measured) >= 2
    settings = ("engine", "threads", "instances", "batches", "is_synchronous")
    assert told["winner"] in [{name: each[name] for name in settings} for each in measured]
    after = read_candidate(read_config(folder / "config.pbtxt"))
    assert {name: getattr(after, name) for name in settings} == told["winner"]
    assert (after != before) == (told["gain"] >= 1.05) == bool(told["written"])
