"""Tests of poprt.runtime: the real tool's runners and configurations over model_runtime."""

import json

import numpy as np
import onnx
import pytest
from model_runtime import ModelRuntimeError
from poprt import Compiler, CompilerOptions, Converter, runtime
from sample_models import linear_model
from simipu import CompileError

REAL = """device_wait_config thread_safe timeout_ns validate_io_params batching_dim check_package_hash
ring_buffer_size_multiplier auto_reset flush_on_waiting_outputs batch_size_timeout_ns
data_parallel_timeout_ns is_batch_size_timeout_enabled request_tracepoints_buffer_size replica_to_device
flush_by_name""".split()
SHOWN = {
    "autoReset": False,
    "batchSizeTimeoutNS": 9223372036854775807,
    "batchingDim": 4294967295,
    "checkPackageHash": True,
    "dataParallelTimeoutNS": 9223372036854775807,
    "deviceWaitConfig.sleepTimeSec": 6,
    "deviceWaitConfig.timeoutSec": 1,
    "flushOnWaitingOutputs": False,
    "isBatchSizeTimeoutEnabled": False,
    "requestTracepointsBufferSize": 1000,
    "ringBufferSizeMultiplier": 2,
    "runnerType": 0,
    "threadSafe": True,
    "timeoutNS": 10000000,
    "validateIOParams": True,
}
"""Default options in the signature of Backend, as
graphcore.github.io/PopRT/1.5.0-en/python_api.html shows it."""
X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def executable():
    return Compiler.compile(Converter(batch_size=2).convert(linear_model()))


@pytest.fixture
def streamed():
    options = CompilerOptions(constant_weights=False)
    return Compiler.compile(Converter(batch_size=2).convert(linear_model()), None, options)


def places(runner):
    return {
        each.name: np.zeros(each.shape, each.numpy_data_type())
        for each in runner.get_execute_outputs()
    }


def test_a_configuration_has_the_real_fields_and_shows_them_as_json():
    config = runtime.RuntimeConfig()
    assert [name for name in REAL if not hasattr(config, name)] == []
    assert json.loads(repr(config)) == SHOWN
    assert list(json.loads(repr(config))) == sorted(SHOWN)


@pytest.mark.parametrize("kind", [runtime.RuntimeConfig, runtime.LightRunnerConfig])
def test_a_misspelt_attribute_is_warned_of_and_taken_as_the_real_class_takes_it(kind, caplog):
    config = kind()
    config.batching_dim = 0
    assert caplog.messages == []
    config.batchingdim = 3
    assert caplog.messages == [
        f"{kind.__name__} has no attribute 'batchingdim', which changes nothing; "
        "did you mean batching_dim?"
    ]
    assert config.for_model_runner().batching_dim == 0


@pytest.mark.parametrize("from_file", [True, False])
def test_a_runner_writes_into_the_callers_arrays(from_file, executable, tmp_path):
    executable.export(tmp_path / "executable.popef")
    runner = runtime.Runner(str(tmp_path / "executable.popef") if from_file else executable)
    (described,) = runner.get_execute_inputs()
    assert (described.name, described.shape, described.size_in_bytes) == ("x", [2, 4], 32)
    assert described.numpy_data_type() == "float32"
    outputs = places(runner)
    assert runner.execute({"x": X}, outputs) is None
    np.testing.assert_array_equal(outputs["z"], 2 * X)
    again = places(runner)
    runner.executeAsync({"x": X}, again).wait()
    np.testing.assert_array_equal(again["z"], 2 * X)


def test_callers_assign_into_shapes(executable):
    runner = runtime.Runner(executable)
    described = runner.get_model_inputs()[0]
    described.shape[0] = 7
    assert runner.get_model_inputs()[0].shape == [2, 4]
    assert [each.name for each in runner.get_model_outputs()] == ["y", "z"]


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_requests_of_any_size_are_taken_along_the_batch(executable, rows):
    config = runtime.RuntimeConfig()
    config.batching_dim, config.timeout_ns = 0, 1_000_000
    runner = runtime.Runner(executable, config)
    x = np.random.default_rng(rows).random((rows, 4), np.float32)
    outputs = {"y": np.zeros((rows, 3), np.float32), "z": np.zeros((rows, 4), np.float32)}
    runner.execute_async({"x": x}, outputs).wait()
    np.testing.assert_array_equal(outputs["z"], 2 * x)


def test_a_light_runner_loads_weights_that_are_set(streamed):
    runner = runtime.LightRunner(streamed, runtime.LightRunnerConfig())
    weights = {
        each.name: each for each in runner.get_model_inputs() if each.popef_contains_tensor_data
    }
    assert weights.keys() == streamed.weights.keys()
    before, kept, after = places(runner), places(runner), places(runner)
    runner.execute({"x": -X}, before)
    for name, each in weights.items():
        runner.set_input_anchor(name, np.zeros(each.shape, each.numpy_data_type()))
    runner.execute({"x": -X}, kept)
    np.testing.assert_array_equal(kept["y"], before["y"])
    runner.update_weights()
    runner.execute({"x": -X}, after)
    assert before["y"].any()
    assert not after["y"].any()


def test_a_light_runner_gives_its_device_up_and_takes_it_again(streamed):
    config = runtime.LightRunnerConfig()
    config.replica_to_device = runtime.ReplicaIdToDevice(
        {0: runtime.DeviceManager().get_specific_device(0)}
    )
    first = runtime.LightRunner(streamed, config)
    first.stop()
    second = runtime.LightRunner(streamed, config)
    outputs, again = places(second), places(second)
    second.execute({"x": X}, outputs)
    second.stop()
    first.reload()
    first.execute({"x": X}, again)
    np.testing.assert_array_equal(again["y"], outputs["y"])


def test_scales_that_a_shape_depends_on_are_not_streamed():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 13]> g (float[1, 1, 1, 2] x) => (float[1, 1, 2, 4] y)
        <float[4] scales = {1.0, 1.0, 2.0, 2.0}, float[1, 1, 1, 2] w = {3.0, 5.0}>
        { z = Mul(x, w)
          y = Resize<mode="nearest">(z, , scales) }"""
    )
    made = Compiler.compile(model, None, CompilerOptions(constant_weights=False))
    assert list(made.weights) == ["w"]
    runner = runtime.LightRunner(made)
    outputs = places(runner)
    runner.execute({"x": np.ones((1, 1, 1, 2), np.float32)}, outputs)
    assert outputs["y"].tolist() == [[[[3, 3, 5, 5], [3, 3, 5, 5]]]]


def test_a_weight_that_is_not_streamed_or_does_not_fit_is_refused(executable, streamed):
    with pytest.raises(
        CompileError, match="streamed are none: compile with constant_weights=False"
    ):
        runtime.LightRunner(executable).set_input_anchor("w", X)
    runner = runtime.LightRunner(streamed)
    name = next(iter(streamed.weights))
    with pytest.raises(CompileError, match=f"weight '{name}': expected float32 of shape"):
        runner.set_input_anchor(name, np.zeros(99, np.float16))


def test_the_runner_that_took_the_device_last_has_it(streamed):
    config = runtime.LightRunnerConfig()
    config.replica_to_device = runtime.ReplicaIdToDevice({0: runtime.DeviceManager().get_device(1)})
    first = runtime.LightRunner(streamed, config)
    second = runtime.LightRunner(streamed, config)
    with pytest.raises(ModelRuntimeError, match="not bound to a device"):
        first.execute({"x": X}, places(first))
    outputs, again = places(second), places(first)
    second.execute({"x": X}, outputs)
    first.reload()
    first.execute({"x": X}, again)
    np.testing.assert_array_equal(again["y"], outputs["y"])


def test_a_stopped_runner_is_an_error_until_it_is_reloaded(streamed):
    runner = runtime.LightRunner(streamed)
    runner.stop()
    with pytest.raises(ModelRuntimeError, match="stopped"):
        runner.execute({"x": X}, places(runner))
    runner.reload()
    outputs = places(runner)
    runner.execute({"x": X}, outputs)
    np.testing.assert_array_equal(outputs["z"], 2 * X)


def test_requests_are_recorded_where_it_is_asked_for(executable):
    config = runtime.RuntimeConfig()
    config.flush_on_waiting_outputs = True
    runner = runtime.Runner(executable, config)
    runner.execute({"x": X}, places(runner))
    (point,) = runner.get_request_tracepoints()
    assert (point.rows, point.error) == (2, "")
    runner.close()
    assert runtime.Runner(executable).get_request_tracepoints() == []
