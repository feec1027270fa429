"""Facts by which members of a family of the table differ, by name. `table` adds them to the
entries.

An operator that shares no entry has such facts in its entry.

Sources of the real SDK's compiler: [P] github.com/graphcore/popart at d2f20d78, the last public
commit (11 September 2023): the OpCreators of willow/src/op/*.cpp for `Onnx::Operators`, and the
rewriting of ONNX graphs in willow/src/onnxpasses; the in-place variants of willow/src/popx/op.
[R] PopRT 1.5.0's list of passes (graphcore.github.io/PopRT/1.5.0-en/python_api.html, gh-pages at
d43620a5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from simipu.operators.entry import Family, Operator

_FACTS: Sequence[tuple[str, Mapping[str, Any]]] = (
    # [P] Operators with their own implementation.
    (
        "Abs Add And ArgMax ArgMin Asin Atan AveragePool BatchNormalization Cast Ceil Clip Concat "
        "Constant ConstantOfShape Conv ConvTranspose Cos Cosh CumSum Div Dropout Elu Equal Erf Exp "
        "Expand Flatten Floor GRU Gather GlobalAveragePool GlobalMaxPool Greater HardSigmoid "
        "Identity If InstanceNormalization IsInf IsNaN LRN LSTM LeakyRelu Less Log LogSoftmax Loop "
        "MatMul Max MaxPool Mean Min Mul Neg Not OneHot Or PRelu Pad Pow RNN RandomNormal "
        "RandomNormalLike RandomUniform RandomUniformLike Reciprocal ReduceL1 ReduceL2 "
        "ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
        "ReduceSumSquare Relu Reshape Resize RoiAlign Round Scan Scatter ScatterElements Selu "
        "Shape Shrink Sigmoid Sign Sin Sinh Slice Softmax Softplus Softsign Split Sqrt Squeeze Sub "
        "Sum Tanh ThresholdedRelu Tile TopK Transpose Unsqueeze Upsample Where",
        {"sdk": "yes"},
    ),
    # [P] PopART's own operators are those of the domain ai.graphcore: the chip has the arithmetic.
    # Whether PopRT translates the standard operator, or only the formula of older opsets [R], is
    # not public.
    (
        "Acos Acosh Asinh Atanh DepthToSpace Gemm Mod SpaceToDepth Tan",
        {"sdk": "PopART makes it of others"},
    ),
    ("CastLike", {"sdk": "PopRT's replace_castlike"}),
    ("Einsum", {"sdk": "PopRT's replace_einsum_with_matmul, as far as it is a product"}),
    ("GatherElements", {"sdk": "PopRT's indices_workaround prepares its indices"}),
    ("GreaterOrEqual", {"sdk": "PopRT's replace_greater_or_equal"}),
    ("HardSwish", {"sdk": "PopRT's replace_hardswish"}),
    ("LessOrEqual", {"sdk": "PopRT's replace_less_or_equal"}),
    *(
        (name, {"sdk": f"PopART's own {name}"})
        for name in "BitwiseAnd BitwiseNot BitwiseOr BitwiseXor GroupNormalization Swish".split()
    ),
    (
        "Gelu",
        {
            "sdk": "PopART's own Gelu; PopRT finds it in the formula that older opsets spell out "
            "(gelu_pattern, erf_gelu_pattern)"
        },
    ),
    (
        "LayerNormalization",
        {
            "sdk": "PopART's own GroupNormalization; PopRT finds it in the formula that older "
            "opsets spell out (layer_norm_pattern)"
        },
    ),
    # [P] In-place variants, and Tanh, which popnn computes in place. Subtractions, divisions,
    # comparisons, casts and products have none.
    (
        "Asin Atan Ceil Clip Elu Exp Floor Gelu HardSigmoid LeakyRelu LogSoftmax Pow Relu Round "
        "Selu Shrink Sigmoid Sign Sinh Softmax Softplus Softsign Swish Tanh ThresholdedRelu",
        {"in_place": (0,)},
    ),
    ("Add Mul", {"in_place": (0, 1), "commutes": True}),
    ("Where", {"in_place": (1, 2)}),
    ("Add Sub", {"neutral": 0}),
    ("Div Mul", {"neutral": 1}),
    # Products are of poplin, powers, means, norms and resampling of popops and popnn: all of
    # floats.
    (
        "Einsum Gemm MatMul PRelu Pow ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean "
        "ReduceSumSquare Relu Resize",
        {"floats_only": True},
    ),
    ("CumProd CumSum Pow", {"reads_scalars": True}),
    ("Shape Size", {"reads_shape": True}),
    (
        "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt "
        "SequenceConstruct "
        "SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap SplitToSequence",
        {"tensors_only": False},
    ),
    ("Einsum Gemm MatMul MatMulInteger QLinearMatMul", {"family": Family.PRODUCT}),
    ("Conv ConvInteger ConvTranspose DeformConv QLinearConv", {"family": Family.CONVOLUTION}),
    ("GRU LSTM RNN", {"family": Family.RECURRENT}),
    ("AveragePool LpPool MaxPool", {"family": Family.POOL}),
    (
        "CumProd CumSum GlobalAveragePool GlobalLpPool GlobalMaxPool ReduceL1 ReduceL2 "
        "ReduceLogSum "
        "ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare",
        {"family": Family.REDUCTION},
    ),
    ("LogSoftmax Softmax", {"family": Family.SOFTMAX}),
    (
        "BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization "
        "RMSNormalization",
        {"family": Family.NORM},
    ),
)


def add_facts(entries: Mapping[str, Operator]) -> dict[str, Operator]:
    """Return the entries with the facts that are given by name."""
    found = dict(entries)
    for names, facts in _FACTS:
        for name in names.split():
            found[name] = replace(found[name], **facts)
    return found
