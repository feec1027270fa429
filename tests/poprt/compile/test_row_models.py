"""Random tests of rows: each row gets ONNX Runtime's answer, whichever rows share its batch."""

import onnx
import pytest
from poprt import Compiler, Converter
from poprt.passes import get_pass
from row_model_checks import check


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_rows_of_random_models_are_those_of_onnx_runtime(first):
    outcomes = {
        seed: check(seed, "fp16" if seed % 4 == 0 else "fp32") for seed in range(first, first + 50)
    }
    assert not {seed: outcome for seed, outcome in outcomes.items() if outcome.kind == "wrong"}


@pytest.mark.parametrize("seed", [120, 147, 238, 273, 358, 407])
def test_rows_that_only_unread_nodes_and_idle_choices_join_are_independent(seed):
    assert check(seed).kind == "equal"


SIZES = {
    "the number of rows": ("s = Shape(x) n = Gather(s, zero)", True),
    "the number of all elements": ("n = Size(x)", True),
    "the width of a row": ("s = Shape(x) n = Gather(s, one)", False),
    "the rows' size in a shape": (
        "s = Shape(x) r = Reshape(x, s) m = Shape(r) n = Gather(m, one)",
        False,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "fp32") for name in SIZES), ("the number of rows", "fp16")]
)
def test_arithmetic_with_the_number_of_rows_makes_them_dependent(name, precision):
    nodes, depends = SIZES[name]
    text = (
        '<ir_version: 8, opset_import: ["": 17]> '
        "sizes (float[n,3] x) => (float[n,3] y) <int64 zero = {0}, int64 one = {1}> "
        f"{{ {nodes} f = Cast<to=1>(n) q = Sqrt(f) y = Mul(x, q) }}"
    )
    converted = Converter(batch_size=4, precision=precision).convert(onnx.parser.parse_model(text))
    reason = Compiler.compile(converted).rows.dependence
    if depends:
        assert reason.endswith("(Mul) computes with the number of rows in the batch")
    else:
        assert reason is None


def test_arithmetic_that_no_output_needs_leaves_rows_independent():
    text = (
        '<ir_version: 8, opset_import: ["": 17]> '
        "sizes (float[n,3] x) => (float[n,3] y) "
        "{ n = Size(x) f = Cast<to=1>(n) z = Mul(x, f) y = Sqrt(x) }"
    )
    converted = Converter(batch_size=4).convert(onnx.parser.parse_model(text))
    assert Compiler.compile(converted).rows.dependence is None


def test_a_pass_that_fixes_the_batch_notes_arithmetic_with_it():
    text = (
        '<ir_version: 8, opset_import: ["": 17]> '
        "sizes (float[n,3] x) => (float[n,3] y) "
        "{ n = Size(x) f = Cast<to=1>(n) y = Mul(x, f) }"
    )
    fixed = get_pass("const_batch_size", 4)(onnx.parser.parse_model(text))
    assert "(Mul) computes with" in Compiler.compile(Converter().convert(fixed)).rows.dependence


def test_constants_as_long_as_the_batch_are_no_arithmetic_with_it():
    text = (
        '<ir_version: 8, opset_import: ["": 17]> '
        "zeros (float[n,3] x) => (float[n,3] y) <int64[1] zero = {0}, int64[1] three = {3}> "
        "{ s = Shape(x) n = Gather(s, zero) m = Concat<axis=0>(n, three) "
        "o = ConstantOfShape<value = float[1] {2}>(m) y = Add(x, o) }"
    )
    converted = Converter(batch_size=4).convert(onnx.parser.parse_model(text))
    assert Compiler.compile(converted).rows.dependence is None


def test_a_batch_that_is_written_down_needs_no_other(caplog):
    text = (
        '<ir_version: 8, opset_import: ["": 17]> '
        "sizes (float[4,3] x) => (float[4,3] y) <int64 zero = {0}> "
        "{ s = Shape(x) n = Gather(s, zero) f = Cast<to=1>(n) y = Mul(x, f) }"
    )
    compiled = Compiler.compile(Converter().convert(onnx.parser.parse_model(text)))
    assert compiled.rows.dependence is None
