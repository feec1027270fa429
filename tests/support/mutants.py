"""Mutation test: changes a room's code at random places, one at a time, and runs its fast tests to
detect it.

    tests/support/mutants.py ROOM [--count N] [--seed N] [--seconds N]

The code is changed in a copy, by the operators of cosmic-ray. Of the room's tests those run that
execute the changed line, the quickest first. A change that no test fails at has survived. It is
printed: either a test is missing, or the change has no effect that a user could see. Code without
an effect on tests is left alone: annotations and text, aliases of types, whether a dataclass is
frozen or has slots and a zip is strict, imports for types only, and the length of a wait.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import coverage
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parents[2]
ROOMS = {
    "popef": "popef",
    **{
        room: f"backend/{room}"
        for room in (
            "onnxgraph",
            "simipu",
            "model_runtime",
            "poprt",
            "triton_poplar",
            "poplar_triton",
        )
    },
}
"""Folder of the code of each room; its tests are in `tests/` under the same name."""
FURTHER_TESTS: Mapping[str, Sequence[str]] = {
    "onnxgraph": ("tests/poprt", "tests/simipu"),
    "model_runtime": ("tests/poprt/compile/test_model_fusion.py",),
    "simipu": ("tests/poprt/test_operator_table.py",),
}
"""Further tests of rooms that are also tested through those above them."""
_KERNELS = "backend/simipu/kernels/libsimipu.so"
"""Built file that the copy needs, too: some tests need the kernels."""
MUTANT_SECONDS = 90
"""Time limit after which a changed program counts as noticed, because it does not end any more."""
SLOWEST = 3
"""Times as long all tests of a room may take with a change, if that is more: other work may have
begun."""
MAX_TESTS = 400
"""Maximum number of tests for each mutant: a line that so many run through is noticed by the first,
or by none."""
PARAMETRISED = frozenset({"core/VariableInserter", "core/VariableReplacer"})
"""Operators that need names of variables as parameters."""
EXCEPTIONS = "core/ExceptionReplacer"
Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the `occurrence`-th place in a file where an operator can change something."""

    file: Path
    line: int
    operator: str
    occurrence: int


def main() -> None:
    """Try the mutants, and say how many were noticed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("room", choices=ROOMS)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=MUTANT_SECONDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        _copy_checkout(copy)
        tests = [f"tests/{options.room}", *FURTHER_TESTS.get(options.room, ())]
        tests = [path for path in tests if (copy / path).exists()]
        started = time.monotonic()
        reached = _find_tests(copy, options.room, tests)
        patience = max(options.seconds, SLOWEST * (time.monotonic() - started))
        chosen = _choose(copy / ROOMS[options.room], options.count, options.seed)
        survivors = 0
        for number, mutant in enumerate(chosen, 1):
            # Coverage does not see lines that only child processes run: any test may notice a
            # change.
            reaching_tests = reached.get((mutant.file, mutant.line), [])
            seconds = patience if set(reaching_tests) <= set(tests) else options.seconds
            change, noticed = _try(copy, mutant, reaching_tests or tests, seconds)
            survivors += not noticed
            place = f"{mutant.file.relative_to(copy)}:{mutant.line}"
            unseen = "" if reaching_tests else ", which no test is seen to come through"
            print(
                f"{number}/{len(chosen)} {'noticed ' if noticed else 'SURVIVED'} {place}{unseen}",
                flush=True,
            )
            if not noticed:
                print(change, flush=True)
    noticed_share = 1 - survivors / max(1, len(chosen))
    print(
        f"{options.room}: {len(chosen) - survivors} of {len(chosen)} noticed ({noticed_share:.2f})"
    )


def _copy_checkout(folder: Path) -> None:
    listed = subprocess.run(
        ["/usr/bin/env", "git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in (*listed.splitlines(), _KERNELS):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def _run_tests(folder: Path, arguments: Sequence[str], seconds: float | None = None) -> str | None:
    """Return the output of pytest if a test fails, None if all pass.

    The code of the copy takes precedence over the installed one.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        "not server and not slow and not tensorflow",
    ]
    path = os.pathsep.join([str(folder / "backend"), str(folder)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    # A separate process group, so that children of a changed program do not outlive it.
    with subprocess.Popen(
        [*command, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as tests:
        try:
            output, _ = tests.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as late:
            return str(late)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(tests.pid, signal.SIGKILL)
    return output if tests.returncode else None


def _find_tests(folder: Path, room: str, tests: Sequence[str]) -> dict[tuple[Path, int], list[str]]:
    """Return the tests that run each line, those that run few lines first."""
    arguments = [f"--cov={folder / ROOMS[room]}", "--cov-context=test", "--cov-report=", *tests]
    if (failure := _run_tests(folder, arguments)) is not None:
        raise SystemExit(f"{failure}\nthe tests of {room} fail without a change: mend them first")
    data = coverage.CoverageData(str(folder / ".coverage"))
    data.read()
    tests_by_line: dict[tuple[Path, int], list[str]] = {}
    lines_of: dict[str, int] = {}
    for file in data.measured_files():
        for line, contexts in data.contexts_by_lineno(file).items():
            # Lines that run when the module is imported, mostly tables, belong to every test.
            names = sorted({context.partition("|")[0] for context in contexts if context}) or list(
                tests
            )
            tests_by_line[Path(file), line] = names
            for name in names:
                lines_of[name] = lines_of.get(name, 0) + 1
    for names in tests_by_line.values():
        names.sort(key=lambda name: lines_of[name])
    return tests_by_line


def _choose(folder: Path, count: int, seed: int) -> list[Mutant]:
    """Choose places first, then the change at each: some places have dozens of operators, others
    one."""
    places: dict[tuple[Path, Position], list[Mutant]] = {}
    for file in sorted(folder.rglob("*.py")):
        if not file.name.endswith("_pb2.py"):
            for position, mutant in _iter_mutants(file):
                places.setdefault((file, position), []).append(mutant)
    # Repeatable, and not used for secrets.
    draw = random.Random(seed)
    drawn = draw.sample(sorted(places), min(count, len(places)))
    return [draw.choice(places[place]) for place in drawn]


def _iter_mutants(file: Path) -> Iterator[tuple[Position, Mutant]]:
    text = file.read_text()
    idle, lines = _idle_lines(text), text.splitlines()
    tree = get_ast(text)
    nodes = list(ast_nodes(tree))
    for name in sorted(set(operator_names()) - PARAMETRISED):
        operator = get_operator(name)()
        places = [
            (node, position) for node in nodes for position in operator.mutation_positions(node)
        ]
        for occurrence, (node, (start, end)) in enumerate(places):
            # Replacing a signature's lone * is no Python, or changes only how arguments are passed.
            is_mark = node.parent is not None and node.parent.type in ("parameters", "lambdef")
            # cosmic-ray replaces plain names only; with queue.Empty or *ERRORS it raises an error.
            caught = lines[start[0] - 1][start[1] : end[1]]
            is_unsupported = name == EXCEPTIONS and not caught.isidentifier()
            if not (
                is_mark or is_unsupported or any(first <= start < last for first, last in idle)
            ):
                yield start, Mutant(file, start[0], name, occurrence)


def _idle_lines(text: str) -> list[tuple[Position, Position]]:
    """Return the places where a change has no effect that a test could detect."""
    tree = ast.parse(text)
    expressions = [expression for node in ast.walk(tree) for expression in _iter_idle(node)]
    # Public aliases of types have names like classes, and no code computes with them.
    expressions += [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.BinOp)
        and _names_type(node.targets[0])
    ]
    return [
        (
            (expression.lineno, expression.col_offset),
            (expression.end_lineno, expression.end_col_offset),
        )
        for expression in expressions
        if expression.end_lineno is not None and expression.end_col_offset is not None
    ]


def _iter_idle(node: ast.AST) -> Iterator[ast.expr]:
    for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
        if isinstance(annotation, ast.expr):
            yield annotation
    if isinstance(node, ast.ClassDef):
        # No code assigns to frozen fields, and slots save memory: both are for readers and for
        # mypy.
        for keyword in (
            argument
            for call in node.decorator_list
            if isinstance(call, ast.Call)
            for argument in call.keywords
        ):
            if keyword.arg in ("frozen", "slots"):
                yield keyword.value
    if (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    ):
        yield node.test
    if isinstance(node, ast.Call):
        yield from _iter_waits(node)
        # An assertion: both are as long wherever it stands.
        yield from (
            argument.value
            for argument in node.keywords
            if argument.arg == "strict" and _is_zip(node.func)
        )


def _iter_waits(call: ast.Call) -> Iterator[ast.expr]:
    """Yield literal seconds of a pause or of a limit: no test asserts a time."""
    pauses = call.args if isinstance(call.func, ast.Attribute) and call.func.attr == "sleep" else []
    for argument in (
        *pauses,
        *(keyword.value for keyword in call.keywords if keyword.arg == "timeout"),
    ):
        if isinstance(argument, ast.Constant):
            yield argument


def _is_zip(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id == "zip"


def _names_type(target: ast.expr) -> bool:
    return (
        isinstance(target, ast.Name)
        and target.id.lstrip("_")[:1].isupper()
        and not target.id.isupper()
    )


def _try(folder: Path, mutant: Mutant, tests: Sequence[str], seconds: float) -> tuple[str, bool]:
    """Return the change, as a difference, and whether a test fails with it."""
    text = mutant.file.read_text()
    changed = mutate_code(text, get_operator(mutant.operator)(), mutant.occurrence)
    try:
        mutant.file.write_text(changed)
        lines = difflib.unified_diff(text.splitlines(), changed.splitlines(), n=0, lineterm="")
        shown = "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))
        chosen = tests[:MAX_TESTS]
        return shown, _run_tests(folder, chosen, seconds) is not None
    finally:
        mutant.file.write_text(text)


if __name__ == "__main__":
    main()
