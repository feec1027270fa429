"""Arguments of the commands: spelling of options, and what a wrong one is told."""

import pytest

from popef._tools.arguments import Parser


@pytest.fixture
def parser():
    parser = Parser(prog="tool")
    command = parser.add_subparsers(required=True).add_parser("run")
    command.add_argument("--batch_size", type=int)
    command.add_argument("--http-port", type=int)
    command.add_argument("files", nargs="*")
    return parser


@pytest.mark.parametrize("name", ["--batch_size", "--batch-size", "--http-port", "--http_port"])
def test_a_hyphen_and_an_underscore_mean_the_same_in_an_option(parser, name):
    for words in ([name, "3"], [f"{name}=3"]):
        options = parser.parse_args(["run", *words])
        assert 3 in (options.batch_size, options.http_port)


def test_a_value_and_words_behind_two_hyphens_keep_their_spelling(parser):
    assert parser.parse_args(["run", "a-b_c", "--", "--batch-size"]).files == [
        "a-b_c",
        "--batch-size",
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("run --batchsize 3", "unknown option '--batchsize'; did you mean --batch_size?"),
        ("run --zzz", "unknown option '--zzz'; see tool run --help"),
        ("run --zzz=secret", "unknown option '--zzz'; see"),
        ("run \x1b --z\x1b", "unknown option '--z\\x1b'"),
    ],
)
def test_an_unknown_option_is_told_by_its_command(parser, words, told, capsys):
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(words.split(" "))
    error = capsys.readouterr().err
    assert error.startswith("tool run: error: ")
    assert told in error
    assert "\x1b" not in error


def test_a_word_too_many_is_told(capsys):
    with pytest.raises(SystemExit, match="2"):
        Parser(prog="tool").parse_args(["more"])
    assert "unexpected argument 'more'" in capsys.readouterr().err


def test_a_file_without_its_option_is_told_the_option(tmp_path, capsys):
    file = tmp_path / "model.onnx"
    file.touch()
    parser = Parser(prog="tool")
    parser.add_path("-i", "--input_model")
    parser.add_path("--config_yaml")
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args([str(file)])
    assert f"did you mean --input_model {file}?" in capsys.readouterr().err
