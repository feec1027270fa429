"""Tests that no test fails on a busy machine: each wait for what must happen is a long one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

TESTS = Path(__file__).parent
WAITS = frozenset(
    """
    HTTPConnection acquire call check_call check_output communicate exception infer join poll result
    run urlopen wait
    """.split()
)
LIMITS = ("timeout", "client_timeout", "network_timeout")
BRIEF_SECONDS = 1
"""Waits below this one are for what must not happen, or may take any time."""


def find_limits(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call that limit its wait."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    limits = [each.value for each in call.keywords if name in WAITS and each.arg in LIMITS]
    if name == "wait_until":
        limits += call.args[2:]
    if isinstance(function, ast.Attribute) and name in ("exception", "join", "result", "wait"):
        # Those of a collection wait for that many answers.
        is_thing = not (isinstance(function.value, ast.Name) and function.value.id == "answers")
        limits += call.args[:1] if is_thing else []
    return limits


def find_short_waits(source: str) -> Iterator[int]:
    """Yield the lines of waits that a busy machine may outlast."""
    for node in ast.walk(ast.parse(source)):
        for limit in find_limits(node) if isinstance(node, ast.Call) else ():
            is_number = isinstance(limit, ast.Constant) and isinstance(limit.value, int | float)
            if is_number and BRIEF_SECONDS <= limit.value < PATIENCE_SECONDS:
                yield node.lineno


def test_waits_are_long():
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in find_short_waits(path.read_text())
    ]
    assert not found, f"use PATIENCE_SECONDS of tests/support/waiting.py at {', '.join(found)}"


@pytest.mark.parametrize(
    "line",
    [
        "subprocess.run(command, timeout=20)",
        "process.wait(30)",
        "wait_until(holds, 'it holds', 5)",
        "future.result(10)",
        "client.infer(model, [], client_timeout=30)",
    ],
)
def test_a_short_wait_is_found(line):
    assert list(find_short_waits(line)) == [1]
