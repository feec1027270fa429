"""Response tensors that are used again: what the server reads is what a request asked for."""

import numpy as np
import pytest
import triton_poplar.response_tensors as response_tensors
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState
from triton_poplar.request import Request
from triton_poplar.response_tensors import TensorPool

OUTPUTS = ("y", "z")


class PlayedTensor:
    """Tensor of Triton's stub, which moves its values to other memory when it is first sent."""

    def __init__(self, array):
        self.memory, self.is_sent = array, False

    def send(self):
        """Return the values that the server reads."""
        if not self.is_sent:
            self.memory, self.is_sent = self.memory.copy(), True
        return self.memory.copy()


@pytest.fixture
def instance(linear, compile_popef, tmp_path):
    compile_popef(linear, name="linear/1/executable.popef")
    config = {"name": "linear", "max_batch_size": 100}
    instance = ModelInstanceState(ModelState(config, tmp_path / "linear" / "1"), "linear_0")
    yield instance
    instance.close()


@pytest.fixture
def pool(instance):
    return TensorPool(
        instance.model_state, lambda _, array: PlayedTensor(array), lambda tensor, _: tensor.memory
    )


class Server:
    """Calls an instance as model.py does, and reads the responses."""

    def __init__(self, instance, pool):
        self.instance, self.pool = instance, pool
        self.num_new = 0

    def answer(self, batches, requested=(), *, sends=True):
        requests = [Request(self.instance.model_state, {"x": x}, requested) for x in batches]
        kept = self.pool.take(requests)
        self.instance.execute(requests)
        responses = [
            found.fill(request.outputs()) if found else self._make(request)
            for request, found in zip(requests, kept, strict=True)
        ]
        return [[tensor.send() for tensor in each] for each in responses] if sends else None

    def _make(self, request):
        self.num_new += 1
        return self.pool.make(request, request.outputs())


@pytest.fixture
def server(instance, pool):
    return Server(instance, pool)


def test_every_request_gets_its_own_values_in_tensors_that_are_used_again(server, instance):
    random = np.random.default_rng(0)
    for _ in range(40):
        batches = [
            random.standard_normal((rows, 4), dtype=np.float32)
            for rows in random.integers(1, 7, random.integers(1, 4))
        ]
        for x, found in zip(batches, server.answer(batches), strict=True):
            alone = instance.session.run({"x": x})
            for name, values in zip(OUTPUTS, found, strict=True):
                np.testing.assert_array_equal(values, alone[name])
            np.testing.assert_array_equal(found[1], 2 * x)
    assert server.num_new <= 3 * 6  # three of each number of rows


def test_a_lone_request_is_computed_in_the_memory_of_its_response(server, instance):
    x = np.ones((2, 4), np.float32)
    server.answer([x])
    (kept,) = server.pool.take([Request(instance.model_state, {"x": x}, ())])
    assert instance.session.run({"x": x}, None, kept.rows)["z"] is kept.memory["z"]
    ((_, z),) = server.answer([3 * x])
    np.testing.assert_array_equal(z, np.full((2, 4), 6))
    assert server.num_new == 1


def test_tensors_that_were_not_sent_are_not_used_again(server):
    x = np.ones((2, 4), np.float32)
    server.answer([x], sends=False)
    ((_, z),) = server.answer([5 * x])
    np.testing.assert_array_equal(z, np.full((2, 4), 10))
    assert server.num_new == 2


def test_a_request_for_some_of_the_outputs_gets_new_tensors(server):
    x = np.ones((2, 4), np.float32)
    for _ in range(2):
        ((z,),) = server.answer([x], ["z"])
        np.testing.assert_array_equal(z, 2 * x)
    assert server.num_new == 2


def test_the_memory_of_kept_tensors_is_limited(server, monkeypatch):
    monkeypatch.setattr(response_tensors, "OVERHEAD_BYTES", 0)
    monkeypatch.setattr(response_tensors, "MAX_KEPT_BYTES", 3 * (3 + 4) * 4)
    for rows in (1, 2, 3, 4, 1):
        x = np.full((rows, 4), rows, np.float32)
        ((_, z),) = server.answer([x])
        np.testing.assert_array_equal(z, 2 * x)
        kept = [each for found in server.pool._kept.values() for each in found]
        assert sum(len(each.memory["z"]) for each in kept) <= 3
    assert server.num_new == 5


def test_a_kept_tensor_does_not_keep_the_rows_of_its_neighbours(instance):
    made = []

    def make(_, array):
        made.append(array)
        return PlayedTensor(array)

    pool = TensorPool(instance.model_state, make, lambda tensor, _: tensor.memory)
    Server(instance, pool).answer([np.ones((rows, 4), np.float32) for rows in (1, 99)])
    assert len(made) == 4
    for array in made:
        assert not isinstance(array.base, np.ndarray)
