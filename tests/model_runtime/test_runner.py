"""ModelRunner, used as scripts of the real library's users do."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import numpy as np
import pytest
from frozen_inputs import scale_model
from model_runtime import (
    DeviceManager,
    DeviceWaitConfig,
    DeviceWaitStrategy,
    InputMemoryView,
    ModelRunner,
    ModelRunnerConfig,
    ModelRuntimeError,
    OutputMemoryView,
    PopefPaths,
    Session,
    StoppedError,
)
from onnx import TensorProto, helper
from sample_models import gather_model, loudness_model, make_model, steps_model
from sdk_files import open_file, rewrite
from simipu import LoadError, RunError
from waiting import PATIENCE_SECONDS

import popef


@pytest.fixture
def file(linear, compile_popef):
    return compile_popef(linear)


def x(rows, value=1.0):
    return np.full((rows, 4), value, np.float32)


def test_the_runner_allocates_outputs(file):
    with ModelRunner(file) as runner:
        result = runner.execute({"x": x(4)})
        assert set(result) == {"y", "z"}
        np.testing.assert_array_equal(result["z"], 2 * x(4))
        assert result["z"].data_size_bytes == 64
        np.testing.assert_array_equal(np.frombuffer(result["z"], np.float32), 2 * np.ones(16))


def test_the_caller_allocates_outputs(file):
    with ModelRunner(PopefPaths(file), config=ModelRunnerConfig()) as runner:
        outputs = OutputMemoryView(z=np.zeros((8, 4), np.float32))
        runner.execute(InputMemoryView(x=x(8)), outputs)
        np.testing.assert_array_equal(outputs["z"], 2 * x(8))


def test_asynchronous_requests_answer_when_they_are_looked_at(file):
    """mmdeploy's wrapper reads its outputs in this way."""
    with ModelRunner(str(file)) as runner:
        view = InputMemoryView()
        view["x"] = x(4, 3)
        future = runner.executeAsync(view)
        future.wait()
        (description,) = (d for d in runner.getExecuteOutputs() if d.name == "z")
        flat = np.frombuffer(future["z"], dtype=popef.popefTypeToNumpyDType(description.data_type))
        np.testing.assert_array_equal(flat.reshape(description.shape), 2 * view["x"])
        assert list(future) == ["y", "z"]


def test_threads_share_a_runner(file):
    with (
        ModelRunner(file, ModelRunnerConfig(batching_dim=0, timeout_ns=1_000_000)) as runner,
        ThreadPoolExecutor(8) as pool,
    ):
        sizes = [1 + index % 9 for index in range(100)]
        answers = pool.map(
            lambda index: runner.execute({"x": x(sizes[index], index)})["z"], range(100)
        )
        for index, z in enumerate(answers):
            np.testing.assert_array_equal(z, 2 * x(sizes[index], index))


def test_descriptions_are_those_of_one_batch(file):
    with ModelRunner(file) as runner:
        (description,) = runner.getExecuteInputs()
        assert (description.name, description.shape, description.size_in_bytes) == ("x", (4, 4), 64)
        assert [d.name for d in runner.getExecuteOutputs()] == ["y", "z"]


@pytest.mark.parametrize(
    ("inputs", "outputs", "reason"),
    [
        ({}, None, "input 'x' is not given; the model's inputs are x"),
        ({"x": x(4), "q": x(4)}, None, "input 'q' is not known; the model's inputs are x"),
        (
            {"x": x(3)},
            None,
            "batch size 3, which is not a multiple of the compiled 4; set batching_dim to 0",
        ),
        ({"x": x(0)}, None, "expected equal batch sizes of at least 1"),
        ({"x": x(4).astype(np.float64)}, None, "expected float32 rows of shape"),
        ({"x": "text"}, None, "input 'x': expected an array of numbers, found str"),
        ({"x": [[1, 2, 3, 4], [5]]}, None, "input 'x': expected an array of numbers, found list"),
        ({"x": np.ones((4, 5), np.float32)}, None, r"found float32 of shape \(4, 5\)"),
        ({"x": x(4)}, {"q": x(4)}, "output 'q' is not known; the model's outputs are y, z"),
        (
            {"x": x(4)},
            {"z": x(8)},
            r"output 'z': expected float32 of shape \(4, 4\), found float32 of shape \(8, 4\)",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_named(file, inputs, outputs, reason):
    with ModelRunner(file) as runner:
        with pytest.raises(ModelRuntimeError, match=reason):
            runner.execute(inputs, outputs)
        np.testing.assert_array_equal(runner.execute({"x": x(4)})["z"], 2 * x(4))


def test_defaults_are_the_real_ones():
    config = ModelRunnerConfig()
    assert (config.timeout_ns, config.thread_safe, config.validate_io_params) == (
        10_000_000,
        True,
        True,
    )
    assert (config.check_package_hash, config.batching_dim, config.ring_buffer_size_multiplier) == (
        True,
        0xFFFFFFFF,
        2,
    )
    assert (
        config.auto_reset,
        config.flush_on_waiting_outputs,
        config.is_batch_size_timeout_enabled,
    ) == (
        False,
        False,
        False,
    )
    assert config.request_tracepoints_buffer_size == 1000


def test_the_shortest_timeout_counts():
    assert ModelRunnerConfig(timeout_ns=0).flush_after_ns() == 0
    assert ModelRunnerConfig(timeout_ns=5).flush_after_ns() == 5
    assert ModelRunnerConfig(timeout_ns=1).flush_after_ns() == 1
    # The largest number also means no limit; scripts of the real library use it so.
    assert ModelRunnerConfig(timeout_ns=2**63 - 1).flush_after_ns() == 0
    assert ModelRunnerConfig(timeout_ns=5, batch_size_timeout_ns=3).flush_after_ns() == 5
    assert (
        ModelRunnerConfig(
            timeout_ns=5, batch_size_timeout_ns=3, is_batch_size_timeout_enabled=True
        ).flush_after_ns()
        == 3
    )


def test_other_batching_dimensions_are_refused(file):
    with pytest.raises(ModelRuntimeError, match="batching dimension 1: expected one along which"):
        ModelRunner(file, ModelRunnerConfig(batching_dim=1))


def test_closing_answers_what_waits(file):
    runner = ModelRunner(file, ModelRunnerConfig(batching_dim=0, timeout_ns=0))
    future = runner.executeAsync({"x": x(1)})
    runner.close()
    with pytest.raises(StoppedError):
        future.wait(PATIENCE_SECONDS)
    with pytest.raises(ModelRuntimeError):
        runner.execute({"x": x(4)})


CLOSINGS = {
    "whole batches": {},
    "rows": {"batching_dim": 0},
    "rows flushed": {"batching_dim": 0, "timeout_ns": 1000},
    "resetting": {"batching_dim": 0, "auto_reset": True},
}


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("config", CLOSINGS.values(), ids=CLOSINGS)
def test_closing_with_work_in_flight_answers_all_of_it(linear, compile_popef, config, iterations):
    file = compile_popef(linear, options={"batches_per_step": iterations})
    for turn in range(3):
        with ThreadPoolExecutor(3) as pool:
            with ModelRunner(file, ModelRunnerConfig(num_threads=1, **config)) as runner:
                feeding = [pool.submit(feed, runner, 4 * (1 + turn)) for _ in range(3)]
                runner.execute({"x": x(4)})
            futures = [future for fed in feeding for future in fed.result()]
        errors = [error for future in futures if (error := error_of(future)) is not None]
        assert {type(error) for error in errors} <= {StoppedError}, errors


def feed(runner, rows):
    """Send requests until the runner is closed and return their futures."""
    futures = []
    while len(futures) < 200:
        try:
            futures.append(runner.executeAsync({"x": x(rows)}))
        except StoppedError:
            break
    return futures


def error_of(future):
    try:
        future.wait(PATIENCE_SECONDS)
    except Exception as error:  # noqa: BLE001
        return error
    return None


def test_a_run_that_is_overtaken_by_stopping_has_computed_nothing(file):
    session = Session(file)
    session.runLoadPrograms()
    queues = session.createQueueManager()
    queues.inputQueue("x").enqueue(x(4))
    for name in "yz":
        queues.outputQueue(name).enqueue(None, 4, session.stop if name == "y" else None)
    assert session.runMainPrograms() == 0


def test_a_model_without_batch_takes_whole_tensors(compile_popef):
    from onnx import TensorProto, helper
    from sample_models import make_model

    model = make_model(
        [
            helper.make_node("Neg", ["state"], ["next"]),
            helper.make_node("ReduceSum", ["state"], ["total"], keepdims=0),
        ],
        {"state": (TensorProto.FLOAT, [2, 3])},
        {"next": (TensorProto.FLOAT, [2, 3]), "total": (TensorProto.FLOAT, [])},
        {},
    )
    with ModelRunner(compile_popef(model, batch=None)) as runner:
        result = runner.execute({"state": np.ones((2, 3), np.float32)})
        assert result["next"].shape == (2, 3)
        assert result["total"].shape == ()
        assert result["total"] == 6


def wait_configs():
    return [
        DeviceWaitConfig(),
        DeviceWaitConfig(DeviceWaitStrategy.NO_WAIT),
        DeviceWaitConfig(
            DeviceWaitStrategy.WAIT_WITH_TIMEOUT,
            timeout=timedelta(milliseconds=20),
            sleepTime=timedelta(milliseconds=5),
        ),
        DeviceWaitConfig(timeout=0.02, sleepTime=0.005),
    ]


@pytest.mark.parametrize("wait", wait_configs())
def test_a_machine_without_a_free_ipu_is_an_error(wait):
    machine = DeviceManager(num_ipus=1)
    held = machine.getDevice(1)
    with pytest.raises(
        ModelRuntimeError, match=r"No IPU can be attached: 1 of ipu21 wanted, .* has 1, of which 1"
    ):
        machine.getDevice(1, {}, wait)
    del held
    assert machine.getDevice(1, {}, wait).numIpus() == 1


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_model_on_two_ipus_takes_two_and_computes_the_same(
    linear, compile_popef, open_model, pipelined
):
    options = {
        "num_ipus": 2,
        "num_io_tiles": 32,
        "enable_pipelining": pipelined,
        "batches_per_step": 2,
    }
    file = compile_popef(linear, options=options)
    reader = popef.Reader()
    reader.parseFile(file)
    assert reader.metadata()[0].numIpus() == 2
    with ModelRunner(file) as runner:
        np.testing.assert_array_equal(runner.execute({"x": x(8)})["z"], 2 * x(8))
    assert DeviceManager().getDevice(open_model(file)).numIpus() == 2
    with pytest.raises(ModelRuntimeError, match=r"2 of ipu21 wanted, the simulated machine has 1"):
        DeviceManager(num_ipus=1).getDevice(open_model(file))


def test_waiting_for_a_device_ends_when_one_is_released():
    machine = DeviceManager(num_ipus=1)
    held = [machine.getDevice(1)]
    with ThreadPoolExecutor(1) as pool:
        wait = DeviceWaitConfig(DeviceWaitStrategy.WAIT_FOREVER, sleepTime=0.005)
        waiting = pool.submit(machine.getDevice, 1, {}, wait)
        held.clear()
        assert waiting.result(PATIENCE_SECONDS).numIpus() == 1


def test_devices_are_made_by_number_version_and_model(file, open_model):
    manager = DeviceManager()
    assert manager.getNumDevices() is None
    assert manager.getDevice(2, {"ipuVersion": "ipu2"}).ipuVersion() == 2
    assert manager.getDevice(1, {"ipuVersion": "C600"}).device().target.name == "ipu21"
    assert manager.getDevice(open_model(file), DeviceWaitConfig()).ipuVersion() == 21
    assert manager.getSpecificDevice(3).id() == 3
    assert manager.createIpuModelDevice(1, "ipu2", 100).device().target.tiles_per_ipu == 100
    assert manager.createIpuModelDevice(open_model(file), 100).device().target.tiles_per_ipu == 100
    assert manager.createSmallIpuModelDevice(1, "ipu2").device().target.tiles_per_ipu == 4
    with pytest.raises(ModelRuntimeError, match="IPU version 'ipu9' is not known"):
        manager.getDevice(1, {"ipuVersion": "ipu9"})
    with pytest.raises(ModelRuntimeError, match="tiles_per_ipu must be 1 to 1472"):
        manager.createIpuModelDevice(1, "ipu2", 2000)


def test_a_machine_of_three_ipus_gives_two_and_one_and_takes_them_back():
    machine = DeviceManager(num_ipus=3)
    assert machine.getNumDevices() == 3
    held = [machine.getDevice(2), machine.getDevice(1)]
    with pytest.raises(
        ModelRuntimeError,
        match=r"1 of ipu21 wanted, the simulated machine has 3, of which 3 are attached",
    ):
        machine.getDevice(1)
    assert held[0].id() != held[1].id()
    held.pop(0)
    assert machine.getDevice(2).numIpus() == 2


def test_a_device_of_a_number_must_be_one_of_the_machines():
    machine = DeviceManager(num_ipus=2)
    for number in (-1, 2):
        with pytest.raises(
            ModelRuntimeError, match=rf"there is no device {number}; there are 0 to 1$"
        ):
            machine.getSpecificDevice(number)
    held = [machine.getSpecificDevice(number) for number in (0, 1)]
    assert [device.id() for device in held] == [0, 1]


@pytest.mark.parametrize(
    ("wait", "seconds", "pause"),
    [
        (DeviceWaitConfig(), 0.0, 1.0),
        (DeviceWaitConfig(DeviceWaitStrategy.NO_WAIT, timeout=9), 0.0, 1.0),
        (DeviceWaitConfig(DeviceWaitStrategy.WAIT_FOREVER, timeout=9), float("inf"), 1.0),
        (
            DeviceWaitConfig(DeviceWaitStrategy.WAIT_WITH_TIMEOUT, timedelta(minutes=2), 0),
            120.0,
            0.001,
        ),
        (DeviceWaitConfig(timeout=7, sleepTime=timedelta(seconds=2)), 7.0, 2.0),
    ],
)
def test_a_wait_for_a_device_is_in_seconds_or_a_timedelta(wait, seconds, pause):
    assert (wait.seconds(), wait.sleep_seconds()) == (seconds, pause)


def test_a_simulated_device_has_from_one_tile_to_all_of_the_chip(file, open_model):
    manager = DeviceManager()
    for tiles in (1, 1472):
        assert manager.createIpuModelDevice(1, "ipu2", tiles).device().target.tiles_per_ipu == tiles
    assert manager.createIpuModelDevice(1).device().target.tiles_per_ipu == 1472
    assert manager.createIpuModelDevice(2, 21).device().target.ipu_version == 21
    assert (
        manager.createIpuModelDevice(open_model(file), None, 5).device().target.tiles_per_ipu == 5
    )
    assert manager.createIpuModelDevice(open_model(file), 6, 5).device().target.tiles_per_ipu == 5
    assert manager.createSmallIpuModelDevice(open_model(file)).device().target.tiles_per_ipu == 4
    for tiles in (0, 1473):
        with pytest.raises(ModelRuntimeError, match=f"must be 1 to 1472 for ipu2, found {tiles}"):
            manager.createIpuModelDevice(1, "ipu2", tiles)
    assert manager.createIpuModelDevice(1).id() != manager.createIpuModelDevice(1).id()


def test_a_device_unloads_the_session_that_it_has(file):
    device = DeviceManager().getDevice(1)
    device.unloadFromDevice()
    with ModelRunner(file, ModelRunnerConfig(replica_to_device={0: device})) as runner:
        device.unloadFromDevice()
        with pytest.raises(ModelRuntimeError, match="not bound to a device"):
            runner.session.device  # noqa: B018
        device.unloadFromDevice()


def test_a_runner_takes_the_device_it_is_given(file):
    device = DeviceManager().createIpuModelDevice(1, "c600")
    with ModelRunner(file, ModelRunnerConfig(replica_to_device={0: device})) as runner:
        assert runner.session.device is device
    small = DeviceManager().createSmallIpuModelDevice(1)
    with pytest.raises(
        LoadError,
        match=r"compiled for 1 x ipu21 of 1472 tiles, but device .* is 1 x ipu21 of 4 tiles",
    ):
        ModelRunner(file, ModelRunnerConfig(replica_to_device={0: small}))


def test_the_public_names_exist():
    import model_runtime

    assert all(hasattr(model_runtime, name) for name in model_runtime.__all__)


def test_requests_whose_rows_depend_on_their_neighbours_run_alone(compile_popef):
    file = compile_popef(loudness_model())
    config = ModelRunnerConfig(batching_dim=0, timeout_ns=0)
    with ModelRunner(file, config) as runner:
        loud, quiet = runner.executeAsync({"x": x(2, 100)}), runner.executeAsync({"x": x(1)})
        np.testing.assert_array_equal(loud.wait(PATIENCE_SECONDS)["y"], x(2))
        np.testing.assert_array_equal(quiet.wait(PATIENCE_SECONDS)["y"], x(1))
        with pytest.raises(ModelRuntimeError, match="compiled batch of 4 rows, found 5"):
            runner.execute({"x": x(5)})


def test_dependent_rows_are_joined_if_the_configuration_says_so(compile_popef):
    file = compile_popef(loudness_model())
    with ModelRunner(
        file, ModelRunnerConfig(batching_dim=0, timeout_ns=0, join_dependent_rows=True)
    ) as runner:
        loud, quiet = runner.executeAsync({"x": x(3, 100)}), runner.executeAsync({"x": x(1)})
        loud.wait(PATIENCE_SECONDS)
        assert quiet.wait(PATIENCE_SECONDS)["y"][0, 0] == np.float32(0.01)


def test_rows_may_lie_along_another_axis(compile_popef):
    file = compile_popef(steps_model(), batch_axis=1)
    steps = np.random.default_rng(0).standard_normal((5, 9, 2)).astype(np.float32)
    with ModelRunner(file, ModelRunnerConfig(batching_dim=1, timeout_ns=1_000_000)) as runner:
        whole = runner.execute({"x": steps})
        assert (whole["y"].shape, whole["last"].shape) == ((5, 9, 3), (9, 3))
        outputs = OutputMemoryView(y=np.zeros((5, 3, 3), np.float32))
        runner.execute({"x": steps[:, 2:5]}, outputs)
        np.testing.assert_allclose(outputs["y"], whole["y"][:, 2:5], atol=1e-6)
    with pytest.raises(ModelRuntimeError, match="batching dimension 0: expected one along which"):
        ModelRunner(file, ModelRunnerConfig(batching_dim=0))
    with ModelRunner(file) as runner:
        runner.execute({"x": steps[:, :8]})
        with pytest.raises(ModelRuntimeError, match="not a multiple of the compiled 4"):
            runner.execute({"x": steps})


def test_a_whole_batch_does_not_wait_for_the_other_iterations(linear, compile_popef):
    """With N batches and M rows, the N run at once, however many batches a run holds."""
    file = compile_popef(linear, options={"batches_per_step": 100})
    with ModelRunner(file, ModelRunnerConfig(batching_dim=0, timeout_ns=0)) as runner:
        first = runner.executeAsync({"x": x(7)})
        np.testing.assert_array_equal(runner.execute({"x": x(5, 2.0)})["z"], 2 * x(5, 2.0))
        np.testing.assert_array_equal(first["z"], 2 * x(7))


def test_rows_lie_along_another_axis_than_was_compiled_for(compile_popef):
    """batching_dim 1 is given for a model that was compiled without --batch_axis."""
    model = make_model(
        [
            helper.make_node("Softmax", ["x"], ["y"], axis=2),
            helper.make_node("Add", ["y", "b"], ["z"]),
        ],
        {"x": (TensorProto.FLOAT, [5, 4, 2])},
        {"y": (TensorProto.FLOAT, [5, 4, 2]), "z": (TensorProto.FLOAT, [5, 4, 2])},
        {"b": np.arange(10, dtype=np.float32).reshape(5, 1, 2)},
    )
    file = compile_popef(model, batch=None)
    x = np.random.default_rng(0).random((5, 7, 2), np.float32)
    with ModelRunner(file, ModelRunnerConfig(batching_dim=1, timeout_ns=1_000)) as runner:
        assert (runner.session.batch_size, runner.session.row_dependence) == (4, "")
        found = runner.execute({"x": x})
        parts = [runner.execute({"x": x[:, 3 * i : 3 * i + 3]})["z"] for i in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), found["z"])
    with ModelRunner(file) as runner:
        np.testing.assert_array_equal(runner.execute({"x": x[:, :4]})["z"], found["z"][:, :4])
    for wrong in (3, -1, 2**40):
        with pytest.raises(ModelRuntimeError, match=f"batching dimension {wrong}: expected"):
            ModelRunner(file, ModelRunnerConfig(batching_dim=wrong))


def test_a_recurrent_model_may_be_batched_along_its_second_dimension(compile_popef):
    steps = np.random.default_rng(0).standard_normal((5, 9, 2)).astype(np.float32)
    file = compile_popef(steps_model(), batch=None, input_shape={"x": [5, 4, 2]})
    with ModelRunner(file, ModelRunnerConfig(batching_dim=1, timeout_ns=1_000)) as runner:
        whole = runner.execute({"x": steps})
        assert (whole["y"].shape, whole["last"].shape) == ((5, 9, 3), (9, 3))
        part = runner.execute({"x": steps[:, 4:5]})
        np.testing.assert_allclose(part["last"], whole["last"][4:5], atol=1e-6)


def test_outcomes_of_requests_are_recorded(compile_popef):
    config = ModelRunnerConfig(
        batching_dim=0,
        timeout_ns=1_000,
        flush_on_waiting_outputs=True,
        request_tracepoints_buffer_size=2,
    )
    with ModelRunner(compile_popef(gather_model()), config) as runner:
        for rows in (3, 1, 2):
            ids = np.full((rows, 2), 99 if rows == 2 else 1, np.int32)
            with suppress(RunError):
                runner.execute({"ids": ids})
        first, second = runner.getRequestTracepoints()
    assert (first.rows, first.error, second.rows) == (1, "", 2)
    assert "99" in second.error
    for point in (first, second):
        assert 0 < point.enqueued_ns <= point.started_ns <= point.finished_ns


def test_nothing_is_recorded_unless_it_is_asked_for(file):
    with ModelRunner(file) as runner:
        runner.execute({"x": x(4)})
        assert runner.getRequestTracepoints() == []


def test_a_tensor_that_replicas_share_is_each_requests_own(compile_popef):
    path = compile_popef(scale_model(scales=(1,)), batch=None)
    model = open_file(path)
    model.metadata.setReplicationFactor(2)
    model.metadata.setNumIpus(2)
    for anchor in model.metadata.anchors():
        if anchor.name() != "scale":
            info = anchor.tensorInfo()
            anchor.setTensorInfo(
                popef.TensorInfo(shape=(2, *info.shape()), dataType=info.dataType())
            )
            anchor.setIsPerReplica(True)
    rewrite(path, model.metadata, bytes(model.executable.executable()))
    with ModelRunner(path) as runner:
        shapes = {each.name: each.shape for each in runner.getExecuteInputs()}
        assert shapes == {"x": (4, 3), "scale": (1,)}
        rows = np.random.default_rng(0).random((4, 3), np.float32)
        for scale in (np.float32([1]), np.float32([5])):
            found = runner.execute({"x": rows, "scale": scale})["y"]
            np.testing.assert_array_equal(found, rows * scale + rows)


def test_a_runner_and_a_session_say_what_they_run(compile_popef, linear):
    path = compile_popef(linear)
    with ModelRunner(str(path), ModelRunnerConfig(batching_dim=0)) as runner:
        assert (
            repr(runner)
            == f"<ModelRunner of {path}: x float32 [4, 4] -> y float32 [4, 3], z float32 [4, 4]>"
        )
        assert repr(runner.session) == f"<Session of {path}>"
        for wrong in ([np.zeros((4, 4))], np.zeros((4, 4)), None):
            with pytest.raises(ModelRuntimeError, match="expected a dict of arrays by the names x"):
                runner.execute(wrong)


def test_rows_of_another_shape_are_told_before_their_number(linear, compile_popef):
    with ModelRunner(compile_popef(linear)) as runner:
        with pytest.raises(ModelRuntimeError, match=r"rows of shape \(4,\), .* shape \(1, 2\)"):
            runner.execute({"x": np.ones((1, 2), np.float32)})
        with pytest.raises(ModelRuntimeError, match="not a multiple of the compiled 4"):
            runner.execute({"x": np.ones((1, 4), np.float32)})


def test_a_path_without_a_popef_file_says_what_was_expected(tmp_path):
    for path, error in (
        (tmp_path / "none.popef", FileNotFoundError),
        (tmp_path, IsADirectoryError),
    ):
        with pytest.raises(error, match="expected a PopEF file") as raised:
            ModelRunner(path)
        assert str(path) in str(raised.value)
