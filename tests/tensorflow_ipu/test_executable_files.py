"""PopEF files of compiled computations, and their cache."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from model_runtime import ModelRunner
from poprt.compile import LOAD_PROGRAM, MAIN_PROGRAM
from tensorflow_files import BIAS, WEIGHT, X, describe, describe_tensor, make_model
from tensorflow_ipu.files.executable_cache import (
    ExecutableCache,
    hash_computation,
    serialize_module,
)
from tensorflow_ipu.files.executable_description import (
    EntryDescription,
    EntryKind,
    number_duplicates,
    unmangle_name,
)
from tensorflow_ipu.files.executable_message import ExecutableFileError
from tensorflow_ipu.files.popef_files import (
    StoredExecutable,
    read_executable,
    read_message,
    write_executable,
)
from waiting import PATIENCE_SECONDS

import popef

pytestmark = pytest.mark.tensorflow  # the package is installed beside TensorFlow only


def write_weight(path):
    with popef.Writer(path) as writer:
        info = popef.TensorDataInfo(
            name="net/w", tensorInfo=popef.TensorInfo(shape=[4, 3], dataType=popef.DataType.F32)
        )
        with writer.createTensorData(info) as blob:
            blob.write(WEIGHT.data)


def test_a_file_has_the_blobs_programs_and_anchors_of_the_real_stack(tmp_path):
    file = tmp_path / "a1b2.poplar_exec"
    write_executable(StoredExecutable(make_model(), describe(), {"sim_own": b"more"}), file)
    with popef.Reader() as reader:
        reader.parseFile(file)
        opaque = reader.opaqueBlobs()
        metadata = reader.metadata()[0]
        executable = reader.executables()[0]
        assert opaque[0].name == "tensorflow"
        assert {blob.executable for blob in opaque} == {"a1b2"}
        assert (executable.name, executable.uncompressedSize) == ("a1b2", 0)
        places = [opaque[0].blob.index, executable.blob.index, opaque[1].blob.index]
    assert places == [0, 1, 3]  # the metadata is blob 2
    flow = metadata.programFlow()
    assert (list(flow.load()), list(flow.main()), list(flow.save())) == ([0], [1], [2])
    assert dict(metadata.programsMap()) == {0: "load_program", 1: "main_program", 2: "save_program"}
    anchors = [
        (a.name(), a.handle(), list(a.tensorInfo().shape()), list(a.programs()))
        for a in metadata.anchors()
    ]
    assert anchors == [
        ("infeed_1.0", "infeed_1.0", [2, 4], [1]),
        ("outfeed_2.0", "outfeed_2.0", [2, 3], [1]),
        ("bias", "0.0", [3], [1]),
        ("net/w", "1.0", [4, 3], [0]),
    ]
    assert (metadata.seedHandle(), metadata.numProcesses()) == ("__seed_stream", 1)
    assert (metadata.ipuVersion(), metadata.executable()) == (2, "a1b2")
    assert [(o.name(), o.value()) for o in metadata.engineOptions()] == [
        ("opt.useAutoloader", "true")
    ]


def test_the_message_has_the_signature(tmp_path):
    write_executable(StoredExecutable(make_model(), describe()), tmp_path / "file")
    message = read_message(tmp_path / "file")
    signature = message.embedded_runtime_config.signature
    assert [entry.name for entry in signature.inputs] == [
        "XLA_Args/_arg_bias_0_0/_3",
        "XLA_Args/net/w",
    ]
    assert [list(entry.shape.dimensions) for entry in signature.streamed_inputs] == [[2, 4]]
    assert [entry.name for entry in signature.streamed_outputs] == ["outfeed_2.0"]
    assert message.embedded_runtime_config.target_arch == "ipu2"
    assert message.infeeds[0].config.feed_id == "1"
    assert message.outfeeds[0].config.feed_id == "2"


def test_a_file_is_read_as_it_was_written(tmp_path):
    compiled = make_model()
    write_executable(
        StoredExecutable(compiled, describe(), {"sim_own": b"more"}), tmp_path / "file"
    )
    stored = read_executable(tmp_path / "file", "a1b2")
    assert stored.description == describe()
    assert stored.own_blobs == {"sim_own": b"more"}
    for index in (LOAD_PROGRAM, MAIN_PROGRAM):
        ours = [stream.tensor for stream in stored.executable.executable.program(index).streams]
        assert ours == [stream.tensor for stream in compiled.executable.program(index).streams]


@pytest.mark.parametrize("frozen", [False, True])
def test_the_runtime_runs_a_file(tmp_path, frozen):
    write_executable(
        StoredExecutable(make_model(frozen), describe(frozen)), tmp_path / "executable.popef"
    )
    write_weight(tmp_path / "weights.popef")
    files = [tmp_path / "executable.popef", *([] if frozen else [tmp_path / "weights.popef"])]
    with ModelRunner(files) as runner:
        answer = runner.execute({"infeed_1.0": X, "bias": BIAS})
    np.testing.assert_allclose(answer["outfeed_2.0"], X @ WEIGHT + BIAS, rtol=1e-5)


def test_popef_dump_prints_what_the_guide_prints(tmp_path):
    write_executable(
        StoredExecutable(make_model(), describe(name="UNHASHED_EXECUTABLE")), tmp_path / "file"
    )
    done = subprocess.run(
        [str(Path(sys.executable).with_name("popef_dump")), str(tmp_path / "file")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    text = done.stdout + done.stderr
    for line in (
        'Read OpaqueBlob: {"name": "tensorflow", "executable": "UNHASHED_EXECUTABLE"} Structure '
        "size: 72",
        'Read Executable: {"name": "UNHASHED_EXECUTABLE"',
        '"seedHandle": "__seed_stream"',
        '"programFlow": {"load": ["0"], "main": ["1"], "save": ["2"]}',
        '{ "name": "infeed_1.0",\n            "handle": "infeed_1.0"',
    ):
        assert line in text


def test_a_tensor_without_description_is_an_error(tmp_path):
    with pytest.raises(ExecutableFileError, match="'bias' of the executable is neither a feed"):
        write_executable(
            StoredExecutable(make_model(), describe(inputs=describe().inputs[1:])),
            tmp_path / "file",
        )
    assert not (tmp_path / "file").exists()


def test_a_variable_has_the_name_that_it_is_exported_with(tmp_path):
    entry = EntryDescription("XLA_Args/other", describe_tensor("net/w", (4, 3)), EntryKind.VARIABLE)
    inputs = (describe().inputs[0], entry)
    with pytest.raises(ExecutableFileError, match="'XLA_Args/other': expected a variable"):
        write_executable(StoredExecutable(make_model(), describe(inputs=inputs)), tmp_path / "file")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[:200], id="cut"),
        pytest.param(lambda data: b"no PopEF file at all" * 40, id="text"),
        pytest.param(lambda data: data.replace(b"tensorflow", b"tensorfiow", 1), id="renamed"),
        pytest.param(lambda data: data.replace(b"main_program", b"main_progra\xff"), id="program"),
    ],
)
def test_a_damaged_file_is_an_error(tmp_path, change):
    write_executable(StoredExecutable(make_model(), describe()), tmp_path / "file")
    (tmp_path / "bad").write_bytes(change((tmp_path / "file").read_bytes()))
    with pytest.raises(ExecutableFileError, match="bad"):
        read_executable(tmp_path / "bad")


def test_every_cut_file_is_an_error_or_complete(tmp_path):
    write_executable(StoredExecutable(make_model(), describe()), tmp_path / "file")
    data = (tmp_path / "file").read_bytes()
    for size in range(0, len(data), 37):
        (tmp_path / "cut").write_bytes(data[:size])
        try:
            stored = read_executable(tmp_path / "cut")
        except ExecutableFileError:
            continue
        assert stored.description == describe()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("XLA_Args/d1/bias", "d1/bias"),
        ("XLA_Args/_arg_x_0_0/_3", "x"),
        ("XLA_Args/_arg_a/b_c_1_12/_103", "a/b_c"),
        ("XLA_Args/_arg_x", "x"),
        ("XLA_Retvals", "XLA_Retvals"),
        ("net/w_0_0/_3", "net/w_0_0/_3"),
    ],
)
def test_names_of_arguments_lose_what_xla_adds(name, expected):
    assert unmangle_name(name) == expected


def test_names_that_occur_twice_get_numbers():
    assert number_duplicates(["a", "b", "a", "c"]) == ["a0", "b", "a1", "c"]


def test_the_hash_is_short_hexadecimal_and_depends_on_everything():
    names = {
        hash_computation(b"graph"),
        hash_computation(b"graph2"),
        hash_computation(b"graph", {"w": WEIGHT}),
        hash_computation(b"graph", {"w": WEIGHT.astype("float16")}),
        hash_computation(b"graph", settings=[1]),
        hash_computation(b"graph", settings=["1"]),
    }
    assert len(names) == 6
    assert all(len(name) <= 16 and int(name, 16) and name == name.lower() for name in names)
    assert hash_computation(b"graph") == hash_computation(b"graph")


def test_a_second_call_compiles_nothing(tmp_path):
    cache = ExecutableCache(tmp_path / "new" / "cache")
    calls = []

    def compile_it():
        calls.append(1)
        return StoredExecutable(make_model(), describe())

    first, second = (
        cache.get_or_compile("a1b2", compile_it),
        cache.get_or_compile("a1b2", compile_it),
    )
    assert len(calls) == 1
    assert first.description == second.description
    assert sorted(path.name for path in cache.folder.iterdir()) == [
        "a1b2.compile_lock",
        "a1b2.poplar_exec",
        "a1b2.read_lock",
    ]


def test_threads_wait_for_the_one_that_compiles(tmp_path):
    cache, calls = ExecutableCache(tmp_path), []

    def compile_it():
        calls.append(1)
        return StoredExecutable(make_model(), describe())

    threads = [
        threading.Thread(target=cache.get_or_compile, args=("a1b2", compile_it)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert len(calls) == 1


def test_a_damaged_entry_is_compiled_again(tmp_path, caplog):
    cache = ExecutableCache(tmp_path)
    cache.find_file("a1b2").write_bytes(b"from a stranger")
    cache.get_or_compile("a1b2", lambda: StoredExecutable(make_model(), describe()))
    assert "compiled again" in caplog.text
    assert read_executable(cache.find_file("a1b2")).description == describe()


def test_an_entry_under_another_name_is_compiled_again(tmp_path, caplog):
    cache = ExecutableCache(tmp_path)
    write_executable(StoredExecutable(make_model(), describe(name="f00")), cache.find_file("a1b2"))
    cache.get_or_compile("a1b2", lambda: StoredExecutable(make_model(), describe()))
    assert "expected the executable 'a1b2', found 'f00'" in caplog.text


def test_a_folder_that_cannot_be_used_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    cache = ExecutableCache(tmp_path / "file")
    stored = cache.get_or_compile("a1b2", lambda: StoredExecutable(make_model(), describe()))
    assert stored.description == describe()
    assert "cannot be used" in caplog.text


def test_a_module_is_serialized_under_its_hash(tmp_path):
    file = serialize_module(StoredExecutable(make_model(), describe()), tmp_path / "folder")
    names = sorted(path.name for path in file.parent.iterdir())
    assert names == ["a1b2.ipu_bin", "a1b2.json"]
    assert read_executable(file).description == describe()
    text = json.loads((file.parent / "a1b2.json").read_text())
    assert [(entry["name"], entry["type"]) for entry in text["inputs"]] == [
        ("bias", "input_data"),
        ("net/w", "parameter"),
    ]
    assert text["infeeds"][0]["streams"][0] == {
        "name": "1.0",
        "handle": "infeed_1.0",
        "type": "infeed",
        "shape": {"data_type": "F32", "shape": [2, 4]},
    }
