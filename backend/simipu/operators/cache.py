"""KVCache: the keys and values that attention has seen, the newest first.

Its behaviour is published (graphcore/PopTransformer, custom_ops/kv_cache.cpp). A variable on the
chip, cleared where `step` is 0, takes `step_len` new entries along `sequence_axis` and drops the
oldest. A variable keeps its value between runs, which tensors do not. So in this project the old
entries are a third input of the operator, which is ours. `poprt`'s pass `carry_caches` carries it
round the Loop that contains the operator. Without it there are no old entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import Chain, attribute, register_stand_in

from simipu.operators.attributes import LARGEST, read_axis, read_size, refuse
from simipu.operators.domain import CHIP_DOMAIN
from simipu.operators.entry import GraphContext, Operator, Rounding, Shapes
from simipu.operators.formulas.work import Context, Work
from simipu.operators.narrow_numbers import FORMATS

PAST = 2
"""Index of the input with the old entries."""
_FORMAT, _SCALE = "F143", 1
"""Format and scale of a cache with `fp8`."""
_PASSES = 2
"""Number of copies: the cache is copied aside, and joined with the new entries (kv_cache.cpp)."""


def _keep(chain: Chain, node: onnx.NodeProto, around: GraphContext) -> None:
    """Add nodes that put the new entries before the old ones and drop the oldest."""
    update, kept = node.input[1], _count_kept(node)
    axis = read_axis(node, "sequence_axis", 0, around.ranks.get(update, 1))
    if attribute(node, "fp8", 0):
        codes, scale = FORMATS[_FORMAT], chain.constant(_SCALE, np.int64)
        update = chain.add("Cast", codes.encode(chain, update, scale), to=TensorProto.UINT8)
        update = codes.decode(chain, update, scale)
    if has_past(node):
        ends = map(chain.shape, ([0], [kept], [axis]))
        past = chain.add("Slice", node.input[PAST], *ends)
        goes_on = chain.add("Cast", node.input[0], to=TensorProto.BOOL)
        past = chain.add("Where", goes_on, past, chain.constant(0.0))
    else:
        sizes = chain.add("Shape", update)
        before, behind = (
            chain.add("Slice", sizes, chain.shape([first]), chain.shape([last]))
            for first, last in ((0, axis), (axis + 1, LARGEST))
        )
        sizes = chain.add("Concat", before, chain.shape([kept]), behind, axis=0)
        past = chain.add("ConstantOfShape", sizes)
    chain.add_as(node.output[0], "Concat", update, past, axis=axis)


def has_past(node: onnx.NodeProto) -> bool:
    """Return whether a cache has an input with its old entries."""
    return len(node.input) > PAST and bool(node.input[PAST])


def _count_kept(node: onnx.NodeProto) -> int:
    """Return the number of entries that stay when new ones are added."""
    step_len, max_len = read_size(node, "step_len", 1), read_size(node, "max_len", 0)
    if step_len > max_len:
        raise refuse(node, f"expected step_len up to max_len {max_len}, found {step_len}")
    return max_len - step_len


def _find_fault(node: onnx.NodeProto, shapes: Shapes) -> str:
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
    wanted = (*update[:axis], read_size(node, "max_len"), *update[axis + 1 :])
    past = shapes[PAST] if has_past(node) else None
    if past in (None, wanted):
        return ""
    return f"expected old entries of shape {list(wanted)}, found {list(past)}"


def _copy(context: Context) -> Work:
    """Return the cost of copying the cache aside, with its layout, and back behind the new entries
    (graphcore/PopTransformer, custom_ops/kv_cache.cpp)."""
    moved = context.bytes_per_tile(context.result)
    copies = _PASSES * moved / context.target.copy_bytes_per_cycle
    return context.spread(
        "data movement", copies, context.exchange_cycles(moved), local_steps=1, temporary=moved
    )


@register_stand_in(CHIP_DOMAIN, "KVCache")
def _stand_in_for_cache(node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    """Return nodes that repeat the first entry `max_len` times, a result of the right shape."""
    chain = Chain(f"{node.output[0]}/entries")
    zero = helper.make_tensor("zero", TensorProto.INT64, [1], [0])
    places = chain.add("ConstantOfShape", chain.shape([read_size(node, "max_len")]), value=zero)
    axis = int(attribute(node, "sequence_axis", 0))
    chain.add_as(node.output[0], "Gather", node.input[1], places, axis=axis)
    return chain.nodes


CACHE: Mapping[str, Operator] = MappingProxyType(
    {
        "KVCache": Operator(
            whole_batch="its entries go round a Loop with the whole batch",
            cost=_copy,
            body=_keep,
            fault=_find_fault,
            rounding=Rounding.EXACT,
            meaning="`step_len` new entries along `sequence_axis`, then those kept before, "
            "`max_len` in all; cleared where the step is 0. What was kept goes round the Loop that "
            "it is in, and is cleared when a run begins: outside of a Loop it is taken with a step "
            "of 0 only",
        )
    }
)
