"""Translation of a graph, node by node, by the rules of its operators."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import defs, numpy_helper
from onnxgraph import CHIP_DOMAIN, attribute
from simipu import is_library_domain
from simipu.chip.placement import IPU_ATTRIBUTE, STAGE_ATTRIBUTE
from simipu.operators import CHIP_OPERATORS

from popart.errors import popart_exception, popart_internal_exception, poplar_exception
from popart.lowering.graph import OPSET, Graph, Tensor
from popart.lowering.operation import RULES, Operation

_PLACES = (IPU_ATTRIBUTE, STAGE_ATTRIBUTE)


def translate_nodes(proto: onnx.GraphProto, graph: Graph, opset: int, settings: object) -> None:
    """Add the nodes of a given graph to `graph`.

    Raises:
        popart_exception: For all that PopART refuses.
    """
    for weight in proto.initializer:
        graph.tensors[weight.name] = graph.constant(numpy_helper.to_array(weight))
    for node in proto.node:
        _place(node, graph)
        operation = Operation(node, graph, opset, settings)
        _check_form(operation)
        made = _apply_safely(operation)
        for name, tensor in zip(node.output, made, strict=False):
            if name and tensor is not None:
                graph.bind(name, tensor)
        graph.forget_fresh()


def _place(node: onnx.NodeProto, graph: Graph) -> None:
    """Let what is added next be where the node is; a body is where its node is."""
    found = {key: attribute(node, key) for key in _PLACES}
    graph.placement = {key: value for key, value in found.items() if value is not None}


def _check_form(operation: Operation) -> None:
    """Raise popart_exception for a node of the standard without what its operator requires."""
    node = operation.node
    if operation.domain or not defs.has(node.op_type, operation.opset):
        return
    schema = defs.get_schema(node.op_type, operation.opset)
    given = {entry.name for entry in node.attribute}
    required = [name for name, each in schema.attributes.items() if each.required]
    for name in required if node.op_type != "Constant" else ():  # its rule names the form
        if name not in given:
            raise popart_exception(
                f"{operation.describe()}: the attribute '{name}' is required, and is missing"
            )
    if not schema.min_input <= len(node.input) <= schema.max_input:
        raise popart_exception(
            f"{operation.describe()}: expected {schema.min_input} to {schema.max_input} inputs, "
            f"found {len(node.input)}"
        )


def _apply_safely(operation: Operation) -> Sequence[Tensor | None]:
    """Return the outputs of a node. What a rule does not expect of a model is PopART's error, too:
    scripts catch no others."""
    try:
        return _apply(operation)
    except (popart_exception, poplar_exception):
        raise
    except Exception as error:
        raise popart_internal_exception(
            f"{operation.describe()}: {type(error).__name__}: {error}; this is a defect of the "
            "lowering, which should have said what is wrong with the node"
        ) from error


def _apply(operation: Operation) -> Sequence[Tensor | None]:
    key = (operation.domain, operation.node.op_type)
    found = RULES.get(key)
    if found is not None:
        return found(operation)
    is_chip = operation.domain == CHIP_DOMAIN and operation.node.op_type in CHIP_OPERATORS
    if is_chip or is_library_domain(operation.domain):
        return _keep(operation)
    if operation.domain or not defs.has(operation.node.op_type, OPSET):
        raise popart_exception(
            f"No class for {operation.identifier}: PopART has no such operator. A body registered "
            "with poprt.passes.register_op_body makes one, and so does an ONNX Runtime "
            "custom-operator library given to simipu.register_library"
        )
    return _keep(operation)


def _keep(operation: Operation) -> Sequence[Tensor]:
    """Add the node as it is; its form has not changed since."""
    node = operation.node
    kept = {
        entry.name: onnx.helper.get_attribute_value(entry)
        for entry in node.attribute
        if not entry.name.startswith("__")
    }
    return operation.add_all(
        node.op_type,
        *operation.inputs,
        outputs=[bool(name) for name in node.output],
        domain=operation.domain,
        **kept,
    )
