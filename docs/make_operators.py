"""Write docs/operators.md from the tables that drive the code.

It has one row per operator of the ONNX standard and of the chip's own compiler.

`make docs` runs it; a test compares the file with what it would write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from poprt.passes.admission import ipu_operators
from poprt.passes.admission.ipu_operators import CHIP_FORMS
from poprt.passes.precision.floats import has_half
from simipu.operators import CHIP_OPERATORS, OPERATORS, Operator, Rounding
from simipu.operators.formulas.elementwise import guess

FILE = Path(__file__).with_name("operators.md")
NEWEST_OPSET = 24
"""Newest opset that the onnx package has for every Python that this project supports."""

HEAD = """\
<!-- Written by `make docs` from the tables of the code (`backend/simipu/operators/table.py`); do not edit. -->

# Operators

What is compiled here and what the IPU's own compiler takes are two questions: what runs here only is warned of
when it is compiled (`--only_ipu_operators` makes that an error).

- **here**: computed by ONNX Runtime's CPU kernels (1.31), in opsets up to {newest}. *Taken apart*: ONNX
  Runtime has no kernel and puts the standard's definition in its place. An input after "known:" must be
  known at compile time where the shape of the result depends on its values: a constant, or computed of
  shapes; `--fix_input` makes a constant of a graph's input.
- **rows**: whether only the real rows of an incomplete batch are computed
  (`backend/simipu/operators/rules`); with one operator in the way of the rows that has no rule, the whole
  compiled batch always is. `--pack_args` follows samples and tokens through a model by the same rules.
- **cycles**: whether the cost model has a formula, or makes a conservative guess that `poplar-triton
  profile` names (`backend/simipu/operators/formulas`).
- **half**: what `--precision fp16` rounds (`backend/simipu/numerics`). *Sums*: partial sums,
  too. *Bounded*: its results cannot be too large for half. *Stays in float*: the standard has no half
  variant.
- **the IPU's compiler**: PopART with PopRT's passes. The facts and where they are from are in
  `backend/simipu/operators/entry.py` (`sdk`).

Of the {all} operators {here} run here, of which the IPU's compiler can take {both}.

| operator | since | here | rows | cycles | half | the IPU's compiler |
| --- | --- | --- | --- | --- | --- | --- |
"""

CHIP_HEAD = """
## Operators of the chip's own compiler

Domain `ai.graphcore`, as passes and scripts write them (`backend/simipu/operators/graphcore_domain.py`). What PopRT's
vertices for them take is not public: they cost what the standard's operators cost that say the same.

| operator | inputs | attributes | what it says here | cycles | half |
| --- | --- | --- | --- | --- | --- |
"""


def iter_schemas() -> Iterator[tuple[int, onnx.defs.OpSchema]]:
    """Yield the opset in which each operator was added, and its newest version, sorted by name."""
    versions: dict[str, dict[int, onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain and schema.since_version <= NEWEST_OPSET:
            versions.setdefault(schema.name, {})[schema.since_version] = schema
    for _, found in sorted(versions.items()):
        # The last version of a dropped operator only says that it is dropped.
        kept = {version: schema for version, schema in found.items() if not schema.deprecated}
        yield min(found), kept[max(kept)]


def make_table() -> str:
    """Return the complete text of the document."""
    rows = [(schema.name, str(since), *_cells(schema)) for since, schema in iter_schemas()]
    head = HEAD.format(
        newest=NEWEST_OPSET,
        all=len(rows),
        here=sum(here.startswith("yes") for _, _, here, *_ in rows),
        both=sum(
            here.startswith("yes") and ipu_operators.is_implemented(name)
            for name, _, here, *_ in rows
        ),
    )
    chip = [
        (name, *_chip_cells(name, operator)) for name, operator in sorted(CHIP_OPERATORS.items())
    ]
    return head + _join(rows) + CHIP_HEAD + _join(chip)


def _join(rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _chip_cells(name: str, operator: Operator) -> tuple[str, ...]:
    form = CHIP_FORMS[name]
    cost = "none: a view" if operator.is_view else "formula"
    attributes = ", ".join(f"`{each}`" for each in form.attributes)
    return str(form.inputs[1]), attributes, operator.meaning, cost, _ROUNDINGS[operator.rounding]


def _cells(schema: onnx.defs.OpSchema) -> tuple[str, str, str, str, str]:
    name, operator = schema.name, OPERATORS[schema.name]
    here = _describe_here(schema, operator)
    ipu = operator.sdk or ipu_operators.PARTLY.get(name, "no")
    if operator.refusal:
        return here, "", "", "", ipu
    if operator.taken_apart:
        return here, "of its parts", "of its parts", "of its parts", ipu
    return (
        here,
        _describe_rows(schema, operator),
        _describe_cost(schema, operator),
        _describe_half(schema, operator),
        ipu,
    )


def _has_bodies(schema: onnx.defs.OpSchema) -> bool:
    return any(
        each.type == onnx.defs.OpSchema.AttrType.GRAPH for each in schema.attributes.values()
    )


def _describe_here(schema: onnx.defs.OpSchema, operator: Operator) -> str:
    if operator.refusal:
        return f"no: {operator.refusal}"
    conditions = ["taken apart"] if operator.taken_apart else []
    if operator.last_opset:
        conditions.append(f"to opset {operator.last_opset}")
    if not _has_bodies(schema):
        known = [
            f"`{schema.inputs[place].name}`"
            for place in operator.shaped_by
            if place < len(schema.inputs)
        ]
        conditions += [f"known: {', '.join(known)}"] if known else []
    conditions += [operator.condition] if operator.condition else []
    return ", ".join(["yes", *conditions])


def _describe_rows(schema: onnx.defs.OpSchema, operator: Operator) -> str:
    if operator.rows:
        return "yes"
    if not schema.inputs:
        return "has no input"
    return f"no: {operator.whole_batch}"


def _describe_cost(schema: onnx.defs.OpSchema, operator: Operator) -> str:
    if _has_bodies(schema):
        return "of its bodies"
    if operator.is_view:
        return "none: a view"
    return "guess" if operator.cost is guess else "formula"


def _describe_half(schema: onnx.defs.OpSchema, operator: Operator) -> str:
    if _has_bodies(schema):
        return "of its bodies"
    if not any(
        {"tensor(float)", "tensor(float16)"}.intersection(output.types) for output in schema.outputs
    ):
        return "no floats"
    if not has_half(schema):
        return "stays in float"
    return _ROUNDINGS[operator.rounding]


_ROUNDINGS = {
    Rounding.EXACT: "exact",
    Rounding.BOUNDED: "rounded, bounded",
    Rounding.GROWING: "rounded",
    Rounding.ROUNDED: "rounded",
    Rounding.SUMMED: "rounded, sums",
    Rounding.PRODUCT: "rounded, sums",
}


if __name__ == "__main__":
    FILE.write_text(make_table())
    print(f"wrote {FILE}")
