"""LSTM, GRU and RNN with sums in half: the operators that they stand for, and the kernel's node
that computes the same.

popnn computes each step with one product of the step's input and the state, joined (only a GRU that
resets after the product has two), and with elementwise operators. Each of them rounds to half. So
the definition is a graph in half: `expand` replaces a node by a Scan of these operators, which are
then lowered as all others are. If kernels may join operators, `add_kernel` adds one node instead.

    LSTM    a = [x, h] W + b               GRU     z, r = f([x, h] W + b)
            i, o, f = f(a), g = g(a)               n = g([x, r h] W + b)
            c' = f c + i g                         h' = n + z (h - n)
            h' = o h(c')                   RNN     h' = f([x, h] W + b)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import Tape, attribute, iter_bodies, replace_nodes

from simipu.numerics.blocks import pad_end
from simipu.numerics.kernels import RECURRENT, make_kernel
from simipu.operators import operator_of
from simipu.operators.ranges import add_range_check

_STEP_AXES = 3
_X, _W, _R, _B, _LENGTHS, _H, _C, _P = range(8)
"""Indices of the inputs."""
_INFINITE = 0x7C00
"""Bits of the half that stands for no clipping."""
_GATE_COLUMNS = 16
"""Multiple to which the columns of a gate are padded in the kernel's weights."""


class _Cell(IntEnum):
    """Cells of the kernel: `enum cell` of kernels.h."""

    RNN = 0
    LSTM = 1
    GRU = 2
    GRU_RESET_AFTER = 3


@dataclass(frozen=True, slots=True)
class Activation:
    """Activation function of a recurrent network, with its parameters."""

    name: str
    parameters: tuple[float, ...] = ()

    def add(self, op: Tape, x: str) -> str:
        """Add the function of a half to a tape, and return the name of the result."""
        return _ACTIVATIONS[self.name][1](op, x, self.parameters)


def _add_operator(op_type: str, *names: str) -> Callable[[Tape, str, Sequence[float]], str]:
    """Return a function that adds an operator whose attributes `names` are the parameters."""

    def add(op: Tape, x: str, parameters: Sequence[float]) -> str:
        return op.add(op_type, x, **dict(zip(names, parameters, strict=True)))

    return add


def _affine(op: Tape, x: str, parameters: Sequence[float]) -> str:
    scale, offset = (_half(op, parameter) for parameter in parameters)
    return op.add("Add", op.add("Mul", x, scale), offset)


def _scaled_tanh(op: Tape, x: str, parameters: Sequence[float]) -> str:
    outer, inner = (_half(op, parameter) for parameter in parameters)
    return op.add("Mul", op.add("Tanh", op.add("Mul", x, inner)), outer)


def _half(op: Tape, value: float) -> str:
    return op.constant(value, np.float16)


_ACTIVATIONS: Mapping[str, tuple[tuple[float, ...], Callable[[Tape, str, Sequence[float]], str]]]
_ACTIVATIONS = {
    "affine": ((0.0, 0.0), _affine),
    "elu": ((1.0,), _add_operator("Elu", "alpha")),
    "hardsigmoid": ((0.2, 0.5), _add_operator("HardSigmoid", "alpha", "beta")),
    "leakyrelu": ((0.01,), _add_operator("LeakyRelu", "alpha")),
    "relu": ((), _add_operator("Relu")),
    "scaledtanh": ((0.0, 0.0), _scaled_tanh),
    "sigmoid": ((), _add_operator("Sigmoid")),
    "softplus": ((), _add_operator("Softplus")),
    "softsign": ((), _add_operator("Softsign")),
    "tanh": ((), _add_operator("Tanh")),
    "thresholdedrelu": ((0.0,), _add_operator("ThresholdedRelu", "alpha")),
}
"""Activation functions, by lower-case name: ONNX Runtime's defaults of alpha and beta, and the
operators."""


def _read_activations(node: onnx.NodeProto) -> tuple[Activation, ...] | None:
    """Return the functions of all directions, or None for an unknown name. Functions with
    parameters take them from the attributes' lists in order, and the default after the end."""
    directions = 2 if _direction(node) == "bidirectional" else 1
    names = [text.decode().lower() for text in attribute(node, "activations", [])]
    defaults = [name.lower() for name in operator_of(node).activations] * directions
    names = names or defaults
    if len(names) != len(defaults) or not _ACTIVATIONS.keys() >= {*names}:
        return None
    parameter_lists = [
        iter(attribute(node, f"activation_{name}", [])) for name in ("alpha", "beta")
    ]
    return tuple(
        Activation(
            name,
            tuple(
                next(values, default)
                for values, default in zip(parameter_lists, _ACTIVATIONS[name][0], strict=False)
            ),
        )
        for name in names
    )


def _direction(node: onnx.NodeProto) -> str:
    return str(attribute(node, "direction", b"forward").decode())


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A recurrent node and its sizes."""

    node: onnx.NodeProto
    batch: int | str | None
    width: int
    hidden: int
    activations: tuple[Activation, ...]

    @staticmethod
    def of(
        node: onnx.NodeProto,
        dims: Mapping[str, Sequence[int | str | None]],
        halves: Collection[str],
    ) -> Recurrence | None:
        """Return the recurrence of a node in half, or None for another node, and for one whose
        sizes are unknown or whose input is empty."""
        if not operator_of(node).gates or attribute(node, "layout", 0):
            return None
        x, w, r = (dims.get(name, ()) for name in node.input[: _R + 1])
        is_half = all(
            name in halves for name in (*node.input[: _R + 1], *filter(None, node.output))
        )
        sizes = (*x[2:], *w, *r)
        is_known = len(x) == len(w) == len(r) == _STEP_AXES and not any(
            isinstance(size, str) or not size for size in sizes
        )
        activations = _read_activations(node)
        if not is_half or not is_known or 0 in x or activations is None:
            return None
        width, hidden = (size for size in (x[2], r[2]) if isinstance(size, int))
        return Recurrence(node, x[1], width, hidden, activations)

    @property
    def kind(self) -> str:
        """Operator of the node."""
        return self.node.op_type

    @property
    def gates(self) -> int:
        """Number of gates."""
        return operator_of(self.node).gates

    @property
    def reversed(self) -> tuple[bool, ...]:
        """For each direction, whether it begins at the last step."""
        orders = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
        return orders[_direction(self.node)]

    @property
    def resets_after(self) -> bool:
        """Return whether a GRU multiplies by the reset gate after its product."""
        return self.kind == "GRU" and bool(attribute(self.node, "linear_before_reset", 0))

    @property
    def is_coupled(self) -> bool:
        """Return whether the forget gate of an LSTM is 1 minus the input gate."""
        return self.kind == "LSTM" and bool(attribute(self.node, "input_forget", 0))

    @property
    def clip(self) -> float:
        """Bound of what the gates' functions are applied to, as a half."""
        bound = float(attribute(self.node, "clip", 0.0))
        return float(np.float16(min(bound, 65504.0))) if bound > 0 else math.inf

    def input(self, place: int) -> str:
        """Return the name of an input, "" if there is none."""
        return self.node.input[place] if place < len(self.node.input) else ""

    def output(self, place: int) -> str:
        """Return the name of an output, "" if there is none."""
        return self.node.output[place] if place < len(self.node.output) else ""

    def functions(self, direction: int) -> tuple[Activation, ...]:
        """Return the activation functions f, g and h of a direction."""
        count = len(operator_of(self.node).activations)
        return self.activations[direction * count : (direction + 1) * count]


# --- the operators ---


def expand(
    graph: onnx.GraphProto,
    dims: Mapping[str, Sequence[int | str | None]],
    halves: Collection[str],
) -> bool:
    """Replace the recurrent nodes of a graph and its bodies, in place, by Scans of the operators
    that they stand for. Return whether there was one."""
    nodes: list[onnx.NodeProto] = []
    has_changed = is_changed = False
    for node in graph.node:
        for body in iter_bodies(node):
            has_changed |= expand(body, dims, halves)
        recurrence = Recurrence.of(node, dims, halves)
        nodes += _expand_node(recurrence) if recurrence else [node]
        is_changed |= recurrence is not None
    if is_changed:
        replace_nodes(graph, nodes)
    return has_changed or is_changed


def _expand_node(recurrence: Recurrence) -> list[onnx.NodeProto]:
    op = Tape(f"{recurrence.node.output[0] or recurrence.node.output[1]}/recurrent")
    directions = [_Direction(recurrence, op, i).add() for i in range(len(recurrence.reversed))]
    for place, axis in ((0, 1), (1, 0), (2, 0)):
        if name := recurrence.output(place):
            shape = [0, 1, -1, recurrence.hidden] if axis else [1, -1, recurrence.hidden]
            parts = [op.add("Reshape", results[place], op.ints(shape)) for results in directions]
            op.add_as(name, "Concat", *parts, axis=axis)
    return op.nodes


@dataclass(slots=True)
class _Direction:
    """Builds the nodes of one direction."""

    recurrence: Recurrence
    op: Tape
    """The nodes around the Scan."""
    index: int

    def add(self) -> tuple[str, ...]:
        """Add the Scan, and return the names of all states, the last one, and the last cells."""
        recurrence, op = self.recurrence, self.op
        body = Tape(f"{op.new_name()}/step")
        names = [f"{body.prefix}/{name}" for name in ("h", "c", "x", "is_absent")]
        states = [self._first_state(_H)]
        if recurrence.kind == "LSTM":
            states.append(self._first_state(_C))
        inputs, scanned = names[: len(states)], [recurrence.input(_X)]
        results = self._add_step(body, names[2], inputs)
        shown = results[0]
        if recurrence.input(_LENGTHS):
            scanned.append(self._mark_steps())
            # All rows: at places 0 the new values, at 1 those of a row without such a step.
            places = body.add("Reshape", names[3], body.ints([1, -1, 1]))
            places = body.add("Expand", places, body.ints([1, 1, recurrence.hidden]))
            zeros = body.add("Expand", _half(body, 0), body.add("Shape", results[0]))
            shown = self._choose(body, places, results[0], zeros)
            pairs = zip(results, inputs, strict=True)
            results = [self._choose(body, places, new, old) for new, old in pairs]
        outputs = [body.add("Identity", name) for name in (*results, shown)]
        graph = self._make_body(body, inputs, names[2 : 2 + len(scanned)], outputs)
        is_reversed = int(recurrence.reversed[self.index])
        scan = helper.make_node(
            "Scan",
            [*states, *scanned],
            [f"{body.prefix}/{name}" for name in ("last", "cells", "all")],
            f"{body.prefix}/Scan",
            body=graph,
            num_scan_inputs=len(scanned),
            scan_input_directions=[is_reversed] * len(scanned),
            scan_output_directions=[is_reversed],
        )
        if recurrence.kind != "LSTM":
            del scan.output[1]
        op.nodes.append(scan)
        return scan.output[-1], *scan.output[:-1]

    def _make_body(
        self, body: Tape, states: Sequence[str], scanned: Sequence[str], outputs: Sequence[str]
    ) -> onnx.GraphProto:
        batch, hidden = self.recurrence.batch, self.recurrence.hidden
        columns = dict.fromkeys((*states, *outputs), hidden)
        columns |= dict(zip(scanned, (self.recurrence.width, 1), strict=False))
        infos = [
            helper.make_tensor_value_info(
                name,
                TensorProto.INT64 if name in scanned[1:] else TensorProto.FLOAT16,
                [batch, size],
            )
            for name, size in columns.items()
        ]
        count = len(states)
        inputs = [*infos[:count], *infos[count + len(outputs) :]]
        return helper.make_graph(
            body.nodes, body.prefix, inputs, infos[count : count + len(outputs)]
        )

    def _take(self, place: int) -> str:
        """Add an input's part of this direction."""
        index = self.op.constant(self.index, np.int64)
        return self.op.add("Gather", self.recurrence.input(place), index, axis=0)

    def _first_state(self, place: int) -> str:
        if self.recurrence.input(place):
            return self._take(place)
        op, shape = self.op, self.op.ints
        batch = op.add("Shape", self.recurrence.input(_X))
        batch = op.add("Slice", batch, shape([1]), shape([2]))
        sizes = op.add("Concat", batch, shape([self.recurrence.hidden]), axis=0)
        return op.add("Expand", _half(op, 0), sizes)

    def _mark_steps(self) -> str:
        """Add 0 for each step that a row has, and 1 for others, of shape (steps, rows, 1)."""
        op = self.op
        steps = op.add("Shape", self.recurrence.input(_X))
        steps = op.add("Gather", steps, op.constant(0, np.int64))
        zero, one = (op.constant(value, np.int64) for value in (0, 1))
        numbers = op.add("Range", zero, steps, one)
        numbers = op.add("Reshape", numbers, op.ints([-1, 1, 1]))
        lengths = op.add("Cast", self.recurrence.input(_LENGTHS), to=TensorProto.INT64)
        title = f"sequence_lens of {self.recurrence.kind}: expected 0 to the number of steps"
        checked = add_range_check(op, lengths, (zero, steps), title)
        lengths = op.add("Reshape", checked, op.ints([1, -1, 1]))
        absent = op.add("Not", op.add("Less", numbers, lengths))
        return op.add("Cast", absent, to=TensorProto.INT64)

    def _choose(self, body: Tape, places: str, *choices: str) -> str:
        """Add the elements of the first of two tensors where `places` is 0, and of the second where
        it is 1. ONNX Runtime's Where loses the sign of zeros."""
        shape = body.ints([1, -1, self.recurrence.hidden])
        parts = [body.add("Reshape", choice, shape) for choice in choices]
        chosen = body.add("GatherElements", body.add("Concat", *parts, axis=0), places, axis=0)
        return body.add("Reshape", chosen, body.ints([-1, self.recurrence.hidden]))

    def _add_step(self, body: Tape, x: str, states: Sequence[str]) -> list[str]:
        """Add a step to the body, and return the names of the new states."""
        if self.recurrence.kind == "LSTM":
            return self._add_lstm(body, x, states[0], states[1])
        if self.recurrence.resets_after:
            return [self._add_gru_reset_after(body, x, states[0])]
        if self.recurrence.kind == "GRU":
            return [self._add_gru(body, x, states[0])]
        gate = self._multiply(body, [x, states[0]], self._join_weights(), self._join_biases())
        (function,) = self.recurrence.functions(self.index)
        return [self._activate(body, function, gate)]

    def _join_weights(self, first: int = 0, last: int = 0) -> str:
        """Add the weights of the input and the state, joined, for gates from `first` to before
        `last`."""
        joined = self.op.add("Concat", self._take(_W), self._take(_R), axis=1)
        return self._slice(self.op, self.op.add("Transpose", joined, perm=[1, 0]), 1, first, last)

    def _join_biases(self, first: int = 0, last: int = 0) -> str:
        """Add the sum of the biases of the input and of the state; "" if there are none."""
        if not self.recurrence.input(_B):
            return ""
        gates, bias = self.recurrence.gates, self._take(_B)
        parts = [self._slice(self.op, bias, 0, at, at + gates) for at in (0, gates)]
        return self._slice(self.op, self.op.add("Add", *parts), 0, first, last)

    def _slice(self, op: Tape, name: str, axis: int, first: int, last: int) -> str:
        """Add the gates from `first` to before `last` along an axis; all if `last` is 0."""
        if not last:
            return name
        ends = [op.ints([gate * self.recurrence.hidden]) for gate in (first, last)]
        return op.add("Slice", name, *ends, op.ints([axis]))

    @staticmethod
    def _multiply(body: Tape, factors: Sequence[str], weights: str, bias: str) -> str:
        factor = body.add("Concat", *factors, axis=1) if len(factors) > 1 else factors[0]
        product = body.add("MatMul", factor, weights)
        return body.add("Add", product, bias) if bias else product

    def _activate(self, body: Tape, function: Activation, gate: str) -> str:
        if not math.isinf(clip := self.recurrence.clip):
            gate = body.add("Min", gate, _half(body, clip))
            gate = body.add("Max", gate, _half(body, -clip))
        return function.add(body, gate)

    def _add_lstm(self, body: Tape, x: str, h: str, c: str) -> list[str]:
        f, g, after = self.recurrence.functions(self.index)
        gates = self._multiply(body, [x, h], self._join_weights(), self._join_biases())
        i, o, forget, candidate = (self._slice(body, gates, 1, at, at + 1) for at in range(4))
        peepholes = self._take(_P) if self.recurrence.input(_P) else ""

        def look(gate: str, at: int, cells: str) -> str:
            """Add the cells, weighted by a gate's peephole."""
            if not peepholes:
                return gate
            weights = self._slice(self.op, peepholes, 0, at, at + 1)
            return body.add("Add", gate, body.add("Mul", cells, weights))

        i = self._activate(body, f, look(i, 0, c))
        if self.recurrence.is_coupled:
            forget = body.add("Sub", _half(body, 1), i)
        else:
            forget = self._activate(body, f, look(forget, 2, c))
        candidate = self._activate(body, g, candidate)
        cells = body.add("Add", body.add("Mul", c, forget), body.add("Mul", candidate, i))
        o = self._activate(body, f, look(o, 1, cells))
        return [body.add("Mul", after.add(body, cells), o), cells]

    def _add_gru(self, body: Tape, x: str, h: str) -> str:
        f, g = self.recurrence.functions(self.index)
        gates = self._multiply(body, [x, h], self._join_weights(0, 2), self._join_biases(0, 2))
        gates = self._activate(body, f, gates)
        update, reset = (self._slice(body, gates, 1, at, at + 1) for at in range(2))
        reset_state = body.add("Mul", reset, h)
        new = self._multiply(
            body, [x, reset_state], self._join_weights(2, 3), self._join_biases(2, 3)
        )
        return self._mix(body, self._activate(body, g, new), update, h)

    def _add_gru_reset_after(self, body: Tape, x: str, h: str) -> str:
        f, g = self.recurrence.functions(self.index)
        bias, biases = self._take(_B) if self.recurrence.input(_B) else "", ["", ""]
        if bias:
            biases = [self._slice(self.op, bias, 0, at, at + 3) for at in (0, 3)]
        sides = []
        for factor, place, own_bias in ((x, _W, biases[0]), (h, _R, biases[1])):
            weights = self.op.add("Transpose", self._take(place), perm=[1, 0])
            product = self._multiply(body, [factor], weights, own_bias)
            sides.append([self._slice(body, product, 1, *ends) for ends in ((0, 2), (2, 3))])
        gates = self._activate(body, f, body.add("Add", sides[0][0], sides[1][0]))
        update, reset = (self._slice(body, gates, 1, at, at + 1) for at in range(2))
        new = body.add("Add", sides[0][1], body.add("Mul", sides[1][1], reset))
        return self._mix(body, self._activate(body, g, new), update, h)

    @staticmethod
    def _mix(body: Tape, new: str, update: str, h: str) -> str:
        return body.add("Add", new, body.add("Mul", update, body.add("Sub", h, new)))


# --- the kernel ---


def add_kernel(
    op: Tape,
    recurrence: Recurrence,
    block: int,
    hold: Callable[[Activation], str],
    nan_on_overflow: int,
) -> None:
    """Add the kernel's node to a tape. `hold` returns the name of a function's table."""
    optional = {"bias": _B, "lengths": _LENGTHS, "state": _H, "cells": _C, "peepholes": _P}
    inputs = [recurrence.input(_X), _lay_out(op, recurrence)]
    inputs += [hold(activation) for activation in recurrence.activations]
    places: dict[str, Any] = {}
    for name, place in optional.items():
        places[name] = len(inputs) if recurrence.input(place) else 0
        inputs += [recurrence.input(place)] if places[name] else []
    clip = int(np.float16(recurrence.clip).view(np.uint16))
    outputs = [recurrence.output(place) or f"{op.prefix}/unused{place}" for place in range(3)]
    node = make_kernel(
        RECURRENT,
        inputs,
        outputs[0],
        [],
        cell=_Cell.GRU_RESET_AFTER if recurrence.resets_after else _Cell[recurrence.kind],
        hidden=recurrence.hidden,
        block=block,
        directions=len(recurrence.reversed),
        is_reversed=int(recurrence.reversed[0]),
        is_coupled=int(recurrence.is_coupled),
        clip=clip,
        nan_on_overflow=nan_on_overflow,
        threads=0,
        **places,
    )
    node.output.extend(outputs[1:])
    op.nodes.append(node)


def _lay_out(op: Tape, recurrence: Recurrence) -> str:
    """Add the weights as the kernel reads them: halves of shape (directions, channels, columns),
    with the channels of the input and then of the state. The columns of each gate are padded to 16.
    ONNX Runtime computes this once, at load."""
    hidden, gates = recurrence.hidden, recurrence.gates
    directions, channels = len(recurrence.reversed), recurrence.width + recurrence.hidden
    joined = op.add("Concat", recurrence.input(_W), recurrence.input(_R), axis=2)
    if missing := -hidden % _GATE_COLUMNS:
        parts = op.add("Reshape", joined, op.ints([directions, gates, hidden, channels]))
        padded = pad_end(op, parts, 4, 2, missing)
        joined = op.add("Reshape", padded, op.ints([directions, -1, channels]))
    turned = op.add("Transpose", joined, perm=[0, 2, 1])
    return op.add("Cast", turned, to=TensorProto.FLOAT16)
