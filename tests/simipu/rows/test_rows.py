"""Tests of row independence: proofs hold on real numbers, and no proof exists where rows mix."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from oracles import unoptimised_session
from simipu import Direction, Stream
from simipu.engines.computed import ORT_VERSION
from simipu.rows import NotIndependent, make_row_independent, take_rows

BATCH = 4
F, I = TensorProto.FLOAT, TensorProto.INT64  # noqa: E741


def build(nodes, shape, weights, opset=17, batch_axis=0):
    graph = helper.make_graph(
        nodes,
        "rows",
        [helper.make_tensor_value_info("x", F, [*shape[:batch_axis], BATCH, *shape[batch_axis:]])],
        [helper.make_tensor_value_info("y", F, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    model.graph.output[0].CopyFrom(inferred.graph.output[0])
    return model


def node(operator, inputs="x", outputs="y", **attributes):
    names = [name.strip("-") for name in inputs.split()]
    return helper.make_node(
        operator,
        names,
        [name.strip("-") for name in outputs.split()],
        name=f"the_{operator}_{outputs}",
        **attributes,
    )


def run(model, x):
    session = unoptimised_session(model)
    return session.run(None, {"x": x})[0]


def random(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


INDEPENDENT = {
    "elementwise with a broadcast constant": ([node("Add", "x c")], (3, 5), {"c": random(5)}),
    "a constant that repeats its row": (
        [node("Add", "x c")],
        (3,),
        {"c": np.ones((BATCH, 3), np.float32)},
    ),
    "matmul": ([node("MatMul", "x w")], (3, 5), {"w": random(5, 2)}),
    "matmul with rows that lie as columns": (
        [node("Transpose", "x", "t"), node("MatMul", "w t", "p"), node("Transpose", "p")],
        (5,),
        {"w": random(3, 5)},
    ),
    "a vector and rows that lie as columns": (
        [node("Transpose", "x", "t"), node("MatMul", "v t")],
        (5,),
        {"v": random(5)},
    ),
    "batched matmul of two halves": (
        [
            node("Split", "x", "a b", axis=2),
            node("Transpose", "b", "t", perm=[0, 2, 1]),
            node("MatMul", "a t"),
        ],
        (3, 6),
        {},
    ),
    "gemm": ([node("Gemm", "x w c", transB=1)], (5,), {"w": random(2, 5), "c": random(2)}),
    "conv": ([node("Conv", "x w", pads=[1, 1, 1, 1])], (3, 6, 6), {"w": random(4, 3, 3, 3)}),
    "pool and flatten": (
        [node("GlobalAveragePool", "x", "p"), node("Flatten", "p")],
        (3, 6, 6),
        {},
    ),
    "heads split and joined": (
        [
            node("Reshape", "x split", "s"),
            node("Transpose", "s", "t", perm=[0, 2, 1, 3]),
            node("Softmax", "t", "p", axis=-1),
            node("Transpose", "p", "u", perm=[0, 2, 1, 3]),
            node("Reshape", "u join", "y"),
        ],
        (6, 8),
        {"split": np.array([BATCH, 6, 2, 4]), "join": np.array([BATCH, 6, 8])},
    ),
    "rows folded into the next axis and back": (
        [node("Reshape", "x fold", "f"), node("Gemm", "f w", "g"), node("Reshape", "g back", "y")],
        (6, 8),
        {"fold": np.array([-1, 8]), "w": random(8, 3), "back": np.array([BATCH, 6, 3])},
    ),
    "layer norm": ([node("LayerNormalization", "x s b")], (3, 5), {"s": random(5), "b": random(5)}),
    "layer norm of vectors": (
        [node("LayerNormalization", "x s b")],
        (5,),
        {"s": random(5), "b": random(5)},
    ),
    "rows of several parts and a constant for each part": (
        [node("Reshape", "x fold", "f"), node("Add", "f c", "a"), node("Reshape", "a back", "y")],
        (2, 3),
        {
            "fold": np.array([-1, 3]),
            "c": np.tile(random(2, 3), (BATCH, 1)),
            "back": np.array([-1, 2, 3]),
        },
    ),
    "reduction without the axis kept": (
        [node("ReduceMean", "x", axes=[2], keepdims=0)],
        (3, 5),
        {},
    ),
    "slice of columns": (
        [node("Slice", "x from to along")],
        (7,),
        {"from": [1], "to": [5], "along": [1]},
    ),
    "slice of all rows": (
        [node("Slice", "x from to along")],
        (7,),
        {"from": [0, 1], "to": [BATCH, 5], "along": [0, 1]},
    ),
    "gather of columns": ([node("Gather", "x index", axis=1)], (7,), {"index": np.array([2, 0])}),
    "concat of columns": ([node("Relu", "x", "r"), node("Concat", "x r", axis=1)], (3,), {}),
    "expand": (
        [node("Unsqueeze", "x axes", "u"), node("Expand", "u shape")],
        (3,),
        {"axes": [1], "shape": np.array([BATCH, 2, 3])},
    ),
    "tile of columns": ([node("Tile", "x times")], (3,), {"times": np.array([1, 2])}),
    "pad of columns": ([node("Pad", "x pads")], (3,), {"pads": [0, 1, 0, 1]}),
    "resize by scales": (
        [node("Resize", "x - scales", mode="nearest")],
        (2, 3, 3),
        {"scales": np.array([1, 1, 2, 2], np.float32)},
    ),
    "resize to sizes": (
        [node("Resize", "x - - sizes", mode="linear")],
        (2, 3, 3),
        {"sizes": np.array([BATCH, 2, 5, 7])},
    ),
    "lstm over time": (
        [
            node("Transpose", "x", "t", perm=[1, 0, 2]),
            node("LSTM", "t w r", "all", hidden_size=3),
            node("Squeeze", "all axes", "s"),
            node("Transpose", "s", "y", perm=[1, 0, 2]),
        ],
        (5, 2),
        {"w": random(1, 12, 2), "r": random(1, 12, 3), "axes": [1]},
    ),
    **{
        f"{operator} with {what}": (
            [
                node("Transpose", "x", "t", perm=[1, 0, 2]),
                node(
                    operator,
                    f"t w r - lengths h{' c' * (operator == 'LSTM')}",
                    "all",
                    hidden_size=3,
                ),
                node("Squeeze", "all axes", "s"),
                node("Transpose", "s", "y", perm=[1, 0, 2]),
            ],
            (5, 2),
            {
                "w": random(1, 3 * gates, 2),
                "r": random(1, 3 * gates, 3),
                "axes": [1],
                "lengths": np.full(BATCH, 4, np.int32),
                "h": state,
                **({"c": np.zeros((1, BATCH, 3), np.float32)} if operator == "LSTM" else {}),
            },
        )
        for operator, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
        for what, state in (
            ("no state written out as zeros", np.zeros((1, BATCH, 3), np.float32)),
            ("one state for all rows", np.repeat(random(1, 1, 3), BATCH, axis=1)),
        )
    },
    "a class token before the patches": (
        [node("Concat", "token x", axis=1)],
        (5, 3),
        {"token": np.repeat(random(1, 1, 3), BATCH, axis=0)},
    ),
    "a constant that repeats over rows of several elements": (
        [node("Reshape", "x fold", "f"), node("Add", "f c", "a"), node("Reshape", "a back", "y")],
        (6, 2),
        {
            "fold": np.array([-1, 2]),
            "c": np.tile(random(6, 2), (BATCH, 1)),
            "back": np.array([BATCH, 6, 2]),
        },
    ),
    "quantised and back": (
        [node("QuantizeLinear", "x scale zero", "q"), node("DequantizeLinear", "q scale zero")],
        (3, 5),
        {"scale": np.float32(0.1), "zero": np.uint8(128)},
    ),
    "quantised by channel": (
        [
            node("QuantizeLinear", "x scale zero", "q", axis=1),
            node("DequantizeLinear", "q scale zero", axis=1),
        ],
        (3, 5),
        {"scale": np.array([0.1, 0.2, 0.3], np.float32), "zero": np.zeros(3, np.int8)},
    ),
    "einsum of attention scores": ([node("Einsum", "x x", equation="bid,bjd->bij")], (5, 3), {}),
    "einsum with weights": (
        [node("Einsum", "w x", equation="do,bsd->bso")],
        (5, 3),
        {"w": random(3, 2)},
    ),
    "the largest values": ([node("TopK", "x k", "y at", axis=1)], (7,), {"k": np.array([3])}),
    "gathernd with its own row's number": (
        [node("GatherND", "x at")],
        (5, 3),
        {"at": np.stack([np.arange(BATCH), np.full(BATCH, 2)], -1)},
    ),
    "gathernd along a batch dimension": (
        [node("GatherND", "x at", batch_dims=1)],
        (5, 3),
        {"at": np.full((BATCH, 1), 2)},
    ),
    "gathernd of a table": (
        [
            node("Cast", "x", "i", to=TensorProto.INT64),
            node("Mul", "i zero", "z"),
            node("GatherND", "table z"),
        ],
        (2, 1),
        {"table": random(5, 3), "zero": np.array([0])},
    ),
    "gatherelements of the same places": (
        [node("GatherElements", "x at", axis=1)],
        (5,),
        {"at": np.tile([[3, 1]], (BATCH, 1))},
    ),
    "squeezed of all axes of one element": (
        [node("Unsqueeze", "x axes", "u"), node("Squeeze", "u", "y")],
        (3,),
        {"axes": [2]},
    ),
    "squeezed so before opset 13": (
        [node("Unsqueeze", "x", "u", axes=[1]), node("Squeeze", "u", "y")],
        (3,),
        {},
        11,
    ),
    "gathernd of columns behind a batch dimension": (
        [
            node("Transpose", "x", "t", perm=[1, 2, 0]),
            node("GatherND", "t at", "g", batch_dims=1),
            node("Transpose", "g", "y"),
        ],
        (5, 3),
        {"at": np.array([[2], [0], [1], [1], [2]])},
    ),
    **{
        f"attention with {what}": (
            [node("Attention", f"x x x {'mask' * bool(weights)}", q_num_heads=2, kv_num_heads=2)],
            (5, 8),
            weights,
            23,
        )
        for what, weights in (
            ("no mask", {}),
            ("a mask of its own", {"mask": np.triu(np.full((5, 5), -1e4, np.float32), 1)}),
            ("the same mask for each row", {"mask": np.repeat(random(1, 1, 5, 5), BATCH, axis=0)}),
        )
    },
    "rotary embedding by position": (
        [node("RotaryEmbedding", "x cos sin at", num_heads=2)],
        (5, 8),
        {"cos": random(9, 2), "sin": random(9, 2), "at": np.tile(np.arange(5), (BATCH, 1))},
        23,
    ),
    "rotary embedding with tables of every step": (
        [node("RotaryEmbedding", "x cos sin", num_heads=2)],
        (5, 8),
        {
            "cos": np.tile(random(1, 5, 2), (BATCH, 1, 1)),
            "sin": np.tile(random(1, 5, 2), (BATCH, 1, 1)),
        },
        23,
    ),
    "sampled along a grid": (
        [node("GridSample", "x grid")],
        (2, 4, 4),
        {"grid": np.repeat(random(1, 3, 3, 2), BATCH, axis=0)},
    ),
    "triangles": ([node("Trilu", "x")], (3, 3), {}),
    "determinants": ([node("Det", "x")], (3, 3), {}),
    "scatternd of columns": (
        [
            node("Transpose", "x", "t", perm=[1, 0, 2]),
            node("ScatterND", "t at new", "s"),
            node("Transpose", "s", "y", perm=[1, 0, 2]),
        ],
        (5, 3),
        {"at": np.array([[4], [1]]), "new": np.repeat(random(2, 1, 3), BATCH, axis=1)},
    ),
    "scatternd of rows' own values": (
        [
            node("Transpose", "x", "t", perm=[1, 0, 2]),
            node("Slice", "t from to", "s"),
            node("ScatterND", "t at s", "u"),
            node("Transpose", "u", "y", perm=[1, 0, 2]),
        ],
        (5, 3),
        {"at": np.array([[4], [1]]), "from": [0], "to": [2]},
    ),
    "scatter as it was called": (
        [node("Scatter", "x at new", axis=1)],
        (5,),
        {"at": np.tile([[3, 1]], (BATCH, 1)), "new": np.tile(random(1, 2), (BATCH, 1))},
        10,
    ),
    "a grid for each row": (
        [node("AffineGrid", "x size")],
        (2, 3),
        {"size": np.array([BATCH, 1, 3, 5])},
        20,
    ),
    "a deformed convolution": (
        [node("DeformConv", "x w offset", pads=[1, 1, 1, 1])],
        (2, 4, 4),
        {"w": random(3, 2, 3, 3), "offset": np.repeat(random(1, 18, 4, 4), BATCH, axis=0)},
        19,
    ),
    "a fourier transform of columns": (
        [node("Unsqueeze", "x axes", "u"), node("DFT", "u", axis=1)],
        (6,),
        {"axes": [2]},
    ),
    "a fourier transform along the default axis": (
        [node("Unsqueeze", "x axes", "u"), node("DFT", "u")],
        (3, 6),
        {"axes": [3]},
        20,
    ),
    "short fourier transforms": (
        [node("Unsqueeze", "x axes", "u"), node("STFT", "u step - length")],
        (16,),
        {"axes": [2], "step": np.array(4), "length": np.array(8)},
    ),
    "counted terms": (
        [
            node("Cast", "x", "i", to=TensorProto.INT32),
            node(
                "TfIdfVectorizer",
                "i",
                mode="TF",
                min_gram_length=1,
                max_gram_length=1,
                max_skip_count=0,
                ngram_counts=[0],
                ngram_indexes=[0, 1],
                pool_int64s=[0, 1],
            ),
        ],
        (9,),
        {},
    ),
    "an optional that is a tensor": ([node("OptionalGetElement", "x")], (3,), {}, 18),
    "a cache that is written to": (
        [node("TensorScatter", "x new at", axis=1)],
        (5, 3),
        {"new": np.repeat(random(1, 2, 3), BATCH, axis=0), "at": np.full(BATCH, 2)},
        24,
    ),
    "a vector product": ([node("MatMul", "x v")], (3, 5), {"v": random(5)}),
    "gemm with a residual": ([node("Gemm", "x w x")], (5,), {"w": random(5, 5)}),
    "softmax of the last axis before opset 13": ([node("Softmax", "x", axis=2)], (3, 5), {}, 11),
    "means and variances of channels": (
        [node("MeanVarianceNormalization", "x", axes=[2, 3])],
        (2, 3, 3),
        {},
    ),
    "padded along named axes": (
        [node("Pad", "x pads - along")],
        (3, 2),
        {"pads": [1, 0, 1, 2], "along": [1, 2]},
        18,
    ),
}


NEW_OPERATORS = {"a deformed convolution", "a cache that is written to"}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_proven_rows_equal_those_of_the_whole_batch(name):
    if name in NEW_OPERATORS and ORT_VERSION < (1, 25):
        pytest.skip("ONNX Runtime before 1.25 lacks its operator")
    check(build(*INDEPENDENT[name]), (BATCH, *INDEPENDENT[name][1]))


def check(model, shape, axis=0, out=0):
    """Check that any rows of the rewritten graph equal those of the whole batch."""
    rewritten = make_row_independent(model, BATCH, axis)
    onnx.checker.check_model(rewritten)
    x = random(*shape)
    whole = np.moveaxis(run(model, x), out, 0)
    for rows in ([0], [0, 1], [0, 1, 2], range(BATCH), [2], [3, 1]):
        found = np.moveaxis(run(rewritten, x.take(rows, axis)), out, 0)
        np.testing.assert_allclose(found, whole[list(rows)], rtol=1e-5, atol=1e-5)


ALONG_ANOTHER_AXIS = {
    "a product of every step": ([node("MatMul", "x w")], (5, 2), {"w": random(2, 3)}, 1),
    "steps and rows flattened into one axis and back": (
        [
            node("Reshape", "x flat", "f"),
            node("Gemm", "f w", "g"),
            node("Relu", "g", "r"),
            node("Reshape", "r back", "y"),
        ],
        (5, 2),
        {"flat": np.array([-1, 2]), "w": random(2, 3), "back": np.array([5, BATCH, 3])},
        1,
    ),
    "lstm and its last state": (
        [node("LSTM", "x w r", "all last", hidden_size=3), node("Squeeze", "last axes", "y")],
        (5, 2),
        {"w": random(1, 12, 2), "r": random(1, 12, 3), "axes": [0]},
        0,
    ),
    "a scatter among steps": (
        [node("ScatterElements", "x at new", axis=0)],
        (5, 2),
        {"at": np.tile([[[3, 1]]], (1, BATCH, 1)), "new": np.tile(random(1, 1, 2), (1, BATCH, 1))},
        1,
    ),
    "a transposition": ([node("Transpose", "x", "y", perm=[2, 1, 0])], (5, 2), {}, 1),
}


@pytest.mark.parametrize("name", ALONG_ANOTHER_AXIS)
def test_rows_along_another_axis_are_proven_too(name):
    nodes, shape, weights, out = ALONG_ANOTHER_AXIS[name]
    check(build(nodes, shape, weights, batch_axis=1), (shape[0], BATCH, *shape[1:]), 1, out)


DEPENDENT = {
    "a constant that differs from row to row": (
        [node("Add", "x c")],
        (3,),
        {"c": random(BATCH, 3)},
    ),
    "a sum over rows": (
        [node("ReduceSum", "x axes", "s"), node("Add", "x s")],
        (3,),
        {"axes": [0]},
    ),
    "a softmax over rows": ([node("Softmax", "x", axis=0)], (3,), {}),
    "a product of rows with rows": (
        [
            node("Transpose", "x", "t", perm=[1, 0]),
            node("MatMul", "x t", "p"),
            node("MatMul", "p x"),
        ],
        (3,),
        {},
    ),
    "rows picked by number": (
        [node("Gather", "x index", axis=0)],
        (3,),
        {"index": np.array([3, 2, 1, 0])},
    ),
    "rows sliced": (
        [node("Slice", "x from to along", "s"), node("Concat", "s s", axis=0)],
        (3,),
        {"from": [0], "to": [2], "along": [0]},
    ),
    "rows joined": (
        [node("Split", "x", "a b", axis=0), node("Concat", "b a", axis=0)],
        (3,),
        {},
    ),
    "a running sum over rows": ([node("CumSum", "x axis")], (3,), {"axis": np.array(0)}),
    "rows padded": (
        [node("Pad", "x pads", "p"), node("Slice", "p from to along")],
        (3,),
        {"pads": [1, 0, 0, 0], "from": [0], "to": [BATCH], "along": [0]},
    ),
    "sums over rows by a product": (
        [node("MatMul", "w x", "p"), node("MatMul", "x p")],
        (4,),
        {"w": random(4, BATCH)},
    ),
    "sums over rows by a vector": (
        [node("MatMul", "v x", "p"), node("Add", "x p")],
        (4,),
        {"v": random(BATCH)},
    ),
    "rows tiled": (
        [node("Tile", "x times", "t"), node("Slice", "t from to along")],
        (3,),
        {"times": np.array([2, 1]), "from": [0], "to": [BATCH], "along": [0]},
    ),
    "a state that carries rows through a sequence of none": (
        [
            node("Unsqueeze", "x axes", "h"),
            node("RNN", "c w r - - h", "- last", hidden_size=3),
            node("Squeeze", "last axes", "y"),
        ],
        (3,),
        {"c": random(5, BATCH, 2), "w": random(1, 3, 2), "r": random(1, 3, 3), "axes": [0]},
    ),
    **{
        f"rotary embedding with a {own} of each row's own": (
            [node("RotaryEmbedding", "x cos sin", num_heads=2)],
            (5, 8),
            {"cos": random(1, 5, 2).repeat(BATCH, 0), "sin": random(1, 5, 2).repeat(BATCH, 0)}
            | {own: random(BATCH, 5, 2)},
            23,
        )
        for own in ("cos", "sin")
    },
    "a state of each row's own": (
        [
            node("Transpose", "x", "t", perm=[1, 0, 2]),
            node("LSTM", "t w r - - h", "all", hidden_size=3),
            node("Squeeze", "all axes", "s"),
            node("Transpose", "s", "y", perm=[1, 0, 2]),
        ],
        (5, 2),
        {"w": random(1, 12, 2), "r": random(1, 12, 3), "axes": [1], "h": random(1, BATCH, 3)},
    ),
    "attention with a mask of each row's own": (
        [node("Attention", "x x x mask", q_num_heads=2, kv_num_heads=2)],
        (5, 8),
        {"mask": random(BATCH, 1, 5, 5)},
        23,
    ),
    "attention among rows": (
        [
            node("Transpose", "x", "t", perm=[1, 0, 2]),
            node("Attention", "t t t", "a", q_num_heads=2, kv_num_heads=2),
            node("Transpose", "a", "y", perm=[1, 0, 2]),
        ],
        (5, 8),
        {},
        23,
    ),
    "a token of each row's own": (
        [node("Concat", "token x", axis=1)],
        (5, 3),
        {"token": random(BATCH, 1, 3)},
    ),
    "a scale of the whole batch": (
        [node("DynamicQuantizeLinear", "x", "q s z"), node("DequantizeLinear", "q s z")],
        (3,),
        {},
    ),
    "gathernd of other rows": (
        [node("GatherND", "x at")],
        (5, 3),
        {"at": np.stack([np.arange(BATCH)[::-1], np.full(BATCH, 2)], -1)},
    ),
    "gathernd of other places in each row": (
        [node("GatherND", "x at")],
        (5, 3),
        {"at": np.stack([np.arange(BATCH), np.arange(BATCH)], -1)},
    ),
    "an einsum over rows": (
        [node("Einsum", "x x", "s", equation="bd,bd->d"), node("Add", "x s")],
        (3,),
        {},
    ),
    "an einsum of rows with rows": ([node("Einsum", "x x", equation="bd,cd->bc")], (3,), {}),
    "a normalisation in training": (
        [node("BatchNormalization", "x one one one one", "y - -", training_mode=1)],
        (1, 3),
        {"one": np.ones(1, np.float32)},
    ),
    "steps mixed with rows": (
        [node("Reshape", "x shape")],
        (6,),
        {"shape": np.array([3, 8])},
    ),
    "a fourier transform along the rows": (
        [node("Unsqueeze", "x axes", "u"), node("DFT", "u", axis=0)],
        (6,),
        {"axes": [2]},
    ),
    "determinants of rows": (
        [node("Det", "x", "d"), node("Add", "x d")],
        (BATCH,),
        {},
    ),
    "scatternd into rows picked by number": (
        [node("ScatterND", "x at new")],
        (3,),
        {"at": np.array([[2], [0]]), "new": random(2, 3)},
    ),
    "scatternd of other values in each row": (
        [
            node("Transpose", "x", "t", perm=[1, 0]),
            node("ScatterND", "t at new", "s"),
            node("Transpose", "s", "y", perm=[1, 0]),
        ],
        (3,),
        {"at": np.array([[2]]), "new": random(1, BATCH)},
    ),
    "a text along the rows": (
        [
            node("Cast", "x", "i", to=TensorProto.INT32),
            node(
                "TfIdfVectorizer",
                "i",
                "t",
                mode="TF",
                min_gram_length=1,
                max_gram_length=1,
                max_skip_count=0,
                ngram_counts=[0],
                ngram_indexes=[0],
                pool_int64s=[0],
            ),
            node("Add", "x t"),
        ],
        (),
        {},
    ),
    "an operator without a rule": ([node("EyeLike", "x", "e"), node("Add", "x e")], (BATCH,), {}),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_nodes_that_mix_rows_are_not_proven_and_named(name):
    with pytest.raises(NotIndependent, match=r"the_|output"):
        make_row_independent(build(*DEPENDENT[name]), BATCH)


def test_a_state_that_is_an_input_may_have_its_batch_elsewhere():
    """Recurrent networks that are called step by step are exported this way: x [batch, 2], state
    [1, batch, 3]."""
    nodes = [
        node("Unsqueeze", "x zero", "steps"),
        node("RNN", "steps w r - - state", "- next", hidden_size=3),
        node("Squeeze", "next zero", "y"),
    ]
    weights = {"w": random(1, 3, 2), "r": random(1, 3, 3), "zero": np.array([0])}
    graph = helper.make_graph(
        nodes,
        "rows",
        [
            helper.make_tensor_value_info("x", F, [BATCH, 2]),
            helper.make_tensor_value_info("state", F, [1, BATCH, 3]),
        ],
        [
            helper.make_tensor_value_info("y", F, [BATCH, 3]),
            helper.make_tensor_value_info("next", F, [1, BATCH, 3]),
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    streams = tuple(
        Stream(
            value.name,
            value.name,
            direction,
            np.dtype(np.float32),
            tuple(d.dim_value for d in value.type.tensor_type.shape.dim),
        )
        for direction, values in (
            (Direction.HOST_TO_DEVICE, graph.input),
            (Direction.DEVICE_TO_HOST, graph.output),
        )
        for value in values
    )
    rewritten, placed, reason = take_rows(model, streams)
    assert not reason
    assert {stream.tensor: stream.batch_axis for stream in placed} == {
        "x": 0,
        "state": 1,
        "y": 0,
        "next": 1,
    }
    session, whole = (unoptimised_session(each) for each in (rewritten, model))
    feeds = {"x": random(BATCH, 2), "state": random(1, BATCH, 3)}
    expected = whole.run(["y", "next"], feeds)
    y, following = session.run(
        ["y", "next"], {"x": feeds["x"][1:3], "state": feeds["state"][:, 1:3]}
    )
    np.testing.assert_allclose(y, expected[0][1:3], atol=1e-6)
    np.testing.assert_allclose(following, expected[1][:, 1:3], atol=1e-6)


def test_a_batch_of_two_is_not_taken_for_the_parts_of_complex_numbers():
    nodes = [node("Unsqueeze", "x axes", "u"), node("DFT", "u", axis=1)]
    graph = helper.make_graph(
        nodes,
        "rows",
        [helper.make_tensor_value_info("x", F, [5, 2])],
        [helper.make_tensor_value_info("y", F, [1, 5, 2])],
        [numpy_helper.from_array(np.array([0]), "axes")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(NotIndependent, match="it works along the rows"):
        make_row_independent(model, 2, batch_axis=1)
