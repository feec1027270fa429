"""Make an executable from an ONNX graph and given streams.

This replaces a real Poplar executable, whose machine code cannot be simulated. It needs the graph
from which the real executable was compiled.

The graph computes in its own types. Streams of other types (halves, int32 for int64) are cast where
they enter or leave the graph.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper
from onnxgraph import (
    GraphError,
    bring_all_in,
    check_graph,
    drop_weight_inputs,
    find_folders,
    find_inputs,
    fresh_name,
    iter_defined,
    list_outputs_once,
    set_shape,
    spell_domains,
)
from simipu import (
    CompileError,
    Direction,
    LoadError,
    Program,
    ProgramKind,
    SimulatedExecutable,
    Stream,
    Target,
)
from simipu.cost import Estimate
from simipu.numerics import Numerics

from popef._tools.file_kinds import ONNX, describe_found
from poprt.compile.executable import make_main
from poprt.passes.inlining.custom_operators import InlineCustomOperators
from poprt.pipeline import estimate

_log = logging.getLogger("simipu")


def adopt_graph(
    path: Path,
    name: str,
    target: Target,
    programs: Mapping[int, ProgramKind],
    streams: Sequence[Stream],
    aliases: Mapping[str, str],
    numerics: Numerics | None = None,
) -> SimulatedExecutable:
    """Return an executable called `name` whose MAIN program computes the ONNX graph in the file
    `path`.

    `programs` has the kind of each program by its index. The LOAD and SAVE programs do nothing: the
    weights are in the graph. A stream's tensor is found in the graph by the stream's own tensor
    name or by its alias. `numerics` is how the real compiler was told to treat half; None means the
    defaults.

    Raises LoadError for a tensor that the graph lacks or has in excess, for a shape that a tensor
    cannot have, and for a file that is not an ONNX model. The message names the tensor or file.
    """
    try:
        model = onnx.load(path, load_external_data=False)
        bring_all_in(model, *find_folders(path))
        spell_domains(model)
        model = InlineCustomOperators().run(model)
        check_graph(model)
        drop_weight_inputs(model)
        list_outputs_once(model.graph)
    except (OSError, DecodeError, GraphError, CompileError) as error:
        what = describe_found(path, ONNX, error)
        raise LoadError(f"graph {path}: expected an ONNX model, found {what}") from error
    streams = tuple(_find(stream, model.graph, aliases, path) for stream in streams)
    _check_complete(model.graph, streams, path)
    for stream in streams:
        _fix_shape(model.graph, stream, path)
        _cast(model.graph, stream)
    try:
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise LoadError(
            f"graph {path} does not compute with the shapes of the PopEF file: {error}"
        ) from error
    _check_outputs(model.graph, streams, path)
    main, _ = make_main(-1, model, streams, _estimate(model, target, path))
    adopted = tuple(_make_program(main, index, kind) for index, kind in programs.items())
    return SimulatedExecutable(name, target, adopted, numerics=numerics or Numerics())


def _estimate(model: onnx.ModelProto, target: Target, path: Path) -> Estimate | None:
    try:
        return estimate(model, target)
    except CompileError as error:
        _log.warning("graph %s: no cycles can be modelled, they count as 0: %s", path, error)
        return None


def _make_program(main: Program, index: int, kind: ProgramKind) -> Program:
    if kind is ProgramKind.MAIN:
        return replace(main, index=index)
    return Program(index, f"{kind.name.lower()}_program", kind, ())


def _values(graph: onnx.GraphProto, direction: Direction) -> list[onnx.ValueInfoProto]:
    if direction is Direction.DEVICE_TO_HOST:
        return list(graph.output)
    return find_inputs(graph)


def _find(stream: Stream, graph: onnx.GraphProto, aliases: Mapping[str, str], path: Path) -> Stream:
    names = [value.name for value in _values(graph, stream.direction)]
    for name in (stream.tensor, aliases.get(stream.tensor)):
        if name in names:
            return replace(stream, tensor=name)
    kind = "input" if stream.direction is Direction.HOST_TO_DEVICE else "output"
    mapped = f" ({aliases[stream.tensor]!r} in the name map)" if stream.tensor in aliases else ""
    raise LoadError(
        f"graph {path} has no {kind} for anchor {stream.tensor!r}{mapped}; its {kind}s "
        f"are {', '.join(names) or 'none'}; map the anchor to one of them in name_map.json"
    )


def _check_complete(graph: onnx.GraphProto, streams: Sequence[Stream], path: Path) -> None:
    fed = {stream.tensor for stream in streams if stream.direction is Direction.HOST_TO_DEVICE}
    missing = [
        value.name for value in _values(graph, Direction.HOST_TO_DEVICE) if value.name not in fed
    ]
    if missing:
        raise LoadError(
            f"graph {path} takes input {missing[0]!r}, which no anchor of the PopEF file feeds"
        )


def _fix_shape(graph: onnx.GraphProto, stream: Stream, path: Path) -> None:
    """Write the stream's shape into the graph; raise LoadError if the graph fixes another shape."""
    if stream.direction is Direction.DEVICE_TO_HOST:
        return
    (value,) = (value for value in graph.input if value.name == stream.tensor)
    dims = value.type.tensor_type.shape.dim
    fixed = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
    fits = len(fixed) == len(stream.shape) and all(
        a in (None, b) for a, b in zip(fixed, stream.shape, strict=True)
    )
    if not fits:
        raise LoadError(
            f"graph {path}: input {stream.tensor!r} has shape "
            f"{['?' if dim is None else dim for dim in fixed]}, the anchor has "
            f"{list(stream.shape)}; name the graph that was compiled for it"
        )
    set_shape(value, stream.shape)


def _cast(graph: onnx.GraphProto, stream: Stream) -> None:
    """Insert a Cast between the stream and the graph if their types differ."""
    into = stream.direction is Direction.HOST_TO_DEVICE
    (value,) = (
        value for value in (graph.input if into else graph.output) if value.name == stream.tensor
    )
    inner = value.type.tensor_type.elem_type
    outer = helper.np_dtype_to_tensor_dtype(np.dtype(stream.dtype))
    if inner == outer:
        return
    hidden = fresh_name(f"{stream.tensor}/inside", set(iter_defined(graph)))
    for node in graph.node:
        names = node.input if into else node.output
        names[:] = [hidden if name == stream.tensor else name for name in names]
        if not into:
            node.input[:] = [hidden if name == stream.tensor else name for name in node.input]
    value.type.tensor_type.elem_type = outer
    if into:
        graph.node.insert(0, helper.make_node("Cast", [stream.tensor], [hidden], to=inner))
    else:
        graph.node.append(helper.make_node("Cast", [hidden], [stream.tensor], to=outer))


def _check_outputs(graph: onnx.GraphProto, streams: Sequence[Stream], path: Path) -> None:
    shapes = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in graph.output
    }
    for stream in streams:
        if stream.direction is Direction.DEVICE_TO_HOST and shapes[stream.tensor] != stream.shape:
            raise LoadError(
                f"graph {path}: output {stream.tensor!r} has shape {list(shapes[stream.tensor])}, "
                f"the anchor has {list(stream.shape)}; name the graph that was compiled for it"
            )
