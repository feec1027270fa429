"""Tests of where the kernels' library is, whether it can be used, and what is reported about it."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state
from simipu import GraphOptions, LoadError, kernels
from simipu.engines.computed import OrtGraph
from simipu.errors import RunMemoryError
from simipu.kernels import Kernels, find_kernels

ORT = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Clear the environment and the cache as in a new process, and clear the cache again after the
    test."""
    monkeypatch.delenv("SIMIPU_KERNELS", raising=False)
    find_kernels.cache_clear()
    yield
    find_kernels.cache_clear()


def test_the_kernels_found_are_logged_once(caplog):
    with caplog.at_level(logging.INFO, "simipu"):
        found = find_kernels()
        assert find_kernels() is found
    (line,) = caplog.messages
    assert line == f"kernels: {found.instructions}" or line.startswith("no kernels: ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "is missing: there was no C compiler when the project was installed; install again"),
        (b"", "does not load: .*file too short"),
        (b"\x7fELF of something else" * 10, "does not load: "),
    ],
)
def test_without_a_library_there_are_none_which_models_in_half_warn_of(
    content, reason, tmp_path, monkeypatch, caplog
):
    library = tmp_path / "libsimipu.so"
    if content is not None:
        library.write_bytes(content)
    monkeypatch.setattr(kernels, "LIBRARY", library)
    found = find_kernels()
    assert not found.are_there
    assert found.instructions == "none"
    kernels.warn_of_none.cache_clear()
    for _ in range(2):
        kernels.warn_of_none()
    (line,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert re.search(reason, line)


def test_a_library_without_operators_does_not_load(monkeypatch):
    monkeypatch.setattr(kernels, "LIBRARY", Path(onnxruntime_pybind11_state.__file__))
    assert "does not load: " in find_kernels().reason


@pytest.mark.parametrize("choice", ["", "none", "portable"])
def test_the_environment_chooses(choice):
    """The test needs a process of its own: the library's instructions are determined once."""
    code = "from simipu.kernels import find_kernels as f; print(f().instructions, f().reason)"
    environment = {**os.environ, "SIMIPU_KERNELS": choice}
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    found = find_kernels()
    if choice == "none" or not found.are_there:
        assert told.stdout.startswith("none ")
    else:
        assert told.stdout.split() == [choice or found.instructions]


def test_an_unknown_instruction_set_in_the_environment_is_an_error(monkeypatch):
    monkeypatch.setenv("SIMIPU_KERNELS", "sse4")
    with pytest.raises(
        LoadError, match="expected avx512, avx2, neon, portable, none, found 'sse4'"
    ):
        find_kernels()
    monkeypatch.setenv("SIMIPU_KERNELS", "avx512")
    monkeypatch.setattr(kernels, "_load", lambda: Kernels("avx2"))
    with pytest.raises(
        LoadError, match=r"expected the kernels of this machine, avx2, found 'avx512'$"
    ):
        find_kernels()


@pytest.mark.skipif(
    ORT < (1, 23), reason="ONNX Runtime before 1.23 keeps to the first limit of a process"
)
def test_working_memory_of_kernels_counts_towards_the_limit():
    """A kernel copies a field of 36 positions with its padding, for a result of nine."""
    if not find_kernels().are_there:
        pytest.skip(find_kernels().reason)
    names = [
        "block",
        "nan_on_overflow",
        "filters_format",
        "filters_scale",
        "slic_taps",
        "blocked_source",
        "blocked_result",
        "threads",
        "raises",
    ]
    attributes = dict.fromkeys(names, 0) | {"group": 1, "packed_rows": 1, "dilations": [1, 1]}
    attributes |= {"pads": [3000] * 4, "strides": [3000] * 2}
    node = helper.make_node("Conv", ["x", "w"], ["y"], domain="simipu", **attributes)
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 1, 6, 6]), ("w", [1, 1, 2, 2]), ("y", None))
    ]
    graph = helper.make_graph([node], "padded", values[:2], values[2:])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("simipu", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    feeds = {"x": np.ones((1, 1, 6, 6), np.float32), "w": np.ones((1, 1, 2, 2), np.float32)}
    with pytest.raises(RunMemoryError, match="limit of 67108864 bytes"):
        OrtGraph(model, {}, GraphOptions(num_threads=1, memory_bytes=1 << 26)).run(["y"], feeds)
    assert OrtGraph(model, {}, GraphOptions(num_threads=1)).run(["y"], feeds)[0].shape == (
        1,
        1,
        3,
        3,
    )
