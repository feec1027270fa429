"""Tests of writing a model folder: writing is atomic, and a user's edits are kept and must fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from full_disk import full_disk
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from model_runtime import Session
from model_runtime.errors import ModelRuntimeError
from onnx import TensorProto, helper
from poprt import Compiler, CompilerOptions, Converter
from poprt.triton.config import encode_config, make_config, new_config, read_config
from poprt.triton.model_folder import ModelFolder, write_triton_model
from sample_models import linear_model, make_model
from simipu import CompileError
from triton_poplar.errors import ModelConfigError
from triton_poplar.model_state import ModelState
from waiting import PATIENCE_SECONDS

import popef

F = TensorProto.FLOAT
HOSTILE = (
    'x" data_type: TYPE_FP32 dims: 4 } parameters { key: "EXECUTION_ENV_PATH" value { '
    'string_value: "/tmp/evil" } } # {'
)


def compile_named(name: str, width: int = 4, result: str = "y", **options) -> object:
    """Compile the model result = -name."""
    model = make_model(
        [helper.make_node("Neg", [name], [result])],
        {name: (F, ["n", width])},
        {result: (F, ["n", width])},
        {},
    )
    return Compiler.compile(
        Converter(batch_size=4).convert(model), None, CompilerOptions(**options)
    )


@pytest.fixture(scope="module")
def compiled():
    return Compiler.compile(Converter(batch_size=4).convert(linear_model()))


@pytest.fixture(scope="module")
def streamed():
    return Compiler.compile(
        Converter(batch_size=4).convert(linear_model()),
        None,
        CompilerOptions(constant_weights=False),
    )


def read_all(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=4, max_size=4)
)
def test_a_configuration_is_read_as_it_was_written(compiled, names):
    config = make_config(names[0], compiled, dict(zip("xyz", names[1:], strict=True)))
    assert text_format.Parse(encode_config(config), new_config()) == config
    assert sorted(entry.name for entry in (*config.input, *config.output)) == sorted(names[1:])


def test_a_name_stays_a_name(tmp_path):
    write_triton_model(compile_named(HOSTILE), tmp_path / "the-model,#1")
    config = read_config(tmp_path / "the-model,#1" / "config.pbtxt")
    assert config.name == "the-model,#1"
    assert [entry.name for entry in config.input] == [HOSTILE]
    assert list(config.parameters) == ["synchronous_execution"]


@pytest.mark.parametrize(
    ("anchor", "folder", "message"),
    [
        (
            "a\x1b[2J",
            "m",
            r"input 'a\\x1b\[2J': expected a name without control characters, found \\x1b at "
            r"character 1",
        ),
        (
            "x",
            "a$(b)",
            r"a\$\(b\): its name is the model's: expected no blank, .*; found '\$'; rename it",
        ),
        ("x", "m\n", r"m\\n: its name is the model's: expected a name without control characters"),
    ],
)
def test_a_name_that_cannot_be_shown_is_refused(tmp_path, anchor, folder, message):
    with pytest.raises(CompileError, match=message):
        write_triton_model(compile_named(anchor), tmp_path / folder)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_shown_is_called_one(tmp_path):
    with pytest.raises(CompileError, match=r"^output 'y\\n': .*; rename it in the ONNX model"):
        write_triton_model(compile_named("x", result="y\n"), tmp_path / "m")


def test_the_models_name_is_its_folders(compiled, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    write_triton_model(compiled, ".")
    assert read_config(tmp_path / "mine" / "config.pbtxt").name == "mine"


def sum_model() -> onnx.ModelProto:
    """Return the model y = x + the sum of the whole batch."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Add", ["x", "total"], ["y"]),
    ]
    return make_model(nodes, {"x": (F, ["n", 4])}, {"y": (F, ["n", 4])}, {})


@pytest.mark.parametrize("batches_per_step", [1, 2])
@pytest.mark.parametrize("model", [sum_model(), linear_model()], ids=["dependent", "independent"])
def test_the_server_agrees_with_what_is_written(tmp_path, model, batches_per_step):
    options = CompilerOptions(batches_per_step=batches_per_step)
    folder = tmp_path / "m"
    write_triton_model(
        Compiler.compile(Converter(batch_size=4).convert(model), None, options), folder
    )
    ModelState(as_json(read_config(folder / "config.pbtxt")), folder / "1").validate()


def as_json(config) -> dict:
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(config, preserving_proto_field_name=True)


EDITS = {
    "comments": "# mine\n",
    "nothing but the backend": 'backend: "poplar"',
    "batching": """max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 9 }
        instance_group { count: 2 kind: KIND_CPU }""",
    "some outputs": """max_batch_size: 4
        input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
        output { name: "y" data_type: TYPE_FP32 dims: 3 }""",
    "any batch in dims": 'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }',
    "the batch in dims": 'input { name: "x" data_type: TYPE_FP32 dims: [ 4, 4 ] }',
    "another shape outside": 'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [2, '
    "2] "
    "reshape { shape: [4] } }",
    "parameters": 'parameters { key: "sim_threads" value { string_value: "3" } }',
    "a newer Triton's field": "field_of_next_year { a: 1 }",
    "another executable": """parameters { key: "executable_path" value { string_value: "mine.popef" } }
        input { name: "q" data_type: TYPE_FP16 dims: 7 }""",
}


@pytest.mark.parametrize("text", EDITS.values(), ids=EDITS)
def test_an_existing_configuration_is_kept(compiled, tmp_path, text):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.pbtxt").write_text(text)
    assert f"kept {tmp_path}/m/config.pbtxt" in write_triton_model(compiled, tmp_path / "m")
    assert (tmp_path / "m" / "config.pbtxt").read_text() == text


def test_friendly_names_are_kept(compiled, tmp_path):
    write_triton_model(compiled, tmp_path / "m")
    (tmp_path / "m/1/name_map.json").write_text('{"x": "picture"}')
    (tmp_path / "m/config.pbtxt").unlink()
    assert f"kept {tmp_path}/m/1/name_map.json" in write_triton_model(compiled, tmp_path / "m")
    assert [entry.name for entry in read_config(tmp_path / "m/config.pbtxt").input] == ["picture"]
    (tmp_path / "m/other.json").write_text('{"x": "photo"}')
    other = (
        'parameters { key: "name_map_file_path" value { string_value: "other.json" } } '
        "max_batch_size: 4 "
    )
    (tmp_path / "m/config.pbtxt").write_text(
        other + 'input { name: "photo" data_type: TYPE_FP32 dims: 4 }'
    )
    assert f"kept {tmp_path}/m/config.pbtxt" in write_triton_model(compiled, tmp_path / "m")


CONFIG, NAMES = "config.pbtxt", "1/name_map.json"
UNFIT = {
    "name": (
        CONFIG,
        'input { name: "q" data_type: TYPE_FP32 dims: 4 }',
        "input 'q' is not the executable's, which has 'x'; ",
    ),
    "missing": (
        CONFIG,
        'input { name: "q" data_type: TYPE_FP32 dims: 4 }',
        "; input 'x' of the executable is missing",
    ),
    "type": (
        CONFIG,
        'max_batch_size: 4 output { name: "y" data_type: TYPE_FP16 dims: 3 }',
        "output 'y' has type TYPE_FP16, in the executable TYPE_FP32; edit it, give another folder, "
        "or have --overwrite_config",
    ),
    "dims": (
        CONFIG,
        'max_batch_size: 4 output [{name: "y" data_type: TYPE_FP32 dims: 5}, {name: "z" data_type: '
        "TYPE_FP32 dims: -1}]",
        r"output 'y' has dims \[5\], in the executable \[3\]; output 'z' has dims \[-1\], in the "
        r"executable \[4\]",
    ),
    "names elsewhere": (
        CONFIG,
        'parameters { key: "name_map_file_path" value { string_value: "gone.json" } }',
        "name_map_file_path 'gone.json' is not there",
    ),
    "damaged config": (
        CONFIG,
        "input [ {",
        "config.pbtxt: expected a model configuration in protobuf's text format, found 1:",
    ),
    "deep config": (CONFIG, "a {" * 100_000, "config.pbtxt: expected a model configuration"),
    "no text": (CONFIG, "\udcff", "config.pbtxt: expected a model configuration"),
    "empty map": (
        NAMES,
        "",
        "name_map.json: expected a JSON object of strings, found .*--overwrite_config write it "
        "anew",
    ),
    "unknown anchor": (
        NAMES,
        '{"q": "a"}',
        "name_map.json is kept .*: 'q' is no input or output, which are 'x', 'y', 'z'",
    ),
    "a name twice": (NAMES, '{"x": "y"}', "'x' and 'y' are both called 'y'"),
}


@pytest.mark.parametrize(("file", "text", "message"), UNFIT.values(), ids=UNFIT)
def test_kept_files_that_do_not_fit_stop_it_before_anything_is_replaced(
    compiled, streamed, tmp_path, file, text, message
):
    folder = tmp_path / "m"
    write_triton_model(streamed, folder)
    (folder / file).write_text(text, errors="surrogateescape")
    before = read_all(folder)
    with pytest.raises(CompileError, match=message) as caught:
        write_triton_model(compiled, folder)
    assert len(str(caught.value).splitlines()) == 1
    assert read_all(folder) == before
    write_triton_model(compiled, folder, overwrite_config=True)
    write_triton_model(compiled, tmp_path / "fresh" / "m")
    assert read_all(folder) == read_all(tmp_path / "fresh" / "m")


def test_another_model_does_not_break_a_folder_that_is_served(compiled, tmp_path):
    write_triton_model(compiled, tmp_path / "m")
    before = read_all(tmp_path / "m")
    with pytest.raises(
        CompileError,
        match=r"name_map\.json is kept and does not fit the new executable.*'x' is no input",
    ):
        write_triton_model(compile_named("q"), tmp_path / "m")
    assert read_all(tmp_path / "m") == before


def test_the_executable_takes_its_place_last(streamed, tmp_path, monkeypatch):
    replaced = []
    replace = os.replace
    monkeypatch.setattr(
        os, "replace", lambda old, new: (replaced.append(Path(new).name), replace(old, new))
    )
    write_triton_model(streamed, tmp_path / "m")
    assert replaced == ["name_map.json", "config.pbtxt", "weights.popef", "executable.popef"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["executable.popef", "weights.popef"])
def test_a_file_that_is_cut_off_anywhere_is_refused(streamed, tmp_path, name):
    """A server finds such a file when it loads a folder during an upload."""
    write_triton_model(streamed, tmp_path / "m")
    config, file = as_json(read_config(tmp_path / "m/config.pbtxt")), tmp_path / "m/1" / name

    def load() -> None:
        state = ModelState(config, tmp_path / "m/1")
        state.validate()
        Session(state.load_model()).runLoadPrograms()

    load()
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises((ModelConfigError, ModelRuntimeError)):
            load()


def test_weights_lie_where_they_can_be_mapped(compiled, tmp_path):
    """The length of everything before the weights in the file is a multiple of a word."""
    write_triton_model(compiled, tmp_path / "m")
    with popef.Reader() as reader:
        reader.parseFile(tmp_path / "m/1/executable.popef")
        assert reader.executables()[0].blob.start % 8 == 0


def test_left_overs_of_a_killed_export_are_removed_by_the_next(compiled, tmp_path):
    write_triton_model(compiled, tmp_path / "m")
    for name in ("1/.executable.popef.17.0123abcd.tmp", ".config.pbtxt.17.0123abcd.tmp"):
        (tmp_path / "m" / name).touch()
    write_triton_model(compiled, tmp_path / "m")
    assert set(read_all(tmp_path / "m")) == {
        "config.pbtxt",
        "1/name_map.json",
        "1/executable.popef",
    }


def poprt(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "poprt",
        "-i",
        "m.onnx",
        "--batch_size",
        "4",
        "--triton_model_dir",
        "repo/m",
        *arguments,
    ]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )


@pytest.mark.slow
def test_two_at_once_are_one_too_many(tmp_path):
    onnx.save(linear_model(), tmp_path / "m.onnx")
    with ModelFolder(tmp_path / "repo" / "m"):
        done = poprt(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "poprt: error: model folder repo/m: another poprt writes into it; wait for it, or"
    )
    assert list(tmp_path.iterdir()) == [tmp_path / "m.onnx"]


@pytest.mark.slow
def test_a_failed_compilation_leaves_no_folder(tmp_path):
    onnx.save(linear_model(), tmp_path / "m.onnx")
    done = poprt(tmp_path, "--input_shape", "x=4,9")
    assert done.returncode == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "m.onnx"]


def test_a_full_disk_names_the_file_and_leaves_the_folder_as_it_was(compiled, streamed, tmp_path):
    write_triton_model(streamed, tmp_path / "m")
    before = read_all(tmp_path)
    with (
        full_disk(1000),
        pytest.raises(OSError, match=f"File too large: '{tmp_path}/m/1/executable.popef'"),
    ):
        write_triton_model(compiled, tmp_path / "m", overwrite_config=True)
    assert read_all(tmp_path) == before


@pytest.mark.slow
def test_the_command_lists_differences_and_overwrites_with_an_option(tmp_path):
    onnx.save(linear_model(), tmp_path / "m.onnx")
    assert poprt(tmp_path).returncode == 0
    before = read_all(tmp_path / "repo")
    refused = poprt(tmp_path, "--precision", "fp16")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith(
        "poprt: error: repo/m/config.pbtxt is kept and does not fit"
    )
    for tensor in ("input 'x'", "output 'y'", "output 'z'"):
        assert f"{tensor} has type TYPE_FP32, in the executable TYPE_FP16" in refused.stderr
    assert read_all(tmp_path / "repo") == before
    assert poprt(tmp_path, "--precision", "fp16", "--overwrite_config").returncode == 0
    assert "TYPE_FP16" in (tmp_path / "repo/m/config.pbtxt").read_text()
    assert json.loads((tmp_path / "repo/m/1/name_map.json").read_text()) == {
        "x": "x",
        "y": "y",
        "z": "z",
    }


def test_scalars_of_a_row_are_reshaped():
    model = make_model(
        [helper.make_node("Neg", ["x"], ["y"])], {"x": (F, ["n"])}, {"y": (F, ["n"])}, {}
    )
    config = make_config("m", Compiler.compile(Converter(batch_size=4).convert(model)), {})
    assert [
        (list(entry.dims), entry.HasField("reshape")) for entry in (*config.input, *config.output)
    ] == [([1], True)] * 2


def test_a_batch_beyond_what_triton_counts_is_as_large_as_it_counts(compiled, monkeypatch):
    monkeypatch.setattr("poprt.triton.config.BATCHES_PER_REQUEST", 2**40)
    assert make_config("m", compiled, {}).max_batch_size == np.iinfo(np.int32).max
