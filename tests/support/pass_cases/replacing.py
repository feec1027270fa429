"""Passes that replace one operator by others, workarounds, opsets."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper
from sample_models import make_model

from pass_cases.case import Case, Feeds

Spec = tuple[int, Sequence[int]]
Array = npt.NDArray[Any]

F, F16, I64, I32, B = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.BOOL,
)
RNG = np.random.default_rng(0)
ONE_ROUNDING = 2.0**-23
FEW_ROUNDINGS = 1e-6


def single(
    op_type: str,
    inputs: Mapping[str, Spec],
    output: Spec,
    weights: Mapping[str, Any] | None = None,
    opset: int = 17,
    names: Sequence[str] = (),
    **attributes: Any,
) -> Callable[[], onnx.ModelProto]:
    """Return a maker of models of one node; `inputs` and `output` are types and shapes."""

    def make() -> onnx.ModelProto:
        read = names or [*inputs, *(weights or {})]
        node = helper.make_node(op_type, read, ["y"], name="node", **attributes)
        return make_model([node], inputs, {"y": output}, weights or {}, opset)

    return make


def two_results(op_type: str, **attributes: Any) -> Callable[[], onnx.ModelProto]:
    """Return a maker of models of a node that picks two of three values and returns their
    indices."""

    def make() -> onnx.ModelProto:
        node = helper.make_node(op_type, ["x", "k"], ["y", "i"], name="node", **attributes)
        outputs = {"y": (F, [2, 2]), "i": (I64, [2, 2])}
        return make_model([node], {"x": (F, [2, 3])}, outputs, {"k": np.array([2])})

    return make


def norm_weights() -> dict[str, Array]:
    drawn = RNG.normal(size=(4, 3)).astype(np.float32)
    return {"s": drawn[0], "b": drawn[1], "m": drawn[2], "v": np.abs(drawn[3]) + 1}


def fed(**values: Array) -> Callable[[onnx.ModelProto], Feeds]:
    return lambda _model: values


def one_place(*shape: int) -> Array:
    values = np.zeros(shape, np.float32)
    values.ravel()[values.size // 2] = -3
    return values


IMAGE = (F, [2, 3, 4, 4])
PAIR = {"x": (F, [2, 3]), "z": (F, [2, 3])}
COMPARED: dict[str, Any] = {
    "made": frozenset(["Not"]),
    "feeds": fed(x=np.eye(2, 3), z=np.full((2, 3), 1.0, np.float32)),
}
DEPTH = {"d": np.int64(4), "v": np.array([0, 1], np.float32)}
MATRIX = RNG.normal(size=(5, 3)).astype(np.float32)

CASES: dict[str, Case] = {
    "replace_bn_with_mul_add": Case(
        single("BatchNormalization", {"x": IMAGE}, IMAGE, norm_weights()),
        # Scales that are computed: nothing to fold.
        single("BatchNormalization", {"x": IMAGE, **{n: (F, [3]) for n in "sbmv"}}, IMAGE),
        made=frozenset(["Mul", "Add"]),
        gone=frozenset(["BatchNormalization"]),
        tolerance=FEW_ROUNDINGS,
        feeds=lambda model: {
            value.name: np.linspace(0.5, 2, 3, dtype=np.float32)
            if len(value.type.tensor_type.shape.dim) == 1
            else np.linspace(-1, 1, 96, dtype=np.float32).reshape(2, 3, 4, 4)
            for value in model.graph.input
        },
    ),
    "replace_castlike": Case(
        single("CastLike", {"x": (F, [2, 3]), "like": (I32, [1])}, (I32, [2, 3])),
        single("Cast", {"x": (F, [2, 3])}, (I32, [2, 3]), to=I32),
        made=frozenset(["Cast"]),
        gone=frozenset(["CastLike"]),
    ),
    "replace_gather_with_reshape": Case(
        single(
            "Gather", {"x": (F, [2, 6])}, (F, [2, 2, 3]), {"i": np.arange(6).reshape(2, 3)}, axis=-1
        ),
        single("Gather", {"x": (F, [2, 6])}, (F, [2, 6]), {"i": np.arange(6)[::-1].copy()}, axis=1),
        made=frozenset(["Reshape"]),
        gone=frozenset(["Gather"]),
    ),
    "replace_clip_empty_inputs": Case(
        single(
            "Clip",
            {"x": (F, [2, 3])},
            (F, [2, 3]),
            {"high": np.float32(0.5)},
            names=["x", "", "high"],
        ),
        single("Clip", {"x": (F, [2, 3])}, (F, [2, 3]), {"low": np.float32(-0.5)}),
    ),
    "replace_div_with_mul": Case(
        single("Div", {"x": (F, [2, 3])}, (F, [2, 3]), {"d": np.array([3, 7, -0.1], np.float32)}),
        # The reciprocal of a million is none that half has.
        single("Div", {"x": (F, [2, 3])}, (F, [2, 3]), {"d": np.float32(1e6)}),
        made=frozenset(["Mul"]),
        gone=frozenset(["Div"]),
        tolerance=ONE_ROUNDING,
        saves=True,
    ),
    "replace_einsum_with_matmul": Case(
        single(
            "Einsum",
            {"q": (F, [2, 5, 3, 4]), "k": (F, [2, 6, 3, 4])},
            (F, [2, 3, 5, 6]),
            equation="bqhd,bkhd->bhqk",
        ),
        # A diagonal.
        single("Einsum", {"x": (F, [4, 4])}, (F, [4]), equation="ii->i"),
        made=frozenset(["MatMul"]),
        gone=frozenset(["Einsum"]),
        tolerance=FEW_ROUNDINGS,
    ),
    "replace_gemm_with_matmul": Case(
        single(
            "Gemm",
            {"x": (F, [2, 3])},
            (F, [2, 5]),
            {"w": MATRIX, "b": MATRIX[:, 0]},
            transB=1,
            alpha=0.5,
            beta=2.0,
        ),
        single("MatMul", {"x": (F, [2, 3])}, (F, [2, 5]), {"w": MATRIX.T}),
        made=frozenset(["MatMul", "Add", "Mul"]),
        gone=frozenset(["Gemm"]),
        tolerance=FEW_ROUNDINGS,
    ),
    "replace_greater_or_equal": Case(
        single("GreaterOrEqual", PAIR, (B, [2, 3])),
        single("Greater", PAIR, (B, [2, 3])),
        **COMPARED,
    ),
    "replace_less_or_equal": Case(
        single("LessOrEqual", PAIR, (B, [2, 3])), single("Less", PAIR, (B, [2, 3])), **COMPARED
    ),
    "replace_half_reducemean": Case(
        single("ReduceMean", {"x": (F, [2, 3, 4])}, (F, [2, 3]), axes=[2], keepdims=0),
        # The reciprocal of 20,000 is none that half has in full.
        single("ReduceMean", {"x": (F, [2, 20_000])}, (F, [2, 1]), axes=[1]),
        made=frozenset(["Mul", "ReduceSum"]),
        gone=frozenset(["ReduceMean"]),
        tolerance=FEW_ROUNDINGS,
    ),
    "replace_hardswish": Case(
        single("HardSwish", {"x": (F, [2, 3])}, (F, [2, 3])),
        single("HardSigmoid", {"x": (F, [2, 3])}, (F, [2, 3])),
        made=frozenset(["Mul", "HardSigmoid"]),
        gone=frozenset(["HardSwish"]),
        tolerance=FEW_ROUNDINGS,
    ),
    "replace_nonzero": Case(
        single("NonZero", {"x": (F, [3, 4, 5])}, (I64, [3, 1])),
        single("ArgMax", {"x": (F, [3, 4, 5])}, (I64, [1, 4, 5])),
        made=frozenset(["ArgMax"]),
        gone=frozenset(["NonZero"]),
        feeds=fed(x=one_place(3, 4, 5)),
    ),
    "replace_pow": Case(
        single("Pow", {"x": (F, [2, 3])}, (F, [2, 3]), {"p": np.float32(-3)}),
        single("Pow", {"x": (F, [2, 3])}, (F, [2, 3]), {"p": np.float32(7)}),
        made=frozenset(["Mul", "Reciprocal"]),
        gone=frozenset(["Pow"]),
        tolerance=FEW_ROUNDINGS,
    ),
    "float_ops_workaround": Case(
        single("ReduceMean", {"x": (I32, [2, 6])}, (I32, [2, 1]), axes=[1]),
        single("Add", {"x": (I32, [2, 3]), "z": (I32, [2, 3])}, (I32, [2, 3])),
        made=frozenset(["Cast"]),
        feeds=lambda model: {
            value.name: np.arange(-3, 9, dtype=np.int32).reshape(2, -1)[
                :, : value.type.tensor_type.shape.dim[1].dim_value
            ]
            for value in model.graph.input
        },
    ),
    "indices_workaround": Case(
        single("Gather", {"x": (F, [4, 3]), "i": (I64, [5])}, (F, [5, 3])),
        single("Gather", {"x": (F, [4, 3])}, (F, [2, 3]), {"i": np.array([0, 3], np.int32)}),
        made=frozenset(["Where", "Cast"]),
        feeds=fed(x=MATRIX[:4], i=np.array([0, -1, 3, -4, 2])),
    ),
    "onehot_workaround": Case(
        single("OneHot", {"x": (I64, [2, 3])}, (F, [2, 3, 4]), DEPTH),
        single(
            "OneHot",
            {"x": (I64, [2, 3])},
            (F, [2, 3, 4]),
            {**DEPTH, "d": np.int32(4)},
            axis=2,
        ),
    ),
    "topk_workaround": Case(
        two_results("TopK", axis=-1),
        two_results("TopK", axis=1),
    ),
    "replace_where_with_mul_add": Case(
        single("Where", {"c": (B, [2, 3]), "x": (F, [2, 3]), "z": (F, [3])}, (F, [2, 3])),
        single(
            "Where", {"c": (B, [2, 3]), "x": (F, [2, 3])}, (F, [2, 3]), {"z": np.float32(-np.inf)}
        ),
        made=frozenset(["Mul", "Add", "Cast"]),
        gone=frozenset(["Where"]),
    ),
}
