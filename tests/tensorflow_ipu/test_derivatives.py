"""Operators of TensorFlow's gradients beside TensorFlow on the CPU."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow
FUNCTIONS = {
    "relu": tf.nn.relu,
    "relu6": lambda x: tf.nn.relu6(4 * x),
    "leaky": lambda x: tf.nn.leaky_relu(x, 0.3),
    "sigmoid": tf.sigmoid,
    "tanh": tf.tanh,
    "softplus": tf.nn.softplus,
    "softsign": tf.nn.softsign,
    "elu": tf.nn.elu,
    "selu": tf.nn.selu,
    "sqrt": lambda x: tf.sqrt(tf.abs(x) + 1),
    "rsqrt": lambda x: tf.math.rsqrt(tf.abs(x) + 1),
    "reciprocal": lambda x: 1 / (tf.abs(x) + 1),
}


def compare(ipus, compiled, function, *arrays):
    ipu = ipus()
    expected = function(*map(tf.constant, arrays))
    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        found = strategy.run(tf.function(function, jit_compile=True), arrays)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    assert compiled() == 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_derivative_of_an_elementwise_function(ipus, compiled, name):
    def derive(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = FUNCTIONS[name](x)
        return tape.gradient(y, x)

    compare(ipus, compiled, derive, np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4))


@pytest.mark.parametrize("padding", ["SAME", "VALID", [[0, 0], [1, 2], [0, 1], [0, 0]]])
@pytest.mark.parametrize(("strides", "dilations"), [(1, 1), (2, 1)])
def test_the_gradient_of_filters_and_biases(ipus, compiled, padding, strides, dilations):
    random = np.random.default_rng(0)
    x = random.standard_normal([2, 7, 6, 3]).astype(np.float32)
    filters = random.standard_normal([3, 2, 3, 4]).astype(np.float32)

    def derive(x, filters):
        with tf.GradientTape() as tape:
            tape.watch(filters)
            y = tf.nn.conv2d(x, filters, strides, padding, dilations=dilations)
            loss = tf.reduce_sum(tf.square(y))
        return tape.gradient(loss, filters)

    compare(ipus, compiled, derive, x, filters)
