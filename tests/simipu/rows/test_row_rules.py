"""Tests of rows among operands of other ranks, of constants combined with rows, and of rows along
other axes than the first. ONNX Runtime's answers for a whole batch equal those for its parts."""

import numpy as np
import onnx
import pytest
from oracles import unoptimised_session
from simipu import Direction, Stream
from simipu.rows import NotIndependent, make_row_independent, note_dependence, take_rows

BATCH = 4

INDEPENDENT = {
    "Gemm with a bias of rows": "(float[4,3] x) => (float[4,5] y) <float[3,5] w> "
    "{ b = ReduceMax<axes=[1]>(x) y = Gemm(x, w, b) }",
    "LayerNormalization with a scale written out": "(float[4,1,8] x) => (float[4,1,8] y) "
    "<float[4,1,8] same> "
    "{ y = LayerNormalization<axis=-1>(x, same) }",
    "BatchNormalization with rows in its places": "(float[4,3,2] x) => (float[2,3,4] y) <float[3] "
    "w> "
    "{ t = Transpose<perm=[2,1,0]>(x) v = Abs(w) y = BatchNormalization(t, w, w, w, v) }",
    "BatchNormalization with rows as channels": "(float[4,3] x) => (float[3,4] y) <float[4] same> "
    "{ t = Transpose(x) y = BatchNormalization(t, same, same, same, same) }",
    "InstanceNormalization with rows as channels": "(float[4,2,5] x) => (float[4,10] y) "
    "<float[8] same, int64[3] s = {1, 8, 5}, int64[2] e = {4, 10}> "
    "{ t = Reshape(x, s) u = InstanceNormalization(t, same, same) y = Reshape(u, e) }",
    "SpaceToDepth with rows as channels": "(float[4,1,4,4] x) => (float[4,4,2,2] y) "
    "<int64[4] s = {1, 4, 4, 4}, int64[4] e = {4, 4, 2, 2}> "
    "{ t = Reshape(x, s) d = SpaceToDepth<blocksize=2>(t) u = Reshape(d, e) "
    "y = Transpose<perm=[1,0,2,3]>(u) }",
    "DepthToSpace with rows as channels, CRD": "(float[4,8,2,2] x) => (float[4,32] y) "
    "<int64[4] s = {1, 32, 2, 2}, int64[2] e = {4, 32}> "
    '{ t = Reshape(x, s) d = DepthToSpace<blocksize=2, mode="CRD">(t) y = Reshape(d, e) }',
    "there and back by blocks": "(float[4,2,4,4] x) => (float[4,32] y) "
    "<int64[4] s = {1, 8, 4, 4}, int64[2] e = {4, 32}> "
    "{ t = Reshape(x, s) d = SpaceToDepth<blocksize=2>(t) u = DepthToSpace<blocksize=2>(d) "
    "y = Reshape(u, e) }",
    "a Conv with groups of rows": "(float[4,2,6] x) => (float[4,18] y) "
    "<float[12,2,3] same, int64[3] s = {1, 8, 6}, int64[2] e = {4, 18}> "
    "{ t = Reshape(x, s) c = Conv<group=4, pads=[1,1]>(t, same) y = Reshape(c, e) }",
    "pools with rows as channels": "(float[4,2,6] x) => (float[4,10] y) "
    "<int64[3] s = {1, 8, 6}, int64[2] e = {4, 10}> "
    "{ t = Reshape(x, s) p = MaxPool<kernel_shape=[2]>(t) y = Reshape(p, e) }",
    "LRN with rows in its places": "(float[4,3,2,2] x) => (float[2,3,4,2] y) "
    "{ t = Transpose<perm=[2,1,0,3]>(x) y = LRN<size=3>(t) }",
    "a slice from the end": "(float[4,3] x) => (float[4,3] y) "
    "<int64[1] a = {-4}, int64[1] e = {9}, int64[1] z = {0}> { y = Slice(x, a, e, z) }",
    "Trilu that keeps all": "(float[4,3] x) => (float[4,3] y) <int64 k = {-9}> { y = Trilu(x, k) }",
    "Trilu that keeps nothing of a column": "(float[4,3] x) => (float[4,3] y) <int64 k = {-9}> "
    "{ t = Transpose(x) u = Trilu<upper=0>(t, k) v = Transpose(u) y = Add(x, v) }",
    "the sequence of an LSTM": "(float[4,5,2] x) => (float[5,1,4,3] y) <float[1,12,2] w, "
    "float[1,12,3] r> "
    "{ t = Transpose<perm=[1,0,2]>(x) y = LSTM<hidden_size=3>(t, w, r) }",
    "a constant that is turned": "(float[4,3] x) => (float[4,3] y) <float[3,4] same> "
    "{ t = Transpose(same) y = Add(x, t) }",
    "QLinearMatMul with one matrix a batch, all the same": "(float[4,2,3] x) => (uint8[4,2,5] y) "
    "<float a = {0.1}, uint8 z = {3}, uint8[4,3,5] same> "
    "{ q = QuantizeLinear(x, a, z) y = QLinearMatMul(q, a, z, same, a, z, a, z) }",
}
DEPENDENT = {
    "Gemm with a bias of the other rank": (
        "(float[4,4] x) => (float[4,4] y) <float[4,4] w, int64[1] a = {1}> "
        "{ s = ReduceSum<keepdims=0>(x, a) y = Gemm(x, w, s) }",
        "its bias carries rows along another axis",
    ),
    "LayerNormalization with scales of rows": (
        "(float[4,1,8] x) => (float[4,1,8] y) <float[4,1,8] w> { y = "
        "LayerNormalization<axis=-1>(x, w) }",
        "constant 'w' differs from row to row",
    ),
    "QLinearMatMul with a matrix for each row": (
        "(float[4,2,3] x) => (uint8[4,2,5] y) <float a = {0.1}, uint8 z = {3}, uint8[4,3,5] w> "
        "{ q = QuantizeLinear(x, a, z) y = QLinearMatMul(q, a, z, w, a, z, a, z) }",
        "constant 'w' differs from row to row",
    ),
    "Dropout that trains": (
        "(float[4,3] x) => (float[4,3] y) <float r = {0.5}, bool t = {1}> { y = Dropout(x, r, t) }",
        "drawn for the whole batch",
    ),
    "BatchNormalization with scales of rows": (
        "(float[4,3] x) => (float[3,4] y) <float[4] w> "
        "{ t = Transpose(x) v = Abs(w) y = BatchNormalization(t, w, w, w, v) }",
        "constant 'w' differs from row to row",
    ),
    "Conv with filters of rows": (
        "(float[4,2,6] x) => (float[1,4,6] y) <float[4,2,1] w, int64[3] s = {1, 8, 6}> "
        "{ t = Reshape(x, s) y = Conv<group=4>(t, w) }",
        "constant 'w' differs from row to row",
    ),
    "a scalar cast like rows": (
        "(float[4,3] x) => (float[4,3] y) <float w> { c = CastLike(w, x) y = Add(x, c) }",
        "its result has shape",
    ),
    "Trilu": (
        "(float[4,4] x) => (float[4,4] y) { y = Trilu(x) }",
        "rows lie along its matrices",
    ),
    "DepthToSpace over rows": (
        "(float[4,2,2,2] x) => (float[1,2,4,4] y) <int64[4] s = {1, 8, 2, 2}> "
        "{ t = Reshape(x, s) y = DepthToSpace<blocksize=2>(t) }",
        "come from several rows",
    ),
}


def read(text):
    """Return the model of a text in opset 17. Weights without values get random ones; those called
    "same" have the same for every row."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> rows {text}')
    random = np.random.default_rng(0)
    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        values = random.standard_normal(shape) * 4
        if value.name == "same":
            axis = shape.index(next(size for size in shape if size % BATCH == 0))
            part = values.take(range(shape[axis] // BATCH), axis)
            values = np.tile(part, [BATCH if place == axis else 1 for place in range(len(shape))])
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(np.abs(values).astype(dtype), value.name)
        )
    del model.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def stream_of(value, direction):
    shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    return Stream(f"h_{value.name}", value.name, direction, dtype, shape)


def streams_of(model):
    return (
        *(stream_of(value, Direction.HOST_TO_DEVICE) for value in model.graph.input),
        *(stream_of(value, Direction.DEVICE_TO_HOST) for value in model.graph.output),
    )


def compute(model, x):
    return unoptimised_session(model).run(None, {"x": x})[0]


@pytest.mark.parametrize("name", INDEPENDENT)
def test_parts_of_a_batch_get_the_answers_of_the_whole(name):
    model = read(INDEPENDENT[name])
    graph, streams, dependence = take_rows(model, streams_of(model))
    assert not dependence
    taken, given = streams
    x = np.random.default_rng(1).standard_normal(taken.shape).astype(np.float32)
    whole = compute(model, x)
    for rows in ([0], [3], [1, 2], [3, 0, 2], [0, 1, 2, 3]):
        found = compute(graph, x[rows])
        expected = whole.take(rows, given.batch_axis)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", DEPENDENT)
def test_rows_that_differ_by_place_are_not_proven(name):
    text, reason = DEPENDENT[name]
    with pytest.raises(NotIndependent, match=reason):
        make_row_independent(read(text), BATCH)


def test_nothing_is_proven_of_a_model_that_says_otherwise():
    model = read(INDEPENDENT["a slice from the end"])
    note_dependence(model, "it counts its rows")
    graph, streams, dependence = take_rows(model, streams_of(model))
    assert (graph, streams, dependence) == (model, streams_of(model), "it counts its rows")
