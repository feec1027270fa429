"""Tests of the names that published scripts import, from their modules, and of their use there."""

import importlib
import inspect
from pathlib import Path

import numpy as np
import onnx
import poprt
import pytest
from onnx import TensorProto, helper
from poprt import backend, frontend, optimizer, profile, runtime, utils
from poprt.option_entry import Use
from poprt.option_table import OPTIONS
from sample_models import linear_model, make_model
from simipu import CompileError
from simipu.numerics.quarter import F143, decode

F = TensorProto.FLOAT
NAMES = {
    "poprt": """Converter Pass PassManager get_pass get_registered_passes Backend compiler converter runtime
        frontend backend backends quantizer passes profile utils optimizer __version__""",
    "poprt.converter": "Converter MFConverter Sharder",
    "poprt.compiler": "Compiler CompilerOptions Executable",
    "poprt.runtime": """Runner ModelRunner LightRunner LightRunnerConfig HostConcatRunner
        HostConcatRunnerConfig HostConcatConfig RuntimeConfig PackRunnerConfig PackAlgorithm DeviceManager
        ReplicaIdToDevice InputMemoryView OutputMemoryView DataDesc""",
    "poprt.backends": "Backend ORTBackend",
    "poprt.backend": "get_session Session",
    "poprt.frontend": "get_frontend OnnxFrontend TensorflowFrontend",
    "poprt.quantizer": "quantize FP8Quantizer",
    "poprt.passes": """Pass PassManager register ShapeFunc register_shape_func get_dtype get_shape
        layer_precision_compare base_pass onnx_helper shape_inference pattern_helper apply_ir_pass
        remove_duplicated_initializer""",
    "poprt.passes.base_pass": "Pass ImmutablePass get_all_named_subclasses",
    "poprt.passes.onnx_helper": "topological_sort clean_info get_dtype get_shape get_constant",
    "poprt.passes.shape_inference": "infer_shapes",
    "poprt.passes.pattern_helper": "PatternMatcher",
    "poprt.passes.apply_ir_pass": "ApplyIrPass",
    "poprt.passes.remove_duplicated_initializer": "RemoveDuplicatedInitializer",
    "poprt.profile": "get_model_flops Profiler",
    "poprt.utils": """get_input_info_from_model_proto onnx_tensor_dtype_to_np_dtype LazyImport
        convert_float_to_uint8""",
    "poprt.optimizer": "Optimizer",
    "poprt._argparse": "PopHelpFormatter argparse",
    "poprt._names": "sHostConcatRunnerConfig",
}
PAIRS = [(module, name) for module, names in NAMES.items() for name in names.split()]


@pytest.mark.parametrize(("module", "name"), PAIRS)
def test_a_name_is_where_scripts_import_it(module, name):
    assert hasattr(importlib.import_module(module), name)


def test_a_pass_has_the_methods_of_the_real_one():
    wanted = """run traverse_graph get_pass get_registered_passes get_typed_registered_passes register_pass
    override_register_pass property_register against_passes constraint_passes""".split()
    assert all(callable(getattr(poprt.Pass, name)) for name in wanted)


CONVERTER = """input_shape convert_version precision checkpoints eightbitsio fp16_skip_op_types skip_passes
used_passes check disable_fast_norm pack_args fp8_skip_op_names fp8_params quantize enable_insert_remap
enable_erf_gelu serialize_matmul serialize_matmul_add merge_matmul merge_matmul_add merge_moe remap_mode
max_tensor_size infer_shape_ahead enable_avoid_overflow_patterns disable_progress_bar batch_size batch_axis
remove_outputs fold_periodic_initializer enable_compress_pattern merge_if_with_same_cond apply_hcsr
logger""".split()


def test_the_converter_has_the_real_ones_arguments_by_name_only():
    found = inspect.signature(poprt.Converter.__init__).parameters
    assert len(CONVERTER) == 34
    ours = {entry.argument for entry in OPTIONS.values() if Use.OURS in entry.use} - {""}
    assert found.keys() - {"self"} - ours == set(CONVERTER)
    assert all(each.kind is each.KEYWORD_ONLY for name, each in found.items() if name != "self")
    with pytest.raises(TypeError):
        poprt.Converter(unknown=1)


def test_empty_values_as_scripts_write_them_ask_for_nothing():
    made = poprt.Converter(
        precision="", fp16_skip_op_types="", fp8_params=None, remap_mode=["a", " b"]
    )
    assert (made.options.precision, made.options.remap_mode) == ("fp32", ["a", "b"])


def test_a_script_learns_the_chip_of_the_machine():
    manager = runtime.DeviceManager()
    assert manager.ipu_hardware_version() in ("ipu2", "ipu21")
    assert manager.get_device(2).numIpus() == 2
    assert manager.get_specific_device(0).numIpus() == 1
    with pytest.raises(RuntimeError, match="No IPU can be attached"):
        manager.get_specific_device(manager.get_num_devices())
    with pytest.raises(RuntimeError, match="No IPU can be attached"):
        manager.get_device(1 << 40)


@pytest.mark.parametrize("kind", ["onnxruntime", "poprt"])
def test_a_session_runs_a_model(kind, tmp_path):
    model = poprt.Converter(batch_size=2).convert(linear_model())
    session = backend.get_session(model.SerializeToString(), 1, kind, tmp_path, export_popef=True)
    assert session.load() is session
    inputs, outputs = session.get_io_info()
    assert inputs == {"x": ([2, 4], np.float32)}
    assert {name: shape for name, (shape, _) in outputs.items()} == {"y": [2, 3], "z": [2, 4]}
    fed = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}
    (z,) = session.run(["z"], fed)
    np.testing.assert_array_equal(z, 2 * fed["x"])
    assert [each.shape for each in session.run(None, fed)] == [(2, 3), (2, 4)]
    assert (tmp_path / "executable.popef").exists() == (kind == "poprt")
    with pytest.raises(CompileError, match="output 'q': expected one of"):
        session.run(["q"], fed)


def test_models_come_in_whatever_version_the_installed_onnx_writes():
    model = poprt.get_pass("const_input_shape", batch_size=2)(linear_model())
    model.ir_version = onnx.IR_VERSION
    fed = {"x": np.ones((2, 4), np.float32)}
    left, right = (
        backend.get_session(model.SerializeToString(), backend=kind).run(["z"], fed)
        for kind in ("onnxruntime", "poprt")
    )
    np.testing.assert_array_equal(left, right)


def test_a_sessions_outputs_are_aligned_where_asked_for():
    nodes = [helper.make_node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)]
    model = make_model(nodes, {"x": (F, [2, 3])}, {"y": (TensorProto.INT64, [2])}, {})
    data, fed = model.SerializeToString(), {"x": np.eye(2, 3, dtype=np.float32)}
    converted = poprt.Converter().convert(model)
    (narrow,) = backend.get_session(converted.SerializeToString()).run(None, fed)
    (wide,) = backend.get_session(data, backend="onnxruntime", align_output_dtype=True).run(
        None, fed
    )
    assert (narrow.dtype, wide.dtype) == (np.int32, np.int64)


def test_an_unknown_backend_and_invalid_bytes_are_rejected():
    with pytest.raises(
        CompileError, match="backend: expected poprt or onnxruntime, found 'tensorflow'"
    ):
        backend.get_session(b"", backend="tensorflow")
    with pytest.raises(CompileError, match="3 bytes: expected a serialised ONNX model"):
        backend.get_session(b"abc")


def test_an_optimizer_runs_passes_and_leaves_the_model_alone():
    model = linear_model()
    before = model.SerializeToString()
    made = optimizer.Optimizer(["limit_ir_version", "eliminate_nop_if"]).run(model)
    assert made.ir_version >= 8
    assert model.SerializeToString() == before


def flops_of(op_type, shapes, outputs, **attributes):
    node = helper.make_node(op_type, [f"i{i}" for i in range(len(shapes))], ["y"], **attributes)
    return profile.Profiler().get_profiler(op_type)(node, [np.array(s) for s in shapes], outputs)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (flops_of("MatMul", [(2, 3), (3, 5)], [(2, 5)]), 2 * 2 * 3 * 5),
        (flops_of("Gemm", [(3, 2), (3, 5)], [(2, 5)], transA=1), 2 * 2 * 3 * 5),
        (flops_of("Conv", [(1, 8, 6, 6), (4, 2, 3, 3)], [(1, 4, 6, 6)], group=4), 2 * 144 * 18),
        (flops_of("Relu", [(2, 3)], [(2, 3)]), 6),
        (flops_of("Reshape", [(2, 3), (1,)], [(6,)]), 0),
        (flops_of("Transpose", [(2, 3)], [(3, 2)]), 0),
        (flops_of("GatherElements", [(2, 3), (2, 3)], [(2, 3)]), 0),
        (flops_of("Remap", [(2, 3)], [(2, 3)]), 0),
        (flops_of("ReduceSum", [(2, 3)], [(2, 1)]), 6),
        (flops_of("MaxPool", [(1, 1, 4, 4)], [(1, 1, 2, 2)], kernel_shape=[2, 2]), 16),
        (flops_of("Softmax", [(2, 3)], [(2, 3)]), 30),
        (flops_of("SoftmaxV3", [(2, 3)], [(2, 3)]), 30),
    ],
)
def test_flops_of_nodes(found, expected):
    assert found == expected


def test_flops_of_models(capsys):
    model = poprt.get_pass("const_input_shape", batch_size=2)(linear_model())
    total = profile.get_model_flops(model, True)
    assert total == 2 * 2 * 4 * 3 + 6 + 6 + 8
    assert capsys.readouterr().out.endswith(f"total: {total}\n")
    with pytest.raises(CompileError, match="fix the sizes of the inputs first"):
        profile.get_model_flops(linear_model(), False)


def test_utilities():
    shapes, types = utils.get_input_info_from_model_proto(linear_model())
    assert (shapes, types) == ({"x": [0, 4]}, {"x": np.float32})
    assert utils.onnx_tensor_dtype_to_np_dtype(TensorProto.INT64) == np.int64
    with pytest.raises(CompileError, match="element type 99"):
        utils.onnx_tensor_dtype_to_np_dtype(99)
    codes = utils.convert_float_to_uint8(np.array([0.0, 1.0, -2.5]), "F143", 1)
    np.testing.assert_array_equal(decode(codes, F143, 1), [0.0, 1.0, -2.5])
    with pytest.raises(CompileError, match="fp8 format 'F99': expected F143 or F152"):
        utils.convert_float_to_uint8(np.zeros(1), "F99")
    lazy = utils.LazyImport("json")
    assert lazy.loads("[1]") == [1]
    with pytest.raises(ModuleNotFoundError):
        _ = utils.LazyImport("no_such_package").name


def test_an_onnx_folder_must_hold_one_model(tmp_path):
    onnx.save(linear_model(), tmp_path / "one.onnx")
    found = frontend.OnnxFrontend(tmp_path)
    assert found.get_onnx_name() == tmp_path / "one.onnx"
    assert found.get_onnx_name(tmp_path / "one.onnx") == tmp_path / "one.onnx"
    onnx.save(linear_model(), tmp_path / "two.onnx")
    with pytest.raises(CompileError, match=r"exactly one ONNX file, found one\.onnx, two\.onnx"):
        found.get_onnx_name(str(tmp_path))


def test_the_version_is_that_of_the_distribution():
    version = Path(__file__).parents[2] / "popef" / "VERSION"
    assert poprt.__version__ == version.read_text().strip()
