"""Models of one node, and the cost model's estimates for them."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto, helper
from poprt.pipeline import estimate
from simipu.chip.target import TARGETS, Target
from simipu.cost import CostOptions

C600 = TARGETS["ipu21"]


def one_node(
    op_type: str, shapes: list[list[int]], element: int = TensorProto.FLOAT16, **attributes: Any
) -> onnx.ModelProto:
    """Return a model of one node named `node` with inputs of those shapes, and with inferred
    shapes."""
    inputs = [
        helper.make_tensor_value_info(f"x{i}", element, shape) for i, shape in enumerate(shapes)
    ]
    node = helper.make_node(
        op_type, [value.name for value in inputs], ["y"], name="node", **attributes
    )
    graph = helper.make_graph([node], "graph", inputs, [onnx.ValueInfoProto(name="y")])
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    )


def cycles(model: onnx.ModelProto, target: Target = C600, **options: Any) -> int:
    """Return the modelled cycles of a run."""
    return estimate(model, target, CostOptions(**options)).cycles
