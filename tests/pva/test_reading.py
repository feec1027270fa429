"""Profiles that pva rejects: other files, and documents with wrong values."""

from __future__ import annotations

import copy
import json
import os
import sqlite3

import pop_files
import pva
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pva import document as reading


@pytest.fixture
def profile():
    return pop_files.make_profile()


def change(document, path, value):
    """Set the value at a path of keys and indices; KeyError as a value removes it."""
    *parents, last = path
    for key in parents:
        document = document[key]
    if value is KeyError:
        del document[last]
    else:
        document[last] = value


def test_a_profile_of_the_real_sdk_is_named_as_such(tmp_path):
    file = tmp_path / "profile.pop"
    with sqlite3.connect(file) as database:
        database.execute("create table steps (id integer)")
    with pytest.raises(
        pva.Error, match=r"of Graphcore's SDK.*pva of that SDK.*--tiles profile\.pop"
    ):
        pva.openReport(file)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "other content"),
        (b"\x7fELF\x02\x01", "other content"),
        (b"[" * 100_000, "other content"),
        (b'{"version": NaN}', "NaN is not a number"),
        (b"9" * 5000, "other content"),
        (b"[]", r"a JSON object, found \[\]"),
        (b"{}", "the key 'version', which is missing"),
        (b'{"version": 2}', "version: expected a whole number from 1 to 1, found 2"),
        (b'{"by_operator": {}}', "the figures of tiles, which --tiles writes"),
    ],
)
def test_another_file_is_rejected(tmp_path, data, message):
    file = tmp_path / "profile.pop"
    file.write_bytes(data)
    with pytest.raises(pva.Error, match=message) as caught:
        pva.openReport(file)
    assert str(caught.value).startswith(str(file))


def test_a_missing_file_a_folder_and_a_pipe_are_rejected(tmp_path):
    with pytest.raises(pva.Error, match=r"none\.pop: the profile cannot be read: No such file"):
        pva.openReport(tmp_path / "none.pop")
    os.mkfifo(tmp_path / "pipe.pop")
    for path in (tmp_path, tmp_path / "pipe.pop"):
        with pytest.raises(pva.Error, match="expected the file of a profile, found a folder, a pi"):
            pva.openReport(path)


def test_a_file_without_end_is_not_read_to_its_end(monkeypatch, tmp_path):
    monkeypatch.setattr(reading, "MAX_BYTES", 1000)
    with pytest.raises(pva.Error, match="expected a profile of at most 0 MiB, found a larger one"):
        pva.openReport(pop_files.write_profile(tmp_path))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["model"], 3, "model: expected a text, found 3"),
        (["num_ipus"], 1 << 40, "num_ipus: expected a whole number from 1 to 256"),
        (["num_ipus"], True, "num_ipus: expected a whole number"),
        (["num_ipus"], 3, "cycles: expected 3 entries, one of each IPU, found 2"),
        (["tiles_per_ipu"], 1 << 20, "from 1 to 4096"),
        (["tiles_per_ipu"], 5, "expected values of 5 tiles, found 4 tiles"),
        (["ipu_version"], 3, "ipu_version: expected one of 1, 2, 21, found 3"),
        (["clock_hz"], 0, "clock_hz: expected a whole number from 1"),
        (["io_tiles"], 5, "io_tiles: expected a whole number from 0 to 4"),
        (["memory", 0, "tiles"], [[4, -1]], r"memory\[0\]: tiles: expected pairs"),
        (["memory", 0, "tiles"], [[4, 1.5]], "expected pairs"),
        (["memory", 0, "tiles"], [[0, 1], [4, 1]], "expected pairs"),
        (["memory", 0, "categories", 1, "tiles"], [], r"categories\[1\]: tiles: expected values"),
        (["memory"], {}, "memory: expected a list"),
        (["steps", "name", 0], 7, "steps: name: expected a list of texts, found 7"),
        (["steps", "sync"], [1], "steps: sync: expected 6 entries, as in the other columns"),
        (["steps", "type", 0], 6, "steps: type: expected whole numbers from 0 to 5, found 6"),
        (["steps", "vertex", 0], -2, "vertex: expected whole numbers from -1 to 2, found -2"),
        (["steps", "ipu", 0], 2, "ipu: expected whole numbers from 0 to 1, found 2"),
        (["steps", "tiles", 0], 5, "tiles: expected whole numbers from 0 to 4, found 5"),
        (["steps", "compute", 0], 1 << 60, "compute: expected whole numbers"),
        (["variables", "last", 0], 7, "last: expected whole numbers from -1 to 6, found 7"),
        (["variables"], KeyError, "expected the key 'variables', which is missing"),
        (["program", "first"], 3, r"children\[1\]: first: expected a whole number from 3 to 5"),
        (["program", "last"], 9, "program: last: expected a whole number from 0 to 5"),
        (["program", "children", 1, "last"], 2, r"children\[2\]: first: expected a whole number"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(tmp_path, profile, path, value, message):
    change(profile, path, value)
    with pytest.raises(pva.Error, match=message):
        pva.openReport(pop_files.write_profile(tmp_path, profile))


def test_a_deep_tree_of_programs_is_rejected(profile):
    inner = profile["program"]
    for _ in range(reading.MAX_DEPTH + 1):
        inner = {"kind": "Loop", "name": "", "first": 0, "last": 5, "children": [inner]}
    profile["program"] = inner
    with pytest.raises(pva.Error, match="expected at most 32 levels, found more"):
        reading.parse_document(profile, "deep")


def test_too_many_steps_are_rejected(monkeypatch, profile):
    monkeypatch.setattr(reading, "MAX_STEPS", 5)
    with pytest.raises(pva.Error, match="at most 5 steps, found 6"):
        reading.parse_document(profile, "long")


def iter_paths(value, path=()):
    yield path
    children = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        children = enumerate(value)
    for key, child in children:
        yield from iter_paths(child, (*path, key))


PATHS = [path for path in iter_paths(pop_files.make_profile()) if path]
VALUES = st.sampled_from(
    [KeyError, None, True, -1, 0, 1, 5, 1.5, 1 << 53, 1 << 70, "", "a", [], [[1, 1]], {}]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(PATHS), VALUES), min_size=1, max_size=3))
def test_a_changed_file_is_rejected_or_every_property_can_be_read(changes):
    document = copy.deepcopy(pop_files.make_profile())
    for path, value in changes:
        try:
            change(document, path, value)
        except (KeyError, IndexError, TypeError):  # a former change removed its place
            continue
    try:
        content = reading.parse_document(json.loads(json.dumps(document)), "changed")
    except pva.Error:
        return
    report = pva.Report(content)
    assert all(tile.memory.category.stack.total >= 0 for tile in report.compilation.tiles)
    assert report.compilation.graph.numComputeSets <= len(content.steps)
    assert report.execution.totalCycles.total >= 0
    for step in report.execution.steps:
        assert all(ipu.cycles >= 0 and ipu.activeTiles >= 0 for ipu in step.ipus)
        assert len(step.cyclesByTile) == len(report.compilation.tiles)
    for live in report.compilation.livenessProgramSteps:
        assert live.notAlwaysLiveMemory.bytes >= 0
        assert live.notAlwaysLiveMemory.variables is not None
