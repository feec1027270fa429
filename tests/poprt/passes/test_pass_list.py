"""Tests of the documents that list passes and options."""

import make_options
import make_passes
import pytest
from poprt.cli.parser import make_parser
from poprt.passes import get_registered_passes


@pytest.mark.parametrize("document", [make_options, make_passes])
def test_the_document_is_written_from_the_code(document):
    assert document.FILE.read_text() == document.make_text(), "run `make docs`"


def test_every_pass_is_listed():
    text = make_passes.make_text()
    assert all(f"| `{name}` |" in text for name in get_registered_passes())


def test_every_option_is_listed():
    text = make_options.make_text()
    assert all(f"`{name}`" in text for name in make_parser().option_names())
