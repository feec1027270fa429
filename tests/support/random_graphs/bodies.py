"""Steps that add control flow: their bodies are random graphs too, and capture outer tensors."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from random_graphs.drawing import NUMBERS, Drawing, Tensor, UnfitError, make_value_info
from random_graphs.elementwise import Builder
from random_graphs.growing import grow

MAX_DEPTH = 2


def _open(d: Drawing, kind: str) -> Drawing:
    """Return a body that sees all outer tensors."""
    if d.depth >= MAX_DEPTH:
        raise UnfitError("too deep")
    inner = Drawing(
        d.rng, d.opset, d.size, f"{d.prefix}{kind}{len(d.nodes)}_{d.integer(0, 10**6)}_"
    )
    inner.tensors = dict(d.tensors)
    inner.max_inputs, inner.depth = 0, d.depth + 1
    return inner


def _close(
    inner: Drawing, inputs: list[onnx.ValueInfoProto], outputs: list[str], *, typed: bool = True
) -> onnx.GraphProto:
    made = [make_value_info(name, inner[name].value) for name in outputs]
    if not typed:
        made = [onnx.ValueInfoProto(name=name) for name in outputs]
    constants = [numpy_helper.from_array(value, name) for name, value in inner.constants.items()]
    return helper.make_graph(inner.nodes, "body", inputs, made, constants)


def _result_like(d: Drawing, inner: Drawing, like: Tensor, read: str) -> str:
    """Return a result of a body with a type and shape; it is made from `read` if there is none."""
    fitting = [
        name
        for name in inner.own
        if inner[name].shape == like.shape and inner[name].kind == like.kind
    ]
    if fitting and d.chance(0.8):
        return str(d.choice(fitting))
    return inner.add(d.choice(["Neg", "Abs"]) if like.kind != "bool" else "Not", read)


def choose(d: Drawing, op_type: str) -> None:
    """Add an If with a constant or a computed condition."""
    like = d.pick(NUMBERS)
    bodies = []
    for kind in ("then", "else"):
        inner = _open(d, kind)
        grow(inner, d.integer(0, 2))
        bodies.append(_close(inner, [], [_result_like(d, inner, d[like], like)]))
    if d.chance(0.4):
        truth = d.constant(bool(d.chance(0.5)), "bool")
    else:
        source = d.pick(ranks=range(1, 5))
        total = d.add("ReduceMax", source, keepdims=0)
        truth = d.add("Greater", total, d.constant(d.integer(-2, 2), "float32"))
    d.add(op_type, truth, then_branch=bodies[0], else_branch=bodies[1])


def loop(d: Drawing, op_type: str) -> None:
    """Add a Loop with a carried state and collected results."""
    start = d.pick(NUMBERS)
    inner = _open(d, "loop")
    count, go, state = (f"{inner.prefix}{each}" for each in ("count", "go", "state"))
    inner.tensors[count] = Tensor(np.array(0), np.array(0))
    inner.tensors[go] = Tensor(np.array(True), np.array(True))
    inner.tensors[state] = d[start]
    grow(inner, d.integer(0, 2))
    carried = _result_like(d, inner, d[start], state)
    more = inner.add("Identity", go)
    results = [more, carried]
    if d.chance(0.5):
        results.append(inner.add("Identity", str(d.choice(inner.own))))
    inputs = [make_value_info(name, inner[name].value) for name in (count, go, state)]
    body = _close(inner, inputs, results, typed=d.chance(0.8))
    trips = d.longs(d.integer(1, 3))
    go_on = d.constant(True, "bool") if d.chance(0.6) else ""
    d.add_all(op_type, [trips, go_on, start], [True] * (len(results) - 1), body=body)


def scan(d: Drawing, op_type: str) -> None:
    """Add a Scan along an axis, forward or backward."""
    if d.opset < 9:
        raise UnfitError("another form")
    source = d.pick(ranks=range(1, 4))
    shape = d[source].shape
    axis = d.integer(0, len(shape) - 1)
    row = np.take(d[source].value, 0, axis)
    inner = _open(d, "scan")
    state, part = (f"{inner.prefix}{each}" for each in ("state", "part"))
    start = d.constant(d.numbers(row.shape))
    inner.tensors[state] = d[start]
    inner.tensors[part] = Tensor(row, row)
    grow(inner, d.integer(0, 1))
    carried = inner.add("Add", inner.add("Tanh", state), part)
    result = inner.add("Neg", carried) if d.chance(0.5) else inner.add("Identity", part)
    inputs = [make_value_info(name, inner[name].value) for name in (state, part)]
    body = _close(inner, inputs, [carried, result], typed=d.chance(0.7))
    back = d.choice([None, [1]])
    d.add_all(
        op_type,
        [start, source],
        [d.chance(0.6), True],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[axis] if axis or d.chance(0.5) else None,
        scan_input_directions=back,
        scan_output_axes=d.choice([None, [0], [row.ndim]]),
        scan_output_directions=d.choice([None, back]),
    )


BUILDERS: dict[str, Builder] = {"If": choose, "Loop": loop, "Scan": scan}
