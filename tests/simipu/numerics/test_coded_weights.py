"""Tests of 8-bit weights that stay codes in the computed graph."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxgraph import make_cast
from sample_models import make_model
from simipu import GraphOptions
from simipu.engines.computed import Lowered, make_graph
from simipu.engines.program_graphs import lower_model
from simipu.numerics import Numerics
from simipu.numerics.quarter import F143, F152, decode
from simipu.numerics.weights import MIN_BYTES, multiplies_parts

F16 = TensorProto.FLOAT16


def chain(quarter, scale, size=512, layers=2):
    """Return `layers` products of x with 8-bit weights of [size, size], whose codes have every
    value."""
    nodes, random = [], np.random.default_rng(0)
    codes = {
        f"w{i}": random.permutation(np.arange(size * size) % 256).astype(np.uint8)
        for i in range(layers)
    }
    name = "x"
    for each, values in codes.items():
        values[values == 0x80] = 0
        codes[each] = values.reshape(size, size)
        nodes.append(make_cast(each, f"{each}/half", F16, scale=scale))
        nodes.append(
            helper.make_node("MatMul", [name, f"{each}/half"], [f"{each}/product"], name=each)
        )
        name = f"{each}/product"
    nodes.append(helper.make_node("Identity", [name], ["y"]))
    model = make_model(nodes, {"x": (F16, ["n", size])}, {"y": (F16, ["n", size])}, {})
    for each in codes:
        tensor = TensorProto(name=each, data_type=quarter.data_type, dims=[size, size])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="device")
        model.graph.initializer.append(tensor)
    return model, codes


@pytest.mark.parametrize("numerics", [None, Numerics(), Numerics(half_partials=False)])
@pytest.mark.parametrize(("quarter", "scale"), [(F143, 0), (F143, -8), (F152, -12)])
def test_answers_are_those_of_widened_weights(quarter, scale, numerics):
    model, codes = chain(quarter, scale)
    x = (np.random.default_rng(1).standard_normal((3, 512)) / 512).astype(np.float16)
    found = []
    for keeps in (False, True):
        lowered, values = lower_model(model, codes, numerics, keeps_codes=keeps)
        graph = make_graph(
            Lowered(lowered.SerializeToString(), values), GraphOptions(), "of a test"
        )
        found.append(graph.run(["y"], {"x": x})[0])
    most = float(np.abs(found[0]).max())  # another order of sums may change the last bit of halves
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=np.spacing(np.float16(most)))
    exact = x.astype(np.float64)
    for each in codes.values():
        exact = exact @ decode(each, quarter, scale).astype(np.float64)
    if numerics is None:
        np.testing.assert_allclose(found[1], exact, rtol=0.01, atol=0.01 * np.abs(exact).max())


def test_weights_stay_the_bytes_that_they_were():
    model, codes = chain(F143, 0)
    lowered, values = lower_model(model, codes, None, keeps_codes=True)
    assert sorted(values) == ["w0/codes", "w1/codes"]
    for name, values_taken in values.items():
        assert np.shares_memory(values_taken, codes[name.removesuffix("/codes")])
        assert values_taken.nbytes == 512 * 512
    assert lowered.ByteSize() < 600_000  # two times less than one weight in float


def test_nothing_is_widened_when_the_session_is_made(tmp_path):
    model, codes = chain(F143, 0)
    lowered, values = lower_model(model, codes, None, keeps_codes=True)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4
    for name, value in values.items():
        tensor = next(each for each in lowered.graph.initializer if each.name == name)
        tensor.CopyFrom(onnx_tensor(name, value))
    onnxruntime.InferenceSession(lowered.SerializeToString(), options, ["CPUExecutionProvider"])
    assert (tmp_path / "optimised.onnx").stat().st_size < 2 * 512 * 512 + 600_000


def onnx_tensor(name, value):
    return TensorProto(
        name=name, data_type=TensorProto.UINT16, dims=value.shape, raw_data=value.tobytes()
    )


def test_small_and_odd_weights_are_widened_when_loaded():
    for size in (64, 257):
        model, codes = chain(F143, 0, size)
        _, values = lower_model(model, codes, None, keeps_codes=True)
        assert not [name for name in values if name.endswith("/codes")]
    assert 64 * 64 < MIN_BYTES < 257 * 257


def test_weights_stay_bytes_where_products_are_computed_in_parts():
    weights_only, _ = chain(F143, 0)
    assert not multiplies_parts(weights_only, None)
    assert not multiplies_parts(weights_only, Numerics(half_partials=False))
    assert multiplies_parts(weights_only, Numerics())
    both, _ = chain(F143, 0)
    both.graph.node.append(make_cast("x", "x/fp8", F143.data_type))
    assert multiplies_parts(both, Numerics(half_partials=False))
