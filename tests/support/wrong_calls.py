"""Wrong calls of every command: each option and argument, taken from the parsers, with values that
it cannot have.

`iter_calls` makes them, `run_call` runs one in a folder of its own and `find_faults` says what is
wrong with the answer. A command must end with status 1 or 2 and one line on stderr that names the
option or the value, and must write nothing. Values that an option does accept are listed in
`ACCEPTED`.
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
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from sample_models import linear_model

from popef._tools.arguments import Parser
from popef._tools.text import escape

MODULES = {
    "poplar-triton": "poplar_triton.cli",
    "poprt": "poprt.cli.command",
    "poprt_exec": "poprt.cli.exec_command",
    "popef": "popef.commands.cli",
    "popef_dump": "popef.commands.dump",
    "poplar_serving": "poplar_serving.__main__",
}
"""Module of each command."""
_X = "x=4,4"
BASES: Mapping[str, list[str]] = {
    "poplar-triton serve": ["models"],
    "poplar-triton tfserving": ["models"],
    "poplar-triton demo": ["models"],
    "poplar-triton build": ["models"],
    "poplar-triton profile": ["m.onnx", "--input_shape", _X],
    "poplar-triton compare": [
        "m.onnx",
        "--input_shape",
        _X,
        "--systems",
        "c600",
        "--seconds",
        ".1",
    ],
    "poplar-triton tune": ["models/m", "--budget-seconds", "1"],
    "poplar-triton export": ["models/m", "exported"],
    "poplar-triton migrate": ["models", "--graphs", "m.onnx"],
    "poplar-triton install": ["backends"],
    "poplar-triton doctor": [],
    "poprt": ["-i", "m.onnx", "--input_shape", _X],
    "poprt tf2onnx": ["-i", "m.onnx", "--framework", "tensorflow", "tf2onnx"],
    "poprt_exec poprt_run_popef": ["--popef", "m.popef", "--iteration", "1"],
    "popef verify": ["m.popef"],
    "popef extract": ["m.popef", "-o", "out"],
    "popef diff": ["m.popef", "m.popef"],
    "popef compress": ["m.popef", "-o", "new.popef"],
    "popef decompress": ["m.popef", "-o", "new.popef"],
    "popef merge": ["m.popef", "-o", "new.popef"],
    "popef split": ["m.popef", "-o", "out"],
    "popef_dump": ["m.popef"],
    "poplar_serving build": [],
    "poplar_serving export": ["m.popef", "saved"],
    "poplar_serving sources": [],
}
"""Words of a right call of each command."""
_LONG = "n" * 5_000
_CONTROL, _NO_UTF_8 = "a\x1b[31mb\nc", "a\udcffb"
_PATHS = (
    "nosuch.onnx",
    "nosuch/folder",
    "folder",
    "m.onnx",
    "m.popef",
    "text.onnx",
    "text.popef",
    "empty",
    "noise",
    "package.whl",
    "weights.pt",
    "array.npy",
    "m.onnx/below",
    "loop",
    "",
    _LONG,
    _CONTROL,
    _NO_UTF_8,
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
    "4 5",
    "4,5",
    _CONTROL,
    _NO_UTF_8,
)
_TEXTS = ("", "nosuch", "=", ",", "/", "..", _CONTROL, _NO_UTF_8, _LONG)
_PAIRS = (
    "",
    "x",
    "=",
    "=4",
    "x=",
    "x=four",
    "x=nan",
    "x=-5,4",
    "x=" + "9" * 30,
    "x=4,4,4",
    "xx=4,4",
    "nosuch=4,4",
    "batch_sise=4",
    "x=4,4=4",
    f"{_CONTROL}=4",
    f"{_NO_UTF_8}=4",
    f"{_LONG}=4",
)


@dataclass(frozen=True, slots=True)
class Call:
    """A wrong call: the command, its words, and what the message must name one of."""

    command: str
    words: tuple[str, ...]
    subject: str
    """Option or argument that is wrong."""
    value: str
    """Its wrong value, or what it was misspelt from."""
    kind: str

    def __str__(self) -> str:
        words = (word if len(word) < 60 else f"{word[:9]}..." for word in self.words)
        return f"{self.command}: {self.kind}: {' '.join(map(ascii, words))}"


def iter_parsers() -> Iterator[tuple[str, Parser]]:
    """Yield each command that has no sub-commands, with its parser."""
    from poprt.cli.parser import make_parser, make_tf2onnx_parser

    for program, module in MODULES.items():
        maker = getattr(importlib.import_module(module), "make_parser", None)
        yield from _iter_commands(program, (maker or make_parser)())
    yield "poprt tf2onnx", make_tf2onnx_parser()


def _iter_commands(name: str, parser: Parser) -> Iterator[tuple[str, Parser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, child in action.choices.items():
                yield from _iter_commands(f"{name} {command}", child)
            return
    yield name, parser


def iter_calls() -> Iterator[Call]:
    """Yield all wrong calls."""
    for command, parser in iter_parsers():
        base = BASES[command]
        options = [action for action in parser._actions if action.option_strings]
        operands = [action for action in parser._actions if not action.option_strings]
        for action in options:
            yield from _iter_option(command, base, action)
        for place, action in enumerate(operands):
            for value in _list_values(action):
                words = [*base]
                if place < len(words):
                    words[place] = value
                else:
                    words.append(value)
                if value.startswith("-"):
                    continue
                name = str(action.metavar or action.dest)
                yield Call(command, tuple(words), name, value, "operand")
        yield Call(command, (*base, "surplus"), "surplus", "surplus", "surplus")
        yield Call(command, (*base, "--nosuch"), "--nosuch", "--nosuch", "unknown")


def _iter_option(command: str, base: list[str], action: argparse.Action) -> Iterator[Call]:
    name = action.option_strings[-1]
    for spelling in action.option_strings:
        if spelling.startswith("--") and len(spelling) > 6:
            misspelt = f"{spelling[:-2]}{spelling[-1]}"
            yield Call(command, (*base, misspelt), misspelt, spelling, "misspelt option")
    if action.nargs == 0:
        yield Call(command, (*base, f"{name}=surplus"), name, "surplus", "value of a flag")
        return
    if action.nargs != "?":
        yield Call(command, (*base, name), name, name, "no value")
        yield Call(command, (*base, name, "--nosuch"), name, "--nosuch", "an option as value")
    for value in _list_values(action):
        kept = _drop(base, action)
        yield Call(command, (*kept, f"{name}={value}"), name, value, _name_kind(action))


def _drop(base: list[str], action: argparse.Action) -> list[str]:
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


_NUMERIC = ("N", "F", "MS", "US", "BYTES", "SECONDS", "MIB")


def _list_values(action: argparse.Action) -> tuple[str, ...]:
    kind = _name_kind(action)
    if kind == "path":
        return _PATHS
    if kind == "choice":
        near = [_misspell(str(choice)) for choice in action.choices or ()]
        return (*near, *_TEXTS, "c600", "4", "m.onnx")
    if kind == "number":
        return _NUMBERS
    return (*_PAIRS, *_TEXTS, "c60", "4", "-1", "m.onnx", "nosuch.onnx")


def _misspell(word: str) -> str:
    return f"{word[:-2]}{word[-1]}" if len(word) > 4 else f"{word}x"


def make_files(folder: Path) -> None:
    """Write the files that the calls name."""
    from poprt import Compiler, Converter

    onnx.save(linear_model(), folder / "m.onnx")
    compiled = Compiler.compile(Converter(batch_size=4).convert(linear_model()))
    compiled.export(folder / "m.popef")
    model = folder / "models" / "m"
    (model / "1").mkdir(parents=True)
    shutil.copy(folder / "m.popef", model / "1" / "executable.popef")
    (model / "config.pbtxt").write_text('backend: "poplar"\nmax_batch_size: 4\n')
    (folder / "folder").mkdir()
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
    """What a call answered. `status` is None for one that was ended after its time."""

    status: int | None
    out: str
    err: str
    changes: tuple[str, ...]
    seconds: float


def list_state(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size and the time of change of each file below a folder."""
    found = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(root, name)
            state = os.lstat(path)
            is_folder = os.path.isdir(path)
            found[os.path.relpath(path, folder)] = (
                (0, 0) if is_folder else (state.st_size, state.st_mtime_ns)
            )
    return found


def load_commands() -> dict[str, Callable[[list[str]], int]]:
    """Return the function of each command."""
    return {name: importlib.import_module(module).main for name, module in MODULES.items()}


def run_call(call: Call, folder: Path, scratch: Path, most_seconds: float) -> Answer:
    """Run a call in a child of this process, in `folder`; end what it has started."""
    main = importlib.import_module(MODULES[call.command.split()[0]]).main
    program, *sub = call.command.split()
    words = [*sub, *call.words] if call.command != "poprt tf2onnx" else [*call.words]
    before = list_state(folder)
    paths = scratch / "out", scratch / "err"
    start = time.monotonic()
    child = os.fork()
    if not child:
        status = 99
        try:
            os.setsid()
            os.chdir(folder)
            for number, path in zip((1, 2), paths, strict=True):
                file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
                os.dup2(file, number)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
            sys.stderr = open(2, "w", encoding="utf-8", closefd=False)
            sys.argv = [program, *words]
            try:
                status = main(words)
            except SystemExit as end:
                status = int(end.code or 0)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)
    ended = 0
    while not ended and time.monotonic() - start < most_seconds:
        ended, wait_status = os.waitpid(child, os.WNOHANG)
        time.sleep(0 if ended else 0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    ended_by_itself = bool(ended)
    if not ended_by_itself:
        os.waitpid(child, 0)
    exit_status = os.waitstatus_to_exitcode(wait_status) if ended_by_itself else None
    seconds = time.monotonic() - start
    after = list_state(folder)
    changes = tuple(
        sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    )
    out, err = (path.read_bytes().decode("utf-8", "replace") for path in paths)
    return Answer(exit_status, out, err, changes, seconds)


def find_faults(call: Call, answer: Answer) -> list[str]:
    """Return what is wrong with the answer to a wrong call."""
    lines = answer.err.splitlines()
    message = lines[-1] if lines else ""
    value = call.value.partition("=")[0][:60]
    named = (call.subject, call.subject.lstrip("-"), escape(value))
    faults = {
        "does not end": answer.status is None,
        f"status {answer.status}": answer.status not in (1, 2, None),
        "traceback": "Traceback" in answer.err,
        "defect": "defect of ours" in answer.err,
        "lines": len(lines) != 1,
        "control": re.search(r"[\x00-\x09\x0b-\x1f\x7f]", answer.err) is not None,
        "names nothing": not any(name and name in message for name in named),
        "long": len(message) > 1_000,
        "wrote": bool(answer.changes),
        "output": bool(answer.out),
    }
    if call.kind in ("misspelt option",):
        faults["no advice"] = "did you mean" not in message
    return [name for name, holds in faults.items() if holds]
