"""`poplar-triton export`: what leaves has the names, shapes and answers that clients know."""

from __future__ import annotations

import json
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from compiled_models import compile_once
from google.protobuf import text_format
from model_runtime import Session
from onnx import TensorProto, helper
from poplar_triton.cli import main
from poplar_triton.export import command
from poprt.comparing import measure_difference
from poprt.triton.config import new_config
from poprt.triton.model_folder import write_triton_model
from sample_models import linear_model, loudness_model, make_model
from sdk_files import open_file, rewrite

DTYPES = {"TYPE_FP32": np.float32, "TYPE_FP16": np.float16, "TYPE_INT32": np.int32}


def write_model(folder, model, *, batch=4, **convert):
    write_triton_model(compile_once(model, batch=batch, **convert), folder)
    return folder


def export(*arguments):
    return main(["export", *map(str, arguments)])


def read_config(folder):
    return text_format.Parse((folder / "config.pbtxt").read_text(), new_config())


def open_session(file):
    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


def describe(values):
    return {value.name: (value.type, value.shape) for value in values}


def edit(folder, old, new):
    text = (folder / "config.pbtxt").read_text()
    assert old in text
    (folder / "config.pbtxt").write_text(text.replace(old, new))


def test_the_file_computes_what_the_configuration_says_under_the_names_of_clients(tmp_path):
    folder = write_model(tmp_path / "mine", linear_model())
    names = {"x": "pixels", "y": "x", "z": "sum"}  # two of them are names of other tensors
    (folder / "1/name_map.json").write_text(json.dumps(names))
    for old, new in names.items():
        edit(folder, f'name: "{old}"', f'name: "{new}_"')
    for new in names.values():
        edit(folder, f'name: "{new}_"', f'name: "{new}"')
    assert export(folder, tmp_path / "out/mine") == 0
    config = read_config(tmp_path / "out/mine")
    assert (config.name, config.backend, config.max_batch_size) == ("mine", "onnxruntime", 4000)
    assert config.HasField("dynamic_batching")
    assert [(each.name, list(each.dims)) for each in config.input] == [("pixels", [4])]
    assert [(each.name, list(each.dims)) for each in config.output] == [("x", [3]), ("sum", [4])]
    session = open_session(tmp_path / "out/mine/1/model.onnx")
    assert describe(session.get_inputs()) == {"pixels": ("tensor(float)", ["rows", 4])}
    assert describe(session.get_outputs()) == {
        "x": ("tensor(float)", ["rows", 3]),
        "sum": ("tensor(float)", ["rows", 4]),
    }
    rows = np.random.default_rng(1).standard_normal((7, 4)).astype(np.float32)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in linear_model().graph.initializer}
    y, z = session.run(["x", "sum"], {"pixels": rows})
    np.testing.assert_allclose(y, np.maximum(rows @ weights["w"] + weights["b"], 0), rtol=1e-5)
    np.testing.assert_array_equal(z, rows * 2)


def half_model():
    """Return a model whose products round differently in half: sums of many values."""
    weights = {"w": np.random.default_rng(0).standard_normal((300, 5)).astype(np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Sigmoid", ["product"], ["y"]),
    ]
    shape = (TensorProto.FLOAT, ["n", 300])
    return make_model(nodes, {"x": shape}, {"y": (TensorProto.FLOAT, ["n", 5])}, weights)


def test_exact_numerics_have_every_bit_of_the_chips_rounding_and_fast_ones_have_not(tmp_path):
    folder = write_model(tmp_path / "half", half_model(), precision="fp16")
    rows = np.random.default_rng(1).standard_normal((9, 300)).astype(np.float16)
    session = Session(folder / "1/executable.popef")
    expected = session.run({"x": rows})["y"]
    session.stop()
    answers = {}
    for numerics in ("exact", "fast"):
        file = tmp_path / f"{numerics}.onnx"
        assert export(folder, file, "--to", "onnx", "--numerics", numerics) == 0
        answers[numerics] = open_session(file).run(["y"], {"x": rows})[0]
    np.testing.assert_array_equal(answers["exact"].view(np.uint16), expected.view(np.uint16))
    assert (answers["fast"] != expected).any()
    np.testing.assert_allclose(answers["fast"], expected, atol=0.02)


def test_it_says_what_it_measured_and_what_it_leaves_out(tmp_path, capsys):
    folder = write_model(tmp_path / "half", half_model(), precision="fp16")
    edit(
        folder,
        "parameters {",
        'parameters { key: "sim_threads" value { string_value: "2" } }\n'
        'parameters { key: "intra_op_thread_count" value { string_value: "9" } }\n'
        'parameters { key: "timeout_ns" value { string_value: "7" } }\nparameters {',
    )
    with (folder / "config.pbtxt").open("a") as config:
        config.write(
            'version_policy { latest { num_versions: 2 } }\nmetric_tags { key: "a" value: "b" }'
        )
    assert export(folder, tmp_path / "other", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    left_out = "\n".join(told["left_out"])
    for name in ("parameter synchronous_execution", "parameter timeout_ns", "version_policy"):
        assert name in left_out
    assert "clients call the model 'half' today" in "\n".join(told["notes"])
    comparison = told["comparison"]
    assert comparison["same_rounding"]["y"] <= 2**-8 < 1
    assert 0 < comparison["as_served"]["y"] < 0.02
    assert comparison["rows"] == 16 + 1 + 5
    config = read_config(tmp_path / "other")
    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "intra_op_thread_count": "2"
    }
    assert dict(config.metric_tags) == {"a": "b"}


def scalar_model():
    """Return a model that maps a number of each row to another."""
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    return make_model(
        nodes, {"x": (TensorProto.FLOAT, ["n"])}, {"y": (TensorProto.FLOAT, ["n"])}, {}
    )


def test_rows_that_are_numbers_keep_the_shape_of_their_requests(tmp_path):
    folder = write_model(tmp_path / "scalar", scalar_model())
    assert export(folder, tmp_path / "out") == 0
    session = open_session(tmp_path / "out/1/model.onnx")
    assert describe(session.get_inputs()) == {"x": ("tensor(float)", ["rows", 1])}
    found = session.run(["y"], {"x": np.float32([[1], [2], [3]])})[0]
    np.testing.assert_array_equal(found, [[-1], [-2], [-3]])
    assert not read_config(tmp_path / "out").input[0].HasField("reshape")


def test_rows_that_depend_on_each_other_leave_as_whole_batches(tmp_path, capsys):
    folder = write_model(tmp_path / "loud", loudness_model())
    text = (folder / "config.pbtxt").read_text()
    assert "max_batch_size" not in text
    (folder / "config.pbtxt").write_text(
        'backend: "poplar" max_batch_size: 4\n'
        'input { name: "x" data_type: TYPE_FP32 dims: 4 }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: 4 }\ndynamic_batching {}\n'
        'model_warmup { name: "w" batch_size: 2 inputs { key: "x" '
        "value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }"
    )
    assert export(folder, tmp_path / "out") == 0
    config = read_config(tmp_path / "out")
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [4, 4])
    assert not config.HasField("dynamic_batching")
    (warm_up,) = config.model_warmup
    assert (warm_up.batch_size, list(warm_up.inputs["x"].dims)) == (1, [4, 4])
    assert "each request is computed alone, with 4 rows" in capsys.readouterr().out
    session = open_session(tmp_path / "out/1/model.onnx")
    rows = np.arange(16, dtype=np.float32).reshape(4, 4)
    np.testing.assert_allclose(session.run(["y"], {"x": rows})[0], rows / 15, rtol=1e-6)


def test_batches_of_dependent_rows_that_share_a_run_cannot_leave(tmp_path, capsys):
    compiled = compile_once(loudness_model(), options={"batches_per_step": 2})
    compiled.export(tmp_path / "loud.popef")
    assert export(tmp_path / "loud.popef", tmp_path / "out") == 1
    assert "a run computes 8 rows in batches of 4, whose rows depend" in capsys.readouterr().err


def chip_model(*nodes):
    shape = (TensorProto.FLOAT, ["n", 8])
    weights = {"s": np.full(8, 2, np.float32), "b": np.ones(8, np.float32)}
    return make_model(list(nodes), {"x": shape}, {"y": shape}, weights, opset=15)


def test_a_plain_file_has_only_operators_of_the_standard(tmp_path):
    gelu = helper.make_node("Gelu", ["x"], ["y"], domain="ai.graphcore")
    model = chip_model(gelu)
    model.opset_import.append(helper.make_opsetid("ai.graphcore", 1))
    folder = write_model(tmp_path / "gelu", model)
    assert export(folder, tmp_path / "plain.onnx", "--to", "onnx") == 0
    plain = onnx.load(tmp_path / "plain.onnx")
    onnx.checker.check_model(plain)
    assert {entry.domain for entry in plain.opset_import} == {""}
    rows = np.linspace(-3, 3, 16, dtype=np.float32).reshape(2, 8)
    inner = np.sqrt(2 / np.pi) * (rows + 0.044715 * rows**3)
    found = open_session(tmp_path / "plain.onnx").run(["y"], {"x": rows})[0]
    np.testing.assert_allclose(found, rows / 2 * (1 + np.tanh(inner)), atol=1e-6)


def test_an_operator_that_only_onnx_runtime_has_is_named_and_stays_for_its_backend(
    tmp_path, capsys
):
    norm = helper.make_node("FastNorm", ["x", "s", "b"], ["y"], name="n1", domain="ai.graphcore")
    model = chip_model(norm)
    model.opset_import.append(helper.make_opsetid("ai.graphcore", 1))
    folder = write_model(tmp_path / "norm", model)
    assert export(folder, tmp_path / "plain.onnx", "--to", "onnx") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "(LayerNormalization of opset 15)" in line
    assert not (tmp_path / "plain.onnx").exists()
    assert export(folder, tmp_path / "out") == 0


def test_existing_files_stay_without_an_option(tmp_path, capsys):
    folder = write_model(tmp_path / "mine", linear_model())
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes").write_text("mine")
    assert export(folder, tmp_path / "out") == 1
    assert "--force" in capsys.readouterr().err
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["notes"]
    assert export(folder, tmp_path / "out", "--force") == 0
    assert {each.name for each in (tmp_path / "out").iterdir()} == {"notes", "1", "config.pbtxt"}
    assert {each.name for each in tmp_path.iterdir()} == {"mine", "out"}


def test_labels_and_warm_up_data_go_along_and_files_elsewhere_do_not(tmp_path, capsys):
    folder = write_model(tmp_path / "mine", linear_model())
    edit(folder, 'name: "y"', 'name: "y" label_filename: "labels.txt"')
    with (folder / "config.pbtxt").open("a") as config:
        config.write(
            'model_warmup { name: "w" batch_size: 2 inputs { key: "x" value '
            '{ data_type: TYPE_FP32 dims: 4 input_data_file: "row" } } }'
        )
    (folder / "labels.txt").write_text("a\nb\nc\n")
    (folder / "warmup").mkdir()
    (folder / "warmup/row").write_bytes(bytes(16))
    assert export(folder, tmp_path / "out") == 0
    assert (tmp_path / "out/labels.txt").read_text() == "a\nb\nc\n"
    assert (tmp_path / "out/warmup/row").read_bytes() == bytes(16)
    edit(folder, "labels.txt", "../secret")
    (tmp_path / "secret").touch()
    assert export(folder, tmp_path / "more") == 1
    assert "../secret: expected a file inside the model's folder" in capsys.readouterr().err


def test_weights_that_one_file_cannot_hold_are_beside_it(tmp_path, monkeypatch):
    random = np.random.default_rng(0).standard_normal((512, 600)).astype(np.float32)
    shapes = {"x": (TensorProto.FLOAT, ["n", 512])}, {"y": (TensorProto.FLOAT, ["n", 600])}
    model = make_model([helper.make_node("MatMul", ["x", "w"], ["y"])], *shapes, {"w": random})
    folder = write_model(tmp_path / "wide", model)
    monkeypatch.setattr(onnx.checker, "MAXIMUM_PROTOBUF", 1 << 20)
    assert export(folder, tmp_path / "wide.onnx", "--to", "onnx") == 0
    assert (tmp_path / "wide.onnx").stat().st_size < 10_000
    assert (tmp_path / "wide.onnx.data").stat().st_size == random.nbytes
    found = open_session(tmp_path / "wide.onnx").run(["y"], {"x": np.eye(512, dtype=np.float32)})
    np.testing.assert_allclose(found[0], random, rtol=1e-6)


def test_a_popef_file_alone_leaves_with_a_configuration(tmp_path):
    options = {"constant_weights": False}
    compiled = compile_once(linear_model(), batch=2, options=options, precision="fp16")
    compiled.export(tmp_path / "some.popef", tmp_path / "weights.popef")
    assert export(tmp_path / "some.popef", tmp_path / "some") == 0
    config = read_config(tmp_path / "some")
    assert (config.name, config.max_batch_size) == ("some", 2000)
    session = open_session(tmp_path / "some/1/model.onnx")
    assert describe(session.get_inputs()) == {"x": ("tensor(float16)", ["rows", 4])}


def test_a_real_executable_leaves_as_the_graph_that_stands_for_it(tmp_path):
    folder = write_model(tmp_path / "real", linear_model())
    file = folder / "1/executable.popef"
    rewrite(file, open_file(file).metadata, b"\x7fELF machine code of a chip")
    onnx.save(linear_model(), folder / "1/graph.onnx")
    edit(
        folder,
        "parameters {",
        'parameters { key: "sim_graph_path" value { string_value: "graph.onnx" } }\nparameters {',
    )
    assert export(folder, tmp_path / "out") == 0
    rows = np.float32([[1, 2, 3, 4]])
    session = open_session(tmp_path / "out/1/model.onnx")
    np.testing.assert_array_equal(session.run(["z"], {"x": rows})[0], 2 * rows)


def test_a_file_with_other_answers_is_not_written(tmp_path, monkeypatch, capsys):
    folder = write_model(tmp_path / "mine", linear_model())
    make = command.make_exported

    def make_wrong(*arguments):
        model = make(*arguments)
        (two,) = (each for each in model.graph.initializer if each.name == "two")
        two.CopyFrom(onnx.numpy_helper.from_array(np.float32(2.001), "two"))
        return model

    monkeypatch.setattr(command, "make_exported", make_wrong)
    assert export(folder, tmp_path / "out") == 1
    assert (
        "output 'z': expected a difference of at most 0.0001, found 0.0004"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()
    assert export(folder, tmp_path / "out", "--no-check") == 0


@pytest.mark.parametrize(
    ("found", "expected", "difference"),
    [
        ([1.0, np.nan, np.inf], [1.0, np.nan, np.inf], 0),
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([np.nan, 4.0], [1.0, 4.0], np.inf),
        ([-np.inf, 4.0], [np.inf, 4.0], np.inf),
        ([1e-9], [0.0], np.inf),
        ([True, False], [True, True], np.inf),
        ([3, 4], [4, 4], 0.25),
    ],
)
def test_differences_are_relative_to_the_largest_value(found, expected, difference):
    assert measure_difference(np.array(found), np.array(expected)) == difference


def test_openvino_is_asked_for_before_any_work(tmp_path, monkeypatch, capsys):
    for name in (
        "openvino",
        "simipu.engines.openvino_package",
    ):  # the second has it already, if imported
        monkeypatch.setitem(sys.modules, name, None)
    assert export(tmp_path, tmp_path / "out", "--to", "openvino") == 1
    assert "the extra [openvino]" in capsys.readouterr().err


@pytest.mark.slow
def test_openvino_gets_rows_of_any_number_in_dims(tmp_path, capsys):
    openvino = pytest.importorskip("simipu.engines.openvino_package").openvino
    folder = write_model(tmp_path / "mine", linear_model())
    edit(folder, "KIND_CPU", "KIND_GPU")
    assert export(folder, tmp_path / "out", "--to", "openvino") == 0
    config = read_config(tmp_path / "out")
    assert (config.backend, config.max_batch_size) == ("openvino", 0)
    assert list(config.input[0].dims) == [-1, 4]
    compiled = openvino.Core().compile_model(tmp_path / "out/1/model.xml", "CPU")
    rows = np.random.default_rng(1).standard_normal((7, 4)).astype(np.float32)
    np.testing.assert_array_equal(compiled({"x": rows})["z"], rows * 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none", "out"), "none: No such file or directory"),
        ((".", "out"), "expected a model folder with a version"),
        (("other", "out"), 'expected backend "poplar", found'),
        (("mine", "out.bin", "--to", "onnx"), "expected a file that ends in .onnx"),
        (("mine", "mine", "--to", "onnx"), "expected a file for --to onnx, found a folder"),
        (("mine", "mine/config.pbtxt"), "expected a folder for --to onnxruntime, found a file"),
    ],
)
def test_wrong_paths_are_named(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, backend in (("mine", "poplar"), ("other", "onnxruntime")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(f'backend: "{backend}"')
    assert export(*arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_the_roundings_of_half_are_not_given_to_openvino(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command.openvino, "import_openvino", lambda: None)
    half = write_model(tmp_path / "half", linear_model(), precision="fp16")
    options = ("--to", "openvino", "--numerics", "exact")
    assert export(half, tmp_path / "out", *options) == 1
    told = capsys.readouterr().err
    assert "--numerics fast, or --to onnxruntime" in told
    assert not (tmp_path / "out").exists()
