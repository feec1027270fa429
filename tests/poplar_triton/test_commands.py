"""What all commands share, and what `poplar-triton` prints before any server runs."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import poplar_triton.cli
import poprt.cli.command
import poprt.cli.parser
import pytest
from onnx import TensorProto, helper
from poplar_triton import doctor
from poplar_triton.serving import command
from poplar_triton.serving.endpoint import ServedVersion
from poplar_triton.serving.log import Log
from sample_models import make_model
from waiting import PATIENCE_SECONDS

import popef
import popef.commands.cli
import popef.commands.dump
from popef._tools.arguments import Parser

EMBEDDED = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="the embedded server has no stub for it"
)
COMMANDS = {
    "popef": popef.commands.cli,
    "popef_dump": popef.commands.dump,
    "poprt": poprt.cli.command,
    "poplar-triton": poplar_triton.cli,
}
PARSERS = {
    "popef": popef.commands.cli.make_parser,
    "popef_dump": popef.commands.dump.make_parser,
    "poprt": poprt.cli.parser.make_parser,
    "poplar-triton": poplar_triton.cli.make_parser,
}
EVIL = "\x1b[31mred\n[server]"


def iter_parsers(parser: Parser) -> Iterator[Parser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from iter_parsers(child)


def run(program: str, *arguments: object) -> int:
    try:
        return COMMANDS[program].main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize("program", COMMANDS)
def test_every_command_has_a_version_and_every_help_has_examples(program, capsys):
    assert run(program, "--version") == 0
    assert " 0." in capsys.readouterr().out
    for parser in iter_parsers(PARSERS[program]()):
        assert not parser.allow_abbrev
        examples = parser.format_help().partition("\nexamples:\n")[2].splitlines()
        assert examples, parser.prog
        assert all(
            line.startswith(f"  {parser.prog} ") or f"{program} " in line for line in examples
        )


@pytest.mark.parametrize("program", COMMANDS)
def test_a_call_without_what_it_is_about_is_status_2(program, capsys):
    assert run(program) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{program}: error: the following arguments are required: ")
    assert line.endswith(f"; see {program} --help")


@pytest.mark.parametrize("program", COMMANDS)
@pytest.mark.parametrize(
    "content", [b'{"graph": {"a": [1]}}', b"hello\nworld\n", b"", b"\xff\xfe\x00" * 99]
)
@pytest.mark.parametrize("suffix", [".json", ".txt", ".onnx", ".popef", ".onnxtxt", ".textproto"])
def test_files_of_another_kind_are_one_line(program, content, suffix, tmp_path, capsys):
    before = {
        "popef": ["extract"],
        "popef_dump": [],
        "poprt": ["-i"],
        "poplar-triton": ["profile"],
    }[program]
    (tmp_path / f"some{suffix}").write_bytes(content)
    assert run(program, *before, tmp_path / f"some{suffix}") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{program}: error: ")
    assert "defect" not in line


SCRIPT = """
eval "$("$@" --print_completion bash)"
complete_for() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    function=$(complete -p "$1" | sed 's/.*-F \\([^ ]*\\).*/\\1/')
    "$function" "$1" "${COMP_WORDS[$COMP_CWORD]}" "${COMP_WORDS[$COMP_CWORD-1]}"
    echo "${COMPREPLY[@]}"
}
while read -r -a words; do complete_for "${words[@]%@}"; done
"""
"""Script that completes the last word of each line of stdin, without a last @."""
COMPLETIONS = {
    "poprt": {
        "--preci@": "--precision --precision_compare",
        "--precision @": "fp32 fp16 fp8 fp8_weight",
        "-i mod@": "model.onnx models",
    },
    "popef": {
        "ver@": "verify",
        "extract --type da@": "dataTensor dataFeed",
        "verify model@": "model.onnx models",
    },
    "popef_dump": {"--w@": "--words", "mode@": "model.onnx models"},
    "poplar-triton": {
        "@": "serve tfserving demo build profile compare tune export migrate install doctor",
        "serve mod@": "models",
        "profile --tra@": "--trace",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("program", COMPLETIONS)
def test_bash_completes_options_values_and_paths(program, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "model.onnx").touch()
    lines = "".join(f"{program} {line}\n" for line in COMPLETIONS[program])
    command = ["bash", "--norc", "-c", SCRIPT, "bash", str(Path(sys.executable).with_name(program))]
    done = subprocess.run(
        command,
        input=lines,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
        cwd=tmp_path,
    )
    assert done.stderr == ""
    assert [set(line.split()) for line in done.stdout.splitlines()] == [
        set(want.split()) for want in COMPLETIONS[program].values()
    ]


def test_zsh_gets_a_script_of_its_own(capsys):
    assert run("poprt", "--print_completion", "zsh") == 0
    assert capsys.readouterr().out.startswith("#compdef poprt")
    assert run("poprt", "--print_completion", "tcsh") == 2


def test_completion_without_shtab_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert run("popef", "--print_completion", "bash") == 1
    assert "`pip install shtab`" in capsys.readouterr().err


@pytest.mark.parametrize("command", [pytest.param("serve", marks=EMBEDDED), "demo", "build"])
def test_an_empty_repository_is_an_error(command, tmp_path, capsys):
    assert run("poplar-triton", command, tmp_path) == 1
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("poplar-triton: error: ")
    assert str(tmp_path) in line


@EMBEDDED
@pytest.mark.parametrize("inside", ["1/executable.popef", "config.pbtxt"])
def test_a_model_folder_is_no_repository(inside, tmp_path, capsys):
    file = tmp_path / "models" / "mine" / inside
    file.parent.mkdir(parents=True)
    file.touch()
    assert run("poplar-triton", "serve", tmp_path / "models" / "mine") == 1
    assert (
        f"looks like a model folder; serve its parent, {tmp_path / 'models'}"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("serve", "models", "--http-port", "99999"),
            "expected a whole number from 0 to 65535, found '99999'",
        ),
        pytest.param(
            ("serve", "models", "--", "--http-port=9"),
            "--http-port: expected before the --, found after it",
            marks=EMBEDDED,
        ),
        (("serve", "models", "--http", "9"), "unknown option '--http'"),
    ],
)
def test_wrong_calls_are_status_2(arguments, said, tmp_path, monkeypatch, capsys):
    (tmp_path / "models/mine/1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert run("poplar-triton", *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert line.endswith(" --help")


def test_doctor_shows_what_it_found_as_it_is_and_whole(monkeypatch, capsys):
    finding = doctor.MachineFinding(
        "tritonserver", EVIL, f"install the extra [server], {'or not ' * 40}[/bold]"
    )
    monkeypatch.setattr(doctor, "examine", lambda: [finding])
    monkeypatch.setattr(doctor, "SDK_PACKAGES", ())
    assert run("poplar-triton", "doctor") == 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "tritonserver" in line)
    assert finding.remedy in line
    assert r"\x1b[31mred\n[server]" in line


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """Write a model whose names contain control characters, line breaks and markup."""
    x, y = f"x{EVIL}", f"y{EVIL}"
    nodes = [
        helper.make_node("Tanh", [x], ["t"], name=f"n{EVIL}"),
        helper.make_node("Exp", ["t"], [y], name=f"m{EVIL}"),
    ]
    kind = (TensorProto.FLOAT, [2, 3])
    onnx.save(make_model(nodes, {x: kind}, {y: kind}, {}), tmp_path / "evil.onnx")
    return tmp_path / "evil.onnx"


@pytest.mark.parametrize(
    "command",
    [
        [
            "poprt",
            "-i",
            "evil.onnx",
            "--show",
            "--precision",
            "fp16",
            "--export_popef",
            "--show_profile",
        ],
        ["poprt", "-i", "evil.onnx", "--input_shape", "x=1"],
        ["poprt", "-i", "evil.onnx", "--remove_outputs", f"z{EVIL}", "--show"],
        ["poprt", "-i", f"no{EVIL}"],
        ["poplar-triton", "profile", "evil.onnx"],
        ["poplar-triton", "profile", "evil.onnx", "--input_shape", "x=1"],
        ["poplar-triton", "profile", "evil.onnx", "--sweep", "batch_size=2"],
        ["poplar-triton", "serve", f"no{EVIL}"],
    ],
)
def test_names_reach_no_terminal_raw(command, evil, monkeypatch, capfd):
    monkeypatch.chdir(evil.parent)
    run(command[0], *command[1:])
    out, err = capfd.readouterr()
    assert "\x1b" not in out + err
    assert not any(line.startswith("[server]") for line in (out + err).splitlines())


def test_each_unserved_model_is_reported_in_one_line(capsys):
    class Server:
        def list_models(self) -> list[ServedVersion]:
            failed = {EVIL: "\x1b[2Jbad\nmore", "b": "why"}
            found = [ServedVersion(name, "", "UNAVAILABLE", failed[name]) for name in failed]
            return [ServedVersion("a", "1", "READY", ""), *found]

    with Log() as log:
        assert command._list_served(Server(), log.tell) == ["a"]
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(r"[server]' is not served: \x1b[2Jbad")
    assert second.endswith("Z model 'b' is not served: why")


def test_tables_are_neither_wrapped_nor_cut_where_there_is_no_terminal(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    name = "a_rather_long_name_of_a_node/" * 12
    kind = (TensorProto.FLOAT, [2, 3])
    model = make_model(
        [helper.make_node("Tanh", ["x"], ["y"], name=name)], {"x": kind}, {"y": kind}, {}
    )
    onnx.save(model, tmp_path / "m.onnx")
    assert run("poplar-triton", "profile", tmp_path / "m.onnx") == 0
    out = capsys.readouterr().out
    assert name in out
    assert "of the fullest tile: fits\n" in out


@pytest.mark.slow
def test_a_warning_is_one_plain_line_where_there_is_no_terminal(tmp_path):
    script = (
        "import logging; from poprt.terminal import configure_logging; configure_logging('poprt', "
        f"'WARNING');logging.getLogger('poprt').warning('%s [bold]x[/bold] {'y' * 300}', {EVIL!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert (
        done.stderr == rf"poprt: warning: \x1b[31mred\n[server] [bold]x[/bold] {'y' * 300}" + "\n"
    )


@pytest.mark.parametrize("option", ["--html", "--trace"])
def test_a_report_that_cannot_be_written_names_its_option(option, evil, capsys):
    assert run("poplar-triton", "profile", evil, option, "/proc/none/file") == 1
    assert (
        capsys.readouterr().err
        == f"poplar-triton: error: {option}: /proc/none/file: /proc/none: No such file or directory\n"
    )


def test_two_models_are_compared_by_another_command(capsys):
    assert run("poplar-triton", "compare", "a.onnx", "b.onnx") == 2
    expected = "did you mean poplar-triton profile MODEL --compare b.onnx?"
    assert expected in capsys.readouterr().err


def test_a_misspelt_command_gets_a_suggestion(capsys):
    for program, word, near in (
        ("poplar-triton", "profil", "profile"),
        ("popef", "veryfy", "verify"),
    ):
        assert run(program, word) == 2
        assert f"did you mean {near}?" in capsys.readouterr().err


def test_a_folder_without_a_triton_is_an_error_with_a_remedy(tmp_path, capsys):
    assert run("poplar-triton", "install", tmp_path / "gone") == 1
    assert "gone: No such file or directory" in capsys.readouterr().err
    assert run("poplar-triton", "install", tmp_path) == 1
    assert "`find / -name libtriton_python.so` shows where one is" in capsys.readouterr().err
