"""Slices at places that are known at run time only, beside numpy."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow").compat.v1
pytestmark = pytest.mark.tensorflow
VALUE = np.arange(2 * 3 * 4 * 3, dtype=np.float32).reshape(2, 3, 4, 3)
INDICES = [
    lambda value, number: value[0, number],
    lambda value, number: value[:, number],
    lambda value, number: value[..., number],
    lambda value, number: value[1, ..., 1, number],
    lambda value, number: value[0, number, 1:3, None],
    lambda value, number: value[:, number, ::-2, number],
    lambda value, number: value[..., -1 - number, :, 0],
    lambda value, number: value[None, 1, number, ..., None],
]


@pytest.mark.parametrize("index", INDICES)
def test_a_loop_reads_the_place_of_its_number(ipus, compiled, index):
    ipu = ipus()
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, VALUE.shape)

        def function(value):
            def body(number, total):
                return number + 1, total * 2 + index(value, number)

            return ipu.loops.repeat(3, body, [0, tf.zeros_like(index(value, 0))])

        with ipu.scopes.ipu_scope("/device:IPU:0"):
            result = ipu.ipu_compiler.compile(function, [x])
        with tf.Session() as session:
            _, found = session.run(result, {x: VALUE})
    expected = sum(index(VALUE, number) * 2 ** (2 - number) for number in range(3))
    np.testing.assert_array_equal(found, expected)
    assert compiled() == 1
