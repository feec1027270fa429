"""Tests of executables: they survive serialisation, foreign ones are rejected, and their programs
run."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import simipu
from onnx import TensorProto, helper, numpy_helper
from poprt import Compiler, CompilerOptions, Converter
from sample_models import linear_model
from simipu import (
    Device,
    Direction,
    Engine,
    LoadError,
    Program,
    ProgramKind,
    RunError,
    SimulatedExecutable,
    Stream,
)
from simipu.chip.target import TARGETS, find_target
from simipu.engines.opening import BranchedGraph
from simipu.errors import RunCancelledError


def compile_executable(model, batch=4, **options):
    return Compiler.compile(
        Converter(batch_size=batch).convert(model), None, CompilerOptions(**options)
    ).executable


def connect(engine, x):
    """Feed rows of x and collect the outputs."""
    collected = {}
    engine.connect_input("h2d_x", lambda most: x[:most])
    for name in ("y", "z"):
        engine.connect_output(
            f"anchor_d2h_{name}", lambda rows, name=name: collected.__setitem__(name, rows)
        )
    return collected


def test_an_executable_survives_serialisation(linear):
    executable = compile_executable(linear)
    assert SimulatedExecutable.deserialize(executable.serialize()) == executable
    assert executable.serialize() == compile_executable(linear).serialize()


@pytest.mark.parametrize("payload", [b"", b"\x00", b"machine code", bytes(1000), b"\xff" * 100])
def test_foreign_payloads_are_refused_with_a_reason(payload):
    with pytest.raises(LoadError, match="poprt"):
        SimulatedExecutable.deserialize(payload)


def test_another_package_hash_is_refused_unless_the_check_is_off(linear):
    other = dataclasses.replace(compile_executable(linear), package_hash="0123456789")
    with pytest.raises(LoadError, match=r"package hash \(0123456789\) differs from poplar hash"):
        SimulatedExecutable.deserialize(other.serialize())
    assert SimulatedExecutable.deserialize(other.serialize(), check_package_hash=False) == other


def test_every_truncation_of_an_executable_is_refused(linear):
    payload = compile_executable(linear).serialize()
    for size in range(0, len(payload), 7):
        try:
            SimulatedExecutable.deserialize(payload[:size])
        except LoadError:
            continue
        pytest.fail(f"the first {size} bytes of {len(payload)} passed")


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_only_the_rows_given_are_computed(linear, rows):
    executable = compile_executable(linear)
    assert executable.program(5).row_independent
    engine = Engine(executable, Device(executable.target))
    x = np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)
    collected = connect(engine, x)
    assert engine.run(5) == rows
    assert collected["y"].shape == (rows, 3)
    np.testing.assert_array_equal(collected["z"], 2 * x)


def test_a_dependent_program_is_padded_and_gives_back_the_real_rows(linear):
    executable = compile_executable(linear)
    programs = tuple(
        dataclasses.replace(program, row_independent=False) for program in executable.programs
    )
    engine = Engine(dataclasses.replace(executable, programs=programs), Device(executable.target))
    x = np.ones((3, 4), np.float32)
    collected = connect(engine, x)
    assert engine.run(5) == 3
    assert collected["z"].shape == (3, 4)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (
            np.ones((2, 5), np.float32),
            r"expected float32 of shape \(2, 4\), found float32 of shape \(2, 5\)",
        ),
        (np.ones((2, 4), np.float64), "found float64"),
    ],
)
def test_a_stream_of_another_shape_or_type_is_refused(linear, value, reason):
    executable = compile_executable(linear)
    engine = Engine(executable, Device(executable.target))
    connect(engine, value)
    with pytest.raises(RunError, match=reason):
        engine.run(5)


def test_unconnected_and_unknown_streams_are_named(linear):
    executable = compile_executable(linear)
    engine = Engine(executable, Device(executable.target))
    with pytest.raises(RunError, match=r"'h2d_x'.*not connected"):
        engine.run(5)
    with pytest.raises(RunError, match=r"h2d_nothing.*it has h2d_x"):
        engine.connect_input("h2d_nothing", lambda most: np.zeros(0))


def test_streamed_weights_must_be_loaded_first(linear):
    executable = compile_executable(linear, constant_weights=False)
    engine = Engine(executable, Device(executable.target))
    connect(engine, np.ones((1, 4), np.float32))
    with pytest.raises(LoadError, match="run the load program"):
        engine.run(5)


def loadable_engine(linear, factor):
    """Return an engine of a model whose weights are streamed, and the weights times `factor`."""
    executable = compile_executable(linear, constant_weights=False)
    engine = Engine(executable, Device(executable.target))
    weights = {
        tensor.name: factor * numpy_helper.to_array(tensor) for tensor in linear.graph.initializer
    }
    for stream in executable.program(0).streams:
        engine.connect_input(
            stream.handle, lambda most, stream=stream: weights[stream.tensor][None]
        )
    return engine, weights


def test_weights_come_with_the_load_program_and_new_ones_with_the_next():
    linear = linear_model()
    engine, weights = loadable_engine(linear, 1)
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    collected = connect(engine, x)
    for _ in range(2):
        assert engine.run(0) == 0, "a load program computes no rows"
        engine.run(5)
        expected = np.maximum(x @ weights["w"] + weights["b"], 0)
        np.testing.assert_allclose(collected["y"], expected, rtol=1e-5, atol=1e-6)
        weights["w"] = -weights["w"]


def test_a_save_program_gives_back_what_was_loaded_to_those_who_are_connected():
    engine, weights = loadable_engine(linear_model(), 3)
    streams = [
        dataclasses.replace(
            stream, handle=f"save_{stream.tensor}", direction=Direction.DEVICE_TO_HOST
        )
        for stream in engine.executable.program(0).streams
    ]
    save = Program(7, "save_program", ProgramKind.SAVE, tuple(streams))
    engine.executable = dataclasses.replace(
        engine.executable, programs=(*engine.executable.programs, save)
    )
    saved = {}
    engine.connect_output("save_w", lambda rows: saved.update(w=rows))
    with pytest.raises(
        RunError, match=r"there is no 'w' on the device; run the load program first"
    ):
        engine.run(7)
    engine.run(0)
    assert engine.run(7) == 0
    np.testing.assert_array_equal(saved["w"], weights["w"][None])


def test_an_unloaded_engine_wants_its_weights_again():
    engine, _ = loadable_engine(linear_model(), 1)
    connect(engine, np.ones((1, 4), np.float32))
    engine.run(0)
    engine.run(5)
    engine.unload()
    with pytest.raises(LoadError, match="run the load program"):
        engine.run(5)


@pytest.mark.parametrize("loaded", [True, False])
def test_a_cancelled_engine_runs_nothing_any_more_whether_it_was_loaded_or_not(linear, loaded):
    executable = compile_executable(linear)
    engine = Engine(executable, Device(executable.target))
    connect(engine, np.ones((1, 4), np.float32))
    if loaded:
        engine.load(5)
    engine.cancel()
    with pytest.raises(RunCancelledError):
        engine.run(5)


@pytest.mark.parametrize("version", [b"00", b"99", b"xx"])
def test_payloads_of_other_versions_are_refused(linear, version):
    payload = bytearray(compile_executable(linear).serialize())
    payload[6:8] = version
    with pytest.raises(
        LoadError, match=f"has format version {version.decode()}, this simulator reads"
    ):
        SimulatedExecutable.deserialize(bytes(payload))


def test_streams_that_agree_on_no_number_of_rows_have_no_batch():
    def program(*shapes):
        float32 = np.dtype(np.float32)
        streams = (Stream("s", "s", Direction.HOST_TO_DEVICE, float32, shape) for shape in shapes)
        return Program(5, "main", ProgramKind.MAIN, tuple(streams))

    assert program((4, 3), (4,)).batch_size == 4
    assert program((4, 3), (5,)).batch_size == 0
    assert program((4, 3), ()).batch_size == 0
    assert program(()).batch_size == 0


@pytest.mark.parametrize("graph", [b"\xff\xff", b"", b"not a graph"])
def test_a_damaged_graph_is_refused(linear, graph):
    executable = compile_executable(linear)
    programs = tuple(
        dataclasses.replace(p, graph=graph) if p.index == 5 else p for p in executable.programs
    )
    engine = Engine(dataclasses.replace(executable, programs=programs), Device(executable.target))
    with pytest.raises(LoadError, match="program 5"):
        engine.load(5)


def test_operators_without_a_kernel_of_onnx_runtime_run_on_the_onnx_reference(caplog):
    """Abs of bfloat16 is valid ONNX that ONNX Runtime's CPU provider does not implement."""
    shape = [2, 3]
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["narrow"], to=TensorProto.BFLOAT16),
            helper.make_node("Abs", ["narrow"], ["positive"]),
            helper.make_node("Cast", ["positive"], ["y"], to=TensorProto.FLOAT),
        ],
        "bfloat16",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    float32 = np.dtype(np.float32)
    streams = (
        Stream("h2d_x", "x", Direction.HOST_TO_DEVICE, float32, (2, 3)),
        Stream("anchor_d2h_y", "y", Direction.DEVICE_TO_HOST, float32, (2, 3)),
    )
    program = Program(5, "main", ProgramKind.MAIN, streams, model.SerializeToString())
    executable = SimulatedExecutable("bfloat16", TARGETS["ipu2"], (program,))
    engine = Engine(executable, Device(executable.target))
    collected = {}
    engine.connect_input("h2d_x", lambda most: -np.ones((2, 3), np.float32))
    engine.connect_output("anchor_d2h_y", lambda rows: collected.update(y=rows))
    engine.run(5)
    np.testing.assert_array_equal(collected["y"], np.ones((2, 3)))
    assert "slow onnx reference" in caplog.text


def test_a_device_of_another_kind_or_number_is_refused(linear):
    executable = compile_executable(linear)
    for target in (TARGETS["ipu2"], find_target("ipu21", 4)):
        with pytest.raises(LoadError, match="compiled for 1 x ipu21"):
            Engine(executable, Device(target))


def test_the_chips_are_those_of_the_data_sheets():
    assert {name: target.tiles_per_ipu for name, target in TARGETS.items()} == {
        "ipu1": 1216,
        "ipu2": 1472,
        "ipu21": 1472,
        "bow": 1472,
        "ipumodel": 1472,
    }
    # Peak fp16 TFLOPS of the data sheets: 124.5, 250, 280, 350.
    peaks = {
        n: 2 * t.half_macs_half_partials * t.num_tiles * t.clock_hz / 1e12
        for n, t in TARGETS.items()
    }
    assert {name: round(peak) for name, peak in peaks.items()} == {
        "ipu1": 125,
        "ipu2": 251,
        "ipu21": 283,
        "bow": 349,
        "ipumodel": 251,
    }


def test_an_unknown_target_lists_the_known_ones():
    with pytest.raises(LoadError, match="bow, c600, gc2, gc200, ipu1, ipu2, ipu21, "):
        find_target("ipu3")


def test_the_public_names_exist():
    assert all(hasattr(simipu, name) for name in simipu.__all__)


@pytest.mark.parametrize(
    ("width", "isolated", "reads"),
    [(4, False, False), (1 << 10, False, False), (1 << 16, False, True), (1 << 10, True, True)],
)
def test_an_engine_reads_files_until_its_programs_hold_all_weights(width, isolated, reads):
    """A child process that dies is replaced by one that is sent the weights again."""
    executable = compile_executable(linear_model(width))
    engine = Engine(executable, Device(executable.target), isolated=isolated)
    assert engine.reads_files
    engine.load(next(p.index for p in executable.programs if p.kind is ProgramKind.MAIN))
    assert engine.reads_files is reads
    engine.unload()
    assert engine.reads_files


@pytest.mark.parametrize("reads", [(False, False), (False, True), (True, False)])
def test_a_fused_program_reads_weights_if_a_branch_does(reads):
    graphs = [SimpleNamespace(kernels="none", reads_weights=value) for value in reads]
    assert BranchedGraph(SimpleNamespace(streams=()), graphs).reads_weights is any(reads)
