"""Tests of operators that the IPU's own compiler lacks: one warning at compile time names the first
node, and an option rejects them."""

import logging

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from oracles import unoptimised_session
from poprt import Compiler, CompilerOptions, Converter
from poprt.cli import main
from poprt.passes.admission import ipu_operators
from sample_models import make_model
from simipu import CompileError
from simipu.numerics.lowering import lower

F, U8, I64 = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT64
SCALE = {"scale": np.float32(0.5), "zero": np.uint8(3)}
INDICES = {"at": np.array([[0, 1], [1, 2]])}
SMALL = (F, [2, 4])

LACKED = {
    "DynamicQuantizeLinear": (["x"], {"y": (U8, [2, 4]), "s": (F, []), "z": (U8, [])}, {}),
    "MatMulInteger": (
        ["x", "w"],
        {"y": (TensorProto.INT32, [2, 3])},
        {"w": np.ones((4, 3), np.uint8)},
    ),
    "QuantizeLinear": (["x", "scale", "zero"], {"y": (U8, [2, 4])}, SCALE),
    "DequantizeLinear": (["x", "scale", "zero"], {"y": SMALL}, SCALE),
    "GatherND": (["x", "at"], {"y": (F, [2])}, INDICES),
    "ScatterND": (["x", "at", "new"], {"y": SMALL}, {**INDICES, "new": np.zeros(2, np.float32)}),
}
"""Inputs, outputs and weights of each operator of the issue."""


def model_of(operator: str) -> onnx.ModelProto:
    inputs, outputs, weights = LACKED[operator]
    kind = U8 if operator in ("MatMulInteger", "DequantizeLinear") else F
    node = helper.make_node(operator, inputs, list(outputs), name="culprit")
    return make_model([node], {"x": (kind, [2, 4])}, outputs, weights)


def warnings_of(caplog, model: onnx.ModelProto, **options) -> list[str]:
    """Compile the model and return the compiler's warnings about ipu_operators."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "poprt"):
        Compiler.compile(model, None, CompilerOptions(**options))
    return [
        record.getMessage() for record in caplog.records if "runs here only" in record.getMessage()
    ]


@pytest.mark.parametrize("operator", LACKED)
def test_each_operator_that_the_chips_compiler_lacks_is_warned_of_once(operator, caplog):
    converted = Converter().convert(model_of(operator))
    expected = f"runs here only; the IPU's compiler has no {operator} (node 'culprit')"
    assert warnings_of(caplog, converted) == [expected]
    with pytest.raises(
        CompileError, match=f"has no {operator} .node 'culprit'.*only_ipu_operators"
    ):
        Compiler.compile(converted, None, CompilerOptions(only_ipu_operators=True))


@pytest.mark.parametrize(
    "op_type", "BatchNormalization CumSum Gather GatherElements OneHot TopK".split()
)
def test_operators_for_which_the_real_tool_has_a_workaround_are_its_own(op_type):
    """The workarounds are batchnorm_, cumsum_, indices_, onehot_ and topk_workaround."""
    assert ipu_operators.is_implemented(op_type)


def test_the_command_refuses_them_on_demand(tmp_path, capsys):
    onnx.save(model_of("GatherND"), tmp_path / "m.onnx")
    arguments = [
        "--input_model",
        str(tmp_path / "m.onnx"),
        "--export_popef",
        "--output_dir",
        str(tmp_path),
    ]
    assert main([*arguments, "--only_ipu_operators"]) == 1
    assert (
        "poprt: error: the IPU's compiler has no GatherND (node 'culprit')"
        in capsys.readouterr().err
    )
    assert main(arguments) == 0


def spec_of(name, shape=None):
    return helper.make_tensor_value_info(name, F, shape)


def test_one_warning_counts_them_all_those_in_bodies_too():
    """Range and NonZero have static shapes only in a body, where no size of an inner value is
    needed."""
    body = helper.make_graph(
        [
            helper.make_node("Xor", ["yes", "yes"], ["no"], name="inner"),
            helper.make_node("NonZero", ["no"], ["where"], name="find"),
            helper.make_node("Range", ["zero", "count", "one"], ["numbers"], name="count_up"),
            helper.make_node("Abs", ["x"], ["r"], name="fine"),
        ],
        "b",
        [],
        [
            spec_of("r", [2, 4]),
            helper.make_tensor_value_info("where", I64, None),
            helper.make_tensor_value_info("numbers", I64, None),
        ],
    )
    other = onnx.GraphProto()
    other.CopyFrom(body)
    nodes = [
        helper.make_node("Hardmax", ["x"], ["a"], name="first"),
        helper.make_node(
            "If", ["yes"], ["y", "p", "q"], name="choose", then_branch=body, else_branch=other
        ),
        helper.make_node("Hardmax", ["a"], ["z"], name="second"),
    ]
    inputs = {"x": SMALL, "yes": (TensorProto.BOOL, []), "count": (I64, [])}
    graph = make_model(
        nodes, inputs, {"y": SMALL, "z": SMALL}, {"zero": np.int64(0), "one": np.int64(1)}
    ).graph
    assert ipu_operators.describe_missing(graph) == (
        "Hardmax (node 'first' and 1 more), Xor (node 'inner' and 1 more), NonZero (node 'find' "
        "and 1 more), Range (node 'count_up' and 1 more)"
    )


def test_nothing_is_said_of_what_is_folded_away(caplog):
    nodes = [
        helper.make_node("Range", ["start", "stop", "step"], ["numbers"]),
        helper.make_node("GatherND", ["table", "at"], ["picked"]),
        helper.make_node("Add", ["x", "numbers"], ["sum"]),
        helper.make_node("Mul", ["sum", "picked"], ["y"]),
    ]
    table = np.arange(8, dtype=np.float32).reshape(2, 4)
    weights = {
        "start": np.float32(0),
        "stop": np.float32(4),
        "step": np.float32(1),
        "table": table,
        "at": np.array([[1]]),
    }
    converted = Converter().convert(make_model(nodes, {"x": SMALL}, {"y": SMALL}, weights))
    assert warnings_of(caplog, converted, only_ipu_operators=True) == []


def convolution_net() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "one", "zero", "zero", "one"], ["b"]),
        helper.make_node("HardSwish", ["b"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Gemm", ["f", "v"], ["g"]),
        helper.make_node("Softmax", ["g"], ["y"]),
    ]
    weights = {
        "w": np.ones((4, 3, 3, 3), np.float32),
        "one": np.ones(4, np.float32),
        "zero": np.zeros(4, np.float32),
    }
    weights["v"] = np.ones((4, 5), np.float32)
    return make_model(nodes, {"x": (F, ["n", 3, 8, 8])}, {"y": (F, ["n", 5])}, weights)


def attention_net() -> onnx.ModelProto:
    """Return an embedding, layer normalisation, a mask, one head, Gelu and an int64 input, as BERT
    has them."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("LayerNormalization", ["e", "gain"], ["n"]),
        helper.make_node("Transpose", ["n"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["n", "t"], ["scores"]),
        helper.make_node("GreaterOrEqual", ["scores", "least"], ["seen"]),
        helper.make_node("Where", ["seen", "scores", "least"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["p"]),
        helper.make_node("MatMul", ["p", "n"], ["mixed"]),
        helper.make_node("Einsum", ["mixed", "w"], ["wide"], equation="bij,jk->bik"),
        helper.make_node("Erf", ["wide"], ["erf"]),
        helper.make_node("Mul", ["wide", "erf"], ["y"]),
    ]
    weights = {
        "table": np.ones((9, 4), np.float32),
        "gain": np.ones(4, np.float32),
        "least": np.float32(-9),
    }
    weights["w"] = np.ones((4, 8), np.float32)
    return make_model(nodes, {"ids": (I64, ["n", 3])}, {"y": (F, ["n", 3, 8])}, weights)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp8"])
@pytest.mark.parametrize("make", [convolution_net, attention_net])
def test_plain_networks_are_not_warned_of(make, precision, caplog):
    converted = Converter(batch_size=2, precision=precision).convert(make())
    assert warnings_of(caplog, converted, only_ipu_operators=True) == []


def test_partly_implemented_operators_count_as_missing():
    known = {
        schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain
    }
    assert known >= set(ipu_operators.PARTLY)
    assert not any(ipu_operators.is_implemented(name) for name in ipu_operators.PARTLY)


@pytest.mark.slow
def test_an_operator_that_onnx_runtime_takes_apart_is_folded_after_that():
    node = helper.make_node("CenterCropPad", ["x", "sizes"], ["y"], axes=[2, 3])
    borders = {"x": (F, ["n", 4, 3, 3])}, {"y": (F, ["n", 4, 2, 5])}
    model = make_model([node], *borders, {"sizes": np.int64([2, 5])}, opset=18)
    converted = Converter(batch_size=2).convert(model)
    assert {"Shape", "CenterCropPad"}.isdisjoint(node.op_type for node in converted.graph.node)


def test_an_operator_of_the_chip_stays_whole_where_another_is_taken_apart():
    nodes = [
        helper.make_node("GroupNormalization", ["x", "scale", "bias"], ["n"], num_groups=1),
        helper.make_node("CenterCropPad", ["c", "size"], ["p"], axes=[0]),
        helper.make_node("Add", ["n", "p"], ["y"]),
    ]
    weights = {
        "scale": np.float32([1, 2]),
        "bias": np.float32([3, 4]),
        "c": np.float32([[1, 2], [3, 4], [5, 6]]),
        "size": np.int64([2]),
    }
    model = make_model(nodes, {"x": (F, [1, 2, 2])}, {"y": (F, [1, 2, 2])}, weights, opset=21)
    converted = Converter().convert(model)
    assert [node.op_type for node in converted.graph.node] == ["GroupNormalization", "Add"]
    feeds = {"x": np.float32([[[1, 2], [3, 5]]])}
    (expected,), (found,) = (
        unoptimised_session(each).run(None, feeds) for each in (model, lower(converted, None))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_operators_of_onnx_runtime_come_with_the_advice_to_take_the_model_before_them():
    node = helper.make_node("FusedMatMul", ["x", "x"], ["y"], domain="com.microsoft")
    model = make_model(
        [node], {"x": (TensorProto.FLOAT, [2, 2])}, {"y": (TensorProto.FLOAT, [2, 2])}, {}
    )
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(CompileError, match="compile the model from which they made this one"):
        Converter().convert(model)
