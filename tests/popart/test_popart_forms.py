"""Nodes that no builder writes: they come from files, and are refused by name."""

import numpy as np
import onnx
import popart
import pytest
from onnx import TensorProto, helper
from operator_libraries import build_library, forget_libraries
from popart_models import open_session
from simipu import OperatorLibrary, register_library


def make_model(*nodes: onnx.NodeProto) -> bytes:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph(list(nodes), "g", [value], [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)]).SerializeToString()


REFUSED = {
    "a missing attribute": (
        helper.make_node("Concat", ["x", "x"], ["y"]),
        r"Op\(ai.onnx.Concat:4, inputs=\[x, x\], outputs=\[y\]\): the attribute 'axis' is required",
    ),
    "too many inputs": (
        helper.make_node("Neg", ["x", "x"], ["y"]),
        "expected 1 to 1 inputs, found 2",
    ),
    "an unknown tensor": (helper.make_node("Neg", ["z"], ["y"]), "no tensor 'z' is known"),
    "an unknown operator": (
        helper.make_node("Nonsense", ["x"], ["y"]),
        "^No class for ai.onnx.Nonsense:10",
    ),
    "an unknown operator of its domain": (
        helper.make_node("Nonsense", ["x"], ["y"], domain="ai.graphcore"),
        "^No class for ai.graphcore.Nonsense:1",
    ),
    "a sparse constant": (
        helper.make_node(
            "Constant",
            [],
            ["y"],
            sparse_value=helper.make_sparse_tensor(
                helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0]),
                helper.make_tensor("i", TensorProto.INT64, [1], [0]),
                [3],
            ),
        ),
        "^The Constant op attribute 'sparse_value' is not supported.$",
    ),
    "data whose amount varies": (helper.make_node("NonZero", ["x"], ["y"]), "depends on the data"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_node_that_cannot_be_lowered_is_named(case):
    node, text = REFUSED[case]
    with pytest.raises(popart.popart_exception, match=text):
        open_session(make_model(node), ["y"])


def test_a_registered_body_makes_an_operator_of_a_user():
    from poprt.passes import register_op_body
    from poprt.passes.inlining import custom_operators

    known = dict(custom_operators._BODIES)
    try:

        @register_op_body("Twice", "test.popart")
        def twice(node: onnx.NodeProto, _opset: int) -> list[onnx.NodeProto]:
            return [helper.make_node("Add", [node.input[0]] * 2, [node.output[0]])]

        proto = make_model(helper.make_node("Twice", ["x"], ["y"], domain="test.popart"))
        session = open_session(proto, ["y"])
        assert session.getInfo("y") == popart.TensorInfo("FLOAT", [2, 3])
    finally:
        custom_operators._BODIES.clear()
        custom_operators._BODIES.update(known)


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_operator_of_a_library_of_a_user_computes_in_a_session(replicas, tmp_path):
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [2, 6]))
    (thrice,) = builder.customOp("Thrice", 1, "my.ops", [x], {})
    (pairs,) = builder.customOp("Pairs", 1, "my.ops", [thrice], {})
    y = builder.aiGraphcore.replicatedallreduce([builder.aiOnnx.neg([pairs])])
    options = popart.SessionOptions()
    options.enableReplicatedGraphs, options.replicatedGraphCount = replicas > 1, replicas

    def open_it() -> popart.InferenceSession:
        return popart.InferenceSession(
            builder.getModelProto(),
            popart.DataFlow(1, [y]),
            popart.DeviceManager().createCpuDevice(),
            userOptions=options,
        )

    with pytest.raises(popart.popart_exception, match=r"No class for my\.ops\.Thrice:1.*library"):
        open_it()
    with forget_libraries():
        register_library(OperatorLibrary("my.ops", build_library(tmp_path)))
        session = open_it()
        assert session.getInfo(y).shape() == [2, 3]
        session.prepareDevice()
        anchors = session.initAnchorArrays()
        given = np.random.default_rng(0).standard_normal((replicas, 2, 6)).astype(np.float32)
        session.run(popart.PyStepIO({x: given}, anchors))
    expected = -3 * given.reshape(replicas, 2, 3, 2).sum(-1).sum(0)
    np.testing.assert_allclose(
        anchors[y].reshape(replicas, 2, 3), [expected] * replicas, rtol=1e-5, atol=1e-5
    )
