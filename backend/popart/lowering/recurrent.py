"""Rules of recurrent layers: the standard's LSTM, GRU and RNN, and the LSTM of PopART's domain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from popart.errors import format_shape, popart_exception
from popart.lowering.graph import Tensor
from popart.lowering.operation import Operation, chip_rule, rule

_MAX_ACTIVATIONS = {"LSTM": 3, "RNN": 1}
"""Numbers of activations that PopART accepts; the standard allows as many for each direction, so
this is no fact about the operators."""
_ACTIVATIONS = frozenset(("Sigmoid", "Relu", "Tanh", "Gelu", "Softmax"))
"""Activations that poplibs' recurrent layers compute inside themselves (popnn,
NonLinearityType); the operators of the same names are not meant."""
_LENGTHS = 4
"""Place of the lengths of the sequences among the inputs."""


@rule("LSTM", "GRU", "RNN")
def _recurrent(operation: Operation) -> Sequence[Tensor]:
    """The size of the hidden state is that of the recurrent weights."""
    kind, weights = operation.node.op_type, operation.input(2)
    _check(operation, kind)
    _check_sizes(operation, 3, weights)
    hidden = weights.shape[-1]
    given = operation.attribute("hidden_size")
    if given is not None and given != hidden:
        raise popart_exception(
            f"hidden_size attribute passed to {operation.describe()} ({given}) does not match "
            f"hidden size calculated from recurrenceWeights tensor ({hidden})."
        )
    inputs = [operation.optional(place) for place in range(7 if kind == "LSTM" else 6)]
    _check_lengths(operation, inputs[_LENGTHS])
    kept = {
        name: operation.attribute(name)
        for name in ("activations", "linear_before_reset")
        if operation.attribute(name)
    }
    count = 3 if kind == "LSTM" else 2
    wanted = [operation.has_output(place) for place in range(count)]
    made = operation.add_all(kind, *inputs, outputs=wanted, hidden_size=hidden, **kept)
    return made[: len(operation.node.output)]


def _check_sizes(operation: Operation, rank: int, *others: Tensor) -> None:
    """Raise popart_exception for inputs of other ranks, and without elements: ONNX Runtime ends the
    process for a GRU of no steps."""
    for tensor in (operation.x, operation.input(1), *others):
        if tensor.rank != rank or not tensor.size:
            raise popart_exception(
                f"{operation.describe()}: expected {rank} axes with elements, found "
                f"{format_shape(tensor.shape)}"
            )


def _check(operation: Operation, kind: str) -> None:
    """Raise popart_exception for what PopART's layers do not have."""
    shown = operation.describe()
    for name in ("activation_alpha", "activation_beta", "clip"):
        if any(entry.name == name for entry in operation.node.attribute):
            raise popart_exception(
                f"Attribute `{name}' of {shown} is not supported"
                if kind == "RNN"
                else f"{kind}Op attribute `{name}' is not supported"
            )
    if operation.attribute("input_forget", 0):
        raise popart_exception(f"{kind}Op attribute `input_forget' must be set to 0")
    if kind == "LSTM" and operation.optional(7) is not None:
        raise popart_exception("Popart does not support peephole connections")
    direction = operation.attribute("direction", "forward")
    if direction != "forward":
        raise popart_exception(
            "LSTMOp attribute `direction' must be unset or `forward'"
            if kind == "LSTM"
            else f"{shown} only supports `forward' direction"
        )
    _check_activations(operation, kind)


def _check_activations(operation: Operation, kind: str) -> None:
    shown = operation.describe()
    found = [
        each.decode() if isinstance(each, bytes) else each
        for each in operation.attribute("activations") or ()
    ]
    if found and kind == "GRU":
        raise popart_exception("GRUOp attribute `activations' is not supported")
    if kind == "RNN" and len(found) > 1:
        raise popart_exception(f"{shown} only supports 1 activation, {len(found)} were specified")
    for each in found:
        if each not in _ACTIVATIONS:
            raise popart_exception(
                f"Activation type '{each}' is not supported"
                + (f" for {shown}" if kind == "RNN" else "")
            )
    if len(found) > _MAX_ACTIVATIONS.get(kind, 0):
        raise popart_exception(
            f"Too many activations ({len(found)}) specified. Number of activations should be 1 or "
            "3."
        )
    if kind == "LSTM" and len(found) == _MAX_ACTIVATIONS[kind] and found[1] != found[2]:
        raise popart_exception("LSTM activations must be the same for output and forget gates.")


def _check_lengths(operation: Operation, lengths: Tensor | None) -> None:
    if lengths is None:
        return
    batch = operation.x.shape[1]
    if lengths.rank != 1:
        raise popart_exception(f"Invalid rank for sequence length tensor : {lengths.rank} != 1")
    if lengths.shape[0] != batch:
        raise popart_exception(
            f"Incorrect sequence len shape : {format_shape(lengths.shape)} != [{batch}]"
        )


_GATES = (1, 3, 0, 2)
"""Gates of PopLibs (forget, input, candidate, output) in the order of the standard: input, output,
forget, candidate."""


@chip_rule("LSTM")
def _chip_lstm(operation: Operation) -> Sequence[Tensor]:
    """Weights are [4, input + hidden, hidden], biases [4, hidden], the state [2, batch, hidden]:
    output and cell state. The result is the last output, or with output_full_sequence all."""
    x, weights = operation.x, operation.input(1)
    _check_sizes(operation, 3)
    length, batch, size = x.shape
    hidden = weights.shape[2]
    _check_shape("weights", 1, weights, (4, size + hidden, hidden))
    order = operation.numbers(np.asarray(_GATES))
    turned = operation.transpose(operation.add("Gather", weights, order, axis=0), [0, 2, 1])
    turned = operation.reshape(turned, [1, 4 * hidden, size + hidden])
    parts = operation.numbers(np.asarray([size, hidden]))
    taking, recurrent = operation.add_all("Split", turned, parts, outputs=2, axis=2)
    bias = _biases(operation, hidden)
    states = _initial_state(operation, batch, hidden)
    outputs, last, cell = operation.add_all(
        "LSTM", x, taking, recurrent, bias, None, *states, outputs=3, hidden_size=hidden
    )
    full = operation.attribute("output_full_sequence", 1)
    found = (
        operation.reshape(outputs, [length, batch, hidden])
        if full
        else operation.reshape(last, [batch, hidden])
    )
    return [found, operation.reshape(cell, [batch, hidden])]


def _check_shape(name: str, place: int, tensor: Tensor, wanted: tuple[int, ...]) -> None:
    if tensor.shape != wanted:
        raise popart_exception(f"Bad {name} shape {place}, should be {format_shape(wanted)}")


def _biases(operation: Operation, hidden: int) -> Tensor | None:
    bias = operation.optional(2)
    if bias is None:
        return None
    _check_shape("bias", 2, bias, (4, hidden))
    order = operation.numbers(np.asarray(_GATES))
    flat = operation.reshape(operation.add("Gather", bias, order, axis=0), [1, 4 * hidden])
    zeros = operation.constant(np.zeros((1, 4 * hidden), bias.dtype))
    return operation.add("Concat", flat, zeros, axis=1)


def _initial_state(operation: Operation, batch: int, hidden: int) -> list[Tensor | None]:
    state = operation.optional(3)
    if state is None:
        return [None, None]
    _check_shape("initialState", 3, state, (2, batch, hidden))
    parts = operation.numbers(np.asarray([1, 1]))
    return list(operation.add_all("Split", state, parts, outputs=2, axis=0))
