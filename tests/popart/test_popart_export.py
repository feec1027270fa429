"""Files of popart sessions: PopEF in PopART's layout, and the engine cache."""

import numpy as np
import onnx
import popart
import pytest
from model_runtime import ModelRunner, ModelRunnerConfig

import popef

X, W, Y = "in/x:0", "w:0/part", "encoder/MatMul:0"
WEIGHT = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def make_model() -> bytes:
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [2, 3]), X)
    w = builder.addInitializedInputTensor(WEIGHT, W)
    with builder.nameScope("encoder"):
        assert builder.aiOnnx.matmul([x, w]) == Y
    return builder.getModelProto()


def make_session(device, batches: int = 1, **changed: object) -> popart.InferenceSession:
    options = popart.SessionOptions()
    for name, value in changed.items():
        setattr(options, name, value)
    flow = popart.DataFlow(batches, [Y])
    return popart.InferenceSession(make_model(), flow, device, userOptions=options)


def read(path) -> popef.Model:
    reader = popef.Reader()
    reader.parseFile(path)
    return popef.ModelBuilder(reader).createModel()


@pytest.mark.parametrize(("replicas", "batches"), [(1, 1), (2, 3)])
def test_a_file_has_poparts_layout_and_the_runtime_gives_the_sessions_numbers(
    tmp_path, replicas, batches
):
    device = popart.DeviceManager().acquireAvailableDevice(replicas)
    session = make_session(
        device,
        batches,
        constantWeights=False,
        enableReplicatedGraphs=replicas > 1,
        replicatedGraphCount=replicas,
    )
    file = tmp_path / "folder" / "model.popef"
    session.compileAndExport(file)
    metadata = read(file).metadata
    front = [replicas] if replicas > 1 else []
    found = {
        each.handle(): (each.name(), list(each.tensorInfo().shape()), list(each.programs()))
        for each in metadata.anchors()
    }
    assert found == {
        f"h2d_{W}": (W, [3, 4], [0]),
        f"h2d_{X}": (X, [*front, 2, 3], [5]),
        f"anchor_d2h_{Y}": (Y, [*front, 2, 4], [5]),
        f"weight_d2h_{W}": (W, [3, 4], [7]),
    }
    assert (metadata.deviceIterations(), metadata.replicationFactor()) == (batches, replicas)
    assert metadata.numIpus() == replicas
    session.prepareDevice()
    x = np.random.default_rng(1).standard_normal((batches, replicas, 2, 3)).astype(np.float32)
    anchors = session.initAnchorArrays()
    session.run(popart.PyStepIO({X: x}, anchors))
    with ModelRunner(file, ModelRunnerConfig(batching_dim=0)) as runner:
        answer = runner.execute({X: x.reshape(-1, 3)})[Y]
    assert np.array_equal(answer, anchors[Y].reshape(answer.shape))
    np.testing.assert_allclose(anchors[Y].reshape((*x.shape[:-1], 4)), x @ WEIGHT, rtol=1e-4)


def test_constant_weights_have_no_anchor_and_a_folder_gets_the_usual_names(tmp_path):
    session = make_session(popart.DeviceManager().createOfflineIPUDevice({}))
    session.compileAndExport(tmp_path)
    session.saveVariables(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "executable.popef",
        "variables.popef",
    ]
    names = [anchor.name() for anchor in read(tmp_path / "executable.popef").metadata.anchors()]
    assert names == [X, Y]


def test_weights_can_be_in_a_file_of_their_own_with_their_present_values(tmp_path):
    session = make_session(
        popart.DeviceManager().createOfflineIPUDevice({"ipuVersion": "ipu21"}),
        constantWeights=False,
    )
    session.prepareDevice()
    session.writeWeights(popart.PyWeightsIO({W: 2 * WEIGHT}))
    session.saveExecutable(tmp_path / "code.popef", saveVariables=False)
    session.saveVariables(tmp_path / "weights.popef")
    x = np.ones((2, 3), np.float32)
    with ModelRunner([tmp_path / "code.popef", tmp_path / "weights.popef"]) as runner:
        np.testing.assert_allclose(runner.execute({X: x})[Y], x @ (2 * WEIGHT), rtol=1e-5)


@pytest.mark.parametrize("kind", ["cpu", "ipu-model"])
def test_executables_of_a_cpu_or_a_model_cannot_be_saved(tmp_path, kind):
    manager = popart.DeviceManager()
    device = manager.createCpuDevice() if kind == "cpu" else manager.createIpuModelDevice({})
    with pytest.raises(popart.popart_exception, match=f"device type {kind} cannot be saved"):
        make_session(device).compileAndExport(tmp_path / "model.popef")


def test_a_cached_executable_is_named_by_its_hash_reused_and_has_no_report(tmp_path):
    device = popart.DeviceManager().acquireAvailableDevice()
    options = {"enableEngineCaching": True, "cachePath": str(tmp_path / "cache")}
    first = make_session(device, **options)
    first.prepareDevice()
    assert first.getSummaryReport()
    (file,) = (tmp_path / "cache").iterdir()
    assert file.suffix == ".popef"
    assert file.stem.isdecimal()
    written = file.stat().st_mtime_ns
    second = make_session(device, **options)
    second.prepareDevice()
    assert file.stat().st_mtime_ns == written
    anchors = second.initAnchorArrays()
    second.run(popart.PyStepIO({X: np.ones((2, 3), np.float32)}, anchors))
    np.testing.assert_allclose(anchors[Y], np.ones((2, 3)) @ WEIGHT, rtol=1e-5)
    with pytest.raises(popart.popart_exception, match="reports when using a cached executable"):
        second.getSummaryReport()


def test_a_loaded_executable_replaces_the_compiled_one_if_it_fits(tmp_path):
    device = popart.DeviceManager().acquireAvailableDevice()
    make_session(device).compileAndExport(tmp_path / "model.popef")
    session = make_session(device)
    session.loadExecutable(tmp_path / "model.popef")
    session.prepareDevice()
    anchors = session.initAnchorArrays()
    session.run(popart.PyStepIO({X: np.ones((2, 3), np.float32)}, anchors))
    np.testing.assert_allclose(anchors[Y], np.ones((2, 3)) @ WEIGHT, rtol=1e-5)
    with pytest.raises(popart.popart_exception, match="Could not open file"):
        session.loadExecutable(tmp_path / "none.popef")
    builder = popart.Builder()
    other = builder.aiOnnx.neg([builder.addInputTensor(popart.TensorInfo("FLOAT", [1]))])
    wrong = popart.InferenceSession(builder.getModelProto(), popart.DataFlow(1, [other]), device)
    with pytest.raises(popart.popart_exception, match="holds the executable of another model"):
        wrong.loadExecutable(tmp_path / "model.popef")


def test_a_model_too_large_for_the_chip_is_refused_when_the_device_is_prepared():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [1, 8192]), "x")
    w = builder.addInputTensor(popart.TensorInfo("FLOAT", [8192, 65536]), "w")
    flow = popart.DataFlow(1, [builder.aiOnnx.matmul([x, w])])
    manager = popart.DeviceManager()
    session = popart.InferenceSession(
        builder.getModelProto(), flow, manager.createOfflineIPUDevice({})
    )
    assert session.getInfo("MatMul:0").shape() == [1, 65536]
    with pytest.raises(popart.OutOfMemoryException, match="Out of memory") as caught:
        session.prepareDevice()
    assert isinstance(caught.value, popart.popart_exception)
    assert "Out of memory" in caught.value.getSummaryReport()


def test_the_serialized_graph_is_the_programs():
    session = make_session(popart.DeviceManager().createIpuModelDevice({}))
    session.prepareDevice()
    graph = onnx.ModelProto.FromString(session.getSerializedGraph()).graph
    assert [value.name for value in graph.output] == [Y]
