"""Runs whose caller gives the memory for the outputs, and what stays bound from run to run."""

import numpy as np
import pytest
import simipu.engines.computed
from onnx import TensorProto, helper
from poprt import Compiler, Converter
from sample_models import loudness_model, make_model
from simipu import Device, Engine, GraphOptions, ProgramKind, RunError, RunTimeoutError
from simipu.engines.computed import Lowered, make_graph
from simipu.processes.watchdog import Watchdog


def run_engine(model, x, out, **options):
    """Return the outputs of a model without weights, compiled for a batch of 4."""
    executable = Compiler.compile(Converter(batch_size=4).convert(model)).executable
    engine = Engine(executable, Device(executable.target), **options)
    (index,) = (each.index for each in executable.programs if each.kind is ProgramKind.MAIN)
    return engine.compute(index, [x], out=out)


def make_ort_graph(model, **options):
    return make_graph(Lowered(model.SerializeToString(), {}), GraphOptions(**options), "m")


def reshaped_model():
    """Return a model whose output has the shape that an input says."""
    return make_model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        {"x": (TensorProto.FLOAT, ["n"]), "shape": (TensorProto.INT64, [2])},
        {"y": (TensorProto.FLOAT, ["a", "b"])},
        {},
    )


@pytest.mark.parametrize("width", [4, 4096])
def test_given_memory_holds_the_same_values_as_new_memory(width):
    nodes = [helper.make_node("Mul", ["x", "x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    spec = (TensorProto.FLOAT, ["n", width])
    graph = make_ort_graph(make_model(nodes, {"x": spec}, {"y": spec, "z": spec}, {}))
    random = np.random.default_rng(0)
    for rows in (1, 1, 3, 2, 2, 1):
        x = random.standard_normal((rows, width), dtype=np.float32)
        out = [np.empty_like(x), np.empty_like(x)]
        for _ in range(2):
            x = x + 1
            found = graph.run(["y", "z"], {"x": x}, out)
            assert all(a is b for a, b in zip(found, out, strict=True))
            np.testing.assert_array_equal(out[0], x * x)
            np.testing.assert_array_equal(out[1], -x)


@pytest.mark.parametrize("width", [2, 40_000])
def test_inputs_of_a_view_and_of_one_shape_after_another_are_read_anew(width):
    spec = (TensorProto.FLOAT, ["n", "m"])
    graph = make_ort_graph(
        make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": spec}, {"y": spec}, {})
    )
    transposed = np.arange(3 * width, dtype=np.float32).reshape(width, 3).T
    for x in (np.ones((3, width), np.float32), transposed, transposed[:2]):
        out = [np.empty(x.shape, np.float32)]
        graph.run(["y"], {"x": x}, out)
        np.testing.assert_array_equal(out[0], -x)


def test_memory_of_another_shape_than_the_result_is_refused_and_not_written_to():
    graph = make_ort_graph(reshaped_model())
    x, shape = np.arange(6, dtype=np.float32), np.array([2, 3])
    memory = np.zeros(12, np.float32)
    with pytest.raises(RunError):
        graph.run(["y"], {"x": x, "shape": shape}, [memory[:4].reshape(2, 2)])
    assert not memory.any()
    found = [memory[:6].reshape(2, 3)]
    graph.run(["y"], {"x": x, "shape": shape}, found)
    np.testing.assert_array_equal(memory, [*x, *[0] * 6])


def test_memory_of_another_type_than_the_output_of_a_graph_is_never_used():
    spec = (TensorProto.FLOAT, ["n"])
    graph = make_ort_graph(
        make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": spec}, {"y": spec}, {})
    )
    assert graph.can_fill(["y"], [np.dtype(np.float32)])
    for other in (np.float64, np.float16, np.int32, np.bool_):
        assert not graph.can_fill(["y"], [np.dtype(other)])


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda memory: memory[::2], "contiguous"),
        (lambda memory: np.broadcast_to(memory[:1], 4), "written to"),
        (lambda memory: memory.view(np.float16)[:4], "found float16"),
    ],
)
def test_memory_that_cannot_hold_an_output_is_refused_and_not_written_to(spoil, told):
    spec = (TensorProto.FLOAT, ["n"])
    graph = make_ort_graph(
        make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": spec}, {"y": spec}, {})
    )
    memory = np.zeros(8, np.float32)
    with pytest.raises(RunError, match=f"output 'y': .*{told}"):
        graph.run(["y"], {"x": np.ones(4, np.float32)}, [spoil(memory)])
    assert not memory.any()


def test_an_engine_uses_given_memory_for_part_of_a_batch_and_a_whole_one():
    spec = (TensorProto.FLOAT, ["n", 4])
    model = make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": spec}, {"y": spec}, {})
    for rows in (1, 3, 4):
        x, out = np.full((rows, 4), rows, np.float32), np.empty((rows, 4), np.float32)
        (y,) = run_engine(model, x, [out])
        assert y is out
        np.testing.assert_array_equal(y, -x)


@pytest.mark.parametrize(("rows", "iterations"), [(2, 1), (8, 2)])
def test_an_engine_leaves_given_memory_alone_when_it_pads_or_joins_batches(rows, iterations):
    x, out = np.ones((rows, 4), np.float32), np.full((rows, 4), 7, np.float32)
    (y,) = run_engine(loudness_model(), x, [out], device_iterations=iterations)
    assert y.shape == (rows, 4)
    assert (out == 7).all()


def test_a_termination_that_comes_too_late_does_not_end_the_next_run(monkeypatch):
    watchdog = Watchdog()
    monkeypatch.setattr(simipu.engines.computed, "WATCHDOG", watchdog)
    spec = (TensorProto.FLOAT, ["n"])
    graph = make_ort_graph(
        make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": spec}, {"y": spec}, {})
    )
    x = np.ones(1, np.float32)
    used = []
    for _ in range(2):
        graph.run(["y"], {"x": x})
        used.append(graph._run_options)
    assert used[0] is used[1]
    watchdog._look()
    used[1].terminate = True  # by a look that found the run before it ended
    np.testing.assert_array_equal(graph.run(["y"], {"x": x})[0], -x)
    watchdog.close()


def test_a_run_that_was_ended_does_not_end_the_next_one(monkeypatch):
    class Ended(Watchdog):
        def begin(self, run, limit_seconds):
            run.terminate = True

    spec = (TensorProto.FLOAT, ["n"])
    graph = make_ort_graph(
        make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": spec}, {"y": spec}, {})
    )
    x = np.ones(1, np.float32)
    graph.run(["y"], {"x": x})
    monkeypatch.setattr(simipu.engines.computed, "WATCHDOG", Ended())
    with pytest.raises(RunTimeoutError):
        graph.run(["y"], {"x": x})
    monkeypatch.undo()
    np.testing.assert_array_equal(graph.run(["y"], {"x": x})[0], -x)
