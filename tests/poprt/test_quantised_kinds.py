"""What docs/precision.md says about models that onnxruntime.quantization has quantised."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from poprt import Compiler, Converter
from quantised_kinds import KINDS, measure_error, run_compiled, run_reference
from sample_models import make_model
from simipu import CompileError

pytestmark = pytest.mark.slow
random = np.random.default_rng(0)
ROWS = [{"x": random.standard_normal((1, 3, 12, 12)).astype(np.float32)} for _ in range(8)]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return the file of a small network: a convolution, a product, and operators between."""
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["a"]),
        helper.make_node("HardSigmoid", ["a"], ["s"]),
        helper.make_node("Mul", ["a", "s"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["c"]),
        helper.make_node("Flatten", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["y"]),
    ]
    weights = {
        "k": random.standard_normal((16, 3, 3, 3)).astype(np.float32),
        "w": random.standard_normal((16, 4)).astype(np.float32),
    }
    kind = TensorProto.FLOAT
    inputs, outputs = {"x": (kind, ["n", 3, 12, 12])}, {"y": (kind, ["n", 4])}
    path = tmp_path_factory.mktemp("float") / "model.onnx"
    onnx.save(make_model(nodes, inputs, outputs, weights), path)
    return path


@pytest.fixture
def quantise(source, tmp_path):
    def write(kind: str):
        path = tmp_path / "quantised.onnx"
        KINDS[kind](source, path, ROWS[4:])
        return path

    return write


COMPILED = [kind for kind in KINDS if kind != "static, QOperator, all operators"]


@pytest.mark.parametrize("kind", COMPILED)
def test_fp32_gives_the_answers_of_the_quantised_model(quantise, kind):
    path = quantise(kind)
    step = 0.02 if "all operators" in kind else 1e-5  # a step of 8 bits of the output
    answers = run_compiled(path, ROWS[:4], "fp32")
    assert measure_error(answers, run_reference(path, ROWS[:4])) <= step


@pytest.mark.parametrize("kind", COMPILED)
def test_fp16_rounds_what_is_not_in_8_bits(quantise, kind):
    path = quantise(kind)
    answers = run_compiled(path, ROWS[:4], "fp16")
    assert measure_error(answers, run_reference(path, ROWS[:4])) < 0.03


@pytest.mark.parametrize("kind", COMPILED)
def test_fp8_leaves_quantised_products_as_they_are(quantise, kind):
    path = quantise(kind)
    half, eight = (run_compiled(path, ROWS[:1], precision) for precision in ("fp16", "fp8"))
    if "QOperator" not in kind:
        np.testing.assert_array_equal(half, eight)


def test_operators_of_onnx_runtime_are_rejected_by_name(quantise):
    with pytest.raises(CompileError, match=r"com\.microsoft"):
        run_compiled(quantise("static, QOperator, all operators"), ROWS[:1], "fp32")


@pytest.mark.parametrize("kind", COMPILED)
def test_only_dynamic_scales_make_rows_depend_on_each_other(quantise, kind):
    executable = Compiler.compile(Converter(batch_size=4).convert(onnx.load(quantise(kind))))
    assert (executable.rows.dependence is not None) is (kind == "dynamic")
