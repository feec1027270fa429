"""Handlers of tf2onnx for operators that it does not know."""

from __future__ import annotations

import json
from typing import Any


def custom_handlers() -> dict[str, Any]:
    """Return the handlers by the name of TensorFlow's operator, as tf2onnx takes them."""
    return {"PyFunc": (_convert_marker, [])}


def _convert_marker(context: Any, node: Any, _name: str, _args: Any) -> None:
    """Replace a marker node by the ONNX node that it stands for."""
    facts = json.loads(node.get_attr("_ipu_facts").s)
    outputs, inputs = list(node.output), list(node.input)
    shapes = [context.get_shape(name) for name in outputs]
    dtypes = [context.get_dtype(name) for name in outputs]
    context.remove_node(node.name)
    context.make_node(
        facts["name"],
        inputs,
        outputs=outputs,
        shapes=shapes,
        dtypes=dtypes,
        domain=facts["domain"],
        attr=facts["attributes"],
        name=node.name,
    )
