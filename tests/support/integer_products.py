"""Products of 8-bit numbers with extreme operands, each beside numpy's arithmetic in int64, and what
ONNX Runtime's optimisers make of their graphs.

    python tests/support/integer_products.py SEED STEP    computes every STEPth of them with every
                                                          engine on this processor

`make test-no-vnni` does so on an emulated processor without VNNI, where products of uint8 and int8
saturate. OpenVINO alone has no VNNI with the environment variable ONEDNN_MAX_CPU_ISA=AVX2.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import attribute, iter_graphs
from simipu import GraphOptions, choose_accelerator
from simipu.engines.accelerated import open_accelerated
from simipu.engines.computed import _BROKEN_OPTIMIZERS, Lowered, _session_options, make_graph
from simipu.engines.program_graphs import _limit_values, lower_model
from simipu.engines.reference import ReferenceGraph
from simipu.numerics import KernelUse, Numerics
from simipu.saturation import products_saturate

Array = npt.NDArray[Any]
U8, I8 = np.uint8, np.int8
PAIRS = tuple(itertools.product((U8, I8), repeat=2))
MODES = ("ends", "highest", "lowest", "random")
ENGINES = ("onnxruntime", "unoptimised", "half", "reference")
OPENVINO = "openvino"
"""Engine that is not always installed."""
_NO_SCALED = (I8, U8)
"""Operands for which ONNX Runtime has no QLinearMatMul and no QLinearConv."""
_SATURATING = {
    "ConvInteger": (1, 0),
    "MatMulInteger": (0, 1),
    "MatMulIntegerToFloat": (0, 1),
    "QGemm": (0, 3),
    "QLinearConv": (0, 3),
    "QLinearMatMul": (0, 3),
}
"""Products of ONNX Runtime with the inputs that saturate, the one as uint8 and the other as
int8."""
_SIZES = ((1, 64, 8), (3, 7, 5), (2, 2, 1), (5, 129, 33), (1, 300, 2))
"""Rows, terms and columns of products."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model of a product, its inputs, the expected output `y`, and the largest allowed error."""

    name: str
    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    expected: Array
    error: float = 0.0


class Draw:
    """A model in the making: operands are drawn, nodes are added."""

    def __init__(self, seed: int, name: str) -> None:
        self.rng, self.name = np.random.default_rng(seed), name
        self.nodes: list[onnx.NodeProto] = []
        self.feeds: dict[str, Array] = {}
        self.constants: dict[str, Array] = {}

    def codes(self, dtype: npt.DTypeLike, shape: Sequence[int], mode: str) -> Array:
        """Return numbers of 8 bits: the ends of their range by chance, one end, or any."""
        ends = np.iinfo(dtype)
        if mode == "random":
            numbers = self.rng.integers(ends.min, ends.max + 1, shape)
            return np.asarray(numbers, dtype)
        values = {"highest": [ends.max], "lowest": [ends.min]}.get(mode, [ends.min, ends.max])
        return np.asarray(self.rng.choice(np.array(values, dtype), shape))

    def put(self, name: str, value: npt.ArrayLike, *, constant: bool = True) -> str:
        """Add a tensor, as a constant or an input of the graph."""
        (self.constants if constant else self.feeds)[name] = np.asarray(value)
        return name

    def add(self, op_type: str, inputs: Sequence[str], result: str = "y", **attributes: Any) -> str:
        """Add a node and return its result's name."""
        self.nodes.append(helper.make_node(op_type, inputs, [result], result, **attributes))
        return result

    def case(self, expected: Array, dtype: npt.DTypeLike, error: float, opset: int) -> Case:
        """Return the model with the expected value of its output."""
        infos = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in self.feeds.items()
        ]
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        output = helper.make_tensor_value_info("y", kind, None)
        tensors = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        graph = helper.make_graph(self.nodes, "product", infos, [output], tensors)
        opsets = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return Case(self.name, model, self.feeds, expected, error)


def wide(codes: Array, zero: npt.ArrayLike = 0) -> npt.NDArray[np.int64]:
    """Return numbers without their zero point, in 64 bits."""
    return codes.astype(np.int64) - np.asarray(zero, np.int64)


def saturate(values: Array, zero: int, dtype: npt.DTypeLike) -> Array:
    """Return values as codes, halves rounded to even."""
    ends = np.iinfo(dtype)
    return np.asarray(np.clip(np.rint(values) + zero, ends.min, ends.max))


def convolve(field: Array, filters: Array, pads: int, stride: int, groups: int) -> Array:
    """Return the sums of a convolution over the last two axes, in the operands' type."""
    field = np.pad(field, ((0, 0), (0, 0), (pads, pads), (pads, pads)))
    windows = np.lib.stride_tricks.sliding_window_view(field, filters.shape[2:], (2, 3))
    windows = windows[:, :, ::stride, ::stride]
    parts = zip(np.split(windows, groups, 1), np.split(filters, groups, 0), strict=True)
    return np.concatenate([np.einsum("ncyxij,ocij->noyx", x, w) for x, w in parts], 1)


def draw_matrices(seed: int) -> Iterator[Case]:
    """Yield products of two matrices of codes: MatMulInteger and QLinearMatMul."""
    kinds = itertools.product(PAIRS, (True, False), MODES, (False, True))
    for number, ((left, right), constant, mode, by_column) in enumerate(kinds):
        rows, terms, columns = _SIZES[number % len(_SIZES)]
        words = f"{left.__name__} x {right.__name__}"
        draw = Draw(seed + number, f"MatMulInteger {words}")
        a, b = draw.codes(left, (rows, terms), mode), draw.codes(right, (terms, columns), mode)
        a_zero = left(draw.rng.integers(0, 101))
        b_zero = draw.codes(right, (columns,), "random") if by_column else right(5)
        total = wide(a, a_zero) @ wide(b, b_zero)
        inputs = [draw.put("a", a, constant=False), draw.put("b", b, constant=constant)]
        zeros = [draw.put("az", a_zero), draw.put("bz", b_zero)]
        draw.add("MatMulInteger", inputs + zeros)
        yield draw.case(total, np.int32, 0, 13)
        bare = Draw(seed, f"{draw.name}, no zero points")
        bare.add("MatMulInteger", [bare.put("a", a, constant=False), bare.put("b", b)])
        yield bare.case(wide(a) @ wide(b), np.int32, 0, 11)
        if (left, right) == _NO_SCALED:
            continue
        step = np.float32(max(np.abs(total).max(), 1) / 90)
        scaled = Draw(seed + number, f"QLinearMatMul {words}")
        scaled.put("a", a, constant=False)
        scaled.put("b", b, constant=constant)
        for name, value in {"az": a_zero, "bz": b_zero, "y_step": step}.items():
            scaled.put(name, value)
        steps = np.ones(columns, np.float32) if by_column else np.float32(1)
        scaled.put("one", np.float32(1))
        scaled.put("steps", steps)
        scaled.add("QLinearMatMul", "a one az b steps bz y_step az".split())
        yield scaled.case(saturate(total / step, int(a_zero), left), left, 1, 11)


def draw_convolutions(seed: int) -> Iterator[Case]:
    """Yield convolutions of codes: ConvInteger and QLinearConv."""
    forms = ((40, 8, 1, 3, 1, 1), (3, 5, 1, 2, 0, 2), (8, 8, 8, 3, 1, 1), (4, 6, 2, 1, 0, 1))
    kinds = itertools.product(PAIRS, (True, False), MODES, forms)
    for number, ((left, right), constant, mode, form) in enumerate(kinds):
        channels, filters, groups, taps, pads, stride = form
        words = f"{left.__name__} x {right.__name__}"
        draw = Draw(seed + number, f"ConvInteger {words}")
        x = draw.codes(left, (1, channels, 5, 6), mode)
        w = draw.codes(right, (filters, channels // groups, taps, taps), mode)
        x_zero, w_zero = left(draw.rng.integers(0, 101)), right(5)
        total = convolve(wide(x, x_zero), wide(w, w_zero), pads, stride, groups)
        form_of: dict[str, Any] = {"group": groups, "pads": [pads] * 4, "strides": [stride] * 2}
        draw.put("x", x, constant=False)
        draw.put("w", w, constant=constant)
        draw.put("xz", x_zero)
        draw.put("wz", w_zero)
        draw.add("ConvInteger", "x w xz wz".split(), **form_of)
        yield draw.case(total, np.int32, 0, 11)
        if (left, right) == _NO_SCALED:
            continue
        step = np.float32(max(np.abs(total).max(), 1) / 90)
        bias = draw.rng.integers(-1000, 1000, filters).astype(np.int32)
        scaled = Draw(seed + number, f"QLinearConv {words}")
        scaled.feeds, scaled.constants = draw.feeds, dict(draw.constants)
        for name, value in {"one": np.float32(1), "y_step": step, "bias": bias}.items():
            scaled.put(name, value)
        scaled.put("steps", np.ones(filters, np.float32) if number % 2 else np.float32(1))
        scaled.add("QLinearConv", "x one xz w steps wz y_step xz bias".split(), **form_of)
        total = total + bias[:, None, None]
        yield scaled.case(saturate(total / step, int(x_zero), left), left, 1, 11)


def draw_dynamic(seed: int) -> Iterator[Case]:
    """Yield products of a tensor that is quantized by its own range, which ONNX Runtime fuses."""
    for number, (right, mode, scaled) in enumerate(
        itertools.product((U8, I8), MODES, (False, True))
    ):
        rows, terms, columns = _SIZES[number % len(_SIZES)]
        draw = Draw(seed + number, f"DynamicQuantizeLinear x {right.__name__}")
        # The step is 1, the zero point 100.
        x = draw.rng.choice(np.array([-100, 155], np.float32), (rows, terms))
        x[0, :2] = -100, 155
        b, zero = draw.codes(right, (terms, columns), mode), right(3)
        draw.put("x", x, constant=False)
        draw.put("b", b)
        draw.put("bz", zero)
        draw.put("step", np.float32(0.5))
        codes = ["xq", "xs", "xz"]
        draw.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], codes))
        total = x.astype(np.int64) @ wide(b, zero)
        draw.add("MatMulInteger", ["xq", "b", "xz", "bz"], "sum" if scaled else "y")
        if scaled:
            draw.add("Cast", ["sum"], "float", to=TensorProto.FLOAT)
            draw.add("Mul", ["xs", "step"], "steps")
            draw.add("Mul", ["float", "steps"])
        dtype = np.float32 if scaled else np.int32
        yield draw.case(total * 0.5 if scaled else total, dtype, 1e-5 * scaled * terms, 11)


def draw_quantized(seed: int) -> Iterator[Case]:
    """Yield float products of quantized tensors, of which ONNX Runtime makes products of codes.

    The weight is a constant, made by a QuantizeLinear, or an input; the result is quantized or
    not.
    """
    ops = ("MatMul", "Gemm", "Conv", "ConvTranspose")
    kinds = itertools.product(ops, PAIRS, ("constant", "made", "input"), (False, True), MODES[:2])
    for number, (op_type, (left, right), weight, requantizes, mode) in enumerate(kinds):
        draw = Draw(seed + number, f"QDQ {op_type} {left.__name__} x {right.__name__}")
        rows, terms, columns = _SIZES[number % len(_SIZES)]
        is_conv, transposed = op_type.startswith("Conv"), int(draw.rng.integers(2))
        shape = (8, 8, 3, 3) if is_conv else (terms, columns)
        if op_type == "Gemm" and transposed:
            shape = shape[::-1]
        # The axis of the weight that is the result's channels.
        axis = {"Conv": 0, "ConvTranspose": 1, "MatMul": 1, "Gemm": 1 - transposed}[op_type]
        x = draw.codes(left, (1, 8, 5, 5) if is_conv else (rows, terms), mode)
        w = draw.codes(right, shape, mode)
        x_zero, w_zero = _middle(left), _middle(right)
        a, b = wide(x, x_zero), wide(w, w_zero)
        draw.put("x_step", np.float32(0.25))
        draw.put("x_zero", x_zero)
        draw.put("x", (a * 0.25).astype(np.float32), constant=False)
        draw.add("QuantizeLinear", ["x", "x_step", "x_zero"], "xq")
        draw.add("DequantizeLinear", ["xq", "x_step", "x_zero"], "xd")
        by_channel = weight != "made" and bool(draw.rng.integers(2))
        sizes, along = ([shape[axis]], {"axis": axis}) if by_channel else ([], {})
        draw.put("w_step", np.full(sizes, 0.5, np.float32))
        draw.put("w_zero", np.full(sizes, w_zero, right))
        if weight == "made":
            draw.put("v", (b * 0.5).astype(np.float32), constant=False)
            draw.add("QuantizeLinear", ["v", "w_step", "w_zero"], "w")
        else:
            draw.put("w", w, constant=weight == "constant")
        draw.add("DequantizeLinear", ["w", "w_step", "w_zero"], "wd", **along)
        total, attributes = _multiply(op_type, a, b, transposed)
        draw.add(op_type, ["xd", "wd"], "float" if requantizes else "y", **attributes)
        yield (
            _requantize(draw, total * 0.125, x_zero)
            if requantizes
            else draw.case(total * 0.125, np.float32, 1e-5 * float(np.abs(total).max()), 13)
        )


def _middle(dtype: type[Any]) -> Any:
    """Return the zero point of a symmetric scale."""
    return dtype(128 if dtype is U8 else 0)


def _multiply(op_type: str, a: Array, b: Array, transposed: int) -> tuple[Array, dict[str, Any]]:
    """Return the sums of a product and the attributes of its node."""
    if op_type == "Conv":
        return convolve(a, b, 1, 1, 1), {"pads": [1] * 4}
    if op_type == "ConvTranspose":
        return convolve(a, b.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1], 2, 1, 1), {}
    if op_type == "Gemm":
        return a @ (b.T if transposed else b), {"transB": transposed}
    return a @ b, {}


def _requantize(draw: Draw, values: Array, zero: Any) -> Case:
    """Return a case whose result is quantized and dequantized; it may be one step off."""
    step = np.float32(max(np.abs(values).max(), 1) / 90)
    draw.put("y_step", step)
    draw.add("QuantizeLinear", ["float", "y_step", "x_zero"], "yq")
    draw.add("DequantizeLinear", ["yq", "y_step", "x_zero"])
    expected = (saturate(values / step, int(zero), zero.dtype) - int(zero)) * step
    return draw.case(expected, np.float32, float(1.01 * step), 13)


def draw_blocks(seed: int) -> Iterator[Case]:
    """Yield float products with a weight that is dequantized in blocks of its rows."""
    block = 16
    for number, (dtype, mode, has_zero) in enumerate(
        itertools.product((U8, I8), MODES, (False, True))
    ):
        draw = Draw(seed + number, f"product with blocks of {dtype.__name__}")
        x = draw.rng.standard_normal((3, 4 * block)).astype(np.float32)
        w = draw.codes(dtype, (4 * block, 5), mode)
        steps = (draw.rng.random((4, 5)) / 100).astype(np.float32)
        zeros = draw.codes(dtype, steps.shape, "random") if has_zero else np.zeros((4, 5), dtype)
        inputs = [draw.put("w", w), draw.put("steps", steps)]
        inputs += [draw.put("zeros", zeros)] if has_zero else []
        draw.put("x", x, constant=False)
        draw.add("DequantizeLinear", inputs, "v", axis=0, block_size=block)
        draw.add("MatMul", ["x", "v"])
        values = wide(w, np.repeat(zeros, block, 0)) * np.repeat(steps, block, 0).astype(np.float64)
        expected = x.astype(np.float64) @ values
        yield draw.case(expected, np.float32, 1e-5 * float(np.abs(expected).max()), 21)


FAMILIES = {
    "blocks": draw_blocks,
    "matrices": draw_matrices,
    "convolutions": draw_convolutions,
    "dynamic": draw_dynamic,
    "quantized": draw_quantized,
}


def compute(case: Case, engine: str) -> Array:
    """Return the output of a case as an engine computes it: that of floats with or without the
    optimisers, that of halves, or the one for operators without a kernel."""
    numerics, kernels = None, KernelUse.NONE
    if engine == OPENVINO:
        return _compute_on_openvino(case)
    if engine == "half":
        numerics, kernels = Numerics(), KernelUse.FUSED
    lowered, weights = lower_model(case.model, {}, numerics, kernels=kernels)
    graph = Lowered(lowered.SerializeToString(), weights)
    if engine == "reference":
        return ReferenceGraph(graph).run(["y"], case.feeds)[0]
    options = GraphOptions(num_threads=1, optimise=engine != "unoptimised")
    return make_graph(graph, options, "of a test").run(["y"], case.feeds)[0]


def _compute_on_openvino(case: Case) -> Array:
    options = GraphOptions(num_threads=1, accelerators=(choose_accelerator("openvino", {}),))
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    inferred, _ = _limit_values(model, options)
    lowered, weights = lower_model(model, {}, None, inferred)
    graph = Lowered(lowered.SerializeToString(), weights, outputs=["y"])
    return open_accelerated(graph, options, "of a test").run(["y"], case.feeds)[0]


def find_error(case: Case, result: Array) -> float:
    """Return the largest error of a result, or 0 if it is within the allowed one."""
    error = float(np.abs(result.astype(np.float64) - case.expected).max(initial=0))
    return error if error > case.error else 0.0


def optimise(case: Case) -> onnx.ModelProto:
    """Return the graph that ONNX Runtime makes of a lowered case."""
    lowered, _ = lower_model(case.model, {}, None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options = _session_options({}, GraphOptions(num_threads=1))
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(
            lowered.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=_BROKEN_OPTIMIZERS,
        )
        return onnx.load(path)


def find_saturating(model: onnx.ModelProto) -> list[str]:
    """Return the operators of an optimised graph that multiply uint8 and int8."""
    matches = []
    for graph in iter_graphs(model.graph):
        infos = (*graph.input, *graph.value_info, *graph.output)
        types = {info.name: info.type.tensor_type.elem_type for info in infos}
        types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
        for node in graph.node:
            kinds = [types.get(name) for name in node.input]
            _add_types(types, node)
            if node.op_type == "DynamicQuantizeMatMul" and kinds[1] == TensorProto.INT8:
                matches.append(node.op_type)
            if places := _SATURATING.get(node.op_type):
                assert None not in [kinds[place] for place in places], f"{node.op_type}: no types"
                if [kinds[place] for place in places] == [TensorProto.UINT8, TensorProto.INT8]:
                    matches.append(node.op_type)
    return matches


def _add_types(types: dict[str, int], node: onnx.NodeProto) -> None:
    """Add the types of a node's results that the optimised graph does not declare."""
    if node.op_type == "DynamicQuantizeLinear":
        types.update(dict.fromkeys(node.output[::2], TensorProto.UINT8))
    elif node.op_type == "Cast":
        types.setdefault(node.output[0], attribute(node, "to"))
    elif node.op_type == "QuantizeLinear":
        types.setdefault(node.output[0], types.get(node.input[2], 0))
    elif node.input and node.input[0] in types:
        types.setdefault(node.output[0], types[node.input[0]])


def main(seed: int, step: int) -> int:
    """Compute every `step`th case with every engine, print what is wrong, and return the exit
    status."""
    engines = [*ENGINES, *[OPENVINO] * (find_spec("openvino") is not None)]
    sys.stdout.write(f"products of uint8 and int8 saturate: {products_saturate()}\n")
    counts, largest = Counter[tuple[str, str, bool]](), dict[tuple[str, str], float]()
    for draw in FAMILIES.values():
        for case in itertools.islice(draw(seed), 0, None, step):
            for engine in engines:
                error = find_error(case, compute(case, engine))
                counts[case.name, engine, error == 0] += 1
                largest[case.name, engine] = max(largest.get((case.name, engine), 0), error)
    for name, engine in largest:
        right, wrong = (counts[name, engine, is_right] for is_right in (True, False))
        words = f"largest error {largest[name, engine]:.6g}" if wrong else ""
        sys.stdout.write(f"{name:45} {engine:12} {right:4} right {wrong:4} wrong {words}\n")
    return int(any(not is_right for *_, is_right in counts))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
