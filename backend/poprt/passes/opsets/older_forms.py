"""Rules that write nodes in older opsets, down to 11, by the same operator in another form.
`older_spellings` has the rules that use other operators.

An operator without a rule has kept its form; at most, newer opsets support more types.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import NUMBER_ATTRIBUTES, GraphView, NodeBuilder, Shape, attribute, find_value
from onnxgraph.opsets import AXES_ARE_INPUTS, DROPOUT_TAKES_MODE, REDUCTIONS_TAKE_AXES

from popef._tools.arrays import Array


class NoOlderFormError(Exception):
    """Reason why a node cannot be written in an older opset."""


@dataclass(slots=True)
class Older:
    """Node of the opset `source` to be written in the opset `target`, with a view of its graph."""

    node: onnx.NodeProto
    view: GraphView
    source: int
    target: int

    def crosses(self, version: int) -> bool:
        """Return whether the form that came with that opset must be replaced."""
        return self.source >= version > self.target

    def start(self) -> NodeBuilder:
        """Return an empty replacement of the node."""
        return self.view.start(self.node, "older")

    def name(self, place: int) -> str:
        """Return the name of an input; "" if it is missing."""
        return self.node.input[place] if place < len(self.node.input) else ""

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute; bytes are decoded."""
        value = attribute(self.node, name, default)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def constant(self, place: int, what: str) -> Array | None:
        """Return the constant at an input; None if the input is missing. Raise NoOlderFormError if
        it is computed."""
        if not self.name(place):
            return None
        value = find_value(self.view, self.name(place))
        if value is None:
            raise NoOlderFormError(
                f"its {what} would have to be constant, and {self.name(place)!r} is computed"
            )
        return value

    def values(self, place: int, what: str) -> Array:
        """Return the constant at a required input. Raise NoOlderFormError if it is missing or
        computed."""
        value = self.constant(place, what)
        if value is None:
            raise NoOlderFormError(f"it has no {what}")
        return value

    def shape(self, place: int = 0) -> Shape:
        """Return the static shape of an input. Raise NoOlderFormError if it is not known."""
        shape = self.view.shape(self.name(place))
        if shape is None:
            raise NoOlderFormError(
                f"the shape of its input {self.name(place)!r} is not known; give the inputs' "
                "with --input_shape"
            )
        return shape

    def rank(self, place: int = 0) -> int:
        """Return the number of dimensions of an input. Raise NoOlderFormError if it is not
        known."""
        rank = self.view.rank(self.name(place))
        if rank is None:
            raise NoOlderFormError(
                f"the number of dimensions of its input {self.name(place)!r} is not known"
            )
        return rank

    def without(
        self, dropped: Iterable[str], inputs: Sequence[str] | None = None, **added: Any
    ) -> onnx.NodeProto:
        """Return a copy of the node without some attributes, with others, and with other inputs if
        given."""
        made = copy.deepcopy(self.node)
        gone = {*dropped, *added}
        kept = [each for each in made.attribute if each.name not in gone]
        del made.attribute[:]
        made.attribute.extend(kept)
        made.attribute.extend(helper.make_attribute(name, value) for name, value in added.items())
        if inputs is not None:
            made.input[:] = inputs
        return made

    def refuse_unless(self, name: str, default: Any) -> None:
        """Raise NoOlderFormError if an attribute differs from the only value that older opsets
        support."""
        found = self.get(name, default)
        if found != default and not (default == [] and not found):
            raise NoOlderFormError(f"it has {name}={found!r}, which has no older form")


Rule = Callable[[Older], list[onnx.NodeProto] | None]
RULES: dict[str, Rule] = {}
"""Rules by operator; a rule returns the nodes that replace one, or None to keep it."""


def rule(*op_types: str, since: int = 0, rules: dict[str, Rule] = RULES) -> Callable[[Rule], Rule]:
    """Return a decorator that adds the rule of some operators to `rules`. Nodes stay unless the
    conversion crosses the opset `since`; 0 stands for any."""

    def add(made: Rule) -> Rule:
        def write(node: Older) -> list[onnx.NodeProto] | None:
            return made(node) if not since or node.crosses(since) else None

        rules.update(dict.fromkeys(op_types, write))
        return made

    return add


def _attributes_of_now(**defaults: Any) -> Rule:
    """Return the rule of an operator whose newer opsets only add attributes: attributes with the
    old behaviour are removed."""

    def drop(node: Older) -> list[onnx.NodeProto] | None:
        if not any(node.get(name) is not None for name in defaults):
            return None
        schema = onnx.defs.get_schema(node.node.op_type, node.target)
        gone = [name for name in defaults if name not in schema.attributes]
        for name in gone:
            node.refuse_unless(name, defaults[name])
        return [node.without(gone)] if gone else None

    return drop


RULES.update(
    Cast=_attributes_of_now(saturate=1, round_mode="up"),
    GatherND=_attributes_of_now(batch_dims=0),
    Range=_attributes_of_now(stash_type=1),
    ScatterElements=_attributes_of_now(reduction="none"),
    ScatterND=_attributes_of_now(reduction="none"),
    SpaceToDepth=_attributes_of_now(mode="DCR"),
)


_UNCHANGED_BY_ONE = "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum".split()
"""Reductions that return an element as it is."""


@rule("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
      "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare")  # fmt: skip
def reduce(node: Older) -> list[onnx.NodeProto] | None:
    """Convert axes from an input to an attribute."""
    version = AXES_ARE_INPUTS if node.node.op_type == "ReduceSum" else REDUCTIONS_TAKE_AXES
    if not node.crosses(version):
        return None
    axes = node.constant(1, "axes")
    given = [] if axes is None else [int(axis) for axis in axes.ravel()]
    if not given and node.get("noop_with_empty_axes", 0):
        if node.node.op_type not in _UNCHANGED_BY_ONE:
            raise NoOlderFormError("without axes it reduces nothing, which older opsets cannot say")
        return [helper.make_node("Identity", [node.name(0)], node.node.output, node.node.name)]
    added = {"axes": given} if given else {}
    return [node.without(["noop_with_empty_axes"], [node.name(0)], **added)]


@rule("Squeeze", "Unsqueeze", since=AXES_ARE_INPUTS)
def squeeze(node: Older) -> list[onnx.NodeProto] | None:
    """Convert axes from an input to an attribute."""
    axes = node.constant(1, "axes")
    added = {} if axes is None else {"axes": [int(axis) for axis in axes.ravel()]}
    return [node.without([], [node.name(0)], **added)]


@rule("Split")
def split(node: Older) -> list[onnx.NodeProto] | None:
    """Convert a number of parts, the last of which may be smaller, to sizes, and sizes from an
    input to an attribute."""
    numbered = node.crosses(18) and node.get("num_outputs") is not None
    sized = node.crosses(AXES_ARE_INPUTS)
    if not numbered and not sized:
        return None
    value = node.constant(1, "sizes") if sized else None
    sizes = None if value is None else value.ravel().tolist()
    if numbered and node.view.shape(node.name(0)) is not None:
        sizes = _part(node)  # without a known size, assume equal parts, as nearly always
    if sizes is not None and not sized:
        chain = node.start()
        return [node.without(["num_outputs"], [node.name(0), chain.shape(sizes)])]
    added = {} if sizes is None else {"split": sizes}
    return [node.without(["num_outputs"], [node.name(0)], **added)]


def _part(node: Older) -> list[int]:
    count, size = len(node.node.output), node.shape()[node.get("axis", 0)]
    part = math.ceil(size / max(1, count))
    return [max(0, min(part, size - part * number)) for number in range(count)]


@rule("Softmax", "LogSoftmax", "Hardmax", since=13)
def softmax(node: Older) -> list[onnx.NodeProto] | None:
    """Move the axis to the end. Older opsets take the axis and all axes behind it as one, which is
    the same for the last axis."""
    axis = node.get("axis", -1)
    if axis == -1 or axis == (rank := node.rank()) - 1:
        return [node.without([], axis=axis)]
    order = list(range(rank))
    order[axis % rank], order[-1] = order[-1], order[axis % rank]
    chain = node.start()
    turned = chain.add("Transpose", node.name(0), perm=order)
    made = chain.add(node.node.op_type, turned, axis=rank - 1)
    chain.add_as(node.node.output[0], "Transpose", made, perm=order)
    return chain.end(node.node)


@rule("Pad")
def pad(node: Older) -> list[onnx.NodeProto] | None:
    """Expand pads of some axes to all axes. Reject the mode `wrap`."""
    if node.crosses(19) and node.get("mode") == "wrap":
        raise NoOlderFormError("it has mode='wrap', which has no older form")
    if not node.crosses(18) or not node.name(3):
        return None
    axes, pads, rank = node.values(3, "axes"), node.values(1, "pads"), node.rank()
    whole = [0] * (2 * rank)
    for place, axis in enumerate(axes.ravel().tolist()):
        whole[axis % rank] = int(pads[place])
        whole[axis % rank + rank] = int(pads[place + axes.size])
    chain = node.start()
    return [node.without([], [node.name(0), chain.shape(whole), *filter(None, [node.name(2)])])]


@rule("Resize")
def resize(node: Older) -> list[onnx.NodeProto] | None:
    """Add empty regions and scales, which are required, and expand sizes or scales of some axes to
    all axes."""
    if node.crosses(19) and node.get("coordinate_transformation_mode") == "half_pixel_symmetric":
        raise NoOlderFormError("it has coordinate_transformation_mode='half_pixel_symmetric'")
    inputs = [node.name(place) for place in range(4)]
    chain = node.start()
    if node.crosses(18):
        node.refuse_unless("antialias", 0)
        if inputs[3]:
            node.refuse_unless("keep_aspect_ratio_policy", "stretch")
        axes = node.get("axes")
        if axes is not None:
            if inputs[1]:
                raise NoOlderFormError("it has a region for some axes only")
            if inputs[2]:
                inputs[2] = chain.constant(_spread(node, axes, 2, [1.0] * node.rank()), np.float32)
            else:
                inputs[3] = chain.shape(_spread(node, axes, 3, node.shape()))
    if node.crosses(13):
        empty = [place for place in (1, 2) if not inputs[place]]
        for place in empty:
            inputs[place] = chain.constant([], np.float32)
    while not inputs[-1]:
        inputs.pop()
    gone = ["antialias", "axes", "keep_aspect_ratio_policy"] if node.crosses(18) else []
    made = node.without(gone, inputs)
    return None if made == node.node else [made]


def _spread(node: Older, axes: Sequence[int], place: int, whole: Sequence[Any]) -> list[Any]:
    """Return the values of an input at some axes, and `whole` at the others."""
    values, spread = node.values(place, "scales or sizes"), list(whole)
    for axis, value in zip(axes, values.tolist(), strict=True):
        spread[axis] = value
    return spread


@rule("BatchNormalization", since=14)
def batch_normalization(node: Older) -> list[onnx.NodeProto] | None:
    """Remove the attribute for training; the number of results implies it in older opsets."""
    node.refuse_unless("training_mode", 0)
    return [node.without(["training_mode"])]


@rule("Dropout", since=DROPOUT_TAKES_MODE)
def dropout(node: Older) -> list[onnx.NodeProto] | None:
    """Replace a Dropout in inference by an Identity: it drops nothing, whatever the ratio."""
    trains = node.constant(2, "training_mode")
    if trains is not None and trains.any():
        raise NoOlderFormError("it drops at random, as in training")
    chain = node.start()
    results = [*node.node.output, ""]
    if results[1]:
        shape = chain.add("Shape", node.name(0))
        filled = helper.make_tensor("", TensorProto.BOOL, [1], [True])
        chain.add_as(results[1], "ConstantOfShape", shape, value=filled)
    chain.add_as(results[0], "Identity", node.name(0))
    return chain.end(node.node)


@rule("Reshape", since=14)
def reshape(node: Older) -> list[onnx.NodeProto] | None:
    """Remove allowzero; in older opsets a size of 0 always means that of the input."""
    if node.get("allowzero") is None:
        return None
    if node.get("allowzero"):
        target = node.values(1, "shape")
        empty = np.flatnonzero(target == 0)
        shape = node.shape() if empty.size else ()
        if any(place >= len(shape) or shape[place] for place in empty):
            raise NoOlderFormError("it makes a dimension of no elements of one that has some")
    return [node.without(["allowzero"])]


@rule("LSTM", "GRU", "RNN", since=14)
def recurrent(node: Older) -> list[onnx.NodeProto] | None:
    """Insert Transposes around a batch-first node, since older opsets are time-first only."""
    if node.get("layout") is None:
        return None
    if not node.get("layout"):
        return [node.without(["layout"])]
    chain = node.start()
    inputs = list(node.node.input)
    for place in (0, 5, 6):
        if node.name(place):
            inputs[place] = chain.add("Transpose", node.name(place), perm=[1, 0, 2])
    made = node.without(["layout"], inputs)
    chain.nodes.append(made)
    for place, name in enumerate(node.node.output):
        if name:
            made.output[place] = chain.new_name()
            order = [1, 0, 2] if place else [2, 0, 1, 3]
            chain.add_as(name, "Transpose", made.output[place], perm=order)
    return chain.nodes


@rule("Shape", since=15)
def shape(node: Older) -> list[onnx.NodeProto] | None:
    """Slice the whole shape for a part of it."""
    start, end = node.get("start", 0), node.get("end")
    if not start and end is None:
        return [node.without(["start", "end"])] if node.node.attribute else None
    chain = node.start()
    whole = chain.add("Shape", node.name(0))
    last = np.iinfo(np.int64).max if end is None else end
    chain.add_as(node.node.output[0], "Slice", whole, chain.shape([start]), chain.shape([last]))
    return chain.end(node.node)


@rule("ArgMax", "ArgMin", since=12)
def arg(node: Older) -> list[onnx.NodeProto] | None:
    """Find the last of several extremes as the first in reverse order; older opsets find the first
    only."""
    if node.get("select_last_index") is None:
        return None
    if not node.get("select_last_index"):
        return [node.without(["select_last_index"])]
    axis, chain = node.get("axis", 0) % max(1, node.rank()), node.start()
    ends = [chain.shape([each]) for each in (-1, np.iinfo(np.int64).min, axis, -1)]
    turned = chain.add("Slice", node.name(0), *ends)
    found = chain.add(node.node.op_type, turned, axis=axis, keepdims=node.get("keepdims", 1))
    last = chain.constant(node.shape()[axis] - 1, np.int64)
    chain.add_as(node.node.output[0], "Sub", last, found)
    return chain.end(node.node)


@rule("AveragePool", "LpPool")
def pool(node: Older) -> list[onnx.NodeProto] | None:
    """Reject dilations, which older opsets lack."""
    is_mean = node.node.op_type == "AveragePool"
    if not node.crosses(19 if is_mean else 18):
        return None
    if set(node.get("dilations", [1])) != {1}:
        raise NoOlderFormError(
            f"it has dilations={node.get('dilations')}, which have no older form"
        )
    if not is_mean:
        node.refuse_unless("ceil_mode", 0)
    return [node.without(["dilations"] if is_mean else ["dilations", "ceil_mode"])]


@rule("Mod", since=28)
def remainder(node: Older) -> list[onnx.NodeProto] | None:
    """Reject fmod=0 for floats: older opsets support floats only with the sign of the dividend."""
    if node.view.is_float(node.name(0)) and not node.get("fmod", 0):
        raise NoOlderFormError("it has fmod=0 for floats, which has no older form")
    return None


@rule("RoiAlign", since=16)
def roi_align(node: Older) -> list[onnx.NodeProto] | None:
    """Remove the mode if it is output_half_pixel, the only one in older opsets and not today's
    default."""
    mode = node.get("coordinate_transformation_mode", "half_pixel")
    if mode != "output_half_pixel":
        raise NoOlderFormError(
            f"it has coordinate_transformation_mode={mode!r}; only output_half_pixel is old"
        )
    return [node.without(["coordinate_transformation_mode"])]


@rule("GridSample", since=20)
def grid_sample(node: Older) -> list[onnx.NodeProto] | None:
    """Rename modes after those for planes."""
    mode = node.get("mode", "linear")
    if node.view.rank(node.name(0)) not in (None, 4):
        raise NoOlderFormError("it samples volumes; older opsets have planes only")
    return [node.without([], mode={"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode))]


@rule("DFT", since=20)
def fourier(node: Older) -> list[onnx.NodeProto] | None:
    """Convert the axis from an input to an attribute, which has another default."""
    axis = node.constant(2, "axis")
    inputs = [each for each in (node.name(0), node.name(1)) if each]
    return [node.without([], inputs, axis=-2 if axis is None else int(axis))]


@rule("Constant", since=12)
def constant(node: Older) -> list[onnx.NodeProto] | None:
    """Convert numbers in other attributes to a tensor."""
    name = node.node.attribute[0].name if node.node.attribute else ""
    if name not in NUMBER_ATTRIBUTES:
        return None
    value = onnx.numpy_helper.from_array(np.asarray(node.get(name), NUMBER_ATTRIBUTES[name]))
    return [node.without([name], value=value)]
