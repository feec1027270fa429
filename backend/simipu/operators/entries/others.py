"""Entries of operators with bodies, of those that others replace, and of those that are refused."""

from __future__ import annotations

from collections.abc import Mapping

from simipu.operators import counts, guards
from simipu.operators.entries.makers import EXACT, counted, drawn, family
from simipu.operators.entries.moving import REGIONS
from simipu.operators.entry import Family, Operator, Task
from simipu.operators.formulas import elementwise as ew
from simipu.operators.formulas import moving as moves
from simipu.operators.formulas import reducing
from simipu.operators.ranges import narrow_input
from simipu.operators.rules import computing as rows

GUESSED: Mapping[str, Operator] = {
    **family("Det", rows.determinant),
    **family("MaxRoiPool", whole_batch=REGIONS, rounding=EXACT, last_opset=21, task=Task.DETECTION),
    **drawn("Multinomial", ew.guess),
    **family("TfIdfVectorizer", rows.count_terms),
}
"""Operators that have no counterpart in PopART or poplibs, and are not composed of operators that
have one; their work depends on their values. A profile names them."""

BODIES: Mapping[str, Operator] = {
    **family(
        "If",
        whole_batch="a branch is chosen for the whole batch",
        rounding=EXACT,
        shaped_by=(0,),
        sdk="yes",
    ),
    **family(
        "Loop",
        whole_batch="rows are not followed into its body",
        rounding=EXACT,
        shaped_by=(0, 1),
        guard=guards.trips,
        sdk="yes",
        wrong_in_reference=True,
    ),
    **family(
        "Scan",
        whole_batch="rows are not followed into its body",
        rounding=EXACT,
        sdk="yes",
        ignored_by_reference=("directions",),
        wrong_in_reference=True,
    ),
}
"""Operators with graphs inside. Their cost is that of the inner nodes; their own is in
`moving.control`."""

TAKEN_APART: Mapping[str, Operator] = {
    **family(
        "CastLike",
        rows.elementwise,
        ew.cast,
        taken_apart=True,
        sdk="PopRT's replace_castlike",
        ignored_by_reference=("round_mode",),
    ),
    **family(
        "GroupNormalization",
        rows.leading_axis,
        reducing.channel_norm,
        apart=(1, 2),
        taken_apart=True,
        family=Family.NORM,
        sdk="PopART's own GroupNormalization",
    ),
    **family("Bernoulli", taken_apart=True, last_opset=21, is_random=True),
    **family(
        "CenterCropPad",
        taken_apart=True,
        shaped_by=(1,),
        guard=narrow_input(1, "shape", 0),
        int64_inputs=(1,),
    ),
    **family(
        "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss", taken_apart=True, unchecked_input=1
    ),
}

REFUSED: Mapping[str, Operator] = {
    **family(
        "ConcatFromSequence Optional SequenceAt SequenceConstruct SequenceEmpty "
        "SequenceErase SequenceInsert SequenceLength SequenceMap SplitToSequence",
        refusal="the IPU has tensors only; written as tensors where constants say what is in them",
        tensors_only=False,
    ),
    **family(
        "RegexFullMatch StringConcat StringNormalizer StringSplit", refusal="the IPU has no strings"
    ),
    **counted("Compress", (1,), cost=moves.move),
    **counted("NonMaxSuppression", (0, 1, 2, 3), count=counts.suppression, task=Task.DETECTION),
    **counted("NonZero", (0,), whole_batch="it numbers elements over the whole batch"),
    **counted(
        "Unique",
        (0,),
        whole_batch="it looks for equal values over the whole batch",
        int64_inputs=(0,),
    ),
    **family("ImageDecoder", refusal="ONNX Runtime has no kernel"),
}
