"""docs/errors.md quotes messages that exist: ours in the sources, Triton's in the tests of a real server."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from error_entries import Entry, read_entries

ROOT = Path(__file__).parents[1]
ENTRIES = read_entries()
OURS = [entry for entry in ENTRIES if entry.raiser != "Triton"]


@cache
def read_literals() -> str:
    """Return all texts of the code, a line each, with NUL for each value in them."""
    files = [*ROOT.glob("backend/**/*.py"), *ROOT.glob("popef/**/*.py")]
    trees = (ast.parse(path.read_text()) for path in files)
    texts = (text for tree in trees for node in ast.walk(tree) for text in read_text(node))
    return "\n".join(text.replace("\n", " ") for text in texts)


def read_text(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield re.sub(r"%[-.\w]*[sdrg]", "\0", node.value)
    elif isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
        yield "".join(parts)


@pytest.mark.slow
@pytest.mark.parametrize("entry", OURS, ids=lambda entry: entry.message)
def test_a_message_of_ours_is_in_the_code(entry: Entry):
    assert re.search(entry.pattern(), read_literals()), "the page quotes a message that is gone"


def test_each_entry_says_who_raises_it_and_what_to_do():
    raisers = {"Triton", "The backend", "poprt", "poplar-triton", "popef", "model_runtime"}
    for entry in ENTRIES:
        assert entry.raiser in raisers, entry
        assert len(entry.advice) > 20, entry


def test_no_message_is_there_twice():
    messages = [entry.message for entry in ENTRIES]
    assert sorted(set(messages)) == sorted(messages)
