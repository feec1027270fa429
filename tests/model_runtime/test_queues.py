"""Queues join small requests, split large ones, keep the order, and copy as little as possible."""

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from model_runtime import ModelRuntimeError, OutputSlot, QueueManager, StoppedError

import popef

BATCH = 4


def anchor(name, kind):
    info = popef.TensorInfo(shape=(BATCH, 2), dataType=popef.DataType.F32)
    return popef.Anchor(name=name, handle=name, tensorInfo=info, type=kind)


def make_queues(**options):
    inputs = {"x": (anchor("x", popef.TensorType.INPUT), (2,))}
    return QueueManager(inputs, [anchor("y", popef.TensorType.OUTPUT)], BATCH, **options)


def rows(count, start=0):
    return np.arange(start, start + 2 * count, dtype=np.float32).reshape(count, 2)


def pump(queues):
    """Run an engine whose program doubles its input, and return the sizes of its batches."""
    sizes = []
    while queues.readAvailable():
        taken = queues.inputQueue("x").read(BATCH)
        sizes.append(len(taken))
        queues.outputQueue("y").write(taken * 2)
    return sizes


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(1, 11), min_size=1, max_size=8))
def test_every_request_gets_its_own_rows_in_full_batches(sizes):
    queues = make_queues()
    requests = [(rows(size, 100 * index), OutputSlot()) for index, size in enumerate(sizes)]
    finished = []
    for index, (data, memory) in enumerate(requests):
        queues.inputQueue("x").enqueue(data)
        queues.outputQueue("y").enqueue(
            memory, len(data), lambda index=index: finished.append(index)
        )
    batches = pump(queues)
    for data, memory in requests:
        np.testing.assert_array_equal(memory.array, 2 * data)
    assert finished == list(range(len(sizes)))
    assert batches[:-1] == [BATCH] * (len(batches) - 1)
    assert sum(batches) == sum(sizes)


def test_a_request_that_fits_a_batch_is_not_copied():
    queues = make_queues()
    data = rows(3)
    queues.inputQueue("x").enqueue(data)
    assert queues.inputQueue("x").read(BATCH) is data
    memory = OutputSlot()
    queues.outputQueue("y").enqueue(memory, 3)
    result = rows(3)
    queues.outputQueue("y").write(result)
    assert memory.array is result


def test_outputs_can_go_to_the_callers_array_or_nowhere():
    queues = make_queues()
    own = np.zeros((5, 2), np.float32)
    for place in (own, None):
        queues.inputQueue("x").enqueue(rows(5))
        queues.outputQueue("y").enqueue(place, 5)
    pump(queues)
    np.testing.assert_array_equal(own, 2 * rows(5))


def test_a_start_callback_comes_once_with_the_first_row():
    queues = make_queues()
    started = []
    queues.inputQueue("x").enqueue(rows(9), lambda: started.append(1))
    queues.outputQueue("y").enqueue(None, 9)
    pump(queues)
    assert started == [1]


@pytest.mark.parametrize(
    "data",
    [np.zeros((2, 3), np.float32), np.zeros((2, 2), np.float64), np.zeros((0, 2), np.float32)],
)
def test_rows_of_another_shape_or_type_or_none_are_refused(data):
    with pytest.raises(ModelRuntimeError, match="input 'x': expected float32 rows of shape"):
        make_queues().inputQueue("x").enqueue(data)


def test_misuse_is_named():
    queues = make_queues()
    with pytest.raises(ModelRuntimeError, match="input anchor 'q' is not known; expected one of x"):
        queues.inputQueue("q")
    with pytest.raises(ModelRuntimeError, match="queue 'x' is empty"):
        queues.inputQueue("x").read(1)
    queues.outputQueue("y").enqueue(None, 1)
    with pytest.raises(ModelRuntimeError, match="no buffer for 2 rows"):
        queues.outputQueue("y").write(rows(3))
    with pytest.raises(ModelRuntimeError, match="expected an array of 2 rows, found 3"):
        queues.outputQueue("y").enqueue(rows(3), 2)


def test_disconnecting_forgets_everything():
    queues = make_queues()
    queues.inputQueue("x").enqueue(rows(3))
    queues.outputQueue("y").enqueue(None, 3)
    queues.disconnectAll()
    assert queues.readAvailable() == 0


def test_a_run_overtaken_by_a_disconnect_is_an_error():
    queues = make_queues()
    queues.inputQueue("x").enqueue(rows(8))
    queues.outputQueue("y").enqueue(None, 8)
    taken = queues.inputQueue("x").read(BATCH)
    queues.disconnectAll()
    with pytest.raises(StoppedError):
        queues.outputQueue("y").write(taken)
    with pytest.raises(StoppedError):
        queues.inputQueue("x").read(BATCH)


def test_whole_iterations_start_at_once_and_the_rest_waits():
    queues = make_queues(rows_per_iteration=2, timeout_ns=0)
    queues.inputQueue("x").enqueue(rows(3))
    assert queues.wait() == 2
    assert len(queues.inputQueue("x").read(2)) == 2
    queues.inputQueue("x").enqueue(rows(1))
    assert queues.wait() == 2
    assert len(queues.inputQueue("x").read(2)) == 2
    queues.inputQueue("x").enqueue(rows(1))
    queues.flushAll()
    assert queues.wait() == 1
