"""Tests that names in hostile files never move a terminal's cursor nor begin a line of a log."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popef._tools.text import (
    MAX_NAME_CHARACTERS,
    escape,
    find_name_fault,
    find_near,
    find_shell_fault,
    shorten_words,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("Gewürz 香", "Gewürz 香"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\nb\r\0", "a\\nb\\r\\x00"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2028", "\\u2028"),
        ("\x9b1m", "\\x9b1m"),
        ("\ud800", "\\ud800"),
    ],
)
def test_escapes_control_characters(text: str, shown: str) -> None:
    assert escape(text) == shown


@given(st.text(st.characters(exclude_categories=())))
def test_everything_can_be_printed_in_one_line(text: str) -> None:
    shown = escape(text)
    shown.encode()
    assert len(shown.splitlines()) <= 1
    assert "\x1b" not in shown


def test_shortens() -> None:
    shown = escape("x" * 1_000_000)
    assert len(shown) < 11_000
    assert "[990000 characters]" in shown


def test_names() -> None:
    assert find_name_fault("x" * MAX_NAME_CHARACTERS) is None
    assert (
        find_name_fault("x" * (MAX_NAME_CHARACTERS + 1))
        == "expected a name of at most 1024 characters, found 1025"
    )
    assert find_name_fault("") == "expected a name, found an empty one"
    assert (
        find_name_fault("a\x1bb")
        == "expected a name without control characters, found \\x1b at character 1"
    )


@pytest.mark.parametrize(
    "path", ["a b", "it's", "a;b", "a$(b)", "a`b`", "{a,b}", "a*", "a\\b", "a\nb"]
)
def test_find_shell_fault_finds_characters_that_a_shell_interprets(path, tmp_path):
    """The oracle is a shell in a folder with files that patterns can match."""
    assert find_shell_fault(f"/models/{path}").endswith(f"found {find_special(path)!r}")
    for name in ("ab", "abc"):
        (tmp_path / name).touch()
    assert read_words(path, tmp_path) != [path]


def find_special(path):
    return next(character for character in path if character in " '\";$(`{*\\\n")


def read_words(path, folder):
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {path}"],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    return words.stdout.split("\0")[:-1]


def test_other_characters_are_one_word_to_a_shell(tmp_path):
    path = "/models/Ünï-code_1.2@%+=:,~#!^/模型"
    assert find_shell_fault(path) is None
    assert read_words(path, tmp_path) == [path]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("batch", "batch_size"),
        ("size", "batch_size"),
        ("BATCH-SIZE", "batch_size"),
        ("precison", "precision"),
        ("zz", None),
        ("", None),
        ("ze", None),
    ],
)
def test_a_misspelt_name_is_near_one_that_it_is_a_word_of(name, near):
    assert find_near(name, ["batch_size", "precision", "target"]) == near


def test_a_minimum_similarity_leaves_parts_of_names_out():
    assert find_near("batch", ["batch_size"], 0.8) is None
    assert find_near("timeout_n", ["timeout_ns"], 0.8) == "timeout_ns"


def test_of_a_long_word_the_ends_are_left():
    assert shorten_words("found nnn") == "found nnn"
    text = shorten_words(f"found {'n' * 400}m; see --help")
    assert text.startswith("found nnn")
    assert "nm; see --help" in text
    assert len(text) < 350
