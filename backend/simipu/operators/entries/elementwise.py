"""Entries of operators that compute each element alone. Vertices' loops are cycles and elements of
halves, then of floats (docs/ipu-performance.md, section 4).
"""

from __future__ import annotations

from collections.abc import Mapping

from simipu.operators import guards, wrapping
from simipu.operators.entries.makers import BOUNDED, EXACT, GROWING, OF_OTHERS, elementwise, family
from simipu.operators.entry import OfLarge, Operator, Terms
from simipu.operators.formulas import composite
from simipu.operators.formulas import elementwise as ew
from simipu.operators.formulas.elementwise import Elementwise
from simipu.operators.formulas.vertices import InnerLoop
from simipu.operators.quantized_operands import quantized, summed
from simipu.operators.rules import computing as rows
from simipu.operators.signed_operands import dequantized

_SIMPLE = Elementwise(InnerLoop(3, 4), InnerLoop(3, 2))
_ROUNDED_OFF = Elementwise(InnerLoop(6, 4), InnerLoop(6, 2))
_TRIGONOMETRIC = Elementwise(InnerLoop(25, 1), InnerLoop(2300, 1))
_INVERSE_SINE = Elementwise(InnerLoop(106, 1), InnerLoop(106, 1))
_SIGMOID = Elementwise(InnerLoop(5, 4), InnerLoop(11, 2))
_SWISH = Elementwise(InnerLoop(5, 4), InnerLoop(11, 2))
_LOGICAL = Elementwise(InnerLoop(4, 4), InnerLoop(4, 4))
_SELECTING = Elementwise(InnerLoop(8, 1), InnerLoop(10, 1))
"""Loop of a compare, a select and a product or two in one generated vertex. A vertex with a select
is not vectorised (ExpressionGenerator.cpp). The cost is half of `Shrink`'s, which has two."""
_CONVERTED = Elementwise(InnerLoop(16, 4), InnerLoop(16, 4))
_WIDENED = Elementwise(InnerLoop(9, 4), InnerLoop(9, 4))

_GELU_IN_SDK = (
    "PopART's own Gelu; PopRT finds it in the formula that older opsets spell out "
    "(gelu_pattern, erf_gelu_pattern)"
)


ELEMENTWISE: Mapping[str, Operator] = {
    **elementwise(
        "Abs",
        Elementwise(InnerLoop(5, 1), InnerLoop(5, 1)),
        EXACT,
        sdk="yes",
        of_large=OfLarge.LARGE,
    ),
    **elementwise(
        "Clip",
        Elementwise(InnerLoop(2, 4), InnerLoop(2, 2)),
        EXACT,
        in_place=(0,),
        sdk="yes",
        of_large=OfLarge.SMALL,
        widened_late=True,
        in_float_on_openvino=True,
    ),
    **elementwise(
        "Neg",
        Elementwise(InnerLoop(2, 4), InnerLoop(2, 2)),
        EXACT,
        sdk="yes",
        of_large=OfLarge.LARGE,
        widened_late=True,
    ),
    **elementwise(
        "Relu",
        _SIMPLE,
        EXACT,
        floats_only=True,
        in_place=(0,),
        sdk="yes",
        in_float_on_openvino=True,
    ),
    **elementwise(
        "Sign", Elementwise(InnerLoop(9, 4), InnerLoop(9, 2)), EXACT, in_place=(0,), sdk="yes"
    ),
    **elementwise(
        "Add",
        ew.ADDED,
        commutes=True,
        guard=summed,
        in_place=(0, 1),
        neutral=0,
        sdk="yes",
        adds=Terms.SIGNED,
        of_large=OfLarge.LARGE,
        widened_late=True,
    ),
    **elementwise(
        "Sub",
        ew.ADDED,
        neutral=0,
        sdk="yes",
        adds=Terms.SIGNED,
        applies_masks=True,
        of_large=OfLarge.LARGE,
        widened_late=True,
    ),
    **elementwise(
        "Mul",
        ew.multiply,
        commutes=True,
        in_place=(0, 1),
        neutral=1,
        sdk="yes",
        applies_masks=True,
        of_large=OfLarge.LARGE,
        widened_late=True,
    ),
    **elementwise("Mean", _SIMPLE, sdk="yes", adds=Terms.SIGNED),
    **elementwise("Sum", _SIMPLE, sdk="yes", adds=Terms.SIGNED, widened_late=True),
    **elementwise("Ceil Floor Round", _ROUNDED_OFF, EXACT, in_place=(0,), sdk="yes"),
    **elementwise(
        "Max Min", ew.COMPARED, EXACT, sdk="yes", of_large=OfLarge.LARGE, widened_late=True
    ),
    # PopART's expressions of these select by the sign; the exponential of some adds little to that.
    **elementwise("Celu", _SELECTING),
    **elementwise("Elu LeakyRelu Selu ThresholdedRelu", _SELECTING, in_place=(0,), sdk="yes"),
    **elementwise(
        "PRelu",
        _SELECTING,
        floats_only=True,
        sdk="yes",
        broadcasts_one_way=True,
        in_float_on_openvino=True,
    ),
    **family(
        "Div",
        rows.elementwise,
        ew.divide,
        guard=guards.division,
        neutral=1,
        sdk="yes",
        of_large=OfLarge.SMALL,
        widened_late=True,
        in_float_on_openvino=True,
    ),
    **family(
        "Mod",
        rows.elementwise,
        Elementwise(InnerLoop(225, 4), InnerLoop(93, 2)),
        guard=guards.remainder,
        sdk=OF_OTHERS,
        in_float_on_openvino=True,
    ),
    **elementwise(
        "Reciprocal",
        Elementwise(InnerLoop(15, 4), InnerLoop(6, 2)),
        sdk="yes",
        of_large=OfLarge.SMALL,
    ),
    **elementwise(
        "Sqrt",
        Elementwise(InnerLoop(23, 4), InnerLoop(10, 2)),
        BOUNDED,
        sdk="yes",
        of_large=OfLarge.SMALL,
        positives_only=True,
    ),
    **elementwise(
        "Exp", Elementwise(InnerLoop(4, 4), InnerLoop(6, 2)), GROWING, in_place=(0,), sdk="yes"
    ),
    **elementwise(
        "Log",
        Elementwise(InnerLoop(6, 4), InnerLoop(12, 2)),
        BOUNDED,
        sdk="yes",
        of_large=OfLarge.SMALL,
        positives_only=True,
    ),
    **elementwise(
        "Pow",
        ew.power,
        GROWING,
        guard=wrapping.power,
        floats_only=True,
        in_place=(0,),
        reads_scalars=True,
        sdk="yes",
        of_large=OfLarge.SMALL,
        in_float_on_openvino=True,
    ),
    **elementwise("Erf", ew.ERF, BOUNDED, sdk="yes", of_large=OfLarge.SMALL),
    **elementwise(
        "Tanh",
        Elementwise(InnerLoop(3, 4), InnerLoop(12, 2)),
        BOUNDED,
        in_place=(0,),
        sdk="yes",
        of_large=OfLarge.SMALL,
    ),
    **elementwise(
        "HardSigmoid Sigmoid", _SIGMOID, BOUNDED, in_place=(0,), sdk="yes", of_large=OfLarge.SMALL
    ),
    **elementwise("Softsign", _SWISH, BOUNDED, in_place=(0,), sdk="yes"),
    **elementwise("Softplus", _SWISH, in_place=(0,), sdk="yes"),
    **family(
        "HardSwish", rows.elementwise, _SWISH, is_defined=True, sdk="PopRT's replace_hardswish"
    ),
    **family("Mish", rows.elementwise, _SWISH, is_defined=True),
    **family(
        "Swish", rows.elementwise, _SWISH, is_defined=True, in_place=(0,), sdk="PopART's own Swish"
    ),
    **elementwise("Gelu", ew.GELU, in_place=(0,), sdk=_GELU_IN_SDK),
    **elementwise("Cos Sin", _TRIGONOMETRIC, BOUNDED, sdk="yes"),
    **elementwise("Acos", _INVERSE_SINE, BOUNDED, sdk=OF_OTHERS),
    **elementwise("Asin Atan", _INVERSE_SINE, BOUNDED, in_place=(0,), sdk="yes"),
    **elementwise("Tan", Elementwise(InnerLoop(5700, 1), InnerLoop(5100, 1)), sdk=OF_OTHERS),
    # PopART writes these as one expression: two exponentials, a difference or a sum, a half.
    **elementwise("Cosh", Elementwise(InnerLoop(13, 4), InnerLoop(17, 2)), GROWING, sdk="yes"),
    **elementwise(
        "Sinh", Elementwise(InnerLoop(13, 4), InnerLoop(17, 2)), GROWING, in_place=(0,), sdk="yes"
    ),
    # A square, two sums, a root and a logarithm.
    **elementwise(
        "Acosh Asinh Atanh", Elementwise(InnerLoop(37, 4), InnerLoop(29, 2)), sdk=OF_OTHERS
    ),
    **elementwise("Where", ew.CHOSEN, EXACT, in_place=(1, 2), sdk="yes", applies_masks=True),
    **elementwise("Equal", ew.ORDERED, sdk="yes", applies_masks=True),
    **elementwise(
        "Greater Less", ew.ORDERED, sdk="yes", applies_masks=True, orders=True, widened_late=True
    ),
    **elementwise(
        "GreaterOrEqual",
        ew.ORDERED,
        sdk="PopRT's replace_greater_or_equal",
        applies_masks=True,
        orders=True,
    ),
    **elementwise(
        "LessOrEqual",
        ew.ORDERED,
        sdk="PopRT's replace_less_or_equal",
        applies_masks=True,
        orders=True,
    ),
    **elementwise("And Or", _LOGICAL, sdk="yes", applies_masks=True),
    **elementwise("Xor", _LOGICAL, applies_masks=True),
    **elementwise(
        "Not", Elementwise(InnerLoop(21, 1), InnerLoop(21, 1)), sdk="yes", applies_masks=True
    ),
    **elementwise("IsNaN", Elementwise(InnerLoop(7, 4), InnerLoop(7, 2)), sdk="yes"),
    **elementwise("IsInf", ew.INFINITE, sdk="yes"),
    **elementwise("BitShift", Elementwise(InnerLoop(6, 1), InnerLoop(6, 1))),
    **elementwise(
        "BitwiseAnd", Elementwise(InnerLoop(6, 1), InnerLoop(6, 1)), sdk="PopART's own BitwiseAnd"
    ),
    **elementwise(
        "BitwiseNot", Elementwise(InnerLoop(6, 1), InnerLoop(6, 1)), sdk="PopART's own BitwiseNot"
    ),
    **elementwise(
        "BitwiseOr", Elementwise(InnerLoop(6, 1), InnerLoop(6, 1)), sdk="PopART's own BitwiseOr"
    ),
    **elementwise(
        "BitwiseXor", Elementwise(InnerLoop(6, 1), InnerLoop(6, 1)), sdk="PopART's own BitwiseXor"
    ),
    # Two compares, selects and additions for each element, in one vertex (PopART's shrinkx.cpp).
    **elementwise(
        "Shrink", Elementwise(InnerLoop(16, 1), InnerLoop(20, 1)), in_place=(0,), sdk="yes"
    ),
    **family("Cast", rows.elementwise, ew.cast, guard=guards.cast, sdk="yes"),
    **family(
        "QuantizeLinear",
        rows.quantize,
        composite.scaled(_CONVERTED),
        apart=(1, 2),
        guard=quantized,
    ),
    **family(
        "DequantizeLinear",
        rows.quantize,
        composite.scaled(_WIDENED),
        apart=(1, 2),
        guard=dequantized,
    ),
    **family(
        "DynamicQuantizeLinear",
        whole_batch="its scale comes of the values of the whole batch",
        cost=composite.scaled(_CONVERTED, finds_range=True),
    ),
}
