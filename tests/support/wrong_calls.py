"""Wrong calls of every command: each option and argument, taken from the parsers, with values that
it cannot have.

`iter_calls` makes them. `parse_call` only parses one and checks its paths; `run_call` runs it in a
child process, in a folder that `make_files` has filled. `find_faults` says what is wrong with the
answer. A wrong call ends with status 1 or 2 and one line on stderr that names the option or the
value, and writes nothing. Some calls may succeed (`Call.may_succeed`): an option with a free text,
such as the name of a file, takes any value. They must only end, without a traceback.

No value is the path of a device or lies outside the folder: root could replace it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import pickle
import re
import shutil
import signal
import sys
import time
import traceback
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from poprt import Compiler, Converter
from poprt.cli.parser import make_parser, make_tf2onnx_parser
from sample_models import linear_model

from popef._tools.arguments import Parser
from popef._tools.text import escape, shorten_words

MODULES = {
    "poplar-triton": "poplar_triton.cli",
    "poprt": "poprt.cli.command",
    "poprt_exec": "poprt.cli.exec_command",
    "popef": "popef.commands.cli",
    "popef_dump": "popef.commands.dump",
    "poplar_serving": "poplar_serving.__main__",
}
"""Module with the function `main` of each command."""
SHAPE = "x=4,4"
BASES: Mapping[str, tuple[str, ...]] = {
    "poplar-triton serve": ("models",),
    "poplar-triton tfserving": ("models",),
    "poplar-triton demo": ("models",),
    "poplar-triton build": ("models",),
    "poplar-triton profile": ("m.onnx", "--input_shape", SHAPE),
    "poplar-triton compare": ("m.onnx", "--input_shape", SHAPE, "--systems", "c600"),
    "poplar-triton tune": ("models/m", "--budget-seconds", "1"),
    "poplar-triton export": ("models/m", "exported"),
    "poplar-triton migrate": ("models", "--graphs", "m.onnx"),
    "poplar-triton install": ("backends",),
    "poplar-triton doctor": (),
    "poprt": ("--input_model", "m.onnx", "--input_shape", SHAPE),
    "poprt tf2onnx": (),
    "poprt_exec poprt_run_popef": ("--popef", "m.popef", "--iteration", "1"),
    "popef verify": ("m.popef",),
    "popef extract": ("m.popef", "--output", "out"),
    "popef diff": ("m.popef", "m.popef"),
    "popef compress": ("m.popef", "--output", "new.popef"),
    "popef decompress": ("m.popef", "--output", "new.popef"),
    "popef merge": ("m.popef", "--output", "new.popef"),
    "popef split": ("m.popef", "--output", "out"),
    "popef_dump": ("m.popef",),
    "poplar_serving build": (),
    "poplar_serving export": ("m.popef", "saved"),
    "poplar_serving sources": (),
}
"""Words of a right call of each command."""
UNBOUNDED = (
    "poplar-triton serve",
    "poplar-triton tfserving",
    "poplar-triton demo",
    "poplar-triton build",
)
"""Commands that would serve, or download a package, if a value is accepted."""
_BEFORE = {"poprt tf2onnx": ("--input_model", "m.onnx", "--framework", "tensorflow", "tf2onnx")}
"""Words before those of a part of a command line."""
_LONG = "n" * 5_000
_CONTROL, _NO_UTF_8 = "a\x1b[31mb\nc", "a\udcffb"
_NO_PATHS = ("", "m.onnx/below", "loop", _LONG)
_MISSING = ("nosuch.onnx", "nosuch/folder", "m.onx", _CONTROL, _NO_UTF_8)
_WRONG_FILES = (
    "text.onnx",
    "text.popef",
    "empty",
    "noise",
    "package.whl",
    "weights.pt",
    "array.npy",
    "models",
    "m.onnx",
    "m.popef",
)
_NUMBERS = (
    "",
    "four",
    "nan",
    "inf",
    "-1",
    "0",
    "1.5",
    "1e400",
    "-" + "9" * 30,
    "9" * 30,
    "9" * 5_000,
    "0x10",
    "1_0",
    "4 5",
    "4,5",
    _CONTROL,
    _NO_UTF_8,
)
_NUMERIC = ("N", "F", "MS", "US", "BYTES", "SECONDS", "MIB")
"""Names of the values of options that take a number."""
_TEXTS = (
    "",
    "nosuch",
    "x",
    ",",
    "=",
    "=4",
    "x=",
    "x=four",
    "x=nan",
    "x=-5,4",
    "x=" + "9" * 30,
    "x=4,4,4",
    "X=4,4",
    "nosuch=4,4",
    "batch_sise=4",
    "x=4,4=4",
    "c60",
    "4",
    "-1",
    "m.onnx",
    "nosuch.onnx",
    _CONTROL,
    _NO_UTF_8,
    _LONG,
    f"{_CONTROL}=4",
    f"{_NO_UTF_8}=4",
    f"{_LONG}=4",
)


@dataclass(frozen=True, slots=True)
class Call:
    """A wrong call of a command."""

    command: str
    words: tuple[str, ...]
    subject: str
    """Option or argument that is wrong, as the command line or the help spells it."""
    value: str
    """Its wrong value."""
    kind: str
    may_succeed: bool = False

    def __str__(self) -> str:
        words = (escape(word, 40) for word in self.words)
        return f"{self.command} {' '.join(words)} ({self.kind})"


def iter_parsers() -> Iterator[tuple[str, Parser]]:
    """Yield each command without sub-commands, and its parser."""
    for program, module in MODULES.items():
        maker = make_parser if program == "poprt" else importlib.import_module(module).make_parser
        yield from _iter_commands(program, maker())
    yield "poprt tf2onnx", make_tf2onnx_parser()


def _iter_commands(name: str, parser: Parser) -> Iterator[tuple[str, Parser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, child in action.choices.items():
                yield from _iter_commands(f"{name} {command}", child)
            return
    yield name, parser


def iter_calls() -> Iterator[Call]:
    """Yield all wrong calls of all commands."""
    for command, parser in iter_parsers():
        base = BASES[command]
        place = 0
        for action in parser._actions:
            if action.option_strings:
                yield from _iter_option(command, parser, action)
                continue
            for value in _list_values(parser, action):
                if not value.startswith("-"):
                    words = (*base[:place], value, *base[place + 1 :])
                    name = str(action.metavar or action.dest)
                    may_succeed = _may_succeed(parser, action, value)
                    yield Call(command, words, name, value, "argument", may_succeed)
            place += 1
        if not any(action.nargs in ("+", "*", "?") for action in parser._actions if place):
            yield Call(command, (*base, "surplus"), "surplus", "surplus", "argument too many")
        yield Call(command, (*base, "--zzzz"), "--zzzz", "--zzzz", "unknown option")


def _iter_option(command: str, parser: Parser, action: argparse.Action) -> Iterator[Call]:
    base = _drop(BASES[command], action)
    for spelling in action.option_strings:
        if spelling.startswith("--") and len(spelling) > len("--abcd"):
            misspelt = f"{spelling[:-2]}{spelling[-1]}"
            yield Call(command, (*base, misspelt), misspelt, spelling, "misspelt option")
    name = action.option_strings[-1]
    if action.nargs == 0:
        yield Call(command, (*base, f"{name}=surplus"), name, "surplus", "value of a flag")
        return
    if action.nargs != "?":
        yield Call(command, (*base, name), name, name, "no value")
        yield Call(command, (*base, name, "--zzzz"), name, "--zzzz", "option as a value")
    for value in _list_values(parser, action):
        words, kind = (*base, f"{name}={value}"), _name_kind(action)
        yield Call(command, words, name, value, kind, _may_succeed(parser, action, value))


def _drop(base: tuple[str, ...], action: argparse.Action) -> tuple[str, ...]:
    for place, word in enumerate(base):
        if word in action.option_strings:
            return base[:place] + base[place + 2 :]
    return base


def _name_kind(action: argparse.Action) -> str:
    if getattr(action, "complete", None):
        return "path"
    if action.choices:
        return "choice"
    return "number" if action.metavar in _NUMERIC else "text"


def _list_values(parser: Parser, action: argparse.Action) -> tuple[str, ...]:
    kind = _name_kind(action)
    if kind == "choice":
        misspelt = [_misspell(str(choice)) for choice in action.choices or ()]
        return (*misspelt, *_TEXTS)
    if kind == "path":
        return (*_NO_PATHS, *_MISSING, *_WRONG_FILES)
    return _NUMBERS if kind == "number" else _TEXTS


def _misspell(word: str) -> str:
    return f"{word[:-2]}{word[-1]}" if len(word) > len("abcd") else f"{word}x"


def _may_succeed(parser: Parser, action: argparse.Action, value: str) -> bool:
    kind = _name_kind(action)
    if not value or kind == "choice":
        return False
    if kind == "path" and action.dest in parser.inputs:
        # Which of the other files a command reads is its own to say.
        return value in _WRONG_FILES
    if kind == "path":
        return value not in _NO_PATHS
    try:
        parser._get_value(action, value)
    except argparse.ArgumentError:
        return False
    return True


def make_files(folder: Path) -> None:
    """Write the files that the calls name."""
    onnx.save(linear_model(), folder / "m.onnx")
    Compiler.compile(Converter(batch_size=4).convert(linear_model())).export(folder / "m.popef")
    model = folder / "models" / "m"
    (model / "1").mkdir(parents=True)
    shutil.copy(folder / "m.popef", model / "1" / "executable.popef")
    (model / "config.pbtxt").write_text('backend: "poplar"\nmax_batch_size: 4\n')
    (folder / "backends").mkdir()
    for name in ("text.onnx", "text.popef"):
        (folder / name).write_text("hello\nworld\n")
    (folder / "empty").touch()
    (folder / "noise").write_bytes(np.random.default_rng(0).bytes(3_000))
    with zipfile.ZipFile(folder / "package.whl", "w") as archive:
        archive.writestr("package/__init__.py", "")
    with zipfile.ZipFile(folder / "weights.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
    np.save(folder / "array.npy", np.arange(4.0))
    (folder / "loop").symlink_to("loop")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command answered to a call. `status` is None for one that did not end in time."""

    status: int | None
    out: str
    err: str
    changes: tuple[str, ...] = ()


def parse_call(call: Call, parser: Parser) -> int:
    """Parse the words of a call and check its paths, without the command's own work. Return the
    status; a line is on stderr if it is not 0."""
    try:
        parser.check_paths(parser.parse_args(call.words))
    except SystemExit as end:
        return int(end.code or 0)
    except Exception as error:  # noqa: BLE001  a defect of the parser, too
        print(f"{parser.prog}: error: {escape(shorten_words(str(error)))}", file=sys.stderr)
        return 1
    return 0


def run_call(call: Call, folder: Path, scratch: Path, most_seconds: float) -> Answer:
    """Run a call in a child of this process, in `folder`. End what it has started."""
    before = _list_state(folder)
    paths = scratch / "out", scratch / "err"
    deadline = time.monotonic() + most_seconds
    child = os.fork()
    if not child:
        _run_in_child(call, folder, paths)
    ended = 0
    while not ended and time.monotonic() < deadline:
        ended, code = os.waitpid(child, os.WNOHANG)
        time.sleep(0 if ended else 0.002)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
    after = _list_state(folder)
    names = sorted({*before, *after})
    changes = tuple(name for name in names if before.get(name) != after.get(name))
    out, err = (path.read_bytes().decode("utf-8", "replace") for path in paths)
    return Answer(os.waitstatus_to_exitcode(code) if ended else None, out, err, changes)


def _run_in_child(call: Call, folder: Path, paths: tuple[Path, Path]) -> None:
    program, *words = call.command.split()
    words = [*_BEFORE[call.command]] if call.command in _BEFORE else words
    status = 99
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in enumerate(paths, 1):
            os.dup2(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8") for number in (1, 2))
        sys.argv = [program, *words, *call.words]
        try:
            status = importlib.import_module(MODULES[program]).main([*words, *call.words])
        except SystemExit as end:
            status = int(end.code or 0)
        except BaseException:  # noqa: BLE001  the parent finds it on stderr
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _list_state(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size and the time of change of each file below a folder."""
    states = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(root, name)
            state = os.lstat(path)
            size = 0 if os.path.isdir(path) else state.st_size
            states[path] = size, 0 if os.path.isdir(path) else state.st_mtime_ns
    return states


def find_faults(call: Call, answer: Answer) -> list[str]:
    """Return what is wrong with the answer to a wrong call."""
    err = answer.err
    faults = {
        "it does not end": answer.status is None,
        f"its status is {answer.status}": answer.status not in (0, 1, 2, None),
        "it shows a traceback": "Traceback" in err or "defect of ours" in err,
        "it prints control characters": re.search(r"[\x00-\x09\x0b-\x1f\x7f]", err) is not None,
        "it prints more than a screen": len(err) > 4_000,
    }
    if answer.status != 0 or not call.may_succeed:
        lines = err.splitlines()
        message = lines[-1] if lines else ""
        if call.command == "popef verify":
            message += answer.out  # what it verifies may be anything: it prints findings
        parts = (call.value, *re.split("[=,]", call.value[:60]))
        names = (call.subject.lstrip("-"), *map(escape, parts), *(ascii(each) for each in parts))
        faults |= {
            "it succeeds": answer.status == 0,
            f"it prints {len(lines)} lines": len(lines) != 1,
            "it names neither the option nor the value": not any(
                name and name in message for name in names
            ),
            "it has no advice": call.kind == "misspelt option" and "did you mean" not in message,
            f"it writes {answer.changes}": bool(answer.changes),
        }
    return [fault for fault, holds in faults.items() if holds]
