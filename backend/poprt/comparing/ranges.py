"""What the values of a model's inputs look like, by the graph: the range of indices, masks, and the
size of floats and samples.

An input is followed through operators that pass its values on, to the operators that use it. The
size is what brings the values to about 1 where the network begins: a graph that divides its input
by 32768 takes samples of 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import attribute, graph_values, has_data, infer_shapes, read_array
from simipu.operators import Indexing, Moves, operator_of

from popef._tools.arrays import Array

_SWITCH = 2
"""Maximum number of values of a constant with which an input is compared to switch between the
two."""
_SMALL = 4_096
"""Maximum number of elements of a constant that may suggest a size: larger ones are weights."""
_MIN_SPREAD, _MAX_SPREAD = 2.0**-6, 2.0**16
"""Bounds of the sizes that constants suggest. `(1 - mask) * -10000` suggests none."""
_MAX_RATIO = 16.0
"""Maximum ratio of the constants of a vector that scales channels; others are weights. Also the
least ratio of a bias to the product beside it that says that inputs are not about 1: it is 0.2 to 2
in networks for inputs of about 1, and 64 in one for pixels of 0 to 255."""
_MIN_LARGE = 4.0
"""Least value that is larger than those that are drawn without evidence."""
_BEYOND_HALF = 65_000.0
"""Least bound of a Clip that is no bound: conversion to half clips infinities to 65500."""


@dataclass(frozen=True, slots=True)
class Size:
    """Values of a float or a sample: `center` + `spread` * z, with z about 1.

    z is between -1 and 1 if `is_bounded`, and not negative if `is_positive`. `is_evident` says
    whether the graph suggests it; the default is a guess.
    """

    center: float = 0.0
    spread: float = 1.0
    is_bounded: bool = False
    is_positive: bool = False
    is_evident: bool = False


@dataclass(slots=True)
class Range:
    """Smallest and largest value of an integer input, if the graph determines them.

    Otherwise `is_truth` says whether the input looks like a mask. `size` is that of other values.
    """

    least: float = -np.inf
    greatest: float = np.inf
    is_truth: bool = False
    size: Size = Size()

    @property
    def is_known(self) -> bool:
        """Return whether both bounds are finite."""
        return bool(np.isfinite(self.least) and np.isfinite(self.greatest))


@dataclass(slots=True)
class _Users:
    """Users of each tensor, and the known shapes and constants."""

    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, TensorProto]
    weights: Mapping[str, Array]
    users: dict[str, list[tuple[onnx.NodeProto, int]]] = field(default_factory=dict)

    def read(self, name: str) -> Array | None:
        """Return the values of a float weight; None if they are not available."""
        if name in self.weights:
            return self.weights[name]
        tensor = self.constants.get(name)
        values = None if tensor is None or not has_data(tensor) else read_array(tensor)
        return None if values is None or values.dtype.kind != "f" else values


def find_range(
    model: onnx.ModelProto, name: str, weights: Mapping[str, Array] | None = None
) -> Range:
    """Return the range of input `name` of a static model.

    `weights` are the values of the initializers without data, as far as they are available.
    """
    graph = model.graph
    shapes = {
        tensor_name: value.shape
        for tensor_name, value in graph_values(infer_shapes(model).graph).items()
    }
    users = _Users(shapes, {t.name: t for t in graph.initializer}, weights or {})
    for node in graph.node:
        for index, input_name in enumerate(node.input):
            users.users.setdefault(input_name, []).append((node, index))
    value_range = Range(size=_find_size(users, name))
    waiting, seen = [(name, 0.0)], {name}
    while waiting:
        tensor, added = waiting.pop()
        for node, index in users.users.get(tensor, []):
            passed = _look(node, index, users, value_range, added)
            if passed is not None:
                waiting += [(result, passed) for result in node.output if result not in seen]
                seen.update(node.output)
    return value_range


def _look(
    node: onnx.NodeProto, index: int, known: _Users, found: Range, added: float
) -> float | None:
    """Narrow the range by what one node does with the input, to which `added` has been added.

    Returns what has been added to the node's results; None if the results are unrelated values.
    """
    operator = operator_of(node)
    if operator.indexing is Indexing.ALONG_AXIS and index == 1:
        shape = known.shapes.get(node.input[0], ())
        if shape:
            _narrow(found, 0, shape[attribute(node, "axis", 0)] - 1, added)
        return None
    if node.op_type == "OneHot" and index == 0:
        depth = _constant(known, node.input[1])
        if depth is not None:
            _narrow(found, 0, float(depth.max()) - 1, added)
        return None
    if operator.neutral == 0:
        return _pass_offset(node, index, known, found, added)
    if node.op_type == "Equal":
        other = _constant(known, node.input[1 - index])
        if other is not None and other.size > _SWITCH:  # a one-hot encoding, written out
            _narrow(found, float(other.min()), float(other.max()), added)
            return None
    if operator.applies_masks:
        found.is_truth = True
        return None
    return added if _passes(node, index) else None


def _passes(node: onnx.NodeProto, index: int) -> bool:
    """Return whether a node passes on the values of that input."""
    moves = operator_of(node).moves
    passes = moves is not None or node.op_type == "Cast"
    return passes and (index == 0 or moves is Moves.JOINED)


def _pass_offset(
    node: onnx.NodeProto, index: int, known: _Users, found: Range, added: float
) -> float | None:
    """Return the offset of the result of a sum or a difference; None for an unrelated value."""
    other = _constant(known, node.input[1 - index])
    if other is None and node.op_type == "Add":
        return added  # most likely the offset that lets negative indices count from the end
    if other is None or (node.op_type == "Sub" and index):
        found.is_truth |= node.op_type == "Sub"
        return None
    # The largest offset keeps all values inside the table.
    return added + float(other.max() if node.op_type == "Add" else -other.min())


def _narrow(found: Range, least: float, greatest: float, added: float) -> None:
    # least <= input + added <= greatest; several users of an input must all be satisfied.
    found.least, found.greatest = (
        max(found.least, least - added),
        min(found.greatest, greatest - added),
    )


def _constant(known: _Users, name: str) -> Array | None:
    tensor = known.constants.get(name)
    if tensor is None or int(np.prod(tensor.dims)) > _SMALL or not has_data(tensor):
        return None  # the values of a streamed weight are elsewhere
    values = read_array(tensor)
    return values if values.size and values.dtype.kind in "iuf" else None


@dataclass(frozen=True, slots=True)
class _Scaled:
    """Values that are `factor` * input + `added`."""

    factor: float = 1.0
    added: float = 0.0

    def find_input(self, value: float) -> float:
        """Return the input that gives a value."""
        return (value - self.added) / self.factor

    def find_standard(self, center: float, spread: float) -> Size:
        """Return the size of the input that gives values of this center and spread."""
        return Size(self.find_input(center), spread / abs(self.factor), is_evident=True)

    def find_size(self) -> Size:
        """Return the size of the input that gives values of about 1, if it is a larger one.

        What is only divided fills its range; what is also shifted is standardised. A mean that is
        subtracted without a division, as of pixels, says how large the values are.
        """
        center, spread = self.find_input(0.0), 1 / abs(self.factor)
        if spread == 1:
            spread = max(spread, abs(center) / 2)
        if abs(center) + spread < _MIN_LARGE:
            return Size()
        return Size(center, spread, is_bounded=not center, is_evident=True)

    def find_bounded(self, least: float, greatest: float) -> Size:
        """Return the size of the input that gives values in a range."""
        low, high = sorted((self.find_input(least), self.find_input(greatest)))
        return Size((low + high) / 2, (high - low) / 2, is_bounded=True, is_evident=True)


def _find_size(known: _Users, name: str) -> Size:
    """Return the size of an input: the first one that its users suggest."""
    waiting, seen = [(name, _Scaled())], {name}
    while waiting:
        tensor, scaled = waiting.pop(0)
        users = known.users.get(tensor, [])
        sizes = [] if users or scaled == _Scaled() else [scaled.find_size()]
        for node, index in users:
            after = scaled if _passes(node, index) else _scale(node, index, known, scaled)
            if after is None:
                sizes.append(_read_size(node, index, known, scaled))
                continue
            waiting += [(result, after) for result in node.output if result not in seen]
            seen.update(node.output)
        for size in sizes:
            is_usual = abs(size.center) <= _MAX_SPREAD >= size.spread >= _MIN_SPREAD
            if size != Size() and is_usual:
                return size
    return Size()


def _scale(node: onnx.NodeProto, index: int, known: _Users, scaled: _Scaled) -> _Scaled | None:
    """Return what a node with a constant makes of scaled values; None for any other node."""
    neutral = operator_of(node).neutral
    if neutral is None:
        return None
    other = _constant(known, node.input[1 - index])
    if other is None:
        return None
    sizes = np.abs(other.astype(np.float64))
    is_one = sizes.min() > 0 and sizes.max() <= _MAX_RATIO * sizes.min()
    if not is_one or (other > 0).any() != (other > 0).all():
        return None  # weights, a mask, or an embedding of positions
    middle = float(np.median(other))
    if neutral == 0:
        if node.op_type == "Sub":
            return (
                _Scaled(-scaled.factor, middle - scaled.added)
                if index
                else _Scaled(scaled.factor, scaled.added - middle)
            )
        return _Scaled(scaled.factor, scaled.added + middle)
    if node.op_type == "Div" and index:
        return None
    factor = middle if node.op_type == "Mul" else 1 / middle
    if abs(scaled.factor) < 1 and abs(factor) > _MAX_RATIO:
        return None  # made louder than it must be: the values before were about 1
    return _Scaled(scaled.factor * factor, scaled.added * factor)


def _read_size(node: onnx.NodeProto, index: int, known: _Users, scaled: _Scaled) -> Size:
    """Return what the first node that is no scaling says of the size of scaled values."""
    constants = [_constant(known, name) for name in node.input[1:]] if index == 0 else []
    match node.op_type, constants:
        case "Clip", [np.ndarray() as low, np.ndarray() as high]:
            bounds = float(low.min()), float(high.max())
            if max(map(abs, bounds)) < _BEYOND_HALF and bounds[0] < bounds[1]:
                return scaled.find_bounded(*bounds)
        case "QuantizeLinear", [np.ndarray() as step, np.ndarray() as zero, *_]:
            if zero.dtype.kind in "iu" and (limits := np.iinfo(zero.dtype)):
                scale, middle = float(step.max()), float(np.median(zero))
                least, greatest = (scale * (bound - middle) for bound in (limits.min, limits.max))
                return scaled.find_bounded(least, greatest)
        case "BatchNormalization", [_, _, np.ndarray() as mean, np.ndarray() as variance]:
            spread = math.sqrt(max(0.0, float(np.median(variance))))
            return scaled.find_standard(float(np.median(mean)), spread)
        case _:
            pass
    if scaled != _Scaled():
        return scaled.find_size()
    operator = operator_of(node)
    if operator.positives_only:
        return Size(is_positive=True)
    if operator.is_product and index == 0:
        ratio = _compare_bias(node, known)
        if ratio >= _MAX_RATIO:
            return Size(spread=ratio, is_evident=True)
    return Size()


def _compare_bias(node: onnx.NodeProto, known: _Users) -> float:
    """Return the size of a product's bias over that of the product itself for inputs of about 1.

    Layers are made so that the two are of about one size. A product without a bias gives 0.
    """
    weights = known.read(node.input[1])
    biases = [known.read(name) for name in node.input[2:]]
    if node.op_type == "MatMul":
        users = known.users.get(node.output[0], [])
        biases = [known.read(user.input[1 - i]) for user, i in users if user.op_type == "Add"]
    if weights is None or not biases or biases[0] is None or not weights.size:
        return 0.0
    is_wide = node.op_type == "MatMul" or (
        node.op_type == "Gemm" and not attribute(node, "transB", 0)
    )
    outputs = weights.shape[-1 if is_wide else 0]
    product = math.sqrt(float(np.square(weights, dtype=np.float64).sum()) / outputs)
    bias = math.sqrt(float(np.square(biases[0], dtype=np.float64).mean()))
    return bias / product if product else 0.0
