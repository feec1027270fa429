"""Tests of serialised products in whole models: products of 8 bits stay so."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from poprt import Compiler, CompilerOptions, Converter
from poprt.pipeline import estimate, place
from poprt.runtime import Runner
from sample_models import make_model
from simipu import TARGETS
from simipu.cost import CostOptions

C600 = TARGETS["ipu21"]
ROWS, INNER, WIDTH = 16, 64, 32


def product(scale=1.0):
    weight = np.random.default_rng(0).normal(size=(INNER, WIDTH)).astype(np.float32) * scale
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="multiply"),
        helper.make_node("Add", ["p", "b"], ["y"], name="shift"),
    ]
    bias = np.ones(WIDTH, np.float32)
    inputs = {"x": (TensorProto.FLOAT, [ROWS, INNER])}
    return make_model(
        nodes, inputs, {"y": (TensorProto.FLOAT, [ROWS, WIDTH])}, {"w": weight, "b": bias}, 11
    )


def convert(precision, order=None, **given):
    orders = {"serialize_matmul": {"multiply": order}} if order else {}
    return Converter(precision=precision, fp8_params="F143,F143,-1,2", **orders, **given).convert(
        product()
    )


def run(model):
    x = np.random.default_rng(1).normal(size=(ROWS, INNER)).astype(np.float16)
    y = np.zeros((ROWS, WIDTH), np.float16)
    options = CompilerOptions(ipu_version="ipu21", partials_type="float")
    Runner(Compiler.compile(model, None, options)).execute({"x": x}, {"y": y})
    return y.astype(np.float32)


ORDERS = ["4", "4/input_channels", "4/reducing_dim"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("precision", ["fp16", "fp8", "fp8_weight"])
def test_the_parts_compute_what_the_whole_product_does(precision, order):
    whole = run(convert(precision))
    assert np.abs(whole).max() > 1
    np.testing.assert_allclose(
        run(convert(precision, order)), whole, atol=0.01 * np.abs(whole).max()
    )


@pytest.mark.parametrize("order", ORDERS)
def test_parts_of_an_8_bit_product_have_8_bit_operands(order):
    placed = place(convert("fp8", order), C600, CostOptions()).graph
    kinds = {value.name: value.type.tensor_type.elem_type for value in placed.value_info}
    kinds |= {tensor.name: tensor.data_type for tensor in placed.initializer}
    products = [node for node in placed.node if node.op_type == "MatMul"]
    assert len(products) == 4
    assert {kinds[node.input[1]] for node in products} == {TensorProto.FLOAT8E4M3FNUZ}
    wide = make_wide(order)
    assert wide["fp8"] < wide["fp16"]


def make_wide(order):
    weight = np.zeros((1024, 2048), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="multiply")]
    inputs, outputs = (
        {"x": (TensorProto.FLOAT, [256, 1024])},
        {"y": (TensorProto.FLOAT, [256, 2048])},
    )
    model = make_model(nodes, inputs, outputs, {"w": weight}, 11)
    found = {}
    for precision in ("fp16", "fp8"):
        made = Converter(precision=precision, serialize_matmul={"multiply": order}).convert(model)
        found[precision] = estimate(made, C600).cycles
    return found


def test_a_product_and_its_bias_too():
    given = {"serialize_matmul_add": {"multiply/shift": "4"}}
    whole = run(convert("fp8"))
    np.testing.assert_allclose(run(convert("fp8", **given)), whole, atol=0.01 * np.abs(whole).max())
