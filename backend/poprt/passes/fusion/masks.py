"""Passes over the masks in the attention of transformers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import FLOAT_TYPES, attribute, find_inputs, iter_nodes
from simipu.operators import CHIP_DOMAIN

from poprt.rewrite.base import register
from poprt.rewrite.editor import GraphEditor
from poprt.rewrite.names import NameScope
from poprt.rewrite.rules import GraphRule
from poprt.rewrite.views import is_operator

_MIN_MASKED = -1_000.0
"""Maximum number that counts as a mask when added to scores: e to the power of it is 0 in float."""
_MASK_VIEWS = ("Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that exporters put between a mask and the scores."""
_MAX_VIEWS = 8
_MASK_RANK, _SCORES_RANK = 2, 4
_MAX_TRUTHS = 2**26
"""Maximum number of elements of a constant that says which tokens see which."""


@dataclass(frozen=True, slots=True)
class _Mask:
    """Mask that is added to scores. It is made from `tokens`, [batch, tokens], and hides tokens
    where that is 0."""

    tokens: str
    result: str


@register("insert_attention_mask")
class InsertAttentionMask(GraphRule):
    """Give masks that are made of one number for each token, (1 - mask) times a large negative
    number or a choice between 0 and one, the chip's AttentionMask, for which these numbers are
    segments: tokens see those of their own segment. Where there is no such mask, it warns: packed
    samples would see one another.

    Segments of 0 are padding, which sees padding only. So the rows of padding are others than
    before, which nobody reads; those of tokens are the same.
    """

    op_types = frozenset(("Mul", "Where", "WhereV2"))

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Replace the masks. Warn if the model has none."""
        changed = super().run(model)
        if not any(node.op_type == "AttentionMask" for node in iter_nodes(changed.graph)):
            self.logger.warning(
                "insert_attention_mask found no mask that is added to scores: samples packed into "
                "one row would see one another"
            )
        return changed

    def matches(self, node: onnx.NodeProto) -> bool:
        """Return whether a node is a Where or Mul that may make a mask, the chip's own too."""
        return node.op_type in self.op_types

    def look(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Replace a mask at the end of its formula, if its result is added to scores of the same
        tokens."""
        found = _read_mask(node, view)
        if found is None:
            return
        batch, tokens = view.shape(found.tokens) or (0, 0)
        adds = [
            each
            for each in view.readers.get(found.result, {}).values()
            if is_operator(each, "Add") and _takes_scores(each, found.result, (batch, tokens), view)
        ]
        if not adds:
            return
        adds.sort(key=view.place)
        scores = _other(adds[0], found.result)
        made = view.start(node, "segments")
        segments = found.tokens
        if view.type(segments) != TensorProto.INT32:
            segments = made.add("Cast", segments, to=TensorProto.INT32)
        is_half = view.type(found.result) == TensorProto.FLOAT16
        mask = made.new_name()
        made.chip(
            mask, "AttentionMask", segments, scores, dataType="FLOAT16" if is_half else "FLOAT"
        )
        for place, each in enumerate(adds):
            changed = onnx.NodeProto()
            changed.CopyFrom(each)
            changed.input[:] = [mask if name == found.result else name for name in each.input]
            view.rewrite(each, [*(made.nodes if place == 0 else []), changed], [each])


def find_mask_inputs(graph: onnx.GraphProto, known: onnx.GraphProto) -> frozenset[str]:
    """Return the inputs of a graph that are masks: one number for each token, used as (1 - mask)
    times a large negative number. `known` has the shapes of the graph."""
    view = GraphEditor(NameScope(graph, 1), graph, known)
    view.index()
    given = {value.name for value in find_inputs(graph)}
    found = (
        _read_mask(node, view)
        for node in graph.node
        if node.op_type in InsertAttentionMask.op_types
    )
    sources = {_find_given(each.tokens, view) for each in found if each is not None}
    return frozenset(sources & given)


def _find_given(name: str, view: GraphEditor) -> str:
    """Return the name of a mask before any casts."""
    for _ in range(_MAX_VIEWS):
        node = view.maker(name, "Cast", "Identity")
        if node is None:
            return name
        name = node.input[0]
    return name


def _other(node: onnx.NodeProto, name: str) -> str:
    return node.input[1] if node.input[0] == name else node.input[0]


def _takes_scores(
    node: onnx.NodeProto, mask: str, tokens: tuple[int, int], view: GraphEditor
) -> bool:
    scores = view.shape(_other(node, mask))
    fits = (
        scores is not None and len(scores) == _SCORES_RANK and scores == view.shape(node.output[0])
    )
    return (
        fits
        and scores is not None
        and (scores[0], *scores[2:]) == (tokens[0], tokens[1], tokens[1])
    )


def _read_mask(node: onnx.NodeProto, view: GraphEditor) -> _Mask | None:
    if view.type(node.output[0]) not in FLOAT_TYPES:
        return None
    if is_operator(node, "Mul"):
        left = _scaled(node, view)
    elif node.op_type in ("Where", "WhereV2"):
        left = _chosen(node, view)
    else:
        return None
    shown = _read_difference(left, view) if left else _shown(node, view)
    tokens = _find_tokens(shown, view) if shown else ""
    return _Mask(tokens, node.output[0]) if tokens else None


def _is_low(name: str, view: GraphEditor) -> bool:
    number = view.number(name)
    return number is not None and number <= _MIN_MASKED


def _scaled(node: onnx.NodeProto, view: GraphEditor) -> str:
    """Return the factor of a large negative number; "" for none."""
    left, right = node.input
    return left if _is_low(right, view) else right if _is_low(left, view) else ""


def _chosen(node: onnx.NodeProto, view: GraphEditor) -> str:
    """Return 1 - mask from the form of newer exporters: a large negative number where 1 - mask is
    not 0, else 1 - mask."""
    condition, lowest, otherwise = node.input
    cast = view.maker(condition, "Cast")
    fits = (
        cast is not None
        and cast.input[0] == otherwise
        and attribute(cast, "to") == TensorProto.BOOL
    )
    return otherwise if fits and _is_low(lowest, view) else ""


def _shown(node: onnx.NodeProto, view: GraphEditor) -> str:
    """Return the mask, as booleans, from the form of the newest exporters: 0 where it shows a
    token, else a large negative number. It may be combined with a constant mask of the tokens that
    see, if that is all true."""
    if node.op_type not in ("Where", "WhereV2"):
        return ""
    condition, zero, lowest = node.input
    if view.number(zero) != 0 or not _is_low(lowest, view):
        return ""
    both = view.maker(condition, "And")
    if both is None:
        return condition
    for truths, other in (both.input, both.input[::-1]):
        value = view.value(truths, _MAX_TRUTHS)
        if value is not None and value.all():
            return other
    return ""


def _read_difference(name: str, view: GraphEditor) -> str:
    """Return the mask in 1 - mask, which may have more axes behind the subtraction."""
    node = view.maker(_skip_views(name, view), "Sub")
    return node.input[1] if node is not None and view.number(node.input[0]) == 1 else ""


def _find_tokens(name: str, view: GraphEditor) -> str:
    """Return the tensor with one number for each token from which views make a mask. Booleans have
    lost the numbers of segments."""
    segments = _find_segments(name, view)
    if segments:
        return segments
    shape = view.shape(name)
    if shape is None or len(shape) != _SCORES_RANK or shape[1] != 1:
        return ""
    batch, tokens, source = shape[0], shape[-1], name
    for _ in range(_MAX_VIEWS):
        if view.shape(source) == (batch, tokens) and view.type(source) != TensorProto.BOOL:
            return source
        node = view.maker(source, *_MASK_VIEWS)
        if node is None or _reshapes_otherwise(node, tokens, view):
            return ""
        source = node.input[0]
    is_numbers = view.type(source) != TensorProto.BOOL
    return source if is_numbers and view.shape(source) == (batch, tokens) else ""


def _find_segments(name: str, view: GraphEditor) -> str:
    """Return the tensor of segments from which a mask says which tokens share a segment. Packed
    models without the chip's operator have such masks. The mask may have axes of one element
    besides [batch, tokens, tokens]."""
    cast = view.maker(_skip_views(name, view), "Cast")
    same = view.maker(_skip_views(cast.input[0], view), "Equal") if cast is not None else None
    shape = view.shape(same.output[0]) if same is not None else None
    if same is None or not shape or len(shape) < _MASK_RANK + 1 or shape[-1] != shape[-2]:
        return ""
    batch, tokens = shape[0], shape[-1]
    ends = {(view.shape(each) or ())[-2:]: _skip_views(each, view) for each in same.input}
    seen, seeing = (ends.get(side, "") for side in ((1, tokens), (tokens, 1)))
    return seen if seen == seeing and view.shape(seen) == (batch, tokens) else ""


def _skip_views(name: str, view: GraphEditor) -> str:
    """Return the name of a tensor before axes were added or removed."""
    for _ in range(_MAX_VIEWS):
        node = view.maker(name, "Identity", "Squeeze", "Unsqueeze")
        if node is None:
            break
        name = node.input[0]
    return name


def _reshapes_otherwise(node: onnx.NodeProto, tokens: int, view: GraphEditor) -> bool:
    """Return whether an Expand does not keep tokens last, or a Cast has lost numbers."""
    shape = view.shape(node.input[0])
    if node.op_type == "Cast":
        return view.type(node.input[0]) == TensorProto.BOOL
    # The other views keep the order of the elements.
    return node.op_type == "Expand" and (not shape or shape[-1] != tokens)


@register("replace_where_mask")
class ReplaceWhereMask(GraphRule):
    """Add masks to scores instead of choosing between scores and a large negative number, where the
    softmax follows: the choice is then among fewer elements.

    Rows of which all is hidden see what they would see without a mask, unless that number is large
    enough to swallow scores, as the lowest of float is.
    """

    op_types = frozenset(("Where", "WhereV2"))

    def matches(self, node: onnx.NodeProto) -> bool:
        """Return whether a node is a Where or Mul that may make a mask, the chip's own too."""
        return node.op_type in self.op_types and node.domain in ("", "ai.onnx", CHIP_DOMAIN)

    def look(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Replace a Where whose condition is the same for several heads or tokens."""
        condition, *sides = node.input
        lows = [index for index, name in enumerate(sides) if _is_low(name, view)]
        if len(lows) != 1 or view.reader(node.output[0], "Softmax", "LogSoftmax") is None:
            return
        scores, lowest = sides[1 - lows[0]], sides[lows[0]]
        shape, asked = view.shape(scores), view.shape(condition)
        is_smaller = shape is not None and asked is not None and np.prod(asked) < np.prod(shape)
        if not is_smaller or shape != view.shape(node.output[0]) or view.tensor(scores) is not None:
            return
        made = view.start(node, "added")
        zero = made.constant(0.0, view.dtype(scores))
        mask = made.new_name()
        chosen = (condition, lowest, zero) if lows[0] == 0 else (condition, zero, lowest)
        made.nodes.append(onnx.NodeProto())
        made.nodes[-1].CopyFrom(node)
        made.nodes[-1].input[:], made.nodes[-1].output[:] = chosen, [mask]
        made.nodes[-1].name = mask
        made.add_as(node.output[0], "Add", scores, mask)
        view.replace(node, made.nodes)
