"""Tests of sizes, counts, axes and indices of a request, beside those of test_ranges.py: each of any
64-bit value gets the answer of numpy, or an error."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from poprt.passes.admission.checks import CheckOperators
from simipu import SimIpuError
from simipu.errors import CompileError
from unchecked_programs import compute, make_program

I64, F = TensorProto.INT64, TensorProto.FLOAT
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def whole(*values):
    return np.array(values, np.int64)


def scalar(value):
    return np.array(value, np.int64)


def top(k):
    return np.sort(X, 1)[:, ::-1][:, :k] if 0 <= k <= X.shape[1] else None


ONE = np.ones((1, 1, 1), np.float32)
IMAGE = X.reshape(1, 1, 2, 3)
BOXES = np.array([[[0, 0, 1, 1], [0, 2, 1, 3], [5, 5, 6, 6]]], np.float32)
SCORES = np.array([[[0.9, 0.8, 0.7]]], np.float32)
SCORED = whole([0, 0, 0], [0, 0, 1], [0, 0, 2])


def take(values):
    """Return a function that takes the element at an index, which may be negative, of values."""
    return lambda v: values[v : v + 1 or None] if -len(values) <= v < len(values) else None


def last(result):
    """Return a function with a result for -1 only."""
    return lambda v: result if v == -1 else None


def put(values, sign):
    """Return a function that puts a value to an index."""

    def compute_put(v):
        result = values.copy()
        result[v] = sign * result[v] + 9
        return result

    return lambda v: compute_put(v) if -len(values) <= v < len(values) else None


CASES = {
    "size of AffineGrid": (
        *("AffineGrid", [np.zeros((1, 2, 3), np.float32), None], lambda v: whole(1, 1, v, 2)),
        *(lambda v: None, 20, {}),
    ),
    "size of HammingWindow": ("HammingWindow", [None], scalar, lambda v: None, 18, {}),
    "size of BlackmanWindow": ("BlackmanWindow", [None], scalar, lambda v: None, 18, {}),
    "shape of CenterCropPad": (
        *("CenterCropPad", [X, None], lambda v: whole(v, 3), lambda v: None, 18, {}),
    ),
    "image of Col2Im": (
        *("Col2Im", [ONE, None, whole(1, 1)], lambda v: whole(v, 1), lambda v: None, 18, {}),
    ),
    "block of Col2Im": (
        *("Col2Im", [ONE, whole(1, 1), None], lambda v: whole(v, 1), lambda v: None, 18, {}),
    ),
    "axis of CumProd": ("CumProd", [X, None], scalar, last(np.cumprod(X, 1)), 26, {}),
    "axis of DFT": ("DFT", [X.reshape(1, 2, 3, 1), "", None], scalar, lambda v: None, 20, {}),
    "index of Gather": ("Gather", [X, None], whole, take(X), 18, {}),
    "index of Gather in opset 11": ("Gather", [X, None], whole, take(X), 11, {}),
    "index of GatherElements": ("GatherElements", [X[:, 0], None], whole, take(X[:, 0]), 18, {}),
    "index of GatherND": ("GatherND", [X, None], lambda v: whole([v]), take(X), 18, {}),
    "index of GatherND in opset 11": (
        *("GatherND", [X, None], lambda v: whole([v]), take(X), 11, {}),
    ),
    "index of MaxUnpool": (
        *("MaxUnpool", [IMAGE[..., :1, :1], None], lambda v: whole([[[v]]])),
        *(lambda v: None, 18, {"kernel_shape": [1, 1]}),
    ),
    "shape of MaxUnpool": (
        *("MaxUnpool", [IMAGE[..., :1, :1], whole([[[0]]]), None], lambda v: whole(1, 1, v, 1)),
        *(lambda v: None, 18, {"kernel_shape": [1, 1]}),
    ),
    "bins of MelWeightMatrix": (
        *("MelWeightMatrix", [None, scalar(8), scalar(8000), np.float32(0), np.float32(4000)]),
        *(scalar, lambda v: None, 18, {}),
    ),
    "length of MelWeightMatrix": (
        *("MelWeightMatrix", [scalar(2), None, scalar(8000), np.float32(0), np.float32(4000)]),
        *(scalar, lambda v: None, 18, {}),
    ),
    "count of NonMaxSuppression": (
        *("NonMaxSuppression", [BOXES, SCORES, None], whole),
        *(lambda v: SCORED[: max(0, v)], 18, {}),
    ),
    "axis of Pad": (
        *("Pad", [X, whole(0, 1), np.float32(0), None], whole),
        *(last(np.pad(X, ((0, 0), (0, 1)))), 18, {}),
    ),
    "image of RoiAlign": (
        *("RoiAlign", [IMAGE, BOXES[0, :1], None], whole, lambda v: None, 18, {}),
    ),
    "position of RotaryEmbedding": (
        *("RotaryEmbedding", [np.ones((1, 1, 1, 4), np.float32), *[X[:, :2]] * 2, None]),
        *(lambda v: whole([v]), lambda v: None, 23, {}),
    ),
    "step of STFT": (
        *("STFT", [ONE.repeat(4, 1), None, np.ones(4, np.float32)], scalar),
        *(lambda v: np.float32([[[[4, 0], [0, 0], [0, 0]]]]) if v > 0 else None, 18, {}),
    ),
    "length of STFT": (
        *("STFT", [ONE.repeat(8, 1), scalar(2), "", None], scalar, lambda v: None, 18, {}),
    ),
    "length of STFT, int32": (
        *("STFT", [ONE.repeat(8, 1), np.int32(2), "", None]),
        *(lambda v: np.int32(max(-(2**31), min(v, 2**31 - 1))), lambda v: None, 18, {}),
    ),
    "index of ScatterElements": (
        *("ScatterElements", [X[:, 0], None, np.float32([9])], whole, put(X[:, 0], 0), 18, {}),
    ),
    "index of ScatterND": (
        *("ScatterND", [X[:, 0], None, np.float32([9])], lambda v: whole([v])),
        *(put(X[:, 0], 1), 18, {"reduction": "add"}),
    ),
    "parts of Split": ("Split", [X, None], lambda v: whole(v, 1), lambda v: None, 18, {}),
    "axis of Squeeze": ("Squeeze", [IMAGE, None], whole, lambda v: None, 18, {}),
    "place of TensorScatter": (
        *("TensorScatter", [np.zeros((1, 1, 3, 2), np.float32), IMAGE[..., :1, :2], None], whole),
        *(lambda v: None, 24, {}),
    ),
    "k of TopK in opset 11": ("TopK", [X, None], whole, top, 11, {}),
    **{
        f"axis of {name}": (name, [X, None], whole, last(reduce(X, 1, keepdims=True)), 18, {})
        for name, reduce in (("ReduceMax", np.max), ("ReduceMin", np.min), ("ReduceMean", np.mean))
    },
}
"""For each input: the operator, its inputs (None: that input), the input with a value, the result
that numpy has or None, the opset, and the attributes."""
FAR = (2**31 - 1, 2**31, 2**33, 2**33 + 1, 2**63 - 1, -1, -(2**30) - 1, -(2**31) + 1, -(2**63))
NO_SIZES = {
    **dict.fromkeys(
        "BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor ConvInteger DequantizeLinear "
        "MatMulInteger QLinearConv QLinearMatMul QuantizeLinear ImageDecoder".split(),
        "values of a type, all of which are valid",
    ),
    **dict.fromkeys("GRU LSTM RNN".split(), "test_a_length_out_of_range_is_an_error"),
    **dict.fromkeys(
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceProd ReduceSumSquare".split(),
        "axes, which all reductions read alike",
    ),
    **dict.fromkeys(
        "SequenceAt SequenceErase SequenceInsert SplitToSequence".split(), "no tensors"
    ),
    **dict.fromkeys(
        "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss".split(), "composed of Gathers"
    ),
    **dict.fromkeys(
        "ConstantOfShape CumSum Expand HannWindow ReduceSum Reshape Resize ReverseSequence "
        "Slice Tile Trilu Unsqueeze".split(),
        "test_ranges.py",
    ),
    "Attention": "rejected: nonpad_kv_seqlen is an unchecked input",
    "Loop": "test_loops.py",
    "Scatter": "the older name of ScatterElements",
    "TfIdfVectorizer": "words, none of which is out of range",
}
"""Operators with inputs of whole numbers that no case has, and why."""


def test_every_operator_whose_input_is_a_whole_number_has_a_case_or_a_reason():
    kinds = {f"tensor({sign}int{bits})" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    floats = {"tensor(float)", "tensor(float16)", "tensor(double)"}
    names = {
        schema.name
        for schema in onnx.defs.get_all_schemas()
        for value in schema.inputs
        if schema.domain == "" and kinds & {*value.types} and not floats & {*value.types}
    }
    cases = {case[0] for case in CASES.values()}
    assert names - cases == NO_SIZES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("case", CASES)
def test_a_size_of_any_value_is_right_or_an_error(case, engine):
    op_type, inputs, make, expect, opset, attributes = CASES[case]
    names = [f"i{i}" * (not isinstance(value, str)) for i, value in enumerate(inputs)]
    node = helper.make_node(
        op_type, names, ["y", "z"][: 1 + (op_type in "Split TopK")], **attributes
    )
    for value in FAR:
        arrays = {
            name: np.asarray(make(value) if array is None else array)
            for name, array in zip(names, inputs, strict=True)
            if name
        }
        number = names[next(i for i, array in enumerate(inputs) if array is None)]
        fixed = {name for name, array in arrays.items() if array.dtype.kind == "i"}
        for constant in (fixed, fixed - {number}):
            feeds = {name: array for name, array in arrays.items() if name not in constant}
            constants = {name: arrays[name] for name in constant}
            kind = I64 if op_type == "NonMaxSuppression" else F
            program = make_program([node], feeds, constants, {"y": kind}, opset)
            try:
                (result,) = compute(program, feeds, ["y"], engine)
            except SimIpuError:
                continue
            expected = expect(value)
            assert expected is not None, f"{value}: expected an error, found {result}"
            np.testing.assert_allclose(result, expected, 1e-6, 1e-6, err_msg=f"{value}")


@pytest.mark.parametrize(("op_type", "name"), [("Softmax", "axis"), ("Hardmax", "axis")])
@pytest.mark.parametrize("value", [2**40, -(2**63), 64])
def test_the_compiler_rejects_attributes_as_the_backend_does(op_type, name, value):
    node = helper.make_node(op_type, ["x"], ["y"], **{name: value})
    tensors = [helper.make_tensor_value_info(tensor, F, [2, 3]) for tensor in "xy"]
    graph = helper.make_graph([node], "graph", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(CompileError, match=f"attribute '{name}': expected .* found {value}"):
        CheckOperators().run(model)
