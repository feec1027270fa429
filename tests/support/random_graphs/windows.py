"""Steps that add products, convolutions, pools, recurrent operators and those of 8-bit codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from random_graphs.drawing import Drawing, UnfitError
from random_graphs.elementwise import Builder


def matmul(d: Drawing, op_type: str) -> None:
    """Add a product with vectors or stacks of matrices on either side."""
    source = d.pick(ranks=range(1, 5))
    shape = d[source].shape
    if d.chance(0.5):
        inner = shape[-1]
        made = d.choice(
            [(inner,), (inner, d.dimension()), (inner, d.dimension()), (*shape[:-2], inner, 2)]
        )
        d.add(op_type, source, d.constant(d.numbers(made) / 4))
        return
    if d.chance(0.3):
        inner = shape[-2] if len(shape) > 1 else shape[0]
        d.add(op_type, d.constant(d.numbers(d.choice([(inner,), (2, inner)])) / 4), source)
        return
    if len(shape) < 2:
        raise UnfitError("no matrix")
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    d.add(op_type, source, d.add("Transpose", source, perm=order))


def gemm(d: Drawing, op_type: str) -> None:
    """Add a Gemm, transposed or not, scaled, with every bias that broadcasts."""
    source = d.pick(ranks=[2])
    turned = d.chance(0.3)
    rows, inner = d[source].shape[:: -1 if turned else 1]
    columns, other = d.dimension(), d.chance(0.5)
    weights = d.constant(d.numbers((columns, inner) if other else (inner, columns)) / 4)
    bias = d.choice([(columns,), (1, columns), (rows, columns), (rows, 1), (1,), ()])
    inputs = [source, weights]
    if d.chance(0.3):
        found = [
            name
            for name, each in d.tensors.items()
            if each.kind == "float32" and each.shape in ((columns,), (rows, columns), (1, columns))
        ]
        inputs += [d.choice(found)] if found else []
    elif d.chance(0.7) or d.opset < 11:
        inputs.append(d.constant(d.numbers(bias)))
    alpha, beta = d.choice([None, 0.5]), d.choice([None, 2.0])
    d.add(op_type, *inputs, transA=int(turned), transB=int(other), alpha=alpha, beta=beta)


def einsum(d: Drawing, op_type: str) -> None:
    """Add a sum over some letters of one tensor or two."""
    source = d.pick(ranks=range(1, 4))
    letters = "abcd"[: d[source].value.ndim]
    kept = "".join(d.rng.permutation([each for each in letters if d.chance(0.6)] or [letters[0]]))
    equation = f"{letters},{letters}->{kept}" if d.chance(0.5) else f"{letters}->{kept}"
    d.add(op_type, *[source] * (equation.count(",") + 1), equation=equation)


def _image(d: Drawing, kind: str = "float32") -> str:
    """Return a tensor with channels and 1 to 3 axes of space."""
    rank = d.choice([3, 4, 4, 4, 5])
    found = [
        n for n, each in d.tensors.items() if each.kind == kind and each.value.ndim in (3, 4, 5)
    ]
    if found and d.chance(0.6):
        return str(d.choice(found[-4:]))
    if d.chance(0.4) and kind == "float32":
        source = d.pick(ranks=range(1, rank))
        shape = d[source].shape
        return d.add("Reshape", source, d.longs([*shape, *[1] * (rank - len(shape))]))
    sizes = [d.choice([d.size, 3, 4, 5, 6]) for _ in range(rank - 2)]
    return d.add_input(kind, (d.size, d.choice([d.size, 1, 2, 4]), *sizes))


def _window(d: Drawing, space: int, *, padded: bool = True) -> dict[str, Any]:
    """Return the attributes that windows share."""
    kernel = [d.integer(1, 3) for _ in range(space)]
    auto = d.choice([None, None, None, "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
    pads = None
    if auto in (None, "NOTSET") and padded and d.chance(0.6):
        pads = [d.integer(0, size - 1) for size in (*kernel, *kernel)]
    strides = d.choice([None, [d.integer(1, 3) for _ in range(space)]])
    return {"kernel_shape": kernel, "auto_pad": auto, "pads": pads, "strides": strides}


def _dilate(d: Drawing, space: int) -> list[int] | None:
    return [d.integer(1, 2) for _ in range(space)] if d.chance(0.4) else None


def pool(d: Drawing, op_type: str) -> None:
    """Add a pool with any of its attributes."""
    source = _image(d)
    space = d[source].value.ndim - 2
    given = _window(d, space)
    given["ceil_mode"] = d.choice([None, 0, 1])
    if op_type != "LpPool" or d.opset >= 18:
        # ONNX Runtime forgets the dilations when it pads by itself, and pads less than nothing
        # where windows are smaller than the strides.
        pads_itself = str(given["auto_pad"]).startswith("SAME")
        if pads_itself and given["strides"]:
            pairs = zip(given["strides"], given["kernel_shape"], strict=True)
            given["strides"] = [min(stride, size) for stride, size in pairs]
        given["dilations"] = None if pads_itself else _dilate(d, space)
    if op_type == "AveragePool":
        d.add(op_type, source, count_include_pad=d.choice([None, 0, 1]), **given)
    elif op_type == "LpPool":
        d.add(op_type, source, p=d.choice([None, 1, 2]), **given)
    else:
        wanted = [True, d.opset >= 8 and d.chance(0.3)]
        d.add_all(op_type, [source], wanted, storage_order=d.choice([None, 0, 1]), **given)


def global_pool(d: Drawing, op_type: str) -> None:
    """Add a pool over all of space."""
    d.add(op_type, _image(d), p=d.choice([None, 1, 2]))


def convolve(d: Drawing, op_type: str) -> None:
    """Add a convolution with any of its attributes."""
    source = _image(d)
    channels, space = d[source].shape[1], d[source].value.ndim - 2
    group = d.choice([each for each in range(1, channels + 1) if channels % each == 0])
    given = _window(d, space)
    made = d.integer(1, 2)
    outer = (made * group, channels // group) if op_type == "Conv" else (channels, made)
    weights = d.constant(d.numbers((*outer, *given["kernel_shape"])) / 4)
    inputs = [source, weights, *([d.constant(d.numbers([made * group]))] if d.chance(0.5) else [])]
    given["dilations"] = _dilate(d, space)
    if op_type == "ConvTranspose":
        strides = given["strides"] or [1] * space
        given["output_padding"] = d.choice([None, [d.integer(0, step - 1) for step in strides]])
    if d.chance(0.3):
        del given["kernel_shape"]
    d.add(op_type, *inputs, group=None if group == 1 and d.chance(0.5) else group, **given)


def unpool(d: Drawing, op_type: str) -> None:
    """Add a pool and its inverse, in which the dropped elements are zero."""
    source = _image(d)
    space = d[source].value.ndim - 2
    if d.opset < 9 or min(d[source].shape[2:]) < 2:
        raise UnfitError("no room")
    kernel: dict[str, Any] = {"kernel_shape": [2] * space, "strides": [2] * space}
    small, places = d.add_all("MaxPool", [source], [True, True], **kernel)
    d.add(op_type, small, places, **kernel)


def _recur(d: Drawing, op_type: str) -> tuple[list[str], dict[str, Any], list[bool]]:
    source = d.pick(ranks=[3])
    shape, hidden = d[source].shape, d.choice([d.size, 2, 3])
    layout = d.choice([None, 0, 1]) if d.opset >= 14 else None
    batch = shape[0 if layout else 1]
    direction = d.choice([None, "forward", "reverse", "bidirectional"])
    ways = 2 if direction == "bidirectional" else 1
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    inputs = [
        source,
        d.constant(d.numbers((ways, gates * hidden, shape[2])) / 4),
        d.constant(d.numbers((ways, gates * hidden, hidden)) / 4),
    ]
    steps = shape[1 if layout else 0]
    state = (batch, ways, hidden) if layout else (ways, batch, hidden)
    if d.chance(0.6):
        inputs.append(
            d.constant(d.numbers((ways, 2 * gates * hidden)) / 4) if d.chance(0.6) else ""
        )
        inputs.append(
            d.constant(d.rng.integers(1, steps + 1, batch), "int32") if d.chance(0.3) else ""
        )
        inputs.append(d.constant(d.numbers(state) / 4) if d.chance(0.5) else "")
        if op_type == "LSTM":
            inputs.append(d.constant(d.numbers(state) / 4) if d.chance(0.5) else "")
            inputs.append(d.constant(d.numbers((ways, 3 * hidden)) / 4) if d.chance(0.3) else "")
    while inputs[-1] == "":
        inputs.pop()
    wanted = [d.chance(0.7) for _ in range(3 if op_type == "LSTM" else 2)]
    wanted = wanted if any(wanted) else [True]
    return inputs, {"hidden_size": hidden, "layout": layout, "direction": direction}, wanted


def recur(d: Drawing, op_type: str) -> None:
    """Add a recurrent layer; every optional input may be left out, and results, too."""
    inputs, given, wanted = _recur(d, op_type)
    while not wanted[-1]:
        wanted.pop()
    before = d.choice([None, 1]) if op_type == "GRU" else None
    clip = d.choice([None, None, 0.75])
    d.add_all(op_type, inputs, wanted, linear_before_reset=before, clip=clip, **given)


def _scale(d: Drawing) -> str:
    return d.constant(d.choice([0.125, 0.25, 0.5]), "float32")


def _zero(d: Drawing, kind: str) -> str:
    return d.constant(d.integer(0, 3), kind)


def quantise(d: Drawing, op_type: str) -> None:
    """Add a quantisation with one scale for all elements, or one for each channel."""
    source = d.pick(ranks=range(1, 5))
    rank = d[source].value.ndim
    kind = d.choice(["uint8", "int8"])
    if d.opset >= 13 and d.chance(0.4):
        axis = d.axis(rank)
        size = d[source].shape[axis]
        scale = d.constant(d.rng.integers(1, 5, size) / 8, "float32")
        zero = d.constant(d.rng.integers(0, 3, size), kind)
        d.add(op_type, source, scale, zero, axis=axis)
        return
    d.add(op_type, source, _scale(d), *([_zero(d, kind)] if d.chance(0.8) else []))


def dequantise(d: Drawing, op_type: str) -> None:
    """Add a dequantisation of computed or given codes."""
    source = d.pick(["uint8", "int8"], ranks=range(1, 5))
    if d.opset >= 13 and d.chance(0.4):
        axis = d.axis(d[source].value.ndim)
        size = d[source].shape[axis]
        d.add(op_type, source, d.constant(d.rng.integers(1, 5, size) / 8, "float32"), axis=axis)
        return
    d.add(op_type, source, _scale(d), *([_zero(d, d[source].kind)] if d.chance(0.7) else []))


def dynamic(d: Drawing, op_type: str) -> None:
    """Add codes, with the scale that fits them."""
    d.add_all(op_type, [d.pick(ranks=range(1, 5))], [True, True, True])


def multiply_codes(d: Drawing, op_type: str) -> None:
    """Add a product of codes."""
    source = d.pick(["uint8", "int8"], ranks=range(2, 4))
    kind, other = d[source].kind, d.choice(["uint8", "int8"])
    weights = d.constant(d.numbers((d[source].shape[-1], d.dimension()), other))
    if op_type == "MatMulInteger":
        zeros = [_zero(d, kind)] if d.chance(0.5) else []
        d.add(
            op_type,
            source,
            weights,
            *zeros,
            *([_zero(d, other)] if zeros and d.chance(0.5) else []),
        )
        return
    sides = [source, _scale(d), _zero(d, kind), weights, _scale(d), _zero(d, other)]
    d.add(op_type, *sides, d.constant(4.0, "float32"), _zero(d, kind))


def convolve_codes(d: Drawing, op_type: str) -> None:
    """Add a convolution of codes."""
    source = _image(d, "uint8")
    if d[source].value.ndim != 4:
        raise UnfitError("no plane")
    given = _window(d, 2)
    other = d.choice(["uint8", "int8"])
    weights = d.constant(d.numbers((2, d[source].shape[1], *given["kernel_shape"]), other))
    if op_type == "ConvInteger":
        d.add(op_type, source, weights, *([_zero(d, "uint8")] if d.chance(0.5) else []), **given)
        return
    zero = d.constant(0, other)
    sides = [source, _scale(d), _zero(d, "uint8"), weights, _scale(d), zero]
    inputs = [*sides, d.constant(4.0, "float32"), _zero(d, "uint8")]
    inputs += [d.constant(d.numbers([2], "int32"))] if d.chance(0.4) else []
    d.add(op_type, *inputs, **given)


def sample(d: Drawing, op_type: str) -> None:
    """Add values of an image at points between its own."""
    source = _image(d)
    shape = d[source].shape
    if len(shape) != 4:
        raise UnfitError("no plane")
    grid = d.constant(np.clip(d.numbers((shape[0], 2, d.dimension(), 2)) / 3, -1, 1), "float32")
    modes = ["nearest", None, "linear"] if d.opset >= 20 else ["nearest", None, "bilinear"]
    padding = d.choice([None, "zeros", "border", "reflection"])
    d.add(
        op_type,
        source,
        grid,
        mode=d.choice(modes),
        padding_mode=padding,
        align_corners=d.choice([None, 1]),
    )


def regions(d: Drawing, op_type: str) -> None:
    """Add regions of an image."""
    source = _image(d)
    shape = d[source].shape
    if len(shape) != 4:
        raise UnfitError("no plane")
    count = d.dimension()
    corners = d.rng.integers(0, 2, (count, 2))
    boxes = np.concatenate([corners, corners + d.rng.integers(1, 3, (count, 2))], 1)
    if op_type == "MaxRoiPool":
        boxes = np.concatenate([d.rng.integers(0, shape[0], (count, 1)), boxes], 1)
        d.add(op_type, source, d.constant(boxes, "float32"), pooled_shape=[2, 2])
        return
    batch = d.longs(d.rng.integers(0, shape[0], count))
    mode = d.choice([None, "avg", "max"])
    sizes: dict[str, Any] = {"output_height": 2, "output_width": 2, "sampling_ratio": 2}
    d.add(op_type, source, d.constant(boxes, "float32"), batch, mode=mode, **sizes)


def affine(d: Drawing, op_type: str) -> None:
    """Add points of a rotated plane."""
    theta = d.constant(d.numbers((d.size, 2, 3)) / 4)
    d.add(op_type, theta, d.longs([d.size, 1, 2, 3]), align_corners=d.choice([None, 1]))


def attend(d: Drawing, op_type: str) -> None:
    """Add an attention with a query, a key and a value of several heads."""
    source = d.pick(ranks=[4])
    d.add(
        op_type, source, source, source, is_causal=d.choice([None, 1]), scale=d.choice([None, 0.5])
    )


def rotate(d: Drawing, op_type: str) -> None:
    """Add positions turned into angles."""
    source = d.pick(ranks=[4], fits=lambda each: each.shape[3] % 2 == 0)
    batch, _, steps, width = d[source].shape
    tables = [d.constant(d.numbers((batch, steps, width // 2)) / 4) for _ in range(2)]
    d.add(op_type, source, *tables, interleaved=d.choice([None, 1]))


BUILDERS: dict[str, Builder] = {
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), global_pool),
    **dict.fromkeys(("Conv", "ConvTranspose"), convolve),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), recur),
    **dict.fromkeys(("MatMulInteger", "QLinearMatMul"), multiply_codes),
    **dict.fromkeys(("ConvInteger", "QLinearConv"), convolve_codes),
    **dict.fromkeys(("MaxRoiPool", "RoiAlign"), regions),
    "AffineGrid": affine,
    "Attention": attend,
    "DequantizeLinear": dequantise,
    "DynamicQuantizeLinear": dynamic,
    "Einsum": einsum,
    "Gemm": gemm,
    "GridSample": sample,
    "MatMul": matmul,
    "MaxUnpool": unpool,
    "QuantizeLinear": quantise,
    "RotaryEmbedding": rotate,
}
