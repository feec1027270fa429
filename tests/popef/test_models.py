"""Tests of models: which blobs of which files belong together, and what is ambiguous."""

from __future__ import annotations

import pytest
from popef_blobs import build, info, write_whole

import popef


def test_blobs_are_bound_by_the_executables_name(tmp_path):
    write_whole(tmp_path / "m.popef")
    model = build(tmp_path / "m.popef")
    assert model.executable.name == "e"
    assert [len(part) for part in (model.tensors, model.feeds, model.opaqueBlobs)] == [1, 1, 1]


def test_ambiguity_is_an_error_that_lists_the_candidates(tmp_path):
    def write(file, executable, metadata):
        with popef.Writer(tmp_path / file) as writer:
            if metadata:
                writer.writeMetadata(popef.Metadata(executable=metadata))
            if executable:
                writer.createExecutable(executable).write(b"x")
        return tmp_path / file

    a, b = write("a", "first", "first"), write("b", "second", "second")
    with pytest.raises(popef.PopefError, match="got 2 among 'first', 'second'"):
        build(a, b)
    assert build(a, b, name="second").metadata.executable() == "second"
    with pytest.raises(popef.PopefError, match="called 'third', got 0 among 'first', 'second'"):
        build(a, b, name="third")
    with pytest.raises(
        popef.PopefError,
        match="'lonely': expected one metadata blob for it, got 0 among those for none",
    ):
        build(write("c", "lonely", None))
    with pytest.raises(popef.PopefError, match="expected one executable, got 0 among none"):
        build(write("d", None, "first"))


def test_all_models_of_a_file_are_found(tmp_path):
    path = tmp_path / "two.popef"
    with popef.Writer(path) as writer:
        for name in ("first", "second"):
            writer.writeMetadata(
                popef.Metadata(executable=name, anchors=[popef.Anchor(name=f"{name} w")])
            )
            writer.createExecutable(name).write(b"x")
            with writer.createTensorData(
                popef.TensorDataInfo(name=f"{name} w", tensorInfo=info((1,)))
            ) as blob:
                blob.write(bytes(4))
    with popef.Reader() as reader:
        reader.parseFile(path)
        models = popef.ModelBuilder(reader).createModels()
    assert [
        (model.executable.name, [tensor.info.name for tensor in model.tensors]) for model in models
    ] == [
        ("first", ["first w"]),
        ("second", ["second w"]),
    ]


def test_one_model_may_stand_in_several_files(tmp_path):
    def write(name, fill):
        with popef.Writer(tmp_path / name) as writer:
            fill(writer)
        return tmp_path / name

    def weights(writer):
        with writer.createTensorData(popef.TensorDataInfo(name="w", tensorInfo=info())) as blob:
            blob.write(bytes(24))

    metadata = popef.Metadata(executable="e", anchors=[popef.Anchor(name="w")])
    files = [
        write("code", lambda writer: writer.createExecutable("e").write(b"x")),
        write("metadata", lambda writer: writer.writeMetadata(metadata)),
        write("weights", weights),
    ]
    assert [tensor.info.name for tensor in build(*files).tensors] == ["w"]
    with pytest.raises(
        popef.PopefError,
        match=r"expected one tensor 'w', got .*weights: blob 0 .* and .*more: blob 0",
    ):
        build(*files, write("more", weights))
