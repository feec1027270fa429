"""`poplar-triton migrate`: repositories as Graphcore's SDKs wrote them, folders of source models,
what is found, and the repository that is written."""

import json
import os
import zipfile

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from poplar_triton.cli import main
from poplar_triton.migrate import verdicts
from poplar_triton.migrate.graphs import Graphs, SourceKind
from poplar_triton.migrate.matching import Sureness, find_matches
from poplar_triton.migrate.repository import find_models
from poplar_triton.tfserving import messages_pb2 as messages
from sample_models import linear_model
from sdk_repository import FRAMEWORKS, dense_model, write_model

import popef


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


@pytest.fixture
def untried(monkeypatch):
    """No child process tries the models, which are sound."""
    monkeypatch.setattr(verdicts, "load_first", lambda *_: None)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "graphs").mkdir()
    (tmp_path / "models").mkdir()
    return tmp_path


def migrate(place, *options, capsys=None):
    """Return the status of the command, and its JSON by the names of models."""
    graphs = ["--graphs", str(place / "graphs")]
    status = main(["migrate", str(place / "models"), *graphs, "--json", *map(str, options)])
    document = json.loads(capsys.readouterr().out)
    return status, {each["model"]: each for each in document["models"]}, document


def save(place, model, name):
    onnx.save(model, place / "graphs" / name)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_graph_is_found_whatever_made_the_file(untried, place, capsys, framework):
    write_model(place / "models/mine", dense_model(16, 8), framework, half=True)
    save(place, dense_model(16, 8), "right.onnx")
    save(place, dense_model(16, 9), "wrong.onnx")
    status, models, _ = migrate(place, capsys=capsys)
    assert status == 0
    mine = models["mine"]
    assert mine["verdict"] == "runs with its graph"
    assert mine["graph"] == str(place / "graphs/right.onnx")
    assert mine["batch_size"] == 4
    assert mine["modelled_seconds"] > 0
    assert mine["fits"]
    told = {"popart": "PopART or PopRT", "poptorch": "PopTorch", "tensorflow": "TensorFlow"}
    assert mine["framework"] == told[framework]
    assert mine["sdk"] == ("" if framework == "popart" else "3.3.0")
    assert mine["package_hash"] == ("0123456abc" if framework == "tensorflow" else "")


def find_only(place):
    (found,) = find_models(place / "models")
    return found


@pytest.mark.parametrize(
    ("framework", "name_map", "expected"),
    [
        ("popart", None, Sureness.CERTAIN),
        ("poptorch", None, Sureness.LIKELY),
        ("tensorflow", {"infeed_1.0": "x", "outfeed_2.0": "y"}, Sureness.CERTAIN),
    ],
)
def test_a_match_says_how_sure_it_is(place, framework, name_map, expected):
    write_model(place / "models/mine", dense_model(16, 8), framework, name_map=name_map)
    save(place, dense_model(16, 8), "right.onnx")
    (match,) = find_matches(find_only(place), Graphs([place / "graphs"]))
    assert match.sureness is expected
    assert match.fits


def test_a_graph_with_other_weights_or_another_shape_is_no_match(place):
    write_model(place / "models/mine", dense_model(16, 8))
    other = dense_model(16, 8)
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((8, 16)), "fc.weight"))
    save(place, other, "weights.onnx")
    save(place, dense_model(16, 8, batch=8), "batch.onnx")
    weights, batch = sorted(
        find_matches(find_only(place), Graphs([place / "graphs"])),
        key=lambda match: match.graph.path.name,
        reverse=True,
    )
    assert weights.sureness is Sureness.POSSIBLE
    assert "it has 50% of the file's 2 weights" in weights.differences
    assert not batch.fits
    assert "input x: float32 [4, 16]: the graph has x: float32 [8, 16]" in batch.differences


def test_tensors_of_one_shape_are_taken_by_their_place_and_that_is_said(place):
    nodes = [helper.make_node("Sub", ["a", "b"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 3]) for name in "aby"]
    graph = helper.make_graph(nodes, "sub", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder = write_model(
        place / "models/mine", dense_model(3, 3), names=({"p": [4, 3], "q": [4, 3]}, {"r": [4, 3]})
    )
    assert folder.is_dir()
    save(place, model, "sub.onnx")
    (match,) = find_matches(find_only(place), Graphs([place / "graphs"]))
    assert match.fits
    assert match.renames == {"a": "p", "b": "q", "y": "r"}
    assert match.sureness is Sureness.POSSIBLE
    assert "input p: taken to be a by its place alone" in match.differences


def test_graphs_are_found_in_circles_of_links_and_among_garbage(place):
    save(place, dense_model(4, 4), "good.onnx")
    (place / "graphs/again").symlink_to("..")
    (place / "graphs/copy.onnx").symlink_to("good.onnx")
    (place / "graphs/gone.onnx").symlink_to("nothing")
    (place / "graphs/bad.onnx").write_bytes(b"\xff" * 100)
    (place / "graphs/bad.pt").write_bytes(b"PK\x03\x04 no archive")
    saved = place / "graphs/saved"
    saved.mkdir()
    (saved / "saved_model.pb").write_bytes(b"\xff" * 100)
    graphs = Graphs([place / "graphs"])
    found = {each.path.name for each in graphs}
    assert "good.onnx" in found or "copy.onnx" in found
    assert len([name for name in found if name.endswith(".onnx")]) == 1
    assert {each.path.name for each in graphs.faults} == {"bad.onnx", "saved"}


def test_a_saved_model_is_known_by_its_signature_and_compiled_again(untried, place, capsys):
    write_model(place / "models/mine", dense_model(16, 8), "tensorflow", half=True)
    saved = messages.SavedModel()
    signature = saved.meta_graphs.add().signature_def["serving_default"]
    for infos, width in ((signature.inputs, 16), (signature.outputs, 8)):
        info = infos["x" if width == 16 else "y"]
        info.dtype = 1
        for size in (-1, width):
            info.tensor_shape.dim.add().size = size
    (place / "graphs/net").mkdir()
    (place / "graphs/net/saved_model.pb").write_bytes(saved.SerializeToString())
    status, models, _ = migrate(place, capsys=capsys)
    assert status == 1
    assert models["mine"]["verdict"] == "compile again"
    assert models["mine"]["todo"] == (
        f"poprt --input_model {place}/graphs/net --framework tensorflow --batch_size 4 "
        "--precision fp16 --triton_model_dir mine"
    )


def test_a_pytorch_file_is_known_by_the_sizes_of_its_weights(place):
    write_model(place / "models/mine", dense_model(16, 8), "poptorch")
    for name, sizes in (("right.pt", (128, 8)), ("wrong.pt", (128, 9))):
        with zipfile.ZipFile(place / "graphs" / name, "w") as archive:
            for number, size in enumerate(sizes):
                archive.writestr(f"archive/data/{number}", bytes(4 * size))
    (match,) = find_matches(find_only(place), Graphs([place / "graphs"]))
    assert match.graph.path.name == "right.pt"
    assert match.graph.kind is SourceKind.PYTORCH


def test_unreadable_models_are_reported_and_the_others_migrated(untried, place, capsys):
    write_model(place / "models/good", dense_model(16, 8))
    save(place, dense_model(16, 8), "right.onnx")
    write_model(place / "models/lonely", dense_model(99, 8))
    for name, data in (("text", b"garbage"), ("empty", b"")):
        (place / "models" / name / "1").mkdir(parents=True)
        (place / "models" / name / "1/executable.popef").write_bytes(data)
    (place / "models/cycle/1").mkdir(parents=True)
    (place / "models/cycle/1/executable.popef").symlink_to("executable.popef")
    (place / "models/python").mkdir()
    (place / "models/python/config.pbtxt").write_text('backend: "python"')
    (place / "models/wrong").mkdir()
    (place / "models/wrong/config.pbtxt").write_text("max_batch_size: many")
    status, models, _ = migrate(place, capsys=capsys)
    assert status == 1
    found = {name: each["verdict"] for name, each in models.items()}
    assert found == {
        "good": "runs with its graph",
        "lonely": "needs a graph",
        "text": "cannot be read",
        "empty": "cannot be read",
        "cycle": "cannot be read",
        "python": "not for this backend",
        "wrong": "cannot be read",
    }
    assert models["lonely"]["todo"] == (
        "give an ONNX graph with inputs x: float32 [4, 99], with outputs y: float32 [4, 8], and 2 "
        "weights of 800 numbers"
    )
    assert "max_batch_size" in models["wrong"]["todo"]


def test_the_graph_that_does_not_load_is_passed_over(place, capsys, monkeypatch):
    """The child process that tries it is played."""

    def refuse(state, options, load):
        if "first" in str(state.graph_file):
            raise verdicts.ModelConfigError("it took too long")

    monkeypatch.setattr(verdicts, "load_first", refuse)
    write_model(place / "models/mine", dense_model(16, 8))
    save(place, dense_model(16, 8), "first.onnx")
    save(place, dense_model(16, 8), "second.onnx")
    status, models, _ = migrate(place, capsys=capsys)
    assert status == 0
    assert models["mine"]["graph"] == str(place / "graphs/second.onnx")
    (warning,) = models["mine"]["warnings"]
    assert warning == f"{place}/graphs/first.onnx: it took too long"


def read_tree(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("link", [False, True])
def test_the_written_repository_keeps_every_line_and_the_given_one_is_unchanged(
    untried, place, capsys, link
):
    write_model(place / "models/mine", dense_model(16, 8))
    text = 'backend: "poplar"  # as it was\nmax_batch_size: 64\n'
    (place / "models/mine/config.pbtxt").write_text(text)
    write_model(place / "models/torch", dense_model(5, 6), "poptorch")
    write_model(place / "models/lonely", dense_model(99, 8))
    (place / "models/notes.txt").write_text("ours")
    save(place, dense_model(16, 8), "right.onnx")
    save(place, dense_model(5, 6), "torch.onnx")
    before = read_tree(place)
    output = place / "out"
    status, _, document = migrate(
        place, "--write", output, *(["--link"] if link else []), capsys=capsys
    )
    assert status == 1
    assert document["output"] == str(output)
    written = read_tree(output)
    assert {name: data for name, data in read_tree(place).items() if name in before} == before
    assert written["mine/config.pbtxt"].decode().startswith(text)
    assert "sim_graph_path" in written["mine/config.pbtxt"].decode()
    assert written["notes.txt"] == b"ours"
    assert not [name for name in written if name.startswith("lonely")]
    assert os.path.islink(output / "mine/1/graph.onnx") == link
    # The names of its tensors are the anchors' now, so it is a copy.
    graph = onnx.load(output / "torch/1/graph.onnx").graph
    assert [each.name for each in (*graph.input, *graph.output)] == ["input", "fc/fc/Gemm:0"]
    for name in ("mine", "torch"):
        assert main(["migrate", str(output / name), "--json"]) == 0
        (model,) = json.loads(capsys.readouterr().out)["models"]
        assert model["verdict"] == "runs"


def test_an_output_is_a_new_folder_outside_of_the_repository(untried, place, capsys):
    write_model(place / "models/mine", dense_model(16, 8))
    (place / "full").mkdir()
    (place / "full/file").touch()
    for output in ("full", "models/inner", "."):
        command = ["migrate", str(place / "models"), "--write", str(place / output)]
        assert main(command) == 1
        assert "expected" in capsys.readouterr().err
    for option in ("--check", "--link"):
        with pytest.raises(SystemExit, match="2"):
            main(["migrate", str(place / "models"), option])
    assert read_tree(place / "models").keys() == {"mine/1/executable.popef"}


def test_names_from_files_reach_the_terminal_and_the_page_as_text(untried, place, capsys):
    write_model(place / "models/<b>\x1b[31m", dense_model(16, 8))
    assert main(["migrate", str(place / "models"), "--html", str(place / "page.html")]) == 1
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "<b>" in shown
    page = (place / "page.html").read_text()
    assert "\x1b" not in page
    assert "<b>\\" not in page


def test_a_model_of_this_toolkit_runs_as_it_is(place, capsys, compile_popef):
    (place / "models/mine/1").mkdir(parents=True)
    compile_popef(linear_model()).rename(place / "models/mine/1/executable.popef")
    status, models, _ = migrate(place, capsys=capsys)
    assert status == 0
    assert models["mine"]["verdict"] == "runs"
    assert models["mine"]["sdk"] == popef.__version__


@pytest.mark.server
@pytest.mark.slow
def test_the_written_repository_answers_as_onnx_runtime_does(place, capsys):
    for index, framework in enumerate(FRAMEWORKS):
        model = dense_model(16 + index, 8, index)
        folder = write_model(place / "models" / framework, model, framework, half=index == 0)
        (folder.parent / "config.pbtxt").write_text("max_batch_size: 64")
        save(place, model, f"{framework}.onnx")
    status, _, document = migrate(place, "--write", place / "out", "--check", capsys=capsys)
    assert status == 0, document
    asked = {(each["model"], each["rows"], each["inputs"]) for each in document["checked"]}
    assert asked == {
        (framework, rows, inputs)
        for framework in FRAMEWORKS
        for rows in (1, 4, 5)
        for inputs in ("zeros", "made up")
    }
