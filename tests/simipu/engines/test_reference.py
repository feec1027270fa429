"""Tests of graphs for which ONNX Runtime lacks a kernel. The onnx reference implementation computes
only the operator in question, and no operator that it is known to compute wrongly or whose
attributes it ignores."""

import ast
import functools
import inspect
import textwrap
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, defs, helper
from onnx.reference.op_run import OpFunction, OpRun
from onnx.reference.ops import load_op
from oracles import unoptimised_session
from sample_models import make_model
from simipu import LoadError, RunError
from simipu.engines.computed import Lowered
from simipu.engines.reference import ReferenceGraph
from simipu.operators import OPERATORS

F, D, U32, I64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.UINT32, TensorProto.INT64
OLDEST = 7
HARMLESS = {
    ("Constant", "value_float"),
    ("Constant", "value_floats"),
    ("Constant", "value_int"),
    ("Constant", "value_ints"),
    ("Constant", "value_string"),
    ("Constant", "value_strings"),
    ("LinearAttention", "chunk_size"),
    ("SequenceEmpty", "dtype"),
    ("TopK", "sorted"),
}
"""Attributes that are read under another name, or do not influence answers: unsorted results may be
sorted."""


@functools.cache
def names_in(cls):
    """Return the names and attributes that a class reads."""
    nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(cls)))))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def names_of(cls):
    """Return the names that the classes of an operator read."""
    return set().union(*(names_in(each) for each in cls.__mro__ if each not in OpRun.__mro__))


def find_ignored():
    ignored = set()
    for schema in defs.get_all_schemas_with_history():
        if schema.domain or schema.since_version < OLDEST or schema.deprecated:
            continue
        try:
            found = load_op("", schema.name, schema.since_version)
        except Exception:  # noqa: BLE001  it has none, and raises what it likes
            continue
        if inspect.isclass(found) and not issubclass(found, OpFunction):
            ignored |= {(schema.name, name) for name in set(schema.attributes) - names_of(found)}
    return ignored


@pytest.mark.skipif(
    tuple(map(int, onnx.__version__.split(".")[:2])) < (1, 17), reason="an older reference"
)
def test_the_attributes_that_the_reference_ignores_are_listed():
    listed = {
        (op_type, name)
        for op_type, operator in OPERATORS.items()
        for name in operator.ignored_by_reference
    }
    assert find_ignored() <= listed | HARMLESS


def compute(model, feeds):
    names = [value.name for value in model.graph.output]
    return ReferenceGraph(Lowered(model.SerializeToString(), {})).run(names, feeds)


X = np.random.default_rng(0).integers(-9, 9, (2, 3, 3)).astype(np.float32)
NO_KERNEL = [
    helper.make_node("Abs", ["x"], ["positive"]),
    helper.make_node("Cast", ["positive"], ["natural"], to=U32),
    helper.make_node("ReduceSum", ["natural"], ["sum"]),
    helper.make_node("Cast", ["sum"], ["total"], to=F),
]
"""Nodes with a ReduceSum of uint32, for which ONNX Runtime has no kernel."""


@pytest.mark.parametrize(
    ("op_type", "opset", "attributes"),
    [
        ("Softmax", 11, {"axis": 1}),
        ("LogSoftmax", 12, {"axis": 0}),
        ("Hardmax", 11, {"axis": 1}),
        ("LpNormalization", 17, {"p": 1, "axis": 1}),
        ("GlobalMaxPool", 17, {}),
        ("MaxPool", 17, {"kernel_shape": [2], "pads": [1, 0], "ceil_mode": 1, "strides": [2]}),
    ],
)
def test_an_operator_with_a_kernel_answers_as_in_onnxruntime(op_type, opset, attributes):
    node = helper.make_node(op_type, ["x"], ["y"], **attributes)
    rest = ["whole"], {"x": (F, X.shape)}, {"y": (F, ["a", "b", "c"]), "total": (F, (1, 1, 1))}
    model = make_model([node, *NO_KERNEL], *rest[1:], {}, opset)
    alone = make_model([node], *rest[1:2], {"y": (F, ["a", "b", "c"])}, {}, opset)
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        unoptimised_session(model)
    found, total = compute(model, {"x": X})
    np.testing.assert_array_equal(found, unoptimised_session(alone).run(None, {"x": X})[0])
    np.testing.assert_array_equal(total, [[[np.abs(X).sum()]]])


def test_an_input_that_is_left_out_stays_so():
    weights = {
        "w": np.ones((1, 2, 3), np.float32),
        "r": np.ones((1, 2, 2), np.float32),
        "h": np.ones((1, 3, 2), np.float32),
    }
    nodes = [
        helper.make_node(
            "RNN", ["x", "w", "r", "", "", "h"], ["", "last"], hidden_size=2, clip=0.5
        ),
        helper.make_node("RNN", ["x", "w", "r", "", "", "last"], ["y"], hidden_size=2),
    ]
    shapes = {"x": (F, X.shape)}, {"y": (F, [2, 1, 3, 2])}
    expected = unoptimised_session(make_model(nodes, *shapes, weights)).run(None, {"x": X})[0]
    found = compute(make_model([*nodes, *NO_KERNEL], *shapes, weights), {"x": X})[0]
    np.testing.assert_array_equal(found, expected)


def test_an_operator_that_the_reference_computes_wrongly_is_refused():
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], name="culprit")
    model = make_model(
        [node], {"x": (D, (1, 1, 2)), "w": (D, (1, 1, 1))}, {"y": (D, (1, 1, 2))}, {}
    )
    feeds = {"x": np.ones((1, 1, 2)), "w": np.ones((1, 1, 1))}
    with pytest.raises(
        RunError, match=r"node 'culprit'.*no kernel for ConvTranspose.* computes it wrongly"
    ):
        compute(model, feeds)


def test_an_attribute_that_the_reference_ignores_is_refused(monkeypatch):
    ignoring = replace(OPERATORS["ReduceSum"], ignored_by_reference=("keepdims",))
    monkeypatch.setattr("simipu.engines.reference.find_operator", lambda _op_type: ignoring)
    node = helper.make_node("ReduceSum", ["x"], ["y"], name="culprit", keepdims=0)
    model = make_model([node], {"x": (U32, (2,))}, {"y": (U32, ())}, {})
    with pytest.raises(RunError, match=r"node 'culprit'.*ignores its attribute 'keepdims'"):
        compute(model, {"x": np.ones(2, np.uint32)})


def test_a_loop_beside_an_operator_without_a_kernel_is_refused():
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["more"]), helper.make_node("Neg", ["s"], ["t"])],
        "body",
        [
            helper.make_tensor_value_info("i", I64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", F, X.shape),
        ],
        [
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
            helper.make_tensor_value_info("t", F, X.shape),
        ],
    )
    loop = helper.make_node("Loop", ["trips", "", "x"], ["y"], name="loop", body=body)
    shapes = {"x": (F, X.shape)}, {"y": (F, X.shape), "total": (F, (1, 1, 1))}
    model = make_model([loop, *NO_KERNEL], *shapes, {"trips": np.array(2)})
    assert OPERATORS["Loop"].wrong_in_reference
    with pytest.raises(LoadError, match=r"node 'loop'.* the onnx reference computes Loop wrongly"):
        compute(model, {"x": X})


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("GlobalLpPool", [(1, 2, 3)], {"p": 1}),
        ("MaxRoiPool", [(1, 2, 4, 4), (1, 5)], {"pooled_shape": [2, 2]}),
        ("RoiAlign", [(1, 2, 4, 4), (1, 4), (1,)], {"output_height": 2, "output_width": 2}),
    ],
)
def test_an_operator_of_opset_22_without_a_kernel_answers_as_in_opset_21(
    op_type, inputs, attributes
):
    names = [f"i{place}" for place in range(len(inputs))]
    types = [F, F, I64]
    shapes = {name: (types[place], inputs[place]) for place, name in enumerate(names)}
    node = helper.make_node(op_type, names, ["y"], **attributes)
    rank = len(inputs[0])
    old, new = (
        make_model([node], shapes, {"y": (F, ["?"] * rank)}, {}, opset) for opset in (21, 22)
    )
    feeds = {"i0": np.arange(np.prod(inputs[0]), dtype=np.float32).reshape(inputs[0]) - 4}
    if len(inputs) > 1:
        feeds["i1"] = np.array([[0, 1, 1, 3, 3][-inputs[1][1] :]], np.float32)
    if len(inputs) > 2:
        feeds["i2"] = np.zeros(1, np.int64)
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        unoptimised_session(new)
    np.testing.assert_array_equal(
        compute(new, feeds)[0], unoptimised_session(old).run(None, feeds)[0]
    )
