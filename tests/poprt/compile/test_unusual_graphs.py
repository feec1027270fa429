"""Tests of valid models that few exporters write: they compile, load and answer as ONNX Runtime
does without its optimisers. Where it has no kernel, the ONNX specification gives the answer."""

import numpy as np
import onnx
import pytest
from model_runtime import ModelRunner, ModelRunnerConfig
from onnx import TensorProto, helper
from oracles import unoptimised_session
from poprt import Compiler, CompilerOptions, Converter
from poprt.pipeline import estimate
from sample_models import make_model
from simipu import CompileError
from simipu.chip.target import find_target
from simipu.numerics import KernelUse, Numerics, lower

F = TensorProto.FLOAT
PRECISIONS = ("fp32", "fp16")
HALF_ERROR = 4e-3


def expect(model, feeds):
    """Return the outputs of ONNX Runtime without its optimisers."""
    names = [value.name for value in model.graph.output]
    return dict(zip(names, unoptimised_session(model).run(names, feeds), strict=True))


def answer(model, feeds, precision="fp32", options=None, **convert):
    """Return the outputs of the compiled model."""
    converted = Converter(precision=precision, disable_progress_bar=True, **convert).convert(model)
    executable = Compiler.compile(converted, None, CompilerOptions.from_dict(options or {}))
    with ModelRunner(
        executable.getPopefModel(), ModelRunnerConfig(timeout_ns=1_000, num_threads=1)
    ) as runner:
        types = {each.name: each.numpy_data_type() for each in runner.getExecuteInputs()}
        return dict(runner.execute({name: np.asarray(feeds[name], types[name]) for name in types}))


def assert_answers(model, feeds, precision, expected=None, **convert):
    expected = expect(model, feeds) if expected is None else expected
    found = answer(model, feeds, precision, **convert)
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        assert found[name].shape == wanted.shape
        if precision == "fp32":
            np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)
        else:
            scale = max(1.0, float(np.abs(wanted).max(initial=0)))
            np.testing.assert_allclose(
                found[name].astype(np.float64), wanted, rtol=0, atol=HALF_ERROR * scale
            )


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


W = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("also", ["x", "w"])
def test_an_input_or_a_weight_is_an_output_too(also, precision):
    spec = (F, [2, 3])
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    model = make_model(nodes, {"x": spec}, {"y": spec, also: spec}, {"w": W})
    assert_answers(model, {"x": numbers(2, 3)}, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("pool", ["MaxPool", "LpPool"])
def test_a_pool_that_is_padded_by_its_kernel_is_computed(pool, precision):
    window = {"kernel_shape": [2, 2], "pads": [1, 0, 1, 0], "strides": [3, 3], "dilations": [1, 2]}
    nodes = [helper.make_node(pool, ["x"], ["y"], ceil_mode=1, **window)]
    model = make_model(nodes, {"x": (F, [1, 2, 4, 4])}, {"y": (F, None)}, {}, opset=20)
    assert_answers(model, {"x": numbers(1, 2, 4, 4)}, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("slope", [(2, 3), (4, 2, 3), (1, 1, 2, 3)])
def test_a_prelu_has_the_shape_that_its_slope_is_broadcast_to(slope, precision):
    nodes = [helper.make_node("PRelu", ["x", "s"], ["p"]), helper.make_node("Neg", ["p"], ["y"])]
    model = make_model(nodes, {"x": (F, [3])}, {"y": (F, None)}, {"s": numbers(*slope)})
    assert_answers(model, {"x": numbers(3, seed=1)}, precision)


@pytest.mark.parametrize("kernels", list(KernelUse))
def test_an_output_that_is_a_weight_stays_a_half_with_and_without_kernels(kernels):
    spec = (TensorProto.FLOAT16, [2, 3])
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    model = make_model(
        nodes, {"x": spec}, {"y": spec, "w": spec, "x": spec}, {"w": W.astype(np.float16)}
    )
    onnx.checker.check_model(lower(model, Numerics(), kernels=KernelUse.NONE), full_check=True)
    lowered = lower(model, Numerics(), kernels=kernels)
    types = [tensor.data_type for tensor in lowered.graph.initializer if tensor.name == "w"]
    assert types == [TensorProto.FLOAT16]
    made = [name for node in lowered.graph.node for name in node.output]
    assert {"x", "w"}.isdisjoint(made)
    assert len(made) == len(set(made))


def test_a_model_without_inputs_answers_each_request_once():
    model = make_model([helper.make_node("Sqrt", ["w"], ["y"])], {}, {"y": (F, [2, 3])}, {"w": W})
    executable = Compiler.compile(Converter().convert(model))
    assert executable.executable.program(5).batch_size == 0
    with ModelRunner(executable.getPopefModel()) as runner:
        futures = [runner.executeAsync({}) for _ in range(5)]
        for future in futures:
            np.testing.assert_allclose(future.wait()["y"], np.sqrt(W), rtol=1e-3)
        place = np.zeros((2, 3), futures[0]["y"].dtype)
        runner.execute({}, {"y": place})
        np.testing.assert_allclose(place, np.sqrt(W), rtol=1e-3)


def windowed(op_type, size, out, **attributes):
    """Return a model of one node over an axis of the given size, with a filter if the operator has
    one."""
    weights = (
        {"w": numbers(2, 2, *attributes["kernel_shape"])} if op_type.startswith("Conv") else {}
    )
    node = helper.make_node(op_type, ["x", *weights], ["y"], **attributes)
    return make_model([node], {"x": (F, [1, 2, size])}, {"y": (F, [1, 2, out])}, weights, opset=19)


CEILED = {"kernel_shape": [3], "strides": [4], "pads": [1, 1], "ceil_mode": 1}
WINDOWS = {
    "a max pool that leaves its last window out": ("MaxPool", 6, 2, CEILED),
    "an average that counts its padding": ("AveragePool", 6, 2, {**CEILED, "count_include_pad": 1}),
    "an average that does not": ("AveragePool", 6, 2, CEILED),
    "a norm": ("LpPool", 8, 4, {"kernel_shape": [1], "strides": [2], "ceil_mode": 1}),
    "ceil_mode beside VALID": (
        "MaxPool", 8, 4, {"kernel_shape": [1], "strides": [2], "ceil_mode": 1, "auto_pad": "VALID"}
    ),
    "ceil_mode beside SAME": (
        "AveragePool", 6, 3, {"kernel_shape": [2], "strides": [2], "ceil_mode": 1, "auto_pad": "SAME_UPPER"}
    ),
    "a dilated pool": ("MaxPool", 6, 2, {**CEILED, "kernel_shape": [4], "dilations": [3], "pads": [3, 3]}),
    "output_padding beside SAME_LOWER": (
        "ConvTranspose", 4, 8,
        {"kernel_shape": [3], "strides": [2], "auto_pad": "SAME_LOWER", "output_padding": [1]},
    ),
    "output_padding beside SAME_UPPER": (
        "ConvTranspose", 4, 16,
        {"kernel_shape": [4], "strides": [4], "auto_pad": "SAME_UPPER", "output_padding": [2]},
    ),
    "an output shape below the input's": ("ConvTranspose", 9, 6, {"kernel_shape": [2], "output_shape": [6]}),
}  # fmt: skip


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", WINDOWS)
def test_windows_are_as_many_as_onnx_runtime_finds(case, precision):
    op_type, size, out, attributes = WINDOWS[case]
    assert_answers(
        windowed(op_type, size, out, **attributes), {"x": numbers(1, 2, size)}, precision
    )


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_dilated_windows_with_auto_pad_are_padded_as_the_standard_says(auto_pad):
    """ONNX Runtime ignores the dilations of pools in the padding, and rejects such convolutions."""
    size, dilation, stride = 7, 2, 2
    x = numbers(1, 2, size)
    attributes = {"kernel_shape": [2], "strides": [stride], "dilations": [dilation]}
    model = windowed("MaxPool", size, 4, auto_pad=auto_pad, **attributes)
    total = (4 - 1) * stride + dilation + 1 - size
    before = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
    padded = np.pad(x, ((0, 0), (0, 0), (before, total - before)), constant_values=-np.inf)
    expected = np.maximum(padded[:, :, 0:7:stride], padded[:, :, dilation : 7 + dilation : stride])
    assert_answers(model, {"x": x}, "fp32", {"y": expected})
    same = windowed("Conv", size, 4, auto_pad=auto_pad, **attributes)
    explicit = windowed("Conv", size, 4, pads=[before, total - before], **attributes)
    assert_answers(same, {"x": x}, "fp32", expect(explicit, {"x": x}))


def test_a_window_smaller_than_its_stride_needs_no_padding():
    """ONNX Runtime rejects such a window because it computes a negative padding."""
    model = windowed("MaxPool", 9, 3, auto_pad="SAME_UPPER", kernel_shape=[2], strides=[3])
    x = numbers(1, 2, 9)
    expected = np.maximum(x[:, :, 0::3], x[:, :, 1::3])
    assert_answers(model, {"x": x}, "fp32", {"y": expected})


def test_windows_behind_windows_see_the_sizes_that_there_are():
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[1], strides=[2], ceil_mode=1),
        helper.make_node("AveragePool", ["a"], ["b"], **CEILED),
        helper.make_node("Shape", ["b"], ["s"]),
        helper.make_node("Reshape", ["b", "s"], ["y"]),
    ]
    model = make_model(nodes, {"x": (F, [1, 2, 12])}, {"y": (F, [1, 2, "n"])}, {}, opset=19)
    assert_answers(model, {"x": numbers(1, 2, 12)}, "fp32")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("op_type", ["GRU", "LSTM", "RNN"])
def test_recurrent_networks_with_rows_first(op_type, precision):
    """The expected answers come from the same network with steps first, between transposes in
    numpy. ONNX Runtime has a kernel for that layout."""
    gates, rows, steps, size, hidden = {"GRU": 3, "LSTM": 4, "RNN": 1}[op_type], 3, 4, 5, 2
    weights = {
        "w": numbers(2, gates * hidden, size, seed=1),
        "r": numbers(2, gates * hidden, hidden, seed=2),
        "h": numbers(rows, 2, hidden, seed=3),
    }
    last = ["c"] if op_type == "LSTM" else []
    names = ["y", "y_h", *(["y_c"] if last else [])]

    def network(layout, x_shape, state_shape, y_shape, h):
        node = helper.make_node(
            op_type, ["x", "w", "r", "", "", "h"], names, hidden_size=hidden, direction="bidirectional",
            layout=layout,
        )  # fmt: skip
        outputs = {"y": (F, y_shape)} | dict.fromkeys(names[1:], (F, state_shape))
        return make_model([node], {"x": (F, x_shape)}, outputs, {**weights, "h": h})

    x = numbers(rows, steps, size)
    first = network(
        1, [rows, steps, size], [rows, 2, hidden], [rows, steps, 2, hidden], weights["h"]
    )
    second = network(
        0,
        [steps, rows, size],
        [2, rows, hidden],
        [steps, 2, rows, hidden],
        weights["h"].transpose(1, 0, 2),
    )
    expected = expect(second, {"x": x.transpose(1, 0, 2)})
    expected = {
        name: value.transpose((2, 0, 1, 3) if name == "y" else (1, 0, 2))
        for name, value in expected.items()
    }
    assert_answers(first, {"x": x}, precision, expected)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_a_pad_of_an_old_opset_may_name_a_value_that_nothing_reads(mode):
    node = helper.make_node("Pad", ["x"], ["y"], mode=mode, pads=[0, 1, 0, 2], value=1.5)
    model = make_model([node], {"x": (F, [2, 4])}, {"y": (F, [2, 7])}, {}, opset=10)
    assert_answers(model, {"x": numbers(2, 4)}, "fp16")


def test_a_pad_may_name_its_axes():
    node = helper.make_node("Pad", ["x", "pads", "", "axes"], ["y"], mode="reflect")
    weights = {"pads": np.int64([1, 2]), "axes": np.int64([-1])}
    model = make_model([node], {"x": (F, [2, 4])}, {"y": (F, [2, 7])}, weights, opset=18)
    assert_answers(model, {"x": numbers(2, 4)}, "fp32")


def empty(node, out, weights=(), shape=(2, 4), axis=1):
    """Return a model with the node on a tensor `z` that has no elements along an axis."""
    ends = {"start": np.int64([1]), "end": np.int64([1]), "axes": np.int64([axis])}
    nodes = [helper.make_node("Slice", ["x", *ends], ["z"]), node]
    return make_model(nodes, {"x": (F, shape)}, {"y": (F, out)}, {**ends, **dict(weights)})


EMPTY = {
    "the sums of a product": empty(
        helper.make_node("MatMul", ["z", "w"], ["y"]), [2, 3], {"w": np.zeros((0, 3), np.float32)}
    ),
    "the rows of a product": empty(
        helper.make_node("Gemm", ["z", "w"], ["y"]), [0, 3], {"w": numbers(4, 3)}, axis=0
    ),
    "the rows of a convolution": empty(
        helper.make_node("Conv", ["z", "w"], ["y"]),
        [0, 2, 2],
        {"w": numbers(2, 4, 1)},
        (2, 4, 2),
        axis=0,
    ),
    "what is summed up": empty(
        helper.make_node("ReduceSum", ["z", "a"], ["y"], keepdims=0), [2], {"a": np.int64([1])}
    ),
    "a part of a Concat": empty(helper.make_node("Concat", ["z", "x"], ["y"], axis=1), [2, 4]),
    "what is padded": empty(
        helper.make_node("Pad", ["z", "pads"], ["y"]), [2, 2], {"pads": np.int64([0, 1, 0, 1])}
    ),
    "softmax": empty(helper.make_node("Softmax", ["z"], ["y"]), [2, 0]),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("what", EMPTY)
def test_tensors_inside_a_graph_may_have_no_elements(what, precision):
    shape = [dim.dim_value for dim in EMPTY[what].graph.input[0].type.tensor_type.shape.dim]
    assert_answers(EMPTY[what], {"x": numbers(*shape)}, precision)


@pytest.mark.parametrize("attention", ["query", "key"])
def test_the_cost_of_products_of_nothing_is_known(attention):
    rows, keys = (0, 4) if attention == "query" else (4, 0)
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    sizes = {"q": [1, 2, rows, 8], "k": [1, 2, keys, 8], "v": [1, 2, keys, 8]}
    model = make_model(
        [node],
        {name: (F, size) for name, size in sizes.items()},
        {"y": (F, sizes["q"])},
        {},
        opset=23,
    )
    assert estimate(model, find_target("ipu2", 1)).cycles >= 0


CASTS = {
    "int64": (TensorProto.INT64, TensorProto.DOUBLE, "64 bits"),
    "double": (TensorProto.DOUBLE, TensorProto.INT64, "64 bits"),
    "half": (TensorProto.FLOAT16, TensorProto.INT16, "in half"),
}


def bit_cast(source, to, weight=None):
    node = helper.make_node("BitCast", ["x" if weight is None else "w"], ["z"], to=to)
    last = helper.make_node("Cast", ["z"], ["y"], to=F)
    weights = {} if weight is None else {"w": weight}
    return make_model([node, last], {"x": (source, [2])}, {"y": (F, [2])}, weights, opset=26)


@pytest.mark.parametrize("case", CASTS)
def test_bits_that_the_conversion_would_change_are_refused(case):
    source, to, reason = CASTS[case]
    with pytest.raises(CompileError, match=f"reads the bits of .*{reason}"):
        Converter(precision="fp16").convert(bit_cast(source, to))


def test_bits_of_floats_and_of_constants_are_those_that_were_given():
    x = np.float32([1.0, -2.5])
    assert_answers(
        bit_cast(F, TensorProto.INT32), {"x": x}, "fp32", {"y": x.view(np.int32).astype(np.float32)}
    )
    wide = np.int64([0x3FF0000000000000, 0x4000000000000000])
    model = bit_cast(F, TensorProto.DOUBLE, wide)
    assert_answers(model, {"x": x}, "fp32", {"y": np.float32([1, 2])})


def test_bits_of_floats_are_read_before_they_are_rounded_to_half():
    node = helper.make_node("BitCast", ["x"], ["y"], to=TensorProto.INT32)
    model = make_model([node], {"x": (F, [2])}, {"y": (TensorProto.INT32, [2])}, {}, opset=26)
    x = np.float32([1.0, -2.5])
    np.testing.assert_array_equal(answer(model, {"x": x}, "fp16")["y"], x.view(np.int32))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_normalisation_with_axes_by_default(precision):
    node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"])
    spec = (F, [2, 3, 4, 5])
    x = numbers(*spec[1])
    expected = (x - x.mean((0, 2, 3), keepdims=True)) / x.std((0, 2, 3), keepdims=True)
    assert_answers(
        make_model([node], {"x": spec}, {"y": spec}, {}), {"x": x}, precision, {"y": expected}
    )


def test_a_short_fourier_transform_is_one_sided_by_default():
    node = helper.make_node("STFT", ["x", "step", "", "length"], ["y"])
    weights = {"step": np.int64(4), "length": np.int64(8)}
    model = make_model([node], {"x": (F, [1, 16, 1])}, {"y": (F, [1, 3, 5, 2])}, weights)
    x = numbers(1, 16, 1)
    frames = np.fft.rfft(np.stack([x[0, i : i + 8, 0] for i in (0, 4, 8)]))
    expected = np.stack([frames.real, frames.imag], -1)[None].astype(np.float32)
    assert_answers(model, {"x": x}, "fp32", {"y": expected})


def scan(opset):
    """Return running sums by a body that declares no types or shapes of its results."""
    nodes = [
        helper.make_node("Add", ["state", "part"], ["sum"]),
        helper.make_node("Identity", ["sum"], ["each"]),
    ]
    values = [onnx.ValueInfoProto(name=name) for name in ("state", "part", "sum", "each")]
    body = helper.make_graph(nodes, "body", values[:2], values[2:])
    node = helper.make_node("Scan", ["w", "x"], ["last", "y"], num_scan_inputs=1, body=body)
    outputs = {"last": (F, [3]), "y": (F, [4, 3])}
    return make_model(
        [node], {"x": (F, [4, 3])}, outputs, {"w": np.float32([1, 2, 3])}, opset=opset
    )


@pytest.mark.parametrize("precision", PRECISIONS)
def test_bodies_need_not_say_the_types_of_what_they_make(precision):
    assert_answers(scan(17), {"x": numbers(4, 3)}, precision)


def test_a_scan_with_an_axis_for_the_batch_is_refused_in_half():
    with pytest.raises(CompileError, match="a Scan of opset 8 has an axis for the batch"):
        Converter(precision="fp16").convert(scan(8))


@pytest.mark.parametrize("side", ["input", "output"])
def test_eight_bit_floats_at_a_border_are_refused_by_name(side):
    kinds = (TensorProto.FLOAT8E4M3FNUZ, F)
    source, to = kinds if side == "input" else kinds[::-1]
    node = helper.make_node("Cast", ["x"], ["y"], to=to)
    model = make_model([node], {"x": (source, [2])}, {"y": (to, [2])}, {}, opset=19)
    with pytest.raises(CompileError, match=f"{side} '[xy]' has type FLOAT8E4M3FNUZ.*put a Cast"):
        Compiler.compile(model)


@pytest.mark.parametrize("opset", [7, 9])
def test_a_slice_may_begin_before_the_first_element(opset):
    nodes = [
        helper.make_node("Slice", ["x"], ["part"], axes=[1, 2], starts=[-3, -9], ends=[9, -1]),
        helper.make_node("Slice", ["part"], ["y"], axes=[1], starts=[-2], ends=[1]),
    ]
    model = make_model(nodes, {"x": (F, [2, 1, 4])}, {"y": (F, [2, 1, 3])}, {}, opset)
    assert_answers(model, {"x": np.arange(8, dtype=np.float32).reshape(2, 1, 4)}, "fp32")


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_a_compress_with_a_constant_condition_has_a_known_size(axis):
    condition = np.array([False, True]) if axis != -1 else np.array([True, False, True])
    node = helper.make_node(
        "Compress", ["x", "c"], ["y"], **({} if axis is None else {"axis": axis})
    )
    x = numbers(2, 3)
    expected = np.compress(condition, x, axis)
    model = make_model([node], {"x": (F, [2, 3])}, {"y": (F, expected.shape)}, {"c": condition})
    assert_answers(model, {"x": x}, "fp32", {"y": expected})


def test_an_empty_tensor_of_settings_can_be_fixed():
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    inputs = {"x": (F, [2, 3]), "axes": (TensorProto.INT64, [0])}
    model = make_model([node], inputs, {"y": (F, [])}, {})
    x = numbers(2, 3)
    found = answer(
        model, {"x": x}, input_shape={"axes": [0]}, fix_inputs={"axes": np.zeros(0, np.int64)}
    )
    np.testing.assert_allclose(found["y"], x.sum(), rtol=1e-6)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    ("kernel", "strides", "added"),
    [([3, 1], [2, 3], [1, 0]), ([3, 2], [3, 3], [2, 0]), ([1, 1], [3, 3], [2, 1])],
)
def test_a_transposed_window_smaller_than_its_stride_is_not_padded(
    auto_pad, kernel, strides, added
):
    node = helper.make_node(
        "ConvTranspose", ["x", "w"], ["y"], auto_pad=auto_pad, strides=strides, output_padding=added
    )
    weights = {"w": np.arange(np.prod(kernel), dtype=np.float32).reshape(1, 1, *kernel) + 1}
    model = make_model(
        [node], {"x": (F, [1, 1, 2, 1])}, {"y": (F, ["a", "b", "c", "d"])}, weights, 12
    )
    assert_answers(model, {"x": np.float32([[[[2], [3]]]])}, "fp32")


@pytest.mark.parametrize(("parts", "onesided"), [(1, 0), (1, 1), (2, 0)])
def test_a_fourier_transform_of_a_computed_tensor_is_compiled(parts, onesided):
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["doubled"]),
        helper.make_node("DFT", ["doubled"], ["y"], axis=1, onesided=onesided),
    ]
    x = numbers(4, 8, parts)
    bins = 5 if onesided else 8
    spectrum = np.fft.fft(2 * (x[..., 0] + (1j * x[..., 1] if parts > 1 else 0)), axis=1)[:, :bins]
    expected = np.stack([spectrum.real, spectrum.imag], axis=-1).astype(np.float32)
    model = make_model(
        nodes, {"x": (F, x.shape)}, {"y": (F, expected.shape)}, {"two": np.float32(2)}, opset=17
    )
    assert_answers(model, {"x": x}, "fp32", {"y": expected})
