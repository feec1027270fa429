"""ATen operators that torch's exporter cannot express in ONNX, written with others that it can."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import torch
from onnx import TensorProto
from onnxgraph import CHIP_DOMAIN
from poprt.passes import retype_floats

from poptorch.errors import Error
from poptorch.translations import (
    arithmetic,
    axes,
    embeddings,
    graph_text,
    layers,
    products,
    reductions,
    scatters,
    special_functions,
    whole_numbers,
)

INPUT_TYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
)
"""Types of inputs that the IPU has, or that are narrowed to one of its types."""
OPSET = 18
"""Opset that torch's translations are written in."""

_NARROWED = {
    torch.int64: torch.int32,
    torch.float64: torch.float32,
    torch.bfloat16: torch.float32,
}
aten = torch.ops.aten
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {}
"""Functions of torch for operators that torch's exporter does not know."""


_LOGICAL = {
    aten.add.Tensor: aten.logical_or.default,
    aten.mul.Tensor: aten.logical_and.default,
}
"""Operators on truth values, which have other names in ONNX."""


def decompose(program: Any) -> Any:
    """Return a program without the operators of DECOMPOSITIONS.

    Args:
        program: A program of torch.export. It is returned as it is if it has none of them.
    """
    graph_text.log_program("Initial dispatched graph:", program)
    layers.check_layers(program)
    scatters.simplify_indices(program)
    graph_text.log_program("Graph before PopART canonicalisation:", program)
    for node in program.graph.nodes:
        if node.target in _LOGICAL and node.meta["val"].dtype is torch.bool:
            _make_logical(program.graph, node)
    nodes = [node for node in program.graph.nodes if not _is_plain(node)]
    targets = {_drop_inplace(node.target) for node in nodes} & DECOMPOSITIONS.keys()
    if not targets:
        return program
    return program.run_decompositions(dict(DECOMPOSITIONS))


def _make_logical(graph: Any, node: Any) -> None:
    """Replace an operator on truth values by that of ONNX, which takes no numbers of Python."""
    is_kept = node.kwargs.get("alpha", 1)
    node.target, node.kwargs = _LOGICAL[node.target], {}
    if not is_kept:
        node.args = (node.args[0], False)
    for place, value in enumerate(node.args):
        if isinstance(value, torch.fx.Node):
            continue
        with graph.inserting_before(node), node.meta["val"].fake_mode:
            tensor = graph.call_function(
                aten.scalar_tensor.default, (value,), {"dtype": torch.bool}
            )
            tensor.meta = {**node.meta, "val": torch.tensor(value)}
        node.update_arg(place, tensor)


def _drop_inplace(operator: Any) -> Any:
    """Return the operator without side effect that an operator becomes before decompositions."""
    schema = getattr(operator, "_schema", None)
    if schema is None or not schema.name.endswith("_"):
        return operator
    packet = getattr(aten, schema.name.rpartition("::")[2].rstrip("_"), None)
    return getattr(packet, schema.overload_name or "default", operator)


def _is_plain(node: Any) -> bool:
    """Return whether torch's exporter translates a node of DECOMPOSITIONS correctly as it is."""
    for part in (layers, products, arithmetic, reductions, whole_numbers):
        if _drop_inplace(node.target) in part.DECOMPOSITIONS:
            return bool(part.is_plain(node))
    if node.target in (aten.arange.start, aten.arange.start_step):
        return len({type(number) for number in (*node.args, 1)[:3]}) == 1
    if node.target is aten.rsub.Scalar:
        return bool(node.args[0].meta["val"].dtype is node.meta["val"].dtype)
    if node.target is aten.squeeze.dim:
        return bool(node.args[0].meta["val"].dim() != node.meta["val"].dim())
    return False


def _decomposes(*operators: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        DECOMPOSITIONS.update(dict.fromkeys(operators, function))
        return function

    return register


@_decomposes(aten.split.Tensor)
def _split(x: Any, split_size: int, dim: int = 0) -> Any:
    """Slice a tensor: torch's exporter makes a sequence of tensors, which the IPU does not have."""
    length = x.shape[dim]
    starts = range(0, max(length, 1), max(split_size, 1))
    return [x.narrow(dim, start, min(split_size, length - start)) for start in starts]


@_decomposes(aten.split_with_sizes.default)
def _split_with_sizes(x: Any, split_sizes: Sequence[int], dim: int = 0) -> Any:
    ends = itertools.accumulate(split_sizes)
    pairs = zip(split_sizes, ends, strict=True)
    return [x.narrow(dim, end - size, size) for size, end in pairs]


@_decomposes(aten.chunk.default)
def _chunk(x: Any, chunks: int, dim: int = 0) -> Any:
    return _split(x, -(-x.shape[dim] // chunks), dim)


@_decomposes(aten.tensor_split.sections)
def _tensor_split(x: Any, sections: int, dim: int = 0) -> Any:
    """Split into parts of which the first ones are longer by one, if they cannot be equal."""
    size, longer = divmod(x.shape[dim], sections)
    return _split_with_sizes(x, [size + (place < longer) for place in range(sections)], dim)


@_decomposes(aten.unbind.int)
def _unbind(x: Any, dim: int = 0) -> Any:
    return [x.select(dim, place) for place in range(x.shape[dim])]


@_decomposes(aten.rsub.Scalar)
def _rsub(x: Any, other: Any, alpha: Any = 1) -> Any:
    """Subtract from a number of another type, which torch's exporter fails to promote."""
    return x.to(torch.result_type(x, other)) * -alpha + other


@_decomposes(aten.addcdiv.default)
def _addcdiv(x: Any, first: Any, second: Any, value: Any = 1) -> Any:
    """Scale before the division, as PyTorch: a quotient may be infinite, and the scale 0."""
    return x + (first if value == 1 else first * value) / second


@_decomposes(aten.squeeze.dim)
def _squeeze(x: Any, dim: int) -> Any:
    """Reshape without a dimension of one element; torch keeps any other, and ONNX rejects it."""
    shape = list(x.shape)
    if shape and shape[dim] == 1:
        del shape[dim]
    return x.view(shape)


@_decomposes(aten.cdist.default)
def _cdist(x: Any, y: Any, p: float = 2.0, compute_mode: int | None = None) -> Any:  # noqa: ARG001
    difference = torch.abs(x.unsqueeze(-2) - y.unsqueeze(-3))
    if p == 0:
        return (difference != 0).to(x.dtype).sum(-1)
    if p == float("inf"):
        return difference.amax(-1)
    if p == 1:
        return difference.sum(-1)
    if p == 2:  # noqa: PLR2004
        return torch.sqrt((difference * difference).sum(-1))
    return torch.pow(torch.pow(difference, p).sum(-1), 1 / p)


@_decomposes(aten.median.default)
def _median(x: Any) -> Any:
    if not x.numel():
        return torch.full([], torch.nan, dtype=x.dtype)
    return _median_dim(x.reshape(-1), 0)[0]


@_decomposes(aten.median.dim)
def _median_dim(x: Any, dim: int, keepdim: bool = False) -> Any:
    """Pick the lower middle; if there is a NaN, pick the first one, as torch does."""
    values, places = _pick_sorted(x, (x.shape[dim] - 1) // 2, dim, keepdim)
    if not x.dtype.is_floating_point:
        return values, places
    poisoned = torch.isnan(x)
    has_nan = poisoned.any(dim, keepdim=keepdim)
    first = torch.argmax(poisoned.to(torch.int32), dim, keepdim=keepdim)
    return torch.where(has_nan, torch.nan, values), torch.where(has_nan, first, places)


@_decomposes(aten.kthvalue.default)
def _kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return _pick_sorted(x, k - 1, dim, keepdim)


def _pick_sorted(x: Any, place: int, dim: int, keepdim: bool) -> Any:
    values, indices = torch.sort(x, dim=dim)
    picked = [tensor.select(dim, place) for tensor in (values, indices)]
    return tuple(tensor.unsqueeze(dim) if keepdim else tensor for tensor in picked)


@_decomposes(aten.sort.stable)
def _stable_sort(
    x: Any,
    *,
    stable: bool | None = None,  # noqa: ARG001
    dim: int = -1,
    descending: bool = False,
) -> Any:
    """Sort by TopK, which puts the lower index first among equal elements."""
    return torch.topk(x, x.shape[dim], dim, largest=descending, sorted=True)


@_decomposes(aten.argsort.stable)
def _stable_argsort(x: Any, *, stable: bool, dim: int = -1, descending: bool = False) -> Any:
    return _stable_sort(x, stable=stable, dim=dim, descending=descending)[1]


@_decomposes(aten.cumprod.default)
def _cumprod(x: Any, dim: int, *, dtype: Any = None) -> Any:
    """Multiply in rounds: after round k each element is the product of the 2^k before it."""
    if dtype is None and not x.dtype.is_floating_point:
        dtype = torch.int64
    x = x.to(dtype) if dtype is not None else x
    if x.dim() == 0:
        return x.clone()
    reach, length = 1, x.shape[dim]
    while reach < length:
        shape = list(x.shape)
        shape[dim] = reach
        shifted = torch.cat([x.new_ones(shape), x.narrow(dim, 0, length - reach)], dim)
        x, reach = x * shifted, 2 * reach
    return x


@_decomposes(aten.bincount.default)
def _bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    if minlength <= 0:
        raise Error(
            "Bincount `minlength` must be specified and must be a constant. On the IPU MK2 "
            "platform the minimum length is also the maximum length"
        )
    counted = x.new_ones(x.shape) if weights is None else weights
    return counted.new_zeros(minlength).scatter_add(0, x.to(torch.int64), counted)


@_decomposes(aten.scatter.src)
def _scatter(x: Any, dim: int, index: Any, src: Any) -> Any:
    """Scatter the part of the source that has the shape of the index, as torch does."""
    if index.shape == src.shape:
        return NotImplemented
    return aten.scatter.src(x, dim, index, scatters.take_part(src, index))


@_decomposes(aten.rrelu.default)
def _rrelu(
    x: Any,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,  # noqa: ARG001
) -> Any:
    middle = (lower + upper) / 2
    slope = torch.rand_like(x) * (upper - lower) + lower if training else middle
    return torch.where(x >= 0, x, x * slope)


@_decomposes(aten.rrelu_with_noise.default)
def _rrelu_with_noise(
    x: Any,
    noise: Any,  # noqa: ARG001
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    *_: Any,
) -> Any:
    return _rrelu(x, lower, upper, training)


@_decomposes(aten.adaptive_max_pool2d.default)
def _adaptive_max_pool2d(x: Any, output_size: Any) -> Any:
    """Take the maximum of each cell: cell i of n covers i * size // n to its successor's start."""
    height, width = x.shape[-2:]
    rows, columns = (
        [(i * size // n, -(-(i + 1) * size // n)) for i in range(n)]
        for size, n in zip((height, width), output_size, strict=True)
    )
    values, places = [], []
    for top, bottom in rows:
        for left, right in columns:
            value, place = x[..., top:bottom, left:right].flatten(-2).max(-1)
            span = right - left
            values.append(value)
            places.append((top + place // span) * width + left + place % span)
    shape = (*x.shape[:-2], len(rows), len(columns))
    return torch.stack(values, -1).reshape(shape), torch.stack(places, -1).reshape(shape)


@_decomposes(aten.randperm.default)
def _randperm(n: int, *, dtype: Any = torch.int64, **_: Any) -> Any:
    """Return the order of random numbers."""
    return torch.topk(torch.rand(n), n).indices.to(dtype or torch.int64)


@_decomposes(aten.arange.start, aten.arange.start_step)
def _arange(start: float, end: float, step: float = 1, *, dtype: Any = None, **_: Any) -> Any:
    """Count in float if one of the numbers is: ONNX wants one type."""
    if len({type(number) for number in (start, end, step)}) == 1:
        return NotImplemented
    return torch.arange(float(start), float(end), float(step), dtype=dtype)


@_decomposes(aten.uniform.default)
def _uniform(
    x: Any,
    from_: float = 0.0,
    to: float = 1.0,
    *,
    generator: Any = None,  # noqa: ARG001
) -> Any:
    return torch.rand_like(x) * (to - from_) + from_


@_decomposes(aten.hypot.default)
def _hypot(x: Any, y: Any) -> Any:
    return torch.sqrt(x * x + y * y)


@_decomposes(aten.searchsorted.Tensor)
def _searchsorted(
    borders: Any,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """Count the borders below each value, and those equal to it if they go to its left."""
    if sorter is not None:
        borders = torch.gather(borders, -1, sorter)
    borders, values = borders.unsqueeze(-2), x.unsqueeze(-1)
    is_left = borders <= values if right or side == "right" else borders < values
    return is_left.sum(-1).to(torch.int32 if out_int32 else torch.int64)


@_decomposes(aten.cross_entropy_loss.default)
def _cross_entropy_loss(
    x: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """Add the loss of a uniform label by the share that smoothing gives it.

    torch's exporter leaves smoothing out, and takes probabilities for labels.
    """
    axis = 1 if x.dim() > 1 else 0
    classes = x.shape[axis]
    logs = torch.log_softmax(x, axis)
    shape = [classes if dimension == axis else 1 for dimension in range(x.dim())]
    weighted = logs if weight is None else logs * weight.reshape(shape)
    if target.dtype.is_floating_point:
        labels = target * (1 - label_smoothing) + label_smoothing / classes
        losses = -(weighted * labels).sum(axis)
        return _reduce(losses, reduction, losses.numel())
    if not label_smoothing:
        return NotImplemented
    counted = target != ignore_index
    places = torch.where(counted, target, 0).unsqueeze(axis)
    picked = -torch.gather(weighted, axis, places).squeeze(axis)
    losses = (1 - label_smoothing) * picked - label_smoothing / classes * weighted.sum(axis)
    losses = torch.where(counted, losses, 0.0)
    weights = torch.ones_like(losses) if weight is None else weight[places.squeeze(axis)]
    return _reduce(losses, reduction, torch.where(counted, weights, 0.0).sum())


def _reduce(losses: Any, reduction: int, total: Any) -> Any:
    """Reduce losses as torch's numbers say: 0 not at all, 1 to the mean, 2 to the sum."""
    if not reduction:
        return losses
    return losses.sum() / total if reduction == 1 else losses.sum()


@_decomposes(aten.adaptive_max_pool1d.default)
def _adaptive_max_pool1d(x: Any, output_size: Any) -> Any:
    values, places = _adaptive_max_pool2d(x.unsqueeze(-2), (1, *output_size))
    return values.squeeze(-2), places.squeeze(-2)


DECOMPOSITIONS.update(
    {
        **scatters.DECOMPOSITIONS,
        **products.DECOMPOSITIONS,
        **layers.DECOMPOSITIONS,
        **arithmetic.DECOMPOSITIONS,
        **reductions.DECOMPOSITIONS,
        **whole_numbers.DECOMPOSITIONS,
        aten.embedding_bag.padding_idx: embeddings.embedding_bag,
        aten.one_hot.default: embeddings.one_hot,
        aten.lgamma.default: special_functions.lgamma,
        aten.mvlgamma.default: special_functions.mvlgamma,
        aten.digamma.default: special_functions.digamma,
        aten.erfinv.default: special_functions.erfinv,
        aten.cummax.default: axes.cummax,
        aten.cummin.default: axes.cummin,
        aten.unbind.int: axes.unbind,
    }
)


def narrow(tensor: Any) -> Any:
    """Return a tensor in the IPU's type.

    Args:
        tensor: The tensor.
    """
    return tensor.to(_NARROWED.get(tensor.dtype, tensor.dtype))


def narrow_floats(model: onnx.ModelProto) -> None:
    """Turn the floats of a model that the IPU does not have into FLOAT.

    Args:
        model: The model, which is changed.
    """
    # poprt narrows doubles later; what popart lowers must not have any
    is_chip = any(node.domain == CHIP_DOMAIN for node in model.graph.node)
    narrowed = [TensorProto.BFLOAT16, *([TensorProto.DOUBLE] if is_chip else [])]
    values = [
        onnx.ValueInfoProto.FromString(value.SerializeToString())
        for value in model.graph.value_info
    ]
    for kind in narrowed:
        retype_floats(model, kind, TensorProto.FLOAT, "single")
    if values and not model.graph.value_info:  # PopART's operators need the types of their inputs
        for value in values:
            if value.type.tensor_type.elem_type in narrowed:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        model.graph.value_info.extend(values)
