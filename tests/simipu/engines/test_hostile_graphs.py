"""Tests of hostile executables: small files that require endless time or memory, or values that
they do not contain. In this process and in a child, each is rejected by name or ended by a limit,
and the engine works again afterwards."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys

import hostile_graphs as hostile
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnxgraph import GraphError, check_graph
from simipu import (
    Constant,
    Device,
    Engine,
    GraphOptions,
    LoadError,
    RunError,
    RunTimeoutError,
    SimulatedExecutable,
)
from simipu.engines import arenas, computed
from simipu.engines.computed import ORT_VERSION
from simipu.engines.isolation import IsolatedGraph
from simipu.errors import LoadMemoryError, LoadTimeoutError, RunMemoryError

ONES = [np.ones(4, np.float32)]
ISOLATED = pytest.mark.parametrize(
    "isolated", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["here", "isolated"]
)


@pytest.fixture
def load():
    engines = []

    def build(model, isolated=False, constants=(), *, paced=False, cycles=1000, **options):
        executable = hostile.make_executable(model, constants, cycles=cycles)
        executable = SimulatedExecutable.deserialize(executable.serialize())
        graph_options = GraphOptions(num_threads=1, **options)
        engine = Engine(
            executable,
            Device(executable.target),
            graph_options=graph_options,
            isolated=isolated,
            paced=paced,
        )
        engines.append(engine)
        engine.load(5)
        return engine

    yield build
    for engine in engines:
        engine.unload()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (hostile.function_bomb(), "functions or training steps of its own"),
        (hostile.concat_bomb(), r"a shape of 2\.2e\+12 numbers"),
        (hostile.nested_graphs(), "inside nodes more than 16 deep"),
        (hostile.outside_constant("zero"), "refers to a file"),
        (hostile.outside_of_branch("zero"), "'c' refers to a file"),
        (hostile.outside_of_sparse("zero"), "refers to a file"),
        (hostile.large_constant(), "tensor 'c' takes 4398046511104 bytes, more than the limit of"),
        (
            hostile.dear_product(),
            r"multiply-adds, more than 1 cores can do within the limit of 300 s",
        ),
        (hostile.endless_loop(), "trip count of Loop .*: expected at most 2147483647, found 46116"),
        (hostile.nested_loops(), "runs 1152921504606846976 times, and nothing ends it before"),
        (hostile.countless_loop(), "runs 9223372036854775808 times, and nothing ends it before"),
        (hostile.kernel_node(), "has a node of domain 'simipu', which no file may have"),
        (
            hostile.odd_equation("......i,i->..."),
            "has the equation '......i,i->...' for 2 inputs; expected",
        ),
        (hostile.string_doublings(), "node 'Cast' makes strings; expected tensors of numbers"),
        (hostile.constant_strings(), "node 'Constant' makes strings"),
        (hostile.string_weight(), "tensor 's' holds strings"),
        (hostile.declared_sequence(), "tensor 'z' is declared as sequence_type"),
        (
            hostile.sequence(),
            "operator SequenceConstruct .* is not supported: the IPU has tensors only",
        ),
        (hostile.optional(), "operator Optional .* is not supported: the IPU has tensors only"),
        (hostile.label_strings(), "'LabelEncoder' has an operator of domain ai.onnx.ml"),
    ],
    ids=(
        "functions concat nested constant branch sparse large dear endless nested-loops countless kernel equation doublings "
        "constant-strings string-weight declared sequence optional labels"
    ).split(),
)
def test_refused_before_anything_reads_it(load, model, message):
    with pytest.raises(LoadError, match=message):
        load(model)


def test_a_child_refuses_the_same(load):
    with pytest.raises(LoadError, match="'c' refers to a file"):
        load(hostile.outside_of_branch("zero"), isolated=True)


@pytest.mark.slow
@ISOLATED
def test_constants_are_not_folded_without_end(load, isolated):
    """The load ends at once; the run ends at its time limit."""
    engine = load(hostile.constant_chain(), isolated, limit_seconds=1.0)
    with pytest.raises(RunTimeoutError, match="limit of 1 s"):
        engine.compute(5, ONES)


@ISOLATED
def test_a_loop_ends_at_its_limit(load, isolated):
    engine = load(hostile.endless_loop(condition="And"), isolated, limit_seconds=0.5)
    with pytest.raises(RunTimeoutError, match=r"limit of 0\.5 s"):
        engine.compute(5, ONES)


@pytest.mark.skipif(
    ORT_VERSION < (1, 23), reason="ONNX Runtime before 1.23 keeps to the first limit of a process"
)
@ISOLATED
def test_memory_of_a_run_is_limited(load, isolated):
    engine = load(hostile.hidden_large_tensor(1 << 27), isolated, memory_bytes=1 << 26)
    with pytest.raises(RunMemoryError, match="limit of 67108864 bytes of memory"):
        engine.compute(5, ONES)
    larger = load(hostile.hidden_large_tensor(1 << 24), isolated, memory_bytes=1 << 28)
    np.testing.assert_array_equal(larger.compute(5, ONES)[0], ONES[0])


@ISOLATED
def test_memory_of_a_load_is_limited(load, isolated):
    with pytest.raises(LoadMemoryError, match="more than the limit of 1048576"):
        load(hostile.large_constant(1 << 20), isolated, memory_bytes=1 << 20)


def test_loads_at_the_same_time_take_no_memory_from_each_other(monkeypatch):
    """Only the last of the loads returns the arena: the others may not have taken theirs yet."""
    registered = []
    monkeypatch.setattr(arenas, "_register_arena", registered.append)
    with arenas.ARENAS.of(5):
        with arenas.ARENAS.of(7):
            pass
        assert registered == [5, 7]
    assert registered == [5, 7, 1]


@pytest.mark.skipif(
    ORT_VERSION < (1, 21),
    reason="nothing ends a load of ONNX Runtime before 1.21 but the end of its process",
)
@ISOLATED
def test_time_of_a_load_is_limited(load, isolated):
    nodes = [
        helper.make_node("Relu", ["x" if i == 0 else f"t{i}"], [f"t{i + 1}"]) for i in range(5_000)
    ]
    model = hostile.make_model([*nodes, helper.make_node("Relu", [nodes[-1].output[0]], ["y"])])
    with pytest.raises(LoadTimeoutError, match=r"within 0\.001 s"):
        load(model, isolated, ready_seconds=0.001)


def test_a_stuck_load_costs_the_child(load, monkeypatch):
    """If ONNX Runtime does not end the load itself, it ends with the child process."""
    start = IsolatedGraph._start

    def start_and_stop(graph):
        start(graph)
        os.kill(graph.pid, signal.SIGSTOP)

    monkeypatch.setattr("simipu.engines.isolation._GRACE_SECONDS", 0.1)
    monkeypatch.setattr(IsolatedGraph, "_start", start_and_stop)
    with pytest.raises(LoadTimeoutError, match=r"within 0\.5 s, and its process was ended"):
        load(hostile.make_model([helper.make_node("Relu", ["x"], ["y"])]), True, ready_seconds=0.5)


@ISOLATED
def test_a_weight_of_another_shape_is_refused(load, isolated):
    """ONNX Runtime would read beyond the end of the weight."""
    stub = hostile.elsewhere("w", "device", [1 << 20, 4])
    nodes = [helper.make_node("MatMul", ["w", "x"], ["c"]), *hostile.added("c")]
    constant = Constant("w", np.dtype(np.float32), (1, 4), np.ones(4, np.float32).tobytes())
    with pytest.raises(
        LoadError,
        match=r"weight 'w' of shape \[1048576, 4\], found shape \[1, 4\]",
    ):
        load(hostile.make_model(nodes, [stub]), isolated, [constant])


@ISOLATED
@pytest.mark.parametrize("cycles", [2**62, 2**64 - 1])
def test_a_paced_run_has_the_same_limit(load, isolated, cycles):
    engine = load(
        hostile.make_model([helper.make_node("Relu", ["x"], ["y"])]),
        isolated,
        paced=True,
        cycles=cycles,
    )
    for _ in range(2):
        with pytest.raises(
            RunTimeoutError, match="s on the modelled device, longer than its limit of 300 s"
        ):
            engine.compute(5, ONES)


@pytest.mark.slow
def test_the_onnx_reference_has_limits_too(load):
    """The reference runs in a child process: nothing in this process could end it."""
    model = hostile.endless_loop(condition="And")
    body = model.graph.node[0].attribute[0].g
    body.node.insert(1, helper.make_node("Cast", ["v"], ["narrow"], to=TensorProto.BFLOAT16))
    body.node.insert(2, helper.make_node("Abs", ["narrow"], ["positive"]))
    engine = load(model, limit_seconds=1.0)
    with pytest.raises(RunTimeoutError, match="limit of 1 s"):
        engine.compute(5, ONES)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dtype", "object", "expected a type"),
        ("dtype", "S1000", "expected a type"),
        ("shape", (1 << 40, 1 << 40), "elements, found"),
        ("shape", (-1,), "elements, found"),
        ("shape", (1,) * 40, "expected a shape of at most 32 axes"),
    ],
)
def test_streams_are_checked(field, value, message):
    executable = hostile.make_executable(
        hostile.make_model([helper.make_node("Relu", ["x"], ["y"])])
    )
    (main,) = executable.programs

    class Named:
        name = value

    stream = dataclasses.replace(main.streams[0], **{field: Named if field == "dtype" else value})
    changed = dataclasses.replace(main, streams=(stream, main.streams[1]))
    payload = dataclasses.replace(executable, programs=(changed,)).serialize()
    with pytest.raises(LoadError, match=message):
        SimulatedExecutable.deserialize(payload)


def test_data_of_another_size_than_the_shape_is_refused():
    tensor = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[1 << 40], raw_data=b"1234")
    with pytest.raises(GraphError, match="size of its data does not match"):
        check_graph(hostile.make_model(hostile.added("c"), [tensor]))


@pytest.mark.parametrize(
    "equation",
    [
        "......i,i->...",
        "i...i..., i",
        "i,i->j",
        "i,i->ii",
        "i,i,i",
        "i",
        "i.,i",
        "i,i->i->i",
        "i,\x00",
        "..i,i",
    ],
)
def test_equations_of_another_grammar_are_refused(equation):
    for hidden in (False, True):
        with pytest.raises(GraphError, match=r"has the equation .* for 2 inputs; expected letters"):
            check_graph(hostile.odd_equation(equation, hidden=hidden))


@pytest.mark.parametrize("equation", ["i,i", "i, i ->", "i...,...i->...i", "i,j->ij", "...,..."])
def test_equations_of_the_grammar_pass(equation):
    check_graph(hostile.odd_equation(equation))


def test_refused_values_do_not_cost_the_engine(load):
    engine = load(hostile.hidden_large_tensor(4))
    with pytest.raises(RunError):
        engine.compute(5, [np.full(4, -1000, np.float32)])
    np.testing.assert_array_equal(engine.compute(5, ONES)[0], ONES[0])


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Concat", ["x", "x"], ["y"], axis=0),
        helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE),
        helper.make_node("ReduceMax", ["x"], ["y"], keepdims=0),
        helper.make_node("Unsqueeze", ["x", "one"], ["y"]),
    ],
    ids=["rows", "type", "scalar", "rank"],
)
def test_a_graph_gives_what_its_streams_say(load, node):
    model = hostile.make_model([node], [hostile.whole([1], "one")])
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.Clear()
    with pytest.raises((RunError, LoadError)):
        load(model).compute(5, ONES)


def test_nothing_lies_where_onnx_runtime_looks_for_files():
    assert [path.name for path in computed.NO_DATA.parent.iterdir()] == ["empty"]
    assert not computed.NO_DATA.stat().st_size


def test_a_process_with_a_lower_limit_keeps_it():
    script = (
        "import resource; from popef._tools.memory import limit_memory\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 32, 1 << 32)); limit_memory(1 << 40); "
        "limit_memory(1 << 31)\nlimit_memory(1 << 33); "
        "print(resource.getrlimit(resource.RLIMIT_DATA))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["(2147483648,", "2147483648)"]
