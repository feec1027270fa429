"""Marker nodes: operators of the IPU in TensorFlow's graphs.

Stock TensorFlow has no such operators, so each one is a node of PyFunc whose attributes say what it
is. The conversion replaces it. TensorFlow's CPU never computes it: without a capture an operator is
compiled and run on the IPU alone, and other markers are an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.python.eager import context
from tensorflow.python.ops import script_ops

KIND: Final = "_ipu_marker"
"""Attribute with the kind of a marker: one of the constants below."""
OPERATOR, DEQUEUE, ENQUEUE, CHECK = "operator", "dequeue", "enqueue", "check"
STEP: Final = "step"
"""Something that the host does between segments: see `host_steps`."""
MULTI_CONV_OPTIONS: Final = "MultiConvOptions"
"""Operator that returns its input, and says which options of Poplar its maker was given."""
REPLICA_INDEX: Final = "ReplicaIndex"
"""Operator without inputs that returns the replica's number."""
LOCAL: Final = 8
"""PopART's number of the reduction that reduces nothing."""
_FACTS: Final = "_ipu_facts"
"""Attribute with the facts about a marker, as JSON."""


def chip_operator(
    name: str,
    inputs: Sequence[Any],
    outputs: Sequence[tuple[tf.DType, Sequence[int | None] | tf.TensorShape]],
    attributes: Mapping[str, Any] | None = None,
    domain: str = "ai.graphcore",
    label: str | None = None,
) -> list[tf.Tensor]:
    """Add an operator that becomes one ONNX node.

    Args:
        name: Name of the ONNX operator.
        inputs: Its inputs, tensors or what becomes one.
        outputs: Type and static shape of each output.
        attributes: Attributes of the ONNX node: numbers, texts, or lists of them.
        domain: Domain of the ONNX operator; that of PopART's operators by default.
        label: Name of the node in TensorFlow's graph.

    Returns:
        The outputs. In eager mode the operator is compiled and run alone.
    """
    facts = {"name": name, "domain": domain, "attributes": dict(attributes or {})}
    tensors = [tf.convert_to_tensor(value) for value in inputs]
    if not tf.executing_eagerly():
        return add_marker(OPERATOR, facts, tensors, outputs, label or name)
    from tensorflow_ipu.launching import run_function

    return list(
        run_function(lambda *values: add_marker(OPERATOR, facts, values, outputs, name), tensors)
    )


def add_marker(
    kind: str,
    facts: Mapping[str, Any],
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tuple[tf.DType, Any]],
    label: str,
) -> list[tf.Tensor]:
    """Add a marker node to the current graph.

    Args:
        kind: Kind of the marker.
        facts: What the conversion needs to know, as JSON can hold it.
        inputs: Tensors of the graph.
        outputs: Type and static shape of each output.
        label: Name of the node; digits are added if it is taken.

    Returns:
        The outputs.
    """
    return list(add_operation(kind, facts, inputs, outputs, label).outputs)


def add_operation(
    kind: str,
    facts: Mapping[str, Any],
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tuple[tf.DType, Any]],
    label: str,
) -> tf.Operation:
    """Add a marker node to the current graph, and return it; arguments as for `add_marker`."""
    function = _MarkerFunction(kind, facts, outputs)
    token = script_ops._py_funcs.insert(function)  # noqa: SLF001
    graph = tf.compat.v1.get_default_graph()
    operation = graph.create_op(
        "PyFunc",
        list(inputs),
        [dtype for dtype, _ in outputs],
        attrs={
            "token": AttrValue(s=token.encode()),
            "Tin": _list_types([tensor.dtype for tensor in inputs]),
            "Tout": _list_types([dtype for dtype, _ in outputs]),
        },
        name=label,
    )
    operation._set_attr(KIND, AttrValue(s=kind.encode()))  # noqa: SLF001
    operation._set_attr(_FACTS, AttrValue(s=json.dumps(facts).encode()))  # noqa: SLF001
    for tensor, (_, shape) in zip(operation.outputs, outputs, strict=True):
        tensor.set_shape(shape)
    # The registry holds functions weakly: the graph keeps it, as TensorFlow does with its own.
    if not hasattr(graph, "_py_funcs_used_in_graph"):
        graph._py_funcs_used_in_graph = []  # noqa: SLF001
    graph._py_funcs_used_in_graph.append(function)  # noqa: SLF001
    return operation


def _list_types(dtypes: Sequence[tf.DType]) -> AttrValue:
    return AttrValue(list=AttrValue.ListValue(type=[dtype.as_datatype_enum for dtype in dtypes]))


def kind_of(operation: tf.Operation) -> str | None:
    """Return the kind of a marker, or None for another operation."""
    if operation.type != "PyFunc":
        return None
    try:
        return bytes(operation.get_attr(KIND)).decode()
    except ValueError:
        return None


def facts_of(operation: tf.Operation) -> dict[str, Any]:
    """Return the facts about a marker."""
    facts: dict[str, Any] = json.loads(operation.get_attr(_FACTS))
    return facts


class _MarkerFunction:
    """The function of a marker that TensorFlow runs: one that no computation contains.

    The real operators have kernels for the IPU only, so TensorFlow places such an operator on the
    IPU alone. It is compiled and run there; other markers are an error.
    """

    def __init__(
        self, kind: str, facts: Mapping[str, Any], outputs: Sequence[tuple[tf.DType, Any]]
    ) -> None:
        self._kind, self._facts, self._outputs = kind, facts, outputs
        self._name = str(facts.get("name", kind))
        self._computation: Any = None

    def __call__(self, *values: Any) -> Any:
        if self._kind != OPERATOR:
            raise RuntimeError(
                f"{self._name} is an operator of the IPU that was not compiled for it: call it "
                "within ipu_compiler.compile, IPUStrategy.run or a session's graph placed on an IPU"
            )
        from tensorflow_ipu.launching import make_computation, run_eagerly, trace

        with context.eager_mode(), tf.device("/device:CPU:0"):
            tensors = [tf.constant(value) for value in values]
            if self._computation is None:
                graph = trace(self._add, tensors, self._name)
                self._computation, _ = make_computation(graph)
            return [result.numpy() for result in run_eagerly(self._computation, tensors, [])]

    def _add(self, *tensors: Any) -> list[tf.Tensor]:
        return add_marker(OPERATOR, self._facts, tensors, self._outputs, self._name)
