"""Every option of every command with values that it cannot have: one line that names it, no
traceback, and nothing written. `make wrong-calls` runs all calls; see tests/support/wrong_calls.py.
"""

from __future__ import annotations

import os
import random
import shutil
from importlib import util
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS
from wrong_calls import (
    UNBOUNDED,
    Answer,
    find_faults,
    iter_calls,
    iter_parsers,
    make_files,
    parse_call,
    run_call,
)

PARSERS = dict(iter_parsers())
CALLS = [call for call in iter_calls() if call.command in PARSERS]
AT_ONCE = ("choice", "number", "misspelt option", "unknown option", "value of a flag", "no value")
"""Kinds of calls that the parser alone refuses."""
TENSORFLOW = ("poprt tf2onnx", "poplar_serving build", "poplar_serving export")
"""Commands that only ask for TensorFlow where it is missing."""
NUM_RUN = 60
"""Number of calls that a run of the tests makes; WRONG_CALLS=all makes all."""
ALL = os.environ.get("WRONG_CALLS") == "all"


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wrong_calls")
    make_files(folder)
    return folder


@pytest.mark.parametrize("command", PARSERS)
def test_the_parser_refuses_what_an_option_cannot_have(command, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    for call in CALLS:
        if call.command == command and call.kind in AT_ONCE and not call.may_succeed:
            status = parse_call(call, PARSERS[command])
            answer = Answer(status, *capsys.readouterr())
            assert not find_faults(call, answer), (str(call), answer)


@pytest.mark.parametrize("command", PARSERS)
def test_the_parser_refuses_paths_that_are_not_there(command, files, monkeypatch, capsys):
    parser = PARSERS[command]
    checked = {*parser.inputs, *parser.outputs}
    names = {
        str(action.option_strings[-1] if action.option_strings else action.metavar or action.dest)
        for action in parser._actions
        if action.dest in checked
    }
    monkeypatch.chdir(files)
    for call in CALLS:
        if call.command == command and call.subject in names and not call.may_succeed:
            status = parse_call(call, parser)
            answer = Answer(status, *capsys.readouterr())
            assert not find_faults(call, answer), (str(call), answer)


def run_all(calls, files, folder):
    faults = []
    for call in calls:
        copy = folder / "files"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(files, copy, symlinks=True)
        answer = run_call(call, copy, folder, PATIENCE_SECONDS)
        faults += [(str(call), fault, answer.err[-300:]) for fault in find_faults(call, answer)]
    return faults


@pytest.mark.slow
def test_a_command_refuses_what_it_cannot_use(files, tmp_path):
    """A sample of the calls: those of `make wrong-calls` take minutes."""
    others = UNBOUNDED if util.find_spec("tensorflow") else (*UNBOUNDED, *TENSORFLOW)
    calls = [call for call in CALLS if call.command not in others or not call.may_succeed]
    chosen = calls if ALL else random.Random(0).sample(calls, NUM_RUN)
    faults = run_all(chosen, files, tmp_path)
    assert not faults, "\n".join(map(str, faults))
