"""Checks of paths before the work begins."""

import os
import re

import pytest

from popef._tools.arguments import Parser
from popef._tools.paths import check_input, check_output, did_you_mean_path
from popef._tools.staging import Staging
from popef.errors import PopefError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "magika").mkdir(parents=True)
    (tmp_path / "model.onnx").write_text("model")
    (tmp_path / "models" / "magika" / "config.pbtxt").touch()
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "expected", "told"),
    [
        ("modle.onnx", "file", "No such file or directory; did you mean model.onnx?"),
        ("MODEL.onnx", "path", "did you mean model.onnx?"),
        ("modls/magika/config.pbtxt", "file", "did you mean models/magika/config.pbtxt?"),
        ("models/magika/config.txt", "file", "did you mean models/magika/config.pbtxt?"),
        ("models/zzz", "folder", "No such file or directory$"),
        ("zzz/magika", "folder", "No such file or directory$"),
        ("models", "file", "expected a file, found a folder"),
        ("model.onnx", "folder", "expected a folder, found a file"),
        ("model.onnx/below", "path", "Not a directory"),
        ("loop", "path", "symbolic links"),
        ("n" * 5_000, "path", "File name too long"),
    ],
)
def test_an_input_that_is_not_there_or_of_another_kind_is_an_error(folder, path, expected, told):
    with pytest.raises(OSError, match=re.escape(path)) as caught:
        check_input(path, expected)
    assert caught.value.filename == path
    assert re.search(told.replace("?", "[?]"), caught.value.strerror)


def test_an_input_of_the_expected_kind_passes(folder):
    for path, kinds in (("model.onnx", ("file", "path")), ("models", ("folder", "path"))):
        for kind in kinds:
            check_input(path, kind)


@pytest.mark.parametrize(
    ("path", "expected", "told"),
    [
        ("models", "file", "expected a file to write, found a folder"),
        ("nosuch/report.html", "file", "nosuch"),
        ("model.onnx/report.html", "file", "expected a folder, found a file"),
        ("model.onnx", "folder", "expected a folder, found a file"),
        ("model.onnx/out", "folder", "expected a folder, found a file"),
        ("model.onnx/a/b/c", "path", "expected a folder, found a file"),
        ("loop/out", "folder", "symbolic links"),
    ],
)
def test_an_output_that_cannot_be_written_is_an_error(folder, path, expected, told):
    with pytest.raises(OSError, match=told):
        check_output(path, expected)


def test_an_output_that_can_be_written_passes(folder):
    for path, kind in (
        ("report.html", "file"),
        ("model.onnx", "file"),
        ("a/b/c", "folder"),
        ("models", "folder"),
        ("model.onnx", "path"),
        (str(folder / "new"), "path"),
    ):
        check_output(path, kind)


def test_a_near_path_is_not_looked_for_in_what_is_no_folder(folder):
    assert did_you_mean_path("model.onnx/model.onnx") == ""
    assert did_you_mean_path("") == ""


@pytest.fixture
def parser():
    parser = Parser(prog="tool")
    parser.add_path("model", reads="file")
    parser.add_path("--graphs", nargs="+", reads="path")
    parser.add_path("--html", writes="file")
    return parser


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("modle.onnx", "modle.onnx: No such file or directory; did you mean model.onnx?"),
        ("model.onnx --graphs models gone", "--graphs: gone: No such file or directory"),
        ("model.onnx --html model.onnx/r", "--html: model.onnx/r: model.onnx: expected a folder"),
        ("model.onnx --html ./model.onnx", "--html: ./model.onnx: it is an input of the same"),
        ("model.onnx --graphs models --html models", "--html: models: expected a file to write"),
    ],
)
def test_an_error_names_the_option_that_is_wrong_and_no_other(folder, parser, words, told):
    with pytest.raises(PopefError) as caught:
        parser.check_paths(parser.parse_args(words.split()))
    assert str(caught.value).startswith(told)
    assert (folder / "model.onnx").read_text() == "model"


def test_paths_that_are_not_given_and_addresses_are_not_checked(folder, parser):
    parser.check_paths(parser.parse_args(["s3://bucket/models"]))


def test_an_empty_path_is_not_the_working_directory(parser, capsys):
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args([""])
    assert "argument model: expected a value, found an empty text" in capsys.readouterr().err


def test_a_pipe_is_not_replaced_by_a_file(tmp_path):
    """Root would replace /dev/null in the same way, for all programs."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="found a device or a pipe"), Staging() as staging:
        staging.open(tmp_path / "pipe").write(b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
