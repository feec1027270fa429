"""Tests of models with gigabytes of weights: they are read in place, never copied, and rejected at
once if they cannot fit."""

import contextlib
import copy
import functools
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from poprt import Compiler, Converter
from poprt.compile.compiler import check_weights
from poprt.frontend import frontends, get_frontend
from poprt.passes.folding.constants import ConstantFolding
from sample_models import make_model
from simipu import CompileError, OutOfMemoryError
from simipu.chip.target import find_target

F = TensorProto.FLOAT


def model_with(weight):
    """Return a model with the given tensor as weight w, which another field of its graph
    follows."""
    return make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": (F, ["n", 1000])},
        {"y": (F, ["n", None])},
        {"w": weight},
    )


LARGE = np.random.default_rng(0).standard_normal((1000, 1000)).astype(np.float32)


@pytest.mark.parametrize(
    ("size", "dims"),
    [(3_999_996, [1000, 1000]), (4_000_000, [1000, 1001]), (4_000_000, [-1000, -1000])],
)
def test_a_large_weight_of_wrong_size_is_refused_by_name(tmp_path, size, dims):
    broken = model_with(np.zeros((1, 1), np.float32))
    broken.graph.initializer[0].CopyFrom(
        onnx.TensorProto(name="w", data_type=F, dims=dims, raw_data=bytes(size))
    )
    onnx.save(broken, tmp_path / "broken.onnx")
    with pytest.raises(
        CompileError,
        match=r"weight 'w' of .*broken.onnx: expected -?\d+ bytes for shape .*, found \d+",
    ):
        get_frontend(tmp_path / "broken.onnx").load_model()


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp8", "fp8_weight"])
def test_large_weights_are_read_where_they_lie(tmp_path, external, precision):
    model, path = model_with(LARGE), tmp_path / "m.onnx"
    whole = Converter(batch_size=2, precision=precision).convert(model)
    onnx.save(copy.deepcopy(model), path, save_as_external_data=external, location="m.weights")
    opened = get_frontend(path).open_model()
    assert opened.ByteSize() < 10_000
    light = Converter(batch_size=2, precision=precision).convert(opened)
    assert light.ByteSize() < 10_000
    first, second = (Compiler.compile(each).executable for each in (whole, light))
    assert first == second
    assert get_frontend(path).load_model().SerializeToString() == model.SerializeToString()


def test_large_weights_of_other_types_come_with_the_model(tmp_path):
    model = model_with(np.zeros((1, 1), np.float32))
    codes = np.arange(1_500_000, dtype=np.uint8)
    model.graph.initializer.append(
        TensorProto(
            name="i", data_type=TensorProto.UINT8, dims=[1_500_000], raw_data=codes.tobytes()
        )
    )
    four_bits = TensorProto(
        name="f", data_type=TensorProto.INT4, dims=[2_400_000], raw_data=bytes(1_200_000)
    )
    model.graph.initializer.append(four_bits)
    model.opset_import[0].version, model.ir_version = 21, 10
    onnx.save(model, tmp_path / "m.onnx")
    assert (
        get_frontend(tmp_path / "m.onnx").open_model().SerializeToString()
        == model.SerializeToString()
    )


def test_a_weight_of_a_million_fields_is_read_at_once(tmp_path):
    model = model_with(np.zeros((1, 1), np.float32))
    content = bytearray(TensorProto(name="many", data_type=F, dims=[3_000_000]).SerializeToString())
    content += b"\x25\x00\x00\x80\x3f" * 3_000_000  # float_data, a field for each
    graph = model.graph.SerializeToString() + b"\x2a" + varint(len(content)) + bytes(content)
    del model.graph.node[:]
    model.ClearField("graph")
    (tmp_path / "m.onnx").write_bytes(
        model.SerializeToString() + b"\x3a" + varint(len(graph)) + graph
    )
    assert (
        len(get_frontend(tmp_path / "m.onnx").open_model().graph.initializer[1].float_data)
        == 3_000_000
    )


@pytest.mark.parametrize(
    "wrap", [lambda fields: fields, lambda fields: b"\x3a" + varint(len(fields)) + fields]
)
def test_a_model_of_endless_tiny_fields_is_refused(tmp_path, wrap, monkeypatch):
    monkeypatch.setattr(frontends, "_MAX_GRAPH_FIELDS", 100_000)
    (tmp_path / "m.onnx").write_bytes(wrap(b"\x08\x01" * 200_000))
    with pytest.raises(CompileError, match=r"expected at most \d+ fields in one message"):
        get_frontend(tmp_path / "m.onnx").open_model()


def varint(number):
    return bytes(
        [number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14 & 0x7F | 0x80, number >> 21]
    )


def test_a_model_that_says_where_its_weights_lie_is_not_believed(tmp_path):
    """Only weights that this process has outlined itself are read from files."""
    onnx.save(model_with(LARGE), tmp_path / "m.onnx")
    opened = get_frontend(tmp_path / "m.onnx").open_model()
    (entry,) = (
        entry for entry in opened.graph.initializer[0].external_data if entry.key == "token"
    )
    entry.value = "0" * len(entry.value)
    with pytest.raises(CompileError, match="weight 'w' has no data"):
        Compiler.compile(Converter(batch_size=2).convert(opened))


@pytest.mark.parametrize(
    ("location", "changes", "reason"),
    [
        ("../outside", {}, "expected a file inside the model's folder"),
        ("/etc/passwd", {}, "expected a file inside the model's folder"),
        ("link", {}, "expected a file inside the model's folder"),
        ("nowhere", {}, "there is no such file"),
        (".", {}, "expected a regular file"),
        ("m.weights", {"offset": "-4"}, "found length 4000000 at offset -4"),
        ("m.weights", {"offset": "4"}, "found length 4000000 at offset 4 of 4000000 bytes"),
        ("m.weights", {"offset": "99999999999999999999"}, "at offset 99999999999999999999"),
        ("m.weights", {"offset": "four"}, "expected numbers for offset and length"),
        ("m.weights", {"length": "3"}, "expected 4000000 bytes for shape"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_external_data_stay_in_the_models_folder_and_in_their_file(
    tmp_path, location, changes, reason, inside
):
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "outside").write_bytes(bytes(4_000_000))
    (folder / "link").symlink_to(tmp_path / "outside")
    model = model_with(LARGE)
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="m.weights")
    weight = model.graph.initializer[0]
    told = {"offset": "0", "length": "4000000", **changes, "location": location}
    del weight.external_data[:]
    weight.external_data.extend(
        onnx.StringStringEntryProto(key=key, value=value) for key, value in told.items()
    )
    if inside:  # of a node
        model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=weight))
        del model.graph.initializer[:]
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(CompileError, match=reason):
        get_frontend(folder / "m.onnx").load_model()


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_damaged_models_are_refused_without_a_crash(data):
    content = bytearray(_small_model())
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, min(len(content) - 1, 400)))
        content[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.onnx")
        path.write_bytes(content[:cut] if data.draw(st.booleans()) else content)
        with contextlib.suppress(CompileError):
            get_frontend(path).open_model()


@functools.cache
def _small_model() -> bytes:
    return model_with(LARGE).SerializeToString()


def huge_model(layers):
    """Return a model whose weights take a quarter of an ipu2's memory each, and no bytes here."""
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(layers)]
    graph = helper.make_graph(
        nodes,
        "huge",
        [helper.make_tensor_value_info("x0", F, ["n", 7680])],
        [helper.make_tensor_value_info(f"x{layers}", F, ["n", 7680])],
        [TensorProto(name=f"w{i}", data_type=F, dims=[7680, 7680]) for i in range(layers)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write_huge(folder, layers):
    """Write the huge model with all weights in one sparse file, and return its path."""
    model = huge_model(layers)
    for i, weight in enumerate(model.graph.initializer):
        told = {"location": "zeros", "offset": str(i * 4 * 7680**2), "length": str(4 * 7680**2)}
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.extend(
            onnx.StringStringEntryProto(key=key, value=value) for key, value in told.items()
        )
    with open(folder / "zeros", "wb") as file:
        file.truncate(layers * 4 * 7680**2)
    (folder / "huge.onnx").write_bytes(model.SerializeToString())
    return folder / "huge.onnx"


def test_weights_that_cannot_fit_are_refused_before_anything_is_converted(tmp_path, monkeypatch):
    from poprt import cli

    monkeypatch.setattr(ConstantFolding, "run", lambda self, model: pytest.fail("it was converted"))
    path = write_huge(tmp_path, 5)
    arguments = [
        "--input_model",
        str(path),
        "--batch_size",
        "1",
        "--export_popef",
        "--output_dir",
        str(tmp_path / "out"),
    ]
    assert cli.main(arguments) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "precision", "fits"),
    [
        ([], "fp32", False),
        ([], "fp16", True),
        (["--compiler_options", "num_ipus=2"], "fp32", True),
        (["--allow_out_of_memory"], "fp32", True),
    ],
)
def test_the_limit_of_weights_depends_on_precision_and_number_of_chips(
    tmp_path, options, precision, fits, capsys, monkeypatch
):
    from poprt import cli

    class Converted(BaseException):
        """Exception that shows that the check has passed."""

    def stop(self, model):
        raise Converted

    monkeypatch.setattr(ConstantFolding, "run", stop)
    path = write_huge(tmp_path, 5)
    arguments = [
        "--input_model",
        str(path),
        "--batch_size",
        "1",
        "--export_popef",
        "--precision",
        precision,
        *options,
    ]
    with pytest.raises(Converted) if fits else contextlib.nullcontext():
        assert cli.main(arguments) == 1
        assert (
            "they take 1179648000 bytes in fp32, 1 IPU(s) of ipu21 have 940572672"
            in capsys.readouterr().err
        )


def test_the_compiler_refuses_them_at_once_too(tmp_path):
    with pytest.raises(
        OutOfMemoryError,
        match=r"Out of memory on tile 0: \d+ bytes of weights alone: they take 1179648000 bytes",
    ):
        Compiler.compile(write_huge(tmp_path, 5))


def test_weights_whose_shapes_alone_are_looked_at_do_not_count():
    model = huge_model(1)
    model.graph.node.insert(0, helper.make_node("Shape", ["unused"], ["shape"]))
    model.graph.node.append(helper.make_node("Reshape", ["x1", "shape"], ["y"]))
    model.graph.initializer.append(TensorProto(name="unused", data_type=F, dims=[100_000, 100_000]))
    check_weights(model.graph, find_target("ipu2", 1))
    model.graph.node.append(helper.make_node("MatMul", ["x1", "unused"], ["z"]))
    with pytest.raises(OutOfMemoryError, match="largest weight: 'unused', 40000000000 bytes"):
        check_weights(model.graph, find_target("ipu2", 1))


MEASURE = """
import resource, sys
from poprt import cli
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert cli.main(sys.argv[1:]) == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("external", [False, True])
def test_compiling_takes_less_memory_than_twice_the_weights(tmp_path, external):
    random = np.random.default_rng(0)
    weights = {
        f"w{i}": random.standard_normal((4096, 4096), dtype=np.float32) / 64 for i in range(6)
    }
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(6)]
    model = make_model(nodes, {"x0": (F, ["n", 4096])}, {"x6": (F, ["n", 4096])}, weights)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=external, location="m.weights")
    arguments = ["--input_model", str(tmp_path / "m.onnx"), "--batch_size", "2", "--export_popef"]
    command = [sys.executable, "-c", MEASURE, *arguments, "--output_dir", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) * 1024 < 2 * sum(
        weight.nbytes for weight in weights.values()
    )
