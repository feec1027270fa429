"""Tests that one program's entry in the cache of lowered graphs never answers for another program.

Pairs of programs differ in one thing each. The second one of a pair may take the entry of the first
only if it lowers to an equal graph.
"""

from contextlib import suppress
from dataclasses import dataclass, fields, replace

import numpy as np
import onnx
import pytest
from changed_options import OPTION_CHANGES, change_fields
from onnx import TensorProto, helper
from onnxgraph import make_cast
from simipu import (
    TARGETS,
    Constant,
    GraphOptions,
    LoadError,
    Numerics,
    SimulatedExecutable,
    choose_accelerator,
    open_graph,
)
from simipu import executable_pb2 as pb
from simipu.engines import graph_cache
from simipu.engines.computed import Lowered, inline_weights
from simipu.engines.program_graphs import lower_program
from simipu.executable import Program, ProgramKind
from simipu.numerics.options import KernelUse
from simipu.numerics.quarter import F143, F152
from simipu.streams import Direction, Stream

SIZE = 256
"""An 8-bit weight of this many rows and columns is large enough to stay codes."""
TYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "fp8": F143.data_type}


OPTIONS = GraphOptions(num_threads=1, caches=True, memory_bytes=1 << 33)
NUMERICS = Numerics()


@dataclass(frozen=True)
class Case:
    """Everything that a lowered graph depends on."""

    program: Program
    weights: dict
    options: GraphOptions = OPTIONS
    numerics: Numerics | None = NUMERICS
    kernels: KernelUse = KernelUse.FUSED

    @property
    def entry(self):
        return graph_cache.CacheEntry(
            self.program, self.weights, self.options, self.numerics, self.kernels
        )

    def lower(self):
        return lower_program(self.program, self.weights, self.options, self.numerics, self.kernels)


def make_model(kind, names=("w1", "w2", "b1", "b2"), op_type="Add"):
    """Return (x w1 + b1) w2 + b2. ONNX Runtime reads the factors in place; the graph holds the
    values of the summands."""
    data_type = TYPES[kind]
    wide = TensorProto.FLOAT if kind == "fp32" else TensorProto.FLOAT16
    w1, w2, b1, b2 = names
    nodes, factors = [], [w1, w2]
    if kind == "fp8":
        nodes = [make_cast(name, f"{name}/half", wide, scale=-8) for name in (w1, w2)]
        factors = [f"{w1}/half", f"{w2}/half"]
    nodes += [
        helper.make_node("MatMul", ["x", factors[0]], ["p1"]),
        helper.make_node(op_type, ["p1", b1], ["s1"]),
        helper.make_node("MatMul", ["s1", factors[1]], ["p2"]),
        helper.make_node(op_type, ["p2", b2], ["y"]),
    ]
    shapes = {w1: [SIZE, SIZE], w2: [SIZE, SIZE], b1: [SIZE], b2: [SIZE]}
    tensors = []
    for name, dims in shapes.items():
        of_factor = data_type if name in (w1, w2) else wide
        tensor = TensorProto(name=name, data_type=of_factor, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        tensors.append(tensor)
    ends = [[helper.make_tensor_value_info(name, wide, ["N", SIZE])] for name in "xy"]
    graph = helper.make_graph(nodes, "graph", *ends, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.graphcore", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def make_case(kind, names=("w1", "w2", "b1", "b2"), **changes):
    model = make_model(kind, names, **changes)
    draw = np.random.default_rng(0)
    weights = {}
    for tensor in model.graph.initializer:
        if kind == "fp8" and tensor.name in names[:2]:
            weights[tensor.name] = draw.integers(0, 128, tensor.dims, np.uint8)
        else:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            weights[tensor.name] = draw.standard_normal(tensor.dims).astype(dtype)
    dtype = helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    streams = (
        Stream("in", "x", Direction.HOST_TO_DEVICE, dtype, (4, SIZE)),
        Stream("out", "y", Direction.DEVICE_TO_HOST, dtype, (4, SIZE)),
    )
    graph = model.SerializeToString()
    return Case(Program(5, "main", ProgramKind.MAIN, streams, graph), weights)


PROGRAM_CHANGES = {
    "index": 6,
    "name": "other",
    "kind": ProgramKind.SAVE,
    "row_independent": True,
    "cycles": 7,
    "interval_cycles": 7,
    "overlapped": True,
    "row_dependence": "its node",
    "branches": (Program(6, "branch", ProgramKind.MAIN, ()),),
    "selector": "x",
}
STREAM_CHANGES = {
    "handle": "other",
    "tensor": "other",
    "direction": Direction.DEVICE_TO_HOST,
    "dtype": np.dtype(np.int16),
    "shape": (8, SIZE),
    "batch_axis": 1,
}
NUMERICS_CHANGES = {"half_partials": False, "nan_on_overflow": True, "raises": True}


def iter_programs(program):
    streams = program.streams
    graph = onnx.ModelProto.FromString(program.graph)
    graph.graph.node[-1].name = "named"
    turned = streams[::-1]
    changes = PROGRAM_CHANGES | {"graph": graph.SerializeToString(), "streams": turned}
    yield from change_fields(program, changes)
    for place, stream in enumerate(streams):
        for name, changed in change_fields(stream, STREAM_CHANGES):
            others = [*streams[:place], changed, *streams[place + 1 :]]
            yield f"{name} of stream {place}", replace(program, streams=tuple(others))


def iter_weights(weights):
    yield "order", dict(reversed(weights.items()))
    yield "copies", {name: value.copy() for name, value in weights.items()}
    yield "strides", {name: np.repeat(value, 2, -1)[..., ::2] for name, value in weights.items()}
    for name, value in weights.items():
        yield f"value of {name}", weights | {name: value[::-1].copy()}
    for left, right in (("w1", "w2"), ("b1", "b2")):
        for source in (left, right):
            yield (
                f"{left} and {right} are {source}",
                weights | dict.fromkeys((left, right), weights[source]),
            )
            yield (
                f"{left} and {right} equal {source}",
                weights | {name: weights[source].copy() for name in (left, right)},
            )
        yield (
            f"{left} and {right} exchanged",
            weights | {left: weights[right], right: weights[left]},
        )
    both = np.concatenate([weights["w1"].ravel(), weights["w2"].ravel()])
    half = both.size // 2
    shape = weights["w1"].shape
    yield (
        "in one array",
        weights
        | {
            "w1": both[:half].reshape(shape),
            "w2": both[half:].reshape(shape),
        },
    )
    yield (
        "overlapping",
        weights
        | {
            "w1": both[:half].reshape(shape),
            "w2": both[half // 2 : half // 2 + half].reshape(shape),
        },
    )
    yield "another one that is w2", weights | {"w3": weights["w2"]}


def iter_cases(kind):
    """Yield a title and a case: one, and every other that differs from it in one thing."""
    case = make_case(kind)
    yield "the first", case
    for name, program in iter_programs(case.program):
        yield f"program: {name}", replace(case, program=program)
    for name, weights in iter_weights(case.weights):
        yield f"weights: {name}", replace(case, weights=weights)
    for name, options in change_fields(case.options, OPTION_CHANGES):
        yield f"options: {name}", replace(case, options=options)
    yield (
        "options: accelerator's",
        replace(
            case,
            options=replace(
                case.options, accelerators=(choose_accelerator("openvino", {"precision": "FP32"}),)
            ),
        ),
    )
    for name, numerics in change_fields(case.numerics, NUMERICS_CHANGES):
        yield f"numerics: {name}", replace(case, numerics=numerics)
    yield "no numerics", replace(case, numerics=None)
    for kernels in KernelUse:
        yield f"kernels: {kernels.name}", replace(case, kernels=kernels)
    yield "another operator", make_case(kind, op_type="Sub")
    yield "names exchanged", make_case(kind, ("w2", "w1", "b1", "b2"))
    yield "summands exchanged", make_case(kind, ("w1", "w2", "b2", "b1"))
    yield "other names", make_case(kind, ("v1", "v2", "c1", "c2"))
    if kind == "fp8":
        graph = onnx.ModelProto.FromString(case.program.graph)
        for tensor in graph.graph.initializer[:2]:
            tensor.data_type = F152.data_type
        program = replace(case.program, graph=graph.SerializeToString())
        yield "the other format of 8 bits", replace(case, program=program)


COMPARED = {
    *("model", "weights", "fold", "left_out", "reads"),
    *("rounds", "index_faults", "outputs", "compiled"),
}


def list_parts(lowered):
    """Return everything that a lowered graph computes with. Weights may be inside the model or
    beside it."""
    return (
        inline_weights(lowered).SerializeToString(deterministic=True),
        (lowered.fold, lowered.rounds, bytes(lowered.compiled)),
        (list(lowered.left_out), list(lowered.reads)),
        (list(lowered.outputs), dict(lowered.index_faults)),
    )


def test_every_field_of_a_lowered_graph_is_compared():
    assert {each.name for each in fields(Lowered)} == COMPARED | {"sources"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "poplar-triton"


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
def test_no_two_executables_share_an_entry_unless_their_graphs_are_equal(
    kind, folder, tmp_path, monkeypatch
):
    cases, lowered = {}, {}
    for title, case in iter_cases(kind):
        cases[title] = case
        with suppress(LoadError):  # a program that cannot be lowered has no entry, but may read one
            lowered[title] = case.lower()
    assert len(lowered) > 0.7 * len(cases)
    num_shared = 0
    for number, (first, written) in enumerate(lowered.items()):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"caches {number}"))
        cases[first].entry.write(written)
        for second, case in cases.items():
            shared = case.entry.read()
            if shared is None:
                assert second != first, first
                continue
            assert second in lowered, (first, second)
            assert list_parts(shared) == list_parts(lowered[second]), (first, second)
            num_shared += second != first
    assert num_shared  # copies, other orders, and weights that are read in place


def test_a_model_keeps_its_answers_after_a_file_whose_weights_are_one(folder):
    poison, model = make_case("fp32"), make_case("fp32")
    poison = replace(poison, weights=poison.weights | {"w2": poison.weights["w1"]})
    ones = np.ones((4, SIZE), np.float32)
    for case in (poison, model, poison):
        graph = open_graph(case.program, case.weights, case.options, None)
        w1, w2, b1, b2 = (case.weights[name].astype(float) for name in ("w1", "w2", "b1", "b2"))
        (answer,) = graph.run(["y"], {"x": ones})
        np.testing.assert_allclose(answer, (ones @ w1 + b1) @ w2 + b2, rtol=1e-3, atol=1e-2)


def make_payload(*constants, change=lambda message: None):
    """Return the payload of an executable of these constants, whose message is changed."""
    executable = SimulatedExecutable("file", TARGETS["ipu2"], (), constants=constants)
    payload = executable.serialize()
    size = int.from_bytes(payload[8:16], "little")
    message = pb.Executable.FromString(payload[16 : 16 + size])
    change(message)
    encoded = message.SerializeToString()
    head = payload[:8] + len(encoded).to_bytes(8, "little") + encoded
    start = -(-(16 + size) // 64) * 64
    return head + bytes(-len(head) % 64) + payload[start:]


def set_offsets(*offsets):
    def change(message):
        for constant, offset in zip(message.constants, offsets, strict=True):
            constant.offset = offset

    return change


VECTOR = np.arange(16, dtype=np.float32)
A, B, NONE = (
    Constant.of(name, VECTOR[:size]) for name, size in zip("abc", (16, 16, 0), strict=True)
)


@pytest.mark.parametrize("offsets", [(0, 0), (0, 63), (63, 0), (4, 0), (64, 1)])
def test_constants_that_overlap_are_rejected(offsets):
    payload = make_payload(A, B, change=set_offsets(*offsets))
    with pytest.raises(LoadError, match=r"constants '[ab]' and '[ab]' of the executable overlap"):
        SimulatedExecutable.deserialize(payload)


@pytest.mark.parametrize("offsets", [(0, 64, 0), (64, 0, 64), (0, 64, 17)])
def test_constants_side_by_side_and_empty_ones_are_read(offsets):
    payload = make_payload(A, B, NONE, change=set_offsets(*offsets))
    found = SimulatedExecutable.deserialize(payload).constants
    assert [constant.name for constant in found] == ["a", "b", "c"]


def test_two_constants_of_one_name_are_rejected():
    with pytest.raises(LoadError, match="has 2 constants 'a', expected one"):
        SimulatedExecutable.deserialize(make_payload(A, A))
