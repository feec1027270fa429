"""A model's files are loaded in a child process with limits before this process loads them.

Files that loaded so, or in the dry run of a compilation, are known.
"""

import dataclasses
import itertools
import os
import subprocess
import sys
from types import SimpleNamespace

import hostile_graphs as hostile
import numpy as np
import pytest
import simipu
from frozen_inputs import scale_model, write_data
from onnx import TensorProto, helper, numpy_helper
from sample_models import linear_model, make_model, write_executable
from simipu import LoadError, known_files
from simipu.known_files import KNOWN_FILES
from triton_poplar import sessions
from triton_poplar.errors import ModelConfigError
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState
from triton_poplar.request import Request
from waiting import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


@pytest.fixture
def tried(monkeypatch):
    """Return the names of models to load in a child process; no child process is started."""
    names = []
    monkeypatch.setattr(simipu, "try_in_child", lambda trial, options, label: names.append(label))
    return names


@pytest.fixture
def make_state(tmp_path):
    def make(model=None, *, batch=0, **parameters):
        folder = tmp_path / "model" / "1"
        if model is not None:
            folder.mkdir(parents=True, exist_ok=True)
            write_executable(folder / "executable.popef", hostile.make_executable(model))
        entries = {name: {"string_value": value} for name, value in parameters.items()}
        return ModelState({"name": "model", "max_batch_size": batch, "parameters": entries}, folder)

    return make


def relu():
    return hostile.make_model([helper.make_node("Relu", ["x"], ["y"])])


def load(state):
    instance = ModelInstanceState(state, "model_0")
    instance.close()


def test_unknown_files_are_loaded_once_in_a_child(make_state, tried):
    state = make_state(relu())
    load(state)
    load(state)
    assert tried == ["model 'model'"]
    load(make_state(hostile.make_model([helper.make_node("Abs", ["x"], ["y"])])))
    assert tried == ["model 'model'"] * 2


def test_a_graph_for_which_there_is_no_kernel_is_loaded_first(make_state, caplog):
    """The onnx reference computes it, in a child process that a confined one does not start."""
    depth = numpy_helper.from_array(np.int32(4), "depth")
    values = numpy_helper.from_array(np.array([0, 2], np.uint8), "values")
    axis = numpy_helper.from_array(np.array([0], np.int64), "axis")
    nodes = [
        helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.INT32),
        helper.make_node("OneHot", ["whole", "depth", "values"], ["hot"]),
        helper.make_node("Cast", ["hot"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["floats", "axis"], ["y"], keepdims=0),
    ]
    load(make_state(hostile.make_model(nodes, [depth, values, axis])))
    assert "runs on the slow onnx reference" in caplog.text


def test_tighter_limits_are_tried_again(make_state, tried):
    load(make_state(relu()))
    load(make_state(sim_memory_mib="512"))
    load(make_state(sim_memory_mib="512"))
    load(make_state(sim_memory_mib="1024"))
    assert len(tried) == 2


def make_two(folder):
    """Write a file with two executables, `good` and `evil`."""
    files = []
    for name, op_type in (("good", "Relu"), ("evil", "Abs")):
        node = helper.make_node(op_type, ["x"], ["y"])
        executable = hostile.make_executable(hostile.make_model([node]))
        files.append(folder / f"{name}.popef")
        write_executable(files[-1], dataclasses.replace(executable, name=name))
    return ",".join(map(str, files))


def test_another_executable_of_known_files_is_tried(make_state, tried, tmp_path):
    (tmp_path / "model" / "1").mkdir(parents=True)
    path = make_two(tmp_path)
    for name in ("good", "evil", "good", "evil"):
        load(make_state(executable_path=path, executable_name=name))
    assert len(tried) == 2


@pytest.mark.parametrize(
    "parameter",
    [
        {"sim_numerics": "fast"},
        {"sim_index_check": "clamp"},
        {"sim_prepack": "false"},
    ],
    ids=str,
)
def test_a_known_file_is_tried_with_other_options(parameter, make_state, tried):
    load(make_state(relu()))
    load(make_state(**parameter))
    load(make_state(**parameter))
    load(make_state())
    assert len(tried) == 2


def test_of_a_file_the_time_that_it_took_is_known(make_state, tried, monkeypatch):
    """A tighter limit of time that is above this time needs no other child process."""
    monkeypatch.setattr(
        sessions, "time", SimpleNamespace(monotonic=itertools.count(step=7.0).__next__)
    )
    load(make_state(relu()))
    load(make_state(sim_load_sec="7"))
    assert len(tried) == 1
    load(make_state(sim_load_sec="6"))
    assert len(tried) == 2


def test_a_failed_first_load_is_not_remembered(make_state, monkeypatch):
    def fail(trial, options, label):
        raise LoadError("that was too much")

    monkeypatch.setattr(simipu, "try_in_child", fail)
    for _ in range(2):
        with pytest.raises(ModelConfigError, match=r"^model 'model': that was too much$"):
            load(make_state(relu()))
    assert not KNOWN_FILES.folder.exists()


def exchange(folder, op_type):
    """Have another file take the executable's path."""
    other = hostile.make_model([helper.make_node(op_type, ["x"], ["y"])])
    write_executable(folder / "executable.popef", hostile.make_executable(other))


def test_a_file_that_is_exchanged_during_its_first_load_is_rejected_and_not_known(
    make_state, monkeypatch
):
    state = make_state(relu())
    folder = state.version_folder
    monkeypatch.setattr(simipu, "try_in_child", lambda *_: exchange(folder, "Abs"))
    with pytest.raises(ModelConfigError, match=r"exchanged or written to .*; load the model again"):
        load(state)
    assert not KNOWN_FILES.folder.exists()


def test_a_file_that_is_exchanged_after_its_digest_is_rejected(make_state, tried, monkeypatch):
    load(make_state(relu()))
    state = make_state()
    have_loaded = known_files.KnownFiles.have_loaded

    def exchange_later(*arguments):
        known = have_loaded(*arguments)
        exchange(state.version_folder, "Abs")
        return known

    monkeypatch.setattr(known_files.KnownFiles, "have_loaded", exchange_later)
    with pytest.raises(ModelConfigError, match=r"exchanged or written to .*; load the model again"):
        load(state)
    assert tried == ["model 'model'"]


def test_the_child_rejects_another_file_than_the_one_that_is_known_afterwards(
    make_state, monkeypatch
):
    """The first file is back when the child has ended."""
    monkeypatch.setattr(sessions.logging, "disable", lambda _: None)
    state = make_state(relu())
    path = state.version_folder / "executable.popef"
    aside = path.with_suffix(".aside")
    path.rename(aside)
    exchange(state.version_folder, "Abs")
    with pytest.raises(LoadError, match=r"exchanged or written to .*; load the model again"):
        sessions._load_quietly(
            lambda _: None,
            state.config,
            state.version_folder,
            state.backend,
            file_states=state.file_states,
        )


def test_the_parameter_turns_it_off(make_state, tried):
    load(make_state(relu(), sim_first_load="false"))
    assert tried == []


def test_files_that_a_compilation_has_loaded_are_known(make_state, tried, compile_popef):
    compile_popef(linear_model(), name="model/1/executable.popef")
    load(make_state(batch=4))
    assert tried == []


@pytest.mark.parametrize("index_check", ["error", "clamp"])
def test_so_are_those_of_a_model_with_indices(index_check, make_state, tried, compile_popef):
    """The dry run clamps the indices of its random inputs, and also loads the graph as served."""
    node = helper.make_node("Gather", ["table", "i"], ["y"])
    inputs, outputs = {"i": (TensorProto.INT64, [4])}, {"y": (TensorProto.FLOAT, [4, 2])}
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    model = make_model([node], inputs, outputs, {"table": table})
    compile_popef(model, name="model/1/executable.popef")
    load(make_state(batch=4, sim_index_check=index_check))
    assert tried == []


def test_files_of_a_compilation_without_a_dry_run_are_not(make_state, tried, compile_popef):
    compile_popef(linear_model(), name="model/1/executable.popef", options={"skip_dry_run": True})
    load(make_state(batch=4))
    assert tried == ["model 'model'"]


@pytest.mark.slow
def test_a_child_that_computes_loads_the_files_itself(make_state, tried):
    load(make_state(relu(), sim_isolation="process"))
    assert tried == []


def test_files_that_bring_inputs_are_loaded_first_in_that_mode_too(
    make_state, tried, compile_popef
):
    """The graph that contains these inputs is made in this process."""
    path = compile_popef(scale_model(), batch=None, name="model/1/executable.popef")
    write_data(path.parent / "weights.popef", {"scale": np.ones(3, np.float32)})
    load(make_state(batch=4, sim_isolation="process"))
    assert tried == ["model 'model'"]


@pytest.mark.slow
def test_the_child_loads_what_is_loaded_here(make_state):
    """A real child process loads the model; then the model answers and is a known file."""
    state = make_state(relu())
    instance = ModelInstanceState(state, "model_0")
    request = Request(instance.model_state, {"x": np.array([-1, 2, -3, 4], np.float32)}, ())
    instance.execute([request])
    np.testing.assert_array_equal(request.outputs()["y"], [0, 2, 0, 4])
    instance.close()
    assert len(os.listdir(KNOWN_FILES.folder)) == 1


LOADER = """
import sys
from pathlib import Path
import numpy as np
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState
from triton_poplar.request import Request
instance = ModelInstanceState(ModelState({"name": "model"}, Path(sys.argv[1])), "model_0")
request = Request(instance.model_state, {"x": np.array([-1, 2, -3, 4], np.float32)}, ())
instance.execute([request])
print(request.outputs()["y"], [name for name in LARGE if name in sys.modules])
instance.close()
"""
LARGE = "onnx onnxgraph simipu.demand simipu.cost argparse importlib.metadata".split()
LARGE += "simipu.engines.isolation subprocess model_runtime.pvti difflib".split()
"""Modules that took half of the memory of an instance, and half of the time of its load."""


@pytest.mark.slow
def test_a_later_load_imports_nothing_that_checks_or_lowers_graphs(make_state, tried):
    state = make_state(relu())
    load(state)  # from here on the files are known, and the graph is cached
    command = [sys.executable, "-c", f"LARGE = {LARGE}\n{LOADER}", str(state.version_folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert done.stdout == "[0. 2. 0. 4.] []\n"
    assert not done.stderr


@pytest.mark.slow
def test_errors_of_the_child_are_the_models(make_state):
    with pytest.raises(
        ModelConfigError, match=r"^model 'model': the graph of .* tensor '' refers to a file"
    ):
        load(make_state(hostile.outside_constant("zero")))


@pytest.mark.slow
def test_inference_that_does_not_end_is_ended_at_the_limit(make_state):
    state = make_state(hostile.endless_inference(), sim_load_sec="1")
    with pytest.raises(
        ModelConfigError,
        match=r"^model 'model': it was not ready within 1 s, and its process was ended$",
    ):
        load(state)
