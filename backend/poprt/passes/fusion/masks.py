"""Passes over the masks in the attention of transformers, and the pass that pads its keys to a
multiple of the chip's vector size."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import (
    CHIP_DOMAIN,
    FLOAT_TYPES,
    GraphEditor,
    GraphView,
    NameScope,
    Tape,
    Value,
    attribute,
    find_inputs,
    has_data,
    is_movable,
    is_operator,
    iter_nodes,
    read_array,
)
from onnxgraph.opsets import SOFTMAX_HAS_ONE_AXIS
from simipu.operators import Family, Moves, names_where, operator_of

from poprt.rewrite.base import register
from poprt.rewrite.patterns import AnyOf, Op, Operand, Pattern, Through, Var
from poprt.rewrite.rules import GraphRule

_MIN_MASKED = -1_000.0
"""Maximum number that counts as a mask when added to scores: e to the power of it is 0 in float."""
_AXIS_VIEWS = tuple(
    names_where(lambda entry: entry.keeps_order and entry.moves is not Moves.RESHAPED)
)
_SOFTMAXES = names_where(lambda entry: entry.family is Family.SOFTMAX)
_MAX_VIEWS = 8
_MASK_RANK, _SCORES_RANK = 2, 4
_MAX_TRUTHS = 2**26
"""Maximum number of elements of a constant that says which tokens see which."""


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
        segments, result = _find_masked(node, view), node.output[0]
        if not segments:
            return
        batch, tokens = view.shape(segments) or (0, 0)
        adds = [
            add
            for add in view.readers.get(result, {}).values()
            if is_operator(add, "Add") and _takes_scores(add, result, (batch, tokens), view)
        ]
        if not adds:
            return
        adds.sort(key=view.place)
        scores = _other(adds[0], result)
        op = view.start(node, "segments")
        if view.type(segments) != TensorProto.INT32:
            segments = op.add("Cast", segments, to=TensorProto.INT32)
        is_half = view.type(result) == TensorProto.FLOAT16
        mask = op.new_name()
        op.chip_as(
            mask, "AttentionMask", segments, scores, dataType="FLOAT16" if is_half else "FLOAT"
        )
        for place, add in enumerate(adds):
            changed = copy.deepcopy(add)
            changed.input[:] = [mask if name == result else name for name in add.input]
            view.rewrite(add, [*(op.nodes if place == 0 else []), changed], [add])


def find_mask_inputs(graph: onnx.GraphProto, known: onnx.GraphProto) -> frozenset[str]:
    """Return the inputs of a graph that are masks: one number for each token, used as (1 - mask)
    times a large negative number. `known` has the shapes of the graph."""
    view = GraphEditor(NameScope(graph, 1), graph, known)
    view.index()
    inputs = {value.name for value in find_inputs(graph)}
    masks = (
        _find_masked(node, view)
        for node in graph.node
        if node.op_type in InsertAttentionMask.op_types
    )
    sources = {_find_given(mask, view) for mask in masks if mask}
    return frozenset(sources & inputs)


def _find_given(name: str, view: GraphEditor) -> str:
    """Return the name of a mask before any casts."""
    for _ in range(_MAX_VIEWS):
        node = view.maker(name)
        is_cast = node is not None and is_operator(node, "Cast")
        if node is None or not (is_cast or operator_of(node).moves_of(node) is Moves.COPIED):
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


def _find_masked(node: onnx.NodeProto, view: GraphEditor) -> str:
    """Return the tensor [batch, tokens] from which a node makes a mask that is added to scores. The
    mask hides tokens where that is 0. Return "" for other nodes."""
    is_float = view.type(node.output[0]) in FLOAT_TYPES
    match = _MASK.find(node.output[0], view) if is_float else None
    return _find_tokens(match["shown"], view) if match is not None else ""


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
        node = view.maker(source)
        if node is None or not _is_view(node) or _reshapes_otherwise(node, tokens, view):
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
    match = _SEGMENTS.find(name, view)
    shape = view.shape(match["same"]) if match is not None else None
    if match is None or not shape or len(shape) < _MASK_RANK + 1 or shape[-1] != shape[-2]:
        return ""
    batch, tokens = shape[0], shape[-1]
    ends = {
        (view.shape(side) or ())[-2:]: _skip_views(side, view)
        for side in (match["seen"], match["seeing"])
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


def _is_view(node: onnx.NodeProto) -> bool:
    """Return whether exporters put an operator between a mask and the scores."""
    operator = operator_of(node)
    is_view = operator.keeps_order or operator.moves is Moves.REPEATED
    return is_view or is_operator(node, "Cast")


def _reshapes_otherwise(node: onnx.NodeProto, tokens: int, view: GraphEditor) -> bool:
    """Return whether a repetition does not keep tokens last, or a Cast has lost numbers."""
    shape = view.shape(node.input[0])
    if node.op_type == "Cast":
        return view.type(node.input[0]) == TensorProto.BOOL
    # The other views keep the order of the elements.
    repeats = operator_of(node).moves is Moves.REPEATED
    return repeats and (not shape or shape[-1] != tokens)


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
        if len(lows) != 1 or view.reader(node.output[0], *_SOFTMAXES) is None:
            return
        scores, lowest = sides[1 - lows[0]], sides[lows[0]]
        shape, condition_shape = view.shape(scores), view.shape(condition)
        is_smaller = (
            shape is not None
            and condition_shape is not None
            and np.prod(condition_shape) < np.prod(shape)
        )
        if not is_smaller or shape != view.shape(node.output[0]) or view.tensor(scores) is not None:
            return
        op = view.start(node, "added")
        zero = op.constant(0.0, view.dtype(scores))
        mask = op.new_name()
        chosen = (condition, lowest, zero) if lows[0] == 0 else (condition, zero, lowest)
        op.nodes.append(copy.deepcopy(node))
        op.nodes[-1].input[:], op.nodes[-1].output[:] = chosen, [mask]
        op.nodes[-1].name = mask
        op.add_as(node.output[0], "Add", scores, mask)
        view.replace(node, op.nodes)


_GRAIN = 16
"""Number of keys that a product keeps together on a tile (poplin's partialChansPerGroup). The real
pass pads operands of products to a size that is not public."""
_MAX_STEPS = 8
"""Maximum number of steps between the scores' product and their softmax; a known model has 5."""


@dataclass(frozen=True, slots=True)
class _Attention:
    """Nodes of Softmax(steps(queries x keys)) x values."""

    scores: onnx.NodeProto
    steps: list[onnx.NodeProto]
    """Steps behind the scores; the softmax is the last."""
    end: onnx.NodeProto
    keys: int
    """Number of keys before the padding."""


@register("attention_padding")
class AttentionPadding(GraphRule):
    """Pad keys and values of attention, if they are more than 16 tokens, to a multiple of these, so
    that neither products nor softmax end in the middle of a vector: 49, 77 and 197 keys become 64,
    80 and 208.

    A large negative number is added to the scores of keys that are none, in the mask if there is
    one: their shares are 0, but for queries that a mask of the lowest number hides all keys from.
    """

    op_types = frozenset(("Softmax",))

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Pad the attention around the softmax between both products."""
        attention = _read_attention(node, view)
        if attention is not None:
            op = view.start(attention.end, "padded")
            _build(attention, op, view)
            view.rewrite(attention.end, op.nodes, [attention.end])


def _read_attention(softmax: onnx.NodeProto, view: GraphEditor) -> _Attention | None:
    shape, end = view.shape(softmax.input[0]), view.reader(softmax.output[0], "MatMul")
    if not shape or end is None or end.input[0] != softmax.output[0] or len(set(end.input)) == 1:
        return None
    default = -1 if view.opset >= SOFTMAX_HAS_ONE_AXIS else 1
    keys, axis = shape[-1], attribute(softmax, "axis", default)
    if keys < _GRAIN or keys % _GRAIN == 0 or axis not in (-1, len(shape) - 1):
        return None
    steps = _read_steps(softmax, keys, view)
    scores = view.maker(steps[0].input[_main(steps[0], view)], "MatMul") if steps else None
    values = view.shape(end.input[1])
    if scores is None or not values or len(values) < 2 or values[-2] != keys:  # noqa: PLR2004  a matrix
        return None
    made_of = [view.shape(name) for name in scores.input]
    fits = all(
        operand_shape is not None and len(operand_shape) > 1 for operand_shape in made_of
    ) and not _is_of_weight(scores, view)
    return _Attention(scores, steps, end, keys) if fits else None


def _is_of_weight(product: onnx.NodeProto, view: GraphEditor) -> bool:
    """Return whether an operand of a product is a weight. Then it is a layer, not attention."""
    return any(view.tensor(name) is not None for name in product.input)


def _read_steps(softmax: onnx.NodeProto, keys: int, view: GraphEditor) -> list[onnx.NodeProto]:
    """Return the steps from the scores to the softmax, if each is read by the next step only.
    Return an empty list if they do not begin at a product."""
    steps = [softmax]
    for _ in range(_MAX_STEPS):
        name = steps[0].input[_main(steps[0], view)]
        node = view.makers.get(name)
        if node is None or not view.is_read_once(name) or (view.shape(name) or ())[-1:] != (keys,):
            return []
        if is_operator(node, "MatMul"):
            return steps
        if not _is_step(node) or not _keeps_keys(node, keys, view):
            return []
        steps.insert(0, node)
    return []


def _is_step(node: onnx.NodeProto) -> bool:
    """Return whether exporters put an operator between the product of queries and keys and the
    softmax: sums, products and quotients with a mask or a number, and reshapes."""
    return operator_of(node).neutral is not None or is_operator(node, "Reshape")


def _main(node: onnx.NodeProto, view: GraphEditor) -> int:
    """Return the index of a step's input that has the scores. The other input has the shape of a
    mask, or is a number."""
    if len(node.input) == 1 or not operator_of(node).commutes:
        return 0
    shape = view.shape(node.output[0])
    chains = [
        i
        for i, name in enumerate(node.input)
        if view.shape(name) == shape and view.tensor(name) is None
    ]
    for place in chains:
        maker = view.makers.get(node.input[place])
        if maker is not None and (is_operator(maker, "MatMul") or _is_step(maker)):
            return place
    return chains[0] if chains else 0


def _keeps_keys(node: onnx.NodeProto, keys: int, view: GraphEditor) -> bool:
    """Return whether a step keeps each key in its column, and may be applied to the added keys."""
    main = _main(node, view)
    if (view.shape(node.input[main]) or ())[-1:] != (keys,):
        return False
    if node.op_type == "Reshape":
        return bool(view.numbers(node.input[1]))
    other = view.shape(node.input[1 - main])
    return other is not None and (node.op_type == "Add" or other[-1:] in ((), (1,)))


def _build(found: _Attention, made: Tape, view: GraphEditor) -> None:
    queries, keys = found.scores.input
    added, dtype = -found.keys % _GRAIN, view.dtype(found.scores.output[0])
    scores_type = view.type(found.scores.output[0])
    padded_keys = _pad_end(made.read(keys, scores_type), len(view.shape(keys) or ()), -1, added)
    result: str = made.MatMul(queries, padded_keys)
    made.nodes[-1].name = found.scores.name
    lowest = float(np.finfo(dtype).min)
    masks = [step for step in found.steps if _is_mask(step, found.keys, view)]
    for step in found.steps:
        if step is found.steps[-1] and not masks:
            hidden = np.where(np.arange(found.keys + added) < found.keys, 0, lowest)
            result = made.add("Add", result, made.constant(hidden, dtype))
        node = copy.deepcopy(step)
        node.input[_main(step, view)] = result
        if step in masks:
            place = 1 - _main(step, view)
            fill = lowest if step is masks[-1] else 0.0
            node.input[place] = _pad_mask(step.input[place], added, fill, made, view)
        elif step.op_type == "Reshape":
            sizes = view.numbers(step.input[1]) or []
            node.input[1] = made.ints([*sizes[:-1], found.keys + added])
        result = node.output[0] = made.new_name()
        made.nodes.append(node)
    values = found.end.input[1]
    rank = len(view.shape(values) or ())
    padded_values = _pad_end(made.read(values, scores_type), rank, -2, added)
    made.add_as(found.end.output[0], "MatMul", result, padded_values)
    made.nodes[-1].name = found.end.name


def _is_mask(step: onnx.NodeProto, keys: int, view: GraphEditor) -> bool:
    if step.op_type != "Add":
        return False
    return (view.shape(step.input[1 - _main(step, view)]) or ())[-1:] == (keys,)


def _pad_end(source: Value, rank: int, axis: int, added: int, fill: float = 0.0) -> Value:
    """Append so many elements at the end of one axis, which is negative."""
    pads = [0] * (2 * rank)
    pads[axis] = added
    return source.tape.Pad(source, pads=pads, value=fill)


def _pad_mask(name: str, added: int, fill: float, made: Tape, view: GraphEditor) -> str:
    """Return the name of a mask padded for the added keys. A padded weight is a new weight."""
    tensor, rank, dtype = view.tensor(name), len(view.shape(name) or ()), view.dtype(name)
    if tensor is None or not is_movable(tensor):
        return _pad_end(made.read(name, view.type(name)), rank, -1, added, fill)
    if not has_data(tensor):
        dims = [*tensor.dims[:-1], tensor.dims[-1] + added]
        return view.names.hold_unread(f"{name}/padded", tensor.data_type, dims)
    widths = [(0, 0)] * (rank - 1) + [(0, added)]
    return made.constant(np.pad(read_array(tensor), widths, constant_values=fill), dtype)
