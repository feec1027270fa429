"""Translation of a graph, node by node, by the rules of its operators."""

from __future__ import annotations

import onnx
from onnx import defs, numpy_helper
from onnxgraph import CHIP_DOMAIN, Results, attribute
from simipu import is_library_domain
from simipu.chip.placement import IPU_ATTRIBUTE, STAGE_ATTRIBUTE
from simipu.operators import CHIP_OPERATORS

from popart.errors import popart_exception, popart_internal_exception, poplar_exception
from popart.lowering.graph import OPSET, Graph, RejectedNodeError, Tensor
from popart.lowering.operation import RULES, Operation, Rule, keep

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
        results = _apply_safely(operation)
        tensors = [results] if isinstance(results, str) else results
        for name, tensor in zip(node.output, tensors, strict=False):
            if name and isinstance(tensor, Tensor):
                graph.bind(name, tensor)
        graph.forget_fresh()


def _place(node: onnx.NodeProto, graph: Graph) -> None:
    """Let what is added next be where the node is, and be named after its first output; a body is
    where its node is."""
    graph.prefix = next(filter(None, node.output), node.op_type)
    places = {key: attribute(node, key) for key in _PLACES}
    graph.placement = {key: place for key, place in places.items() if place is not None}


def _check_form(operation: Operation) -> None:
    """Raise popart_exception for a node of the standard without what its operator requires."""
    node = operation.node
    if operation.domain or not defs.has(node.op_type, operation.opset):
        return
    schema = defs.get_schema(node.op_type, operation.opset)
    present = {entry.name for entry in node.attribute}
    required = [name for name, entry in schema.attributes.items() if entry.required]
    for name in required if node.op_type != "Constant" else ():  # its rule names the form
        if name not in present:
            raise popart_exception(
                f"{operation.describe()}: the attribute '{name}' is required, and is missing"
            )
    if not schema.min_input <= len(node.input) <= schema.max_input:
        raise popart_exception(
            f"{operation.describe()}: expected {schema.min_input} to {schema.max_input} inputs, "
            f"found {len(node.input)}"
        )


def _apply_safely(operation: Operation) -> Results:
    """Return the outputs of a node. What a rule does not expect of a model is PopART's error, too:
    scripts catch no others."""
    try:
        return _find_rule(operation)(operation.op, operation)
    except (popart_exception, poplar_exception):
        raise
    except RejectedNodeError as error:
        raise popart_exception(f"{operation.describe()}: {error}") from error
    except Exception as error:
        raise popart_internal_exception(
            f"{operation.describe()}: {type(error).__name__}: {error}; this is a defect of the "
            "lowering, which should have said what is wrong with the node"
        ) from error


def _find_rule(operation: Operation) -> Rule:
    """Return the rule of a node; what is the same in the newer opset is kept."""
    domain, op_type = operation.domain, operation.node.op_type
    own_rule = RULES.get((domain, op_type))
    if own_rule is not None:
        return own_rule
    is_chip = domain == CHIP_DOMAIN and op_type in CHIP_OPERATORS
    is_standard = not domain and defs.has(op_type, OPSET)
    if not (is_chip or is_standard or is_library_domain(domain)):
        raise popart_exception(
            f"No class for {operation.identifier}: PopART has no such operator. A body registered "
            "with poprt.passes.register_op_body makes one, and so does an ONNX Runtime "
            "custom-operator library given to simipu.register_library"
        )
    return keep
