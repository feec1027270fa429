"""Models of one operator of the chip's own compiler, and their answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxgraph import CHIP_DOMAIN, infer_shapes
from simipu.numerics import Numerics
from simipu.numerics.lowering import lower


def build(
    op_type: str,
    inputs: Mapping[str, Any],
    weights: Any = (),
    outputs: Sequence[str] = ("y",),
    opset: int = 13,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one operator; inputs and weights are arrays by name."""
    given = {name: np.asarray(value) for name, value in inputs.items()}
    held = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in dict(weights).items()
    ]
    names = [*given, *dict(weights)]
    node = helper.make_node(op_type, names, outputs, name="it", domain=CHIP_DOMAIN, **attributes)
    values = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in given.items()
    ]
    graph = helper.make_graph([node], "chip", values, [], held)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(CHIP_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    known = {info.name: info for info in infer_shapes(model).graph.value_info}
    model.graph.output.extend(known[name] for name in outputs)
    return model


def run(model: onnx.ModelProto, numerics: Numerics | None = None, **feeds: Any) -> Any:
    """Run the model as it is served: with ONNX Runtime and its optimisers."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    lowered = lower(model, numerics).SerializeToString()
    session = onnxruntime.InferenceSession(lowered, options, ["CPUExecutionProvider"])
    return session.run(None, feeds)
