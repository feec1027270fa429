"""Tests of the table of operators: operators that it lacks, and the sources of its numbers."""

import re
from pathlib import Path

from simipu.operators import OPERATORS, Rounding, find_operator
from simipu.operators.formulas.elementwise import Elementwise, guess

ROOT = Path(__file__).parents[3]


def test_of_an_operator_newer_than_the_table_the_safe_things_are_said() -> None:
    """The whole batch is computed, a guessed cost is reported by name, results are rounded, and no
    weight is mapped."""
    operator = find_operator("FromTheFuture")
    assert operator.rows is None
    assert operator.whole_batch == "no rule for this operator"
    assert operator.cost is guess
    assert operator.rounding is Rounding.ROUNDED
    assert not operator.reads_mapped_weights


def test_every_section_that_the_code_cites_is_in_the_document() -> None:
    text = (ROOT / "docs" / "ipu-performance.md").read_text()
    sections = set(re.findall(r"^#+ ([\d.]*\d)\.? ", text, re.MULTILINE))
    cited = {
        (file.name, section)
        for file in (ROOT / "backend" / "simipu").rglob("*.py")
        for words in re.findall(r"sections? ([\d., and\n]+)", file.read_text())
        for section in re.findall(r"\d+(?:\.\d+)?", words)
    }
    assert len(cited) > 20
    assert {(file, section) for file, section in cited if section not in sections} == set()


def test_no_float_is_faster_than_a_half_but_where_poplibs_says_so() -> None:
    """Divisions and inverses of halves go through float, four at a time (section 4 of the
    document)."""
    slower = set()
    for name, operator in OPERATORS.items():
        if isinstance(operator.cost, Elementwise):
            half, single = operator.cost.half, operator.cost.single
            if half.cycles / half.vector > single.cycles / single.vector:
                slower.add(name)
    assert slower == {"Mod", "Reciprocal", "Sqrt", "Tan"}
