"""Every operator of ONNX's backend test-suite with an axis of size 0, beside the standard's reference
implementation, and recurrent networks without input features."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from oracles import unoptimised_session
from simipu.operators import operator_of
from suite_cases import EXPANDED, load_cases

from exact_operators.forms import Array, Case, make_case

_TYPES = {
    np.dtype(name) for name in "float32 int8 int16 int32 int64 uint8 uint16 uint32 bool".split()
}
"""Types of inputs that the chip has."""
_UNDEFINED = frozenset(
    "AffineGrid Attention GridSample LinearAttention ReduceMean ReduceMin".split()
)
"""Operators whose result the standard does not define where only an operand is empty: of heads, grids
and images of no size, and means and extremes of nothing. An empty result of theirs is defined. It is
no field of the operators' entries, which do not say what the standard leaves open."""
_LARGEST = 20_000
"""Elements of the largest input: a case is about its shape."""


def draw_suite() -> Iterator[Case]:
    """Yield the suite's cases of one node, with each axis of each input, and with all axes of a size,
    cut down to nothing, as far as the reference computes them."""
    seen = set[str]()
    for suite_case in load_cases():
        if (
            suite_case.kind != "node"
            or suite_case.name.endswith(EXPANDED)
            or "training" in suite_case.name
        ):
            continue
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            model, sets = suite_case.read()
            if len(model.graph.node) != 1 or not sets or model.graph.initializer:
                continue
            if len(model.opset_import) > 1 or model.opset_import[0].domain:
                continue
            values: list[Any] = sets[0][0]
            if not all(
                isinstance(value, np.ndarray) and value.size < _LARGEST and value.dtype in _TYPES
                for value in values
            ):
                continue
            for words, cut in _iter_cut(values):
                key = f"{model.graph.node[0].op_type} {list(model.graph.node[0].attribute)} {[(v.shape, v.dtype) for v in cut]}"
                if key in seen:
                    continue
                seen.add(key)
                case = _compute(suite_case.name, words, model, cut)
                if case is not None:
                    yield case


def _iter_cut(values: Sequence[Array]) -> Iterator[tuple[str, list[Array]]]:
    # Cut alone, one of several inputs seldom fits to the others.
    if sum(value.ndim > 0 for value in values) == 1 and values[0].ndim:
        for axis in range(values[0].ndim):
            yield f"axis {axis}", [values[0].take(range(0), axis), *values[1:]]
    for size in {size for value in values for size in value.shape}:
        cut = []
        for value in values:
            for axis, length in enumerate(value.shape):
                value = value.take(range(0), axis) if length == size else value
            cut.append(value)
        yield f"all of size {size}", cut


def _compute(name: str, words: str, model: onnx.ModelProto, cut: Sequence[Array]) -> Case | None:
    """Return the case of a model on other inputs, or None if they do not fit."""
    graph = model.graph
    feeds, tensors, infos = {}, [], []
    changed = {value.name: array for value, array in zip(graph.input, cut, strict=True)}
    node = graph.node[0]
    shaping = {
        node.input[place] for place in operator_of(node).shaped_by if place < len(node.input)
    }
    for key, array in changed.items():
        if key in shaping:
            tensors.append(numpy_helper.from_array(array, key))
        else:
            feeds[key] = array
            infos.append(
                helper.make_tensor_value_info(
                    key, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
            )
    # The shapes of empty results are others than the suite's.
    kinds = {value.name: value.type.tensor_type.elem_type for value in graph.output}
    outputs = [helper.make_tensor_value_info(*item, None) for item in kinds.items()]
    other = helper.make_model(
        helper.make_graph(graph.node, "empty", infos, outputs, tensors),
        opset_imports=model.opset_import,
        ir_version=min(model.ir_version, 11),
    )
    try:
        onnx.shape_inference.infer_shapes(other, strict_mode=True)
        results: list[Any] = ReferenceEvaluator(other).run(None, dict(feeds))  # type: ignore[assignment]
    except Exception:  # noqa: BLE001  the inputs do not fit to each other
        return None
    if not feeds or not all(
        isinstance(value, np.ndarray) and value.dtype in _TYPES for value in results
    ):
        return None
    is_defined = node.op_type not in _UNDEFINED or not any(value.size for value in results)
    if not is_defined or any(np.isnan(value).any() for value in results if value.dtype.kind == "f"):
        return None
    expected = dict(zip(kinds, results, strict=True))
    for output, value in zip(other.graph.output, results, strict=True):
        output.CopyFrom(helper.make_tensor_value_info(output.name, kinds[output.name], value.shape))
    return Case(f"{name}, {words}", other, feeds, expected, 1e-4)


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def draw_recurrent() -> Iterator[Case]:
    """Yield recurrent networks without input features, steps, or rows; those without features
    beside ONNX Runtime with a feature that is 0."""
    rng = np.random.default_rng(6)
    forms = itertools.product(
        _GATES,
        ("forward", "reverse", "bidirectional"),
        (0, 1),
        ((3, 2, 0), (0, 2, 4), (3, 0, 4), (0, 2, 0), (3, 2, 4)),
        (True, False),
        (True, False),
        (True, False),
    )
    for op_type, direction, layout, (
        steps,
        rows,
        features,
    ), has_bias, has_state, is_constant in forms:
        ways, hidden, gates = 1 + (direction == "bidirectional"), 3, _GATES[op_type]

        def draw(*shape: int) -> Array:
            return rng.standard_normal(shape).astype(np.float32)

        w, r = draw(ways, gates * hidden, features), draw(ways, gates * hidden, hidden)
        bias = draw(ways, 2 * gates * hidden) if has_bias else None
        states = (
            [draw(ways, rows, hidden) for _ in range(1 + (op_type == "LSTM"))] if has_state else []
        )
        lengths = (
            rng.integers(1, steps + 1, rows).astype(np.int32)
            if steps and has_bias and not has_state
            else None
        )
        x = draw(steps, rows, features)
        inputs = [x, w, r, bias, lengths, *states]
        attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
        expected = _recur(op_type, attributes, inputs)
        if layout:
            attributes["layout"] = 1
            inputs = [
                x.transpose(1, 0, 2).copy(),
                w,
                r,
                bias,
                lengths,
                *(s.transpose(1, 0, 2).copy() for s in states),
            ]
            first, *rest = expected
            expected = [first.transpose(2, 0, 1, 3), *(s.transpose(1, 0, 2) for s in rest)]
        places = [place for place, value in enumerate(inputs[:4]) if place and value is not None]
        for opset in (7, 14, 22) if not layout else (14, 22):
            if opset == 7 and (features or is_constant):
                continue
            words = f"{op_type} {direction} layout {layout} {x.shape} bias {has_bias} states {has_state} {is_constant}"
            yield make_case(
                words,
                (op_type, attributes),
                inputs,
                expected,
                opset,
                constants=places if is_constant else (),
                error=1e-5,
            )


def _recur(op_type: str, attributes: dict[str, Any], inputs: Sequence[Array | None]) -> list[Array]:
    """Return the results of a network with steps first."""
    x, w, *_ = inputs
    assert x is not None
    assert w is not None
    steps, rows, features = x.shape
    ways, hidden = w.shape[0], attributes["hidden_size"]
    count = 2 + (op_type == "LSTM")
    if not steps or not rows:
        states: list[Any] = [*inputs[5:], *[np.zeros((ways, rows, hidden), np.float32)] * 2]
        return [np.zeros((steps, ways, rows, hidden), np.float32), *states[: count - 1]]
    if not features:
        inputs = [
            np.zeros((steps, rows, 1), np.float32),
            np.zeros((*w.shape[:2], 1), np.float32),
            *inputs[2:],
        ]
    empty = [np.zeros(0, np.float32)] * count
    case = make_case("", (op_type, attributes), inputs, empty, 14)
    return list(unoptimised_session(case.model).run(None, dict(case.feeds)))


def draw_norms() -> Iterator[Case]:
    """Yield norms of images without rows, channels or positions, and products of no channels."""
    rng = np.random.default_rng(9)
    shapes = (
        (0, 4, 3),
        (2, 0, 3),
        (2, 4, 0),
        (0, 4, 3, 2),
        (2, 4, 0, 2),
        (2, 4, 2, 0),
        (0, 4, 0),
        (2, 4, 3),
    )
    for shape, constants in itertools.product(shapes, ((), (1, 2))):
        x = rng.standard_normal(shape).astype(np.float32)
        scale, bias = (rng.standard_normal(shape[1]).astype(np.float32) for _ in range(2))
        for opset in (6, 22):
            out = _norm(x, x.shape[1], scale, bias)
            yield make_case(
                f"InstanceNormalization {shape} {constants}",
                ("InstanceNormalization", {}),
                [x, scale, bias],
                [out],
                opset,
                constants=constants,
                error=1e-4,
            )
        for opset, groups in itertools.product((18, 21), (1, 2) if shape[1] else ()):
            size = groups if opset < 21 else shape[1]
            scale, bias = (rng.standard_normal(size).astype(np.float32) for _ in range(2))
            by_channel = [
                np.repeat(value, shape[1] // groups) if opset < 21 else value
                for value in (scale, bias)
            ]
            yield make_case(
                f"GroupNormalization {shape} {groups} {constants}",
                ("GroupNormalization", {"num_groups": groups}),
                [x, scale, bias],
                [_norm(x, groups, *by_channel)],
                opset,
                constants=constants,
                error=1e-4,
            )


def _norm(x: Array, groups: int, scale: Array, bias: Array) -> Array:
    if not x.size:
        return x
    rows = x.reshape(x.shape[0], groups, -1).astype(np.float64)
    centred = rows - rows.mean(-1, keepdims=True)
    normed = (centred / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)).reshape(x.shape)
    along = [1, -1, *[1] * (x.ndim - 2)]
    scaled = normed * scale.reshape(along) + bias.reshape(along)
    return np.asarray(scaled, np.float32)


def draw_moved() -> Iterator[Case]:
    """Yield scatters and gathers of no elements, in every opset."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for axis, shape, opset in itertools.product(
        (0, 1, -1), ((0, 4), (3, 0), (0, 0), (2, 0)), (9, 11, 13, 18)
    ):
        indices, updates = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        op_type = "Scatter" if opset < 11 else "ScatterElements"
        if opset < 11 and axis < 0:
            continue
        for constants in ((), (1,), (1, 2), (0,), (2,)):
            yield make_case(
                f"{op_type} {shape} {axis} {constants}",
                (op_type, {"axis": axis}),
                [x, indices, updates],
                [x],
                opset,
                constants=constants,
            )
            if op_type == "ScatterElements" and 2 not in constants:
                yield make_case(
                    f"GatherElements {shape} {axis} {constants}",
                    ("GatherElements", {"axis": axis}),
                    [x, indices],
                    [updates],
                    opset,
                    constants=constants,
                )
    for depth, opset, places in itertools.product((1, 2), (11, 16, 18), ((), (1,), (1, 2))):
        indices = np.zeros((0, depth), np.int64)
        updates = np.zeros((0, *x.shape[depth:]), np.float32)
        words = f"{depth} {places}"
        yield make_case(
            f"ScatterND {words}", ("ScatterND", {}), [x, indices, updates], [x], opset,
            constants=places,
        )  # fmt: skip
        yield make_case(
            f"GatherND {words}", ("GatherND", {}), [x, indices], [updates], opset,
            constants=places[:1],
        )  # fmt: skip


def draw_resized() -> Iterator[Case]:
    """Yield Resizes to nothing and of nothing, in every opset."""
    image = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    for mode, opset, shape in itertools.product(
        ("nearest", "linear", "cubic"),
        (10, 11, 13, 18, 19),
        ((1, 2, 0, 4), (1, 2, 3, 0), (0, 2, 3, 4), (1, 2, 0, 0), (1, 0, 3, 4)),
    ):
        out = np.zeros(shape, np.float32)
        # An empty tensor stands for a missing one before opset 13.
        roi = np.zeros(0, np.float32) if opset < 13 else None
        if opset > 10:
            sizes = np.array(shape, np.int64)
            inputs: list[Array | None] = [image, roi, roi, sizes]
            yield make_case(
                f"Resize {mode} to {shape}",
                ("Resize", {"mode": mode}),
                inputs,
                [out],
                opset,
                constants=(3,) if roi is None else (1, 2, 3),
            )
        if mode == "cubic" and opset == 10:
            continue
        factors = (np.array(shape) / np.array(image.shape)).astype(np.float32)
        inputs = [image, factors] if opset == 10 else [image, roi, factors]
        yield make_case(
            f"Resize {mode} by {shape}",
            ("Resize", {"mode": mode}),
            inputs,
            [out],
            opset,
            constants=range(1, len(inputs)) if roi is not None else (2,),
        )
        empty = np.zeros(shape, np.float32)
        factors = np.array([1, 1, 2, 2], np.float32)
        inputs = [empty, factors] if opset == 10 else [empty, roi, factors]
        yield make_case(
            f"Resize {mode} of {shape}",
            ("Resize", {"mode": mode}),
            inputs,
            [np.zeros((*shape[:2], 2 * shape[2], 2 * shape[3]), np.float32)],
            opset,
            constants=range(1, len(inputs)) if roi is not None else (2,),
        )
