"""Tests of name maps: each is read, or rejected in one line that names it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from popef import PopefError
from popef._tools.text import escape
from popef.name_map import MAX_BYTES, read_names

DEEP = "overflow" if sys.version_info >= (3, 14) else "recursion"
"""What Python's error for JSON nested too deeply says."""


def test_reads_names(tmp_path: Path) -> None:
    file = tmp_path / "name_map.json"
    file.write_text('{"a/b:0": "Gewürz", "c": "c"}', encoding="utf-8")
    assert read_names(file) == {"a/b:0": "Gewürz", "c": "c"}


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"\xff\xfe", "found UTF-16"),
        (b'{"\xff": "b"}', "found the byte 0xff at 2"),
        (b"[]", "found a list"),
        (b"null", "found null"),
        (b'"a"', "found a string"),
        (b"9" * 6000, "found a number"),
        (b'{"a": %s}' % (b"9" * 6000), "'a': expected a string, found a number"),
        (b'{"a": NaN}', "'a': expected a string, found a number"),
        (b'{"a": true}', "'a': expected a string, found a truth value"),
        (b'{"a": {"b": "c"}}', "'a': expected a string, found an object"),
        (b'{"a": null}', "'a': expected a string, found null"),
        (b'{"a": "b", "a": "c"}', "expected every anchor once, found 'a' twice"),
        (b"[" * 200_000, DEEP),
        (b'{"a": ' * 200_000, DEEP),
        (b'{"a": ""}', "'a': expected a name, found an empty one"),
        (b'{"": "a"}', "expected a name, found an empty one"),
        (b'{"a": "\\u001b[2J"}', "'a': expected a name without control characters, found \\x1b"),
        (b'{"a\\n": "b"}', "found \\n at character 1"),
        (b'{"a": "\\ud800"}', "found \\ud800"),
        (b'{"a": "%s"}' % (b"x" * 2000), "at most 1024 characters, found 2000"),
        (b" " * (MAX_BYTES + 1), f"more than {MAX_BYTES} bytes"),
    ],
    ids=lambda value: value[:12].decode("latin-1") if isinstance(value, bytes) else None,
)
def test_refuses_in_one_line(content: bytes, found: str, tmp_path: Path) -> None:
    file = tmp_path / "name_map.json"
    file.write_bytes(content)
    with pytest.raises(PopefError) as caught:
        read_names(file)
    assert found in str(caught.value)
    assert str(caught.value).startswith(f"name map {file}: ")
    assert str(caught.value).isprintable()


def test_refuses_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(PopefError, match="found no file"):
        read_names(tmp_path / "name_map.json")
    with pytest.raises(PopefError, match="found no regular file"):
        read_names(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary() | st.text().map(lambda text: b'{"a": "' + text.encode() + b'"}'))
def test_nothing_else_comes_out(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "name_map.json"
    file.write_bytes(content)
    try:
        names = read_names(file)
    except PopefError as error:
        names = {"message": str(error)}
    assert all(isinstance(name, str) and escape(name) == name for name in names.values())
