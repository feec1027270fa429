"""Pipelined Keras models: stages by scopes and by assignments, against plain Keras."""

import importlib

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from tensorflow.python import ipu  # noqa: E402
from tensorflow_ipu.execution import counters  # noqa: E402

ROWS, WIDTH, STEPS = 12, 8, 12


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request):
    return importlib.import_module(request.param)


def configure(ipus):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = ipus
    config.configure_ipu_system()
    return ipu.ipu_strategy.IPUStrategy()


@pytest.fixture
def strategy():
    yield configure(1)
    ipu.config.reset_ipu_configuration()


def draw(*shape, seed=1):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def make_functional(keras, stage):
    """Return a model with a layer that two stages call, and a value that skips a stage."""
    first, second = keras.Input((WIDTH,), name="first"), keras.Input((WIDTH,), name="second")
    shared = keras.layers.Dense(4, activation="tanh", name="shared")
    with stage(0):
        left = shared(first)
    with stage(1):
        right = shared(second)
        both = keras.layers.Concatenate(name="both")([left, right])
        outputs = [keras.layers.Dense(2, name="dense")(both), left]
    return keras.Model([first, second], outputs)


class NoStage:
    def __init__(self, number):
        pass

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def make_pair():
    return [draw(ROWS, WIDTH), draw(ROWS, WIDTH, seed=2)]


def test_scopes_make_a_pipeline_of_a_functional_model(keras, strategy):
    x = make_pair()
    before = counters.compiled
    with strategy.scope():
        model = make_functional(keras, keras_ipu().PipelineStage)
        model.set_pipelining_options(device_mapping=[0, 0])
        model.compile(steps_per_execution=STEPS)
        assert model._is_pipelined()
        outputs = model.predict(x, batch_size=1, verbose=0)
    plain = make_functional(keras, NoStage)
    plain.set_weights(model.get_weights())
    assert counters.compiled > before
    for found, wanted in zip(outputs, plain.predict(x, batch_size=1, verbose=0), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def keras_ipu():
    from tensorflow_ipu.keras_extensions import keras_ipu as module

    return module


def test_a_pipeline_evaluates(keras, strategy):
    x, y = make_pair(), [draw(ROWS, 2, seed=4), draw(ROWS, 4, seed=5)]
    with strategy.scope():
        model = make_functional(keras, keras_ipu().PipelineStage)
        model.set_pipelining_options(device_mapping=[0, 0])
        model.compile(loss="mse", steps_per_execution=STEPS)
        results = model.evaluate(x, y, batch_size=1, verbose=0, return_dict=True)
    plain = make_functional(keras, NoStage)
    plain.set_weights(model.get_weights())
    plain.compile(loss="mse")
    expected = plain.evaluate(x, y, batch_size=1, verbose=0, return_dict=True)
    assert results.keys() == expected.keys()
    np.testing.assert_allclose(list(results.values()), list(expected.values()), rtol=1e-5)


@pytest.mark.parametrize("replicas", [1, 2])
def test_stages_of_a_sequential_model(keras, replicas):
    strategy = configure(2 * replicas)
    x = draw(ROWS, WIDTH)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(5, "relu"), keras.layers.Dense(3)])
        model.set_pipeline_stage_assignment([0, 1])
        model.compile(steps_per_execution=STEPS // replicas)
        outputs = model.predict(x, batch_size=1, verbose=0)
        assert model._get_replication_factor() == replicas
    first, second, third, fourth = model.get_weights()
    wanted = np.maximum(x @ first + second, 0) @ third + fourth
    np.testing.assert_allclose(outputs, wanted, rtol=1e-4, atol=1e-6)
    ipu.config.reset_ipu_configuration()


def test_a_pipeline_needs_as_many_ipus_as_stages(keras):
    with configure(2).scope():
        model = keras.Sequential([keras.layers.Dense(4) for _ in range(3)])
        model.set_pipeline_stage_assignment([0, 1, 2])
        with pytest.raises(
            ValueError,
            match=r"Current device has 2 IPUs attached, however the current model requires a "
            "multiple of 4 IPUs.",
        ):
            model.predict(draw(ROWS, WIDTH), batch_size=1)


def test_nested_models_have_stages_of_their_own(keras, strategy):
    x = draw(ROWS, WIDTH)
    with strategy.scope():
        inner = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(4)])
        inner.build((None, WIDTH))
        inputs = keras.Input((WIDTH,))
        model = keras.Model(inputs, keras.layers.Dense(2)(inner(inputs)))
        assignments = model.get_pipeline_stage_assignment()
        nested, last = assignments
        assert nested.is_nested_model
        for number, assignment in enumerate(nested.pipeline_stage_assignments):
            assignment.pipeline_stage = number
        last.pipeline_stage = 1
        model.set_pipeline_stage_assignment(assignments)
        model.set_pipelining_options(device_mapping=[0, 0])
        model.compile(steps_per_execution=STEPS)
        outputs = model.predict(x, batch_size=1, verbose=0)
        assert "(node index 0) has the following pipeline stage assignments:" in str(nested)
    weights = model.get_weights()
    hidden = np.tanh(x @ weights[0] + weights[1]) @ weights[2] + weights[3]
    np.testing.assert_allclose(outputs, hidden @ weights[4] + weights[5], rtol=1e-4, atol=1e-6)


def test_scopes_in_the_call_of_a_subclassed_model(keras, strategy):
    stage = keras_ipu().PipelineStage

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.first = keras.layers.Dense(4, "relu")
            with stage(1):
                self.second = keras.layers.Dense(3)

        def call(self, inputs):
            with stage(0):
                hidden = self.first(inputs)
            return self.second(hidden)

    x = draw(ROWS, WIDTH)
    with strategy.scope():
        model = Net()
        model.set_pipelining_options(device_mapping=[0, 0])
        model.compile(steps_per_execution=STEPS)
        outputs = model.predict(x, batch_size=1, verbose=0)
        assert [a.pipeline_stage for a in model.get_pipeline_stage_assignment()] == [0, 1]
    first, second, third, fourth = model.get_weights()
    wanted = np.maximum(x @ first + second, 0) @ third + fourth
    np.testing.assert_allclose(outputs, wanted, rtol=1e-4, atol=1e-6)


def test_bad_assignments_are_refused(keras, strategy):
    with strategy.scope():
        model = make_functional(keras, NoStage)
        good = model.get_pipeline_stage_assignment()
        with pytest.raises(ValueError, match=r"\(3\) does not match the number of layers .* \(4\)"):
            model.set_pipeline_stage_assignment(good[:3])
        with pytest.raises(ValueError, match="with node_index 0 has not been assigned"):
            model.set_pipeline_stage_assignment(good)
        for assignment, stage in zip(good, [1, 0, 0, 1], strict=True):
            assignment.pipeline_stage = stage
        with pytest.raises(ValueError, match="Layer both in pipeline stage 0 has a dependency"):
            model.set_pipeline_stage_assignment(good)
        with pytest.raises(ValueError, match="must be an instance of"):
            model.set_pipeline_stage_assignment([None, *good[1:]])
        for assignment, stage in zip(good, [0, 0, 2, 2], strict=True):
            assignment.pipeline_stage = stage
        model.set_pipeline_stage_assignment(good)
        model.set_pipelining_options(device_mapping=[0, 0, 0])
        model.compile(steps_per_execution=STEPS)
        with pytest.raises(RuntimeError, match=r"is stage 2, however the preceeding stages \[1\]"):
            model.predict(make_pair(), batch_size=1)
        model.reset_pipeline_stage_assignment()
        assert not model._is_pipelined()


def test_a_partly_staged_model_is_refused(keras, strategy):
    with strategy.scope():
        inputs = keras.Input((WIDTH,))
        with keras_ipu().PipelineStage(0):
            hidden = keras.layers.Dense(4)(inputs)
        outputs = keras.layers.Dense(4, name="forgotten")(hidden)
        with pytest.raises(ValueError, match="However, forgotten has not been assigned to one"):
            keras.Model(inputs, outputs)


def test_stages_need_a_strategy_and_are_not_nested(strategy):
    stage = keras_ipu().PipelineStage
    with pytest.raises(RuntimeError, match="from within an IPUStrategy context"), stage(0):
        pass
    with strategy.scope():
        with pytest.raises(ValueError, match="-1 is not a valid pipeline stage"), stage(-1):
            pass
        with stage(0), pytest.raises(RuntimeError, match="must not be nested"), stage(1):
            pass


def test_the_summary_has_a_line_for_each_call(keras, strategy):
    lines = []
    with strategy.scope():
        model = make_functional(keras, keras_ipu().PipelineStage)
        model.print_pipeline_stage_assignment_summary(line_length=60, print_fn=lines.append)
    assert lines[0].startswith('Model: "')
    assert lines[2].startswith("Layer (type) (node inde")
    assert [line.split()[-1] for line in lines if line.startswith(("shared", "both", "dense"))] == [
        "0",
        "1",
        "1",
        "1",
    ]


def test_an_accumulated_outfeed_returns_means(keras, strategy):
    x, y = draw(ROWS, WIDTH), draw(ROWS, 3, seed=2)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(5, "relu"), keras.layers.Dense(3)])
        model.set_pipeline_stage_assignment([0, 1])
        model.set_pipelining_options(device_mapping=[0, 0], accumulate_outfeed=True)
        model.compile(loss="mse", steps_per_execution=STEPS)
        loss = model.evaluate(x, y, batch_size=1, verbose=0)
    # The loss after each step is the mean of the losses so far; their mean is returned.
    first, second, third, fourth = model.get_weights()
    errors = ((np.maximum(x @ first + second, 0) @ third + fourth - y) ** 2).mean(1)
    running = np.cumsum(errors) / np.arange(1, ROWS + 1)
    np.testing.assert_allclose(loss, running.mean(), rtol=1e-4)
