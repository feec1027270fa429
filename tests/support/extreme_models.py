"""One operator each, with the input whose values, as extreme as its type has them, may end a
process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

Array = npt.NDArray[Any]
INTEGERS = (
    *(sign * 2**power + step for power in (31, 32, 40, 62) for sign in (1, -1) for step in (-1, 0)),
    *(-(2**63), 2**63 - 1, -1000, -3, -2, -1, 0, 1, 2, 3, 4, 5, 63, 64, 65, 1000),
)
FLOATS = (
    np.nan,
    np.inf,
    -np.inf,
    3e38,
    -3e38,
    1e20,
    -1e20,
    1e10,
    -1e10,
    2.0**31,
    -(2.0**63),
    1e-45,
    -1.0,
    0.0,
)
_MIXTURES = 10
"""Draws of several extremes at once."""


@dataclass(frozen=True)
class Extreme:
    """A node and its inputs in order, None if left out; "?" is the one of `shape` and `dtype` to
    draw."""

    operator: str
    inputs: Sequence[Array | str | None]
    shape: Sequence[int]
    dtype: npt.DTypeLike = np.int64
    opset: int = 21
    outputs: int = 1
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> int:
        """The input that is drawn."""
        return next(i for i, each in enumerate(self.inputs) if isinstance(each, str))

    @property
    def name(self) -> str:
        """Name of the case in a failure."""
        others = [
            each if each is None else each.shape
            for each in self.inputs
            if not isinstance(each, str)
        ]
        dtype = np.dtype(self.dtype)
        return (
            f"{self.operator} {self.opset}: input {self.place}, {dtype}, "
            f"{dict(self.attributes)}, {others}"
        )

    def make(self) -> tuple[onnx.ModelProto, list[dict[str, Array]]]:
        """Return the model and the inputs of each run."""
        given = {
            f"i{i}": each for i, each in enumerate(self.inputs) if isinstance(each, np.ndarray)
        }
        names = ["" if each is None else f"i{i}" for i, each in enumerate(self.inputs)]
        place = f"i{self.place}"
        shapes = {name: (value.dtype, value.shape) for name, value in given.items()}
        shapes[place] = (np.dtype(self.dtype), tuple(self.shape))
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)
            for name, (dtype, shape) in shapes.items()
        ]
        outputs = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.operator, names, outputs, **self.attributes)
        graph = helper.make_graph(
            [node],
            "extreme",
            infos,
            [helper.make_empty_tensor_value_info(name) for name in outputs],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        model = onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=opsets, ir_version=10)
        )
        return model, [{**given, place: value} for value in self._draw()]

    def _draw(self) -> Iterator[Array]:
        dtype = np.dtype(self.dtype)
        pool: list[Any] = list(FLOATS)
        if dtype.kind in "iu":
            bounds = np.iinfo(dtype)
            pool = sorted(
                {each for each in (*INTEGERS, bounds.max) if bounds.min <= each <= bounds.max}
            )
        size = int(np.prod(self.shape))
        random = np.random.default_rng(0)
        for each in pool:
            yield np.full(self.shape, each, dtype)
            if size > 1:
                usual = np.ones(size, dtype)
                usual[-1] = each
                yield usual.reshape(self.shape)
        for _ in range(_MIXTURES if size > 1 else 0):
            picked = [pool[i] for i in random.integers(0, len(pool), size)]
            yield np.array(picked, dtype).reshape(self.shape)


def _floats(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def _whole(*values: int) -> Array:
    return np.array(values, np.int64)


_CUBE, _IMAGE = _floats(2, 3, 4), _floats(1, 1, 2, 2)
_KEYS = [_floats(2, 2, 3, 4)] * 3
_POOLED = {"output_height": 2, "output_width": 2}
_REGIONS = np.array([[0, 0, 2, 2], [1, 1, 3, 3]], np.float32)


def _indexing(dtype: npt.DTypeLike) -> list[Extreme]:
    return [
        Extreme("Gather", [_CUBE, "?"], [2], dtype, attributes={"axis": 1}),
        Extreme("GatherElements", [_CUBE, "?"], [2, 3, 4], dtype),
        Extreme("ScatterElements", [_CUBE, "?", _CUBE], [2, 3, 4], dtype),
        Extreme(
            "ScatterElements",
            [_CUBE, "?", _CUBE],
            [2, 3, 4],
            dtype,
            attributes={"reduction": "add"},
        ),
        Extreme("CumSum", [_CUBE, "?"], [], dtype),
        Extreme("SoftmaxCrossEntropyLoss", [_floats(3, 4), "?"], [3], dtype, 13),
        Extreme("NegativeLogLikelihoodLoss", [_floats(3, 4), "?", _floats(4)], [3], dtype, 13),
        Extreme("Range", [np.array(0, dtype), "?", np.array(1, dtype)], [], dtype),
        Extreme("Range", [np.array(0, dtype), np.array(9, dtype), "?"], [], dtype),
        Extreme("Slice", [_CUBE, "?", np.array([3], dtype)], [1], dtype),
        Extreme("Slice", [_CUBE, np.array([0], dtype), "?"], [1], dtype),
        Extreme("Slice", [_CUBE, *np.array([[0], [3], [1]], dtype), "?"], [1], dtype),
        *(
            Extreme(operator, [np.array([np.iinfo(dtype).min, 0, 7], dtype), "?"], [3], dtype)
            for operator in ("Div", "Mod", "Pow", "Mul", "Sub", "Max")
        ),
        *(
            Extreme(operator, ["?"], [3], dtype)
            for operator in ("Abs", "Neg", "ReduceMean", "ReduceProd")
        ),
    ]


def _recurrent(operator: str, gates: int) -> list[Extreme]:
    weights = [_floats(2, gates * 3, 4), _floats(2, gates * 3, 3)]
    attributes = {"hidden_size": 3, "direction": "bidirectional"}
    inputs = [_floats(3, 2, 4), *weights, None, "?"]
    return [Extreme(operator, inputs, [2], np.int32, outputs=2, attributes=attributes)]


EXTREMES = [
    *_indexing(np.int32),
    *_indexing(np.int64),
    *_recurrent("LSTM", 4),
    *_recurrent("GRU", 3),
    *_recurrent("RNN", 1),
    Extreme("OneHot", ["?", _whole(5), _floats(2)], [3]),
    Extreme("OneHot", [_whole(0, 1), "?", _floats(2)], []),
    Extreme("GatherND", [_CUBE, "?"], [3, 2]),
    Extreme("ScatterND", [_CUBE, "?", _floats(3, 4)], [3, 2], attributes={"reduction": "add"}),
    Extreme("Trilu", [_CUBE, "?"], []),
    Extreme("Trilu", [_CUBE, "?"], [], attributes={"upper": 0}),
    Extreme("ReverseSequence", [_floats(4, 3), "?"], [3]),
    Extreme("TensorScatter", [_CUBE, _floats(2, 1, 4), "?"], [2], opset=24, attributes={"axis": 1}),
    Extreme(
        "RotaryEmbedding",
        [_floats(2, 2, 3, 4), _floats(5, 2), _floats(5, 2), "?"],
        [2, 3],
        opset=23,
    ),
    Extreme("Attention", [*_KEYS, None, None, None, "?"], [2], opset=24),
    Extreme("RoiAlign", [_floats(2, 1, 4, 4), _REGIONS, "?"], [2]),
    Extreme(
        "RoiAlign", [_floats(2, 1, 4, 4), "?", _whole(0, 1)], [2, 4], np.float32, attributes=_POOLED
    ),
    Extreme(
        "MaxRoiPool",
        [_floats(2, 1, 4, 4), "?"],
        [2, 5],
        np.float32,
        attributes={"pooled_shape": [2, 2]},
    ),
    Extreme("MaxUnpool", [_IMAGE, "?"], [1, 1, 2, 2], attributes={"kernel_shape": [2, 2]}),
    Extreme("TopK", [_CUBE, "?"], [1], outputs=2),
    Extreme("ReduceSum", [_floats(1, 3), "?"], [1]),
    Extreme("Squeeze", [_floats(1, 3), "?"], [1]),
    Extreme("Unsqueeze", [_floats(1, 3), "?"], [1]),
    Extreme("Tile", [_floats(2), "?"], [1]),
    Extreme("Expand", [_floats(1, 3), "?"], [2]),
    Extreme("Reshape", [_floats(2, 3), "?"], [2]),
    Extreme("Split", [_floats(4), "?"], [2], outputs=2),
    *(
        Extreme("Pad", [_floats(2, 3), "?"], [4], attributes={"mode": mode})
        for mode in ("constant", "wrap")
    ),
    Extreme("ConstantOfShape", ["?"], [2]),
    Extreme("Resize", [_IMAGE, None, None, "?"], [4], attributes={"mode": "linear"}),
    Extreme("Resize", [_IMAGE, None, "?"], [4], np.float32),
    Extreme("CenterCropPad", [_floats(3, 4), "?"], [2]),
    Extreme("Col2Im", [_floats(1, 4, 1), "?", _whole(2, 2)], [2]),
    Extreme("DFT", [_floats(1, 4, 1), "?"], [], opset=20),
    Extreme("STFT", [_floats(1, 8, 1), "?", _floats(4)], []),
    Extreme("STFT", [_floats(1, 8, 1), np.array(2), None, "?"], []),
    Extreme("HannWindow", ["?"], []),
    Extreme("AffineGrid", [_floats(1, 2, 3), "?"], [4], opset=20),
    *(
        Extreme(
            "GridSample", [_IMAGE, "?"], [1, 2, 2, 2], np.float32, attributes={"padding_mode": mode}
        )
        for mode in ("zeros", "border", "reflection")
    ),
    Extreme(
        "DeformConv", [_floats(1, 1, 4, 4), _floats(1, 1, 2, 2), "?"], [1, 8, 3, 3], np.float32
    ),
    *(
        Extreme(
            "BitShift",
            [np.array([1, 2, 255], dtype), "?"],
            [3],
            dtype,
            attributes={"direction": way},
        )
        for dtype in (np.uint8, np.uint32, np.uint64)
        for way in ("LEFT", "RIGHT")
    ),
    *(
        Extreme("Cast", ["?"], [3], np.float32, attributes={"to": kind})
        for kind in (2, 3, 6, 7, 9, 13)
    ),
]
"""Operators that look at whole numbers, or make whole numbers of floats, while they run."""
