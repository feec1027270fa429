"""popart.InferenceSession beside NumPy: steps, anchors, replicas, weights, seeds and reports."""

import re

import numpy as np
import onnx
import popart
import pytest
from onnx import numpy_helper
from popart.session.runner import Output

ROWS, WIDTH, COLUMNS = 2, 3, 4
X, W = "x", "w/0"
WEIGHT = np.arange(WIDTH * COLUMNS, dtype=np.float32).reshape(WIDTH, COLUMNS) / 7


def make_product() -> tuple[popart.Builder, str]:
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [ROWS, WIDTH]), X)
    w = builder.addInitializedInputTensor(WEIGHT, W)
    return builder, builder.aiOnnx.matmul([x, w])


def make_session(
    proto: bytes,
    anchors: dict[str, popart.AnchorReturnType] | list[str],
    batches: int = 1,
    **changed: object,
) -> popart.InferenceSession:
    options = popart.SessionOptions()
    for name, value in changed.items():
        setattr(options, name, value)
    device = popart.DeviceManager().createCpuDevice()
    flow = popart.DataFlow(batches, anchors)
    session = popart.InferenceSession(proto, flow, device, userOptions=options)
    session.prepareDevice()
    return session


def run(session: popart.InferenceSession, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    anchors = session.initAnchorArrays()
    session.run(popart.PyStepIO(inputs, anchors))
    return anchors


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (popart.AnchorReturnType("All"), lambda y: y),
        (popart.AnchorReturnType("final"), lambda y: y[-1]),
        (popart.AnchorReturnType("EVERYN", 2), lambda y: y[1::2]),
        (popart.AnchorReturnType("Sum"), lambda y: y.sum(0)),
    ],
    ids=["all", "final", "every second", "sum"],
)
def test_an_anchor_returns_the_iterations_that_its_type_says(kind, expected):
    builder, y = make_product()
    session = make_session(builder.getModelProto(), {y: kind}, batches=4)
    x = draw(4, ROWS, WIDTH)
    np.testing.assert_allclose(run(session, {X: x})[y], expected(x @ WEIGHT), rtol=1e-5)


def test_replicas_take_their_part_of_inputs_and_come_after_the_batches():
    builder, y = make_product()
    session = make_session(
        builder.getModelProto(),
        {y: popart.AnchorReturnType("All"), X: popart.AnchorReturnType("Sum")},
        batches=3,
        enableReplicatedGraphs=True,
        replicatedGraphCount=2,
    )
    x = draw(3, 2, ROWS, WIDTH)
    found = run(session, {X: x})
    assert found[y].shape == (3, 2, ROWS, COLUMNS)
    np.testing.assert_allclose(found[y], x @ WEIGHT, rtol=1e-5)
    np.testing.assert_allclose(found[X], x.sum(0), rtol=1e-5)


def test_a_broadcast_input_is_given_once_for_all_replicas():
    builder = popart.Builder()
    settings = popart.InputSettings(popart.ReplicatedStreamMode.Broadcast)
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [2]), settings, "shared")
    y = builder.aiOnnx.neg([x])
    session = make_session(
        builder.getModelProto(), [y], 2, enableReplicatedGraphs=True, replicatedGraphCount=2
    )
    values = draw(2, 2)
    found = run(session, {x: values})[y]
    assert np.array_equal(found, np.stack([-values, -values], axis=1))


def test_results_are_written_into_the_callers_array_whatever_its_shape():
    builder, y = make_product()
    session = make_session(builder.getModelProto(), [y], batches=2)
    x = draw(2, ROWS, WIDTH)
    flat = np.full(2 * ROWS * COLUMNS, np.nan, np.float32)
    stepio = popart.PyStepIO({X: x.reshape(-1)}, {y: flat})
    session.run(stepio)
    np.testing.assert_allclose(flat.reshape(2, ROWS, COLUMNS), x @ WEIGHT, rtol=1e-5)
    x *= 2
    session.run(stepio)
    np.testing.assert_allclose(flat.reshape(2, ROWS, COLUMNS), x @ WEIGHT, rtol=1e-5)


def test_callbacks_are_called_for_each_batch_and_at_its_end():
    builder, y = make_product()
    session = make_session(builder.getModelProto(), {y: popart.AnchorReturnType("EveryN", 2)}, 4)
    batches, calls, results = list(draw(4, ROWS, WIDTH)), [], []

    def give(name: str, is_prefetch: bool) -> np.ndarray:
        calls.append(("in", name))
        return batches[sum(call == ("in", name) for call in calls) - 1]

    def take(name: str) -> np.ndarray:
        results.append(np.empty((ROWS, COLUMNS), np.float32))
        return results[-1]

    done = popart.PyStepIOCallback(
        give,
        lambda name: calls.append(("in done", name)),
        take,
        lambda name: calls.append(("out done", name)),
    )
    session.run(done)
    pair = [("in", X), ("in done", X)]
    assert calls == [*pair, *pair, ("out done", y)] * 2
    np.testing.assert_allclose(results, [batches[1] @ WEIGHT, batches[3] @ WEIGHT], rtol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({X: np.zeros(5, np.float32)}, {}, f"input elements for Tensor {X}. Expected 6, but rec"),
        ({X: np.zeros((2, 3), np.int32)}, {}, "User provided : INT32 and expected : FLOAT"),
        ({X: np.zeros((2, 3))}, {}, "No numpy type float64"),
        ({}, {}, f"No tensor {X} provided in PyStepIO's inputs"),
        ({X: np.zeros((2, 3), np.float32), "q": np.zeros(1)}, {}, "no Tensor named q"),
        ({X: np.zeros((2, 3), np.float32)}, {"q": np.zeros(1)}, "no Tensor named q"),
        ({X: np.zeros((2, 3), np.float32)}, {"MatMul:0": np.zeros(3, np.float32)}, "Expected 8"),
    ],
)
def test_arrays_that_do_not_fit_the_model_are_rejected(inputs, outputs, message):
    builder, _ = make_product()
    session = make_session(builder.getModelProto(), ["MatMul:0"])
    stepio = popart.PyStepIO(inputs, {**session.initAnchorArrays(), **outputs})
    with pytest.raises(popart.popart_exception) as caught:
        session.run(stepio)
    assert message in caught.value.args[0]


def test_integers_of_64_bits_feed_an_input_of_32():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("INT32", [3]), X)
    y = builder.aiOnnx.add([x, x])
    found = run(make_session(builder.getModelProto(), [y]), {x: np.array([1, -2, 3])})[y]
    assert found.dtype == np.int32
    assert found.tolist() == [2, -4, 6]


def test_integers_of_64_bits_stay_so_at_the_host_unless_that_is_turned_off():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("INT64", [3]), X)
    y = builder.aiOnnx.add([x, x])
    proto = builder.getModelProto()
    found = run(make_session(proto, [y]), {x: np.array([1, -2, 3])})[y]
    assert found.dtype == np.int64
    assert found.tolist() == [2, -4, 6]
    with pytest.raises(popart.popart_exception, match="INT64 is not supported in Poplar"):
        make_session(proto, [y], enableSupportedDataTypeCasting=False)


def test_arithmetic_in_8_bits_is_rejected_when_the_device_is_prepared():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("INT8", [3]), X)
    flow = popart.DataFlow(1, [builder.aiOnnx.add([x, x])])
    device = popart.DeviceManager().createCpuDevice()
    session = popart.InferenceSession(builder.getModelProto(), flow, device)
    with pytest.raises(popart.poplar_exception, match="does not support type int8"):
        session.prepareDevice()


def test_streamed_weights_are_replaced_written_and_read():
    builder, y = make_product()
    session = make_session(builder.getModelProto(), [y], constantWeights=False)
    x, new = draw(ROWS, WIDTH), np.full_like(WEIGHT, 3)
    session.writeWeights(popart.PyWeightsIO({W: new}))
    np.testing.assert_allclose(run(session, {X: x})[y], x @ WEIGHT, rtol=1e-5)
    session.weightsFromHost()
    np.testing.assert_allclose(run(session, {X: x})[y], x @ new, rtol=1e-5)
    read = np.empty_like(WEIGHT)
    session.weightsToHost()
    session.readWeights(popart.PyWeightsIO({W: read}))
    assert np.array_equal(read, new)
    session.resetHostWeights(builder.getModelProto())
    session.weightsFromHost()
    np.testing.assert_allclose(run(session, {X: x})[y], x @ WEIGHT, rtol=1e-5)


def test_constant_weights_can_be_read_and_not_replaced(tmp_path):
    builder, y = make_product()
    session = make_session(builder.getModelProto(), [y])
    read = np.empty_like(WEIGHT)
    session.readWeights(popart.PyWeightsIO({W: read}))
    assert np.array_equal(read, WEIGHT)
    with pytest.raises(popart.popart_exception, match="writeWeights when constantWeights is set"):
        session.writeWeights(popart.PyWeightsIO({W: read}))
    with pytest.raises(popart.popart_exception, match="resetHostWeights when constantWeights"):
        session.resetHostWeights(builder.getModelProto())


def test_a_saved_model_has_the_devices_weights_in_their_own_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    builder, y = make_product()
    builder.saveInitializersExternally([W], "weights.bin")
    session = make_session(builder.getModelProto(), [y], constantWeights=False)
    x, new = draw(ROWS, WIDTH), WEIGHT[::-1].copy()
    np.testing.assert_allclose(run(session, {X: x})[y], x @ WEIGHT, rtol=1e-5)
    session.writeWeights(popart.PyWeightsIO({W: new}))
    session.weightsFromHost()
    session.modelToHost("saved.onnx")
    assert np.array_equal(np.fromfile("weights.bin", np.float32).reshape(new.shape), new)
    saved = onnx.load("saved.onnx")
    assert np.array_equal(numpy_helper.to_array(saved.graph.initializer[0]), new)
    session.updateExternallySavedTensorLocations("weights.bin", "moved.bin")
    assert np.array_equal(np.fromfile("moved.bin", np.float32).reshape(new.shape), new)
    with pytest.raises(popart.popart_exception, match="already exists"):
        session.updateExternallySavedTensorLocations("weights.bin", "moved.bin")


def test_a_seed_repeats_the_draws_of_batches_which_differ():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [50]), X)
    y = builder.aiOnnx.add([x, builder.aiOnnx.randomuniform(shape=[50])])
    z = builder.aiOnnx.add([x, builder.aiOnnx.randomuniform(shape=[50])])
    session = make_session(builder.getModelProto(), [y, z], batches=2)
    zeros = {X: np.zeros((2, 50), np.float32)}
    session.setRandomSeed(7)
    first, second = run(session, zeros), run(session, zeros)
    session.setRandomSeed(7)
    again = run(session, zeros)
    session.setRandomSeed(8)
    other = run(session, zeros)
    assert np.array_equal(first[y], again[y])
    streams = [first[y][0], first[y][1], first[z][0], second[y][0], other[y][0]]
    for i, stream in enumerate(streams):
        assert 0.2 < stream.mean() < 0.8
        assert all(not np.array_equal(stream, each) for each in streams[:i])


def test_cycles_of_a_step_are_those_of_its_batches():
    builder, y = make_product()
    proto = builder.getModelProto()
    counts = {}
    for batches in (1, 5):
        session = make_session(
            proto,
            [y],
            batches,
            instrumentWithHardwareCycleCounter=True,
            hardwareInstrumentations={popart.Instrumentation.Outer, popart.Instrumentation.Inner},
        )
        with pytest.raises(popart.popart_exception, match="Must call run before getCycleCount"):
            session.getCycleCount()
        run(session, {X: draw(batches, ROWS, WIDTH)})
        counts[batches] = session.getCycleCount()
        assert session.getCycleCount("inner_ipu_0") == counts[1] > 0
    assert counts[5] == 5 * counts[1]
    with pytest.raises(popart.popart_exception, match="Invalid id for cycle counter, 'inner'"):
        session.getCycleCount("inner")


def test_cycles_are_not_counted_unless_a_session_asks_for_it():
    builder, y = make_product()
    session = make_session(builder.getModelProto(), [y])
    run(session, {X: draw(ROWS, WIDTH)})
    with pytest.raises(popart.popart_exception, match="must be set to true"):
        session.getCycleCount()


def test_a_summary_names_the_session_and_its_operators():
    builder, y = make_product()
    flow, device = popart.DataFlow(1, [y]), popart.DeviceManager().createIpuModelDevice({})
    session = popart.InferenceSession(builder.getModelProto(), flow, device, name="mine")
    with pytest.raises(popart.popart_exception, match="must have been prepared before a report"):
        session.getSummaryReport()
    session.prepareDevice()
    report = session.getSummaryReport()
    assert report.startswith("mine, batch 2")
    assert "MatMul" in report


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enableGradientAccumulation": True}, "Gradient Accumulation only available when"),
        ({"accumulationFactor": 2}, "enableGradientAccumulation is false, but accumulation"),
        ({"enableExplicitMainLoops": True}, "enableExplicitMainLoops requires useHostCopyOps."),
        ({"virtualGraphMode": popart.VirtualGraphMode.Manual}, "no Ops have been annotated"),
        ({"enablePipelining": True}, "Pipelining requires more than 1 IPU (currently 1)"),
        ({"customCodelets": ["mine.cpp"]}, "mine.cpp cannot be run"),
    ],
)
def test_options_that_cannot_be_had_are_rejected_by_the_constructor(options, message):
    builder, y = make_product()
    with pytest.raises(popart.popart_exception) as caught:
        make_session(builder.getModelProto(), [y], **options)
    assert message in caught.value.args[0]


def make_two_stages(second: int) -> tuple[bytes, str]:
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [4, 64]), X)
    with builder.virtualGraph(0), builder.pipelineStage(0):
        y = builder.aiOnnx.matmul([x, builder.addInitializedInputTensor(draw(64, 64))])
    with builder.virtualGraph(second), builder.pipelineStage(1):
        z = builder.aiOnnx.tanh([y])
    return builder.getModelProto(), z


def test_a_pipeline_takes_less_time_than_its_batches_one_after_the_other():
    proto, z = make_two_stages(1)
    cycles = {}
    for pipelined in (False, True):
        options = popart.SessionOptions()
        options.virtualGraphMode = popart.VirtualGraphMode.Manual
        options.enablePipelining = pipelined
        options.instrumentWithHardwareCycleCounter = True
        device = popart.DeviceManager().createIpuModelDevice({"numIPUs": 2})
        flow = popart.DataFlow(7, [z])
        session = popart.InferenceSession(proto, flow, device, userOptions=options)
        session.prepareDevice()
        run(session, {X: draw(7, 4, 64)})
        cycles[pipelined] = session.getCycleCount()
    assert cycles[True] < cycles[False]
    with pytest.raises(popart.popart_exception, match="For pipelining, depth"):
        popart.InferenceSession(proto, popart.DataFlow(1, [z]), device, userOptions=options)


def test_the_summary_report_has_the_cycles_of_each_ipu():
    proto, z = make_two_stages(1)
    options = popart.SessionOptions()
    options.virtualGraphMode = popart.VirtualGraphMode.Manual
    device = popart.DeviceManager().createIpuModelDevice({"numIPUs": 2})
    flow = popart.DataFlow(1, [z])
    session = popart.InferenceSession(proto, flow, device, userOptions=options)
    session.prepareDevice()
    report = session.getSummaryReport()
    (total,) = re.findall(r"modelled: ([\d,]+) cycles", report)
    table = report[report.index("┃ IPU ┃") :]
    cycles = [
        int(each.replace(",", "")) for each in re.findall(r"(?m)^│ +\d+ │ +([\d,]+) │", table)
    ]
    assert len(cycles) == 2
    assert min(cycles) > 0
    assert sum(cycles) == int(total.replace(",", ""))


def test_an_ipu_that_the_device_lacks_is_rejected_when_the_device_is_prepared():
    proto, z = make_two_stages(10)
    options = popart.SessionOptions()
    options.virtualGraphMode = popart.VirtualGraphMode.Manual
    for device in (
        popart.DeviceManager().createIpuModelDevice({"numIPUs": 2}),
        popart.DeviceManager().createCpuDevice(),
    ):
        flow = popart.DataFlow(1, [z])
        session = popart.InferenceSession(proto, flow, device, userOptions=options)
        with pytest.raises(popart.popart_exception, match="invalid virtual graph 10"):
            session.prepareDevice()


def test_a_constructor_needs_an_anchor_that_the_model_has():
    builder, _ = make_product()
    with pytest.raises(popart.popart_exception, match="User must specify an anchor tensor"):
        make_session(builder.getModelProto(), [])
    with pytest.raises(popart.popart_exception, match="Anchor tensor `q' not in Ir Tensors"):
        make_session(builder.getModelProto(), ["q"])


def test_synthetic_data_needs_no_arrays_and_writes_none():
    builder, y = make_product()
    mode = popart.SyntheticDataMode.RandomNormal
    session = make_session(builder.getModelProto(), [y], syntheticDataMode=mode)
    kept = np.full((ROWS, COLUMNS), 5, np.float32)
    session.run(popart.PyStepIO({}, {y: kept}))
    assert np.all(kept == 5)


def test_a_run_needs_a_prepared_session_and_a_device_that_runs():
    builder, y = make_product()
    proto, flow = builder.getModelProto(), popart.DataFlow(1, [y])
    manager = popart.DeviceManager()
    session = popart.InferenceSession(proto, flow, manager.createCpuDevice())
    stepio = popart.PyStepIO({X: draw(ROWS, WIDTH)}, session.initAnchorArrays())
    with pytest.raises(popart.popart_exception, match="must be called before Devicex::run"):
        session.run(stepio)
    with pytest.raises(popart.popart_exception, match="called before Devicex::weightsToHost"):
        session.weightsToHost()
    offline = popart.InferenceSession(proto, flow, manager.createOfflineIPUDevice({}))
    offline.prepareDevice()
    with pytest.raises(popart.popart_exception, match="Offline IPU device is not configured"):
        offline.run(stepio)


def test_training_is_refused_and_says_what_to_use():
    with pytest.raises(popart.popart_exception, match="runs inference on a simulated"):
        popart.TrainingSession(b"", popart.DataFlow(1, {}), "loss", popart.ConstSGD(0.1), None)


@pytest.mark.parametrize(
    ("place", "message"), [(None, "does not have a virtual graph id"), (0, "does not match")]
)
def test_a_pipelines_subgraphs_are_on_the_ipus_of_their_callers(place, message):
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [2]), X)
    inner = builder.createSubgraphBuilder()
    given = inner.addInputTensor(popart.TensorInfo("FLOAT", [2]))
    result = inner.aiOnnx.neg([given])
    inner.addOutputTensor(result)
    if place is not None:
        inner.virtualGraph(result, place)
    for stage in (0, 1):
        with builder.virtualGraph(stage), builder.pipelineStage(stage):
            x = builder.aiGraphcore.call([x], 1, inner)[0]
    options = popart.SessionOptions()
    options.enablePipelining = True
    options.virtualGraphMode = popart.VirtualGraphMode.Manual
    device = popart.DeviceManager().createIpuModelDevice({"numIPUs": 2})
    flow = popart.DataFlow(2, [x])
    with pytest.raises(popart.popart_exception, match=message):
        popart.InferenceSession(builder.getModelProto(), flow, device, userOptions=options)


def test_a_variable_has_in_the_next_batch_the_value_that_a_run_gave_it():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [1]), X)
    counter = builder.addInitializedInputTensor(np.zeros(1, np.float32), "counter")
    more = builder.aiOnnx.add([counter, x])
    builder.aiGraphcore.copyvarupdate([counter, more])
    session = make_session(builder.getModelProto(), [more], batches=3, constantWeights=False)
    ones = {X: np.ones((3, 1), np.float32)}
    assert run(session, ones)[more].ravel().tolist() == [1, 2, 3]
    assert run(session, ones)[more].ravel().tolist() == [4, 5, 6]
    read = np.empty(1, np.float32)
    session.weightsToHost()
    session.readWeights(popart.PyWeightsIO({counter: read}))
    assert read.tolist() == [6]


def test_a_printed_tensor_goes_to_stderr_with_its_title(capfd):
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("INT32", [3]), X)
    y = builder.aiGraphcore.printtensor([x], title="mine")
    run(make_session(builder.getModelProto(), [y]), {X: np.array([1, 2, 3], np.int32)})
    assert "mine: [1 2 3]" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "[\n [  1.000000   2.500000]\n [-30.125000   4.000000]\n]"),
        ({"digits": 4}, "[\n [  1.00   2.50]\n [-30.12   4.00]\n]"),
        ({"digits": 3, "floatFormat": 2}, "[\n [ 1.00e+00  2.50e+00]\n [-3.01e+01  4.00e+00]\n]"),
        ({"digits": 0}, "[\n [1 2.5]\n [-30.125 4]\n]"),
        (
            {"floatFormat": 3, "separator": ",", "openBracket": "{", "closeBracket": "}"},
            "{\n {1,2.5},\n {-30.125,4}\n}",
        ),
        ({"maxLineWidth": 9, "digits": 2}, "[\n [  1\n    2]\n [-30\n    4]\n]"),
    ],
)
def test_a_printed_tensor_has_the_format_that_its_operator_asks_for(options, expected, capfd):
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [2, 2]), X)
    y = builder.aiGraphcore.printtensor([x], title="mine", **options)
    value = np.array([[1, 2.5], [-30.125, 4]], np.float32)
    run(make_session(builder.getModelProto(), [y]), {X: value})
    assert f"mine: {expected}\n" in capfd.readouterr().err


def test_a_large_printed_tensor_is_summarised(capfd):
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("INT32", [9]), X)
    y = builder.aiGraphcore.printtensor([x], title="mine", summariseThreshold=8, edgeItems=2)
    run(make_session(builder.getModelProto(), [y]), {X: np.arange(9, dtype=np.int32)})
    assert "mine: [0 1 ... 7 8]" in capfd.readouterr().err


def test_an_abort_ends_a_run_if_its_condition_says_so():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", []), X)
    builder.aiGraphcore.abort([x])
    y = builder.aiOnnx.neg([x])
    session = make_session(builder.getModelProto(), [y])
    assert run(session, {X: np.zeros((), np.float32)})[y] == 0
    with pytest.raises(popart.poplar_application_runtime_error, match="Abort Program"):
        run(session, {X: np.ones((), np.float32)})


def test_a_sum_begins_with_the_first_value_and_keeps_the_sign_of_its_zero():
    output = Output(popart.AnchorReturnType("Sum"), iterations=2, replicas=1)
    for iteration in range(2):
        output.add(np.float32([-0.0, 1.5]), iteration, 0)
    assert output.values.tolist() == [[[0.0, 3.0]]]
    assert np.signbit(output.values[0, 0, 0])
