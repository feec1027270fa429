"""What `ipu_compiler.compile` takes, returns and refuses."""

import importlib

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ipu import config, ipu_compiler, ipu_estimator, loops, scopes
from tensorflow_ipu.execution import counters

pytestmark = pytest.mark.tensorflow
tf1 = tf.compat.v1


@pytest.fixture(autouse=True)
def one_ipu():
    options = config.IPUConfig()
    options.auto_select_ipus = 1
    options.configure_ipu_system()
    yield
    config.reset_ipu_configuration()


def run(computation, inputs=None, scope="/device:IPU:0"):
    with tf.Graph().as_default():
        with scopes.ipu_scope(scope):
            result = ipu_compiler.compile(computation, inputs)
        if isinstance(result, tf.Operation):
            return "operation"
        with tf1.Session() as session:
            return session.run(result)


@pytest.mark.parametrize(
    ("computation", "expected"),
    [
        (lambda x: x + 1, [[2, 3]]),
        (lambda x: (x + 1, x * 2), [[2, 3], [2, 4]]),
        (lambda x: [x + 1, tf.no_op()], [[2, 3]]),
        (lambda x: {"a": x + 1, "b": [x * 2]}, {"a": [2, 3], "b": [[2, 4]]}),
        (lambda x: (x + 1, (x * 2, x * 3)), ([2, 3], ([2, 4], [3, 6]))),
    ],
)
def test_results_keep_their_structure_and_single_ones_become_lists(computation, expected):
    before = counters.runs
    found = run(computation, [np.array([1, 2], np.float32)])
    assert type(found) is type(expected)
    flat = [np.asarray(value).tolist() for value in tf.nest.flatten(found)]
    rows = tf.nest.flatten(tf.nest.map_structure(float, expected))
    assert np.concatenate(flat).tolist() == rows
    assert counters.runs > before


@pytest.mark.parametrize("computation", [lambda: None, tf.no_op, lambda: [tf.no_op()]])
def test_no_tensors_become_an_operation(computation):
    assert run(computation) in ("operation", None)


@pytest.mark.parametrize(
    ("computation", "inputs", "error", "text"),
    [
        (lambda x: (tf.no_op(), x), [1.0], ValueError, "zero or more Tensor values followed by"),
        (lambda x: (x, (x, tf.no_op())), [1.0], ValueError, "non-flat output structure"),
        (lambda x: x, 1.0, TypeError, "inputs must be a list"),
        (
            lambda: [ipu_estimator.IPUEstimatorSpec("infer")],
            None,
            ValueError,
            "contains an EstimatorSpec or IPUEstimatorSpec",
        ),
    ],
)
def test_wrong_computations_are_refused(computation, inputs, error, text):
    with pytest.raises(error, match=text):
        run(computation, inputs)


def test_a_computation_outside_the_scope_of_an_ipu_is_refused():
    with pytest.raises(Exception, match="it was not placed on an IPU device"):
        run(lambda x: x + 1, [1.0], "/device:CPU:0")
    with tf.Graph().as_default():
        with pytest.raises(Exception, match="it was not placed on an IPU device"):
            ipu_compiler.compile(lambda x: x + 1, [1.0])

        def placed(x):
            with scopes.ipu_scope("/device:IPU:0"):
                return x + 1

        ipu_compiler.compile(placed, [1.0])
        ipu_compiler.compile(lambda: None)


def test_a_scope_in_a_loop_places_the_computation():
    def body(value):
        with scopes.ipu_scope("/device:IPU:0"):
            return value + 1.0

    with tf.Graph().as_default():
        [result] = ipu_compiler.compile(lambda: loops.repeat(2, body, [tf.zeros([2])]))
        with tf1.Session() as session:
            assert session.run(result).tolist() == [2, 2]


def test_keras_of_the_package_has_the_names_of_keras_for_the_ipu():
    from tensorflow.python import ipu

    assert ipu.keras.PipelineStage is importlib.import_module("keras.ipu").PipelineStage
    assert ipu.keras.layers.__name__.startswith("tensorflow.python.ipu.keras")
