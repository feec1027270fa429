"""Scatter operators of torch as PopART's ScatterReduce.

Its index may have size 1 along the axes that it does not scatter, so an index that is expanded
along them is never stored. `simplify_indices` finds such indices in a captured graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from onnxgraph import CHIP_DOMAIN

from popef._tools.logs import TRACE
from poptorch._logging import logger
from poptorch.operators.tracing import leave_node
from poptorch.translations.graph_text import describe_call

aten = torch.ops.aten
_KINDS: Final = {"sum": "sum", "amax": "max", "amin": "min", "prod": "mul"}
"""PopART's reduction by torch's. A mean is a sum and a count."""
_EXPANSIONS: Final = frozenset({aten.expand.default, aten.expand_as.default})


def _scatter_to(initial: Any, axis: int, index: Any, src: Any, kind: str) -> Any:
    """Return a tensor into which a source is reduced at the places of an index along an axis."""
    attributes = {
        "axis": axis,
        "axis_size": initial.shape[axis],
        "reduction": kind,
        "enable_index_broadcast": int(index.shape != src.shape),
    }
    inputs = [src, index, initial]
    return leave_node(CHIP_DOMAIN, "ScatterReduce", inputs, [initial], attributes)[0]


def scatter_add(x: Any, dim: int, index: Any, src: Any) -> Any:
    """Return the sums of a tensor and of the elements that an index sends to its places.

    Args:
        x: The tensor.
        dim: Axis along which the index points.
        index: Place of each element.
        src: The elements; those behind the index's shape are left out, as torch does.
    """
    return _reduce(x, dim, index, take_part(src, index), "sum", include_self=True)


def scatter_reduce(
    x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Return the reductions of a tensor and of the elements that an index sends to its places.

    Args:
        x: The tensor.
        dim: Axis along which the index points.
        index: Place of each element.
        src: The elements; those behind the index's shape are left out.
        reduce: sum, prod, mean, amax or amin.
        include_self: Whether the tensor's own elements count where others meet them.
    """
    return _reduce(x, dim, index, take_part(src, index), reduce, include_self)


def index_add(x: Any, dim: int, index: Any, src: Any, *, alpha: float = 1) -> Any:
    """Return the sums of a tensor and of slices that an index sends to its places.

    Args:
        x: The tensor.
        dim: Axis of the slices.
        index: Place of each slice.
        src: The slices.
        alpha: Factor of the slices.
    """
    return _reduce(x, dim, index, src if alpha == 1 else src * alpha, "sum", include_self=True)


def index_reduce(
    x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Return the reductions of a tensor and of slices that an index sends to its places.

    Args:
        x: The tensor.
        dim: Axis of the slices.
        index: Place of each slice.
        src: The slices.
        reduce: prod, mean, amax or amin.
        include_self: Whether the tensor's own elements count where others meet them.
    """
    return _reduce(x, dim, index, src, reduce, include_self)


def index_fill(x: Any, dim: int, index: Any, value: float) -> Any:
    """Return a tensor with one number in the slices that an index names.

    Args:
        x: The tensor.
        dim: Axis of the slices.
        index: Places of the slices.
        value: The number.
    """
    shape = list(x.shape)
    if not shape or x.dtype is torch.bool:
        return NotImplemented
    shape[dim] = index.numel()
    places = _align(x, dim, index)
    return _scatter_to(x, dim % x.dim(), places, torch.full(shape, value, dtype=x.dtype), "none")


def scatter_reducing(x: Any, dim: int, index: Any, src: Any, *, reduce: str) -> Any:
    """Return the sums or products of a tensor and of what an index sends to its places.

    Args:
        x: The tensor.
        dim: Axis along which the index points.
        index: Place of each element.
        src: The elements, or one number for all of them.
        reduce: add or multiply.
    """
    if not isinstance(src, torch.Tensor):
        src = torch.full(list(index.shape), src, dtype=x.dtype)
    return scatter_reduce(x, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce])


def index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """Return a tensor with one number at the places that a mask names, as masked_fill does.

    Args:
        x: The tensor.
        indices: The mask, or indices, which are left to torch's exporter.
        values: The values.
        accumulate: Whether they are added.
    """
    mask = indices[0]
    if len(indices) != 1 or mask is None or mask.dtype not in (torch.bool, torch.uint8):
        return NotImplemented
    if values.numel() != 1:
        return NotImplemented
    place = (mask != 0).reshape([*mask.shape, *[1] * (x.dim() - mask.dim())])
    value = values.reshape([]).to(x.dtype)
    return torch.where(place, x + value if accumulate else value, x)


def _align(x: Any, dim: int, index: Any) -> Any:
    """Return an index of slices with as many axes as the tensor."""
    axis = dim % x.dim()
    return index.reshape([-1 if dimension == axis else 1 for dimension in range(x.dim())])


def take_part(src: Any, index: Any) -> Any:
    """Return the part of a source that has the shape of an index.

    Args:
        src: The source.
        index: The index.
    """
    for axis, size in enumerate(index.shape):
        if src.shape[axis] != size:
            src = src.narrow(axis, 0, size)
    return src


def _reduce(x: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool) -> Any:
    if x.dim() == 0 or x.dtype is torch.bool:
        return NotImplemented
    axis = dim % x.dim()
    if index.dim() == 1:
        index = _align(x, axis, index)
    if reduce == "mean":
        return _average(x, axis, index, src, include_self)
    kind = _KINDS[reduce]
    if not include_self:
        x = _scatter_to(x, axis, index, _fill_like(src, _neutral(kind, x.dtype)), "none")
    return _scatter_to(x, axis, index, src, kind)


def _average(x: Any, axis: int, index: Any, src: Any, include_self: bool) -> Any:
    """Divide sums by counts; a place that no element meets keeps its own element."""
    counts = _fill_like(x, 1)
    if not include_self:
        nothing = _fill_like(src, 0)
        counts = _scatter_to(counts, axis, index, nothing, "none")
        x = _scatter_to(x, axis, index, nothing, "none")
    counts = _scatter_to(counts, axis, index, _fill_like(src, 1), "sum")
    total = _scatter_to(x, axis, index, src, "sum")
    return total / counts if x.dtype.is_floating_point else total // counts


def _fill_like(x: Any, value: float) -> Any:
    """Return a constant; the likes of torch.ones_like are operators on the tensor in ONNX."""
    return torch.full(list(x.shape), value, dtype=x.dtype)


def _neutral(kind: str, dtype: Any) -> float:
    """Return the element that changes no reduction."""
    if kind in ("sum", "mul"):
        return int(kind == "mul")
    if dtype.is_floating_point:
        return float("-inf") if kind == "max" else float("inf")
    ends = torch.iinfo(dtype)
    return int(ends.min if kind == "max" else ends.max)


DECOMPOSITIONS: Final[Mapping[Any, Callable[..., Any]]] = {
    aten.scatter_add.default: scatter_add,
    aten.scatter_reduce.two: scatter_reduce,
    aten.index_add.default: index_add,
    aten.index_reduce.default: index_reduce,
    aten.index_fill.int_Scalar: index_fill,
    aten.index_put.default: index_put,
    aten.scatter.reduce: scatter_reducing,
    aten.scatter.value_reduce: scatter_reducing,
}
"""What computes torch's operators."""


def simplify_indices(program: Any) -> None:
    """Replace gathers and scatters by an expanded index by those of whole slices.

    Args:
        program: A program of torch.export, which is changed.
    """
    for node in list(program.graph.nodes):
        simplify = _SIMPLIFICATIONS.get(node.target)
        if simplify is not None and len(node.args) > _INDEX:
            simplify(program.graph, node)


_INDEX: Final = 2
"""Place of the index among the arguments of gathers and scatters."""


def _find_shape(node: Any) -> list[int]:
    return list(node.meta["val"].shape)


def _find_expansion(node: Any) -> tuple[Any, list[int]]:
    """Return the expansion that an operator's index comes from and the axes along which it
    expands, or None and no axes."""
    index = node.args[_INDEX]
    if index.target not in _EXPANSIONS:
        return None, []
    before, after = _find_shape(index.args[0]), _find_shape(index)
    if len(before) != len(after):
        return None, []
    return index, [axis for axis, size in enumerate(after) if before[axis] != size]


def _simplify_scatter(graph: Any, node: Any) -> None:
    """Scatter slices, if the index is expanded along every axis but that of the scatter."""
    x, dim, _, src, *rest = node.args
    reduce = str(rest[0]) if rest else "sum"
    index, axes = _find_expansion(node)
    if index is None or len(index.users) > 1:
        return
    axis, shape = dim % max(len(_find_shape(x)), 1), _find_shape(index)
    wide = [dimension for dimension, size in enumerate(shape) if dimension != axis and size != 1]
    outer = [_find_shape(tensor)[:axis] + _find_shape(tensor)[axis + 1 :] for tensor in (x, src)]
    if axes != wide or _find_shape(src) != shape or outer[0] != outer[1]:
        return
    logger.log(TRACE, "Removing index expansion node: %s", describe_call(index))
    with graph.inserting_before(node):
        places = _flatten(graph, index.args[0])
        result = _scatter_slices(graph, node, places, reduce)
    _replace(graph, node, result, index)


def _scatter_slices(graph: Any, node: Any, places: Any, reduce: str) -> Any:
    """Return the node that reduces slices as a scatter by an expanded index does."""
    x, dim, _, src = node.args[:4]
    name = node.target._schema.name  # noqa: SLF001 # torch has no other way
    mark = "_" if name.endswith("_") else ""
    if reduce != "sum":
        target = getattr(aten, f"index_reduce{mark}").default
        return graph.call_function(target, (x, dim, places, src, reduce), node.kwargs)
    if not node.kwargs.get("include_self", True):
        target = getattr(aten, f"index_fill{mark}").int_Scalar
        x = graph.call_function(target, (x, dim, places, 0))
        x.meta = dict(node.meta)
    return graph.call_function(getattr(aten, f"index_add{mark}").default, (x, dim, places, src))


def _simplify_gather(graph: Any, node: Any) -> None:
    """Select slices of a matrix. Axes of size 1 do not count."""
    x, dim, _ = node.args[:3]
    index, axes = _find_expansion(node)
    shape = _find_shape(x)
    wide = [axis for axis, size in enumerate(shape) if size > 1]
    pair = sorted({dim % max(len(shape), 1), *axes})
    if index is None or len(axes) != 1 or len(wide) != 2 or pair != wide:  # noqa: PLR2004
        return
    if _find_shape(index)[axes[0]] != shape[axes[0]]:
        return
    logger.debug("Optimising gather: %s", describe_call(node))
    with graph.inserting_before(node):
        places = _flatten(graph, index.args[0])
        result = graph.call_function(aten.index_select.default, (x, dim, places))
    _replace(graph, node, result, index)


def _flatten(graph: Any, index: Any) -> Any:
    flat = graph.call_function(aten.reshape.default, (index, [-1]))
    value = index.meta["val"]
    with value.fake_mode:
        flat.meta = {**index.meta, "val": value.reshape(-1)}
    return flat


def _replace(graph: Any, node: Any, made: Any, index: Any) -> None:
    """Put an operator in the place of another one, and remove an expansion that nothing uses."""
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    if not index.users:
        graph.erase_node(index)


_SIMPLIFICATIONS: Final[Mapping[Any, Callable[[Any, Any], None]]] = {
    aten.gather.default: _simplify_gather,
    aten.scatter_add.default: _simplify_scatter,
    aten.scatter_add_.default: _simplify_scatter,
    aten.scatter_reduce.two: _simplify_scatter,
    aten.scatter_reduce_.two: _simplify_scatter,
}
