"""Operators of the chip's own compiler, domain ai.graphcore: their shape inference, their
computation, the places of their rows and their cost.

PopART has Gelu and GroupNormalization. The others are PopRT's, whose vertices are not public: they
cost as much as the equivalent standard operators. All of them are computed in float, and rounded
once.

KVCache has the keys and values that attention has seen, the newest first. Its behaviour is
published (graphcore/PopTransformer, custom_ops/kv_cache.cpp). A variable on the chip, cleared where
`step` is 0, takes `step_len` new entries along `sequence_axis` and drops the oldest. A variable
keeps its value between runs, which tensors do not. So in this project the old entries are a third
input of the operator, which is ours. `poprt`'s pass `carry_caches` carries it round the Loop that
contains the operator. Without it there are no old entries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import (
    CHIP_DOMAIN,
    Results,
    Site,
    Tape,
    expansions,
    like_first_input,
    register_stand_in,
)
from onnxgraph.opsets import GELU_EXISTS

from simipu.operators.attributes import LARGEST, read_axis, read_size, refuse
from simipu.operators.entry import (
    Body,
    Family,
    Formula,
    GraphContext,
    Moves,
    Operator,
    Rounding,
    Shapes,
)
from simipu.operators.formulas import elementwise as ew
from simipu.operators.formulas import moving as moves
from simipu.operators.formulas import reducing
from simipu.operators.formulas.elementwise import Elementwise
from simipu.operators.formulas.layout import linear
from simipu.operators.formulas.vertices import InnerLoop
from simipu.operators.formulas.work import Context, Work
from simipu.operators.guards import pass_on
from simipu.operators.narrow_numbers import CODES, FORMATS
from simipu.operators.rules import computing as rows
from simipu.operators.unpack_repack import PACKING

KERNEL_DOMAIN = "com.microsoft"
"""Domain of ONNX Runtime's own kernels, for operators that the standard added late."""
EXACT = Rounding.EXACT
EPSILON = 1e-5
"""Default epsilon of norms (PopART's own opset)."""
MASKED = -10_000.0
"""Value that AttentionMask adds to a masked score, as exporters of BERT do. Its exponential is 0 in
float too, and no sum with a score exceeds the range of half, as the lowest half would."""
_FLAT = 2
"""Rank (rows and channels) at which a norm of one group is a layer norm."""


def _standard(op_type: str) -> Body:
    """Return a body with the operator of the standard, with the attributes of the chip's
    operator."""

    def body(op: Tape, site: Site[GraphContext]) -> Results:
        results = op.copy(site.node)
        op.nodes[-1].op_type, op.nodes[-1].domain = op_type, ""
        return results

    return body


def _gelu(op: Tape, site: Site[GraphContext]) -> Results:
    """Add a Gelu by the tanh formula, the only one of the chip. `approximate` none, an extension of
    this project, gives the exact result that the exporter meant."""
    is_exact = site.get("approximate", "tanh") == "none"
    if op.opset >= GELU_EXISTS:
        return op.Gelu(site.x, approximate="none" if is_exact else "tanh")
    return op.add("Gelu" if is_exact else "FastGelu", site.x, domain=KERNEL_DOMAIN)


def _fast_norm(op: Tape, site: Site[GraphContext]) -> Results:
    """Add a LayerNormalization. ONNX Runtime has a kernel of it for all opsets, the standard from
    17 on."""
    groups = site.get("num_groups", 1)
    if site.node.op_type == "FastNorm" and groups != 1:
        raise refuse(
            site.node,
            f"expected num_groups 1, found {groups}; use GroupNormalization for more groups",
        )
    epsilon = site.get("epsilon", EPSILON)
    return op.LayerNormalization(*site.node.input, axis=-1, epsilon=epsilon)


def _find_norm_fault(node: onnx.NodeProto, shapes: Shapes) -> str:
    """Return what is wrong with a NormCE. It counts its groups as PopTransformer does: one of each
    row (its layer_norm_ce)."""
    source = shapes[0]
    groups = read_size(node, "num_groups", 1)
    if source is None:
        return ""
    rows_found = int(np.prod(source[:-1]))
    if groups not in (1, rows_found):
        return f"expected num_groups 1, or the {rows_found} rows of {list(source)}, found {groups}"
    return ""


def _group_norm(op: Tape, site: Site[GraphContext]) -> Results:
    """Add a norm of the groups; one group of rows and channels is a layer norm."""
    groups, wants_more = int(site.get("num_groups", 1)), any(site.node.output[1:])
    if site.facts.rank(site.node.input[0]) == _FLAT and groups == 1 and not wants_more:
        return _fast_norm(op, site)
    return expansions.group_norm(op, site)


def _not_zero(op: Tape, site: Site[GraphContext]) -> Results:
    truth = op.Cast(site.x, to=TensorProto.BOOL)
    return op.Cast(truth, to=site.x.element_type or TensorProto.FLOAT)


def _attention_mask(op: Tape, site: Site[GraphContext]) -> Results:
    """Add a mask that lets tokens attend to those of their segment. Padding, segment 0, attends to
    padding, and its results are not used."""
    segments = op.Cast(site.x, to=TensorProto.INT64)
    seen, seeing = _face_each_other(op, segments)
    return op.Where(op.Equal(seen, seeing), op.constant(0.0), op.constant(MASKED))


def _face_each_other(op: Tape, segments: str) -> list[str]:
    """Add the tokens' segments as a row and as a column: what is seen, and what sees it."""
    return [op.add("Reshape", segments, op.ints(to)) for to in ([0, 1, 1, -1], [0, 1, -1, 1])]


def _split_inputs(op: Tape, site: Site[GraphContext]) -> Results:
    width = list(site.get("shape"))[1]
    rows = (
        op.Gather(site.x, op.constant(number, np.int64), axis=0) if name else None
        for number, name in enumerate(site.node.output)
    )
    return [row and op.Reshape(row, op.ints([-1, width])) for row in rows]


PAST = 2
"""Index of the input with the old entries."""
_FORMAT, _SCALE = "F143", 1
"""Format and scale of a cache with `fp8`."""
_PASSES = 2
"""Number of copies: the cache is copied aside, and joined with the new entries (kv_cache.cpp)."""


def _keep_entries(op: Tape, site: Site[GraphContext]) -> Results:
    """Add nodes that put the new entries before the old ones and drop the oldest."""
    node = site.node
    update, num_kept = site.input(1), _count_kept(node)
    axis = read_axis(node, "sequence_axis", 0, site.facts.ranks.get(update, 1))
    if site.get("fp8", 0):
        codes, scale = FORMATS[_FORMAT], op.constant(_SCALE, np.int64)
        update = op.Cast(codes.encode(op, update, scale), to=TensorProto.UINT8)
        update = codes.decode(op, update, scale)
    if has_past(node):
        past = op.Slice(site.input(PAST), *map(op.ints, ([0], [num_kept], [axis])))
        past = op.Where(op.Cast(site.x, to=TensorProto.BOOL), past, op.constant(0.0))
    else:
        sizes = op.Shape(update)
        before, behind = (
            op.Slice(sizes, op.ints([first]), op.ints([last]))
            for first, last in ((0, axis), (axis + 1, LARGEST))
        )
        past = op.ConstantOfShape(op.Concat(before, op.ints([num_kept]), behind, axis=0))
    return op.Concat(update, past, axis=axis)


def has_past(node: onnx.NodeProto) -> bool:
    """Return whether a cache has an input with its old entries."""
    return len(node.input) > PAST and bool(node.input[PAST])


def _count_kept(node: onnx.NodeProto) -> int:
    """Return the number of entries that stay when new ones are added."""
    step_len, max_len = read_size(node, "step_len", 1), read_size(node, "max_len", 0)
    if step_len > max_len:
        raise refuse(node, f"expected step_len up to max_len {max_len}, found {step_len}")
    return max_len - step_len


def _find_cache_fault(node: onnx.NodeProto, shapes: Shapes) -> str:
    step, update = shapes[0], shapes[1]
    _count_kept(node)
    if step is not None and int(np.prod(step)) != 1:
        return f"expected one number as its step, found {list(step)}"
    if update is None:
        return ""
    if not update:
        return "expected a tensor with an axis of entries, found a scalar"
    axis, new = read_axis(node, "sequence_axis", 0, len(update)), read_size(node, "step_len", 1)
    if update[axis] != new:
        return f"expected step_len {new} entries along axis {axis}, found {list(update)}"
    expected = (*update[:axis], read_size(node, "max_len"), *update[axis + 1 :])
    past = shapes[PAST] if has_past(node) else None
    if past in (None, expected):
        return ""
    return f"expected old entries of shape {list(expected)}, found {list(past)}"


def _copy_cache(context: Context) -> Work:
    """Return the cost of copying the cache aside, with its layout, and back behind the new entries
    (graphcore/PopTransformer, custom_ops/kv_cache.cpp)."""
    # Each row lies whole on a tile: some have a row more than others.
    value, tiles = context.result, context.target.num_tiles
    rows = math.prod(value.shape[:-1])
    imbalance = math.ceil(rows / tiles) * tiles / rows
    layout = replace(linear(value, ("dealt rows", value.size, rows)), imbalance=imbalance)
    moved = context.fullest(value.size, layout) * value.bytes_per_element
    copies = _PASSES * moved / context.target.copy_bytes_per_cycle
    return context.spread(
        "data movement",
        copies,
        context.exchange_cycles(moved),
        local_steps=1,
        temporary=moved,
        layout=layout,
    )


@register_stand_in(CHIP_DOMAIN, "KVCache")
def _stand_in_for_cache(op: Tape, site: Site[Any]) -> Results:
    """Write nodes that repeat the first entry `max_len` times, a result of the right shape."""
    zero = helper.make_tensor("zero", TensorProto.INT64, [1], [0])
    places = op.ConstantOfShape(op.ints([read_size(site.node, "max_len")]), value=zero)
    return op.Gather(site.input(1), places, axis=int(site.get("sequence_axis", 0)))


def _like(
    name: str, cost: Formula | None, body: Body, meaning: str, **entry: Any
) -> dict[str, Operator]:
    return {name: Operator(rows.elementwise, cost=cost, body=body, meaning=meaning, **entry)}


def _renamed(
    name: str, standard: str, cost: Formula, meaning: str = "", **entry: Any
) -> dict[str, Operator]:
    return _like(name, cost, _standard(standard), meaning or standard, stands_for=standard, **entry)


_MASK = Elementwise(InnerLoop(29, 4), InnerLoop(29, 4))
"""Cost of a comparison and a choice for each score (those of ORDERED and CHOSEN)."""
_FAST_NORM = Operator(
    rows.inner_axes,
    family=Family.NORM,
    cost=reducing.fast_norm,
    body=_fast_norm,
    meaning="a layer norm over the last axis, whatever the rank; one group only",
    stands_for="LayerNormalization",
)
_OF_NOT_ZERO = "1 where there is something, else 0, in the type of its input"
_OF_MAPPING = "its input, whose modelled mapping a compilation logs"
_SOFTMAX = Operator(
    rows.along(-1),
    cost=reducing.fast_softmax,
    body=expansions.softmax,
    family=Family.SOFTMAX,
    rounding=Rounding.BOUNDED,
    meaning="Softmax along one axis (default -1) in every opset",
    stands_for="Softmax",
)

CHIP_OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        "GroupNormalization": Operator(
            rows=rows.grouped("num_groups"),
            family=Family.NORM,
            apart=(1, 2),
            cost=reducing.channel_norm,
            body=_group_norm,
            stands_for="LayerNormalization",
            meaning="a norm of groups of the channels, axis 1; with one group and two axes a layer "
            "norm; further results are mean and inverse deviation of each group",
        ),
        # Accepting any rank saves only views; what else makes them fast is not public.
        "FastNorm": _FAST_NORM,
        "NormCE": replace(
            _FAST_NORM,
            fault=_find_norm_fault,
            meaning="a layer norm over the last axis; `num_groups`, 1 or the number of rows, says "
            "the same; `stable_algo` is about the order of its sums only",
        ),
        "SoftmaxV2": _SOFTMAX,
        "SoftmaxV3": _SOFTMAX,
        **_like(
            "Gelu",
            ew.GELU,
            _gelu,
            "the tanh form, as PopART computes it; with `approximate` none, which is ours, the "
            "exact form",
            in_place=(0,),
        ),
        **_renamed("ErfV2", "Erf", ew.ERF, rounding=Rounding.BOUNDED),
        **_renamed("RoundV2", "Round", ew.COMPARED, "Round: halves to even", rounding=EXACT),
        **_renamed("IsInfV2", "IsInf", ew.INFINITE),
        **_renamed("WhereV2", "Where", ew.CHOSEN, rounding=EXACT, applies_masks=True),
        **_like("NotZero", ew.ORDERED, _not_zero, _OF_NOT_ZERO, rounding=EXACT, applies_masks=True),
        **_renamed("LeakyRelu", "LeakyRelu", ew.COMPARED, in_place=(0,)),
        **_like("PrintTileMapping", None, pass_on, _OF_MAPPING, rounding=EXACT, moves=Moves.COPIED),
        **_like(
            "Remap",
            moves.remap,
            pass_on,
            "its input, laid out anew: a copy of it",
            rounding=EXACT,
            moves=Moves.COPIED,
        ),
        "AttentionMask": Operator(
            rows=rows.attention_mask,
            apart=(1,),
            cost=_MASK,
            body=_attention_mask,
            data_type=b"FLOAT",
            applies_masks=True,
            meaning="of segments [batch, tokens] and scores, of which only the shape counts, "
            f"[batch, 1, tokens, tokens]: 0 for tokens of one segment, {MASKED:g} for those of "
            "two; padding, segment 0, sees padding",
        ),
        "HCSR": Operator(
            rows=rows.split_inputs,
            cost=moves.move,
            body=_split_inputs,
            rounding=EXACT,
            moves=Moves.SELECTED,
            meaning="the rows of its input, each as a tensor of `shape`",
        ),
        **PACKING,
        **CODES,
        "KVCache": Operator(
            whole_batch="its entries go round a Loop with the whole batch",
            cost=_copy_cache,
            body=_keep_entries,
            fault=_find_cache_fault,
            rounding=Rounding.EXACT,
            meaning="`step_len` new entries along `sequence_axis`, then those kept before, "
            "`max_len` in all; cleared where the step is 0. What was kept goes round the Loop that "
            "it is in, and is cleared when a run begins: outside of a Loop it is taken with a step "
            "of 0 only",
        ),
    }
)
"""Entries of the chip's operators, by name."""
TYPED = {name: entry.data_type for name, entry in CHIP_OPERATORS.items() if entry.data_type}
"""Default types of the results of operators that have the attribute `dataType`."""

_LIKE_INPUT = (
    "ErfV2 FastNorm Gelu LeakyRelu MaskCompress NormCE NotZero PrintTileMapping Remap RoundV2 "
    "SoftmaxV2 SoftmaxV3"
).split()
register_stand_in(CHIP_DOMAIN, *_LIKE_INPUT)(like_first_input)


@register_stand_in(CHIP_DOMAIN, "IsInfV2")
def _stand_in_for_is_inf(op: Tape, site: Site[Any]) -> Results:
    return op.Cast(site.x, to=TensorProto.BOOL)


@register_stand_in(CHIP_DOMAIN, "WhereV2")
def _stand_in_for_where(op: Tape, site: Site[Any]) -> Results:
    return op.Where(*site.node.input)


@register_stand_in(CHIP_DOMAIN, "GroupNormalization")
def _stand_in_for_group_norm(op: Tape, site: Site[Any]) -> Results:
    """Write nodes for shape inference. The statistics have one element for each group of each row.
    ArgMax is the only reduction whose form no opset has changed."""
    if not any(site.node.output[1:]):
        return op.Identity(site.x)
    groups = op.ints([int(site.get("num_groups", 1))])
    rows_only = op.ArgMax(op.Flatten(site.x, axis=1), axis=1, keepdims=0)
    statistic = op.Cast(op.Tile(rows_only, groups), to=TensorProto.FLOAT)
    return [op.Identity(site.x), *[statistic] * (len(site.node.output) - 1)]


@register_stand_in(CHIP_DOMAIN, "AttentionMask")
def _stand_in_for_attention_mask(op: Tape, site: Site[Any]) -> Results:
    seen, seeing = _face_each_other(op, site.x)
    is_half = site.get("dataType", "FLOAT") == "FLOAT16"
    return op.Cast(seen + seeing, to=TensorProto.FLOAT16 if is_half else TensorProto.FLOAT)


@register_stand_in(CHIP_DOMAIN, "HCSR")
def _stand_in_for_split(op: Tape, site: Site[Any]) -> Results:
    row = op.Gather(site.x, op.constant(0, np.int64), axis=0)
    part = op.Reshape(row, op.ints(site.get("shape", [1, 1])))
    return [part] * len(site.node.output)
