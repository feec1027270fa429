"""Tests of fields that once were tables of their readers, where the tables disagreed."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from simipu.operators import OPERATORS, Family, Moves, find_operator, names_where

MOVERS = names_where(lambda entry: entry.moves is not None and entry.tensors_only)


def dropout(*inputs):
    return helper.make_node("Dropout", ["x", *inputs], ["y"])


@pytest.mark.parametrize(
    ("node", "draws"),
    [
        (dropout(), False),
        (dropout("ratio"), False),
        (dropout("ratio", ""), False),
        (dropout("ratio", "training"), True),
        (helper.make_node("RandomNormalLike", ["x"], ["y"]), True),
        (helper.make_node("Bernoulli", ["x"], ["y"]), True),
        (helper.make_node("Identity", ["x"], ["y"]), False),
    ],
)
def test_a_dropout_draws_only_with_the_input_that_switches_training_on(node, draws):
    operator = OPERATORS[node.op_type]
    assert operator.draws(node) is draws
    assert not (draws and operator.moves_of(node))


def test_what_keeps_order_or_elements_never_draws():
    assert not names_where(lambda entry: entry.keeps_order and entry.draws_if is not None)
    assert names_where(lambda entry: entry.keeps_elements) >= {"Identity", "Reshape", "Transpose"}
    assert "Dropout" not in names_where(lambda entry: entry.keeps_elements)


X, SQUARE = {"x": (2, 3)}, {"x": (1, 3, 4)}
FORMS = [
    ("Concat", {"x": (2, 3), "z": (2, 3)}, {"axis": 0}, {}),
    ("DepthToSpace", {"x": (1, 4, 2, 2)}, {"blocksize": 2}, {}),
    ("DepthToSpace", {"x": (1, 4, 2, 2)}, {"blocksize": 2, "mode": "CRD"}, {}),
    ("Dropout", X, {}, {}),
    ("Expand", X, {}, {"to": [2, 2, 3]}),
    ("Flatten", SQUARE, {"axis": 0}, {}),
    ("Flatten", SQUARE, {"axis": 2}, {}),
    ("Gather", X, {}, {"at": [1, 1]}),
    ("GatherElements", X, {}, {"at": [[1, 0, 1]]}),
    ("GatherND", X, {}, {"at": [[1], [1]]}),
    ("Identity", X, {}, {}),
    ("MaxUnpool", {"x": (1, 1, 1, 1)}, {"kernel_shape": [2, 2]}, {"at": [[[[2]]]]}),
    ("Pad", X, {}, {"pads": [0, 1, 1, 0]}),
    ("Reshape", SQUARE, {}, {"to": [2, -1]}),
    ("ReverseSequence", X, {}, {"lengths": [1, 2, 1]}),
    ("Slice", X, {}, {"starts": [1], "ends": [2]}),
    ("SpaceToDepth", {"x": (1, 1, 2, 2)}, {"blocksize": 2}, {}),
    ("Split", X, {"num_outputs": 1}, {}),
    ("Squeeze", SQUARE, {}, {"axes": [0]}),
    ("Squeeze", SQUARE, {}, {"axes": [-3]}),
    ("Tile", X, {}, {"times": [2, 1]}),
    ("Transpose", SQUARE, {}, {}),
    ("Transpose", SQUARE, {"perm": [2, 0, 1]}, {}),
    ("Trilu", X, {}, {}),
    ("Unsqueeze", SQUARE, {}, {"axes": [0, 2]}),
]


def test_every_operator_that_moves_elements_has_a_form():
    assert {op_type for op_type, *_ in FORMS} == MOVERS - {"IpuCopy"}


@pytest.mark.parametrize(("op_type", "shapes", "attributes", "constants"), FORMS)
def test_an_operator_moves_elements_as_its_entry_says(op_type, shapes, attributes, constants):
    node = helper.make_node(op_type, [*shapes, *constants], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, each)
            for name, each in shapes.items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            helper.make_tensor(name, TensorProto.INT64, np.shape(values), np.ravel(values))
            for name, values in constants.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds, start = {}, 1
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        feeds[name] = np.arange(start, start + size, dtype=np.float32).reshape(shape)
        start += size
    (result,) = session.run(None, feeds)
    x = feeds["x"]
    read = {element for value in feeds.values() for element in value.ravel().tolist()}
    match OPERATORS[op_type].moves:
        case Moves.COPIED:
            assert np.array_equal(result, x)
        case Moves.SQUEEZED:
            assert np.array_equal(result.squeeze(), x.squeeze())
        case Moves.RESHAPED:
            assert np.array_equal(result.ravel(), x.ravel())
        case Moves.PERMUTED:
            assert sorted(result.ravel()) == sorted(x.ravel())
        case Moves.REPEATED:
            assert {*result.ravel().tolist()} == read
        case Moves.JOINED:
            assert sorted(result.ravel().tolist()) == sorted(read)
        case _:
            assert {*result.ravel().tolist()} <= read | {0.0}


@pytest.mark.parametrize("name", ["SoftmaxV2", "SoftmaxV3"])
def test_the_chips_softmaxes_are_softmaxes(name):
    entry = find_operator(name, "ai.graphcore")
    assert entry.family is Family.SOFTMAX
    assert entry.stands_for == "Softmax"
