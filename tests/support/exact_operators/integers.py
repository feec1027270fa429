"""Operators on integers, of all types and in all opsets that have these, beside numpy's arithmetic,
which wraps as the chip's does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from exact_operators.forms import Array, Case, make_case

TYPES = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32)
"""Integers of the chip, and int64, which it computes as int32."""
_LAST = 24
_BROADCASTS, _BOUNDS_ARE_INPUTS, _AXES_ARE_INPUTS = 7, 11, 18
_BITS_32 = np.iinfo(np.int32)

Compute = Callable[..., Array]


def versions(op_type: str, dtype: npt.DTypeLike, place: int = 0) -> list[int]:
    """Return the opsets in which an operator got a new form that takes a type at an input."""
    kind = onnx.TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    schemas = [
        schema
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.name == op_type and not schema.domain and schema.since_version <= _LAST
    ]
    return sorted(
        schema.since_version
        for schema in schemas
        if f"tensor({kind.lower()})" in schema.inputs[place].types
    )


def list_ends(dtype: npt.DTypeLike) -> Array:
    """Return the ends of a type, of int64 those of int32, and numbers near 0."""
    info = np.iinfo(dtype)
    low, high = max(info.min, _BITS_32.min), info.max if info.max < 2**33 else _BITS_32.max
    numbers = {
        low,
        low + 1,
        high,
        high - 1,
        0,
        1,
        2,
        3,
        7,
        max(low, -1),
        max(low, -2),
        max(low, -7),
    }
    return np.array(sorted(numbers), dtype)


def _grid(dtype: npt.DTypeLike) -> tuple[Array, Array]:
    ends = list_ends(dtype)
    left, right = np.meshgrid(ends, ends, indexing="ij")
    return np.ascontiguousarray(left), np.ascontiguousarray(right)


def wrap(values: Any, dtype: npt.DTypeLike) -> Array:
    """Return exact values, of Python's numbers, in a type; those of int64 in 32 bits."""
    bits = min(32, np.iinfo(dtype).bits)
    flat = [int(value) % 2**bits for value in values.reshape(-1)]
    if np.iinfo(dtype).min < 0:
        flat = [value - 2**bits if value >= 2 ** (bits - 1) else value for value in flat]
    return np.asarray(np.array(flat, dtype).reshape(values.shape))


def to_exact(array: Array) -> npt.NDArray[np.object_]:
    return np.array([int(v) for v in array.reshape(-1)], object).reshape(array.shape)


def _divide(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_BINARY: dict[str, Callable[[int, int], int]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": _divide,
    "Mod": lambda a, b: a % b if b else 0,
    "Max": max,
    "Min": min,
    "BitwiseAnd": lambda a, b: a & b,
    "BitwiseOr": lambda a, b: a | b,
    "BitwiseXor": lambda a, b: a ^ b,
    "Equal": lambda a, b: a == b,
    "Less": lambda a, b: a < b,
    "Greater": lambda a, b: a > b,
    "LessOrEqual": lambda a, b: a <= b,
    "GreaterOrEqual": lambda a, b: a >= b,
}
_COMPARISONS = "Equal Less Greater LessOrEqual GreaterOrEqual".split()


def draw_binary() -> Iterator[Case]:
    """Yield operators of two operands, of equal shapes, broadcast, and with each one constant."""
    for (op_type, compute), dtype in itertools.product(_BINARY.items(), TYPES):
        for opset in versions(op_type, dtype):
            left, right = _grid(dtype)
            forms: list[tuple[str, Array, Array, dict[str, Any], tuple[int, ...]]] = [
                ("alike", left, right, {}, ()),
                ("constant", left, right, {}, (1,)),
                ("of a constant", left, right, {}, (0,)),
            ]
            if opset >= _BROADCASTS or op_type in ("Mod", "Max", "Min"):
                forms.append(("broadcast", left[:, :1], right[:1], {}, ()))
                forms.append(("by a scalar", left, right[0, 0].reshape(()), {}, ()))
                forms.append(("by a constant scalar", left, np.array(0, dtype), {}, (1,)))
            else:
                forms.append(
                    ("axis", left, right[0, :1].repeat(len(left)), {"axis": 0, "broadcast": 1}, ())
                )
                forms.append(("broadcast", left, right[0], {"broadcast": 1}, ()))
            for words, a, b, attributes, constants in forms:
                b_exact = b[:, None] if attributes.get("axis") == 0 else b
                values = np.frompyfunc(compute, 2, 1)(to_exact(a), to_exact(b_exact))
                values = np.asarray(values, object)
                out = np.asarray(values, bool) if op_type in _COMPARISONS else wrap(values, dtype)
                yield make_case(
                    f"{op_type} {dtype.__name__} {words}",
                    (op_type, attributes),
                    [a, b],
                    [out],
                    opset,
                    constants=constants,
                )


def draw_remainders() -> Iterator[Case]:
    """Yield remainders with the sign of the dividend, shifts, and powers."""
    for dtype in TYPES:
        left, right = _grid(dtype)
        rest = wrap(
            np.frompyfunc(lambda a, b: a - _divide(a, b) * b if b else 0, 2, 1)(
                to_exact(left), to_exact(right)
            ),
            dtype,
        )
        for opset, constants in itertools.product(versions("Mod", dtype), ((), (1,))):
            yield make_case(
                f"Mod fmod {dtype.__name__} {constants}",
                ("Mod", {"fmod": 1}),
                [left, right],
                [rest],
                opset,
                constants=constants,
            )
        for opset, way in itertools.product(versions("BitShift", dtype), ("LEFT", "RIGHT")):
            bits = np.iinfo(dtype).bits
            counts = np.array([0, 1, bits - 1, bits, bits + 1, np.iinfo(dtype).max], dtype)
            a, b = (
                np.ascontiguousarray(x)
                for x in np.meshgrid(list_ends(dtype), counts, indexing="ij")
            )
            shift = (
                (lambda a, b: a << min(b, 64)) if way == "LEFT" else (lambda a, b: a >> min(b, 64))
            )
            out = wrap(np.frompyfunc(shift, 2, 1)(to_exact(a), to_exact(b)), dtype)
            for constants in ((), (1,)):
                yield make_case(
                    f"BitShift {way} {dtype.__name__} {constants}",
                    ("BitShift", {"direction": way}),
                    [a, b],
                    [out],
                    opset,
                    constants=constants,
                )
        for opset, other in itertools.product(versions("Pow", dtype), TYPES):
            if (
                f"tensor({np.dtype(other).name})"
                not in onnx.defs.get_schema("Pow", opset).inputs[1].types
            ):
                continue
            bases, powers = list_ends(dtype), np.array([0, 1, 2, 3, 5], other)
            a, b = (np.ascontiguousarray(x) for x in np.meshgrid(bases, powers, indexing="ij"))
            out = wrap(np.frompyfunc(lambda a, b: a**b, 2, 1)(to_exact(a), to_exact(b)), dtype)
            for constants in ((), (1,)):
                yield make_case(
                    f"Pow {dtype.__name__} {np.dtype(other).name} {constants}",
                    ("Pow", {}),
                    [a, b],
                    [out],
                    opset,
                    constants=constants,
                )


_UNARY: dict[str, Callable[[int], int]] = {
    "Abs": abs,
    "Neg": lambda a: -a,
    "Sign": lambda a: (a > 0) - (a < 0),
    "BitwiseNot": lambda a: ~a,
    "Relu": lambda a: max(a, 0),
    "Identity": lambda a: a,
}


def draw_unary() -> Iterator[Case]:
    """Yield operators of one operand, clips, and extremes of one and three operands."""
    for dtype in TYPES:
        ends = list_ends(dtype)
        for op_type, compute in _UNARY.items():
            for opset in versions(op_type, dtype):
                out = wrap(np.frompyfunc(compute, 1, 1)(to_exact(ends)), dtype)
                yield make_case(f"{op_type} {dtype.__name__}", (op_type, {}), [ends], [out], opset)
        for opset in versions("Clip", dtype):
            pairs = (
                (ends[2], ends[-3]),
                (None, ends[4]),
                (ends[4], None),
                (ends[-2], ends[1]),
                (ends[0], ends[-1]),
                (None, None),
            )
            for (low, high), constants in itertools.product(pairs, (True, False)):
                out = ends if low is None else np.maximum(ends, low)
                out = out if high is None else np.minimum(out, high)
                bounds = [None if bound is None else np.asarray(bound) for bound in (low, high)]
                places = [place for place, bound in enumerate(bounds, 1) if bound is not None]
                yield make_case(
                    f"Clip {dtype.__name__} {low} {high} {constants}",
                    ("Clip", {}),
                    [ends, *bounds],
                    [out],
                    opset,
                    constants=places if constants else (),
                )
        for op_type, extreme in (("Max", np.maximum), ("Min", np.minimum)):
            for opset, count in itertools.product(versions(op_type, dtype), (1, 3)):
                values = [np.roll(ends, step) for step in range(count)]
                yield make_case(
                    f"{op_type} {dtype.__name__} of {count}",
                    (op_type, {}),
                    values,
                    [reduce(extreme, values)],
                    opset,
                )
        for opset in versions("PRelu", dtype):
            slope = np.array(3, dtype).reshape(1)
            out = wrap(np.where(ends < 0, to_exact(ends) * 3, to_exact(ends)), dtype)
            yield make_case(
                f"PRelu {dtype.__name__}",
                ("PRelu", {}),
                [ends, slope],
                [out],
                opset,
                constants=(1,),
            )


_REDUCING: dict[str, Callable[[list[int]], int]] = {
    "ReduceSum": sum,
    "ReduceProd": lambda row: reduce(lambda a, b: a * b, row, 1),
    "ReduceMax": max,
    "ReduceMin": min,
    "ReduceL1": lambda row: sum(map(abs, row)),
    "ReduceSumSquare": lambda row: sum(value * value for value in row),
    "ReduceMean": lambda row: _divide(sum(row), len(row)),
}
_SUM_AXES_ARE_INPUTS = 13


def draw_reductions() -> Iterator[Case]:
    """Yield reductions along each axis and all."""
    rng = np.random.default_rng(0)
    for dtype in TYPES:
        ends = list_ends(dtype)
        wide = rng.choice(ends, (2, 3, 4))
        small = rng.integers(0 if np.iinfo(dtype).min == 0 else -5, 6, (2, 3, 4)).astype(dtype)
        for op_type, compute in _REDUCING.items():
            # The standard does not say whether a mean's sum wraps: int32 is taken as it is.
            x = small if op_type == "ReduceMean" and dtype is np.int64 else wide
            forms = itertools.product(versions(op_type, dtype), (None, (1,), (0, 2), (-1,)), (0, 1))
            for opset, axes, keeps in forms:
                out = _reduce(x, compute, axes, keeps, dtype)
                is_input = opset >= (_SUM_AXES_ARE_INPUTS if op_type == "ReduceSum" else 18)
                if axes is not None and min(axes) < 0 and opset < 11:
                    continue
                attributes: dict[str, Any] = {"keepdims": keeps}
                inputs = [x]
                if axes is not None and is_input:
                    inputs.append(np.array(axes, np.int64))
                elif axes is not None:
                    attributes["axes"] = axes
                yield make_case(
                    f"{op_type} {dtype.__name__} {axes} {keeps}",
                    (op_type, attributes),
                    inputs,
                    [out],
                    opset,
                    constants=range(1, len(inputs)),
                )


def draw_running() -> Iterator[Case]:
    """Yield running sums and the places of extremes."""
    rng = np.random.default_rng(10)
    for dtype in TYPES:
        wide = rng.choice(list_ends(dtype), (2, 3, 4))
        for opset, exclusive, backwards in itertools.product(
            versions("CumSum", dtype), (0, 1), (0, 1)
        ):
            rows = to_exact(wide)[:, ::-1] if backwards else to_exact(wide)
            sums = np.cumsum(rows, 1)
            sums = sums - rows if exclusive else sums
            out = wrap(sums[:, ::-1] if backwards else sums, dtype)
            yield make_case(
                f"CumSum {dtype.__name__} {exclusive} {backwards}",
                ("CumSum", {"exclusive": exclusive, "reverse": backwards}),
                [wide, np.array(1, np.int64)],
                [out],
                opset,
                constants=(1,),
            )
        for op_type, find in (("ArgMax", np.argmax), ("ArgMin", np.argmin)):
            for opset, last in itertools.product(versions(op_type, dtype), (0, 1)):
                if last and opset < 12:
                    continue
                places = find(wide[:, ::-1] if last else wide, 1)
                places = 2 - places if last else places
                attributes = {"axis": 1, "keepdims": 0} | ({"select_last_index": 1} if last else {})
                yield make_case(
                    f"{op_type} {dtype.__name__} {last}",
                    (op_type, attributes),
                    [wide],
                    [places],
                    opset,
                )


def _reduce(x: Array, compute: Any, axes: Sequence[int] | None, keeps: int, dtype: Any) -> Array:
    chosen = tuple(range(3)) if axes is None else tuple(axis % 3 for axis in axes)
    rest = [axis for axis in range(3) if axis not in chosen]
    rows = to_exact(x).transpose([*rest, *chosen]).reshape([*(x.shape[a] for a in rest), -1])
    values = np.empty(rows.shape[:-1], object)
    for place in np.ndindex(values.shape):
        values[place] = compute(list(rows[place]))
    values = wrap(values, dtype)
    return np.expand_dims(values, chosen) if keeps else values


def draw_products() -> Iterator[Case]:
    """Yield products of matrices, of sums over none, one and many terms."""
    rng = np.random.default_rng(1)
    for dtype in TYPES:
        ends = list_ends(dtype)
        for opset, (rows, terms, columns) in itertools.product(
            versions("MatMul", dtype), ((2, 3, 4), (1, 40, 1), (2, 0, 3), (0, 3, 2), (2, 3, 0))
        ):
            a, b = rng.choice(ends, (rows, terms)), rng.choice(ends, (terms, columns))
            out = wrap(
                np.asarray(to_exact(a) @ to_exact(b), object)
                if terms
                else np.zeros((rows, columns), object),
                dtype,
            )
            for constants in ((), (1,)):
                yield make_case(
                    f"MatMul {dtype.__name__} {rows} {terms} {columns} {constants}",
                    ("MatMul", {}),
                    [a, b],
                    [out],
                    opset,
                    constants=constants,
                )
        for opset, left, right, scaled in itertools.product(
            versions("Gemm", dtype), (0, 1), (0, 1), (0, 1)
        ):
            for terms in (3, 0):
                a, b = rng.choice(ends, (2, terms)), rng.choice(ends, (terms, 4))
                c = rng.choice(ends, (2, 4))
                product = to_exact(a) @ to_exact(b) if terms else np.zeros((2, 4), object)
                factors = {"alpha": 2.0, "beta": 3.0} if scaled else {}
                sums = product * (2 if scaled else 1) + to_exact(c) * (3 if scaled else 1)
                attributes = {"transA": left, "transB": right, **factors}
                inputs = [a.T.copy() if left else a, b.T.copy() if right else b, c]
                yield make_case(
                    f"Gemm {dtype.__name__} {left} {right} {scaled} {terms}",
                    ("Gemm", attributes),
                    inputs,
                    [wrap(sums, dtype)],
                    opset,
                )
        for opset in versions("Einsum", dtype):
            a, b = rng.choice(ends, (2, 3)), rng.choice(ends, (3, 4))
            for equation, out in (
                ("ij,jk->ik", to_exact(a) @ to_exact(b)),
                ("ij,jk->", (to_exact(a) @ to_exact(b)).sum()),
            ):
                yield make_case(
                    f"Einsum {dtype.__name__} {equation}",
                    ("Einsum", {"equation": equation}),
                    [a, b],
                    [wrap(np.asarray(out, object), dtype)],
                    opset,
                )
