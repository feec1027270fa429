"""What a file is, by its first bytes."""

import onnx
import pytest
from foreign_files import FILES, POINTERS
from hypothesis import given
from hypothesis import strategies as st
from sample_models import linear_model

import popef
from popef._tools.file_kinds import (
    EMPTY,
    HEAD_BYTES,
    ONNX,
    POPEF,
    explain,
    name_models,
    recognize,
    recognize_file,
    recognize_substitute,
)


@pytest.mark.parametrize("word", FILES)
def test_a_file_is_called_by_its_name(word):
    kind = recognize(FILES[word][:HEAD_BYTES])
    assert word.strip() in kind.name
    assert kind.advice


@pytest.mark.parametrize("word", FILES)
def test_only_what_a_tool_has_left_takes_the_place_of_numbers(word):
    is_left = word in POINTERS or word == "OpenVINO"
    assert (recognize_substitute(FILES[word]) is not None) == is_left


@pytest.mark.parametrize(
    "content",
    [b"root:secret:0:0\n", b"secret", b'{"secret": 1}', b"secret page pointer XML", b"#!/secret"],
)
def test_errors_do_not_show_the_content_of_linked_files(content, tmp_path):
    """The error of a model that is a link to it reaches the clients of a server."""
    (tmp_path / "foreign").write_bytes(content)
    (tmp_path / "executable.popef").symlink_to("foreign")
    with pytest.raises(popef.PopefError) as raised:
        popef.Reader().parseFile(tmp_path / "executable.popef")
    assert "secret" not in str(raised.value)
    assert recognize_substitute(content) is None


@pytest.mark.parametrize("content", [b"404: Not Found", b"Entry not found", b"Access denied\n"])
def test_the_answer_of_a_store_is_shown(content):
    assert content.decode().strip() in recognize(content).name
    assert recognize_substitute(content) is not None


def test_our_own_kinds_are_known(compile_popef, tmp_path):
    file = compile_popef(linear_model())
    assert recognize_file(file) == POPEF
    assert explain(file, POPEF) == ""
    assert explain(file, ONNX).startswith("; it is a PopEF file; it is compiled already")
    for save in (True, False):
        onnx.save(linear_model(), tmp_path / "m.onnx", save_as_external_data=save)
        assert recognize_file(tmp_path / "m.onnx") == ONNX
    assert recognize(b"") == EMPTY
    assert recognize_file(tmp_path) is None
    assert recognize_file(tmp_path / "nobody") is None


@given(st.one_of(st.binary(max_size=300), st.text(max_size=50).map(str.encode)))
def test_no_bytes_are_too_strange(content):
    recognize(content)
    assert recognize(content + bytes(8)) is None or str(recognize(content + bytes(8)))


@pytest.mark.parametrize("word", FILES)
def test_a_reader_says_what_it_was_given_instead_of_popef(tmp_path, word):
    file = tmp_path / "model.popef"
    file.write_bytes(FILES[word])
    with pytest.raises(popef.PopefError) as caught:
        popef.Reader().parseFile(file)
    assert word.strip() in str(caught.value)


def test_a_reader_says_that_it_was_given_an_onnx_model(tmp_path):
    onnx.save(linear_model(), tmp_path / "model.popef")
    with pytest.raises(popef.PopefError, match="got an ONNX model; compile it with poprt"):
        popef.Reader().parseFile(tmp_path / "model.popef")


@given(
    st.sampled_from([b"\x08", b"\x80", b"\x0a", b"PK", b"\xff\xfe", b"{", b"<"]),
    st.binary(max_size=2),
)
def test_no_file_is_too_short(start, tail):
    """The first byte of many kinds says little without the next one."""
    kind = recognize(start + tail)
    assert kind is None or kind.name


def test_models_in_a_folder_are_named_by_the_first_suffix_that_has_some(tmp_path):
    for name in ("b/1/executable.popef", "a/2/executable.popef", "a/model.onnx", "a/b/c/d.popef"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    assert name_models(tmp_path, ".popef", ".onnx") == [
        "a/2/executable.popef",
        "b/1/executable.popef",
    ]
    assert name_models(tmp_path, ".onnx", ".popef") == ["a/model.onnx"]
    assert name_models(tmp_path, ".pt") == []
    assert name_models(tmp_path / "none", ".popef") == []
