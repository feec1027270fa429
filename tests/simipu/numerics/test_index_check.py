"""Tests of out-of-range indices, against numpy: with the index check "clamp" the nearest element is
read."""

import itertools

import numpy as np
import pytest
from model_runtime import ModelRunner, ModelRunnerConfig
from model_runtime.runner import NO_BATCHING_DIM
from onnx import TensorProto, helper
from onnxgraph import iter_nodes
from poprt import Compiler, Converter
from poprt.runtime import Runner, RuntimeConfig
from sample_models import make_model
from simipu import GraphOptions, LoadError, RunError
from simipu.engines import opening
from simipu.numerics import KernelUse
from simipu.numerics.indices import IndexGuard

F, I32, I64, B = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
TABLE = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 8
EXTREMES = np.iinfo(np.int32).min, np.iinfo(np.int32).max


def inside(index, size):
    """Return the position that an index means, or the nearest one if it is out of range."""
    clamped = min(max(int(index), -size), size - 1)
    return clamped + size if clamped < 0 else clamped


def gather(data, indices, axis):
    places = [inside(index, data.shape[axis]) for index in indices.ravel()]
    before, after = data.shape[:axis], data.shape[axis + 1 :]
    return data[(slice(None),) * axis + (places,)].reshape(*before, *indices.shape, *after)


def gather_elements(data, indices, axis):
    found = np.empty(indices.shape, data.dtype)
    for place in itertools.product(*map(range, indices.shape)):
        source = list(place)
        source[axis] = inside(indices[place], data.shape[axis])
        found[place] = data[tuple(source)]
    return found


def gather_nd(data, indices, batch_dims):
    leading, count = indices.shape[:-1], indices.shape[-1]
    found = np.empty((*leading, *data.shape[batch_dims + count :]), data.dtype)
    for place in itertools.product(*map(range, leading)):
        sizes = data.shape[batch_dims : batch_dims + count]
        chosen = [inside(index, size) for index, size in zip(indices[place], sizes, strict=True)]
        found[place] = data[(*place[:batch_dims], *chosen)]
    return found


def draw(shape, dtype=np.int32, seed=0):
    """Return indices that are mostly out of range, including the extremes of 32 bits."""
    random = np.random.default_rng(seed)
    drawn = random.integers(-9, 9, shape)
    drawn.flat[:2] = EXTREMES[: drawn.size]
    return drawn.astype(dtype)


CASES = {
    "Gather 0": ("Gather", {"axis": 0}, (3,), lambda i: gather(TABLE, i, 0)),
    "Gather 1": ("Gather", {"axis": 1}, (2, 2), lambda i: gather(TABLE, i, 1)),
    "Gather -1": ("Gather", {"axis": -1}, (5,), lambda i: gather(TABLE, i, 2)),
    "Gather of one": ("Gather", {}, (), lambda i: gather(TABLE, i, 0)),
    "GatherElements 0": (
        "GatherElements",
        {"axis": 0},
        (5, 3, 4),
        lambda i: gather_elements(TABLE, i, 0),
    ),
    "GatherElements -1": (
        "GatherElements",
        {"axis": -1},
        (2, 3, 6),
        lambda i: gather_elements(TABLE, i, 2),
    ),
    "GatherND 2": ("GatherND", {}, (5, 2), lambda i: gather_nd(TABLE, i, 0)),
    "GatherND 3": ("GatherND", {}, (2, 2, 3), lambda i: gather_nd(TABLE, i, 0)),
    "GatherND batched": ("GatherND", {"batch_dims": 1}, (2, 2), lambda i: gather_nd(TABLE, i, 1)),
}


def reading(op_type, attributes, shape, out_shape, *, opset=17, kind=I32, table=TABLE):
    """Return a model whose node reads a constant table by indices that are an input."""
    nodes = [helper.make_node(op_type, ["table", "wide"], ["y"], **attributes)]
    nodes.insert(0, helper.make_node("Cast", ["i"], ["wide"], to=I64))
    return make_model(nodes, {"i": (kind, shape)}, {"y": (F, out_shape)}, {"table": table}, opset)


def compute(model, feeds, index_check="clamp", batching_dim=NO_BATCHING_DIM, **converter):
    """Compile and run the model and return its outputs."""
    compiled = Compiler.compile(Converter(**converter).convert(model))
    config = ModelRunnerConfig(index_check=index_check, num_threads=1, batching_dim=batching_dim)
    with ModelRunner(compiled.getPopefModel(), config) as runner:
        types = {each.name: each.numpy_data_type() for each in runner.getExecuteInputs()}
        return runner.execute({name: value.astype(types[name]) for name, value in feeds.items()})


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_nearest_element_is_read(case, precision):
    op_type, attributes, shape, expect = CASES[case]
    indices = draw(shape)
    expected = expect(indices)
    model = reading(op_type, attributes, shape, expected.shape)
    found = compute(model, {"i": indices}, precision=precision)["y"]
    np.testing.assert_array_equal(found.astype(np.float32), expected)


@pytest.mark.parametrize("opset", [7, 9, 11, 12, 13, 18, 21])
def test_it_is_read_in_every_opset(opset):
    indices = draw((6,))
    model = reading("Gather", {"axis": 1}, (6,), (2, 6, 4), opset=opset)
    np.testing.assert_array_equal(compute(model, {"i": indices})["y"], gather(TABLE, indices, 1))


def test_tables_in_half_are_read_without_kernels_too(monkeypatch):
    monkeypatch.setattr(opening, "use_kernels", lambda: KernelUse.NONE)
    indices, table = (
        draw((6,)),
        np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32),
    )
    model = reading("Gather", {"axis": 0}, (6,), (6, 8), table=table)
    found = compute(model, {"i": indices}, precision="fp16")["y"]
    np.testing.assert_array_equal(found, gather(table.astype(np.float16), indices, 0))


def test_an_index_that_is_out_of_range_ends_the_run_otherwise():
    model = reading("Gather", {"axis": 0}, (3,), (3, 3, 4))
    for index in (2, -3):
        with pytest.raises(RunError):
            compute(model, {"i": np.array([0, 1, index])}, "error")
    found = compute(model, {"i": np.array([-2, -1, 1])}, "error")["y"]
    np.testing.assert_array_equal(found, TABLE[[0, 1, 1]])


def test_bodies_of_if_and_loop_are_clamped():
    inner = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "i"], ["row"], axis=0),
            helper.make_node("Add", ["sum_in", "row"], ["sum_out"]),
            helper.make_node("Identity", ["go_in"], ["go_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", I64, []),
            helper.make_tensor_value_info("go_in", B, []),
            helper.make_tensor_value_info("sum_in", F, [3, 4]),
        ],
        [
            helper.make_tensor_value_info("go_out", B, []),
            helper.make_tensor_value_info("sum_out", F, [3, 4]),
        ],
    )
    branches = {}
    for name, shift in (("then", 100), ("else", -100)):
        branches[f"{name}_branch"] = helper.make_graph(
            [
                helper.make_node(
                    "Constant", [], [f"{name}_by"], value=helper.make_tensor("", I64, [], [shift])
                ),
                helper.make_node("Add", ["i", f"{name}_by"], [f"{name}_at"]),
                helper.make_node("Gather", ["table", f"{name}_at"], [f"{name}_row"], axis=0),
            ],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_row", F, [3, 4])],
        )
    nodes = [
        helper.make_node("Cast", ["given"], ["i"], to=I64),
        helper.make_node("Loop", ["turns", "go", "zeros"], ["sum"], body=inner),
        helper.make_node("If", ["which"], ["row_of_if"], **branches),
        helper.make_node("Add", ["sum", "row_of_if"], ["y"]),
    ]
    weights = {
        "table": TABLE,
        "zeros": np.zeros((3, 4), np.float32),
        "turns": np.int64(3),
        "go": np.array(True),
    }
    model = make_model(nodes, {"given": (I32, []), "which": (B, [])}, {"y": (F, [3, 4])}, weights)
    for given, which in ((9, True), (-7, False), (0, True), (-1, False)):
        found = compute(model, {"given": np.array(given), "which": np.array(which)})["y"]
        expected = 3 * TABLE[inside(given, 2)] + TABLE[inside(given + (100 if which else -100), 2)]
        np.testing.assert_array_equal(found, expected)


def test_tables_whose_size_is_known_at_run_time_only_are_clamped():
    """Rows are independent: their number is not fixed, and the table is computed from them."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["table"]),
        helper.make_node("Cast", ["i"], ["wide"], to=I64),
        helper.make_node("GatherElements", ["table", "wide"], ["y"], axis=1),
    ]
    inputs = {"x": (F, [4, 3]), "i": (I32, [4, 5])}
    model = make_model(nodes, inputs, {"y": (F, [4, 5])}, {"two": np.float32(2)})
    x, indices = np.random.default_rng(0).standard_normal((4, 3), np.float32), draw((4, 5))
    for rows in (4, 2):
        found = compute(model, {"x": x[:rows], "i": indices[:rows]}, batching_dim=0)["y"]
        np.testing.assert_array_equal(found, gather_elements(2 * x[:rows], indices[:rows], 1))


@pytest.mark.parametrize(
    ("op_type", "attributes", "shape", "expect"),
    [
        ("Gather", {"axis": -1}, (4,), lambda i: gather(TABLE, i, 2)),
        ("GatherND", {"batch_dims": 1}, (2, 3, 2), lambda i: gather_nd(TABLE, i, 1)),
    ],
)
@pytest.mark.parametrize("opset", [12, 11])
def test_sizes_are_computed_where_no_shape_is_known(op_type, attributes, shape, expect, opset):
    import onnxruntime
    from onnxgraph import infer_shapes

    if op_type == "GatherND" and opset < 12:
        attributes, shape = {}, (5, 2)
        expect = lambda i: gather_nd(TABLE, i, 0)  # noqa: E731
    node = helper.make_node(op_type, ["x", "i"], ["y"], **attributes)
    model = make_model(
        [node], {"x": (F, ["a", "b", "c"]), "i": (I64, [None] * len(shape))}, {"y": (F, None)}, {}
    )
    model.opset_import[0].version = opset
    assert IndexGuard().apply(model, infer_shapes(model))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    indices = draw(shape, np.int64)
    np.testing.assert_array_equal(session.run(None, {"x": TABLE, "i": indices})[0], expect(indices))


def test_constant_indices_and_other_models_stay_as_they_are():
    nodes = [helper.make_node("Gather", ["x", "at"], ["y"], axis=0)]
    model = make_model(nodes, {"x": (F, [4])}, {"y": (F, [2])}, {"at": np.array([0, -1])})
    before = model.SerializeToString()
    assert not IndexGuard().apply(model, model)
    assert model.SerializeToString() == before
    assert [node.op_type for node in iter_nodes(model.graph)] == ["Gather"]


def test_runners_of_poprt_clamp_by_default():
    model = reading("Gather", {"axis": 0}, (3,), (3, 3, 4))
    compiled = Compiler.compile(Converter().convert(model))
    indices, found = np.array([5, -5, 1], np.int32), {"y": np.zeros((3, 3, 4), np.float32)}
    runner = Runner(compiled)
    runner.execute({"i": indices}, found)
    np.testing.assert_array_equal(found["y"], gather(TABLE, indices, 0))
    runner.close()
    strict = Runner(compiled, RuntimeConfig(index_check="error"))
    with pytest.raises(RunError):
        strict.execute({"i": indices}, found)
    strict.close()


def test_other_words_are_refused():
    with pytest.raises(LoadError, match="index_check: expected error or clamp, found 'wrap'"):
        GraphOptions(index_check="wrap")
