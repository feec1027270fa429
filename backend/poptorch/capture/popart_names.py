"""PopART's names of a captured model's operators and tensors, and the IPU of each operator.

An operator is called `layer1/0/Conv`: the modules it stands in, by the last parts of their names,
and its type. Its tensors are called `layer1/0/Conv:0`, and `layer1/0/Conv:0/1` where the name is
taken. Served models have these names.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import onnx
from simipu.operators import Moves, operator_of

from poptorch._logging import logger
from poptorch.capture.rewriting import rename_tensors
from poptorch.operators import placement, popart_nodes, scopes
from poptorch.operators.placement import Placement

_SCOPES: Final = "pkg.torch.onnx.name_scopes"
_FX_NODE: Final = "pkg.torch.onnx.fx_node"
_USER: Final = "user"
"""Name of the user's module within the module that is exported."""


def _find_type(node: onnx.NodeProto) -> str:
    """Return PopART's type of an operator: PopTorch writes changes of a shape as Reshape."""
    reshapes = operator_of(node).moves in (Moves.SQUEEZED, Moves.RESHAPED)
    return "Reshape" if reshapes else node.op_type


def drop_other_marks(program: Any) -> None:
    """Drop torch's own marks of operators: those of loops differ when torch traces them again.

    Args:
        program: The program of torch.export, which is changed.
    """
    ours = (placement.MARK, scopes.MARK)
    for node in program.graph.nodes:
        marks = node.meta.get("custom")
        if marks:
            node.meta["custom"] = {key: marks[key] for key in ours if key in marks}


def find_places(program: Any) -> dict[str, Placement]:
    """Return the places that operators of an exported program were marked with, by their names.

    Args:
        program: The program of torch.export that the ONNX model was written from.
    """
    marks = {
        node.name: node.meta.get("custom", {}).get(placement.MARK) for node in program.graph.nodes
    }
    return {name: Placement(*mark) for name, mark in marks.items() if mark is not None}


def find_scopes(program: Any) -> dict[str, str]:
    """Return the scopes that operators of an exported program were marked with, by their names.

    Args:
        program: The program of torch.export.
    """
    marks = {
        node.name: node.meta.get("custom", {}).get(scopes.MARK) for node in program.graph.nodes
    }
    return {name: mark for name, mark in marks.items() if mark is not None}


def name_operators(
    graph: onnx.GraphProto,
    places: Mapping[str, Placement],
    marked: Mapping[str, str],
    has_namescope: bool = True,
) -> dict[str, Placement]:
    """Name operators and their tensors, log their places, and drop what torch's exporter noted.

    Args:
        graph: The graph, which is changed.
        places: Places of operators by their names in torch's program.
        marked: Scopes of operators by the same names.
        has_namescope: Whether names begin with the modules that operators stand in.

    Returns:
        The places of the operators by the tensors that they make.
    """
    _drop_copies(graph)
    uses: Counter[str] = Counter()
    names: dict[str, str] = {}
    placed: dict[str, Placement] = {}
    for node, place in iter_places(graph, places):
        notes = _read_notes(node)
        scope = marked.get(_find_fx_name(notes), _find_scope(notes)) if has_namescope else ""
        base = scope + _find_type(node)
        repeated = f"/{uses[base]}" if uses[base] else ""
        uses[base] += 1
        node.name = base + repeated
        for index, output in enumerate(node.output):
            if output:
                names[output] = f"{base}:{index}{repeated}"
                placed[names[output]] = place
                placement.log_tensor(names[output], place)
        del node.metadata_props[:]
    rename_tensors(graph, names)
    logger.debug("lowered to PopART: %d operators", len(graph.node))
    return placed


def iter_places(
    graph: onnx.GraphProto, places: Mapping[str, Placement]
) -> Iterator[tuple[onnx.NodeProto, Placement]]:
    """Yield the operators of a graph with their places.

    Constants and their conversions are no operators.

    Args:
        graph: The graph, as torch's exporter makes it.
        places: Places of operators by their names in torch's program.
    """
    constants: set[str] = set()
    place = placement.START
    for node in graph.node:
        if constants.issuperset(node.input):
            constants.update(node.output)
            continue
        place = places.get(_find_fx_name(_read_notes(node)), place)
        yield node, place


def list_operators(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes of a graph without constants and their conversions.

    Args:
        graph: The graph.
    """
    return [node for node, _ in iter_places(graph, {})]


def _read_notes(node: onnx.NodeProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}


def _drop_copies(graph: onnx.GraphProto) -> None:
    """Drop copies of operators' results: PopTorch has no operator for `contiguous`."""
    computed = {name for node in graph.node for name in node.output}
    popart_nodes.bypass(
        graph, lambda node: node.op_type == "Identity" and node.input[0] in computed
    )


def _find_scope(notes: Mapping[str, str]) -> str:
    """Return the modules that an operator stands in, as `layer1/0/`."""
    scopes = ast.literal_eval(notes.get(_SCOPES, "[]"))
    inner = [scope for scope in scopes[:-1] if scope.startswith(f"{_USER}.")]
    return "".join(f"{scope.rpartition('.')[2]}/" for scope in inner)


def _find_fx_name(notes: Mapping[str, str]) -> str:
    return notes.get(_FX_NODE, "").partition(" ")[0].removeprefix("%")
