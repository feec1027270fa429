"""Tests that convolutions with windows far smaller than their stride read what the standard says.

With `auto_pad` SAME the padding would be negative; ONNX Runtime moves the windows by half of it.
"""

import numpy as np
import onnx
import pytest
from exact_operators.forms import Case, judge
from onnx import TensorProto, helper, numpy_helper


def make_inputs(op_type, weight):
    """Return the inputs of a convolution behind the image, as initializers."""
    if op_type == "Conv":
        return {"w": weight.astype(np.float32)}
    if op_type == "ConvInteger":
        return {"w": weight}
    scale, zero = np.array(1, np.float32), np.array(0, np.int8)
    return {"s": scale, "z": zero, "w": weight, "ws": scale, "wz": zero, "ys": scale, "yz": zero}


@pytest.mark.parametrize("op_type", ["Conv", "ConvInteger", "QLinearConv"])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    ("sizes", "strides"), [((4, 6), (4, 5)), ((7, 8), (4, 3)), ((9, 5), (5, 5)), ((6, 3), (2, 3))]
)
def test_windows_start_at_the_first_element(op_type, auto_pad, sizes, strides):
    draw = np.random.default_rng(0)
    image = draw.integers(-5, 5, (2, 2, *sizes)).astype(np.int8)
    weight = draw.integers(-3, 3, (3, 2, 1, 1)).astype(np.int8)
    element = TensorProto.FLOAT if op_type == "Conv" else TensorProto.INT8
    result = TensorProto.INT32 if op_type == "ConvInteger" else element
    kept = image[:, :, :: strides[0], :: strides[1]].astype(np.int32)
    expected = np.einsum("nchw,oc->nohw", kept, weight[:, :, 0, 0].astype(np.int32))
    inputs = make_inputs(op_type, weight)
    node = helper.make_node(op_type, ["x", *inputs], ["y"], auto_pad=auto_pad, strides=strides)
    graph = helper.make_graph(
        [node],
        "convolution",
        [helper.make_tensor_value_info("x", element, image.shape)],
        [helper.make_tensor_value_info("y", result, expected.shape)],
        [numpy_helper.from_array(value, name) for name, value in inputs.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    x = image.astype(helper.tensor_dtype_to_np_dtype(element))
    outcome = judge(
        Case(
            op_type,
            model,
            {"x": x},
            {"y": expected.astype(helper.tensor_dtype_to_np_dtype(result))},
        )
    )
    assert outcome.word == "equal", outcome.why
