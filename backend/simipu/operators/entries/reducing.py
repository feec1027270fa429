"""Entries of reductions, extremes, norms and pools."""

from __future__ import annotations

from collections.abc import Mapping

from simipu.operators import counts, extremes, nothing, wrapping
from simipu.operators.entries.makers import BOUNDED, EXACT, GROWING, family, reduced
from simipu.operators.entry import Family, OfLarge, Operator, Terms, first_of
from simipu.operators.formulas import composite, reducing
from simipu.operators.ranges import narrow_input
from simipu.operators.rules import computing as rows
from simipu.operators.windows import window_fault

_LAYER_NORM_IN_SDK = (
    "PopART's own GroupNormalization; PopRT finds it in the formula that older opsets spell out "
    "(layer_norm_pattern)"
)


REDUCING: Mapping[str, Operator] = {
    **reduced(
        "ReduceL2", family=Family.REDUCTION, floats_only=True, sdk="yes", adds=Terms.MAGNITUDES
    ),
    **reduced("ReduceLogSum", family=Family.REDUCTION, floats_only=True, sdk="yes"),
    **reduced(
        "ReduceLogSumExp", family=Family.REDUCTION, floats_only=True, sdk="yes", keeps_single=True
    ),
    **reduced(
        "ReduceL1 ReduceSumSquare",
        guard=wrapping.reduction,
        family=Family.REDUCTION,
        floats_only=True,
        sdk="yes",
        adds=Terms.MAGNITUDES,
    ),
    **reduced(
        "ReduceSum",
        guard=wrapping.reduction,
        family=Family.REDUCTION,
        sdk="yes",
        adds=Terms.SIGNED,
        keeps_single=True,
        widened_late=True,
    ),
    **reduced(
        "ReduceMax ReduceMin",
        EXACT,
        guard=first_of(nothing.truth, extremes.reduction),
        family=Family.REDUCTION,
        sdk="yes",
        keeps_single=True,
        widened_late=True,
    ),
    **reduced(
        "ReduceMean",
        BOUNDED,
        guard=wrapping.reduction,
        family=Family.REDUCTION,
        floats_only=True,
        sdk="yes",
        adds=Terms.SIGNED,
        keeps_single=True,
    ),
    **reduced(
        "ReduceProd",
        GROWING,
        guard=wrapping.reduction,
        family=Family.REDUCTION,
        sdk="yes",
        keeps_single=True,
        widened_late=True,
    ),
    **family("ArgMax ArgMin", rows.arg, composite.arg_extreme, guard=extremes.place, sdk="yes"),
    **family(
        "CumSum",
        rows.cumulative,
        composite.cumulative,
        family=Family.REDUCTION,
        reads_scalars=True,
        sdk="yes",
        adds=Terms.SIGNED,
    ),
    **family(
        "CumProd",
        rows.cumulative,
        composite.cumulative,
        GROWING,
        family=Family.REDUCTION,
        reads_scalars=True,
    ),
    **family(
        "Softmax",
        rows.softmax,
        reducing.softmax,
        BOUNDED,
        family=Family.SOFTMAX,
        in_place=(0,),
        sdk="yes",
        of_large=OfLarge.SMALL,
        wrong_in_reference=True,
    ),
    **family(
        "Hardmax",
        rows.softmax,
        reducing.softmax,
        EXACT,
        guard=extremes.hardmax,
        wrong_in_reference=True,
    ),
    **family(
        "LogSoftmax",
        rows.softmax,
        reducing.softmax,
        family=Family.SOFTMAX,
        in_place=(0,),
        sdk="yes",
        of_large=OfLarge.SMALL,
        wrong_in_reference=True,
    ),
    **family(
        "BatchNormalization",
        rows.batch_norm,
        composite.batch_norm,
        apart=range(1, 5),
        family=Family.NORM,
        sdk="yes",
        ignored_by_reference=("spatial",),
        wrong_in_reference=True,
    ),
    **family(
        "InstanceNormalization",
        rows.instance_norm,
        reducing.channel_norm,
        apart=(1, 2),
        family=Family.NORM,
        sdk="yes",
    ),
    **family(
        "LRN",
        rows.along(1),
        composite.local_response,
        family=Family.NORM,
        sdk="yes",
        wrong_in_reference=True,
    ),
    **family(
        "LayerNormalization",
        rows.inner_axes,
        reducing.norm,
        family=Family.NORM,
        sdk=_LAYER_NORM_IN_SDK,
    ),
    **family("RMSNormalization", rows.inner_axes, reducing.norm, family=Family.NORM),
    **family("LpNormalization", rows.along(-1), reducing.norm, wrong_in_reference=True),
    **family(
        "MeanVarianceNormalization",
        rows.mean_variance,
        reducing.norm,
        condition="`axes` must be given",
    ),
    **family(
        "AveragePool",
        rows.pool,
        reducing.pool,
        BOUNDED,
        count=counts.pool,
        guard=nothing.pool,
        fault=window_fault(),
        family=Family.POOL,
        sdk="yes",
        adds=Terms.SIGNED,
        wrong_in_reference=True,
    ),
    **family(
        "MaxPool",
        rows.pool,
        reducing.pool,
        EXACT,
        count=counts.pool,
        guard=first_of(nothing.pool, extremes.pool),
        fault=window_fault(),
        family=Family.POOL,
        sdk="yes",
        wrong_in_reference=True,
    ),
    **family(
        "LpPool",
        rows.pool,
        reducing.pool,
        count=counts.pool,
        guard=nothing.pool,
        fault=window_fault(),
        family=Family.POOL,
        wrong_in_reference=True,
    ),
    **family(
        "GlobalAveragePool",
        rows.pool,
        reducing.reduction,
        BOUNDED,
        guard=nothing.pool,
        family=Family.REDUCTION,
        sdk="yes",
        adds=Terms.SIGNED,
    ),
    **family(
        "GlobalMaxPool",
        rows.pool,
        reducing.reduction,
        EXACT,
        guard=first_of(nothing.pool, extremes.pool),
        family=Family.REDUCTION,
        sdk="yes",
        wrong_in_reference=True,
    ),
    **family(
        "GlobalLpPool",
        rows.pool,
        reducing.reduction,
        last_opset=21,
        guard=nothing.pool,
        family=Family.REDUCTION,
    ),
    **family(
        "TopK",
        rows.along(-1),
        composite.top_k,
        EXACT,
        shaped_by=(1,),
        guard=narrow_input(1, "k", 0),
        sdk="yes",
    ),
}
