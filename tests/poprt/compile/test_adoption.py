"""Tests of a graph in place of an executable that cannot be simulated: it is checked against the
streams, and computed."""

import os

import hostile_graphs as hostile
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from poprt.compile.adoption import adopt_graph
from sample_models import linear_model, make_model
from simipu import Device, Direction, Engine, LoadError, ProgramKind, Stream
from simipu.chip.target import TARGETS

INTO, OUT = Direction.HOST_TO_DEVICE, Direction.DEVICE_TO_HOST
PROGRAMS = {0: ProgramKind.LOAD, 1: ProgramKind.MAIN, 2: ProgramKind.SAVE}


def streams(kind="float32", batch=4, names=("infeed", "out_y", "out_z"), width=4):
    dtype = np.dtype(kind)
    return [
        Stream("h", names[0], INTO, dtype, (batch, width)),
        Stream("i", names[1], OUT, dtype, (batch, 3)),
        Stream("j", names[2], OUT, dtype, (batch, width)),
    ]


NAMES = {"infeed": "x", "out_y": "y", "out_z": "z"}


BOTH = [
    Stream("h", "x", INTO, np.dtype(np.float32), (4,)),
    Stream("i", "y", OUT, np.dtype(np.float32), (4,)),
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(linear_model(), path)
    return path


def adopt(path, given=None, names=NAMES, programs=PROGRAMS):
    return adopt_graph(path, "real", TARGETS["ipu2"], programs, given or streams(), names)


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("rows", [1, 4])
def test_the_graph_computes_in_the_types_of_the_streams(path, kind, rows):
    executable = adopt(path, streams(kind))
    assert executable.program(1).row_independent
    assert executable.cycles(1) > 0
    engine = Engine(executable, Device(executable.target))
    collected = {}
    x = np.ones((rows, 4), kind)
    engine.connect_input("h", lambda most: x)
    engine.connect_output("j", lambda rows: collected.update(z=rows))
    engine.run(0)
    assert engine.run(1) == rows
    assert collected["z"].dtype == kind
    np.testing.assert_array_equal(collected["z"], 2 * x)


def test_int64_of_the_graph_is_int32_on_the_chip(tmp_path):
    model = make_model(
        [helper.make_node("Add", ["a", "a"], ["b"])],
        {"a": (TensorProto.INT64, ["n", 2])},
        {"b": (TensorProto.INT64, ["n", 2])},
        {},
    )
    onnx.save(model, tmp_path / "model.onnx")
    kind = np.dtype(np.int32)
    given = [Stream("h", "a", INTO, kind, (4, 2)), Stream("i", "b", OUT, kind, (4, 2))]
    executable = adopt(tmp_path / "model.onnx", given, {})
    engine = Engine(executable, Device(executable.target))
    collected = []
    engine.connect_input("h", lambda most: np.full((2, 2), 5, np.int32))
    engine.connect_output("i", collected.append)
    engine.run(1)
    np.testing.assert_array_equal(collected[0], np.full((2, 2), 10, np.int32))


@pytest.mark.parametrize(
    ("given", "names", "reason"),
    [
        (
            streams(),
            {},
            r"has no input for anchor 'infeed'; its inputs are x; map the anchor to one of them in "
            r"name_map.json",
        ),
        (
            streams(),
            {**NAMES, "out_y": "q"},
            r"has no output for anchor 'out_y' \('q' in the name map\); its outputs are y, z",
        ),
        (streams(width=5), NAMES, r"input 'x' has shape \['\?', 4\], the anchor has \[4, 5\]"),
        (streams()[1:], NAMES, "takes input 'x', which no anchor of the PopEF file feeds"),
        (
            [streams()[0], Stream("i", "out_y", OUT, np.dtype("float32"), (4, 7))],
            NAMES,
            r"'y' has shape \[4, 3\].*\[4, 7\]",
        ),
    ],
)
def test_a_graph_that_does_not_fit_is_refused(path, given, names, reason):
    with pytest.raises(LoadError, match=reason):
        adopt(path, given, names)


def test_bytes_that_are_no_graph_are_rejected(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"\xff\xff")
    with pytest.raises(LoadError, match="expected an ONNX model"):
        adopt(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("/dev/zero", "expected a file inside the model's folder"),
        ("../outside", "expected a file inside the model's folder"),
        ("link", "expected a file inside the model's folder"),
        ("pipe", "expected a regular file"),
        ("nowhere", "there is no such file"),
    ],
)
@pytest.mark.parametrize(
    "make", [hostile.outside_constant, hostile.outside_of_branch, hostile.outside_of_sparse]
)
def test_a_graph_refers_to_files_beside_it_only(tmp_path, location, message, make):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside").write_bytes(bytes(16))
    (folder / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(folder / "pipe")
    (folder / "m.onnx").write_bytes(make(location).SerializeToString())
    with pytest.raises(LoadError, match=message):
        adopt(folder / "m.onnx", BOTH, {})


def test_data_beside_a_graph_are_read(tmp_path):
    (tmp_path / "c").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    (tmp_path / "m.onnx").write_bytes(hostile.outside_constant("c").SerializeToString())
    executable = adopt(tmp_path / "m.onnx", BOTH, {})
    engine = Engine(executable, Device(executable.target))
    np.testing.assert_array_equal(engine.compute(1, [np.zeros(4, np.float32)])[0], np.arange(4))


@pytest.mark.parametrize(
    "make", [hostile.function_bomb, hostile.concat_bomb, hostile.nested_graphs]
)
def test_a_graph_without_end_is_refused(tmp_path, make):
    (tmp_path / "m.onnx").write_bytes(make().SerializeToString())
    with pytest.raises(LoadError):
        adopt(tmp_path / "m.onnx", BOTH, {})


@pytest.mark.parametrize("form", ["function", "domain", "twice"])
def test_the_graph_may_have_functions_and_unusual_forms(tmp_path, form):
    text = {
        "function": '<ir_version: 8, opset_import: ["": 17, "my": 1]> forms (float[4] x) => '
        '(float[4] y) { y = my.F(x) } <opset_import: ["": 17], domain: "my"> '
        "F (a) => (b) { b = Neg(a) }",
        "domain": '<ir_version: 8, opset_import: ["": 17]> forms (float[4] x) => (float[4] y) '
        "{ y = Neg(x) }",
        "twice": '<ir_version: 8, opset_import: ["": 17]> forms (float[4] x) => '
        "(float[4] y, float[4] y) { y = Neg(x) }",
    }[form]
    model = onnx.parser.parse_model(text)
    if form == "domain":
        model.graph.node[0].domain = model.opset_import[0].domain = "ai.onnx"
    onnx.save(model, tmp_path / "model.onnx")
    executable = adopt(tmp_path / "model.onnx", BOTH, {})
    engine = Engine(executable, Device(executable.target))
    collected = {}
    engine.connect_input("h", lambda most: np.arange(4, dtype=np.float32))
    engine.connect_output("i", lambda rows: collected.update(y=rows))
    engine.run(0)
    engine.run(1)
    np.testing.assert_array_equal(np.ravel(collected["y"]), [0, -1, -2, -3])
