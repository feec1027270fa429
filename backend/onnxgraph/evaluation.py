"""Computation of single nodes by ONNX's own definitions in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper


def evaluate_node(
    node: onnx.NodeProto,
    feeds: Mapping[str, npt.NDArray[Any]],
    opset_imports: Sequence[onnx.OperatorSetIdProto],
) -> list[Any]:
    """Return the results of a node, without those that have no name.

    Args:
        node: The node.
        feeds: Values of its inputs, and of what its bodies read, by name.
        opset_imports: Opsets of its model.

    Raises:
        Exception: Whatever ONNX's evaluator raises for a node that it cannot compute.
    """
    # Imported here: it takes 0.1 s, and few graphs have nodes that are computed here.
    from onnx.reference import ReferenceEvaluator

    inputs, outputs = (
        [onnx.ValueInfoProto(name=name) for name in names if name] for names in (feeds, node.output)
    )
    graph = helper.make_graph([node], "node", inputs, outputs)
    model = helper.make_model(graph, opset_imports=opset_imports)
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, dict(feeds)))
