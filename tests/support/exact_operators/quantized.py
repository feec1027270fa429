"""Quantized operators beside arithmetic in 64 bits: integer products over any number of terms, and
QuantizeLinear and DequantizeLinear of all types, per tensor, channel and block."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from integer_products import convolve, saturate, wide
from onnx import helper

from exact_operators.forms import Array, Case, make_case

U8, I8 = np.uint8, np.int8
PAIRS = tuple(itertools.product((U8, I8), repeat=2))
_SHAPES: Sequence[tuple[tuple[int, ...], tuple[int, ...]]] = (
    ((2, 3), (3, 4)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((3,), (3,)),
    ((2, 1, 2, 3), (3, 3, 2)),
    ((2, 0), (0, 3)),
    ((0, 3), (3, 2)),
    ((2, 3), (3, 0)),
    ((0,), (0, 2)),
    ((2, 0), (0,)),
    ((2, 2, 0), (2, 0, 3)),
    ((0, 2, 3), (3, 2)),
    ((0, 0), (0, 0)),
    ((0,), (0,)),
)


def _codes(rng: np.random.Generator, dtype: Any, shape: Sequence[int]) -> Array:
    ends = np.iinfo(dtype)
    return np.asarray(rng.integers(ends.min, ends.max + 1, shape), dtype)


def draw_products() -> Iterator[Case]:
    """Yield MatMulInteger and QLinearMatMul, of vectors, matrices and stacks, empty ones among
    them."""
    rng = np.random.default_rng(3)
    kinds = itertools.product(PAIRS, _SHAPES, ("none", "scalar", "vector"), ((), (1, 2, 3)))
    for (left, right), (a_shape, b_shape), zeros, constants in kinds:
        a, b = _codes(rng, left, a_shape), _codes(rng, right, b_shape)
        if zeros == "vector" and (
            len(a_shape) != 2 or len(b_shape) != 2 or 0 in (a_shape[0], b_shape[1])
        ):
            continue
        a_zero: Array | None = _codes(rng, left, ()) if zeros != "none" else None
        b_zero: Array | None = _codes(rng, right, ()) if zeros != "none" else None
        if zeros == "vector":
            b_zero = _codes(rng, right, b_shape[1:])
        product = wide(a, 0 if a_zero is None else a_zero) @ wide(
            b, 0 if b_zero is None else b_zero
        )
        words = f"{left.__name__} x {right.__name__} {a_shape} {b_shape} {zeros} {constants}"
        places = [place for place in constants if place == 1 or zeros != "none"]
        yield make_case(
            f"MatMulInteger {words}",
            ("MatMulInteger", {}),
            [a, b, a_zero, b_zero],
            [np.asarray(product, np.int32)],
            10,
            constants=places,
        )
        if (left, right) == (I8, U8) or a_zero is None or zeros == "vector":
            continue
        for opset, result in ((10, left), (21, left), (21, U8 if left is I8 else I8)):
            if result is not left:
                continue
            step = np.float32(2.0 ** np.ceil(np.log2(max(np.abs(product).max(initial=1), 1) / 60)))
            y_zero = _codes(rng, result, ())
            one = np.array(1, np.float32)
            codes = saturate(product / step, int(y_zero), result).astype(result)
            inputs = [a, one, a_zero, b, one, b_zero, np.array(step), y_zero]
            yield make_case(
                f"QLinearMatMul {words}",
                ("QLinearMatMul", {}),
                inputs,
                [codes],
                opset,
                constants=(1, 2, 3, 4, 5, 6, 7) if constants else (),
            )


def draw_convolutions() -> Iterator[Case]:
    """Yield ConvInteger and QLinearConv with groups, padding and strides, of no rows too."""
    rng = np.random.default_rng(4)
    forms = itertools.product(
        PAIRS, ((1, 4, 5, 5), (2, 4, 4, 6), (0, 4, 5, 5)), (1, 2, 4), (0, 1), (1, 2), (True, False)
    )
    for (left, right), shape, groups, pads, stride, has_zeros in forms:
        x, w = _codes(rng, left, shape), _codes(rng, right, (4, 4 // groups, 3, 3))
        x_zero, w_zero = (
            _codes(rng, kind, ()) if has_zeros else np.array(0, kind) for kind in (left, right)
        )
        total = convolve(wide(x, x_zero), wide(w, w_zero), pads, stride, groups)
        attributes = {"group": groups, "pads": [pads] * 4, "strides": [stride] * 2}
        words = f"{left.__name__} x {right.__name__} {shape} {groups} {pads} {stride} {has_zeros}"
        inputs = [x, w, x_zero, w_zero] if has_zeros else [x, w]
        yield make_case(
            f"ConvInteger {words}",
            ("ConvInteger", attributes),
            inputs,
            [total.astype(np.int32)],
            10,
            constants=(1, 2, 3)[: len(inputs) - 1],
        )
        if (left, right) == (I8, U8):
            continue
        step = np.array(64.0 * 32, np.float32)
        one, ones = np.array(1, np.float32), np.ones(4, np.float32)
        bias = rng.integers(-1000, 1000, 4).astype(np.int32)
        codes = saturate((total + bias[:, None, None]) / step, int(x_zero), left).astype(left)
        inputs = [x, one, x_zero, w, ones if has_zeros else one, w_zero, step, x_zero, bias]
        yield make_case(
            f"QLinearConv {words}",
            ("QLinearConv", attributes),
            inputs,
            [codes],
            10,
            constants=range(1, 9),
        )


_RANGES: dict[Any, tuple[int, int, int]] = {
    U8: (0, 255, 10),
    I8: (-128, 127, 10),
    np.uint16: (0, 65535, 21),
    np.int16: (-32768, 32767, 21),
    ml_dtypes.uint4: (0, 15, 21),
    ml_dtypes.int4: (-8, 7, 21),
}
"""Ends of the quantized types and the first opset with them."""
_SPECIAL = (
    0.0,
    -0.0,
    0.5,
    1.5,
    2.5,
    -0.5,
    -1.5,
    -2.5,
    1e30,
    -1e30,
    np.inf,
    -np.inf,
    100.0,
    -100.0,
    254.5,
    255.5,
)
_OPSETS = (10, 13, 19, 21, 23, 24)
_GRAINS = ("tensor", "axis", "last axis", "block")


def _grain(
    grain: str, rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]
) -> tuple[dict[str, Any], Array, Array]:
    """Return attributes, and the steps and zero points of a tensor of a shape."""
    low, high, _ = _RANGES.get(dtype, (0, 0, 10))
    sizes, attributes = {
        "tensor": ((), {}),
        "axis": ((shape[1],), {"axis": 1}),
        "last axis": ((shape[-1],), {"axis": -1}),
        "block": ((*shape[:-1], -(-shape[-1] // 2)), {"axis": len(shape) - 1, "block_size": 2}),
    }[grain]
    steps = np.asarray(2.0 ** rng.integers(-2, 2, sizes), np.float32)
    return attributes, steps, np.asarray(rng.integers(low, high + 1, sizes), np.int64)


def _spread(value: Array, grain: str, shape: tuple[int, ...]) -> Array:
    if grain == "axis":
        return value.reshape(1, -1, *[1] * (len(shape) - 2))
    if grain == "block":
        return np.repeat(value, 2, -1)[..., : shape[-1]]
    return value


def draw_steps() -> Iterator[Case]:
    """Yield QuantizeLinear and DequantizeLinear: results saturate, and halves round to even."""
    rng = np.random.default_rng(5)
    forms = itertools.product(
        _RANGES, _OPSETS, _GRAINS, (True, False), ((2, 4, 4), (0, 4, 4), (2, 4, 0))
    )
    for dtype, opset, grain, has_zero, shape in forms:
        low, high, first = _RANGES[dtype]
        if opset < first or (grain == "block" and opset < 21) or ("axis" in grain and opset < 13):
            continue
        attributes, steps, zeros = _grain(grain, rng, dtype, shape)
        zeros = zeros if has_zero else zeros * 0
        x = rng.choice(np.array(_SPECIAL, np.float32), shape)
        codes = np.rint(x.astype(np.float64) / _spread(steps, grain, shape)) + _spread(
            zeros, grain, shape
        )
        out = np.clip(codes, low, high).astype(np.int64).astype(dtype)
        inputs = [x, steps] + ([zeros.astype(dtype)] if has_zero else [])
        words = f"{np.dtype(dtype).name} {grain} {has_zero} {shape}"
        kind = {} if has_zero or dtype is U8 else {"output_dtype": _element(dtype)}
        if (not kind or opset >= 21) and dtype not in (ml_dtypes.uint4, ml_dtypes.int4):
            for constants in ((1, 2)[: len(inputs) - 1], ()):
                yield make_case(
                    f"QuantizeLinear {words} {constants}",
                    ("QuantizeLinear", attributes | kind),
                    inputs,
                    [out],
                    opset,
                    constants=constants,
                )
        codes = rng.integers(low, high + 1, shape)
        real = ((codes - _spread(zeros, grain, shape)) * _spread(steps, grain, shape)).astype(
            np.float32
        )
        inputs = [codes.astype(dtype), steps] + ([zeros.astype(dtype)] if has_zero else [])
        is_small = dtype in (ml_dtypes.uint4, ml_dtypes.int4)
        for constants in ((), (1, 2), (0, 1, 2)) if not is_small else ((0, 1, 2),):
            places = [place for place in constants if place < len(inputs)]
            yield make_case(
                f"DequantizeLinear {words} {places}",
                ("DequantizeLinear", attributes),
                inputs,
                [real],
                opset,
                constants=places,
                error=1e-6,
            )
    for opset, grain, shape in itertools.product(_OPSETS, _GRAINS, ((2, 4, 4), (0, 4, 4))):
        if (grain == "block" and opset < 21) or ("axis" in grain and opset < 13):
            continue
        attributes, steps, _ = _grain(grain, rng, np.int32, shape)
        x = rng.integers(-(2**23), 2**23, shape).astype(np.int32)
        real = (x * _spread(steps, grain, shape).astype(np.float64)).astype(np.float32)
        yield make_case(
            f"DequantizeLinear int32 {grain} {shape}",
            ("DequantizeLinear", attributes),
            [x, steps],
            [real],
            opset,
            constants=(1,),
        )


def _element(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def draw_dynamic() -> Iterator[Case]:
    """Yield DynamicQuantizeLinear of ranges around 0, on one side of it, of one value and of none."""
    for values in (
        [-1, 0, 3],
        [1, 2, 3],
        [-5, -4],
        [0, 0, 0],
        [2.5],
        [-3.5],
        [],
        [1e30, -1e30],
        [1e-30, 2e-30],
        [0.5, 1.5, 254.5, 255],
        [-127.5, 127.5, 0.5],
        [100, 50, 3],
    ):
        for shape in ((-1,), (1, -1), (-1, 1, 1)):
            x = (
                np.array(values, np.float32).reshape(shape)
                if values
                else np.zeros([max(n, 0) for n in shape], np.float32)
            )
            yield make_case(
                f"DynamicQuantizeLinear {values} {shape}",
                ("DynamicQuantizeLinear", {}),
                [x],
                list(_quantize_by_range(x)),
                11,
                error=1e-7,
            )


def _quantize_by_range(x: Array) -> tuple[Array, Array, Array]:
    low = np.minimum(np.float32(0), x.min(initial=0))
    high = np.maximum(np.float32(0), x.max(initial=0))
    step = np.asarray((high - low) / np.float32(255), np.float32)
    if not step:
        step = np.array(1, np.float32)
    zero = np.asarray(np.clip(np.rint((0 - low) / step), 0, 255), U8)
    return np.clip(np.rint(x / step) + zero, 0, 255).astype(U8), step, zero
