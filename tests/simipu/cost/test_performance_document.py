"""Tests that the numbers of docs/ipu-performance.md are the model's: chips, vertices' loops, fitted
numbers, and the arithmetic of its worked examples."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from poprt.pipeline import estimate
from simipu.chip.target import TARGETS
from simipu.cost import CALIBRATION, CostOptions
from simipu.operators import find_operator
from simipu.operators.formulas.elementwise import Elementwise
from simipu.operators.formulas.plan import PIECES_OF_A_ROW
from simipu.operators.formulas.work import Work

DOCUMENT = Path(__file__).parents[3] / "docs" / "ipu-performance.md"
TYPES = {
    "f32": TensorProto.FLOAT,
    "f16": TensorProto.FLOAT16,
    "f8": TensorProto.FLOAT8E4M3FNUZ,
    "i8": TensorProto.INT8,
    "i64": TensorProto.INT64,
}
OPTIONS = {field.name for field in fields(CostOptions)}
OPERAND = r"(weight )?(\w+)\[([\d,]*)\](?:=(\[[\d,]*\]))?(?:, |$)"
OPERATIONS = {
    ast.Add: operator.add,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def tables_of(section: int) -> list[list[list[str]]]:
    """Return the cells of a section's tables, without the line below the titles."""
    text = DOCUMENT.read_text().partition(f"\n## {section}. ")[2].partition("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    rows = [
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        for table in tables
    ]
    return [[titles, *lines] for titles, _, *lines in rows]


def numbers_in(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


CHIPS = {
    "tiles": "tiles_per_ipu",
    "memory of a tile, bytes": "bytes_per_tile",
    "clock, GHz": "clock_hz",
    "worker threads of a tile": "workers_per_tile",
    "half products, half partials, a cycle": "half_macs_half_partials",
    "half products, float partials": "half_macs_float_partials",
    "float products": "float_macs",
    "fp8 products, half partials only": "quarter_macs",
    "input channels of an AMP block, bytes": "channel_block_bytes",
    "loading weights into the AMP units, bytes a cycle": "coefficient_bytes_per_cycle",
    "copying on a tile, bytes a cycle": "copy_bytes_per_cycle",
    "receiving from other tiles, bytes a cycle": "exchange_bytes_per_cycle",
    "tiles that share a bus": "tiles_per_exchange_bus",
}
"""Field of a chip's description for each line of section 1."""


def test_the_chips_are_those_of_the_document() -> None:
    table, _of_power = tables_of(1)
    lines = {name: cells for name, *cells in table}
    for name, field in CHIPS.items():
        for target, cell in zip(("ipu1", "ipu2", "bow", "ipu21"), lines[name], strict=False):
            found = getattr(TARGETS[target], field)
            said = {"none": [0.0]}.get(cell, numbers_in(cell))
            scale = 1e9 if field == "clock_hz" else 1
            if cell.startswith("assumed"):
                said = [numbers_in(other)[0] for other in lines[name][:4] if other[0].isdigit()]
            assert found == said[0] * scale, (name, target)


def test_the_links_are_those_of_the_document() -> None:
    text = DOCUMENT.read_text()
    assert {f"{target.link_bytes_per_second / 1e9:.1f}" for target in TARGETS.values()} == {
        "54.4",
        "27.2",
    }
    assert "54.4 and 27.2 GB/s from an IPU to its neighbour" in text.replace("\n", " ")
    assert TARGETS["ipu21"].link_bytes_per_second == 27.2e9
    for target in TARGETS.values():
        gigabytes = target.host_bytes_per_second / 1e9
        assert gigabytes == (9.4 if target.name == "ipu21" else 5.5)
        assert f"{gigabytes:.1f} GB/s" in text


LOOPS = {
    "add, subtract, multiply": "Add Sub",
    "square, negate, clip": "Neg Clip",
    "relu": "Relu",
    "abs": "Abs",
    "sign": "Sign",
    "max, min": "Max Min",
    "ceil, floor, round": "Ceil Floor Round",
    "remainder": "Mod",
    "exp": "Exp",
    "log": "Log",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid HardSigmoid",
    "square root": "Sqrt",
    "inverse": "Reciprocal",
    "erf": "Erf",
    "sine, cosine": "Sin Cos",
    "tangent": "Tan",
    "arc sine and its kin": "Asin Acos Atan",
    "hyperbolic sine and cosine": "Sinh Cosh",
    "their inverses": "Asinh Acosh Atanh",
    "compare": "Equal Greater GreaterOrEqual Less LessOrEqual",
    "and, or": "And Or Xor",
    "not": "Not",
    "is NaN": "IsNaN",
    "is infinite": "IsInf",
    "select": "Where",
    "whole numbers, add or compare or shift or by bits": "BitwiseAnd BitwiseNot BitwiseOr "
    "BitwiseXor",
    "random, uniform": "RandomUniform RandomUniformLike",
    "normal": "RandomNormal RandomNormalLike",
    "gelu, by tanh": "Gelu",
    "shrink": "Shrink",
    "leaky relu, elu and their kin": "Celu Elu LeakyRelu PRelu Selu ThresholdedRelu",
}
"""Operators by the name of their loop in section 4. Operators that the model treats as a related
one are not listed."""


def loops_of_document() -> dict[str, list[list[float]]]:
    """Return the cycles, or the two ends of a range, and the elements of each loop of section 4,
    for halves and floats."""
    found = {}
    for names, *columns in tables_of(4)[0][1:]:
        names, columns = (
            re.sub(r":.*| \(.*\)", "", names),
            [re.sub(r", counted.*| \(.*", "", each) for each in columns],
        )
        for i, name in enumerate(names.split("; ")):
            cells = [column.split("; ")[min(i, column.count("; "))] for column in columns]
            found[name] = [numbers_in(cell) for cell in cells]
    return found


def test_the_loops_of_elementwise_operators_are_those_of_the_document() -> None:
    said = loops_of_document()
    for described, names in LOOPS.items():
        for name in names.split():
            formula = find_operator(name).cost
            assert isinstance(formula, Elementwise)
            for loop, numbers in zip((formula.half, formula.single), said[described], strict=True):
                if numbers:
                    *cycles, vector = numbers
                    assert cycles[0] <= loop.cycles <= cycles[-1], name
                    assert loop.vector == vector, name


FITTED: Sequence[tuple[str, Sequence[float]]] = (
    ("cycles of each planned product", [CALIBRATION.planned_cycles]),
    ("of each planned product on `ipumodel`", [CALIBRATION.ipu_model_planned_cycles]),
    ("block of fp8 weights", [CALIBRATION.fp8_block_cycles]),
    ("power", [CALIBRATION.pow_cycles]),
    ("reductions", [CALIBRATION.reduction_cycles, CALIBRATION.pool_start_cycles]),
    ("operators without a formula", [CALIBRATION.guess_cycles_per_element]),
    (
        "a call",
        [
            seconds * 1e6
            for seconds in (
                CALIBRATION.host_call_seconds,
                CALIBRATION.host_step_seconds,
                CALIBRATION.host_batch_seconds,
            )
        ],
    ),
    ("pieces of a row", [PIECES_OF_A_ROW]),
    ("the fullest tile", [CALIBRATION.imbalance]),
    ("where the graph is cut", [CALIBRATION.cut_slack * 100]),
)


def test_fitted_and_assumed_numbers_are_in_the_document() -> None:
    (table,) = tables_of(9)
    for start, values in FITTED:
        (line,) = (cells for cells in table if cells[0].startswith(start))
        assert numbers_in(line[1]) == pytest.approx(values), start


def iter_examples() -> Iterator[Any]:
    """Yield the node of each line of the tables of worked examples, with the document's statements
    about it."""
    for names, *lines in tables_of(11):
        for line in lines:
            node = line[0].split("`")[1]
            yield pytest.param(node, dict(zip(names[1:], line[1:], strict=True)), id=node)


def calculate(text: str) -> float:
    """Return the value of a sum of products."""

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp):
            return OPERATIONS[type(node.op)](value(node.left), value(node.right))
        assert isinstance(node, ast.Constant), text
        return node.value

    return value(ast.parse(text, mode="eval").body)


def work_of(text: str) -> Work:
    """Return the model's work for `Type(f16[2,3], weight i64[1]=[5], ..., attribute=value, ...,
    option=value)`."""
    op_type, _, arguments = text.removesuffix(")").partition("(")
    told = {
        keyword.arg: ast.literal_eval(keyword.value)
        for keyword in ast.parse(f"f({re.sub(OPERAND, '', arguments)})", mode="eval").body.keywords
    }
    options = CostOptions(**{name: told.pop(name) for name in OPTIONS & told.keys()})
    inputs, weights = [], []
    for i, (is_weight, dtype, dims, values) in enumerate(re.findall(OPERAND, arguments)):
        shape = [int(dim) for dim in dims.split(",") if dim]
        if values:
            weights.append(numpy_helper.from_array(np.array(ast.literal_eval(values)), f"x{i}"))
        elif is_weight:
            weights.append(TensorProto(name=f"x{i}", data_type=TYPES[dtype], dims=shape))
        else:
            inputs.append(helper.make_tensor_value_info(f"x{i}", TYPES[dtype], shape))
    names = sorted(each.name for each in (*inputs, *weights))
    outputs = ["y", "indices"] if op_type == "TopK" else ["y"]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, outputs, "node", **told)],
        "graph",
        inputs,
        [onnx.ValueInfoProto(name="y")],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    (found,) = estimate(model, TARGETS["ipu21"], options).operators
    return found.work


@pytest.mark.parametrize(("node", "expected"), list(iter_examples()))
def test_the_documents_arithmetic_is_the_models(node: str, expected: dict[str, str]) -> None:
    work = work_of(node)
    said = {
        "plan": work.plan,
        "compute": work.compute,
        "exchange": work.exchange,
        "steps": work.steps,
        "local": work.local_steps,
    }
    assert said.get("plan") == expected.pop("plan", "")
    for column, arithmetic in expected.items():
        # Whole cycles and bytes: parts are rounded before they are added up.
        assert -1 < said[column] - calculate(arithmetic) < 2, (column, work)
