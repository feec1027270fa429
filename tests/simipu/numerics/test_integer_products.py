"""Tests of products of 8-bit numbers: they are exact with every engine, with and without VNNI, and
ONNX Runtime makes none of them that would saturate."""

import integer_products as products
import numpy as np
import onnx
import onnxruntime
import pytest
from integer_products import FAMILIES, compute, find_error, find_saturating, optimise
from onnx import TensorProto
from onnxgraph import iter_nodes
from simipu import GraphOptions, choose_accelerator, saturation
from simipu.engines import program_graphs
from simipu.numerics import lower, lowering

OTHERS = ("unoptimised", "half", "reference")


@pytest.fixture(params=[False, True], ids=["exact machine", "saturating machine"])
def saturates(request, monkeypatch):
    """Lower graphs as for a machine whose products of uint8 and int8 saturate, or do not."""
    if not request.param and saturation.products_saturate():
        pytest.skip("products saturate on this machine")
    monkeypatch.setattr(lowering, "products_saturate", lambda: request.param)
    return request.param


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_products_of_codes_are_those_of_64_bit_arithmetic(family, saturates):
    for number, case in enumerate(FAMILIES[family](1)):
        engines = ["onnxruntime", OTHERS[number % len(OTHERS)]]
        for engine in engines if number % 4 == 0 else engines[:1]:
            error = find_error(case, compute(case, engine))
            assert not error, f"{case.name} ({number}) in {engine}: error {error:g}"


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_no_optimised_graph_has_a_product_that_saturates(family, monkeypatch):
    monkeypatch.setattr(lowering, "products_saturate", lambda: True)
    for number, case in enumerate(FAMILIES[family](2)):
        assert find_saturating(optimise(case)) == [], f"{case.name} ({number})"


@pytest.mark.slow
def test_the_check_of_optimised_graphs_finds_products_that_saturate(monkeypatch):
    monkeypatch.setattr(lowering, "products_saturate", lambda: False)
    names = {
        name
        for draw in FAMILIES.values()
        for case in draw(2)
        for name in find_saturating(optimise(case))
    }
    assert names >= {
        "ConvInteger",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QGemm",
        "QLinearConv",
        "QLinearMatMul",
    }


def test_a_machine_is_recognised_by_a_product_of_the_library():
    model = onnx.load_model_from_string(saturation.MODEL)
    (node,) = model.graph.node
    kinds = [value.type.tensor_type.elem_type for value in model.graph.input]
    assert (node.op_type, kinds) == ("MatMulInteger", [TensorProto.UINT8, TensorProto.INT8])
    session = onnxruntime.InferenceSession(saturation.MODEL, providers=["CPUExecutionProvider"])
    left, right = np.full((2, 100), 255, np.uint8), np.full((100, 3), 127, np.int8)
    total = session.run(None, {"a": left, "b": right})[0]
    assert saturation.products_saturate() is bool((total != 255 * 127 * 100).any())


def first_case(draw, name):
    return next(case for case in draw(0) if case.name == name)


def test_a_portable_graph_saturates_nowhere(monkeypatch):
    monkeypatch.setattr(lowering, "products_saturate", lambda: False)
    case = first_case(products.draw_matrices, "MatMulInteger uint8 x int8")
    assert lower(case.model, None) is case.model
    portable = program_graphs._find_saturation(GraphOptions(portable=True))
    operators = [
        node.op_type for node in iter_nodes(lower(case.model, None, saturates=portable).graph)
    ]
    assert operators.count("MatMulInteger") == 1
    assert "Cast" in operators


def test_a_gpu_dequantizes_signed_tensors(monkeypatch):
    monkeypatch.setattr(program_graphs, "products_saturate", lambda: True)
    options = GraphOptions(accelerators=(choose_accelerator("cuda", {}),))
    saturates = program_graphs._find_saturation(options)
    whole = first_case(products.draw_matrices, "MatMulInteger uint8 x int8").model
    quantized = first_case(products.draw_quantized, "QDQ MatMul uint8 x int8").model
    assert lower(whole, None, saturates=saturates) is not whole
    assert lower(quantized, None, saturates=saturates) is quantized
