"""Files that are no ONNX model, and no weights of one: each command says what they are."""

import numpy as np
import onnx
import onnxruntime
import pytest
from foreign_files import FILES, POINTERS
from poplar_triton.profile.source import open_source
from poprt.cli.parser import make_parser, read_arguments
from poprt.comparing.reading import read_calibration_data
from poprt.compile.adoption import adopt_graph
from poprt.frontend import OnnxFrontend, read_model
from sample_models import linear_model
from simipu import SimIpuError, find_target

from popef._tools.console import UsageError

TARGET = find_target("mk2")


@pytest.mark.parametrize("word", FILES)
def test_a_frontend_says_what_it_was_given_instead_of_onnx(tmp_path, word):
    file = tmp_path / "model.onnx"
    file.write_bytes(FILES[word])
    for read in (
        lambda: OnnxFrontend(file).open_model(),
        lambda: read_model(file),
        lambda: read_model(FILES[word]),
        lambda: open_source(file),
        lambda: adopt_graph(file, "m", TARGET, {}, (), {}),
    ):
        with pytest.raises(SimIpuError) as caught:
            read()
        assert word.strip() in str(caught.value)


@pytest.mark.parametrize("word", POINTERS)
def test_data_and_options_that_a_tool_has_replaced_are_named(tmp_path, word):
    (tmp_path / "data.npz").write_bytes(FILES[word])
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x.npy").write_bytes(FILES[word])
    for place in ("data.npz", "folder"):
        with pytest.raises(SimIpuError, match=f"found .*{word.strip()}"):
            read_calibration_data(tmp_path / place)
    (tmp_path / "options.yaml").write_bytes(FILES[word])
    with pytest.raises(UsageError, match=f"expected YAML, found .*{word.strip()}"):
        read_arguments(tmp_path / "options.yaml", make_parser())


def test_a_compiled_file_is_named(compile_popef, tmp_path):
    compile_popef(linear_model()).rename(tmp_path / "model.onnx")
    with pytest.raises(
        SimIpuError, match="expected an ONNX model, found a PopEF file; it is compiled already"
    ):
        OnnxFrontend(tmp_path / "model.onnx").open_model()


def save_with_data(folder):
    folder.mkdir(parents=True)
    onnx.save(
        linear_model(),
        folder / "model.onnx",
        save_as_external_data=True,
        location="model.onnx_data",
        size_threshold=0,
    )


@pytest.mark.parametrize("word", POINTERS)
@pytest.mark.parametrize("padding", [0, 100_000])
def test_weights_that_a_tool_has_replaced_are_no_numbers(tmp_path, word, padding):
    """A page may be as large as the weights."""
    save_with_data(tmp_path / "m")
    data = tmp_path / "m" / "model.onnx_data"
    data.write_bytes(FILES[word] + b" " * padding)
    with pytest.raises(SimIpuError, match=rf"expected raw numbers, found .*{word.strip()}"):
        OnnxFrontend(tmp_path / "m" / "model.onnx").open_model()


def link_into_cache(folder, moved, linked=None):
    """Move a model and its data into `moved`, and link them as the Hugging Face hub does: by names
    of digests, in one folder."""
    linked = linked or folder
    moved.mkdir(parents=True, exist_ok=True)
    linked.mkdir(parents=True, exist_ok=True)
    for name, digest in (("model.onnx", "aaaa"), ("model.onnx_data", "bbbb")):
        (folder / name).rename(moved / digest)
        (linked / name).symlink_to(moved / digest)


@pytest.mark.parametrize("relative", [False, True])
def test_a_model_in_the_cache_of_the_hugging_face_hub_is_read(tmp_path, relative):
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "abc" / "onnx", tmp_path / "hub" / "blobs"
    save_with_data(snapshot)
    link_into_cache(snapshot, blobs)
    if relative:
        for link in snapshot.iterdir():
            target = link.readlink()
            link.unlink()
            link.symlink_to(f"../../../blobs/{target.name}")
    model = OnnxFrontend(snapshot / "model.onnx").load_model()
    open_source(snapshot / "model.onnx")
    session = onnxruntime.InferenceSession(str(snapshot / "model.onnx"))
    plain = onnxruntime.InferenceSession(model.SerializeToString())
    x = np.ones((2, 4), np.float32)
    for expected, found in zip(session.run(None, {"x": x}), plain.run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_chain_of_links_is_followed_to_its_end(tmp_path):
    save_with_data(tmp_path / "m")
    link_into_cache(tmp_path / "m", tmp_path / "blobs")
    for name in ("model.onnx", "model.onnx_data"):
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / name).symlink_to(tmp_path / "m" / name)
    OnnxFrontend(tmp_path / "other" / "model.onnx").open_model()


@pytest.mark.parametrize("end", ["file", "folder"])
def test_a_link_out_of_both_folders_is_rejected(tmp_path, end):
    """The model is no link, or links elsewhere than its data; a linked folder leads nowhere else."""
    save_with_data(tmp_path / "m")
    (tmp_path / "secret").mkdir()
    (tmp_path / "m" / "model.onnx_data").rename(tmp_path / "secret" / "data")
    if end == "file":
        (tmp_path / "m" / "model.onnx_data").symlink_to(tmp_path / "secret" / "data")
    else:
        (tmp_path / "m" / "inner").symlink_to(tmp_path / "secret")
        model = onnx.load(tmp_path / "m" / "model.onnx", load_external_data=False)
        for tensor in model.graph.initializer:
            next(e for e in tensor.external_data if e.key == "location").value = "inner/data"
        onnx.save(model, tmp_path / "m" / "model.onnx")
    (tmp_path / "blobs").mkdir()
    for file in (tmp_path / "m" / "model.onnx", tmp_path / "link" / "model.onnx"):
        if not file.exists():
            file.parent.mkdir()
            (tmp_path / "m" / "model.onnx").rename(tmp_path / "blobs" / "aaaa")
            file.symlink_to(tmp_path / "blobs" / "aaaa")
            for each in (tmp_path / "m").iterdir():
                each.rename(file.parent / each.name)
        with pytest.raises(SimIpuError, match="expected a file inside the model's folder"):
            OnnxFrontend(file).open_model()
