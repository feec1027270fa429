"""Valid models that few exporters write: they compile, load and answer as ONNX Runtime does without its
optimisers, or as the ONNX specification says where it has no kernel."""

import numpy as np
import onnx
import onnxruntime
import pytest
from model_runtime import ModelRunner, ModelRunnerConfig
from onnx import TensorProto, helper
from poprt import Compiler, CompilerOptions, Converter
from sample_models import make_model
from simipu.numerics import KernelUse, Numerics, lower

F = TensorProto.FLOAT
PRECISIONS = ("fp32", "fp16")
HALF_ERROR = 4e-3


def expect(model, feeds):
    """What ONNX Runtime answers without its optimisers."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [value.name for value in model.graph.output]
    return dict(zip(names, session.run(names, feeds), strict=True))


def answer(model, feeds, precision="fp32", options=None, **convert):
    """What the compiled model answers."""
    converted = Converter(precision=precision, disable_progress_bar=True, **convert).convert(model)
    executable = Compiler.compile(converted, None, CompilerOptions.from_dict(options or {}))
    with ModelRunner(
        executable.getPopefModel(), ModelRunnerConfig(timeout_ns=1_000, num_threads=1)
    ) as runner:
        types = {each.name: each.numpy_data_type() for each in runner.getExecuteInputs()}
        return dict(runner.execute({name: np.asarray(feeds[name], types[name]) for name in types}))


def assert_answers(model, feeds, precision, expected=None, **convert):
    expected = expect(model, feeds) if expected is None else expected
    found = answer(model, feeds, precision, **convert)
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        assert found[name].shape == wanted.shape
        if precision == "fp32":
            np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)
        else:
            scale = max(1.0, float(np.abs(wanted).max(initial=0)))
            np.testing.assert_allclose(
                found[name].astype(np.float64), wanted, rtol=0, atol=HALF_ERROR * scale
            )


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


W = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("also", ["x", "w"])
def test_an_input_or_a_weight_is_an_output_too(also, precision):
    spec = (F, [2, 3])
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    model = make_model(nodes, {"x": spec}, {"y": spec, also: spec}, {"w": W})
    assert_answers(model, {"x": numbers(2, 3)}, precision)


@pytest.mark.parametrize("kernels", list(KernelUse))
def test_an_output_that_is_a_weight_stays_a_half_with_and_without_kernels(kernels):
    spec = (TensorProto.FLOAT16, [2, 3])
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    model = make_model(nodes, {"x": spec}, {"y": spec, "w": spec, "x": spec}, {"w": W.astype(np.float16)})
    onnx.checker.check_model(lower(model, Numerics(), kernels=KernelUse.NONE), full_check=True)
    lowered = lower(model, Numerics(), kernels=kernels)
    types = [tensor.data_type for tensor in lowered.graph.initializer if tensor.name == "w"]
    assert types == [TensorProto.FLOAT16]
    made = [name for node in lowered.graph.node for name in node.output]
    assert {"x", "w"}.isdisjoint(made)
    assert len(made) == len(set(made))


def test_a_model_without_inputs_answers_each_request_once():
    model = make_model([helper.make_node("Sqrt", ["w"], ["y"])], {}, {"y": (F, [2, 3])}, {"w": W})
    executable = Compiler.compile(Converter().convert(model))
    assert executable.executable.program(5).batch_size == 0
    with ModelRunner(executable.getPopefModel()) as runner:
        futures = [runner.executeAsync({}) for _ in range(5)]
        for future in futures:
            np.testing.assert_allclose(future.wait()["y"], np.sqrt(W), rtol=1e-3)
        place = np.zeros((2, 3), futures[0]["y"].dtype)
        runner.execute({}, {"y": place})
        np.testing.assert_allclose(place, np.sqrt(W), rtol=1e-3)
