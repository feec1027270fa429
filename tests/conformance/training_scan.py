"""Say which cases of files of tests train, from their source alone.

    tests/conformance/training_scan.py FILE ...

A case trains if its function, or a function or class of the same file that it names, calls
something that takes gradients, applies them or fits a model, or if its name says that it trains.
Making an optimizer alone is not training.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TRAINING_NAMES: Final = frozenset(
    {
        "GradientTape",
        "PipelineTester",
        "accumulate_gradients",
        "apply_gradients",
        "capture_upstream_gradients",
        "create_resource_update",
        "compute_gradients",
        "fit",
        "fit_generator",
        "gradients",
        "gradient_checker",
        "gradient_checker_v2",
        "minimize",
        "optimizer_function",
        "resource_update",
        "train_on_batch",
    }
)
"""Functions, methods and arguments that only training uses."""
TRAINING_PATTERN: Final = re.compile(r"popnn_\w+_grad$|_layer_backprop$")
"""Operators that compute gradients."""
TRAINING_CASE: Final = re.compile(r"Training(?!Argument)|Gradient|Backward")
"""Names of cases that train although nothing in them says so."""

Definition = ast.FunctionDef | ast.ClassDef
Scope = dict[str, Definition]
"""Functions and classes by name."""


@dataclass(frozen=True, slots=True)
class ScannedCase:
    """A function with tests."""

    owner: str
    """Name of its class; empty for a function of the module."""
    name: str
    reason: str
    """The name for which it counts as training; empty if it does not train."""


def scan_file(path: Path) -> list[ScannedCase]:
    """Return the cases of a file in the order of its lines."""
    module = _collect_scope(ast.parse(path.read_text()))
    cases = []
    for name, definition in module.items():
        is_class = isinstance(definition, ast.ClassDef)
        methods = _collect_scope(definition) if is_class else {name: definition}
        owner = name if is_class else ""
        for member in methods.values():
            if isinstance(member, ast.FunctionDef) and member.name.startswith("test"):
                # A case that names its own class calls no other case.
                scope = {**module, **methods}
                scope.pop(owner, None)
                reason = find_reason(member, scope)
                cases.append(ScannedCase(owner, member.name, reason))
    return cases


def _collect_scope(node: ast.Module | Definition) -> Scope:
    return {child.name: child for child in node.body if isinstance(child, Definition)}


def find_reason(case: ast.FunctionDef, scope: Scope) -> str:
    """Return why a case trains, or an empty text.

    The definitions of its module and of its class that it names are searched, too.
    """
    pending: list[Definition] = [case]
    visited = {case.name}
    while pending:
        for name in _iter_names(pending.pop()):
            if name in TRAINING_NAMES or TRAINING_PATTERN.search(name):
                return name
            if name in scope and name not in visited and not name.startswith("test"):
                visited.add(name)
                pending.append(scope[name])
    return case.name if TRAINING_CASE.search(case.name) else ""


def _iter_names(definition: Definition) -> Iterator[str]:
    """Yield the names that a definition reads, calls, or gives as arguments."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg and not _is_none(node.value):
            yield node.arg


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def main() -> int:
    """Print a line for each case, and the counts."""
    trains = total = 0
    for name in sys.argv[1:]:
        for case in scan_file(Path(name)):
            total += 1
            trains += bool(case.reason)
            verdict = f"trains ({case.reason})" if case.reason else "infers"
            print(f"{name}: {case.owner}.{case.name}: {verdict}")
    print(f"{total} functions, {trains} train")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
