"""Arguments of the commands: spelling of options, and what a wrong one is told."""

import pytest

from popef._tools.arguments import Parser, positive


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
def test_an_unknown_option_is_reported_by_its_command(parser, words, told, capsys):
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(words.split(" "))
    error = capsys.readouterr().err
    assert error.startswith("tool run: error: ")
    assert told in error
    assert "\x1b" not in error


def test_a_word_too_many_is_an_error(capsys):
    with pytest.raises(SystemExit, match="2"):
        Parser(prog="tool").parse_args(["more"])
    assert "unexpected argument 'more'" in capsys.readouterr().err


def test_a_file_without_its_option_is_an_error_that_names_the_option(tmp_path, capsys):
    file = tmp_path / "model.onnx"
    file.touch()
    parser = Parser(prog="tool")
    parser.add_path("-i", "--input_model")
    parser.add_path("--config_yaml")
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args([str(file)])
    assert f"did you mean --input_model {file}?" in capsys.readouterr().err


@pytest.fixture
def choosing():
    parser = Parser(prog="tool")
    parser.add_argument("--precision", choices=["fp32", "fp16"])
    parser.add_argument("--ipu_version", type=str)
    parser.add_argument("--jobs", type=positive)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("model")
    parser.synonyms["--target"] = "--ipu_version"
    parser.surplus_advice = "did you mean tool --against {word}?"
    return parser


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("m --precision fp61", "expected one of fp32, fp16, found 'fp61'; did you mean fp16?"),
        ("m --precision=", "argument --precision: expected a value, found an empty text"),
        ("m --json=true", "argument --json: expected no value, found 'true'"),
        ("m --target bow", "unknown option '--target'; did you mean --ipu_version?"),
        ("m --version 2", "unknown option '--version'; did you mean --ipu_version?"),
        ("m --fp16", "unknown option '--fp16'; did you mean --precision fp16?"),
        ("m fp16", "unexpected argument 'fp16'; did you mean --precision fp16?"),
        ("m precison=fp16", "'precison=fp16'; did you mean --precision fp16?"),
        ("a b", "unexpected argument 'b'; did you mean tool --against b?"),
        ("m --jobs 9999999999", "expected a whole number from 1 to 2147483647, found '9999999999'"),
        ("m --jobs 1_0", "expected a whole number of at least 1, found '1_0'"),
        ("m --jobs \u0663", "expected a whole number of at least 1, found '\u0663'"),
        ("m --jobs nan", "expected a whole number of at least 1, found 'nan'"),
    ],
)
def test_a_wrong_word_gets_a_suggestion(choosing, words, told, capsys):
    with pytest.raises(SystemExit, match="2"):
        choosing.parse_args(words.split(" "))
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_a_required_option_that_is_misspelt_is_not_missing(capsys):
    parser = Parser(prog="tool")
    parser.add_argument("--popef", required=True)
    for words, told in ((["--popf", "m"], "did you mean --popef?"), ([], "required: --popef")):
        with pytest.raises(SystemExit, match="2"):
            parser.parse_args(words)
        assert told in capsys.readouterr().err


def test_long_values_are_shortened_in_errors(choosing, capsys):
    for words in (
        ["m", "--jobs", "9" * 5_000],
        ["m", "--precision", "f" * 5_000],
        ["m", "n" * 5_000],
    ):
        with pytest.raises(SystemExit, match="2"):
            choosing.parse_args(words)
        assert len(capsys.readouterr().err) < 1_000
