"""Tests of a file's data about the rows of its batch, and about the tensors that users feed and
fetch."""

from __future__ import annotations

import json
import sys

import pytest
from popef_blobs import build

import popef
from popef import Anchor, Metadata, PopefError, ProgramFlow, TensorInfo, TensorType
from popef.anchors import replica_shape, user_anchors
from popef.model import ROWS_BLOB, RowFacts, batch_size, read_rows

UNPROVEN = RowFacts().dependence
DEEP = "overflow" if sys.version_info >= (3, 14) else "recursion"
"""What Python's error for JSON nested too deeply says."""


def read(path, *payloads):
    """Return what `read_rows` reads from a model with an anchor of rank 3 and these payloads of the
    blob."""
    anchor = Anchor(name="x", tensorInfo=TensorInfo(shape=(2, 3, 4)))
    with popef.Writer(path) as writer:
        writer.writeMetadata(Metadata(executable="e", anchors=[anchor]))
        writer.createExecutable("e").write(b"code")
        for name, payload in [*((ROWS_BLOB, payload) for payload in payloads), ("other", b"{")]:
            writer.createOpaqueBlob(name, "e").write(payload)
    return read_rows(build(path))


@pytest.mark.parametrize(
    "facts",
    [
        RowFacts(None),
        RowFacts("Softmax 's'"),
        RowFacts(None, {"x": 2}),
        RowFacts("Loop 'l'", {"x": 0}),
    ],
    ids=repr,
)
def test_facts_come_back_as_they_were_written(tmp_path, facts):
    found = read(tmp_path / "m.popef", facts.encode())
    assert found == facts
    assert found.axis("x") == facts.batch_axes.get("x", 0)
    assert found.axis("another") == 0


def test_of_a_file_that_says_nothing_nothing_is_proven(tmp_path):
    found = read(tmp_path / "m.popef")
    assert found.dependence == UNPROVEN == "the file does not say that they are independent"
    assert found.batch_axes == {}


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        (b"{", "Expecting property name"),
        (b"[]", "list indices"),
        (b"{}", "'dependence'"),
        (b'{"dependence": null}', "'batch_axes'"),
        (b'{"dependence": 1, "batch_axes": {}}', "dependence 1"),
        (b'{"dependence": null, "batch_axes": []}', r"batch_axes \[\]"),
        (b'{"dependence": null, "batch_axes": {"x": 3}}', "axis 3 for anchor 'x'"),
        (b'{"dependence": null, "batch_axes": {"x": -1}}', "axis -1 for anchor 'x'"),
        (b'{"dependence": null, "batch_axes": {"x": true}}', "axis True for anchor 'x'"),
        (b'{"dependence": null, "batch_axes": {"q": 0}}', "'q'"),
        (b"[" * 100_000, DEEP),
        (
            json.dumps({"dependence": "x" * (1 << 20), "batch_axes": {}}).encode(),
            "1 blobs, the first of 1048",
        ),
    ],
    ids=range(12),
)
def test_a_blob_of_another_form_is_refused_in_a_line(tmp_path, payload, found):
    with pytest.raises(
        PopefError, match=rf"\(OPAQUE\): expected one JSON object .*, found .*{found}"
    ) as caught:
        read(tmp_path / "m.popef", payload)
    assert len(str(caught.value)) < 600
    assert str(caught.value).endswith("; compile the model again with poprt")


def test_two_blobs_are_refused(tmp_path):
    with pytest.raises(PopefError, match="found 2 blobs"):
        read(tmp_path / "m.popef", RowFacts().encode(), RowFacts().encode())


def test_a_blob_may_have_a_mebibyte(tmp_path):
    payload = RowFacts(None).encode()
    assert read(tmp_path / "m.popef", payload + b" " * ((1 << 20) - len(payload))) == RowFacts(None)


@pytest.mark.parametrize(
    ("shapes", "axes", "batch"),
    [
        ([(4, 3), (4,)], None, 4),
        ([(4, 3), (5, 3)], None, 0),
        ([(4, 3), ()], None, 0),
        ([()], None, 0),
        ([], None, 0),
        ([(3, 4), (4, 2)], [1, 0], 4),
        ([(3, 4), (4, 2)], [0, 1], 0),
    ],
)
def test_the_batch_is_the_size_that_all_tensors_have_along_their_axes(shapes, axes, batch):
    assert batch_size(shapes, axes) == batch


def test_user_anchors_are_those_of_the_main_programs():
    kinds = {"in": TensorType.INPUT, "out": TensorType.OUTPUT, "both": TensorType.INPUT}
    programs = {"in": [5], "out": [5, 0], "both": []}
    anchors = [Anchor(name=name, type=kinds[name], programs=programs[name]) for name in kinds]
    anchors.append(Anchor(name="weight", type=TensorType.INPUT, programs=[0]))
    metadata = Metadata(anchors=anchors, programFlow=ProgramFlow(load=[0], main=[5]))
    names = {
        kind: [anchor.name for anchor in user_anchors(metadata, kind)]
        for kind in set(kinds.values())
    }
    assert names == {TensorType.INPUT: ["in", "both"], TensorType.OUTPUT: ["out"]}


@pytest.mark.parametrize(
    ("per_replica", "replicas", "shape"),
    [(True, 2, (3,)), (True, 1, (2, 3)), (True, 0, (2, 3)), (False, 2, (2, 3))],
)
def test_the_replicas_are_the_leading_dimension_of_what_each_has(per_replica, replicas, shape):
    anchor = Anchor(name="x", tensorInfo=TensorInfo(shape=(2, 3)), isPerReplica=per_replica)
    assert replica_shape(Metadata(replicationFactor=replicas), anchor) == shape
