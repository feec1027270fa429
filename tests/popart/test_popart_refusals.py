"""What a session refuses of a graph, in PopART's words, and the types and shapes that it knows."""

import numpy as np
import onnx
import popart
import poprt
import pytest
from onnx import TensorProto, helper
from popart_models import build, open_session
from simipu import CompileError

F = np.float32
X = np.zeros((2, 3, 4), F)


def onnx_op(name, *args, **kwargs):
    return lambda b, names: getattr(b.aiOnnx, name)(names, *args, **kwargs)


def own(name, *args, **kwargs):
    return lambda b, names: getattr(b.aiGraphcore, name)(names, *args, **kwargs)


def with_constants(name, *values, **kwargs):
    return lambda b, names: getattr(b.aiOnnx, name)(
        [*names, *(b.aiOnnx.constant(np.asarray(value)) for value in values)], **kwargs
    )


REFUSED = {
    "contracting sizes": (
        onnx_op("matmul"),
        [np.zeros((3, 4), F), np.zeros((3, 4), F)],
        r"^Op\(ai.onnx.MatMul:9, inputs=\[input, input/1\], outputs=\[MatMul:0\]\) contracting "
        r"dimensions unequal: lhs 'input' \[3 4\], rhs 'input/1' \[3 4\]$",
    ),
    "a scalar in a product": (
        onnx_op("matmul"),
        [np.zeros((), F), np.zeros((3, 4), F)],
        "doesn't support scalar tensor input as the lhs input$",
    ),
    "two types": (
        onnx_op("add"),
        [np.zeros((2, 2), np.float16), np.zeros((2, 2), F)],
        r"incompatible types FLOAT16 and FLOAT \(shapes \[2 2\] and \[2 2\]\)$",
    ),
    "shapes that do not broadcast": (
        onnx_op("add"),
        [np.zeros((10, 10), F), np.zeros((10, 5), F)],
        r"frames \[10, 10\] and \[10, 5\] are not aligned$",
    ),
    "an axis of a reduction": (
        onnx_op("reducesum", [5]),
        [X],
        r"^Axis 5 is out of acceptable range \[-3, 2\]$",
    ),
    "a permutation of another rank": (
        onnx_op("transpose", [1, 0]),
        [X],
        r"^Rank of permutation tensor \[1 0\], rank 2 must be equal to rank of input tensor, "
        r"shape \[2 3 4\], rank 3\.$",
    ),
    "two unknown sizes": (
        with_constants("reshape", [-1, -1]),
        [X],
        "can only use -1 to specify one unknown dimension",
    ),
    "a reshape of another size": (
        with_constants("reshape", [5, 5]),
        [X],
        r"Trying to reshape from \[2 3 4\] to \[5 5\]",
    ),
    "negative repeats": (
        with_constants("tile", [1, -1, 1]),
        [X],
        "Values must be non-negative in each shape dimension",
    ),
    "repeats at run time": (
        onnx_op("tile"),
        [X, np.zeros(3, np.int64)],
        r"^The 'Repeats' Tensor `input/1' must be of type Constant$",
    ),
    "starts at run time": (
        onnx_op("slice"),
        [X, np.zeros(1, np.int64), np.ones(1, np.int64)],
        r"^Need the value of the ai.onnx.Slice:10 input 'starts'",
    ),
    "dilations of a pooling": (
        onnx_op("maxpool", 1, [2], dilations=[2]),
        [X],
        r"^MaxPool has dilations \[2\]",
    ),
    "counted padding": (
        onnx_op("averagepool", [2], count_include_pad=1),
        [X],
        "^`count_include_pad` is not supported$",
    ),
    "a seed of its own": (
        lambda b, _: b.aiOnnx.randomnormal([2], seed=3.0),
        [],
        "Optional seed attribute is not supported. Use session::setRandomSeed instead.",
    ),
    "a direction of an RNN": (
        onnx_op("rnn", 2, direction="reverse"),
        [np.zeros((3, 2, 4), F), np.zeros((1, 5, 4), F), np.zeros((1, 5, 5), F)],
        "only supports `forward' direction$",
    ),
    "labels of another shape": (
        own("nllloss"),
        [np.zeros((2, 4, 3), F), np.zeros((2, 5), np.int32)],
        r"^The label tensor \(INT32   \[2 5\]\) must have shape \[2 4\]",
    ),
    "an axis that is reversed twice": (
        own("reverse", [1, 1]),
        [X],
        "^Dimension 1 appears multiple times",
    ),
    "an axis of a scatter": (
        own("scatterreduce", 3, 4),
        [X, np.zeros((2, 3, 4), np.int32)],
        r"axis = 4 is outside the acceptable range \[-3, 2\]$",
    ),
    "a type that the chip has not": (
        onnx_op("cast", "DOUBLE"),
        [X],
        "^The data type DOUBLE is not supported in Poplar$",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_session_refuses_a_graph_when_it_is_made(case):
    make, inputs, text = REFUSED[case]
    proto, names = build(make, inputs)
    with pytest.raises(popart.popart_exception, match=text):
        open_session(proto, names)


def test_an_unknown_size_needs_an_input_shape_info():
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 2])
    node = helper.make_node("Neg", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [value], [helper.make_value_info("y", onnx.TypeProto())])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)])
    with pytest.raises(popart.popart_exception, match=r"as it has shape \[rows, 2\], which uses"):
        open_session(model.SerializeToString(), ["y"])
    info = popart.InputShapeInfo()
    info.add("x", popart.TensorInfo("FLOAT", [3, 2]))
    session = popart.InferenceSession(
        model.SerializeToString(),
        popart.DataFlow(1, ["y"]),
        popart.DeviceManager().createCpuDevice(),
        inputShapeInfo=info,
    )
    assert session.getInfo("y") == popart.TensorInfo("FLOAT", [3, 2])


def test_an_opset_that_popart_does_not_know_is_refused_with_advice():
    node = helper.make_node("Neg", ["x"], ["y"])
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    graph = helper.make_graph([node], "g", [value], [helper.make_value_info("y", onnx.TypeProto())])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(popart.popart_exception, match=r"version 17.*poprt converts"):
        open_session(model.SerializeToString(), ["y"])


def test_indices_are_int32_and_wide_integers_stay_wide_at_the_host():
    def make(b, names):
        values, places = b.aiOnnx.topk([names[0], b.aiOnnx.constant(np.array([2]))])
        return [values, places, b.aiOnnx.add([names[1], names[1]])]

    proto, (values, places, total) = build(make, [X, np.zeros(3, np.int64)])
    session = open_session(proto, [values, places, total])
    assert session.getInfo(places) == popart.TensorInfo("INT32", [2, 3, 2])
    assert session.getInfo(total) == popart.TensorInfo("INT64", [3])
    session.prepareDevice()
    arrays = session.initAnchorArrays()
    feeds = {"input": X, "input/1": np.array([1, -2, 3])}
    session.run(popart.PyStepIO(feeds, arrays))
    np.testing.assert_array_equal(arrays[total], [2, -4, 6])


def test_inputs_that_nothing_reads_need_not_be_fed():
    proto, names = build(lambda b, names: b.aiOnnx.neg([names[0]]), [X, X])
    session = open_session(proto, names)
    session.prepareDevice()
    arrays = session.initAnchorArrays()
    session.run(popart.PyStepIO({"input": X + 1}, arrays))
    np.testing.assert_array_equal(arrays[names[0]], -X - 1)


@pytest.mark.parametrize("constant", [True, False])
def test_inputs_weights_and_inner_tensors_can_be_anchors(constant):
    weight = np.arange(4, dtype=F)

    def make(b, names):
        inner = b.aiOnnx.mul([names[0], b.addInitializedInputTensor(weight)])
        b.aiOnnx.neg([inner])
        return ["input", "init_input", inner]

    proto, names = build(make, [X])
    session = open_session(proto, names, constantWeights=constant)
    session.prepareDevice()
    session.weightsFromHost()
    arrays = session.initAnchorArrays()
    session.run(popart.PyStepIO({"input": X + 2}, arrays))
    np.testing.assert_array_equal(arrays["input"], X + 2)
    np.testing.assert_array_equal(arrays["init_input"], weight)
    np.testing.assert_array_equal(arrays[names[2]], (X + 2) * weight)


@pytest.mark.parametrize("name", [b"Neg", b"input"])
def test_a_name_that_is_not_utf_8_is_refused_by_sessions_and_by_poprt(name, tmp_path):
    proto, names = build(lambda b, names: b.aiOnnx.neg([names[0]]), [X])
    damaged = proto.replace(name, name[:-2] + b"\xe9" + name[-1:])
    with pytest.raises(popart.popart_exception, match="is not UTF-8"):
        open_session(damaged, names)
    (tmp_path / "m.onnx").write_bytes(damaged)
    with pytest.raises(CompileError, match="is not UTF-8"):
        poprt.compiler.Compiler.compile(tmp_path / "m.onnx")
