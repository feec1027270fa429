"""Tests of the layout of tensors between convolutions: which are in blocks, and that no bit of an
answer depends on it."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from half_models import HALF_PARTIALS, NAN_ON_OVERFLOW, check_bits, half_model, halves, run
from onnx import TensorProto, helper
from onnxgraph import attribute
from simipu.kernels import find_kernels
from simipu.numerics import KernelUse, lower

pytestmark = pytest.mark.skipif(not find_kernels().are_there, reason=find_kernels().reason)


class Net:
    """Nodes and weights of a network that begins with a field "x"."""

    def __init__(self):
        self.nodes, self.weights = [], {}

    def conv(self, source, result, channels, outputs, kernel=3, group=1, **attributes):
        """Add a convolution with a bias."""
        seed = 2 * len(self.weights)
        weights = halves((outputs, channels // group, kernel, kernel), seed, 0.2)
        self.weights |= {f"{result}/w": weights, f"{result}/b": halves((outputs,), seed + 1)}
        given = {"pads": [kernel // 2] * 4, "group": group} | attributes
        self.add("Conv", [source, f"{result}/w", f"{result}/b"], result, **given)

    def add(self, op_type, inputs, result, **attributes):
        """Add a node."""
        self.nodes.append(helper.make_node(op_type, inputs, [result], **attributes))


def check_layouts(net, blocked, shape=(2, 3, 15, 15), rows=2, numerics=HALF_PARTIALS):
    """Check which convolutions write blocks, and the answer against that in plain layouts. What
    other kernels write is in blocks if convolutions read it as such."""
    model = half_model(net.nodes, {"x": shape}, "y", net.weights)
    x = halves((rows, *shape[1:]), 1)
    lowered = lower(model, numerics, kernels=KernelUse.FUSED)
    convs = [node for node in lowered.graph.node if node.op_type == "Conv"]
    found = {node.output[0] for node in convs if attribute(node, "blocked_result")}
    read = {node.input[0] for node in convs if attribute(node, "blocked_source")}
    assert found == set(blocked)
    chains = {node.output[0] for node in lowered.graph.node if node.op_type == "Chain"}
    assert found | chains >= read
    with patch("simipu.numerics.layout.block_channels"):
        plain = lower(model, numerics, kernels=KernelUse.FUSED)
    check_bits(run(lowered, x), run(plain, x))


@pytest.mark.parametrize("numerics", [HALF_PARTIALS, NAN_ON_OVERFLOW])
def test_fields_between_convolutions_are_in_blocks(numerics):
    net = Net()
    net.conv("x", "a", 3, 32, strides=[2, 2])
    net.add("Relu", ["a"], "a+")
    net.conv("a+", "b", 32, 32, group=32)
    net.add("HardSwish", ["b"], "b+")
    net.conv("b+", "c", 32, 48, kernel=1)
    net.conv("c", "y", 48, 5)
    check_layouts(net, {"a+", "b+", "c"}, numerics=numerics)


def test_both_sides_of_a_residual_sum_are_in_blocks():
    net = Net()
    net.conv("x", "a", 3, 32)
    net.conv("a", "b", 32, 32)
    net.add("Add", ["b", "a"], "s")
    net.conv("s", "c", 32, 32, kernel=1)
    net.add("Add", ["s", "c"], "t")
    net.add("Relu", ["t"], "t+")
    net.conv("t+", "y", 32, 8)
    check_layouts(net, {"a", "s", "t+"})


@pytest.mark.parametrize(
    ("shape", "is_blocked"), [((), True), ((1, 1, 1), True), ((32, 1, 1), False)]
)
def test_steps_between_convolutions_are_in_blocks_unless_they_are_of_channels(shape, is_blocked):
    net = Net()
    net.conv("x", "a", 3, 32)
    net.weights["scale"] = halves(shape, 99)
    net.add("Mul", ["a", "scale"], "m")
    net.add("Sub", ["m", "a"], "r")
    net.conv("m", "b", 32, 32)
    net.add("Add", ["b", "r"], "s")
    net.conv("s", "c", 32, 32)
    net.conv("c", "y", 32, 8)
    check_layouts(net, {"a", "s", "c"} if is_blocked else {"c"})


def test_fields_of_8_bits_are_in_blocks_where_only_convolutions_read_them():
    net = Net()
    net.conv("x", "a", 3, 32)
    net.add("Relu", ["a"], "a+")
    net.add("Cast", ["a+"], "a8", to=TensorProto.FLOAT8E4M3FNUZ)
    net.add("Cast", ["a8"], "a16", to=TensorProto.FLOAT16)
    net.conv("a16", "b", 32, 32)
    net.add("Cast", ["b"], "b8", to=TensorProto.FLOAT8E4M3FNUZ)
    net.add("Cast", ["b8"], "b16", to=TensorProto.FLOAT16)
    net.conv("b16", "c", 32, 8)
    net.add("GlobalMaxPool", ["b16"], "m")
    net.conv("m", "d", 32, 8, kernel=1)
    net.add("Add", ["c", "d"], "y")
    check_layouts(net, {"a8"})


def test_steps_from_or_to_a_plain_field_are_plain():
    net = Net()
    net.conv("x", "a", 3, 32)
    net.add("MaxPool", ["a"], "p", kernel_shape=[3, 3], pads=[1] * 4)
    net.add("Relu", ["p"], "p+")
    net.conv("p+", "b", 32, 32)
    net.add("Relu", ["b"], "b+")
    net.add("Sub", ["b", "b+"], "d")
    net.add("GlobalAveragePool", ["d"], "m")
    net.conv("b+", "c", 32, 32)
    net.add("Mul", ["c", "m"], "s")
    net.conv("s", "y", 32, 8)
    check_layouts(net, {"s"})


def test_a_sum_with_a_field_that_a_pool_reads_is_plain():
    net = Net()
    net.conv("x", "a", 3, 32)
    net.add("MaxPool", ["a"], "p", kernel_shape=[3, 3], pads=[1] * 4)
    net.conv("p", "b", 32, 32)
    net.conv("b", "c", 32, 32)
    net.add("Add", ["c", "p"], "s")
    net.conv("s", "y", 32, 8)
    check_layouts(net, {"b"})


def test_tensors_around_squeeze_and_excite_have_the_plain_layout():
    net = Net()
    net.conv("x", "a", 3, 32)
    net.conv("a", "b", 32, 32, group=32)
    net.add("GlobalAveragePool", ["b"], "m")
    net.conv("m", "n", 32, 32, kernel=1)
    net.add("Sigmoid", ["n"], "g")
    net.add("Mul", ["b", "g"], "s")
    net.conv("s", "c", 32, 32)
    net.conv("c", "y", 32, 8)
    check_layouts(net, {"a", "c"})


def test_a_scale_for_each_row_and_channel_is_a_step_in_blocks():
    net = Net()
    net.conv("x", "a", 3, 32)
    net.add("GlobalAveragePool", ["x"], "m")
    net.conv("m", "g", 3, 32, kernel=1)
    net.conv("a", "b", 32, 32)
    net.add("Mul", ["b", "g"], "s")
    net.conv("s", "y", 32, 8)
    check_layouts(net, {"a", "s"})


def test_an_output_of_the_model_is_plain():
    net = Net()
    net.conv("x", "y", 3, 32)
    net.conv("y", "b", 32, 32)
    net.add("Identity", ["b"], "z")
    model = half_model(net.nodes, {"x": (1, 3, 8, 8)}, "y", net.weights)
    model.graph.output.append(helper.make_tensor_value_info("z", 10, None))
    lowered = lower(model, HALF_PARTIALS, kernels=KernelUse.FUSED)
    convs = [node for node in lowered.graph.node if node.op_type == "Conv"]
    assert len(convs) == 2
    assert not any(attribute(node, "blocked_result") for node in convs)


@pytest.mark.parametrize(("channels", "outputs", "group"), [(24, 32, 1), (32, 32, 2), (16, 32, 16)])
def test_channels_and_groups_that_kernels_do_not_take_in_blocks_are_plain(channels, outputs, group):
    net = Net()
    net.conv("x", "a", 3, channels)
    net.conv("a", "b", channels, outputs, group=group)
    net.conv("b", "y", outputs, 8)
    blocked = {"b"} if group == 1 else set()
    check_layouts(net, blocked)


def test_an_operand_for_each_position_keeps_the_result_plain():
    net = Net()
    net.conv("x", "a", 3, 32)
    net.weights["each"] = halves((15, 15), 99)
    net.add("Add", ["a", "each"], "s")
    net.conv("s", "b", 32, 16)
    net.conv("b", "y", 16, 8)
    check_layouts(net, {"b"})


def test_an_open_number_of_rows_is_in_blocks_and_an_open_size_is_not():
    net = Net()
    net.conv("x", "a", 3, 32)
    net.conv("a", "b", 32, 32)
    net.add("Add", ["b", "a"], "s")
    net.conv("s", "y", 32, 8)
    check_layouts(net, {"a", "s"}, shape=("rows", 3, 6, 6), rows=3)
    net.nodes.pop(2)
    net.nodes[-1].input[0] = "b"
    check_layouts(net, {"a", "b"}, shape=("rows", 3, 6, 6), rows=1)
    model = half_model(net.nodes, {"x": (1, 3, "height", 6)}, "y", net.weights)
    lowered = lower(model, HALF_PARTIALS, kernels=KernelUse.FUSED)
    assert not any(attribute(node, "blocked_result", 0) for node in lowered.graph.node)
    assert run(lowered, np.ones((1, 3, 5, 6), np.float16)).shape == (1, 8, 5, 6)
