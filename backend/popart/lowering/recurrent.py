"""Rules of recurrent layers: the standard's LSTM, GRU and RNN, and the LSTM of PopART's domain."""

from __future__ import annotations

import numpy as np
from onnxgraph import Results

from popart.errors import format_shape, popart_exception
from popart.lowering.graph import Graph, Tensor
from popart.lowering.operation import Operation, chip_rule, rule

_MAX_ACTIVATIONS = 3
"""Number of activations of an LSTM that PopART accepts; the standard allows as many for each
direction."""
_ACTIVATIONS = frozenset(("Sigmoid", "Relu", "Tanh", "Gelu", "Softmax"))
"""Activations that poplibs' recurrent layers compute inside themselves (popnn,
NonLinearityType); the operators of the same names are not meant."""
_LENGTHS = 4
"""Place of the lengths of the sequences among the inputs."""


@rule("LSTM", "GRU", "RNN")
def _recurrent(op: Graph, node: Operation) -> Results:
    """The size of the hidden state is that of the recurrent weights."""
    kind, weights = node.node.op_type, node.input(2)
    _check(node, kind)
    _check_sizes(node, 3, weights)
    hidden = weights.shape[-1]
    declared = node.get("hidden_size")
    if declared is not None and declared != hidden:
        raise popart_exception(
            f"hidden_size attribute passed to {node.describe()} ({declared}) does not match "
            f"hidden size calculated from recurrenceWeights tensor ({hidden})."
        )
    inputs = [node.optional(place) for place in range(7 if kind == "LSTM" else 6)]
    _check_lengths(node, inputs[_LENGTHS])
    attributes = {
        name: node.get(name) for name in ("activations", "linear_before_reset") if node.get(name)
    }
    count = 3 if kind == "LSTM" else 2
    outputs = op.name_outputs(kind, map(node.has_output, range(count)))
    results = op.add_all(outputs, kind, *inputs, hidden_size=hidden, **attributes)
    return results[: len(node.node.output)]


def _check_sizes(node: Operation, rank: int, *others: Tensor) -> None:
    """Raise popart_exception for inputs of other ranks, and without elements: ONNX Runtime ends the
    process for a GRU of no steps."""
    for tensor in (node.x, node.input(1), *others):
        if tensor.rank != rank or not tensor.size:
            raise popart_exception(
                f"{node.describe()}: expected {rank} axes with elements, found "
                f"{format_shape(tensor.shape)}"
            )


def _check(node: Operation, kind: str) -> None:
    """Raise popart_exception for what PopART's layers do not have."""
    shown = node.describe()
    for name in ("activation_alpha", "activation_beta", "clip"):
        if any(entry.name == name for entry in node.node.attribute):
            raise popart_exception(
                f"Attribute `{name}' of {shown} is not supported"
                if kind == "RNN"
                else f"{kind}Op attribute `{name}' is not supported"
            )
    if node.get("input_forget", 0):
        raise popart_exception(f"{kind}Op attribute `input_forget' must be set to 0")
    if kind == "LSTM" and node.optional(7) is not None:
        raise popart_exception("Popart does not support peephole connections")
    direction = node.get("direction", "forward")
    if direction != "forward":
        raise popart_exception(
            "LSTMOp attribute `direction' must be unset or `forward'"
            if kind == "LSTM"
            else f"{shown} only supports `forward' direction"
        )
    _check_activations(node, kind)


def _check_activations(node: Operation, kind: str) -> None:
    shown = node.describe()
    activations = [
        activation.decode() if isinstance(activation, bytes) else activation
        for activation in node.get("activations") or ()
    ]
    if activations and kind == "GRU":
        raise popart_exception("GRUOp attribute `activations' is not supported")
    if kind == "RNN" and len(activations) > 1:
        raise popart_exception(
            f"{shown} only supports 1 activation, {len(activations)} were specified"
        )
    for activation in activations:
        if activation not in _ACTIVATIONS:
            raise popart_exception(
                f"Activation type '{activation}' is not supported"
                + (f" for {shown}" if kind == "RNN" else "")
            )
    if len(activations) > _MAX_ACTIVATIONS:
        raise popart_exception(
            f"Too many activations ({len(activations)}) specified. Number of activations should be "
            "1 or 3."
        )
    if kind == "LSTM" and len(activations) == _MAX_ACTIVATIONS and activations[1] != activations[2]:
        raise popart_exception("LSTM activations must be the same for output and forget gates.")


def _check_lengths(node: Operation, lengths: Tensor | None) -> None:
    if lengths is None:
        return
    batch = node.x.shape[1]
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
def _chip_lstm(op: Graph, node: Operation) -> Results:
    """Weights are [4, input + hidden, hidden], biases [4, hidden], the state [2, batch, hidden]:
    output and cell state. The result is the last output, or with output_full_sequence all."""
    x, weights = node.x, node.input(1)
    _check_sizes(node, 3)
    length, batch, size = x.shape
    hidden = weights.shape[2]
    _check_shape("weights", 1, weights, (4, size + hidden, hidden))
    order = op.ints(np.asarray(_GATES))
    turned = op.transpose(op.Gather(weights, order, axis=0), [0, 2, 1])
    turned = op.reshape(turned, [1, 4 * hidden, size + hidden])
    parts = op.ints([size, hidden])
    taking, recurrent = op.add_all(2, "Split", turned, parts, axis=2)
    bias = _biases(op, node, hidden)
    states = _initial_state(op, node, batch, hidden)
    outputs, last, cell = op.add_all(
        3, "LSTM", x, taking, recurrent, bias, None, *states, hidden_size=hidden
    )
    full = node.get("output_full_sequence", 1)
    result = (
        op.reshape(outputs, [length, batch, hidden]) if full else op.reshape(last, [batch, hidden])
    )
    return [result, op.reshape(cell, [batch, hidden])]


def _check_shape(name: str, place: int, tensor: Tensor, wanted: tuple[int, ...]) -> None:
    if tensor.shape != wanted:
        raise popart_exception(f"Bad {name} shape {place}, should be {format_shape(wanted)}")


def _biases(op: Graph, node: Operation, hidden: int) -> Tensor | None:
    bias = node.optional(2)
    if bias is None:
        return None
    _check_shape("bias", 2, bias, (4, hidden))
    order = op.ints(np.asarray(_GATES))
    flat = op.reshape(op.Gather(bias, order, axis=0), [1, 4 * hidden])
    zeros = op.constant(np.zeros((1, 4 * hidden), bias.dtype))
    return op.Concat(flat, zeros, axis=1)


def _initial_state(op: Graph, node: Operation, batch: int, hidden: int) -> list[Tensor | None]:
    state = node.optional(3)
    if state is None:
        return [None, None]
    _check_shape("initialState", 3, state, (2, batch, hidden))
    parts = op.ints([1, 1])
    return list(op.add_all(2, "Split", state, parts, axis=0))
