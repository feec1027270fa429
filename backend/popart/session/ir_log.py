"""Log lines of a model that is compiled, in the form of PopART's."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import onnx

from popef._tools.logs import TRACE

_log = logging.getLogger("popart.ir")
_session = logging.getLogger("popart.session")
_popart = logging.getLogger("popart.popart")
_STANDARD = "ai.onnx"


def log_model(model: onnx.ModelProto) -> None:
    """Log a model: its size at the level INFO, its operators at DEBUG, its tensors at TRACE.

    Args:
        model: The model, as the compiler takes it.
    """
    graph = model.graph
    _log.info(
        "%d operators, %d weights and constants, %d inputs, %d anchors",
        len(graph.node),
        len(graph.initializer),
        len(graph.input),
        len(graph.output),
    )
    _session.log(TRACE, "inputs of the session: %s", [value.name for value in graph.input])
    _popart.log(TRACE, "anchors of the model: %s", [value.name for value in graph.output])
    if not _log.isEnabledFor(logging.DEBUG):
        return
    versions = {opset.domain or _STANDARD: opset.version for opset in model.opset_import}
    for index, node in enumerate(graph.node):
        _log.debug("%s", "\n".join(_iter_lines(node, index, versions)))


def _iter_lines(node: onnx.NodeProto, index: int, versions: dict[str, int]) -> Iterator[str]:
    """Yield the lines of an operator: name, number and type, then its tensors."""
    domain = node.domain or _STANDARD
    version = versions.get(domain, 1)
    yield f'Op "{node.name}", {index} of type {domain}.{node.op_type}:{version}'
    yield f"  inputs: {', '.join(node.input)}"
    yield f"  outputs: {', '.join(node.output)}"
