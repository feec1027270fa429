"""Tests of compilation from ONNX to PopEF: shapes, types, weights, errors that name the node, and
the command."""

import errno
import json
import logging
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import weights
from poprt import Compiler, CompilerOptions, Converter, cli
from poprt.passes.folding import computing
from poprt.passes.folding import constants as folding
from sample_models import make_model
from simipu import CompileError, OutOfMemoryError
from simipu.numerics import Numerics, lower
from waiting import PATIENCE_SECONDS

import popef

F, H, I32, I64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT64


def element_types(values):
    return [value.type.tensor_type.elem_type for value in values]


def test_int64_borders_become_int32_and_answers_stay():
    from oracles import unoptimised_session

    model = make_model(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("ArgMax", ["rows"], ["best"], axis=2),
        ],
        {"ids": (I64, ["n", 3])},
        {"best": (I64, ["n", 3, 1])},
        {"table": np.random.default_rng(0).standard_normal((10, 5)).astype(np.float32)},
    )
    converted = Converter(batch_size=2).convert(model)
    assert element_types(converted.graph.input) == element_types(converted.graph.output) == [I32]
    ids = np.array([[1, 2, 3], [9, 0, 4]])
    expected = unoptimised_session(model).run(None, {"ids": ids})[0]
    found = unoptimised_session(converted).run(None, {"ids": ids.astype(np.int32)})[0]
    np.testing.assert_array_equal(found, expected)


def test_fp16_turns_borders_and_weights_to_half_and_clamps_masks():
    model = make_model(
        [helper.make_node("Add", ["x", "mask"], ["y"])],
        {"x": (F, ["n", 3])},
        {"y": (F, ["n", 3])},
        {"mask": np.array([0, -3.4e38, -np.inf], np.float32)},
    )
    converted = Converter(batch_size=2, precision="fp16").convert(model)
    assert element_types(converted.graph.input) == element_types(converted.graph.output) == [H]
    mask = onnx.numpy_helper.to_array(converted.graph.initializer[0])
    np.testing.assert_array_equal(mask, np.array([0, -65504, -np.inf], np.float16))


def test_skipped_operators_stay_in_float(linear):
    converted = Converter(batch_size=2, precision="fp16", fp16_skip_op_types="MatMul,Add").convert(
        linear
    )
    types = {
        v.name: v.type.tensor_type.elem_type
        for v in onnx.shape_inference.infer_shapes(converted).graph.value_info
    }
    matmul = next(node for node in converted.graph.node if node.op_type in ("MatMul", "Gemm"))
    assert types[matmul.output[0]] == (F if matmul.op_type == "MatMul" else H)
    onnx.checker.check_model(lower(converted, Numerics()), full_check=True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, r"fixed at compile time: 'x' \[batch, 4\]; use, with your size, --batch_size 1"),
        (
            {"batch_size": 2, "input_shape": {"x": [2, 5]}},
            "dimension 1 is fixed at 4 and cannot become 5",
        ),
        ({"input_shape": {"x": [2]}}, "input_shape gives it 1 dimensions"),
        (
            {"batch_size": 2, "input_shape": {"x": [3, 4]}},
            "input_shape gives 3 to axis 0, batch_size 2",
        ),
        ({"input_shape": {"x": [0, 4]}}, "dimension 0 must be at least 1"),
        (
            {"batch_size": 2, "remove_outputs": ["q"]},
            "remove_outputs names 'q'; the model's outputs are y, z",
        ),
        ({"batch_size": 2, "remove_outputs": ["y", "z"]}, "leaves no output"),
        (
            {"batch_size": 2, "precision": "int4"},
            "precision: expected fp32, fp16, fp8, fp8_weight, found 'int4'",
        ),
    ],
)
def test_a_wrong_conversion_says_what_is_wrong(linear, options, reason):
    with pytest.raises(CompileError, match=reason):
        Converter(**options).convert(linear)


def single(operator, inputs, outputs, domain="", **attributes):
    nodes = [
        helper.make_node(
            operator, list(inputs), list(outputs), name="culprit", domain=domain, **attributes
        )
    ]
    model = make_model(nodes, inputs, outputs, {})
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            single("Normalizer", {"x": (F, ["n", 4])}, {"y": (F, ["n", 4])}, "ai.onnx.ml"),
            "ai.onnx.ml.Normalizer is not supported",
        ),
        (
            single("NonZero", {"x": (F, ["n", 4])}, {"y": (I64, [2, "m"])}),
            "'culprit' .NonZero.*known at run time only",
        ),
        (
            single(
                "Cast",
                {"x": (F, ["n", 4])},
                {"y": (TensorProto.BFLOAT16, ["n", 4])},
                to=TensorProto.BFLOAT16,
            ),
            "type BFLOAT16",
        ),
    ],
)
def test_unsupported_nodes_are_rejected_by_name(model, reason):
    with pytest.raises(CompileError, match=reason):
        Compiler.compile(Converter(batch_size=2).convert(model))


I16 = TensorProto.INT16


def flat(*nodes, **kinds):
    values = {name: (kind, [2, 3]) for name, kind in kinds.items()}
    outputs = {name: values.pop(name) for name in ("y",)}
    return make_model(list(nodes), values, outputs, {})


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            flat(helper.make_node("Add", ["x", "i"], ["y"], name="culprit"), x=F, i=I32, y=F),
            r"node 'culprit' \(Add\): expected inputs 'x' and 'i' of one type, found float and "
            r"int32",
        ),
        (
            flat(helper.make_node("Sin", ["x"], ["y"], name="culprit"), x=I16, y=I16),
            r"'culprit' \(Sin\): input 'x' is of type int16, expected double, float, float16; cast "
            r"it",
        ),
        (
            flat(helper.make_node("Sum", ["x", "x", "i"], ["y"], name="culprit"), x=F, i=I32, y=F),
            r"'culprit' \(Sum\): (input 'i' is of type int32|expected inputs)",
        ),
        (
            flat(helper.make_node("Add", ["x", "gone"], ["y"], name="culprit"), x=F, y=F),
            r"'culprit' \(Add\): reads 'gone', which is no input and no weight, and nothing makes "
            r"it",
        ),
        (
            flat(
                helper.make_node("Neg", ["x"], ["y"], name="first"),
                helper.make_node("Abs", ["x"], ["y"], name="culprit"),
                x=F,
                y=F,
            ),
            r"'culprit' \(Abs\): makes 'y', which is of node 'first' \(Neg\) already",
        ),
        (
            flat(helper.make_node("Neg", ["z"], ["x"], name="culprit"), x=F, z=F, y=F),
            r"'culprit' \(Neg\): makes 'x', which is an input or a weight already",
        ),
    ],
)
def test_invalid_nodes_are_rejected_by_name(model, reason):
    with pytest.raises(CompileError, match=reason):
        Converter().convert(model)


def foldable_model():
    """Return a model with weights that products use directly, and others from which values are
    computed at compile time."""
    random = np.random.default_rng(0)
    held = {
        name: random.standard_normal((4, 4), np.float32)
        for name in ("w", "v", "u", "t", "inner", "given")
    }
    held["table"] = random.standard_normal((8, 4), np.float32)
    inner = helper.make_graph(
        [helper.make_node("MatMul", ["x", "inner"], ["r"])], "b", [], [spec_of("r", None)]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["s"])], "c", [], [spec_of("s", None)]
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["u", "v"], ["uv"]),
        helper.make_node("MatMul", ["a", "uv"], ["b"]),
        helper.make_node("Transpose", ["t"], ["turned"]),
        helper.make_node("Gemm", ["b", "turned"], ["c"]),
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("Gather", ["table", "size"], ["rows"]),
        helper.make_node("ReduceSum", ["rows"], ["sum"], keepdims=0),
        helper.make_node("Gather", ["table", "ids"], ["picked"]),
        helper.make_node("Add", ["c", "picked"], ["d"]),
        helper.make_node("Mul", ["d", "sum"], ["e"]),
        helper.make_node("If", ["yes"], ["f"], then_branch=inner, else_branch=other),
        helper.make_node("Add", ["e", "f"], ["g"]),
        helper.make_node("MatMul", ["g", "given"], ["y"]),
    ]
    inputs = {"x": (F, ["n", 4]), "ids": (I32, ["n"]), "yes": (TensorProto.BOOL, [])}
    return make_model(nodes, inputs, {"y": (F, ["n", 4]), "given": (F, [4, 4])}, held)


def spec_of(name, shape):
    return helper.make_tensor_value_info(name, F, shape)


def test_nothing_is_computed_of_weights_that_only_dynamic_nodes_read(monkeypatch):
    travelled = []
    compute = folding.compute

    def watch(model, nodes, tensors, names):
        tensors = list(tensors)
        travelled.extend(name for name, _ in tensors)
        return compute(model, nodes, tensors, names)

    monkeypatch.setattr(folding, "compute", watch)
    converted = Converter(input_shape={"x": [2, 4], "ids": [2]}).convert(foldable_model())
    onnx.checker.check_model(converted, full_check=True)
    assert set(travelled) == {"u", "v", "t", "table", "size"}
    assert {"Transpose", "ReduceSum", "Shape"}.isdisjoint(
        node.op_type for node in converted.graph.node
    )
    assert [value.name for value in converted.graph.input] == ["x", "ids", "yes"]
    held = {tensor.name for tensor in converted.graph.initializer}
    assert {"w", "uv", "turned", "sum", "table", "given"} <= held
    assert held.isdisjoint({"u", "v", "t"})


@pytest.mark.parametrize("least", [1, 2**60])
def test_large_weights_and_small_ones_are_computed_with_alike(monkeypatch, least):
    monkeypatch.setattr(computing, "LARGE_BYTES", least)
    converted = Converter(input_shape={"x": [2, 4], "ids": [2]}).convert(foldable_model())
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in converted.graph.initializer}
    given = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in foldable_model().graph.initializer
    }
    np.testing.assert_array_equal(found["turned"], given["t"].T)
    np.testing.assert_allclose(found["uv"], given["u"] @ given["v"], rtol=1e-5)


def test_metadata_describes_what_the_real_compiler_would(linear, compile_popef, open_model):
    metadata = open_model(compile_popef(linear, options={"ipu_version": "ipu21"})).metadata
    anchors = {anchor.name(): anchor for anchor in metadata.anchors()}
    assert {name: anchor.handle() for name, anchor in anchors.items()} == {
        "x": "h2d_x",
        "y": "anchor_d2h_y",
        "z": "anchor_d2h_z",
    }
    assert anchors["x"].tensorInfo() == popef.TensorInfo(shape=(4, 4), dataType=popef.DataType.F32)
    assert (metadata.ipuVersion(), metadata.numIpus(), metadata.isInference()) == (21, 1, True)
    flow = metadata.programFlow()
    assert (list(flow.load()), list(flow.main()), list(flow.save())) == ([0], [5], [])


def test_the_same_model_compiles_to_the_same_bytes(linear, compile_popef):
    first = compile_popef(linear).read_bytes()
    assert compile_popef(linear).read_bytes() == first
    assert compile_popef(linear, options={"partials_type": "float"}).read_bytes() != first


def test_streamed_weights_leave_the_executable(linear, compile_popef, tmp_path):
    frozen = Compiler.compile(Converter(batch_size=4).convert(linear))
    streamed = Compiler.compile(
        Converter(batch_size=4).convert(linear), None, CompilerOptions(constant_weights=False)
    )
    assert not frozen.weights
    assert sorted(value.shape for value in streamed.weights.values()) == [(3,), (4, 3)]
    compile_popef(linear, options={"constant_weights": False})
    reader = popef.Reader()
    reader.parseFile(tmp_path / "weights.popef")
    assert {tensor.info.name() for tensor in reader.tensors()} == set(streamed.weights)
    assert not reader.executables()


def test_the_mapping_that_a_model_asks_for_is_logged(caplog):
    """The model of PopRT's example print_tile_mapping.py, whose operator prints when it is
    compiled."""
    shape = [4, 4, 8, 8]
    nodes = [
        helper.make_node("MatMul", ["X", "Y"], ["Z"]),
        helper.make_node("PrintTileMapping", ["Z"], ["Out"], domain="ai.graphcore"),
    ]
    inputs = {"X": (F, shape), "Y": (F, shape)}
    model = make_model(nodes, inputs, {"Out": (F, shape)}, {})
    del model.opset_import[:]
    model.opset_import.extend([helper.make_opsetid("", 11), helper.make_opsetid("ai.graphcore", 1)])
    with caplog.at_level(logging.INFO, "poprt"):
        Compiler.compile(model, ["Out"], CompilerOptions())
    (line,) = (text for text in caplog.messages if text.startswith("tile mapping of "))
    assert line.startswith("tile mapping of 'Z', modelled (plan), tiles x elements: ")
    levels = [part.split(" x ") for part in line.rsplit(": ", 1)[1].split(", ")]
    assert sum(int(tiles) * int(elements) for tiles, elements in levels) == 4 * 4 * 8 * 8


def test_a_model_that_exceeds_tile_memory_is_rejected_with_a_breakdown(caplog):
    """The activations take 1.2 GB; a C600 has 0.94 GB."""
    model = single("Relu", {"x": (F, [1, 300_000_000])}, {"y": (F, [1, 300_000_000])})
    said = (
        r"Out of memory on tile 0: \d+ bytes used but tiles only have 638976 bytes of memory "
        r"\(modelled; live \d+, .*vertex code \d+, .*stack \d+; fullest at node 'culprit'\)"
    )
    with pytest.raises(OutOfMemoryError, match=said):
        Compiler.compile(model)
    assert Compiler.compile(model, options=CompilerOptions(allow_out_of_memory=True)).cycles > 0
    assert "compiled nevertheless" in caplog.text


def test_inputs_that_do_not_fit_into_the_io_tiles_are_refused_with_the_ways_out():
    """The inputs of 24 MB take 750 kB on each of 32 tiles."""
    model = single("ReduceMax", {"x": (F, [1, 6_000_000])}, {"y": (F, [1, 1])})
    said = (
        r"on tile 1440: \d+ bytes used .* \(modelled; the next .* on 32 I/O tiles\); use more "
        r"num_io_tiles"
    )
    with pytest.raises(OutOfMemoryError, match=said):
        Compiler.compile(model, options=CompilerOptions(num_io_tiles=32))
    assert Compiler.compile(model, options=CompilerOptions(num_io_tiles=64)).cycles > 0


def test_models_of_newer_onnx_versions_become_readable(linear):
    newer = onnx.ModelProto()
    newer.CopyFrom(linear)
    newer.ir_version = 14
    assert Converter(batch_size=4).convert(newer).ir_version == 10


def poprt(*arguments, folder):
    return subprocess.run(
        [sys.executable, "-m", "poprt", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


@pytest.mark.slow
def test_the_command_writes_a_triton_model_and_keeps_what_a_user_edited(linear, tmp_path):
    onnx.save(linear, tmp_path / "m.onnx")
    arguments = (
        "--input_model",
        "m.onnx",
        "--batch_size",
        "4",
        "--precision",
        "fp16",
        "--triton_model_dir",
        "repo/m",
    )
    done = poprt(*arguments, "--export_popef", "--output_dir", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "cycles" in done.stdout
    assert (tmp_path / "out/executable.popef").exists()
    config = tmp_path / "repo/m/config.pbtxt"
    assert "data_type: TYPE_FP16\n  dims: [4]" in config.read_text()
    names = json.loads((tmp_path / "repo/m/1/name_map.json").read_text())
    assert names == {"x": "x", "y": "y", "z": "z"}
    config.write_text("# mine\n")
    again = poprt(*arguments, folder=tmp_path)
    assert "kept repo/m/config.pbtxt" in again.stdout
    assert config.read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--input_model", "none.onnx"], 1, "poprt: error: --input_model: none.onnx: No such file"),
        (["--input_model", "bad.onnx"], 1, "expected an ONNX model, found a text file"),
        (["--input_model", "m.onnx"], 1, "variable shapes must be fixed at compile time: 'x'"),
        (["--input_model", "m.onnx", "--input_shape", "x=a"], 2, "expected NAME=d0,d1"),
        (
            ["--input_model", "m.onnx", "--compiler_options", "x"],
            2,
            "expected NAME=VALUE, found 'x'; see poprt --help",
        ),
        (
            ["--input_model", "m.onnx", "--compiler_options", "num_ipus=0"],
            2,
            "num_ipus: expected 1 to 65536, found 0; see poprt",
        ),
        ([], 2, "-i/--input_model; see poprt --help"),
        (["--input_model", "m.onnx", "--precision", "fp7"], 2, "found 'fp7'; did you mean fp8?"),
        (
            ["--input_model", "m.onnx", "--preci", "fp16"],
            2,
            "unknown option '--preci'; did you mean --precision?",
        ),
    ],
)
def test_the_command_fails_with_one_line_and_a_status(
    linear, tmp_path, monkeypatch, capsys, arguments, status, message
):
    """tests/poprt/cli/test_supervision.py tests it in processes of their own."""
    monkeypatch.chdir(tmp_path)
    onnx.save(linear, tmp_path / "m.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    try:
        found = cli.main(arguments)
    except SystemExit as ended:
        found = ended.code
    assert found == status
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_weight_without_data_is_converted_but_not_compiled():
    weightless = single("MatMul", {"x": (F, [1, 4]), "w": (F, [4, 4])}, {"y": (F, [1, 4])})
    del weightless.graph.input[1]
    weightless.graph.initializer.append(onnx.TensorProto(name="w", data_type=F, dims=[4, 4]))
    converted = Converter(precision="fp16").convert(weightless)
    (weight,) = converted.graph.initializer
    assert (weight.name, weight.data_type, weights.has_data(weight)) == ("w", H, False)
    with pytest.raises(
        CompileError, match="weight 'w' has no data; a model without its weights can be profiled"
    ):
        Compiler.compile(converted)


def test_a_misspelt_operator_is_named_with_the_nearest_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shape = (TensorProto.FLOAT, ["n", 4])
    node = helper.make_node("Softmaxx", ["x"], ["y"])
    onnx.save(make_model([node], {"x": shape}, {"y": shape}, {}), "m.onnx")
    assert cli.main(["-i", "m.onnx", "--batch_size", "4"]) == 1
    assert capsys.readouterr().err == (
        "poprt: error: m.onnx is not a valid ONNX model: operator Softmaxx is not in the ONNX "
        "standard; did you mean Softmax?\n"
    )


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (
            Compiler.compile,
            r"input 'x' has the variable shape \[batch, 4\]; convert the model with",
        ),
        (lambda model: Compiler.compile(3), "model: expected onnx.ModelProto, .* found int"),
        (lambda model: Converter(fp16_skip_op_types=3), "fp16_skip_op_types: int 3 cannot be used"),
        (lambda model: Converter(pack_args=3), "pack_args: int 3 cannot be used"),
    ],
)
def test_wrong_calls_from_python_name_the_argument_and_what_to_do(call, reason, linear):
    with pytest.raises(CompileError, match=reason):
        call(linear)


def test_a_folder_that_cannot_be_read_is_not_called_empty(tmp_path, monkeypatch, capsys):
    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    for name in ("listdir", "scandir"):  # root may read every folder
        monkeypatch.setattr(os, name, refuse)
    assert cli.main(["-i", str(tmp_path), "--batch_size", "4"]) == 1
    expected = f"poprt: error: --input_model: {tmp_path}: Permission denied\n"
    assert capsys.readouterr().err == expected
