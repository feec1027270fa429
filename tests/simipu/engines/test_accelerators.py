"""Tests of accelerators: OpenVINO's answers equal those of ONNX Runtime without its optimisers, and
what an accelerator cannot compute as the CPU kernels do is rejected with the node."""

import dataclasses
import os
import subprocess
import sys
import threading

import numpy as np
import onnxruntime
import pytest
from forked import ask_fork
from model_runtime import ModelRunner, ModelRunnerConfig
from onnx import TensorProto, helper
from onnxgraph import infer_shapes
from sample_models import make_model
from simipu import (
    AcceleratorError,
    GraphOptions,
    LoadError,
    LoadMemoryError,
    Lowered,
    RunCancelledError,
    RunError,
    RunTimeoutError,
    choose_accelerator,
)
from simipu.engines import admission, opening
from simipu.executable import Program, ProgramKind
from simipu.numerics.comparisons import compare_exactly
from simipu.streams import Direction, Stream
from waiting import PATIENCE_SECONDS

openvino_graph = pytest.importorskip(
    "simipu.engines.openvino_graph", reason="openvino is not installed"
)
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
ON_OPENVINO = GraphOptions(1, accelerators=(choose_accelerator("openvino", {}),))


def conv_model():
    """Return a small convolution net with weights that are mapped."""
    generator = np.random.default_rng(1)
    weights = {
        "k": generator.standard_normal((8, 3, 3, 3), np.float32),
        "b": generator.standard_normal(8, np.float32),
        "w": generator.standard_normal((8, 5), np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "k", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"], axis=1),
    ]
    outputs = {"y": (FLOAT, ["N", 5]), "g": (FLOAT, ["N", 8, 1, 1])}
    return make_model(nodes, {"x": (FLOAT, ["N", 3, 8, 8])}, outputs, weights)


def reading_model():
    """Return rows of a table by indices that a request brings."""
    node = helper.make_node("Gather", ["t", "i"], ["y"], name="read")
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    return make_model([node], {"i": (INT64, ["N"])}, {"y": (FLOAT, ["N", 2])}, {"t": table})


def slow_graph(**options):
    """Return a graph in OpenVINO that computes for a second."""
    nodes = [
        helper.make_node("MatMul", [f"x{number}", "w"], [f"x{number + 1}"]) for number in range(150)
    ]
    spec = (FLOAT, [256, 512])
    return open_graph(
        make_model(nodes, {"x0": spec}, {"x150": spec}, {"w": np.eye(512, dtype=np.float32)}),
        **options,
    )


def open_graph(model, **options):
    """Return a model's graph in OpenVINO, on one thread."""
    chosen = dataclasses.replace(ON_OPENVINO, **options)
    outputs = [value.name for value in model.graph.output]
    lowered = Lowered(model.SerializeToString(), {}, outputs=outputs)
    return openvino_graph.OpenVinoGraph(lowered, chosen, "graph")


def compute_plainly(model, x, names):
    """Return the outputs of ONNX Runtime without its optimisers."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(names, {"x": x})


def open_runner(path, **changes):
    settings = {"batching_dim": 0, "accelerator": "openvino", "num_threads": 1, **changes}
    return ModelRunner(str(path), ModelRunnerConfig(**settings))


def test_openvino_answers_any_number_of_rows_as_onnxruntime_does_without_optimisers(compile_popef):
    model = conv_model()
    generator = np.random.default_rng(2)
    with open_runner(compile_popef(model)) as runner:
        for rows in (1, 4, 3, 9):
            x = generator.standard_normal((rows, 3, 8, 8)).astype(np.float32)
            found = runner.execute({"x": x})
            for name, value in zip("yg", compute_plainly(model, x, ["y", "g"]), strict=True):
                np.testing.assert_allclose(found[name], value, atol=1e-5)


def test_openvino_sends_no_telemetry_and_writes_no_file_in_the_home_directory(tmp_path):
    words = [sys.executable, "-c", "import simipu.engines.openvino_graph"]
    subprocess.run(
        words, check=True, timeout=PATIENCE_SECONDS, env={**os.environ, "HOME": str(tmp_path)}
    )
    assert not list(tmp_path.iterdir())


def test_results_stay_when_the_next_run_begins(compile_popef):
    with open_runner(compile_popef(conv_model())) as runner:
        first = runner.execute({"x": np.ones((2, 3, 8, 8), np.float32)})["y"]
        kept = first.copy()
        runner.execute({"x": np.full((2, 3, 8, 8), -1, np.float32)})
        np.testing.assert_array_equal(first, kept)


def test_half_with_the_rounding_of_the_chip_stays_on_the_kernels(linear, compile_popef):
    path = compile_popef(linear, precision="fp16")
    with pytest.raises(LoadError, match=r"openvino.*MatMul \(node 'multiply'\).*half.*fast"):
        open_runner(path)
    x = np.ones((2, 4), np.float16)
    with open_runner(path, numerics="fast") as runner:
        np.testing.assert_array_equal(runner.execute({"x": x})["z"], 2 * x)
    with (
        open_runner(path, accelerator_fallback=True) as falling,
        open_runner(path, accelerator="") as plain,
    ):
        for name in "yz":
            found, expected = (runner.execute({"x": x})[name] for runner in (falling, plain))
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("index", [4, -5, 1 << 30])
def test_an_index_outside_of_its_table_ends_the_run(compile_popef, index):
    with open_runner(compile_popef(reading_model())) as runner:
        found = runner.execute({"i": np.array([3, -1], np.int32)})["y"]
        np.testing.assert_array_equal(found, [[6, 7], [6, 7]])
        with pytest.raises(RunError, match=r"'read'.*an index is outside"):
            runner.execute({"i": np.array([0, index], np.int32)})


def test_an_index_is_clamped_if_the_configuration_says_so(compile_popef):
    with open_runner(compile_popef(reading_model()), index_check="clamp") as runner:
        found = runner.execute({"i": np.array([99, -99], np.int32)})["y"]
    np.testing.assert_array_equal(found, [[6, 7], [0, 1]])


def test_nodes_that_write_by_unchecked_indices_are_rejected_by_name(compile_popef):
    node = helper.make_node("ScatterElements", ["x", "i", "u"], ["y"], name="write", axis=1)
    specs = {"x": (FLOAT, ["N", 4]), "i": (INT64, ["N", 1]), "u": (FLOAT, ["N", 1])}
    model = make_model([node], specs, {"y": (FLOAT, ["N", 4])}, {})
    with pytest.raises(LoadError, match=r"ScatterElements \(node 'write'\)"):
        open_runner(compile_popef(model))


@pytest.mark.parametrize(
    ("op_type", "shape", "constants", "attributes"),
    [
        ("PRelu", [64, 4, 4], {"s": np.ones((3, 1, 1), np.float32)}, {}),
        ("PRelu", [4], {"s": np.ones(0, np.float32)}, {}),
        ("ArgMax", [0], {}, {"axis": 1}),
        ("GatherND", [4], {"i": np.zeros((2, 0), np.int64)}, {}),
        ("Pad", [4, 3], {"p": np.array([0, 0, -6, 0, 0, 9])}, {"mode": "edge"}),
        ("Pad", [4, 3], {"p": np.array([0, 0, -4, 0, 0, 4])}, {}),
        (
            "ScatterElements",
            [3],
            {"i": np.zeros((2, 5000), np.int64), "u": np.ones((2, 5000), np.float32)},
            {},
        ),
        (
            "RotaryEmbedding",
            [2, 2, 4],
            {
                "c": np.ones((8, 2), np.float32),
                "s": np.ones((8, 2), np.float32),
                "p": np.full((2, 2), 9),
            },
            {},
        ),
    ],
)
def test_operands_that_openvino_does_not_check_are_rejected(op_type, shape, constants, attributes):
    node = helper.make_node(op_type, ["x", *constants], ["y"], **attributes)
    spec = (FLOAT, [2, *shape])
    model = make_model([node], {"x": spec}, {"y": (FLOAT, None)}, constants, opset=23)
    with pytest.raises(LoadError, match=r"openvino.*(remove the accelerator|on zeros)"):
        open_unchecked(model, (2, *shape), row_independent=False)


@pytest.mark.parametrize(
    ("op_type", "kind"),
    [
        ("Div", "INT32"),
        ("Mod", "INT64"),
        ("Add", "UINT8"),
        ("MatMul", "INT32"),
        ("PRelu", "INT32"),
        ("Equal", "UINT32"),
    ],
)
def test_whole_numbers_that_openvino_computes_otherwise_are_rejected(op_type, kind):
    spec = (getattr(TensorProto, kind), [2, 2])
    node = helper.make_node(op_type, ["x", "z"], ["y"], name="count")
    result = (TensorProto.BOOL, [2, 2]) if op_type == "Equal" else spec
    model = make_model([node], {"x": spec, "z": spec}, {"y": result}, {})
    fault = admission.find_fault(model, infer_shapes(model), None, ON_OPENVINO)
    assert fault.startswith(f"it computes the whole numbers of {op_type} (node 'count') as floats")


NUMBERS = [*range(-3, 4), *(sign * (2**24 + n) for sign in (-1, 1) for n in range(3))]
NUMBERS += [*(2**31 - n for n in range(1, 4)), *(-(2**31) + n for n in range(4))]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("op_type", "compare"),
    [
        ("Equal", np.equal),
        ("Greater", np.greater),
        ("GreaterOrEqual", np.greater_equal),
        ("Less", np.less),
        ("LessOrEqual", np.less_equal),
    ],
)
def test_whole_numbers_are_compared_exactly(op_type, compare, kind):
    node = helper.make_node(op_type, ["x", "z"], ["y"])
    x, z = (each.astype(kind) for each in np.meshgrid(NUMBERS, NUMBERS))
    spec = (helper.np_dtype_to_tensor_dtype(np.dtype(kind)), x.shape)
    model = make_model([node], {"x": spec, "z": spec}, {"y": (TensorProto.BOOL, x.shape)}, {})
    assert compare_exactly(model, infer_shapes(model))
    (found,) = open_graph(model).run(["y"], {"x": x, "z": z})
    np.testing.assert_array_equal(found, compare(x, z))


def test_a_result_of_another_shape_than_onnxruntimes_is_rejected():
    pool = {"kernel_shape": [2, 2], "strides": [4, 4], "pads": [1] * 4, "ceil_mode": 1}
    nodes = [  # numbers from truths have no NaN, which the computed graph would look for
        helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BOOL),
        helper.make_node("Cast", ["b"], ["f"], to=FLOAT),
        helper.make_node("MaxPool", ["f"], ["y"], **pool),
    ]
    model = make_model(nodes, {"x": (FLOAT, [1, 1, 5, 5])}, {"y": (FLOAT, None)}, {})
    with pytest.raises(LoadError, match="that of ONNX Runtime"):
        open_unchecked(model, (1, 1, 5, 5), row_independent=False)


def test_rows_that_a_file_calls_independent_are_proven_again():
    """The Slice has two rows, or one of a batch of one, where the product reads beyond it."""
    nodes = [
        helper.make_node("Slice", ["x", "start", "end"], ["two"]),
        helper.make_node("MatMul", ["left", "two"], ["y"]),
    ]
    constants = {
        "start": np.array([0]),
        "end": np.array([2]),
        "left": np.ones((5, 2), np.float32),
    }
    model = make_model(nodes, {"x": (FLOAT, ["N", 3])}, {"y": (FLOAT, None)}, constants)
    with pytest.raises(LoadError, match="not proven to be independent, as the file says"):
        open_unchecked(model, (5, 3), row_independent=True)


def open_unchecked(model, shape, *, row_independent):
    """Open a graph on OpenVINO that no compiler has checked, with the input x of that shape."""
    kind = np.dtype(np.float32)
    streams = (
        Stream("in", "x", Direction.HOST_TO_DEVICE, kind, shape),
        Stream("out", "y", Direction.DEVICE_TO_HOST, kind, shape),
    )
    program = Program(
        5,
        "main",
        ProgramKind.MAIN,
        streams,
        model.SerializeToString(),
        row_independent=row_independent,
    )
    return opening.open_graph(program, {}, ON_OPENVINO, None)


def test_an_operator_that_openvino_lacks_is_rejected_with_its_node_or_falls_back(compile_popef):
    node = helper.make_node("Det", ["x"], ["y"], name="volume")
    model = make_model([node], {"x": (FLOAT, ["N", 3, 3])}, {"y": (FLOAT, ["N"])}, {})
    path = compile_popef(model)
    with pytest.raises(LoadError, match=r"no operator Det \(node 'volume'\)"):
        open_runner(path)
    x = np.eye(3, dtype=np.float32)[None]
    with open_runner(path, accelerator_fallback=True) as runner:
        np.testing.assert_array_equal(runner.execute({"x": x})["y"], [1])


def test_a_whole_number_beyond_32_bits_is_rejected():
    spec = (INT64, ["N"])
    model = make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": spec}, {"y": spec}, {})
    graph = open_graph(model)
    np.testing.assert_array_equal(graph.run(["y"], {"x": np.array([1, -2])})[0], [-1, 2])
    with pytest.raises(RunError, match=r"input 'x'.*32 bits, found 0 to 8589934592"):
        graph.run(["y"], {"x": np.array([0, 1 << 33])})


def crossing_model():
    """Return two inputs that are outputs in another order, a result under two names, and whole
    numbers."""
    nodes = [
        helper.make_node("Identity", ["a"], ["b"]),
        helper.make_node("Identity", ["x"], ["c"]),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Identity", ["r"], ["s"]),
        helper.make_node("Neg", ["i"], ["n"]),
    ]
    spec, whole = (FLOAT, ["N", 2]), (INT64, ["N"])
    outputs = {"s": spec, "n": whole, "b": spec, "r": spec, "c": spec}
    return make_model(nodes, {"x": spec, "a": spec, "i": whole}, outputs, {})


def test_an_imported_graph_has_the_inputs_and_outputs_of_the_compiled_one():
    model = crossing_model()
    graph, outputs = open_graph(model), [value.name for value in model.graph.output]
    lowered = Lowered(b"", {}, outputs=outputs, compiled=memoryview(bytearray(graph.export())))
    imported = openvino_graph.OpenVinoGraph(lowered, ON_OPENVINO, "graph")
    x, i = np.array([[1, -2], [3, -4]], np.float32), np.array([5, -6])
    for each in (graph, imported):
        found = each.run(outputs, {"x": x, "a": 2 * x, "i": i})
        for value, expected in zip(found, [x.clip(0), -i, 2 * x, x.clip(0), x], strict=True):
            np.testing.assert_array_equal(value, expected, strict=True)
        with pytest.raises(RunError, match=r"input 'i'.*32 bits"):
            each.run(outputs, {"x": x, "a": x, "i": i << 33})


def test_a_run_whose_tensors_exceed_the_memory_limit_is_not_loaded(compile_popef):
    with pytest.raises(LoadMemoryError, match=r"sim_memory_mib.*tensors take"):
        open_runner(compile_popef(conv_model()), memory_bytes=10_000)


@pytest.mark.slow
def test_a_run_that_takes_too_long_is_ended_and_the_next_one_is_not():
    graph = slow_graph(limit_seconds=0.01)
    x = {"x0": np.ones((256, 512), np.float32)}
    with pytest.raises(RunTimeoutError):
        graph.run(["x150"], x)
    graph._limit_seconds = 300
    np.testing.assert_array_equal(graph.run(["x150"], x)[0], x["x0"])


@pytest.mark.slow
def test_a_run_whose_time_is_up_before_it_starts_is_ended(monkeypatch):
    graph = slow_graph()

    def end_run():
        graph._run.terminate = True

    monkeypatch.setattr(graph, "_check_cancelled", end_run)
    with pytest.raises(RunTimeoutError):
        graph.run(["x150"], {"x0": np.ones((256, 512), np.float32)})


@pytest.mark.slow
def test_a_cancelled_run_ends_and_all_later_runs_do():
    graph = slow_graph()
    x = {"x0": np.ones((256, 512), np.float32)}
    timer = threading.Timer(0.02, graph.cancel)
    timer.start()
    with pytest.raises(RunCancelledError):
        graph.run(["x150"], x)
    timer.join()
    with pytest.raises(RunCancelledError):
        graph.run(["x150"], x)


def test_a_fork_answers_too(compile_popef):
    with open_runner(compile_popef(conv_model())) as runner:
        x = np.ones((2, 3, 8, 8), np.float32)
        expected = runner.execute({"x": x})["y"].copy()
        found = ask_fork(lambda: np.array(runner.execute({"x": x})["y"]))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("openvin", {}, "did you mean openvino"),
        ("openvino", {"num_of_thread": "1"}, "did you mean num_of_threads"),
        ("openvino", {"num_of_threads": "0"}, "a whole number from 1 to 1024, found '0'"),
        ("openvino", {"num_of_threads": "9" * 5000}, "a whole number from 1 to 1024"),
        ("openvino", {"precision": "fp8"}, "FP32 or FP16 or BF16, found 'fp8'"),
        ("tensorrt", {"max_workspace_size_bytes": "-1"}, "a whole number from 0"),
        ("tensorrt", {"trt_engine_cache_path": "a\x1bb"}, "without control characters"),
        ("cuda", {"use_tf32": "yes"}, "0 or 1 or false or true, found 'yes'"),
    ],
)
def test_a_bad_name_or_value_is_rejected_with_what_was_expected(name, options, told):
    with pytest.raises(AcceleratorError, match=told):
        choose_accelerator(name, options)


def test_options_reach_the_engine_by_its_own_names():
    chosen = choose_accelerator(
        "tensorrt", {"precision_mode": "fp16", "max_workspace_size_bytes": "1073741824"}
    )
    assert chosen.settings() == {
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "1073741824",
    }


def test_a_gpu_without_its_package_is_an_error_that_says_what_to_install(compile_popef):
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("onnxruntime-gpu is installed")
    with pytest.raises(LoadError, match=r"cuda.*onnxruntime-gpu.*poplar-triton\[gpu\]"):
        open_runner(compile_popef(conv_model()), accelerator="cuda")


def test_cuda_answers_as_the_cpu_does(compile_popef):
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("needs onnxruntime-gpu and a GPU")
    model = conv_model()
    x = np.random.default_rng(3).standard_normal((3, 3, 8, 8)).astype(np.float32)
    with open_runner(compile_popef(model), accelerator="cuda") as runner:
        found = runner.execute({"x": x})["y"]
    np.testing.assert_allclose(found, compute_plainly(model, x, ["y"])[0], atol=1e-4)
