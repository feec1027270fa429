"""Marker nodes in tf2onnx's graphs, and what becomes of them in the model.

tf2onnx merges equal nodes, moves transpositions through nodes of the standard's names, and drops
the domains of nodes in bodies. So until the model is written a marker is a node of a type of its
own, with all facts in attributes: `restore_markers` makes the ONNX node of it.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import CHIP_DOMAIN, attribute, drop_attribute, iter_graphs, replace_nodes

from tensorflow_ipu.errors import IpuError
from tensorflow_ipu.markers import LOCAL, MULTI_CONV_OPTIONS, REPLICA_INDEX

_TYPE: Final = "IpuMarker"
_FACTS, _NUMBER = "_ipu_facts", "_ipu_number"
_numbers = itertools.count()


def custom_handlers() -> dict[str, Any]:
    """Return the handlers by the name of TensorFlow's operator, as tf2onnx takes them."""
    return {"PyFunc": (_convert_marker, [])}


def _convert_marker(context: Any, node: Any, _name: str, _args: Any) -> None:
    """Replace a marker node by a node with its facts, and with types and shapes of its outputs."""
    facts = json.loads(node.get_attr("_ipu_facts").s)
    outputs, inputs = list(node.output), list(node.input)
    shapes = [context.get_shape(name) for name in outputs]
    dtypes = [context.get_dtype(name) for name in outputs]
    if facts["name"] == MULTI_CONV_OPTIONS:
        _check_options(facts["attributes"]["options"])
        facts.update(name="Identity", domain="", attributes={})
    facts["outputs"] = list(zip(dtypes, shapes, strict=True))
    context.remove_node(node.name)
    context.make_node(
        _TYPE,
        inputs,
        outputs=outputs,
        shapes=shapes,
        dtypes=dtypes,
        attr={_FACTS: json.dumps(facts), _NUMBER: next(_numbers)},
        name=node.name,
    )


_CONVOLUTION_OPTIONS: Final = frozenset(
    (
        "availableMemoryProportion",
        "cycleBackOff",
        "disableTransformations",
        "enableAmpHalfEnginesPlan",
        "enableConvDithering",
        "enableFastReduce",
        "enableMultiStageReduce",
        "enableSingleInputReduce",
        "enableTransformsConvTable",
        "gatherConvOutput",
        "insertTransformsCycleCountProxy",
        "maxOutputMemoryProportion",
        "numIPUs",
        "partialsType",
        "partialsType.interIPU",
        "partialsType.interTile",
        "pass",
        "perConvReservedTiles",
        "planConstraints",
        "planConstraintsOutputFilename",
        "planType",
        "remapOutputTensor",
        "startTileMultiplier",
        "tilesPerIPU",
        "use128BitConvUnitLoad",
    )
)
"""Options of Poplar's convolutions and of its multi-convolutions (poplibs, ConvOptions)."""


def _check_options(names: list[str]) -> None:
    """Raise IpuError with Poplar's text for an option that it lacks."""
    for name in names:
        if name not in _CONVOLUTION_OPTIONS:
            raise IpuError(f"[Poplar][Build graph] invalid_option: Unrecognised option '{name}'")


def restore_markers(model: onnx.ModelProto) -> None:
    """Replace the nodes of markers by the ONNX nodes that they stand for.

    Args:
        model: Model that tf2onnx has made; it is changed.
    """
    domains = {entry.domain for entry in model.opset_import}
    for graph in iter_graphs(model.graph):
        known = {value.name for value in (*graph.value_info, *graph.output, *graph.input)}
        for node in graph.node:
            if node.op_type != _TYPE:
                continue
            facts = json.loads(attribute(node, _FACTS))
            for name in (_FACTS, _NUMBER):
                drop_attribute(node, name)
            node.op_type, node.domain = facts["name"], facts["domain"]
            for name, value in facts["attributes"].items():
                node.attribute.append(helper.make_attribute(name, value))
            graph.value_info.extend(
                helper.make_tensor_value_info(name, element or TensorProto.FLOAT, shape)
                for name, (element, shape) in zip(node.output, facts["outputs"], strict=True)
                if name not in known and shape is not None
            )
            if node.domain not in domains:
                domains.add(node.domain)
                model.opset_import.append(helper.make_opsetid(node.domain, 1))


def write_replica_numbers(model: onnx.ModelProto, replicas: int) -> None:
    """Replace the nodes that give the replica's number, which PopART has no operator for.

    Each replica takes its part of the numbers of all of them.

    Args:
        model: The model, which is changed.
        replicas: Number of replicas.
    """
    for graph in iter_graphs(model.graph):
        if not any(node.op_type == REPLICA_INDEX for node in graph.node):
            continue
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            if node.op_type == REPLICA_INDEX:
                nodes.extend(_take_number(node.output[0], replicas))
            else:
                nodes.append(node)
        replace_nodes(graph, nodes)


def _take_number(output: str, replicas: int) -> list[onnx.NodeProto]:
    numbers = numpy_helper.from_array(np.arange(replicas, dtype=np.int32))
    scalar = numpy_helper.from_array(np.zeros(0, np.int64))
    names = [f"{output}/{part}" for part in ("numbers", "part", "shape")]
    return [
        helper.make_node("Constant", [], [names[0]], value=numbers),
        helper.make_node(
            "ReplicatedReduceScatter",
            [names[0]],
            [names[1]],
            domain=CHIP_DOMAIN,
            __collectiveOperator=LOCAL,
        ),
        helper.make_node("Constant", [], [names[2]], value=scalar),
        helper.make_node("Reshape", [names[1], names[2]], [output]),
    ]
