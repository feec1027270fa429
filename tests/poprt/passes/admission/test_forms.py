"""Tests that reject an invalid node at once, by name: passes decompose nodes that are valid."""

import pytest
from onnx import TensorProto, helper
from poprt import Converter
from poprt.passes.admission.ipu_operators import CHIP_FORMS
from sample_models import make_model
from simipu import CompileError
from simipu.operators import CHIP_OPERATORS, IPU_COPY

SHAPE = (TensorProto.FLOAT, [2, 8])
CHIP = {"domain": "ai.graphcore"}
WRONG = [
    ("Add", ["x"], ["y"], {}, "expected 2 inputs, found 1"),
    ("Add", ["x"] * 3, ["y"], {}, "expected 2 inputs, found 3"),
    ("Sub", ["x", ""], ["y"], {}, "its input 1 may not be left out"),
    ("Sqrt", ["x"], [], {}, "expected 1 outputs, found 0"),
    ("Concat", [], ["y"], {"axis": 0}, "expected 1 or more inputs, found 0"),
    ("LayerNormalization", ["x"], ["y"], {}, "expected 2 to 3 inputs, found 1"),
    ("Transpose", ["x"], ["y"], {"perm": "ab"}, "'perm' has to be of type ints, found string"),
    ("Cast", ["x"], ["y"], {}, "it lacks the attribute 'to'"),
    ("GroupNormalization", ["x"], ["y"], {**CHIP, "num_groups": 1}, "expected 3 inputs, found 1"),
    ("GroupNormalization", ["x"] * 3, ["y"], CHIP, "it lacks the attribute 'num_groups'"),
    (
        "FastNorm",
        ["x"] * 3,
        ["y"],
        {**CHIP, "epsilon": 1},
        "'epsilon' has to be of type float, found int",
    ),
    ("HCSR", ["x"], ["y"], CHIP, "it lacks the attribute 'shape'"),
]


@pytest.mark.parametrize(("op_type", "inputs", "outputs", "attributes", "fault"), WRONG)
def test_a_node_that_does_not_match_its_operator_is_rejected(
    op_type, inputs, outputs, attributes, fault
):
    nodes = [
        helper.make_node("Relu", ["x"], ["y" if not outputs else "z"]),
        helper.make_node(op_type, inputs, outputs, name="culprit", **attributes),
    ]
    with pytest.raises(CompileError, match=f"node 'culprit' \\({op_type}\\): .*{fault}"):
        Converter().convert(make_model(nodes, {"x": SHAPE}, {"y": SHAPE}, {}))


def test_an_operator_of_a_later_opset_is_refused():
    node = helper.make_node("LayerNormalization", ["x", "x"], ["y"], name="culprit")
    model = make_model([node], {"x": SHAPE}, {"y": SHAPE}, {}, opset=11)
    with pytest.raises(
        CompileError, match="'culprit': operator LayerNormalization is there from opset 17 on"
    ):
        Converter().convert(model)


def test_an_unknown_operator_is_rejected_with_the_known_ones():
    node = helper.make_node("Levitate", ["x"], ["y"], name="culprit", domain="ai.graphcore")
    with pytest.raises(CompileError, match=r"ai.graphcore.Levitate is not supported .*FastNorm"):
        Converter().convert(make_model([node], {"x": SHAPE}, {"y": SHAPE}, {}))


def test_every_operator_of_the_chip_has_a_form():
    assert set(CHIP_FORMS) == {*CHIP_OPERATORS, IPU_COPY}
