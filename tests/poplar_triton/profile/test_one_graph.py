"""Tests that all commands see the same graph of a model.

`profile` works on ONNX without weights, and `poprt` compiles it.
A profile of the compiled file counts it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from exported_graphs import Exporter, bert_like, deberta_like
from onnxgraph import graph_values, infer_shapes
from poplar_triton.profile import weightless
from poplar_triton.profile.source import open_source
from poprt import Compiler, CompilerOptions, Converter, pipeline
from simipu.chip.target import TARGETS
from simipu.cost import CostOptions

USED = (
    *("fuse_bn_into_gemm", "fuse_mul_into_matmul", "replace_gemm_with_matmul"),
    *("pre_scale", "fused_attention", "matmul_rotary_embedding", "attention_padding"),
)
MANY_PASSES = {"used_passes": USED, "enable_erf_gelu": True}
TARGET = TARGETS["ipu21"]


def convolutions():
    """Return a model of two convolutions, a group norm as exporters write it, and a classifier."""
    net = Exporter()
    made = net.add(
        "Conv", net.input("x", [4, 8, 12, 12]), net.weight(32, 8, 3, 3), pads=[1, 1, 1, 1]
    )
    spread = net.constant(np.linspace(0.5, 1.5, 32))
    made = net.add("BatchNormalization", made, *(net.weight(32) for _ in range(3)), spread)
    made = net.add("Conv", net.add("Relu", made), net.weight(64, 32, 1, 1))
    flat = net.add("Flatten", net.add("GlobalAveragePool", made))
    return net.model({net.add("Gemm", flat, net.weight(10, 64), net.weight(10), transB=1): [4, 10]})


def tables():
    """Return a model with values computed from weights only.

    They are rows of a table, a transposed weight and a concatenated one.
    """
    net = Exporter()
    x = net.input("x", [4, 6, 16])
    rows = net.add("Gather", net.weight(20, 16), net.integers(3, 1, 4, 1, 5, 9))
    turned = net.add("Transpose", net.weight(12, 16), perm=[1, 0])
    wide = net.add("Concat", turned, net.add("Transpose", net.weight(4, 16), perm=[1, 0]), axis=1)
    made = net.add("MatMul", net.add("Add", x, net.unsqueeze(rows, 0)), wide)
    return net.model(
        {net.add("Gemm", net.add("Reshape", made, net.integers(24, 16)), wide): [24, 16]}
    )


def scaled():
    """Return a model of products with a normalisation and a factor behind them."""
    net = Exporter()
    spread = net.constant(np.linspace(0.5, 1.5, 32))
    made = net.add("MatMul", net.input("x", [4, 16]), net.weight(16, 32))
    made = net.add("BatchNormalization", made, *(net.weight(32) for _ in range(3)), spread)
    made = net.add("MatMul", net.add("Relu", made), net.weight(32, 8))
    return net.model({net.add("Mul", made, net.constant(0.25)): [4, 8]})


MODELS = {
    "tables": tables,
    "scaled": scaled,
    "bert": lambda: bert_like(4, 18, layers=2),
    "roformer": lambda: bert_like(4, 18, rotary="interleaved"),
    "deberta": lambda: deberta_like(4),
    "convolutions": convolutions,
}


def list_nodes(model):
    """Return the placed nodes: the operator, inputs and outputs of each."""
    placed = pipeline.place(model, TARGET, CostOptions())
    values = graph_values(infer_shapes(placed).graph)
    weights = {
        each.name: ("weight", each.data_type, tuple(each.dims)) for each in placed.graph.initializer
    }

    def describe(name):
        return (
            weights.get(name) or (values[name].bytes_per_element, values[name].shape)
            if name
            else None
        )

    return [
        (node.domain, node.op_type, [*map(describe, node.input)], [*map(describe, node.output)])
        for node in placed.graph.node
    ]


@pytest.mark.parametrize(
    ("precision", "options"),
    [
        pytest.param("fp32", {}, id="fp32-plain"),
        pytest.param("fp16", MANY_PASSES, id="fp16-used"),
        # The other pairs take half a second each.
        pytest.param("fp8", MANY_PASSES, id="fp8-used", marks=pytest.mark.slow),
        pytest.param("fp32", MANY_PASSES, id="fp32-used", marks=pytest.mark.slow),
        pytest.param("fp16", {}, id="fp16-plain", marks=pytest.mark.slow),
        pytest.param("fp8", {}, id="fp8-plain", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_model_has_one_graph_whoever_asks(tmp_path: Path, monkeypatch, make, precision, options):
    monkeypatch.setattr(weightless, "LARGE_BYTES", 64)
    onnx.save(make(), tmp_path / "model.onnx")
    converted = Converter(precision=precision, **options).convert(make())
    compiler_options = CompilerOptions(ipu_version="ipu21", partials_type="float")
    Compiler.compile_and_export(converted, None, str(tmp_path / "model.popef"), compiler_options)
    source, popef = (open_source(tmp_path / f"model.{kind}") for kind in ("onnx", "popef"))
    light = source.convert(None, precision, lambda _step: None, **options)
    compiled = popef.convert(None, popef.precision, lambda _step: None)
    assert list_nodes(light) == list_nodes(converted) == list_nodes(compiled)
    found = [pipeline.estimate(each, TARGET) for each in (light, converted, compiled)]
    assert len({(each.cycles, *each.by_memory().values()) for each in found}) == 1


@pytest.mark.parametrize("make", [bert_like, deberta_like])
def test_a_compiled_batch_is_profiled_as_any_other(tmp_path: Path, make):
    onnx.save(make(2), tmp_path / "model.onnx")
    options = CompilerOptions(ipu_version="ipu21", partials_type="float")
    compiled = str(tmp_path / "model.popef")
    Compiler.compile_and_export(
        Converter(precision="fp16").convert(make(4)), None, compiled, options
    )
    source, popef = (open_source(tmp_path / f"model.{kind}") for kind in ("onnx", "popef"))
    of_two = [
        source.convert(None, "fp16", lambda _step: None),
        popef.convert(2, "fp16", lambda _step: None),
    ]
    assert list_nodes(of_two[0]) == list_nodes(of_two[1])
    assert len({pipeline.estimate(each, TARGET).cycles for each in of_two}) == 1
