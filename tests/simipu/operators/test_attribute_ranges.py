"""Attributes that end ONNX Runtime's process are refused when a graph is loaded."""

import pytest
from onnx import helper
from simipu.operators.ranges import find_attribute_fault


@pytest.mark.parametrize("like", ["", "Like"])
@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_normal_distribution_has_a_spread(like, scale):
    node = helper.make_node(f"RandomNormal{like}", ["x"] * bool(like), ["y"], scale=scale)
    assert find_attribute_fault(node).startswith("attribute 'scale': expected a positive number")


@pytest.mark.parametrize("ends", [{"low": 2.0}, {"high": -1.0}, {"low": float("nan")}])
def test_the_ends_of_a_uniform_distribution_are_in_order(ends):
    node = helper.make_node("RandomUniform", [], ["y"], shape=[2], **ends)
    assert find_attribute_fault(node).startswith(
        "attributes 'low' and 'high': expected low <= high"
    )


@pytest.mark.parametrize(
    ("kind", "named"),
    [("RandomNormal", {"scale": 0.5}), ("RandomUniform", {"low": 1.0}), ("RandomUniform", {})],
)
def test_proper_distributions_pass(kind, named):
    assert not find_attribute_fault(helper.make_node(kind, [], ["y"], shape=[2], **named))
