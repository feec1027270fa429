"""Pass that pads the keys of attention to a multiple of the chip's vector size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnxgraph import attribute
from onnxgraph.opsets import SOFTMAX_HAS_ONE_AXIS
from onnxgraph.weights import has_data, read_array

from poprt.rewrite.base import register
from poprt.rewrite.editor import GraphEditor, is_movable
from poprt.rewrite.names import NodeBuilder
from poprt.rewrite.rules import GraphRule
from poprt.rewrite.views import is_operator

_GRAIN = 16
"""Number of keys that a product keeps together on a tile (poplin's partialChansPerGroup). The real
pass pads operands of products to a size that is not public."""
_MAX_STEPS = 8
"""Maximum number of steps between the scores' product and their softmax; a known model has 5."""
_STEPS = ("Add", "Div", "Mul", "Reshape")
"""Operators that exporters put between the product of queries and keys and the softmax."""


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
        found = _read_attention(node, view)
        if found is not None:
            made = view.start(found.end, "padded")
            _build(found, made, view)
            view.rewrite(found.end, made.nodes, [found.end])


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
    fits = all(each is not None and len(each) > 1 for each in made_of) and not _is_of_weight(
        scores, view
    )
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
        if not is_operator(node, *_STEPS) or not _keeps_keys(node, keys, view):
            return []
        steps.insert(0, node)
    return []


def _main(node: onnx.NodeProto, view: GraphEditor) -> int:
    """Return the index of a step's input that has the scores. The other input has the shape of a
    mask, or is a number."""
    if len(node.input) == 1 or node.op_type in ("Reshape", "Div"):
        return 0
    shape = view.shape(node.output[0])
    chains = [
        i
        for i, name in enumerate(node.input)
        if view.shape(name) == shape and view.tensor(name) is None
    ]
    for place in chains:
        maker = view.makers.get(node.input[place])
        if maker is not None and is_operator(maker, "MatMul", *_STEPS):
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


def _build(found: _Attention, made: NodeBuilder, view: GraphEditor) -> None:
    queries, keys = found.scores.input
    added, dtype = -found.keys % _GRAIN, view.dtype(found.scores.output[0])
    result = made.add(
        "MatMul", queries, made.pad(keys, len(view.shape(keys) or ()), -1, added, 0, dtype)
    )
    made.nodes[-1].name = found.scores.name
    lowest = float(np.finfo(dtype).min)
    masks = [each for each in found.steps if _is_mask(each, found.keys, view)]
    for step in found.steps:
        if step is found.steps[-1] and not masks:
            hidden = np.where(np.arange(found.keys + added) < found.keys, 0, lowest)
            result = made.add("Add", result, made.constant(hidden, dtype))
        node = onnx.NodeProto()
        node.CopyFrom(step)
        node.input[_main(step, view)] = result
        if step in masks:
            place = 1 - _main(step, view)
            fill = lowest if step is masks[-1] else 0.0
            node.input[place] = _pad_mask(step.input[place], added, fill, made, view)
        elif step.op_type == "Reshape":
            sizes = view.numbers(step.input[1]) or []
            node.input[1] = made.shape([*sizes[:-1], found.keys + added])
        result = node.output[0] = made.new_name()
        made.nodes.append(node)
    values = found.end.input[1]
    rank = len(view.shape(values) or ())
    made.add_as(found.end.output[0], "MatMul", result, made.pad(values, rank, -2, added, 0, dtype))
    made.nodes[-1].name = found.end.name


def _is_mask(step: onnx.NodeProto, keys: int, view: GraphEditor) -> bool:
    if step.op_type != "Add":
        return False
    return (view.shape(step.input[1 - _main(step, view)]) or ())[-1:] == (keys,)


def _pad_mask(name: str, added: int, fill: float, made: NodeBuilder, view: GraphEditor) -> str:
    """Return the name of a mask padded for the added keys. A padded weight is a new weight."""
    tensor, rank, dtype = view.tensor(name), len(view.shape(name) or ()), view.dtype(name)
    if tensor is None or not is_movable(tensor):
        return made.pad(name, rank, -1, added, fill, dtype)
    if not has_data(tensor):
        dims = [*tensor.dims[:-1], tensor.dims[-1] + added]
        return made.names.hold_unread(f"{name}/padded", tensor.data_type, dims)
    widths = [(0, 0)] * (rank - 1) + [(0, added)]
    return made.constant(np.pad(read_array(tensor), widths, constant_values=fill), dtype)
