"""Graphs in half, the witnesses that compute them as the chip would, and how their results are
compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import half_emulation as emulation
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from simipu.kernels import LIBRARY, find_kernels
from simipu.numerics import KernelUse, Numerics, lower
from simipu.numerics.quarter import F143, QuarterFormat

Array = npt.NDArray[Any]

FLOAT_PARTIALS = Numerics(half_partials=False)
HALF_PARTIALS = Numerics()
NAN_ON_OVERFLOW = Numerics(nan_on_overflow=True)
ALL = [FLOAT_PARTIALS, HALF_PARTIALS, NAN_ON_OVERFLOW]

SPECIAL = np.array(
    [0, -0.0, np.inf, -np.inf, np.nan, 65504, -65504, 2**-24, -(2**-24), 2**-14], np.float16
)
"""Zeros, infinities, NaN, the largest, the least and the least normal half."""


def half_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    output: str,
    weights: Mapping[str, Array],
    shape: Sequence[int | str] | None = None,
) -> onnx.ModelProto:
    """Return a graph in half: `inputs` and `output` are names with shapes, `weights` arrays by
    name."""
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape)
        for name, shape in inputs.items()
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT16, shape)]
    graph = helper.make_graph(nodes, "half", infos, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def quarter_model(
    node: onnx.NodeProto,
    shape: Sequence[int],
    codes: Array,
    quarter: QuarterFormat = F143,
    scales: tuple[int, int] = (-1, -2),
) -> onnx.ModelProto:
    """Return a product of 8-bit operands: x is cast, and the weights are codes."""
    nodes = [
        helper.make_node("Cast", ["x"], ["x8"], to=quarter.data_type, scale=scales[0]),
        helper.make_node("Cast", ["x8"], ["a"], to=TensorProto.FLOAT16, scale=scales[0]),
        helper.make_node("Cast", ["w8"], ["b"], to=TensorProto.FLOAT16, scale=scales[1]),
        node,
    ]
    model = half_model(nodes, {"x": shape}, "y", {})
    model.graph.initializer.append(
        TensorProto(
            name="w8", data_type=quarter.data_type, dims=codes.shape, raw_data=codes.tobytes()
        )
    )
    return model


def run(model: onnx.ModelProto, *inputs: Array, threads: int = 0) -> Array:
    """Return the only output, computed by ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    if find_kernels().are_there:
        options.register_custom_ops_library(str(LIBRARY))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {value.name: x for value, x in zip(session.get_inputs(), inputs, strict=True)}
    (found,) = session.run(None, feeds)
    return np.asarray(found)


WITNESSES = ("nodes", "kernels", "kernels apart")
"""Ways to compute a graph in half other than the emulation."""
_USES = {"nodes": KernelUse.NONE, "kernels": KernelUse.FUSED, "kernels apart": KernelUse.APART}

every_witness = pytest.mark.parametrize(
    "witness",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                name != "nodes" and not find_kernels().are_there,
                reason=f"no kernels: {find_kernels().reason}",
            ),
        )
        for name in WITNESSES
    ],
)


def compute(witness: str, model: onnx.ModelProto, numerics: Numerics, *inputs: Array) -> Array:
    """Return the only output, computed by one of WITNESSES."""
    return run(lower(model, numerics, kernels=_USES[witness]), *inputs)


def emulate(model: onnx.ModelProto, numerics: Numerics, *inputs: Array) -> Array:
    """Return the only output, computed by the emulation in numpy."""
    feeds = {value.name: x for value, x in zip(model.graph.input, inputs, strict=True)}
    with np.errstate(all="ignore"):
        (found,) = emulation.run_graph(
            model, feeds, numerics.half_partials, numerics.nan_on_overflow
        )
    return found


def halves(shape: int | Sequence[int], seed: int, size: float = 1.0) -> Array:
    """Return normally distributed halves."""
    return (size * np.random.default_rng(seed).standard_normal(shape)).astype(np.float16)


_LOUD_CHANNELS = np.array([1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0], bool)


def wild_halves(
    shape: Sequence[int], seed: int, num_special: int = 0, axis: int = -1, channels: int = 0
) -> Array:
    """Return halves of all magnitudes, or, for odd seeds, halves that show the order of a sum.

    The latter are, along an axis with `channels` channels in each group, 0 or 4096 in some of the
    channels and 1 or 3 in the others, with a sign. Products are then 2**24 beside 1 to 9: of 1
    nothing is left, of 2 all. Where the large ones cancel, every other order of a sum of floats
    shows in the half. `num_special` of the values are special ones.
    """
    random = np.random.default_rng(seed)
    if seed % 2:
        along = [1] * len(shape)
        along[axis] = shape[axis]
        at = np.arange(shape[axis]) % (channels or shape[axis])
        is_loud = _LOUD_CHANNELS[at % len(_LOUD_CHANNELS)].reshape(along)
        sizes = np.where(is_loud, random.choice([0, 4096], shape), random.choice([1, 3], shape))
        values = sizes * random.choice([-1.0, 1.0], shape)
    else:
        values = random.standard_normal(shape) * np.exp2(random.integers(-12, 9, shape))
    found: Array = values.astype(np.float16)
    if found.size:
        found.reshape(-1)[random.integers(0, found.size, num_special)] = random.choice(
            SPECIAL, num_special
        )
    return found


def check_bits(found: Array, expected: Array) -> None:
    """Assert that values are equal in every bit, except for a NaN's sign and payload."""
    assert found.dtype == expected.dtype == np.float16
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    there = ~np.isnan(expected)
    np.testing.assert_array_equal(found[there].view(np.uint16), expected[there].view(np.uint16))


def check_values(found: Array, expected: Array) -> None:
    """Assert that the values are equal, except that both zeros are one."""
    assert found.dtype == expected.dtype == np.float16
    np.testing.assert_array_equal(found, expected)
