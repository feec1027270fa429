"""Tests of the commands popef_dump and popef: what they print and write, and their exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from waiting import PATIENCE_SECONDS

import popef
import popef.commands.cli
import popef.commands.dump


@dataclass(frozen=True)
class Done:
    """Exit status and output of a command."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process: starting an interpreter for each takes longer than the
    tests."""

    def call(module: str, *arguments: object) -> Done:
        main = {"cli": popef.commands.cli, "dump": popef.commands.dump}[module].main
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as end:
            status = int(end.code or 0)
        return Done(status, *capfd.readouterr())

    return call


@pytest.fixture
def path(tmp_path: Path, small_file: bytes) -> Path:
    file = tmp_path / "small.popef"
    file.write_bytes(small_file)
    return file


def damaged(path: Path, name: str, size: int) -> Path:
    file = path.with_name(name)
    file.write_bytes(path.read_bytes()[:size])
    return file


def test_metadata_only_leaves_out_the_other_blobs(run: Run, path: Path) -> None:
    text = run("dump", "-m", path).stdout
    assert "Read Metadata" in text
    assert "Read Executable" not in text


def test_json_names_every_blob(run: Run, path: Path) -> None:
    done = run("dump", "--json", path)
    assert done.returncode == 0, done.stderr
    kinds = [blob["header"]["type"] for blob in json.loads(done.stdout)["blobs"]]
    assert kinds == ["metadata", "poplarExecutable", "opaque", "dataTensor", "dataFeed"]


@pytest.mark.parametrize("words", [["dump"], ["cli", "verify"], ["cli", "extract"]])
def test_a_folder_is_answered_with_the_files_to_name(
    run: Run, path: Path, tmp_path: Path, words: list[str]
) -> None:
    version = tmp_path / "repository" / "mine" / "1"
    version.mkdir(parents=True)
    done = run(*words, tmp_path / "repository")
    assert done.returncode == 1
    assert done.stderr.endswith("expected a file, found a folder\n")
    path.rename(version / "executable.popef")
    done = run(*words, tmp_path / "repository")
    assert done.returncode == 1
    assert "found a folder; name a file in it: mine/1/executable.popef\n" in done.stderr


def test_all_shows_the_values(run: Run, path: Path) -> None:
    assert '"first": [0, 1, 2, 3, 4, 5]' in run("dump", "--all", path).stdout
    assert '"first"' not in run("dump", path).stdout


def write_values(path: Path, *arrays: np.ndarray) -> Path:
    with popef.Writer(path) as writer:
        for index, array in enumerate(arrays):
            kind = popef.numpyDTypeToPopefType(array.dtype)
            info = popef.TensorInfo(shape=array.shape, dataType=kind)
            with writer.createTensorData(
                popef.TensorDataInfo(name=f"w{index}", tensorInfo=info)
            ) as blob:
                blob.write(array)
    return path


def test_values_are_counted_with_their_extremes_mean_and_the_first_eight(
    run: Run, tmp_path: Path
) -> None:
    odd = np.array([1.5, np.nan, -np.inf], np.float32)
    file = write_values(
        tmp_path / "m", np.arange(10, dtype=np.int8) - 4, odd, np.zeros((0, 3)), np.ones(2, bool)
    )
    blobs = json.loads(run("dump", "--json", "--all", file).stdout)["blobs"]
    whole, strange, empty, flags = (blob["values"] for blob in blobs)
    assert whole == {"count": 10, "first": list(range(-4, 4)), "min": -4, "max": 5, "mean": 0.5}
    assert strange["first"] == [1.5, "nan", "-inf"]
    assert strange["mean"] == strange["min"] == "nan"
    assert empty == {"count": 0, "first": []}
    assert flags["first"] == [True, True]
    assert [(blob["start"], blob["payloadSize"]) for blob in blobs[:2]] == [
        (0, 10),
        (blobs[0]["end"], 12),
    ]
    assert "values" not in json.loads(run("dump", "--json", file).stdout)["blobs"][0]


def test_words_shows_every_byte_of_headers_and_structures_with_its_meaning(
    run: Run, path: Path
) -> None:
    text = run("dump", "--words", path).stdout
    with popef.Reader() as reader:
        reader.parseFile(path)
        words = sum(blob.payload_start - blob.start for blob in reader.blobs()) // 8
    lines = [
        line
        for line in text.splitlines()
        if not line.startswith("blob ") and "bytes of payload" not in line
    ]
    assert len(lines) == words
    assert "Metadata.anchors[0].tensorInfo.shape[1] = 3" in text
    assert "Metadata.programsMap[2].name: 'main'" in text
    assert "no pointer leads here" not in text
    assert "!!" not in text


def test_words_follows_pointers_that_no_known_field_names(run: Run, tmp_path: Path) -> None:
    """The structure has two data words and three pointers more than this package knows."""
    from tests.popef.test_rules import blob, message, text

    words = [
        2 << 32 | 5 << 48,
        7,
        8,
        text(4, 2),
        0,
        text(3, 1, 5),
        0,
        2 << 2 | 1 << 32,
        0x41,
        77,
        42,
    ]
    file = tmp_path / "new.popef"
    file.write_bytes(blob(4, message(*words), b"xyz"))
    done = run("dump", "--words", file)
    assert done.returncode == 0
    assert "OpaqueBlob: unknown data 0x7" in done.stdout
    assert "OpaqueBlob.unknown pointer 2[0] = 77" in done.stdout
    assert "OpaqueBlob.unknown pointer 4: unknown data 0x2a" in done.stdout
    assert "3 bytes of payload" in done.stdout


@pytest.mark.parametrize("size", [10, 60, 200, 500])
def test_words_of_a_damaged_file_shows_what_is_there_and_what_is_wrong(
    run: Run, path: Path, size: int
) -> None:
    done = run("dump", "--words", damaged(path, "cut.popef", size))
    assert done.returncode == 1
    assert done.stdout.startswith("blob 0")
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("module", ["dump", "cli"])
def test_failures_are_one_line_and_a_status(run: Run, module: str, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"not PopEF at all")
    command = ["extract"] if module == "cli" else []
    for arguments, status in (
        ([tmp_path / "none"], 1),
        ([tmp_path / "bad"], 1),
        ([tmp_path], 1),
        ([], 2),
    ):
        done = run(module, *command, *arguments)
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        assert status == 2 or len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("module", ["dump", "cli"])
def test_a_call_without_what_it_is_about_is_status_2(run: Run, module: str) -> None:
    done = run(module)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: the following arguments are required: " in done.stderr


def test_control_characters_in_names_do_not_reach_the_terminal(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "red.popef"
    with popef.Writer(file) as writer:
        with writer.createExecutable("\x1b[31mred\n") as blob:
            blob.write(b"x")
        writer.writeMetadata(popef.Metadata(executable="\x1b]0;title\x07"))
    for arguments in ([file], ["--json", file], ["--words", file]):
        assert "\x1b" not in run("dump", *arguments).stdout
    for command in ("verify", "extract"):
        assert (
            "\x1b"
            not in run(
                "cli", command, file, *(["-o", tmp_path / "out"] if command == "extract" else [])
            ).stdout
        )


def test_verify_gives_a_line_for_each_finding_and_a_status(run: Run, path: Path) -> None:
    done = run("cli", "verify", path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "popef: 5 sound blobs, 0 errors, 0 warnings\n"
    done = run("cli", "verify", damaged(path, "cut.popef", -5))
    assert done.returncode == 1
    assert done.stdout.startswith("error: blob-size: ")
    lonely = path.with_name("lonely.popef")
    with popef.Writer(lonely) as writer:
        writer.writeMetadata(popef.Metadata(executable="elsewhere"))
    done = run("cli", "verify", lonely, path)
    assert done.returncode == 0
    assert done.stdout.startswith("warning: metadata-executable: ")
    assert done.stderr == "popef: 6 sound blobs, 0 errors, 1 warnings\n"
    done = run("cli", "verify", "--strict", "--json", lonely)
    assert done.returncode == 1
    assert [finding["rule"] for finding in json.loads(done.stdout)["findings"]] == [
        "metadata-executable"
    ]


def test_extract_writes_arrays_executables_and_metadata(
    run: Run, path: Path, tmp_path: Path
) -> None:
    done = run("cli", "extract", path, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    written = sorted(os.listdir(tmp_path / "out"))
    assert written == [
        "000-exe.json",
        "001-exe.executable",
        "002-popart.opaque",
        "003-w.npy",
        "004-w.npy",
    ]
    np.testing.assert_array_equal(
        np.load(tmp_path / "out/003-w.npy"), np.arange(6, dtype=np.int16).reshape(2, 3)
    )
    assert np.load(tmp_path / "out/004-w.npy").shape == (2, 2, 3)
    assert (tmp_path / "out/001-exe.executable").read_bytes() == b"IPU code " * 30
    assert json.loads((tmp_path / "out/000-exe.json").read_text())["executable"] == "exe"
    assert run("cli", "extract", path, "-o", tmp_path / "out").returncode == 1, (
        "nothing is overwritten unasked"
    )
    assert run("cli", "extract", path, "-o", tmp_path / "out", "--overwrite").returncode == 0


def test_extract_chooses_and_writes_to_stdout(run: Run, path: Path) -> None:
    assert run("cli", "extract", path, "--type", "opaque", "-o", "-").stdout == "private"
    assert run("cli", "extract", path, "--blob", 2, "--raw", "-o", "-").stdout == "private"
    assert run("cli", "extract", path, "-o", "-").returncode == 1
    assert run("cli", "extract", path, "--name", "nobody").returncode == 1


def test_extracted_names_stay_inside_the_folder(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "evil.popef"
    with popef.Writer(file) as writer:
        for name in ("../../up", "/etc/passwd", "..", "", "x" * 300, "a\0b", ".hidden"):
            with writer.createOpaqueBlob(name, "e") as blob:
                blob.write(b"x")
    done = run("cli", "extract", file, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert len(os.listdir(tmp_path / "out")) == 7
    assert sorted(os.listdir(tmp_path)) == ["evil.popef", "out"]


def test_compress_and_decompress_change_nothing_that_diff_sees(
    run: Run, path: Path, tmp_path: Path
) -> None:
    assert run("cli", "decompress", path).returncode == 0
    plain = tmp_path / "small_decompressed.popef"
    assert plain.stat().st_size > path.stat().st_size
    assert run("cli", "compress", plain, "-o", tmp_path / "again.popef").returncode == 0
    assert (tmp_path / "again.popef").read_bytes() == path.read_bytes()
    done = run("cli", "diff", path, plain)
    assert (done.returncode, done.stdout) == (0, "")


def test_diff_names_fields_payloads_and_missing_blobs(run: Run, tmp_path: Path) -> None:
    def write(name: str, ipus: int, values: list[float], extra: bool, code: bytes) -> Path:
        info = popef.TensorInfo(shape=(3,))
        anchors = [popef.Anchor(name="w", tensorInfo=info)] + [popef.Anchor(name="x")] * extra
        with popef.Writer(tmp_path / name) as writer:
            writer.writeMetadata(popef.Metadata(executable="e", numIpus=ipus, anchors=anchors))
            with writer.createExecutable("e") as blob:
                blob.write(code)
            with writer.createTensorData(popef.TensorDataInfo(name="w", tensorInfo=info)) as blob:
                blob.write(np.array(values, np.float32))
            if extra:
                writer.createOpaqueBlob("popart", "e").close()
        return tmp_path / name

    first, second = (
        write("a", 1, [1, 2, 3], False, b"code"),
        write("b", 2, [1, 2.5, 3], True, b"codes"),
    )
    done = run("cli", "diff", first, second)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "metadata 'e': numIpus: '1' became '2'",
        "metadata 'e': anchors.x: only in the second",
        "poplarExecutable 'e': payload: differs from byte 4",
        "dataTensor 'w': data: 1 of 3 elements differ, at most by 0.5",
        "opaque 'popart': only in the second",
    ]
    assert (
        json.loads(run("cli", "diff", "--json", first, second).stdout) == done.stdout.splitlines()
    )
    assert run("cli", "diff", first, first).returncode == 0


def test_diff_counts_elements_and_says_by_how_much_the_largest_differs(
    run: Run, tmp_path: Path
) -> None:
    def pair(*arrays: tuple[np.ndarray, np.ndarray]) -> list[str]:
        first, second = (
            write_values(tmp_path / str(i), *(pair[i] for pair in arrays)) for i in (0, 1)
        )
        return run("cli", "diff", first, second).stdout.splitlines()

    found = pair(
        (np.array([1, 200, 3], np.uint8), np.array([1, 100, 2], np.uint8)),
        (np.array([True, False]), np.array([False, False])),
        (np.array([np.nan, 1.0]), np.array([np.nan, 1.25])),
        (np.array([0.0]), np.array([-0.0])),
        (np.array([np.inf], np.float32), np.array([1], np.float32)),
        (np.ones(2), np.ones(2)),
    )
    assert found == [
        "dataTensor 'w0': data: 2 of 3 elements differ, at most by 100",
        "dataTensor 'w1': data: 1 of 2 elements differ",
        "dataTensor 'w2': data: 1 of 2 elements differ, at most by 0.25",
        "dataTensor 'w3': data: 1 of 1 elements differ, at most by 0",
        f"dataTensor 'w4': data: 1 of 1 elements differ, at most by {np.finfo(np.float64).max:g}",
    ]


def test_diff_tells_blobs_of_one_name_apart_and_names_the_first_byte(
    run: Run, tmp_path: Path
) -> None:
    def write(name: str, payloads: list[bytes], options: list[popef.Option]) -> Path:
        with popef.Writer(tmp_path / name) as writer:
            writer.writeMetadata(popef.Metadata(executable="e", engineOptions=options))
            for payload in payloads:
                with writer.createOpaqueBlob("log", "e") as blob:
                    blob.write(payload)
        return tmp_path / name

    large = bytes(1 << 20)
    before, after, twice = (
        popef.Option(name=name, value=value) for name, value in ("ax", "ay", "az")
    )
    first = write("a", [b"same", large + b"abc", b"long", b"more"], [before, twice])
    second = write("b", [b"same", large + b"aXc", b"longer"], [after, twice])
    assert run("cli", "diff", first, second).stdout.splitlines() == [
        "metadata 'e': engineOptions.a.value: 'x' became 'y'",
        "opaque 'log' (2): payload: differs from byte 1048577",
        "opaque 'log' (3): payload: differs from byte 4",
        "opaque 'log' (4): only in the first",
    ]


def test_split_gives_each_blob_a_file_and_each_model_its_data(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "m.popef"
    info = popef.TensorInfo(shape=(1,))
    with popef.Writer(file) as writer:
        for name in ("a/b", "a b", ".."):
            writer.writeMetadata(popef.Metadata(executable=name, anchors=[popef.Anchor(name="w")]))
            writer.createExecutable(name).write(b"x")
        with writer.createTensorData(popef.TensorDataInfo(name="w", tensorInfo=info)) as blob:
            blob.write(bytes(4))
    assert run("cli", "split", file, "--by", "blob", "-o", tmp_path / "blobs").returncode == 0
    kinds = ["metadata", "poplar_executable"] * 3 + ["data_tensor"]
    names = [f"{index:03}-{kind}.popef" for index, kind in enumerate(kinds)]
    assert sorted(os.listdir(tmp_path / "blobs")) == names
    assert b"".join((tmp_path / "blobs" / name).read_bytes() for name in names) == file.read_bytes()
    done = run("cli", "split", file, "-o", tmp_path / "models")
    paths = [str(tmp_path / "models" / f"{name}.popef") for name in ("a_b", "a_b-2", "model")]
    assert done.stdout.splitlines() == paths
    for path in paths:
        with popef.Reader() as reader:
            reader.parseFile(path)
            assert len(popef.ModelBuilder(reader).createModel().tensors) == 1


def test_recoding_says_the_sizes_and_takes_one_output_for_one_file(
    run: Run, path: Path, tmp_path: Path
) -> None:
    target = tmp_path / "plain.popef"
    done = run("cli", "decompress", path, "-o", target)
    assert (
        done.stdout
        == f"{target}: {target.stat().st_size} bytes, {path} has {path.stat().st_size}\n"
    )
    done = run("cli", "compress", path, target, "-o", tmp_path / "both")
    assert done.returncode == 2
    assert "--output: expected one input file, got 2; omit --output" in done.stderr


def test_merge_and_split_are_each_others_inverse(
    run: Run, tmp_path: Path, small_file: bytes
) -> None:
    other = tmp_path / "other.popef"
    with popef.Writer(other) as writer:
        writer.writeMetadata(popef.Metadata(executable="second"))
        with writer.createExecutable("second") as blob:
            blob.write(b"x")
        writer.createOpaqueBlob("stray", "nobody").close()
    first = tmp_path / "first.popef"
    first.write_bytes(small_file)
    both = tmp_path / "both.popef"
    assert run("cli", "merge", first, other, "-o", both).returncode == 0
    assert both.read_bytes() == small_file + other.read_bytes()
    assert run("cli", "split", both, "-o", tmp_path / "models").returncode == 0
    assert sorted(os.listdir(tmp_path / "models")) == ["exe.popef", "rest.popef", "second.popef"]
    assert (tmp_path / "models/exe.popef").stat().st_size == len(small_file)
    with popef.Reader() as reader:
        reader.parseFile(tmp_path / "models/second.popef")
        assert popef.ModelBuilder(reader).createModel().executable.name == "second"
    assert run("cli", "split", first, "--by", "data", "-o", tmp_path / "data").returncode == 0
    assert sorted(os.listdir(tmp_path / "data")) == ["executable.popef", "weights.popef"]
    assert run("cli", "merge", first, first, "-o", tmp_path / "twice.popef").returncode == 1
    assert not (tmp_path / "twice.popef").exists()


def test_a_process_logs_what_its_environment_says(path: Path) -> None:
    def python(**environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", f"import popef; popef.Reader().parseFile({str(path)!r})"]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_SECONDS,
            env=os.environ | environment,
        )

    assert python().stderr == ""
    done = python(POPEF_LOG_LEVEL="trace", POPEF_LOG_DEST="stdout")
    assert "[popef:cpp] [debug] Read header: " in done.stdout
    assert "Read FeedData" in done.stdout
    assert done.stderr == ""
