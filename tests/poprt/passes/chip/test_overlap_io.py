"""Tests of I/O tiles: transfers overlap with computation, in the estimate and on a paced device
that enough threads feed."""

import numpy as np
import onnx
import pytest
from model_runtime import Session
from model_runtime.session import SessionConfig
from onnx import TensorProto, helper
from poprt import Compiler, CompilerOptions, get_pass
from poprt.compile.executable import Executable
from sample_models import make_model
from simipu import CompileError

F = TensorProto.FLOAT


def host_bound(rows=1024, width=512):
    """Return a model with much to transfer and little to compute."""
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="relu")]
    return make_model(nodes, {"x": (F, [rows, width])}, {"y": (F, [rows, width])}, {})


def busy(width=1024, layers=12):
    """Return a model whose transfers take about as long as its computation."""
    names = ["x", *(f"h{i}" for i in range(1, layers)), "y"]
    nodes = [
        helper.make_node("MatMul", [names[i], "w"], [names[i + 1]], name=f"m{i}")
        for i in range(layers)
    ]
    weight = np.eye(width, dtype=np.float32)
    return make_model(nodes, {"x": (F, [width, width])}, {"y": (F, [width, width])}, {"w": weight})


def open_paced(model, **options) -> Session:
    compiled = Compiler.compile(model, None, CompilerOptions(**options))
    return Session(compiled.getPopefModel(), SessionConfig(paced=True))


@pytest.mark.slow
def test_overlap_hides_the_shorter_of_transfers_and_computing():
    plain, overlapped = open_paced(busy()), open_paced(busy(), num_io_tiles=64)
    assert overlapped.modelled_seconds < 0.8 * plain.modelled_seconds
    assert plain.runs_at_once == 1


def test_three_threads_keep_the_chip_busy():
    """While one thread loads, computes or stores a batch, the others do the other steps."""
    session = open_paced(host_bound(), num_io_tiles=64)
    assert session.runs_at_once == 3


def test_a_paced_device_computes_as_many_batches_as_it_is_fed():
    """The test uses the modelled clock and measures no wall time."""
    session = open_paced(host_bound(), num_io_tiles=64)
    session.runLoadPrograms()
    x = np.zeros((1024, 512), np.float32)
    start = session._engine.free_at_ns
    session.run({"x": x}, 0)
    session.run({"x": x}, 0)
    assert session._engine.free_at_ns - start == pytest.approx(
        2e9 * session.modelled_seconds, abs=2
    )


@pytest.mark.parametrize("tiles", [2, 30, 33])
def test_a_number_of_tiles_that_popart_would_not_take_is_refused(tiles):
    with pytest.raises(
        CompileError,
        match=f"num_io_tiles: expected 0, or an even number of at least 32 .*found {tiles}",
    ):
        Compiler.compile(host_bound(), None, CompilerOptions(num_io_tiles=tiles))


def compiled_tiles(model, **options):
    made: Executable = Compiler.compile(model, None, CompilerOptions(**options))
    return int(dict(made.executable.compile_options).get("num_io_tiles", 0))


def test_the_pass_chooses_the_tiles_by_the_size_of_inputs_and_outputs():
    assert compiled_tiles(host_bound()) == 0
    assert compiled_tiles(get_pass("overlap_io")(host_bound(64))) == 32
    # 2 x 32 MiB over 638,976 bytes are 105.1 tiles.
    large = get_pass("overlap_io")(host_bound(16_384))
    assert [entry.value for entry in large.metadata_props] == ["128"]
    assert compiled_tiles(get_pass("overlap_io")(host_bound(64)), num_io_tiles=64) == 64


@pytest.mark.parametrize("written", ["x", "-1", "99999", "33", "1" * 5_000])
def test_a_model_that_asks_for_no_number_of_tiles_is_refused(written):
    model = host_bound(64)
    onnx.helper.set_model_props(model, {"poprt.num_io_tiles": written})
    with pytest.raises(CompileError, match="num_io_tiles"):
        Compiler.compile(model)
