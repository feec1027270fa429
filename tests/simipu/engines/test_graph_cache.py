"""Tests of lowered graphs that later loads take from the cache: it answers as the first load did,
misses after every change, and reads nothing that another user could have written."""

import dataclasses
import logging
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from full_disk import full_disk
from onnx import TensorProto, helper
from simipu import (
    AcceleratorError,
    GraphOptions,
    LoadError,
    Numerics,
    OperatorLibrary,
    choose_accelerator,
    open_graph,
)
from simipu.engines import admission, graph_cache, isolation, opening, program_graphs
from simipu.engines.computed import Lowered
from simipu.executable import Program, ProgramKind
from simipu.numerics.options import KernelUse
from simipu.processes.private_folder import PrivateFolder
from simipu.streams import Direction, Stream
from waiting import PATIENCE_SECONDS

OPTIONS = GraphOptions(num_threads=1, caches=True)
SIZE = 64
FLOAT = np.dtype(np.float32)


def declare(name, data_type=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, data_type, ["N", SIZE])


def make_program(op_type="MatMul", data_type=TensorProto.FLOAT):
    """Return a product with a weight that ONNX Runtime reads in place, and a sum with one whose
    values the graph holds."""
    nodes = [helper.make_node(op_type, ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], "y")]
    weights = [
        TensorProto(name=name, data_type=data_type, dims=dims, data_location=TensorProto.EXTERNAL)
        for name, dims in (("w", [SIZE, SIZE]), ("b", [SIZE]))
    ]
    ends = [declare("x", data_type)], [declare("y", data_type)]
    graph = helper.make_graph(nodes, "graph", *ends, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    dtype = helper.tensor_dtype_to_np_dtype(data_type)
    streams = (
        Stream("in", "x", Direction.HOST_TO_DEVICE, dtype, (4, SIZE)),
        Stream("out", "y", Direction.DEVICE_TO_HOST, dtype, (4, SIZE)),
    )
    return Program(5, "main", ProgramKind.MAIN, streams, model.SerializeToString())


def make_weights(dtype=FLOAT, **changed):
    draw = np.random.default_rng(7).standard_normal
    weights = {"w": draw((SIZE, SIZE)), "b": draw(SIZE)}
    return {name: value.astype(dtype) for name, value in weights.items()} | changed


def load(program=None, weights=None, options=OPTIONS, numerics=None):
    """Load a program, and return the answer to ones, whose weights are unchanged."""
    weights = make_weights() if weights is None else weights
    program = program or make_program()
    graph = open_graph(program, weights, options, numerics)
    return graph.run(["y"], {"x": np.ones((4, SIZE), program.streams[0].dtype)})[0]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "poplar-triton" / "graphs"


@pytest.fixture
def lowered(monkeypatch):
    """Return a list that gets the kernels of each lowering."""
    calls, lower = [], program_graphs.lower_program

    def count(*given):
        calls.append(given[-1])
        return lower(*given)

    monkeypatch.setattr(program_graphs, "lower_program", count)
    monkeypatch.setattr(admission, "lower_program", count)
    return calls


def find_largest(folder):
    return max(folder.iterdir(), key=lambda entry: entry.stat().st_size)


@pytest.mark.parametrize("data_type", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_a_later_load_lowers_nothing_and_gives_the_same_answers(data_type, lowered, folder):
    weights = make_weights(helper.tensor_dtype_to_np_dtype(data_type))
    program = make_program(data_type=data_type)
    first = load(program, weights, numerics=Numerics())
    assert len(lowered) == 1
    np.testing.assert_array_equal(load(program, weights, numerics=Numerics()), first)
    assert len(lowered) == 1
    assert folder.stat().st_mode & 0o777 == 0o700


def test_weights_that_are_read_in_place_are_neither_copied_nor_stored(lowered, folder):
    load()
    weights = make_weights()
    kernels = opening.use_kernels()
    found = graph_cache.CacheEntry(make_program(), weights, OPTIONS, None, kernels).read()
    assert found.weights["w"].ctypes.data == weights["w"].ctypes.data
    assert "b" not in found.weights
    assert find_largest(folder).stat().st_size < weights["w"].nbytes


def test_a_fine_tuned_model_has_an_entry_of_its_own(lowered):
    other = make_weights(b=np.ones(SIZE, np.float32))
    first, second = load(), load(weights=other)
    assert len(lowered) == 2
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(load(), first)
    np.testing.assert_array_equal(load(weights=other), second)
    assert len(lowered) == 2
    # The product reads its weight in place, so the graph does not depend on its values.
    twice = make_weights(w=2 * make_weights()["w"])
    np.testing.assert_allclose(load(weights=twice), 2 * (first - twice["b"]) + twice["b"], 1e-4)
    assert len(lowered) == 2


CHANGES = {
    "threads": {"options": dataclasses.replace(OPTIONS, num_threads=2)},
    "memory": {"options": dataclasses.replace(OPTIONS, memory_bytes=1 << 30)},
    "seconds": {"options": dataclasses.replace(OPTIONS, limit_seconds=7)},
    "prepack": {"options": dataclasses.replace(OPTIONS, prepack=False)},
    "indices": {"options": dataclasses.replace(OPTIONS, index_check="clamp")},
    "numerics": {"numerics": Numerics()},
    "graph": {"program": make_program("Gemm")},
    "types": {
        "program": make_program(data_type=TensorProto.DOUBLE),
        "weights": make_weights(np.float64),
    },
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_after_a_change_of_what_the_graph_depends_on_it_is_lowered_again(change, lowered):
    load()
    load(**change)
    assert len(lowered) == 2
    load()
    assert len(lowered) == 2


@pytest.mark.parametrize("name", ["onnx", "onnxruntime", "popef", "sources"])
def test_another_version_of_the_software_lowers_again(name, lowered, monkeypatch):
    load()
    versions = graph_cache._find_versions()
    monkeypatch.setattr(graph_cache, "_find_versions", lambda: versions | {name: "another"})
    graph_cache._digest_software.cache_clear()
    load()
    graph_cache._digest_software.cache_clear()
    assert len(lowered) == 2


def test_a_changed_source_file_is_another_version(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("1")
    (tmp_path / "notes.txt").write_text("1")
    before = list(graph_cache._iter_files(tmp_path))
    assert [entry[0] for entry in before] == [str(file)]
    os.utime(file, (1, 1))
    assert list(graph_cache._iter_files(tmp_path)) != before


def test_other_kernels_lower_again(lowered, monkeypatch):
    load()
    monkeypatch.setattr(opening, "use_kernels", lambda: KernelUse.APART)
    load()
    assert lowered[1:] == [KernelUse.APART]


def test_another_set_of_instructions_lowers_again(lowered, monkeypatch):
    load()
    kernels = dataclasses.replace(graph_cache.find_kernels(), instructions="another")
    monkeypatch.setattr(graph_cache, "find_kernels", lambda: kernels)
    load()
    assert len(lowered) == 2


def damage(entry, how):
    content = bytearray(entry.read_bytes())
    if how == "a bit":
        content[-1] ^= 1
    elif how == "its end":
        del content[len(content) // 2 :]
    elif how == "all":
        content.clear()
    entry.write_bytes(content)


@pytest.mark.parametrize("how", ["a bit", "its end", "all"])
@pytest.mark.parametrize("find", [find_largest, lambda folder: min(folder.iterdir())])
def test_a_damaged_entry_is_made_again_with_a_log_line(how, find, lowered, folder, caplog):
    first = load()
    damage(find(folder), how)
    np.testing.assert_array_equal(load(), first)
    assert len(lowered) == 2
    assert "is damaged and not used" in caplog.text
    load()
    assert len(lowered) == 2


def test_an_entry_under_the_name_of_another_is_damaged(lowered, folder):
    load()
    mine = find_largest(folder)
    other = load(weights=make_weights(b=np.ones(SIZE, np.float32)))
    (theirs,) = {each for each in folder.iterdir() if each.stat().st_size > 500} - {mine}
    theirs.write_bytes(mine.read_bytes())
    np.testing.assert_array_equal(load(weights=make_weights(b=np.ones(SIZE, np.float32))), other)
    assert len(lowered) == 3


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755])
def test_a_folder_that_others_can_read_or_write_is_not_used(mode, lowered, folder, caplog):
    load()
    folder.chmod(mode)
    with caplog.at_level(logging.WARNING, "simipu"):
        load()
    assert len(lowered) == 2
    assert f"{folder} is not used: expected user {os.geteuid()}, mode 0700" in caplog.text


@pytest.mark.parametrize("mode", [0o620, 0o604])
def test_an_entry_that_others_can_read_or_write_is_not_used(mode, lowered, folder, caplog):
    load()
    find_largest(folder).chmod(mode)
    load()
    assert len(lowered) == 2
    assert "it is not this user's file" in caplog.text


def test_entries_and_folders_of_others_are_not_used(lowered, monkeypatch, caplog):
    load()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        load()
    assert len(lowered) == 2
    assert "is not used: expected user" in caplog.text


def test_links_and_pipes_are_not_read(lowered, folder, tmp_path):
    load()
    entry = find_largest(folder)
    moved = entry.rename(tmp_path / "moved")
    entry.symlink_to(moved)
    load()
    find_largest(folder).unlink()
    os.mkfifo(entry, 0o600)
    load()
    assert len(lowered) == 3


def test_a_full_disk_or_a_folder_that_cannot_be_written_only_costs_the_entry(
    lowered, folder, monkeypatch, tmp_path, caplog
):
    with full_disk(100), caplog.at_level(logging.INFO, "simipu"):
        load()
    assert "the graph is not cached" in caplog.text
    assert "File too large" in caplog.text
    assert not list(folder.iterdir())
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    load()
    assert len(lowered) == 2


@pytest.mark.parametrize("caches", ["", "caches"])
def test_without_a_home_folder_nothing_is_stored(caches, lowered, monkeypatch, tmp_path, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", caches)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without an entry
    with caplog.at_level(logging.INFO, "simipu"):
        load()
    assert "no home folder; set XDG_CACHE_HOME" in caplog.text
    assert not list(tmp_path.iterdir())


def test_the_oldest_entries_make_room_for_new_ones(tmp_path):
    store = PrivateFolder(tmp_path / "folder", 10, 100, 50)
    for number, name in enumerate("abc"):
        store.write(name, [b"x" * 40])
        os.utime(store.path / name, (number, number))
    assert store.read("a")
    store.write("d", [b"x"])
    assert sorted(os.listdir(store.path)) == ["a", "d"]


def test_a_graph_that_is_too_large_is_not_stored(lowered, folder, monkeypatch):
    monkeypatch.setattr(graph_cache, "MAX_ENTRY_BYTES", 200)
    load()
    assert not folder.exists()


def test_graphs_are_cached_on_request_only_and_never_those_of_isolated_engines(folder, monkeypatch):
    load(options=GraphOptions(num_threads=1))
    assert not folder.exists()
    load()
    monkeypatch.setattr(graph_cache, "CacheEntry", pytest.fail)
    with monkeypatch.context() as patch:
        patch.setattr(isolation, "IsolatedGraph", lambda *given: given)
        assert open_graph(make_program(), make_weights(), OPTIONS, None, isolated=True)
    library = OperatorLibrary("my.domain", "/lib.so")
    given = [make_program(), make_weights(), dataclasses.replace(OPTIONS, libraries=(library,))]
    with pytest.raises(LoadError, match="no such file"):
        open_graph(*given, None)


def test_every_field_of_a_lowered_graph_comes_back(folder):
    weights = make_weights()
    flat = weights["w"].reshape(-1).view(np.uint16)
    held = {"flat": flat, "own": np.arange(6, dtype=np.int8).reshape(2, 3), "none": np.empty(0)}
    made = Lowered(
        b"model",
        held,
        fold=False,
        left_out=["DivMulFusion"],
        reads=["w", "b"],
        rounds=True,
        outputs=["y"],
        compiled=b"c",
        sources={"flat": "w"},
    )
    given = make_program(), weights, OPTIONS, None, KernelUse.NONE
    assert graph_cache.CacheEntry(*given).read() is None
    graph_cache.CacheEntry(*given).write(made)
    found = graph_cache.CacheEntry(*given).read()
    for each in dataclasses.fields(Lowered):
        if each.name != "weights":
            assert getattr(found, each.name) == getattr(made, each.name)
    assert found.weights["flat"].ctypes.data == weights["w"].ctypes.data
    for name, value in held.items():
        np.testing.assert_array_equal(found.weights[name], value, strict=True)


@pytest.fixture
def on_openvino():
    """Return options for OpenVINO."""
    pytest.importorskip("simipu.engines.openvino_package")
    return dataclasses.replace(OPTIONS, accelerators=(choose_accelerator("openvino", {}),))


def test_a_later_load_on_openvino_imports_what_the_first_one_compiled(
    lowered, folder, on_openvino, monkeypatch
):
    uncached = dataclasses.replace(on_openvino, caches=False)
    expected = load(options=uncached)
    np.testing.assert_array_equal(load(options=on_openvino), expected)
    assert len(lowered) == 2
    monkeypatch.setattr("simipu.engines.openvino_graph._compile", pytest.fail)
    np.testing.assert_array_equal(load(options=on_openvino), expected)
    assert len(lowered) == 2
    assert (folder.parent / "openvino").stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


@pytest.mark.parametrize("name", ["w", "b"])
def test_a_compiled_graph_is_that_of_all_its_weights(name, lowered, on_openvino):
    load(options=on_openvino)
    changed = make_weights(**{name: 2 * make_weights()[name]})
    found = load(weights=changed, options=on_openvino)
    assert len(lowered) == 2
    np.testing.assert_allclose(found, changed["w"].sum(0) + changed["b"] + np.zeros((4, 1)), 1e-4)


@pytest.mark.parametrize("change", [{"processor": "another"}, {"engines": "openvino 1"}])
def test_another_processor_or_openvino_compiles_again(change, lowered, on_openvino, monkeypatch):
    load(options=on_openvino)
    if "processor" in change:
        monkeypatch.setattr(graph_cache, "_read_processor", lambda: change["processor"])
    else:
        monkeypatch.setattr(graph_cache, "describe_engines", lambda _: change["engines"])
    load(options=on_openvino)
    assert len(lowered) == 2


def test_a_compiled_graph_that_is_damaged_or_too_large_is_made_again(
    lowered, folder, on_openvino, monkeypatch
):
    first = load(options=on_openvino)
    damage(find_largest(folder.parent / "openvino"), "a bit")
    np.testing.assert_array_equal(load(options=on_openvino), first)
    assert len(lowered) == 2
    # Above the limit the lowered graph is stored, as for ONNX Runtime.
    monkeypatch.setattr(graph_cache, "MAX_COMPILED_ENTRY_BYTES", make_weights()["w"].nbytes - 1)
    other = make_weights(b=np.ones(SIZE, np.float32))
    expected = load(weights=other, options=on_openvino)
    np.testing.assert_array_equal(load(weights=other, options=on_openvino), expected)
    assert len(lowered) == 3


SCRIPT = """
import pickle, sys
from pathlib import Path
from model_runtime import Session
from simipu import open_graph
given, feeds = pickle.loads(Path(sys.argv[1]).read_bytes())
(answer,) = open_graph(*given).run(["y"], feeds)
print(answer.sum(), "onnx" in sys.modules, "simipu.operators.table" in sys.modules)
others = {"argparse", "poprt", "rich", "model_runtime.runner", "tempfile"}
print(sorted(others & set(sys.modules)) or "none")
"""


def test_a_graph_that_openvino_cannot_export_or_import_is_compiled_by_every_load(
    lowered, on_openvino, monkeypatch
):
    def refuse(*_):
        raise AcceleratorError("of another kind")

    expected = load(options=dataclasses.replace(on_openvino, caches=False))
    with monkeypatch.context() as patch:
        patch.setattr("simipu.engines.openvino_graph._import", refuse)
        for count in (2, 3):
            np.testing.assert_array_equal(load(options=on_openvino), expected)
            assert len(lowered) == count
    np.testing.assert_array_equal(load(options=on_openvino), expected)
    assert len(lowered) == 3

    def fail(_):
        raise RuntimeError("no memory")

    other = dataclasses.replace(on_openvino, limit_seconds=7)
    monkeypatch.setattr("simipu.engines.openvino_graph.OpenVinoGraph.export", fail)
    np.testing.assert_array_equal(load(options=other), expected)
    np.testing.assert_array_equal(load(options=other), expected)
    assert len(lowered) == 4


def write_load(folder, options):
    """Return the command of a process that loads a program and runs it on ones."""
    feeds = {"x": np.ones((4, SIZE), np.float32)}
    file = folder / "given"
    file.write_bytes(pickle.dumps(((make_program(), make_weights(), options, None), feeds)))
    return [sys.executable, "-c", SCRIPT, str(file)]


@pytest.mark.slow
def test_two_processes_may_load_at_once_and_the_next_one_imports_no_onnx(tmp_path, folder):
    command = write_load(tmp_path, OPTIONS)
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len(list(folder.iterdir())) == 2
    # One of them may have begun so late that it found what the other wrote.
    assert any("True" in each for each in told)
    (total,) = {each.split()[0] for each in told}
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == [f"{total} False False", "none"]


@pytest.mark.slow
def test_a_later_load_on_openvino_imports_no_onnx(tmp_path, on_openvino):
    total = load(options=on_openvino).sum()
    command = write_load(tmp_path, on_openvino)
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.split()[:3] == [str(total), "False", "False"]
