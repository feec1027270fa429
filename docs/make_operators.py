"""Writes docs/operators.md: one row per operator of the ONNX standard, put together from the tables that
drive the code.

`make docs` runs it; a test compares the file with what it would write. Only what no table of the code says is
said here: what ONNX Runtime 1.31 has no CPU kernel for, and why an operator cannot be compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
from poprt import operators
from poprt.passes.checks import SELECTING, SHAPED_BY
from poprt.passes.precision import has_half
from simipu.cost.operators import _FORMULAS, VIEWS
from simipu.numerics.lowering import BOUNDED_OPERATORS, EXACT_OPERATORS, PRODUCTS
from simipu.rows.rules import RULES, WHOLE_BATCH

FILE = Path(__file__).with_name("operators.md")
NEWEST_OPSET = 24
"""The newest that the onnx package has for every Python that this project supports."""

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        "ConcatFromSequence Optional SequenceAt SequenceConstruct SequenceEmpty SequenceErase "
        "SequenceInsert SequenceLength "
        "SequenceMap SplitToSequence".split(),
        "the IPU has tensors only",
    ),
    **dict.fromkeys(
        "RegexFullMatch StringConcat StringNormalizer StringSplit".split(), "the IPU has no strings"
    ),
    **dict.fromkeys(SELECTING, "as many results as the data have; gone where it is folded"),
    "ImageDecoder": "ONNX Runtime has no kernel",
}
LAST_OPSET: Mapping[str, int] = {
    **dict.fromkeys(
        "Bernoulli GlobalLpPool MaxRoiPool Multinomial RandomNormal RandomNormalLike RandomUniform "
        "RandomUniformLike "
        "RoiAlign".split(),
        21,
    ),
    "Scatter": 10,
    "Upsample": 9,
}
"""The opset up to which ONNX Runtime's kernels go; the standard has newer versions of the operator, or has
dropped it."""
TAKEN_APART = frozenset(
    "Bernoulli CastLike CenterCropPad GroupNormalization HardSwish Mish NegativeLogLikelihoodLoss "
    "SoftmaxCrossEntropyLoss "
    "Swish".split()
)
"""Operators without a kernel that ONNX Runtime puts the standard's own definition in the place of, before
this project's tables are asked: they are asked of what is in it."""
FURTHER: Mapping[str, str] = {"MeanVarianceNormalization": "`axes` must be given"}
CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})

HEAD = """\
# Operators

Written by `make docs` from the tables of the code; do not edit. What is compiled here and what the IPU's own
compiler takes are two questions: what runs here only is warned of when it is compiled
(`--only_ipu_operators` makes that an error).

- **here**: computed by ONNX Runtime's CPU kernels (1.31), in opsets up to {newest}. *Taken apart*: ONNX
  Runtime has no kernel and puts the standard's definition in its place. An input after "known:" must be
  known at compile time where the shape of the result depends on its values: a constant, or computed of
  shapes; `--fix_input` makes a constant of a graph's input.
- **rows**: whether only the real rows of an incomplete batch are computed (`backend/simipu/rows`); with one
  operator in the way of the rows that has no rule, the whole compiled batch always is.
- **cycles**: whether the cost model has a formula, or makes a conservative guess that `poplar-triton
  profile` names (`backend/simipu/cost/operators.py`).
- **half**: what `--precision fp16` rounds (`backend/simipu/numerics/lowering.py`). *Sums*: partial sums,
  too. *Bounded*: its results cannot be too large for half. *Stays in float*: the standard has no half
  variant.
- **the IPU's compiler**: PopART with PopRT's passes. The facts and where they are from are in
  `backend/poprt/operators.py`.

Of the {all} operators {here} run here, of which the IPU's compiler can take {both}.

| operator | since | here | rows | cycles | half | the IPU's compiler |
| --- | --- | --- | --- | --- | --- | --- |
"""


def iter_schemas() -> Iterator[tuple[int, onnx.defs.OpSchema]]:
    """The opset in which each operator came, and its newest version, by name."""
    versions: dict[str, dict[int, onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain and schema.since_version <= NEWEST_OPSET:
            versions.setdefault(schema.name, {})[schema.since_version] = schema
    for _, found in sorted(versions.items()):
        # The last version of a dropped operator only says that it is dropped.
        kept = {version: schema for version, schema in found.items() if not schema.deprecated}
        yield min(found), kept[max(kept)]


def make_table() -> str:
    """The whole file."""
    rows = [(schema.name, str(since), *_cells(schema)) for since, schema in iter_schemas()]
    head = HEAD.format(
        newest=NEWEST_OPSET,
        all=len(rows),
        here=sum(here.startswith("yes") for _, _, here, *_ in rows),
        both=sum(here.startswith("yes") and operators.is_implemented(name) for name, _, here, *_ in rows),
    )
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cells(schema: onnx.defs.OpSchema) -> tuple[str, str, str, str, str]:
    name = schema.name
    here = _describe_here(schema)
    ipu = (
        "yes"
        if name in operators.REGISTERED
        else operators.REWRITTEN.get(name, operators.PARTLY.get(name, "no"))
    )
    if name in REFUSED:
        return here, "", "", "", ipu
    if name in TAKEN_APART:
        return here, "of its parts", "of its parts", "of its parts", ipu
    rows = "yes" if name in RULES else "no" if schema.inputs else "has no input"
    if name in WHOLE_BATCH:
        rows = f"no: {WHOLE_BATCH[name]}"
    return here, rows, _describe_cost(name), _describe_half(schema), ipu


def _describe_here(schema: onnx.defs.OpSchema) -> str:
    name = schema.name
    if name in REFUSED:
        return f"no: {REFUSED[name]}"
    conditions = ["taken apart"] if name in TAKEN_APART else []
    if name in LAST_OPSET:
        conditions.append(f"to opset {LAST_OPSET[name]}")
    if name not in CONTROL_FLOW:
        known = [
            f"`{schema.inputs[place].name}`"
            for place in SHAPED_BY.get(name, ())
            if place < len(schema.inputs)
        ]
        conditions += [f"known: {', '.join(known)}"] if known else []
    conditions += [FURTHER[name]] if name in FURTHER else []
    return ", ".join(["yes", *conditions])


def _describe_cost(name: str) -> str:
    if name in CONTROL_FLOW:
        return "of its bodies"
    return "none: a view" if name in VIEWS else "formula" if name in _FORMULAS else "guess"


def _describe_half(schema: onnx.defs.OpSchema) -> str:
    name = schema.name
    if name in CONTROL_FLOW:
        return "of its bodies"
    if not any({"tensor(float)", "tensor(float16)"}.intersection(output.types) for output in schema.outputs):
        return "no floats"
    if not has_half(schema):
        return "stays in float"
    if name in EXACT_OPERATORS:
        return "exact"
    if name in PRODUCTS:
        return "rounded, sums"
    return "rounded, bounded" if name in BOUNDED_OPERATORS else "rounded"


if __name__ == "__main__":
    FILE.write_text(make_table())
    print(f"wrote {FILE}")
