"""What `poprt` says at its end: times, rows that depend on each other, and shapes to give."""

import json
import shlex

import onnx
import pytest
from onnx import TensorProto, helper
from poplar_triton.cli import main as poplar_triton
from poprt import cli
from sample_models import make_model

F = TensorProto.FLOAT
ADVICE = "requests can have any number of rows"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def save(batch, width=4, op_type="Softmax", **attributes):
    """Write a model of one operator that mixes the rows of a batch."""
    node = helper.make_node(op_type, ["x"], ["y"], **(attributes or {"axis": 0}))
    shape = (F, [batch, width])
    onnx.save(make_model([node], {"x": shape}, {"y": shape}, {}), "model.onnx")


def poprt(capsys, *words):
    """Return what a compilation prints."""
    command = ["--input_model", "model.onnx", "--export_popef", *map(str, words)]
    assert cli.main(command) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "options", [[], ["--num_io_tiles", 32], ["--ipu_version", "ipu2", "--precision", "fp16"]]
)
def test_the_end_has_the_times_of_the_chip_and_of_a_call_as_a_profile_has_them(options, capsys):
    save("n", 512)
    out = poprt(capsys, "--batch_size", 64, *options)
    assert poplar_triton(["profile", "executable.popef", "--json"]) == 0
    profile = json.loads(capsys.readouterr().out)
    chip, call = profile["latency_parts"]["chip_seconds"], profile["latency_seconds"]
    assert f"{profile['cycles']} cycles, {1e6 * chip:.1f} us on the chip alone; " in out
    assert f"a whole call, with the host and its link, {1e6 * call:.1f} us" in out
    assert call > 2 * chip


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["--batch_size", "4"], "--batch_size 1"),
        (["--input_shape", "x=4,4"], "--input_shape x=-1,4 --batch_size 1"),
        (["--input_shape", "x=-1,4", "--batch_size", "4"], "--input_shape x=-1,4 --batch_size 1"),
    ],
)
def test_an_advice_for_dependent_rows_works(words, advice, capsys):
    save("n")
    assert f"with {advice} {ADVICE}" in poprt(capsys, *words)
    out = poprt(capsys, *shlex.split(advice), "--triton_model_dir", "served")
    assert "not proven to be independent" not in out
    with open("served/config.pbtxt", encoding="utf-8") as file:
        assert "max_batch_size: 1000" in file.read()


def test_no_advice_is_given_for_a_batch_that_the_model_fixes(capsys):
    save(8)
    out = poprt(capsys)
    assert "not proven to be independent" in out
    assert ADVICE not in out
    assert "export the model with a variable batch" in out


def test_no_advice_is_given_for_inputs_without_a_common_batch(capsys):
    nodes = [helper.make_node("MatMul", ["state", "x"], ["y"])]
    inputs = {"state": (F, [1, 3]), "x": (F, [3, 2])}
    onnx.save(make_model(nodes, inputs, {"y": (F, [1, 2])}, {}), "model.onnx")
    out = poprt(capsys)
    assert "not proven to be independent" in out
    assert "--batch_size 1" not in out
    assert "Each request has the compiled shapes, and is computed alone" in out


@pytest.mark.parametrize("dims", [["n", 3, "h", "w"], ["n", 3], [None, 3, 8, None]])
@pytest.mark.parametrize("given", [[], ["--batch_size", "2"]])
def test_the_shapes_that_an_error_suggests_leave_the_batch_open_and_work(dims, given, capsys):
    node = helper.make_node("Tanh", ["x"], ["y"])
    onnx.save(make_model([node], {"x": (F, dims)}, {"y": (F, dims)}, {}), "model.onnx")
    command = ["--input_model", "model.onnx", "--export_popef", *given]
    if given and dims == ["n", 3]:
        assert cli.main(command) == 0
        return
    assert cli.main(command) == 1
    told = shlex.split(capsys.readouterr().err.partition("use, with your ")[2])[1:]
    shapes = [word for word in told if word.startswith("x=")]
    assert all(word.startswith("x=-1,3") for word in shapes)
    assert ("--batch_size" in told) == (not given)
    assert cli.main([*command, *told]) == 0
    assert poplar_triton(["profile", "model.onnx", *given, *told]) == 0


def test_a_batch_in_both_options_is_refused_with_the_shape_to_give(capsys):
    save("n")
    command = ["--input_model", "model.onnx", "--export_popef", "--batch_size", "2"]
    assert cli.main([*command, "--input_shape", "x=8,4"]) == 1
    err = capsys.readouterr().err
    assert "input_shape gives 8 to axis 0, batch_size 2" in err
    told = shlex.split(err.partition("use, with --batch_size, ")[2])
    assert told == ["--input_shape", "x=-1,4"]
    assert cli.main([*command, *told]) == 0


def test_a_size_that_is_left_open_and_given_by_nothing_is_named(capsys):
    save("n")
    command = ["--input_model", "model.onnx", "--export_popef", "--input_shape", "x=-1,4"]
    assert cli.main(command) == 1
    assert "use, with your size, --batch_size 1" in capsys.readouterr().err
