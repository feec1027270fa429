"""A run holds the compiled batch times the replicas times the device iterations.

Configurations say so, and requests of any size fit.
"""

import numpy as np
import pytest
from onnx import TensorProto, helper
from sample_models import make_model
from sdk_files import replicate
from triton_poplar.errors import ModelConfigError
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState, complete_config
from triton_poplar.request import Request

BATCH = 4


@pytest.fixture
def make_folder(linear, compile_popef, tmp_path):
    """Return a function that makes the linear model's version folder.

    Its arguments are the numbers of replicas and of device iterations.
    """

    def make(replicas, iterations):
        replicate(
            compile_popef(linear, name="linear/1/executable.popef", batch=BATCH),
            replicas,
            iterations,
        )
        return tmp_path / "linear" / "1"

    return make


def config(max_batch_size, *batch):
    """Return a complete configuration; `batch` stands before the row in dims."""
    shapes = {"input": {"x": 4}, "output": {"y": 3, "z": 4}}
    entries = {
        kind: [
            {"name": name, "data_type": "TYPE_FP32", "dims": [*batch, width]}
            for name, width in tensors.items()
        ]
        for kind, tensors in shapes.items()
    }
    return {"name": "linear", "max_batch_size": max_batch_size, **entries}


MACHINES = pytest.mark.parametrize(
    ("replicas", "iterations", "total"), [(1, 1, 4), (2, 1, 8), (1, 3, 12), (2, 3, 24)]
)


@MACHINES
def test_the_total_batch_is_that_of_all_replicas_and_iterations(
    make_folder, replicas, iterations, total
):
    state = ModelState(config(0, total), make_folder(replicas, iterations))
    state.validate()
    assert (state.batch_size, state.total_batch_size, state.wraps_rows) == (BATCH, total, False)
    instance = ModelInstanceState(state, "linear_0")
    assert instance.session.rows_per_run == instance.statistics.capacity == total
    instance.close()


@MACHINES
def test_dims_that_hold_another_batch_are_refused_with_the_total(
    make_folder, replicas, iterations, total
):
    folder = make_folder(replicas, iterations)
    ModelState(config(0, -1), folder).validate()
    wrong = total // BATCH if total > BATCH else BATCH + 1
    expected = rf"dims \[{wrong}, 4\], expected \[{total}, 4\] .*include the batch, {total} or -1"
    with pytest.raises(ModelConfigError, match=expected):
        ModelState(config(0, wrong), folder).validate()


@MACHINES
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_max_batch_size_may_be_less_or_more_than_the_total(
    make_folder, replicas, iterations, total, more
):
    """Requests with more rows than a run holds are split."""
    state = ModelState(config(total + more), make_folder(replicas, iterations))
    state.validate()
    assert not state.holds_batch
    instance = ModelInstanceState(state, "linear_0")
    request = Request(state, {"x": np.ones((total + more, 4), np.float32)}, ())
    instance.execute([request])
    np.testing.assert_array_equal(request.outputs()["z"], np.full((total + more, 4), 2))
    statistics = instance.read_statistics()
    assert (statistics.batches, statistics.flushes) == (1 + (more > 0), int(more != 0))
    instance.close()


def test_with_max_batch_size_dims_hold_no_batch_however_large_the_total(make_folder):
    with pytest.raises(ModelConfigError, match=r"dims \[24, 4\], expected \[4\].*do not include"):
        ModelState(config(24, 24), make_folder(2, 3)).validate()


@pytest.mark.parametrize(("iterations", "most"), [(1, 4_000), (3, 12_000)])
def test_completed_configurations_take_a_thousand_whole_runs(
    linear, compile_popef, tmp_path, iterations, most
):
    compile_popef(
        linear, name="linear/1/executable.popef", options={"batches_per_step": iterations}
    )
    assert complete_config({}, tmp_path / "linear" / "1")["max_batch_size"] == most


def test_completed_dims_hold_the_total_where_nothing_says_that_rows_are_independent(make_folder):
    added = complete_config({}, make_folder(2, 3))
    assert added["max_batch_size"] == 0
    assert [entry["dims"] for entry in (*added["input"], *added["output"])] == [
        [24, 4],
        [24, 3],
        [24, 4],
    ]


def test_without_a_batch_there_is_no_total(compile_popef, tmp_path):
    node = helper.make_node("ReduceSum", ["a"], ["b"], keepdims=0)
    model = make_model(
        [node], {"a": (TensorProto.FLOAT, [2, 3])}, {"b": (TensorProto.FLOAT, [])}, {}
    )
    compile_popef(model, name="sum/1/executable.popef", batch=None, options={"batches_per_step": 3})
    state = ModelState({"name": "sum"}, tmp_path / "sum" / "1")
    assert (state.batch_size, state.total_batch_size) == (0, 0)
    assert state.wraps_rows
    assert not state.holds_batch
    # With a max_batch_size the whole tensor is a row.
    assert not ModelState({"name": "sum", "max_batch_size": 8}, tmp_path / "sum" / "1").wraps_rows
