"""Passes over the masks in the attention of transformers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import FLOAT_TYPES, find_inputs, iter_nodes
from simipu.operators import CHIP_DOMAIN

from poprt.rewrite.base import register
from poprt.rewrite.editor import GraphEditor
from poprt.rewrite.names import NameScope
from poprt.rewrite.patterns import AnyOf, Op, Operand, Pattern, Through, Var
from poprt.rewrite.rules import GraphRule
from poprt.rewrite.views import GraphView, is_operator

_MIN_MASKED = -1_000.0
"""Maximum number that counts as a mask when added to scores: e to the power of it is 0 in float."""
_MASK_VIEWS = ("Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that exporters put between a mask and the scores."""
_AXIS_VIEWS = ("Identity", "Squeeze", "Unsqueeze")
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

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
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


def _is_low(view: GraphView, name: str) -> bool:
    number = view.number(name)
    return number is not None and number <= _MIN_MASKED


def _is_all_true(view: GraphView, name: str) -> bool:
    value = view.value(name, _MAX_TRUTHS)
    return value is not None and bool(value.all())


def _is_no_conjunction(view: GraphView, name: str) -> bool:
    node = view.maker(name)
    return node is None or not is_operator(node, "And")


def _where(*inputs: Operand) -> Pattern:
    return Op("Where", *inputs) | Op("WhereV2", *inputs, domain=CHIP_DOMAIN)


_SHOWN, _LOW, _ALL = Var("shown"), Var("low", _is_low), Var("all", _is_all_true)
_HIDDEN = Through(_AXIS_VIEWS, 1.0 - _SHOWN).named("hidden")
_MASK = AnyOf(
    _HIDDEN * _LOW,
    # Newer exporters: a large negative number where 1 - mask is not 0, else 1 - mask.
    _where(Op("Cast", _HIDDEN, to=TensorProto.BOOL), _LOW, _HIDDEN),
    # The newest exporters: 0 where a mask of booleans shows a token. It may be combined with a
    # constant mask of the tokens that see, if that is all true.
    _where(Op("And", _ALL, _SHOWN) | Op("And", _SHOWN, _ALL), 0.0, _LOW),
    _where(Var("shown", _is_no_conjunction), 0.0, _LOW),
)
"""Masks that are added to scores. `shown` is what they are made from: 0 where a token is hidden."""


def _read_mask(node: onnx.NodeProto, view: GraphEditor) -> _Mask | None:
    if view.type(node.output[0]) not in FLOAT_TYPES:
        return None
    found = _MASK.find(node.output[0], view)
    tokens = _find_tokens(found["shown"], view) if found is not None else ""
    return _Mask(tokens, node.output[0]) if tokens else None


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


_SAME = Op("Equal", Var("seen"), Var("seeing")).named("same")
_SEGMENTS = Through(_AXIS_VIEWS, Op("Cast", Through(_AXIS_VIEWS, _SAME)))
"""Mask that says which tokens share a segment."""


def _find_segments(name: str, view: GraphEditor) -> str:
    """Return the tensor of segments from which a mask says which tokens share a segment. Packed
    models without the chip's operator have such masks. The mask may have axes of one element
    besides [batch, tokens, tokens]."""
    found = _SEGMENTS.find(name, view)
    shape = view.shape(found["same"]) if found is not None else None
    if found is None or not shape or len(shape) < _MASK_RANK + 1 or shape[-1] != shape[-2]:
        return ""
    batch, tokens = shape[0], shape[-1]
    ends = {
        (view.shape(each) or ())[-2:]: _skip_views(each, view)
        for each in (found["seen"], found["seeing"])
    }
    seen, seeing = (ends.get(side, "") for side in ((1, tokens), (tokens, 1)))
    return seen if seen == seeing and view.shape(seen) == (batch, tokens) else ""


def _skip_views(name: str, view: GraphEditor) -> str:
    """Return the name of a tensor before axes were added or removed."""
    for _ in range(_MAX_VIEWS):
        node = view.maker(name, *_AXIS_VIEWS)
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

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Replace a Where whose condition is the same for several heads or tokens."""
        condition, *sides = node.input
        lows = [index for index, name in enumerate(sides) if _is_low(view, name)]
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
