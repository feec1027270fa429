"""Captured graphs as PopTorch logs them at the level TRACE: an operator a line."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import onnx
import torch
from onnx import helper
from onnxgraph import CHIP_DOMAIN

from popef._tools.logs import TRACE
from poptorch._logging import logger

_KINDS: Final = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "int32": "Int",
    "int16": "Short",
    "int8": "Char",
    "uint8": "Byte",
    "bool": "Bool",
}
"""TorchScript's names of types."""
_MAX_TEXT: Final = 60
"""Characters of an attribute; longer ones are lists of numbers."""


def log_program(title: str, program: Any) -> None:
    """Log a program of torch.export.

    Args:
        title: Line above it.
        program: The program.
    """
    if logger.isEnabledFor(TRACE):
        calls = [node for node in program.graph.nodes if node.op == "call_function"]
        inputs = ", ".join(f"%{node.name}" for node in program.graph.nodes if node.op == _INPUT)
        _log(title, inputs, (describe_call(node) for node in calls))


_INPUT: Final = "placeholder"


def log_graph(title: str, graph: onnx.GraphProto, operators: Iterable[onnx.NodeProto]) -> None:
    """Log the operators of an ONNX graph as PopART's.

    Args:
        title: Line above it.
        graph: The graph.
        operators: Its nodes without constants.
    """
    if logger.isEnabledFor(TRACE):
        inputs = ", ".join(f"%{value.name}" for value in graph.input)
        _log(title, inputs, (_describe_node(node) for node in operators))


def log_weights(graph: onnx.GraphProto, inputs: Collection[str], trained: Collection[str]) -> None:
    """Log the module's tensors with their types.

    Args:
        graph: The graph.
        inputs: Its inputs that stand for arguments of a call; the others are buffers.
        trained: Parameters that require a gradient.
    """
    if not logger.isEnabledFor(TRACE):
        return
    descriptions = {
        tensor.name: _describe_type(tensor.data_type, tensor.dims, tensor.name in trained)
        for tensor in graph.initializer
    }
    for value in graph.input:
        if value.name not in inputs:
            kind = value.type.tensor_type
            shape = [size.dim_value for size in kind.shape.dim]
            descriptions[value.name] = _describe_type(kind.elem_type, shape)
    for index, (name, text) in enumerate(descriptions.items()):
        logger.log(TRACE, "%%%d : %s -> %s", index, text, name)


def _describe_type(elem_type: int, shape: Sequence[int], is_trained: bool = False) -> str:
    """Return the type of a dense tensor in TorchScript's form."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    kind = helper.tensor_dtype_to_np_dtype(elem_type).name
    dims = "".join(f"{size}, " for size in shape)
    gradient = f"requires_grad={int(is_trained)}"
    return f"{_KINDS.get(kind, kind)}({dims}strides={strides}, {gradient}, device=ipu:0)"


def _log(title: str, inputs: str, lines: Iterable[str]) -> None:
    text = "".join(f"  {line}\n" for line in lines)
    logger.log(TRACE, "%s\ngraph(%s):\n%s", title, inputs, text)


def describe_call(node: Any) -> str:
    """Return the line of an operator of torch.

    Args:
        node: Its node in a program of torch.export.
    """
    values = node.meta.get("val")
    values = values if isinstance(values, (tuple, list)) else [values]
    kinds = ", ".join(_describe_value(value) for value in values)
    schema = getattr(node.target, "_schema", None)
    name = schema.name if schema is not None else getattr(node.target, "__name__", node.target)
    arguments = [*node.args, *(f"{key}={keyword}" for key, keyword in node.kwargs.items())]
    inputs = ", ".join(
        f"%{argument.name}" if isinstance(argument, torch.fx.Node) else str(argument)
        for argument in arguments
    )
    return f"%{node.name} : {kinds} = {name}({inputs})"


def _describe_value(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{name_type(value.dtype)}({', '.join(map(str, value.shape))})"


def name_type(dtype: torch.dtype) -> str:
    """Return TorchScript's name of a type."""
    kind = str(dtype).removeprefix("torch.")
    return _KINDS.get(kind, kind)


def _describe_node(node: onnx.NodeProto) -> str:
    results = ", ".join(f"%{name}" for name in node.output if name)
    inputs = ", ".join(f"%{name}" for name in node.input if name)
    attributes_shown = [entry for entry in node.attribute if entry.type not in (_GRAPH, _TENSOR)]
    attributes = ", ".join(
        f"{one.name}={_describe_attribute(helper.get_attribute_value(one))}"
        for one in attributes_shown
    )
    domain = node.domain if node.domain not in ("", CHIP_DOMAIN) else "popart"
    return f"{results} = {domain}::{node.op_type.lower()}[{attributes}]({inputs})"


def _describe_attribute(value: Any) -> str:
    return (value.decode() if isinstance(value, bytes) else str(value))[:_MAX_TEXT]


_GRAPH: Final = onnx.AttributeProto.GRAPH
_TENSOR: Final = onnx.AttributeProto.TENSOR
