"""Tests that operators which the table says keep elements do, by ONNX's reference."""

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from simipu.operators import OPERATORS

OPSET = 13
INPUTS = ("shape", "axes")
FORMS = {
    "Flatten": [{"axis": 0}, {"axis": 2}],
    "Identity": [{}],
    "Reshape": [{"shape": [2, -1]}],
    "Squeeze": [{"axes": [0]}, {"axes": [-3]}],
    "Transpose": [{}, {"perm": [2, 0, 1]}],
    "Unsqueeze": [{"axes": [0, 2]}],
}
ORDERED = {name for name, entry in OPERATORS.items() if entry.keeps_order}
KEEPING = {name for name, entry in OPERATORS.items() if entry.keeps_elements}


def test_the_operators_are_those_with_a_case():
    assert set(FORMS) == KEEPING
    assert {"Transpose"} == KEEPING - ORDERED


@pytest.mark.parametrize(("op_type", "attributes"), [(n, a) for n in FORMS for a in FORMS[n]])
def test_each_element_is_kept_once(op_type, attributes):
    more = {name: np.array(attributes[name]) for name in INPUTS if name in attributes}
    others = {name: value for name, value in attributes.items() if name not in INPUTS}
    source = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    node = helper.make_node(op_type, ["x", *more], ["y"], **others)
    (result,) = ReferenceEvaluator(node, opsets={"": OPSET}).run(None, {"x": source, **more})
    elements = result.ravel() if op_type in ORDERED else np.sort(result, None)
    np.testing.assert_array_equal(elements, source.ravel())
