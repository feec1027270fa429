"""Inputs whose data the PopEF files hold: callers need not give them."""

import numpy as np
import pytest
from frozen_inputs import scale_model, write_data
from model_runtime import ModelRunner, ModelRunnerConfig, ModelRuntimeError, Session, SessionConfig
from poprt import Compiler, runtime
from sdk_files import open_file, rewrite
from simipu import LoadError

import popef

X = np.arange(12, dtype=np.float32).reshape(4, 3)
SCALE = np.array([1, 10, 100], np.float32)


@pytest.fixture
def files(tmp_path):
    def make(scale=SCALE, shape=None):
        path = tmp_path / "executable.popef"
        Compiler.compile(scale_model(scales=shape or scale.shape)).export(path)
        return path, write_data(tmp_path / "weights.popef", {"scale": scale})

    return make


@pytest.mark.parametrize(
    "scale", [SCALE, np.float32(7), np.full((4, 3), 2, np.float32), np.array([[5]], np.float32)]
)
@pytest.mark.parametrize("rows", [4, 8])
def test_a_frozen_input_is_not_asked_for(files, scale, rows):
    x = np.tile(X, (rows // 4, 1))
    with ModelRunner(files(np.asarray(scale))) as runner:
        assert [each.name for each in runner.getExecuteInputs()] == ["x"]
        np.testing.assert_array_equal(
            runner.execute({"x": x})["y"], np.tile(X * scale + X, (rows // 4, 1))
        )


def test_rows_are_proven_anew_with_the_values(files):
    """As an input, the scale had rows along axis 1, which is as long; as a constant it has none."""
    with ModelRunner(files(), ModelRunnerConfig(batching_dim=0, timeout_ns=1)) as runner:
        assert runner.session.batch_size == 4
        assert not runner.session.row_dependence
        for rows in (1, 3, 7):
            x = np.random.default_rng(rows).random((rows, 3), np.float32)
            np.testing.assert_array_equal(runner.execute({"x": x})["y"], x * SCALE + x)


def test_a_row_of_its_own_for_each_place_keeps_requests_apart(files):
    scale = np.arange(12, dtype=np.float32).reshape(4, 3)
    with ModelRunner(files(scale), ModelRunnerConfig(batching_dim=0, timeout_ns=10**9)) as runner:
        assert runner.session.row_dependence
        futures = [runner.executeAsync({"x": X[:2] + index}) for index in range(3)]
        for index, future in enumerate(futures):
            x = X[:2] + index
            np.testing.assert_array_equal(future["y"], x * scale[:2] + x)
        with pytest.raises(ModelRuntimeError, match="at most the compiled batch of 4 rows"):
            runner.execute({"x": np.tile(X, (2, 1))})


@pytest.mark.parametrize("isolated", [True, False])
def test_a_child_process_has_it_too(files, isolated):
    session = Session(files(), SessionConfig(isolated=isolated))
    session.runLoadPrograms()
    np.testing.assert_array_equal(session.run({"x": X})["y"], X * SCALE + X)
    session.unloadFromDevice()


def test_queues_and_handlers_have_none(files):
    session = Session(files())
    assert [anchor.name() for anchor in session.getUserInputAnchors()] == ["x"]
    session.runLoadPrograms()
    queues = session.createQueueManager()
    with pytest.raises(
        ModelRuntimeError, match="input anchor 'scale' is not known; expected one of x"
    ):
        queues.inputQueue("scale")


@pytest.mark.parametrize(
    ("scale", "reason"),
    [
        (np.ones(4, np.float32), "input 'scale': the file's data are"),
        (np.ones(3, np.float16), "f16"),
    ],
)
def test_data_that_do_not_fit_are_named(files, scale, reason):
    with pytest.raises((ModelRuntimeError, LoadError), match=reason):
        ModelRunner(files(scale, shape=(3,)))


def test_an_input_that_is_given_all_the_same_is_not_known(files):
    with (
        ModelRunner(files()) as runner,
        pytest.raises(
            ModelRuntimeError, match="input 'scale' is not known; the model's inputs are x"
        ),
    ):
        runner.execute({"x": X, "scale": SCALE})


def test_a_light_runner_sets_it_anew(tmp_path, files):
    executable = tmp_path / "both.popef"
    with popef.Writer(executable) as writer:
        model = Session(files()).model()
        writer.writeMetadata(model.metadata)
        with writer.createExecutable(model.metadata.executable()) as blob:
            blob.write(bytes(model.executable.executable()))
        info = popef.TensorInfo(shape=(3,), dataType=popef.DataType.F32)
        with writer.createTensorData(popef.TensorDataInfo(name="scale", tensorInfo=info)) as blob:
            blob.write(SCALE.data)
    runner = runtime.LightRunner(executable)
    described = {each.name: each.popef_contains_tensor_data for each in runner.get_model_inputs()}
    assert described == {"x": False, "scale": True}
    places = {"y": np.zeros((4, 3), np.float32)}
    runner.set_input_anchor("scale", np.zeros(3, np.float32))
    runner.update_weights()
    runner.execute({"x": X}, places)
    np.testing.assert_array_equal(places["y"], X)


@pytest.mark.parametrize("same", [True, False])
def test_replicas_share_a_frozen_input(tmp_path, files, same):
    path, data = files()
    model = open_file(path)
    model.metadata.setReplicationFactor(2)
    model.metadata.setNumIpus(2)
    for anchor in model.metadata.anchors():
        info = anchor.tensorInfo()
        anchor.setTensorInfo(popef.TensorInfo(shape=(2, *info.shape()), dataType=info.dataType()))
        anchor.setIsPerReplica(True)
    rewrite(path, model.metadata, bytes(model.executable.executable()))
    write_data(data, {"scale": np.stack([SCALE, SCALE if same else -SCALE])})
    if same:
        with ModelRunner((path, data)) as runner:
            np.testing.assert_array_equal(runner.execute({"x": X})["y"], X * SCALE + X)
    else:
        with pytest.raises(
            ModelRuntimeError, match="input 'scale': the file's data differ between replicas"
        ):
            ModelRunner((path, data))
