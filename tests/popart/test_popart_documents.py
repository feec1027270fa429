"""docs/popart-reference.md and popart's tables."""

import make_popart
from popart import SessionOptions
from popart.graphcore import METHODS


def test_the_document_is_written_from_the_tables():
    assert make_popart.FILE.read_text() == make_popart.make_text(), "run `make docs`"


def test_an_option_without_an_effect_is_listed_as_such():
    before, _, after = make_popart.make_text().partition("## SessionOptions without effect")
    for name, field in SessionOptions.OPTIONS.items():
        assert (f"| `{name}` |" in before) == bool(field.effect)
        assert (f"| `{name}` |" in after) == (not field.effect)


def test_every_operator_of_ai_graphcore_is_listed():
    text = make_popart.make_text()
    assert all(f"| `{name}(" in text for name in METHODS)
