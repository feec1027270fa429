"""Row independence: what is proven is true on real numbers, and what mixes rows is never proven."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from simipu.rows import NotIndependent, make_row_independent

BATCH = 4
F, I = TensorProto.FLOAT, TensorProto.INT64  # noqa: E741


def build(nodes, shape, weights, opset=17):
    graph = helper.make_graph(
        nodes,
        "rows",
        [helper.make_tensor_value_info("x", F, [BATCH, *shape])],
        [helper.make_tensor_value_info("y", F, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    model.graph.output[0].CopyFrom(inferred.graph.output[0])
    return model


def node(operator, inputs="x", outputs="y", **attributes):
    return helper.make_node(operator, inputs.split(), outputs.split(), name=f"the_{operator}_{outputs}", **attributes)


def run(model, x):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def random(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


INDEPENDENT = {
    "elementwise with a broadcast constant": ([node("Add", "x c")], (3, 5), {"c": random(5)}),
    "a constant that repeats its row": ([node("Add", "x c")], (3,), {"c": np.ones((BATCH, 3), np.float32)}),
    "matmul": ([node("MatMul", "x w")], (3, 5), {"w": random(5, 2)}),
    "batched matmul of two halves": (
        [node("Split", "x", "a b", axis=2), node("Transpose", "b", "t", perm=[0, 2, 1]), node("MatMul", "a t")],
        (3, 6),
        {},
    ),
    "gemm": ([node("Gemm", "x w c", transB=1)], (5,), {"w": random(2, 5), "c": random(2)}),
    "conv": ([node("Conv", "x w", pads=[1, 1, 1, 1])], (3, 6, 6), {"w": random(4, 3, 3, 3)}),
    "pool and flatten": ([node("GlobalAveragePool", "x", "p"), node("Flatten", "p")], (3, 6, 6), {}),
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
    "reduction without the axis kept": ([node("ReduceMean", "x", axes=[2], keepdims=0)], (3, 5), {}),
    "slice of columns": ([node("Slice", "x from to along")], (7,), {"from": [1], "to": [5], "along": [1]}),
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
    "pad of columns": ([node("Pad", "x pads")], (3,), {"pads": [0, 1, 0, 1]}),
    "resize by scales": (
        [node("Resize", "x  scales", mode="nearest")],
        (2, 3, 3),
        {"scales": np.array([1, 1, 2, 2], np.float32)},
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
}
for case in INDEPENDENT.values():
    if case[0][0].op_type == "Resize":
        case[0][0].input[:] = ["x", "", "scales"]


@pytest.mark.parametrize("name", INDEPENDENT)
def test_proven_rows_equal_those_of_the_whole_batch(name):
    model = build(*INDEPENDENT[name])
    rewritten = make_row_independent(model, BATCH)
    onnx.checker.check_model(rewritten)
    x = random(BATCH, *INDEPENDENT[name][1])
    whole = run(model, x)
    for rows in (1, 2, 3, BATCH):
        np.testing.assert_allclose(run(rewritten, x[:rows]), whole[:rows], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(run(rewritten, x[2:3]), whole[2:3], rtol=1e-6, atol=1e-6)


DEPENDENT = {
    "a constant that differs from row to row": ([node("Add", "x c")], (3,), {"c": random(BATCH, 3)}),
    "a sum over rows": ([node("ReduceSum", "x axes", "s"), node("Add", "x s")], (3,), {"axes": [0]}),
    "a softmax over rows": ([node("Softmax", "x", axis=0)], (3,), {}),
    "a product of rows with rows": (
        [node("Transpose", "x", "t", perm=[1, 0]), node("MatMul", "x t", "p"), node("MatMul", "p x")],
        (3,),
        {},
    ),
    "rows picked by number": ([node("Gather", "x index", axis=0)], (3,), {"index": np.array([3, 2, 1, 0])}),
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
    "a transposition that hides the rows": (
        [node("Transpose", "x", "t", perm=[1, 0]), node("Reshape", "t shape")],
        (BATCH,),
        {"shape": np.array([BATCH, BATCH])},
    ),
    "a running sum over rows": ([node("CumSum", "x axis")], (3,), {"axis": np.array(0)}),
    "rows padded": (
        [node("Pad", "x pads", "p"), node("Slice", "p from to along")],
        (3,),
        {"pads": [1, 0, 0, 0], "from": [0], "to": [BATCH], "along": [0]},
    ),
    "an operator without a rule": ([node("EyeLike", "x", "e"), node("Add", "x e")], (BATCH,), {}),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_what_mixes_rows_is_not_proven_and_named(name):
    with pytest.raises(NotIndependent, match=r"the_|output"):
        make_row_independent(build(*DEPENDENT[name]), BATCH)
