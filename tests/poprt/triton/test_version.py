"""Tests of publishing a version of a model: it is atomic for concurrent readers and publishers."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from full_disk import full_disk
from google.protobuf.json_format import MessageToDict
from model_runtime import Session
from model_runtime.errors import ModelRuntimeError
from poprt import Compiler, CompilerOptions, Converter, cli
from poprt.triton.config import read_config
from poprt.triton.model_folder import MAX_VERSION, ModelFolder, publish_version, write_triton_model
from sample_models import linear_model
from simipu import CompileError
from triton_poplar.errors import ModelConfigError
from triton_poplar.model_state import ModelState
from waiting import PATIENCE_SECONDS

FILES = {"executable.popef", "name_map.json", "weights.popef"}
"""Names of the files of a version whose weights are streamed."""


@pytest.fixture(scope="module")
def compiled():
    options = CompilerOptions(constant_weights=False)
    return Compiler.compile(Converter(batch_size=4).convert(linear_model()), None, options)


@pytest.fixture(scope="module")
def halved():
    """Return the same model compiled in half; its inputs and outputs have another type."""
    return Compiler.compile(Converter(batch_size=4, precision="fp16").convert(linear_model()))


def read_all(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def find_versions(folder: Path) -> list[Path]:
    """Return the versions newest first, as Triton looks for them."""
    found = [entry for entry in folder.glob("*") if entry.name.isdecimal()]
    return sorted(found, key=lambda entry: -int(entry.name))


def load(version: Path) -> None:
    """Load the version as an instance of the backend does."""
    config = MessageToDict(
        read_config(version.parent / "config.pbtxt"), preserving_proto_field_name=True
    )
    state = ModelState(config, version)
    state.validate()
    Session(state.load_model()).runLoadPrograms()


def refuse(*_, **__):
    raise OSError(errno.ENOTSUP, "Operation not supported")


@pytest.fixture(params=[True, False], ids=["renaming", "without renaming"])
def renaming(request, monkeypatch) -> bool:
    """Return whether the file system supports renaming; otherwise make renaming fail."""
    if not request.param:
        monkeypatch.setattr(os, "rename", refuse)
        monkeypatch.setattr(os, "replace", refuse)
    return request.param


def test_versions_are_counted_from_one(compiled, tmp_path, renaming):
    folder = tmp_path / "repository" / "m"
    for number in (1, 2, 3):
        lines = publish_version(compiled, folder)
        assert f"wrote {folder}/{number}/executable.popef" in lines
        assert [int(version.name) for version in find_versions(folder)] == [*range(number, 0, -1)]
        load(folder / str(number))
    assert f"kept {folder}/config.pbtxt" in lines
    assert {path.name for path in folder.iterdir()} == {"1", "2", "3", "config.pbtxt"}


def test_a_version_has_the_files_of_a_model_folder_that_is_written(compiled, tmp_path):
    publish_version(compiled, tmp_path / "published" / "m")
    write_triton_model(compiled, tmp_path / "written" / "m")
    assert read_all(tmp_path / "published") == read_all(tmp_path / "written")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["1", "7"], "8"),
        (["9", "10"], "11"),
        (["007"], "8"),
        (["1", "5.old"], "6"),
        (["1", "12th", " 20"], "21"),
        (["1", "warmup", ".poprt-x", "v99", "x100", "\u0663"], "2"),
        ([str(MAX_VERSION - 1)], str(MAX_VERSION)),
    ],
)
def test_the_next_number_is_above_all_that_triton_counts(compiled, tmp_path, names, expected):
    for name in names:
        (tmp_path / "m" / name).mkdir(parents=True)
    publish_version(compiled, tmp_path / "m")
    assert (tmp_path / "m" / expected / "executable.popef").is_file()


@pytest.mark.parametrize("name", [str(MAX_VERSION), "9" * 100, "9" * 30 + ".old"])
def test_a_number_that_ends_triton_is_refused(compiled, tmp_path, name):
    (tmp_path / "m" / name).mkdir(parents=True)
    with pytest.raises(CompileError, match=f"expected version numbers below {MAX_VERSION}, found"):
        publish_version(compiled, tmp_path / "m")
    assert not read_all(tmp_path)


def test_a_file_takes_a_number_too(compiled, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "1").touch()
    publish_version(compiled, tmp_path / "m")
    assert (tmp_path / "m" / "2" / "executable.popef").is_file()


def test_friendly_names_go_from_version_to_version(compiled, tmp_path):
    folder = tmp_path / "m"
    publish_version(compiled, folder)
    (folder / "1/name_map.json").write_text('{"x": "picture"}')
    config = (folder / "config.pbtxt").read_text().replace('name: "x"', 'name: "picture"')
    (folder / "config.pbtxt").write_text(config)
    shutil.copytree(folder / "1", folder / "3.old")
    (folder / "3.old/name_map.json").write_text("not of a version")
    lines = publish_version(compiled, folder)
    assert f"wrote {folder}/4/name_map.json, as {folder}/1/name_map.json has it" in lines
    assert (folder / "4/name_map.json").read_text() == '{"x": "picture"}'
    load(folder / "4")


def test_a_name_map_that_another_publisher_still_copies_is_not_read(compiled, tmp_path):
    """File systems without locks and renaming show it so."""
    folder = tmp_path / "m"
    publish_version(compiled, folder)
    (folder / "2").mkdir()
    (folder / "2/name_map.json").touch()
    lines = publish_version(compiled, folder)
    assert f"wrote {folder}/3/name_map.json, as {folder}/1/name_map.json has it" in lines


def test_a_version_with_other_tensors_needs_an_option(compiled, halved, tmp_path):
    folder = tmp_path / "m"
    publish_version(compiled, folder)
    before = read_all(folder)
    with pytest.raises(
        CompileError, match=r"input 'x' has type TYPE_FP32, in the executable TYPE_FP16; out"
    ):
        publish_version(halved, folder)
    assert read_all(folder) == before
    publish_version(halved, folder, overwrite_config=True)
    load(folder / "2")


def test_a_version_that_would_not_be_served_is_refused(compiled, tmp_path):
    folder = tmp_path / "m"
    publish_version(compiled, folder)
    fixed = 'parameters { key: "executable_path" value { string_value: "1/executable.popef" } }\n'
    own = fixed.replace("1/", "")
    given = (folder / "config.pbtxt").read_text()
    (folder / "config.pbtxt").write_text(given + fixed)
    with pytest.raises(CompileError, match=r"'1/executable\.popef' is one file for all versions"):
        publish_version(compiled, folder)
    (folder / "config.pbtxt").write_text(given + own)
    publish_version(compiled, folder)
    assert [version.name for version in find_versions(folder)] == ["2", "1"]


@pytest.mark.parametrize("where", ["1", "."])
def test_a_name_map_of_another_name_must_be_in_the_model_folder(compiled, tmp_path, where):
    """The folder of the next version would not contain the map."""
    folder = tmp_path / "m"
    publish_version(compiled, folder)
    (folder / where / "other.json").write_text("{}")
    with (folder / "config.pbtxt").open("a") as config:
        config.write(
            'parameters { key: "name_map_file_path" value { string_value: "other.json" } }'
        )
    if where == "1":
        with pytest.raises(CompileError, match=r"name_map_file_path 'other\.json' is not there"):
            publish_version(compiled, folder)
    else:
        publish_version(compiled, folder)


def fork(work: Callable[[], None]) -> int:
    """Start a child process that does `work` and return its pid."""
    if child := os.fork():
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(status)


@pytest.mark.slow
@pytest.mark.parametrize("locks", [True, False], ids=["locks", "without locks"])
def test_publishers_at_once_take_different_numbers(
    compiled, tmp_path, renaming, locks, monkeypatch
):
    """Readers at the same time, such as a server that polls, see whole versions only."""
    if not locks:
        monkeypatch.setattr(fcntl, "flock", refuse)
    folder, each = tmp_path / "m", 6

    def publish() -> None:
        for _ in range(each):
            publish_version(compiled, folder)

    publish_version(compiled, folder)
    publishers = [fork(publish) for _ in range(3)]
    seen = set()
    while publishers:
        for version in find_versions(folder) if renaming else []:
            assert {file.name for file in version.iterdir()} == FILES
            seen.add(version.name)
        publishers = [pid for pid in publishers if os.waitpid(pid, os.WNOHANG) == (0, 0)]
    assert {version.name for version in find_versions(folder)} == {
        str(n) for n in range(1, 3 * each + 2)
    }
    assert {path.name for path in folder.iterdir() if path.name.startswith(".")} == set()
    for version in find_versions(folder):
        load(version)


def test_one_at_a_time_where_the_first_version_comes(compiled, halved, tmp_path):
    """Two models with different tensors compete: one gets the folder, and the other is rejected."""
    children = [
        fork(lambda model=model: publish_version(model, tmp_path / "m"))
        for model in (compiled, halved)
    ]
    assert sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children) == [0, 1]
    (version,) = find_versions(tmp_path / "m")
    load(version)


def die_at(step: int, folder: Path) -> None:
    """Kill this process just before change number `step`, counted from 0, of something in the
    folder."""
    steps = itertools.count()
    changes = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove"}

    def look(event: str, arguments: tuple) -> None:
        if event in changes and str(folder) in str(arguments[0]) and next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


@pytest.mark.slow
def test_who_is_killed_at_any_step_leaves_nothing_that_is_loaded_half(compiled, tmp_path, renaming):
    before = tmp_path / "before" / "m"
    publish_version(compiled, before)
    outcomes = set()
    for step in itertools.count():
        folder = tmp_path / str(step) / "m"
        shutil.copytree(before, folder)

        def publish(step=step, folder=folder) -> None:
            die_at(step, folder)
            publish_version(compiled, folder)

        status = os.waitstatus_to_exitcode(os.waitpid(fork(publish), 0)[1])
        newest = find_versions(folder)[0]
        if {file.name for file in newest.iterdir()} == FILES and (
            newest / "executable.popef"
        ).stat().st_size:
            load(newest)
            outcomes.add(newest.name)
        else:
            assert not renaming
            outcomes.add("refused")
            with pytest.raises((ModelConfigError, ModelRuntimeError)):
                load(newest)
        publish_version(compiled, folder)
        load(find_versions(folder)[0])
        assert not list(folder.glob(".*")), "the next one clears up"
        if not status:
            break
        assert status == -signal.SIGKILL
    assert step > 8
    assert outcomes == ({"1", "2"} if renaming else {"1", "2", "refused"})


@pytest.mark.slow
def test_who_is_killed_in_a_new_model_folder_leaves_no_model_half(compiled, tmp_path):
    for step in itertools.count():
        folder = tmp_path / str(step) / "m"

        def publish(step=step, folder=folder) -> None:
            die_at(step, folder.parent)
            publish_version(compiled, folder)

        status = os.waitstatus_to_exitcode(os.waitpid(fork(publish), 0)[1])
        if (folder / "config.pbtxt").exists():
            load(folder / "1")
        publish_version(compiled, folder)
        load(find_versions(folder)[0])
        if not status:
            break
    assert step > 8


@pytest.mark.parametrize("most_bytes", [20, 200, 1000])
def test_a_full_disk_names_the_file_and_leaves_the_folder_as_it_was(compiled, tmp_path, most_bytes):
    publish_version(compiled, tmp_path / "m")
    before = read_all(tmp_path)
    file = "(executable.popef|weights.popef)"
    with (
        full_disk(most_bytes),
        pytest.raises(OSError, match=f"File too large: '{tmp_path}/m/2/{file}'"),
    ):
        publish_version(compiled, tmp_path / "m")
    assert read_all(tmp_path) == before
    with full_disk(most_bytes), pytest.raises(OSError, match="File too large"):
        publish_version(compiled, tmp_path / "new" / "m")
    assert not (tmp_path / "new").exists()


def test_an_error_while_files_are_copied_leaves_nothing(compiled, tmp_path, monkeypatch):
    publish_version(compiled, tmp_path / "m")
    before = read_all(tmp_path)
    monkeypatch.setattr(os, "rename", refuse)
    copy, given = shutil.copyfileobj, []

    def copy_two(source, target):
        given.append(target)
        if len(given) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        copy(source, target)

    monkeypatch.setattr(shutil, "copyfileobj", copy_two)
    with pytest.raises(
        OSError, match=f"No space left on device: '{tmp_path}/m/2/executable.popef'"
    ):
        publish_version(compiled, tmp_path / "m")
    assert read_all(tmp_path) == before


def test_a_publisher_waits_for_a_poprt_that_writes_into_the_folder(compiled, tmp_path):
    folder = tmp_path / "m"
    publishing = threading.Thread(target=publish_version, args=(compiled, folder))
    with ModelFolder(folder) as held:
        publishing.start()
        publishing.join(0.3)
        assert publishing.is_alive()
        held.write(compiled)
    publishing.join(PATIENCE_SECONDS)
    assert [version.name for version in find_versions(folder)] == ["2", "1"]


def test_the_command_makes_a_version_and_names_it(tmp_path, capsys):
    onnx.save(linear_model(), tmp_path / "m.onnx")
    words = ["-i", str(tmp_path / "m.onnx"), "--batch_size", "4", "--new_version"]
    for number in (1, 2):
        assert cli.main([*words, "--triton_model_dir", str(tmp_path / "repository" / "m")]) == 0
        assert f"wrote {tmp_path}/repository/m/{number}/executable.popef" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    assert "--new_version requires --triton_model_dir" in capsys.readouterr().err
