"""Tests of runs of several batches: replicas, device iterations, modelled time, mapped
constants."""

import dataclasses
import functools
import math
import mmap
import queue
import threading
import time

import numpy as np
import pytest
from fake_time import FakeTime
from onnx import TensorProto, helper, numpy_helper
from poprt import Compiler, Converter
from sample_models import linear_model
from simipu import Device, Engine, LoadError, SimulatedExecutable
from simipu.chip.clock import DeviceClock
from simipu.chip.target import TARGETS
from simipu.processes.watchdog import Watchdog
from waiting import PATIENCE_SECONDS, wait_until


@functools.cache
def compile_linear(width=4):
    return Compiler.compile(Converter(batch_size=4).convert(linear_model(width=width))).executable


def make_engine(rows, **options):
    executable = compile_linear()
    if not options.pop("independent", True):
        programs = [
            dataclasses.replace(program, row_independent=False) for program in executable.programs
        ]
        executable = dataclasses.replace(executable, programs=tuple(programs))
    engine = Engine(executable, Device(executable.target), **options)
    x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
    taken = []
    engine.pieces = []
    engine.connect_input("h2d_x", lambda most: taken.append(most) or x[:most])
    engine.connect_output("anchor_d2h_z", engine.pieces.append)
    return engine, x, taken


@pytest.mark.parametrize("independent", [True, False])
@pytest.mark.parametrize(("replicas", "iterations"), [(1, 1), (2, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("rows", [1, 4, 5, 8, 13, 24])
def test_a_run_takes_the_batches_of_all_replicas_and_iterations(
    independent, replicas, iterations, rows
):
    engine, x, taken = make_engine(
        rows, replication_factor=replicas, device_iterations=iterations, independent=independent
    )
    capacity = 4 * replicas * iterations
    assert engine.run(5) == min(rows, capacity)
    assert taken == [capacity]
    np.testing.assert_array_equal(np.concatenate(engine.pieces), 2 * x[:capacity])
    assert all(len(piece) <= 4 for piece in engine.pieces)


def test_a_hostile_number_of_iterations_costs_nothing():
    engine, _, _ = make_engine(2, device_iterations=2**62)
    assert engine.run(5) == 2


def make_paced_engine(seconds, **overlap):
    """Return an engine whose batch of 4 rows takes the chip `seconds`, and the host's transfers a
    third of that."""
    engine, x, _ = make_engine(4, paced=True)
    engine.x = x
    engine.device.target = dataclasses.replace(
        TARGETS["ipu2"], clock_hz=round(engine.executable.cycles(5) / seconds)
    )
    programs = [dataclasses.replace(program, **overlap) for program in engine.executable.programs]
    engine.executable = dataclasses.replace(engine.executable, programs=tuple(programs))
    engine.load(5)
    return engine


@pytest.fixture
def fake_time(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr("simipu.chip.clock.time", fake)
    monkeypatch.setattr("simipu.engine.time", fake)
    return fake


def slow_down(engine, fake_time, *cpu_ms):
    """Make the CPU take the given milliseconds for each batch."""
    graph = engine._mains[5].graph
    compute, delays = graph.run, iter(cpu_ms)
    graph.run = lambda *arguments: fake_time.sleep(next(delays) / 1e3) or compute(*arguments)


@pytest.mark.parametrize("way", ["run", "compute"])
def test_an_engine_says_how_late_the_cpu_was_and_waits_only_where_it_was_not(fake_time, way):
    engine = make_paced_engine(0.01)
    batch_ns = round(engine._mains[5].find_timing([]).interval * 1e9)
    slow_down(engine, fake_time, 1, 50, 1)
    for end_ns, late_ns in (
        (batch_ns, 0),
        (batch_ns + 50_000_000, 50_000_000 - batch_ns),
        (2 * batch_ns + 50_000_000, 0),
    ):
        _ = engine.run(5) if way == "run" else engine.compute(5, [engine.x])
        assert (fake_time.now_ns, engine.lateness_ns) == (end_ns, late_ns)


@pytest.mark.parametrize("way", ["run", "compute"])
def test_rows_that_wait_begin_at_the_modelled_end_of_the_run_before(fake_time, way):
    """This holds however late the CPU notices the end. Three batches that are there at first take
    three times their modelled time."""
    engine = make_paced_engine(0.01)
    batch_ns = round(engine._mains[5].find_timing([]).interval * 1e9)
    slow_down(engine, fake_time, 1, 20, 1)
    ends = []
    for _ in range(3):
        _ = engine.run(5, 0) if way == "run" else engine.compute(5, [engine.x], 0)
        ends.append((fake_time.now_ns, engine.lateness_ns))
        fake_time.sleep(0.001)
    late_ns = 21_000_000 - batch_ns
    assert ends == [(batch_ns, 0), (2 * batch_ns + late_ns, late_ns), (3 * batch_ns, 0)]


@pytest.mark.parametrize("way", ["run", "compute"])
@pytest.mark.parametrize("stages", [1, 2])
def test_batches_overlap_on_io_tiles_and_in_pipelines(fake_time, way, stages):
    """Each batch is loaded, computed and stored in three steps. It ends one interval after the
    batch before: the time of the slowest stage."""
    cycles = compile_linear().cycles(5)
    engine = make_paced_engine(
        0.01, overlapped=True, interval_cycles=cycles // stages if stages > 1 else 0
    )
    timing = engine._mains[5].find_timing([])
    assert timing.interval == pytest.approx(0.01 / stages, rel=1e-3)
    assert timing.latency == pytest.approx(3 * timing.interval)
    slow_down(engine, fake_time, *[1] * 6)
    ends = []
    for _ in range(6):
        _ = engine.run(5, 0) if way == "run" else engine.compute(5, [engine.x], 0)
        ends.append(fake_time.now_ns / 1e9)
    assert ends == pytest.approx(
        [timing.latency + number * timing.interval for number in range(6)], abs=1e-6
    )


def test_device_iterations_overlap_within_a_run(fake_time):
    engine = make_paced_engine(0.01, interval_cycles=compile_linear().cycles(5) // 4)
    engine.device_iterations = 3
    timing = engine._mains[5].find_timing([])
    engine.compute(5, [np.concatenate([engine.x] * 3)])
    assert fake_time.now_ns / 1e9 == pytest.approx(timing.latency + 2 * timing.interval, abs=1e-6)
    assert engine.free_at_ns / 1e9 == pytest.approx(3 * timing.interval, abs=1e-6)


def test_an_engine_that_is_not_paced_is_never_late():
    engine, _, _ = make_engine(4)
    engine.run(5)
    assert (engine.lateness_ns, engine.free_at_ns) == (0, None)


def test_a_paced_engine_takes_its_modelled_time():
    engine = make_paced_engine(0.05)
    began = time.monotonic()
    engine.run(5)
    engine.run(5)
    assert time.monotonic() - began >= 0.1


def test_pacing_includes_the_host():
    """The host takes at least 100 us to prepare a batch, however small the program is."""
    engine, _, _ = make_engine(4, paced=True)
    engine.run(5)
    began = time.monotonic()
    for _ in range(100):
        engine.run(5)
    assert time.monotonic() - began >= 100 * 100e-6


def test_a_cancelled_clock_ends_all_waits():
    clock = DeviceClock()
    clock.start(time.perf_counter_ns(), 0)
    began = time.monotonic()
    threading.Timer(0.1, clock.cancel).start()
    clock.advance(1e30, 1e30)
    clock.advance(1e30, 1e30)
    assert 0.1 <= time.monotonic() - began < PATIENCE_SECONDS


def test_skipped_time_is_not_waited_for():
    clock = DeviceClock()
    clock.start(time.perf_counter_ns(), 0)
    began = time.monotonic()
    clock.skip(1000)
    assert time.monotonic() - began < PATIENCE_SECONDS


class Run:
    terminate = False


@pytest.fixture
def watchdog():
    watchdog = Watchdog()
    yield watchdog
    watchdog.close()


def test_a_watchdog_ends_runs_that_are_too_long_and_no_others(watchdog):
    stuck, other, over = [Run() for _ in range(2)], Run(), Run()
    watchdog.begin(other, 300)
    for run in (*stuck, over):
        watchdog.begin(run, 0.05)
    watchdog.end(over)
    wait_until(lambda: all(run.terminate for run in stuck), "the run is ended")
    time.sleep(0.1)
    assert not other.terminate
    assert not over.terminate
    for run in (*stuck, other):
        watchdog.end(run)


def test_a_short_limit_is_kept_while_a_long_one_is_watched(watchdog):
    runs = [Run() for _ in range(3)]
    for run, limit_seconds in zip(runs, (1e300, 300, 0.05), strict=True):
        watchdog.begin(run, limit_seconds)
    wait_until(lambda: runs[2].terminate, "the run is ended")
    for run in runs:
        watchdog.end(run)


def test_a_watchdog_is_woken_once_by_many_runs(watchdog):
    woken = []

    class Errands(queue.SimpleQueue):
        def put(self, errand):
            woken.append(errand)
            super().put(errand)

    watchdog._errands = Errands()
    for _ in range(100):
        run = Run()
        watchdog.begin(run, 300)
        watchdog.end(run)
        # Before it has taken the first time, it may be woken again.
        wait_until(lambda: watchdog._next_look < math.inf, "the watchdog has a time")
    assert woken == [pytest.approx(time.monotonic() + 300, abs=10)]


def test_a_closed_watchdog_has_ended_all_runs_and_lets_only_its_closer_run():
    watchdog = Watchdog()
    ended, started = [], threading.Event()

    def work():
        try:
            while True:
                run = Run()
                watchdog.begin(run, 300)
                started.set()
                while not run.terminate:
                    time.sleep(0.001)
                watchdog.end(run)
        except SystemExit as end:
            ended.append(end)

    thread = threading.Thread(target=work)
    thread.start()
    started.wait(PATIENCE_SECONDS)
    watchdog.close()
    assert not watchdog._runs
    assert not watchdog._thread.is_alive()
    thread.join(PATIENCE_SECONDS)
    assert len(ended) == 1
    run = Run()
    watchdog.begin(run, 0.0)
    watchdog.end(run)
    assert not run.terminate


@pytest.mark.parametrize("runs", [False, True])
def test_a_watchdog_whose_start_is_interrupted_can_be_closed_and_watches_the_next_run(
    monkeypatch, watchdog, runs
):
    start = threading.Thread.start

    def interrupted(thread):
        if runs:
            start(thread)
        raise KeyboardInterrupt

    closed = Watchdog()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        for each in (watchdog, closed):
            with pytest.raises(KeyboardInterrupt):
                each.start()
    closed.close()
    run = Run()
    watchdog.begin(run, 0.05)
    wait_until(lambda: run.terminate, "the run is ended")
    watchdog.end(run)


def test_errands_are_done_in_order_and_before_the_end():
    watchdog = Watchdog()
    done = []
    watchdog.start()
    for number in range(5):
        watchdog.soon(lambda number=number: done.append(number))
    watchdog.close()
    assert done == [0, 1, 2, 3, 4]


def test_constants_are_views_of_the_file(tmp_path):
    """Reading maps the constants: the weights are not copied, however large they are."""
    executable = compile_linear(512)
    assert {constant.name for constant in executable.constants} == {"w"}
    path = tmp_path / "payload"
    path.write_bytes(executable.serialize())
    with path.open("rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    (constant,) = SimulatedExecutable.deserialize(mapped).constants
    assert constant.data.obj is mapped.obj
    array = constant.array()
    assert not array.flags.owndata
    assert array.ctypes.data % 64 == 0


def test_small_weights_stay_in_the_graph():
    assert compile_linear().constants == ()


def test_a_constant_beyond_the_end_is_refused():
    payload = compile_linear(512).serialize()
    with pytest.raises(
        LoadError, match="constant 'w' of the executable: expected 6144 bytes, found 6143"
    ):
        SimulatedExecutable.deserialize(payload[:-1])


@pytest.mark.parametrize("width", [512, 32768])
def test_large_weights_are_not_copied_without_prepacking(width):
    """ONNX Runtime computes with the arrays it receives: a change of the memory changes its
    answers. Small weights are copied."""
    from simipu.engines.computed import GraphOptions
    from simipu.engines.opening import open_graph

    executable = compile_linear(width)
    # Arrays from a file have a little-endian type, which numpy does not take for its own.
    weights = {constant.name: constant.array().astype("<f4") for constant in executable.constants}
    graph = open_graph(
        executable.program(5), weights, GraphOptions(num_threads=1, prepack=False), None
    )
    x = np.ones((1, width), np.float32)
    (before,) = graph.run(["y"], {"x": x})
    weights["w"] += 1
    (after,) = graph.run(["y"], {"x": x})
    assert np.array_equal(before, after) == (not graph.reads_weights) == (width == 512)


def test_mapped_weights_stay_out_of_the_graph():
    from simipu.engines.computed import GraphOptions
    from simipu.engines.program_graphs import lower_program
    from simipu.numerics import KernelUse

    executable = compile_linear(512)
    weights = {constant.name: constant.array() for constant in executable.constants}
    lowered = lower_program(executable.program(5), weights, GraphOptions(), None, KernelUse.NONE)
    assert lowered.weights["w"].ctypes.data == weights["w"].ctypes.data
    assert len(lowered.model) < weights["w"].nbytes


def weight_of_file(name, *shape):
    return TensorProto(
        name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL
    )


def test_only_weights_that_products_and_lookups_alone_read_are_mapped_and_the_model_stays_as_it_is():
    """ONNX Runtime rewrites the weights that other nodes read, or looks for them among its own,
    especially those of a body."""
    from simipu.engines.program_graphs import lower_model

    inner = helper.make_graph(
        [helper.make_node("MatMul", ["x", "captured"], ["r"])],
        "inner",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, [2, 2])],
    )
    outer = helper.make_graph(
        [helper.make_node("If", ["c"], ["s"], then_branch=inner, else_branch=inner)],
        "outer",
        [],
        [helper.make_tensor_value_info("s", TensorProto.FLOAT, [2, 2])],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "alone"], ["a"]),
        helper.make_node("MatMul", ["a", "both"], ["b"]),
        helper.make_node("MatMul", ["b", "captured"], ["d"]),
        helper.make_node("Add", ["d", "both"], ["y"]),
        helper.make_node("If", ["c"], ["z"], then_branch=outer, else_branch=outer),
    ]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "main",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2]),
                helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            ],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "yz"],
            [weight_of_file(name, 2, 2) for name in ("alone", "both", "captured")],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    before = model.SerializeToString(deterministic=True)
    # Arrays from a file have a type that numpy does not take for its own, though it is the same.
    float32 = np.dtype(np.float32).newbyteorder("<")
    values = {
        name: np.full((2, 2), i, float32) for i, name in enumerate(("alone", "both", "captured"))
    }
    lowered, mapped = lower_model(model, values, None)
    assert mapped.keys() == {"alone"}
    assert mapped["alone"] is values["alone"]
    inlined = {
        t.name: numpy_helper.to_array(t)
        for t in lowered.graph.initializer
        if t.HasField("raw_data")
    }
    assert {name: array[0, 0] for name, array in inlined.items()} == {"both": 1, "captured": 2}
    assert model.SerializeToString(deterministic=True) == before


def test_weights_that_onnx_runtime_reads_while_it_loads_are_in_the_graph():
    """A lookup of constant places depends on no input, so the optimiser computes it."""
    from simipu import GraphOptions
    from simipu.engines.computed import OrtGraph
    from simipu.engines.program_graphs import lower_model

    places = numpy_helper.from_array(np.array([1, 0]), "places")
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Gather", ["table", "places"], ["rows"]),
                helper.make_node("MatMul", ["x", "alone"], ["product"]),
                helper.make_node("Add", ["product", "rows"], ["y"]),
            ],
            "main",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])],
            [places, weight_of_file("table", 2, 2), weight_of_file("alone", 2, 2)],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    x, table = np.float32([[1, 2], [3, 4]]), np.float32([[5, 6], [7, 8]])
    lowered, mapped = lower_model(model, {"table": table, "alone": x}, None)
    assert mapped.keys() == {"alone"}
    graph = OrtGraph(lowered.SerializeToString(), mapped, GraphOptions())
    (found,) = graph.run(["y"], {"x": x})
    graph.close()
    np.testing.assert_array_equal(found, x @ x + table[[1, 0]])
