"""Tests that FORMAT.md agrees with the code."""

from __future__ import annotations

from popef.commands.document import DOCUMENT, document


def test_the_tables_of_the_document_are_those_of_the_code() -> None:
    text = DOCUMENT.read_text()
    assert document(text) == text, (
        "run `python -m popef.commands.document` and review the difference"
    )
