"""Capsules carry every type and shape, and release the array when their consumer is done."""

import gc
import weakref

import numpy as np
import pytest
from triton_poplar import dlpack


class Producer:
    """The interface that numpy expects of a DLPack producer."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **_):
        return dlpack.to_capsule(self.array)

    def __dlpack_device__(self):
        return (1, 0)


@pytest.mark.parametrize(
    "dtype",
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split(),
)
@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (1, 0), ()])
def test_every_type_and_shape_arrives(dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    taken = np.from_dlpack(Producer(array))
    assert taken.dtype == array.dtype
    np.testing.assert_array_equal(taken, array)


def test_a_strided_array_is_made_contiguous():
    array = np.arange(12).reshape(3, 4)[:, ::2]
    np.testing.assert_array_equal(np.from_dlpack(Producer(array)), array)


def test_the_array_lives_as_long_as_its_consumer():
    array = np.arange(5)
    reference = weakref.ref(array)
    taken = np.from_dlpack(Producer(array))
    del array
    gc.collect()
    assert reference() is not None
    np.testing.assert_array_equal(taken, np.arange(5))
    del taken
    gc.collect()
    assert reference() is None
