"""Tests of poprt.backends: models compiled at their first use, and run."""

import io

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from poprt import Backend, CompilerOptions, Converter
from poprt.backend import get_session
from poprt.backends import ORTBackend
from poprt.compile.executable import Executable
from poprt.runtime import RuntimeConfig
from sample_models import linear_model, make_model
from simipu import CompileError

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def converted():
    return Converter(batch_size=2).convert(linear_model())


@pytest.mark.parametrize("kind", ["model", "bytes", "file", "stream"])
def test_a_backend_takes_a_model_bytes_a_file_or_a_stream(kind, converted, tmp_path):
    onnx.save(converted, tmp_path / "model.onnx")
    forms = {
        "model": converted,
        "bytes": converted.SerializeToString(),
        "file": str(tmp_path / "model.onnx"),
        "stream": io.BytesIO(converted.SerializeToString()),
    }
    backend = Backend(forms[kind], export_popef=str(tmp_path / "out" / "x.popef"))
    backend.set_opaque_blobs({"mine": "text"})
    inputs, outputs = backend.get_io_info()
    assert inputs == {"x": ([2, 4], np.float32)}
    assert outputs["z"] == ([2, 4], np.float32)
    (z,) = backend.run(["z"], {"x": X})
    np.testing.assert_array_equal(z, 2 * X)
    assert Executable(tmp_path / "out" / "x.popef").getOpaqueBlobs() == {"mine": b"text"}


@pytest.mark.parametrize(
    ("at_first", "at_last", "expected"),
    [(True, False, np.int64), (False, True, np.int64), (False, False, np.int32)],
)
def test_outputs_are_aligned_where_either_asks_for_it(at_first, at_last, expected):
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    model = make_model(nodes, {"x": (TensorProto.INT32, [2])}, {"y": (TensorProto.INT32, [2])}, {})
    backend = Backend(model, align_output_dtype=at_first).load()
    backend.model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    (found,) = backend.run(["y"], {"x": np.ones(2, np.int32)}, at_last)
    assert found.dtype == expected
    np.testing.assert_array_equal(found, [-1, -1])


def test_options_reach_compiler_and_runner(converted):
    config = RuntimeConfig(batching_dim=0, timeout_ns=1_000_000)
    backend = Backend(
        converted, compiler_options=CompilerOptions(num_ipus=2), runtime_options=config
    )
    y, z = backend.run(None, {"x": X[:1]})
    assert (y.shape, z.shape) == ((1, 3), (1, 4))
    with pytest.raises(CompileError, match="output 'q': expected one of y, z"):
        backend.run(["q"], {"x": X})


def test_ort_backend_takes_the_arguments_of_onnx_runtime(converted):
    lazy = ORTBackend(converted, None, ["CPUExecutionProvider"], None, lazy_load=True)
    eager = ORTBackend(converted, align_output_dtype=True)
    for backend in (lazy, eager):
        np.testing.assert_array_equal(backend.run(["z"], {"x": X}, None)[0], 2 * X)


def test_a_session_takes_options_as_a_dict_and_outputs_by_name_alone():
    """Published scripts pass them this way: graphcore/PopRT, examples/resnet50 and
    tools/model_debugger.py."""
    nodes = [helper.make_node("Neg", ["x"], ["inner"]), helper.make_node("Abs", ["inner"], ["y"])]
    shape = {"y": (TensorProto.FLOAT, [2, 4])}
    model = Converter().convert(make_model(nodes, {"x": shape["y"]}, shape, {}))
    model.graph.output.append(onnx.ValueInfoProto(name="inner"))
    content = model.SerializeToString()
    session = get_session(content, 1, "poprt", options={"num_io_tiles": 32})
    (found,) = session.load().run(["inner"], {"x": X})
    session.set_options({"partials_type": "half"})
    for kind in ("poprt", "onnxruntime"):
        info = get_session(content, 1, kind).load().get_io_info()[1]
        assert info["inner"] == (list(found.shape), np.float32)
    with pytest.raises(CompileError, match="compiler option 'num_iotiles' is not known"):
        get_session(content, options={"num_iotiles": 1})
