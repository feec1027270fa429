"""Rules that write nodes in older opsets, down to 11, by the same operator in another form.
`older_spellings` has the rules that use other operators.

An operator without a rule has kept its form; at most, newer opsets support more types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import (
    NUMBER_ATTRIBUTES,
    GraphView,
    Results,
    Site,
    Tape,
    UnknownFactError,
    Value,
    expansions,
    find_value,
)
from onnxgraph.opsets import AXES_ARE_INPUTS, DROPOUT_TAKES_MODE, REDUCTIONS_TAKE_AXES
from simipu.operators import operator_of

from popef._tools.arrays import Array


class NoOlderFormError(UnknownFactError):
    """Reason why a node cannot be written in an older opset."""


@dataclass(slots=True)
class Older(Site[GraphView]):
    """Node of the opset `source` to be written in the opset `target`."""

    source: int
    target: int

    def crosses(self, version: int) -> bool:
        """Return whether the form that came with that opset must be replaced."""
        return self.source >= version > self.target

    def name(self, place: int) -> str:
        """Return the name of an input; "" if it is missing."""
        return self.node.input[place] if place < len(self.node.input) else ""

    def constant(self, place: int, what: str) -> Array | None:
        """Return the constant at an input; None if the input is missing. Raise NoOlderFormError if
        it is computed."""
        if not self.name(place):
            return None
        value = find_value(self.facts, self.name(place))
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

    def without(
        self, dropped: Iterable[str], inputs: Sequence[str] | None = None, **added: Any
    ) -> list[Value]:
        """Add a copy of the node without some attributes, with others, and with other inputs if
        given. Return its results."""
        return self.op.copy(self.node, inputs, dropped, **added)

    def refuse_unless(self, name: str, default: Any) -> None:
        """Raise NoOlderFormError if an attribute differs from the only value that older opsets
        support."""
        value = self.get(name, default)
        if value != default and not (default == [] and not value):
            raise NoOlderFormError(f"it has {name}={value!r}, which has no older form")


Rule = Callable[[Tape, Older], Results | None]
RULES: dict[str, Rule] = {}
"""Rules by operator; a rule writes the nodes that replace one and returns their results, or None to
keep the node."""


def rule(*op_types: str, since: int = 0, rules: dict[str, Rule] = RULES) -> Callable[[Rule], Rule]:
    """Return a decorator that adds the rule of some operators to `rules`. Nodes stay unless the
    conversion crosses the opset `since`; 0 stands for any."""

    def add(function: Rule) -> Rule:
        def write(op: Tape, node: Older) -> Results | None:
            return function(op, node) if not since or node.crosses(since) else None

        rules.update(dict.fromkeys(op_types, write))
        return function

    return add


def _attributes_of_now(**defaults: Any) -> Rule:
    """Return the rule of an operator whose newer opsets only add attributes: attributes with the
    old behaviour are removed."""

    def drop(_op: Tape, node: Older) -> Results | None:
        if not any(node.get(name) is not None for name in defaults):
            return None
        schema = onnx.defs.get_schema(node.node.op_type, node.target)
        gone = [name for name in defaults if name not in schema.attributes]
        for name in gone:
            node.refuse_unless(name, defaults[name])
        return node.without(gone) if gone else None

    return drop


RULES.update(
    Cast=_attributes_of_now(saturate=1, round_mode="up"),
    GatherND=_attributes_of_now(batch_dims=0),
    Range=_attributes_of_now(stash_type=1),
    ScatterElements=_attributes_of_now(reduction="none"),
    ScatterND=_attributes_of_now(reduction="none"),
    SpaceToDepth=_attributes_of_now(mode="DCR"),
)


@rule("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
      "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare")  # fmt: skip
def reduce(op: Tape, node: Older) -> Results | None:
    """Convert axes from an input to an attribute."""
    version = AXES_ARE_INPUTS if node.node.op_type == "ReduceSum" else REDUCTIONS_TAKE_AXES
    if not node.crosses(version):
        return None
    axes = node.constant(1, "axes")
    listed = [] if axes is None else [int(axis) for axis in axes.ravel()]
    if not listed and node.get("noop_with_empty_axes", 0):
        if not operator_of(node.node).keeps_single:
            raise NoOlderFormError("without axes it reduces nothing, which older opsets cannot say")
        return op.Identity(node.x)
    added = {"axes": listed} if listed else {}
    return node.without(["noop_with_empty_axes"], [node.name(0)], **added)


@rule("Squeeze", "Unsqueeze", since=AXES_ARE_INPUTS)
def squeeze(_op: Tape, node: Older) -> Results | None:
    """Convert axes from an input to an attribute."""
    axes = node.constant(1, "axes")
    added = {} if axes is None else {"axes": [int(axis) for axis in axes.ravel()]}
    return node.without([], [node.name(0)], **added)


@rule("Split")
def split(op: Tape, node: Older) -> Results | None:
    """Convert a number of parts, the last of which may be smaller, to sizes, and sizes from an
    input to an attribute."""
    numbered = node.crosses(18) and node.get("num_outputs") is not None
    sized = node.crosses(AXES_ARE_INPUTS)
    if not numbered and not sized:
        return None
    value = node.constant(1, "sizes") if sized else None
    sizes = None if value is None else value.ravel().tolist()
    if numbered and node.facts.shape(node.name(0)) is not None:
        sizes = _part(node)  # without a known size, assume equal parts, as nearly always
    if sizes is not None and not sized:
        return node.without(["num_outputs"], [node.x, op.ints(sizes)])
    added = {} if sizes is None else {"split": sizes}
    return node.without(["num_outputs"], [node.x], **added)


def _part(node: Older) -> list[int]:
    count, size = len(node.node.output), node.shape()[node.get("axis", 0)]
    part = math.ceil(size / max(1, count))
    return [max(0, min(part, size - part * number)) for number in range(count)]


@rule("Softmax", "LogSoftmax", "Hardmax", since=13)
def softmax(op: Tape, node: Older) -> Results | None:
    """Move the axis to the end. Older opsets take the axis and all axes behind it as one, which is
    the same for the last axis."""
    axis = node.get("axis", -1)
    if axis == -1 or axis == node.rank() - 1:
        return node.without([], axis=axis)
    return expansions.softmax(op, node)


@rule("Pad")
def pad(op: Tape, node: Older) -> Results | None:
    """Expand pads of some axes to all axes. Reject the mode `wrap`."""
    if node.crosses(19) and node.get("mode") == "wrap":
        raise NoOlderFormError("it has mode='wrap', which has no older form")
    if not node.crosses(18) or not node.name(3):
        return None
    axes, pads, rank = node.values(3, "axes"), node.values(1, "pads"), node.rank()
    all_pads = [0] * (2 * rank)
    for place, axis in enumerate(axes.ravel().tolist()):
        all_pads[axis % rank] = int(pads[place])
        all_pads[axis % rank + rank] = int(pads[place + axes.size])
    return node.without([], [node.x, op.ints(all_pads), *filter(None, [node.name(2)])])


@rule("Resize")
def resize(op: Tape, node: Older) -> Results | None:
    """Add empty regions and scales, which are required, and expand sizes or scales of some axes to
    all axes."""
    if node.crosses(19) and node.get("coordinate_transformation_mode") == "half_pixel_symmetric":
        raise NoOlderFormError("it has coordinate_transformation_mode='half_pixel_symmetric'")
    inputs = [node.name(place) for place in range(4)]
    if node.crosses(18):
        node.refuse_unless("antialias", 0)
        if inputs[3]:
            node.refuse_unless("keep_aspect_ratio_policy", "stretch")
        axes = node.get("axes")
        if axes is not None:
            if inputs[1]:
                raise NoOlderFormError("it has a region for some axes only")
            if inputs[2]:
                inputs[2] = op.constant(_spread(node, axes, 2, [1.0] * node.rank()), np.float32)
            else:
                inputs[3] = op.ints(_spread(node, axes, 3, node.shape()))
    if node.crosses(13):
        empty = [place for place in (1, 2) if not inputs[place]]
        for place in empty:
            inputs[place] = op.constant([], np.float32)
    while not inputs[-1]:
        inputs.pop()
    dropped = ["antialias", "axes", "keep_aspect_ratio_policy"] if node.crosses(18) else []
    is_same = inputs == list(node.node.input) and all(node.get(name) is None for name in dropped)
    return None if is_same else node.without(dropped, inputs)


def _spread(node: Older, axes: Sequence[int], place: int, whole: Sequence[Any]) -> list[Any]:
    """Return the values of an input at some axes, and `whole` at the others."""
    values, spread = node.values(place, "scales or sizes"), list(whole)
    for axis, value in zip(axes, values.tolist(), strict=True):
        spread[axis] = value
    return spread


@rule("BatchNormalization", since=14)
def batch_normalization(_op: Tape, node: Older) -> Results | None:
    """Remove the attribute for training; the number of results implies it in older opsets."""
    node.refuse_unless("training_mode", 0)
    return node.without(["training_mode"])


@rule("Dropout", since=DROPOUT_TAKES_MODE)
def dropout(op: Tape, node: Older) -> Results | None:
    """Replace a Dropout in inference by an Identity: it drops nothing, whatever the ratio."""
    trains = node.constant(2, "training_mode")
    if trains is not None and trains.any():
        raise NoOlderFormError("it drops at random, as in training")
    mask = None
    if node.has_output(1):
        true = helper.make_tensor("", TensorProto.BOOL, [1], [True])
        mask = op.ConstantOfShape(op.Shape(node.x), value=true)
    return [op.Identity(node.x), mask]


@rule("Reshape", since=14)
def reshape(_op: Tape, node: Older) -> Results | None:
    """Remove allowzero; in older opsets a size of 0 always means that of the input."""
    if node.get("allowzero") is None:
        return None
    if node.get("allowzero"):
        target = node.values(1, "shape")
        empty = np.flatnonzero(target == 0)
        shape = node.shape() if empty.size else ()
        if any(place >= len(shape) or shape[place] for place in empty):
            raise NoOlderFormError("it makes a dimension of no elements of one that has some")
    return node.without(["allowzero"])


@rule("LSTM", "GRU", "RNN", since=14)
def recurrent(op: Tape, node: Older) -> Results | None:
    """Insert Transposes around a batch-first node, since older opsets are time-first only."""
    if node.get("layout") is None:
        return None
    if not node.get("layout"):
        return node.without(["layout"])
    inputs = list(node.node.input)
    for place in (0, 5, 6):
        if node.name(place):
            inputs[place] = op.Transpose(node.name(place), perm=[1, 0, 2])
    results = node.without(["layout"], inputs)
    return [
        op.Transpose(result, perm=[1, 0, 2] if place else [2, 0, 1, 3]) if result else None
        for place, result in enumerate(results)
    ]


@rule("Shape", since=15)
def shape(op: Tape, node: Older) -> Results | None:
    """Slice the whole shape for a part of it."""
    start, end = node.get("start", 0), node.get("end")
    if not start and end is None:
        return node.without(["start", "end"]) if node.node.attribute else None
    full_shape = op.add("Shape", node.name(0))
    last = np.iinfo(np.int64).max if end is None else end
    return op.Slice(full_shape, op.ints([start]), op.ints([last]))


@rule("ArgMax", "ArgMin", since=12)
def arg(op: Tape, node: Older) -> Results | None:
    """Find the last of several extremes as the first in reverse order; older opsets find the first
    only."""
    if node.get("select_last_index") is None:
        return None
    if not node.get("select_last_index"):
        return node.without(["select_last_index"])
    axis = node.get("axis", 0) % max(1, node.rank())
    first = np.iinfo(np.int64).min
    turned = op.Slice(node.x, starts=[-1], ends=[first], axes=[axis], steps=[-1])
    place = op.add(node.node.op_type, turned, axis=axis, keepdims=node.get("keepdims", 1))
    return op.Sub(node.shape()[axis] - 1, place)


@rule("AveragePool", "LpPool")
def pool(_op: Tape, node: Older) -> Results | None:
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
    return node.without(["dilations"] if is_mean else ["dilations", "ceil_mode"])


@rule("Mod", since=28)
def remainder(_op: Tape, node: Older) -> Results | None:
    """Reject fmod=0 for floats: older opsets support floats only with the sign of the dividend."""
    if node.facts.is_float(node.name(0)) and not node.get("fmod", 0):
        raise NoOlderFormError("it has fmod=0 for floats, which has no older form")
    return None


@rule("RoiAlign", since=16)
def roi_align(_op: Tape, node: Older) -> Results | None:
    """Remove the mode if it is output_half_pixel, the only one in older opsets and not today's
    default."""
    mode = node.get("coordinate_transformation_mode", "half_pixel")
    if mode != "output_half_pixel":
        raise NoOlderFormError(
            f"it has coordinate_transformation_mode={mode!r}; only output_half_pixel is old"
        )
    return node.without(["coordinate_transformation_mode"])


@rule("GridSample", since=20)
def grid_sample(_op: Tape, node: Older) -> Results | None:
    """Rename modes after those for planes."""
    mode = node.get("mode", "linear")
    if node.facts.rank(node.name(0)) not in (None, 4):
        raise NoOlderFormError("it samples volumes; older opsets have planes only")
    return node.without([], mode={"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode))


@rule("DFT", since=20)
def fourier(_op: Tape, node: Older) -> Results | None:
    """Convert the axis from an input to an attribute, which has another default."""
    axis = node.constant(2, "axis")
    inputs = [name for name in (node.name(0), node.name(1)) if name]
    return node.without([], inputs, axis=-2 if axis is None else int(axis))


@rule("Constant", since=12)
def constant(_op: Tape, node: Older) -> Results | None:
    """Convert numbers in other attributes to a tensor."""
    name = node.node.attribute[0].name if node.node.attribute else ""
    if name not in NUMBER_ATTRIBUTES:
        return None
    value = onnx.numpy_helper.from_array(np.asarray(node.get(name), NUMBER_ATTRIBUTES[name]))
    return node.without([name], value=value)
