"""Assertions in computations, and scripts that disable eager mode after the import."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ipu import config, ipu_compiler, ipu_infeed_queue, loops, scopes
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


@pytest.mark.parametrize("guarded", [True, False])
def test_an_assertion_that_is_not_true_ends_the_run_and_changes_no_variable(guarded):
    def net(x):
        v = tf1.get_variable("v", initializer=[1.0, 1.0], use_resource=True)
        if guarded:
            check = tf1.debugging.assert_positive(x)
        else:
            check = tf.debugging.Assert(tf.reduce_all(x > 0), [x])
        with tf.control_dependencies([check, v.assign_add([1.0, 2.0])]):
            return x * 2 + v.read_value()

    with tf.Graph().as_default():
        x = tf1.placeholder(tf.float32, [2])
        with scopes.ipu_scope("/device:IPU:0"):
            (result,) = ipu_compiler.compile(net, [x])
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            before = counters.runs
            with pytest.raises(tf.errors.InternalError, match="is not true"):
                session.run(result, {x: [1.0, -1.0]})
            assert np.array_equal(session.run(result, {x: [1.0, 2.0]}), [4, 7])
            assert counters.runs == before + 2


def test_assertions_in_loops_with_feeds_are_checked_in_each_iteration():
    def body(v, x):
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_max(x) < 3, [x])]):
            return v + x

    with tf.Graph().as_default():
        rows = tf.data.Dataset.range(9).map(lambda n: tf.fill([2], tf.cast(n, tf.float32)))
        queue = ipu_infeed_queue.IPUInfeedQueue(rows)
        with scopes.ipu_scope("/device:IPU:0"):
            (result,) = ipu_compiler.compile(
                lambda: loops.repeat(3, body, [tf.zeros([2])], queue), []
            )
        with tf1.Session() as session:
            session.run(queue.initializer)
            assert np.array_equal(session.run(result), [3, 3])
            with pytest.raises(tf.errors.InternalError, match="is not true"):
                session.run(result)


def test_operators_without_a_kernel_of_the_cpu_run_on_the_ipu():
    with tf.Graph().as_default(), tf.device("/device:IPU:0"):
        x = tf1.placeholder(tf.float16, [1, 4, 4, 4, 1])
        pooled = tf.nn.avg_pool3d(x, 2, 2, "VALID")
        with tf1.Session() as session:
            found = session.run(pooled, {x: np.ones(x.shape, np.float16)})
    assert found.dtype == np.float16
    assert np.array_equal(found, np.ones([1, 2, 2, 2, 1]))


SCRIPT = """
import tensorflow.compat.v1 as tf
from tensorflow.python import ipu
tf.disable_v2_behavior()

options = ipu.config.IPUConfig()
options.auto_select_ipus = 1
options.configure_ipu_system()

def net(x):
    return x * tf.get_variable("v", initializer=[3.0, 4.0])

x = tf.placeholder(tf.float32, [2])
with ipu.scopes.ipu_scope("/device:IPU:0"):
    result = ipu.ipu_compiler.compile(net, [x])
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    assert session.run(result, {x: [1.0, 2.0]})[0].tolist() == [3, 8]
"""


def test_a_script_may_disable_eager_mode_after_the_import():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=300)
