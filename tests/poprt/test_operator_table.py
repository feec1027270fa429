"""Tests of docs/operators.md: it agrees with the tables and promises nothing that ONNX Runtime
lacks."""

import ast
import itertools
from pathlib import Path

import make_operators
import onnx
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as runtime
from simipu.operators import CHIP_OPERATORS, IPU_COPY, OPERATORS, Operator

_OPEN_ENDED = 2**31 - 1
BACKEND = Path(__file__).parents[2] / "backend"

needs_schemas = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < make_operators.NEWEST_OPSET,
    reason="this onnx knows only some of the operators",
)


@needs_schemas
def test_the_file_is_what_the_tables_make():
    assert make_operators.FILE.read_text() == make_operators.make_table(), "run `make docs`"


@needs_schemas
def test_every_operator_of_the_standard_has_an_entry_and_no_other_has():
    standard = {schema.name for _, schema in make_operators.iter_schemas()}
    newer = {name for name in OPERATORS if onnx.defs.has(name)} - standard
    assert standard <= OPERATORS.keys()
    assert OPERATORS.keys() - standard - newer == {IPU_COPY}


def test_every_operator_has_a_rule_for_its_rows_or_a_reason_why_it_has_none():
    for name, operator in OPERATORS.items():
        if name == "Constant" or operator.refusal or operator.taken_apart:
            continue
        assert operator.rows or operator.whole_batch != Operator().whole_batch, name


def has_kernel(name: str, version: int) -> bool:
    """Return whether ONNX Runtime computes that version of an operator on the CPU. A kernel without
    an end version is for one version only."""
    return any(
        first == version if last == _OPEN_ENDED else first <= version <= last
        for kernel in runtime.get_all_opkernel_def()
        if (kernel.op_name, kernel.domain, kernel.provider) == (name, "", "CPUExecutionProvider")
        for first, last in [kernel.version_range]
    )


@needs_schemas
@pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 31),
    reason="the table is of ONNX Runtime 1.31",
)
def test_supported_operators_have_a_kernel_or_a_definition():
    for _, newest in make_operators.iter_schemas():
        name, operator = newest.name, OPERATORS[newest.name]
        if operator.refusal or name == "Constant":
            continue
        if operator.taken_apart or operator.is_defined:
            assert newest.has_function or newest.has_context_dependent_function, name
            continue
        last = operator.last_opset
        version = onnx.defs.get_schema(name, last).since_version if last else newest.since_version
        assert has_kernel(name, version), name
        assert (
            not last or not has_kernel(name, newest.since_version) or newest.since_version <= last
        ), name


def iter_other_tables():
    """Yield the module-level collections of operators outside the table, each with its module and
    the line after it."""
    known = OPERATORS.keys() | CHIP_OPERATORS.keys()
    for path in sorted(BACKEND.rglob("*.py")):
        if path.is_relative_to(BACKEND / "simipu" / "operators"):
            continue
        body = ast.parse(path.read_text()).body
        for statement, following in itertools.pairwise([*body, ast.Pass()]):
            if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
                continue
            if any(isinstance(each, ast.Tuple) for each in getattr(statement, "targets", [])):
                continue  # several names, of one operator or two each
            if any(
                isinstance(each, ast.Call)
                and isinstance(each.func, ast.Name)
                and each.func.id == "Op"
                for each in ast.walk(statement.value)
            ):
                continue  # the pattern of a formula
            words = [
                word
                for each in ast.walk(statement.value)
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
                for word in each.value.split()
            ]
            if len(words) > 1 and known.issuperset(words):
                yield path, statement, following


MAX_OTHER_TABLES = 9
"""Number of tables of operators outside the entries: raise it only for one that is no fact about
operators, but a part of one algorithm."""


def test_a_table_of_operators_elsewhere_says_why():
    """Facts about operators are fields of their entries; what one algorithm decides says so."""
    tables = list(iter_other_tables())
    silent = [
        f"{path.relative_to(BACKEND)}:{statement.lineno}"
        for path, statement, following in tables
        if not (isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant))
    ]
    assert not silent, (
        "write behind each of these tables why it is no field of the operators' entries"
    )
    assert len(tables) <= MAX_OTHER_TABLES, "make the new table a field of the operators' entries"


def iter_hidden_sets():
    """Yield the places where a condition lists operators."""
    known = OPERATORS.keys() | CHIP_OPERATORS.keys()
    for path in sorted(BACKEND.rglob("*.py")):
        if path.is_relative_to(BACKEND / "simipu" / "operators"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                words = [
                    each.value
                    for each in ast.walk(node.comparators[0])
                    if isinstance(each, ast.Constant)
                ]
                if len(words) > 1 and known.issuperset(words):
                    yield f"{path.relative_to(BACKEND)}:{node.lineno}"


MAX_HIDDEN_SETS = 4


def test_few_conditions_list_operators():
    assert len(list(iter_hidden_sets())) <= MAX_HIDDEN_SETS, (
        "ask the entries instead of listing operators in a condition"
    )
