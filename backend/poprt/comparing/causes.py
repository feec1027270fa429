"""Why a node's result in half differs from that in float.

An explanation is given only if it can account for the error that was seen. The node is computed
alone, in float, on inputs of which one thing is as in half: small values are 0, constants are those
of half, all inputs are those of half. What moves the result by about the error is the cause. The
result itself tells the rest: where the error lies beyond the largest half, or among the smallest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
import onnx
from onnx import helper
from onnxgraph import find_makers, has_data, iter_bodies, read_array
from simipu import CompileError, LoadError, RunError
from simipu.numerics import HALF_MAX
from simipu.operators import Terms, operator_of

from popef._tools.arrays import Array
from poprt.comparing.sides import Feeds, Side

VANISHING = 2.0**-25
"""Largest value that rounds to 0 in half: half of the smallest half, a tie that goes to even."""
_STEP, _SMALLEST_NORMAL = 2.0**-24, 2.0**-14
"""Distance of the halves below 2^-14, in which a value of 1e-6 has four bits."""
_ENOUGH = 0.5
"""Least share of an error that its explanation must account for."""
_CANCELLED = 0.01
"""Largest ratio of a sum to its largest operand at which the operands are said to cancel."""
_FAILURES = (CompileError, LoadError, RunError, ValueError, KeyError)
_MAX_BYTES = 64 << 20
"""Maximum size of the inputs of a node that is computed alone."""


class Beside(Enum):
    """Operators that must stay in float beside the node's own, for its result to do so."""

    MAKERS = auto()
    READERS = auto()
    BOTH = auto()


@dataclass(frozen=True, slots=True)
class Cause:
    """Explanation of a difference, and the operators that must stay in float, too."""

    text: str
    beside: Beside


@dataclass(frozen=True, slots=True)
class RoundedOperands:
    """Inputs and result of a node on both sides, by the names of the float side. `constants` are
    those of `inputs` that are weights. A node that cannot be computed alone has no inputs."""

    node: onnx.NodeProto
    inputs: Mapping[str, Array]
    inputs_half: Mapping[str, Array]
    constants: frozenset[str]
    result: Array
    result_half: Array


@dataclass(slots=True)
class Bench:
    """The two sides on one batch, of which single nodes are computed."""

    half: Side
    whole: Side
    feeds: Feeds
    _initializers: dict[int, dict[str, onnx.TensorProto]] = field(default_factory=dict)

    def read(self, names: Sequence[str]) -> list[RoundedOperands | None]:
        """Return the operands of the nodes that make those tensors on both sides; None for a tensor
        that one side does not make."""
        halves, wholes = (
            [makers.get(name) for name in names]
            for makers in (find_makers(side.model.graph) for side in (self.half, self.whole))
        )
        ours = self._fetch(self.half, halves, names)
        theirs = self._fetch(self.whole, wholes, names)
        return [
            self._join(name, half, whole_name, ours, theirs)
            for name, half, whole_name in zip(names, halves, wholes, strict=True)
        ]

    def compute(self, operands: RoundedOperands, inputs: Mapping[str, Array]) -> Array | None:
        """Return the result of a node in float on other inputs; None if it cannot be computed."""
        node = onnx.NodeProto()
        node.CopyFrom(operands.node)
        fixed = {node.input[i] for i in operator_of(node).shaped_by if i < len(node.input)}
        free = {name: value for name, value in inputs.items() if name not in fixed}
        values = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in free.items()
        ]
        output = helper.make_tensor_value_info(
            node.output[0], onnx.TensorProto.FLOAT, operands.result.shape
        )
        weights = [
            onnx.numpy_helper.from_array(value, name)
            for name, value in inputs.items()
            if name in fixed
        ]
        model = onnx.ModelProto()
        model.ir_version = self.whole.model.ir_version
        model.opset_import.extend(self.whole.model.opset_import)
        model.graph.CopyFrom(helper.make_graph([node], "node", values, [output], weights))
        try:
            ((result,),) = Side(model, {}, None).run([free], [node.output[0]])
        except _FAILURES:
            return None
        return result

    def _fetch(
        self, side: Side, nodes: Sequence[onnx.NodeProto | None], results: Sequence[str]
    ) -> dict[str, Array]:
        """Return the results and the inputs of nodes, as far as nodes make them; all in float."""
        outputs = {name for node in side.model.graph.node for name in node.output}
        names = [*results, *(name for node in nodes if node for name in node.input)]
        names = [name for name in dict.fromkeys(names) if name in outputs]
        (values,) = side.run([self.feeds], names)
        return dict(zip(names, values, strict=True))

    def _join(
        self,
        name: str,
        half: onnx.NodeProto | None,
        whole: onnx.NodeProto | None,
        ours: Mapping[str, Array],
        theirs: Mapping[str, Array],
    ) -> RoundedOperands | None:
        if half is None or whole is None:
            return None
        result, result_half = theirs[name], ours[name]
        operands = RoundedOperands(whole, {}, {}, frozenset(), result, result_half)
        # The Cast behind a node that stays in float has that node's result, and other inputs.
        if half.op_type != whole.op_type or len(half.input) != len(whole.input):
            return operands
        # Only first results of nodes without bodies are computed again.
        if any(iter_bodies(whole)) or name != whole.output[0]:
            return operands
        inputs, inputs_half = {}, {}
        constants = set()
        for source, source_half in zip(whole.input, half.input, strict=True):
            if not source:
                continue
            value, value_half = (
                self._find(self.whole, source, theirs),
                self._find(self.half, source_half, ours),
            )
            if value is None or value_half is None or value.shape != value_half.shape:
                return operands
            inputs[source], inputs_half[source] = value, value_half.astype(value.dtype)
            if source not in theirs and source not in self.feeds:
                constants.add(source)
        if sum(value.nbytes for value in inputs.values()) > _MAX_BYTES:
            return operands
        return RoundedOperands(
            whole, inputs, inputs_half, frozenset(constants), result, result_half
        )

    def _find(self, side: Side, name: str, values: Mapping[str, Array]) -> Array | None:
        """Return the values of an input of a node: computed, given, or a weight."""
        if name in values:
            return values[name]
        if name in self.feeds:
            fed = side.cast(self.feeds)[name]
            return fed.astype(np.float32) if fed.dtype.kind == "f" else fed
        if name in side.weights:
            return _widen(side.weights[name])
        if id(side) not in self._initializers:
            self._initializers[id(side)] = {t.name: t for t in side.model.graph.initializer}
        tensor = self._initializers[id(side)].get(name)
        return _widen(read_array(tensor)) if tensor is not None and has_data(tensor) else None


def _widen(values: Array) -> Array:
    return values.astype(np.float32) if values.dtype == np.float16 else values


def find_cause(bench: Bench, operands: RoundedOperands) -> Cause:
    """Return why a node's result differs: the first explanation that accounts for the error."""
    result, result_half = operands.result, operands.result_half
    difference = _differ(result_half, result)
    error, largest = float(difference.max(initial=0)), _largest(result)
    beyond = np.abs(result) > HALF_MAX
    if beyond.any() and _accounts(float(difference[beyond].max(initial=0)), error):
        return Cause(f"overflow, {largest:.3g} is beyond {HALF_MAX:.0f}", Beside.READERS)
    if cause := _try_inputs(bench, operands, error, largest):
        return cause
    if not np.isfinite(error):
        return Cause("its result is NaN or infinite in half", Beside.BOTH)
    zeros = (result_half == 0) & (np.abs(result) <= VANISHING)
    if _accounts(float(difference[zeros].max(initial=0)), error):
        text = f"underflow, results below {VANISHING:.2g} are 0 in half"
        return Cause(f"{text}, and none is beyond {largest:.2g}", Beside.READERS)
    if error <= _STEP:
        text = f"underflow, results up to {largest:.2g} are rounded to steps of {_STEP:.2g} in half"
        return Cause(text, Beside.READERS)
    relative = error / largest if largest else np.inf
    text = f"rounding, its result is off by {relative:.2g} of the largest value"
    return Cause(text, Beside.MAKERS)


def _try_inputs(
    bench: Bench, operands: RoundedOperands, error: float, largest: float
) -> Cause | None:
    """Return what is different about a node's inputs, if that accounts for the error."""
    base = bench.compute(operands, operands.inputs) if operands.inputs else None
    if base is None:
        return None

    def moves(changed: Mapping[str, Array]) -> bool:
        result = bench.compute(operands, {**operands.inputs, **changed})
        if result is None:
            return False
        return _accounts(float(_differ(result, base).max(initial=0)), error)

    for name, value in _iter_vanished(operands):
        if moves({name: value}):
            text = f"underflow, values of {name!r} are below {VANISHING:.2g} and 0 in half"
            return Cause(text, Beside.MAKERS)
    for name in sorted(operands.constants):
        if moves({name: operands.inputs_half[name]}):
            return Cause(_describe_constant(operands, name), Beside.READERS)
    if moves(operands.inputs_half):
        return _describe_inputs(operands, error, largest)
    return _find_partial(bench, operands, error, largest)


def _iter_vanished(operands: RoundedOperands) -> Iterator[tuple[str, Array]]:
    """Yield the inputs with values that are 0 in half, and what is left of each."""
    for name, value in operands.inputs.items():
        if value.dtype.kind == "f" and name not in operands.constants:
            gone = (np.abs(value) <= VANISHING) & (value != 0)
            if gone.any():
                yield name, np.where(gone, np.zeros_like(value), value)


def _may_cancel(node: onnx.NodeProto) -> bool:
    return operator_of(node).adds is Terms.SIGNED


def _describe_inputs(operands: RoundedOperands, error: float, largest: float) -> Cause:
    """Return how the error comes from the rounding of a node's inputs."""
    most = max(_largest(value) for value in operands.inputs.values() if value.dtype.kind == "f")
    if _may_cancel(operands.node) and largest <= _CANCELLED * most:
        return _say_cancelled(most, largest)
    shares = {
        name: _relative(operands.inputs_half[name], value)
        for name, value in operands.inputs.items()
    }
    worst = max(shares, key=lambda name: shares[name])
    text = f"it magnifies rounding: {worst!r} is off by {shares[worst]:.2g} of its largest value"
    return Cause(f"{text}, the result by {error / largest:.2g}", Beside.MAKERS)


def _find_partial(
    bench: Bench, operands: RoundedOperands, error: float, largest: float
) -> Cause | None:
    """Return whether the terms inside of a sum cancel: they are rounded where they are largest."""
    if not _may_cancel(operands.node):
        return None
    sizes = {
        name: np.abs(value) if value.dtype.kind == "f" else value
        for name, value in operands.inputs.items()
    }
    total = bench.compute(operands, sizes)
    if operands.node.op_type == "Sub" or total is None:
        return None
    most = _largest(total)
    if largest <= _CANCELLED * most and most * 2.0**-11 >= _ENOUGH * error:
        return _say_cancelled(most, largest)
    return None


def _say_cancelled(most: float, largest: float) -> Cause:
    text = f"cancellation, of values up to {most:.3g} no more than {largest:.3g} is left"
    return Cause(text, Beside.MAKERS)


def _describe_constant(operands: RoundedOperands, name: str) -> str:
    before, after = operands.inputs[name], operands.inputs_half[name]
    largest = _largest(before)
    if before.size == 1:
        return f"constant {name!r} is {before.flat[0]:.3g} in float and {after.flat[0]:.3g} in half"
    if largest > HALF_MAX:
        return f"overflow, weights {name!r} reach {largest:.3g}, beyond {HALF_MAX:.0f}"
    if largest < _SMALLEST_NORMAL:
        steps = f"rounded to steps of {_STEP:.2g} in half"
        return f"underflow, weights {name!r} of at most {largest:.2g} are {steps}"
    share = _relative(after, before)
    return f"half cannot hold weights {name!r}: they are off by {share:.2g} of the largest"


def _relative(ours: Array, theirs: Array) -> float:
    largest = _largest(theirs)
    return float(_differ(ours, theirs).max(initial=0)) / largest if largest else 0.0


def _largest(values: Array) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0))


def _differ(ours: Array, theirs: Array) -> Array:
    """Return the differences; infinite where only our value is not finite, 0 where theirs is
    not."""
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(ours.astype(np.float64) - theirs)
    is_finite = np.isfinite(theirs)
    difference = np.where(np.isfinite(ours), difference, np.inf)
    return np.where(is_finite, difference, 0)


def _accounts(part: float, error: float) -> bool:
    """Return whether a part of an error accounts for it."""
    return part > 0 and part >= _ENOUGH * error
