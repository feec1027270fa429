"""Text files in every encoding that an editor may write, and names in every locale."""

import json
import os
import subprocess
import sys

import pytest
from encoded_files import READABLE, REJECTED
from foreign_files import FILES
from hypothesis import given
from hypothesis import strategies as st
from poplar_triton.recipes import TEXT_FIELDS, read_recipe
from poplar_triton.tfserving.config_files import read_monitoring_config
from poprt.triton.config import read_config

import popef
from popef._tools.text import decode_text, escape, name_file, restore_characters
from popef.name_map import read_names

RECIPE = dict.fromkeys(TEXT_FIELDS, "é") | {"poprt": []}
KINDS = {
    "name map": (lambda file: read_names(file), json.dumps({"x": "é\n"[:1]}, ensure_ascii=False)),
    "configuration": (read_config, 'name: "é"\nbackend: "poplar"\n'),
    "monitoring": (read_monitoring_config, 'prometheus_config { enable: true\n path: "/é" }\n'),
}


@pytest.mark.parametrize("encoding", READABLE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_file_is_read_with_a_mark_and_any_line_ends(tmp_path, kind, encoding):
    read, text = KINDS[kind]
    (tmp_path / "plain").write_text(text, encoding="utf-8")
    (tmp_path / "file").write_bytes(READABLE[encoding](text))
    assert str(read(tmp_path / "file")) == str(read(tmp_path / "plain"))


@pytest.mark.parametrize("words", REJECTED)
@pytest.mark.parametrize("kind", [*KINDS, "recipe"])
def test_a_text_file_in_another_encoding_is_rejected_by_its_name(tmp_path, kind, words):
    read, text = KINDS.get(kind, (read_recipe, json.dumps(RECIPE)))
    (tmp_path / "recipe.json").write_bytes(REJECTED[words](text))
    with pytest.raises(Exception, match=f"expected text in UTF-8, found {words.strip()}") as caught:
        read(tmp_path / "recipe.json")
    assert "\n" not in str(caught.value)
    assert "save the file as UTF-8" in str(caught.value)


@pytest.mark.parametrize("word", ["Git LFS", "HTML", "XML"])
def test_a_file_that_is_no_name_map_is_rejected_by_its_kind(tmp_path, word):
    (tmp_path / "name_map.json").write_bytes(FILES[word])
    with pytest.raises(popef.PopefError, match=f"; it is a.*{word}"):
        read_names(tmp_path / "name_map.json")


@given(st.text())
def test_every_text_is_read_as_it_was_written(text):
    content = text.encode("utf-8", "ignore")
    if not (content[:1] != content[1:2] and b"\0" in content[:2]):  # looks like UTF-16
        assert decode_text(content) == content.decode().removeprefix("\ufeff")


@given(st.text(), st.binary())
def test_names_survive_a_locale_that_cannot_decode_them(text, raw):
    """Python, in the locale C, writes each byte of a name as half a surrogate pair."""
    characters = text.encode("utf-8", "ignore").decode()
    as_bytes = characters.encode().decode("ascii", "surrogateescape")
    assert restore_characters(as_bytes) == characters
    assert os.fsencode(name_file(as_bytes)) == os.fsencode(name_file(characters))
    name = raw.decode("ascii", "surrogateescape")
    assert restore_characters(name).encode("utf-8", "surrogateescape") == raw
    assert not any(0xD800 <= ord(letter) <= 0xDFFF for letter in escape(name))


def test_bytes_that_are_no_text_are_shown_as_escapes():
    assert escape("caf\udcc3\udca9 \udce9 \ud800") == "café \\xe9 \\ud800"


LOCALES = [
    {"LC_ALL": "POSIX"},
    {"LC_ALL": "C"},
    {"LC_ALL": "POSIX", "PYTHONUTF8": "0"},
    {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "C.UTF-8"},
    {"LC_ALL": "POSIX", "PYTHONIOENCODING": "utf-8"},
]


@pytest.mark.slow
@pytest.mark.parametrize("locale", LOCALES, ids=str)
@pytest.mark.parametrize("name", ["é", "日本語", "naïve-ß", "emoji-🙂"])
def test_a_path_is_printed_so_that_it_can_be_copied(tmp_path, locale, name):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG"))}
    folder = tmp_path / name
    folder.mkdir()
    (folder / "absent").write_bytes(b"")
    for file in (folder / "nobody.popef", folder / "absent"):
        ended = subprocess.run(
            [sys.executable, "-m", "popef.commands.dump", str(file)],
            env={**environment, **locale},
            capture_output=True,
            check=False,
        )
        assert os.fsencode(file) in ended.stderr
