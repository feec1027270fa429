"""Feature extraction, tokenization, picture preparation and decoding.

Tests compare them with values from the original packages.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from PIL import Image
from poplar_triton.demo import document_orientation, magika, text_recognition
from poplar_triton.demo.example import read_lines
from poplar_triton.demo.sentence_similarity import WordPiece, iter_words


@pytest.fixture(scope="module")
def word_piece(repository):
    return WordPiece(read_lines(repository / "sentence_similarity" / "vocab.txt"))


def test_the_vocabulary_is_that_of_bert_base_uncased(repository):
    content = (repository / "sentence_similarity" / "vocab.txt").read_bytes()
    # The published digest of bert-base-uncased's vocab.txt.
    assert (
        hashlib.sha256(content).hexdigest()
        == "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
    )


# Numbers from BertWordPieceTokenizer(vocab.txt, lowercase=True) of tokenizers 0.23.3.
@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("How do I cook rice?", [101, 2129, 2079, 1045, 5660, 5785, 1029, 102]),
        ("Unaffable caf\u00e9!", [101, 14477, 20961, 3468, 7668, 999, 102]),
        ("", [101, 102]),
        ("\u65e5\u672c x\u4f60", [101, 1864, 1876, 1060, 100, 102]),
    ],
)
def test_text_becomes_the_same_numbers_as_with_the_tokenizers_library(word_piece, text, numbers):
    assert word_piece.encode(text, 64) == numbers


def test_long_text_is_cut_and_still_ends_with_a_separator(word_piece):
    numbers = word_piece.encode("rice " * 100, 8)
    assert numbers == [101, *[5785] * 6, 102]


def test_signs_stand_alone_and_accents_and_control_characters_vanish():
    assert list(iter_words("Don't\u200b  $5\t\u00c9T\u00c9")) == ["don", "'", "t", "$", "5", "ete"]


def test_a_word_that_no_pieces_make_up_is_unknown(word_piece):
    assert word_piece.encode("\U0001f44d", 64) == [101, 100, 102]
    assert word_piece.encode("a" * 201, 64) == [101, 100, 102]
    longest = word_piece.encode("a" * 200, 300)
    assert len(longest) > 3
    assert 100 not in longest


# tokenization.py of google-research/bert, _is_chinese_char: first and last of each block.
@pytest.mark.parametrize(
    ("first", "last"),
    [
        (0x4E00, 0x9FFF),
        (0x3400, 0x4DBF),
        (0x20000, 0x2A6DF),
        (0x2A700, 0x2B73F),
        (0x2B740, 0x2B81F),
        (0x2B820, 0x2CEAF),
        (0xF900, 0xFAFF),
        (0x2F800, 0x2FA1F),
    ],
)
def test_ideographs_are_words_of_one_character(first, last):
    def stands_alone(code):
        return len(list(iter_words(f"a{chr(code)}b"))) == 3

    assert stands_alone(first)
    # Some of the last block are unassigned and vanish; characters beside a block are no ideographs.
    assert [code for code in range(last - 0x200, last + 1) if stands_alone(code)]
    beside = {first - 1, last + 1}.difference((0x2B73F, 0x2B740, 0x2B81F, 0x2B820))
    assert not any(stands_alone(code) for code in beside)


def test_tabs_and_line_feeds_part_words_and_what_is_no_character_vanishes():
    assert list(iter_words("a\tb\nc\rd")) == ["a", "b", "c", "d"]
    assert list(iter_words("a\0b\ufffdc\x07d")) == ["abcd"]
    assert list(iter_words(" ")) == []


def test_a_short_file_is_padded_after_its_start_and_before_its_end():
    row = magika.features(b"  import os\n")
    assert row.dtype == np.int32
    assert bytes(row[:10].astype(np.uint8)) == b"import os\n"
    assert bytes(row[-11:].astype(np.uint8)) == b"  import os"
    assert (row[10:-11] == 256).all()


def test_a_long_file_gives_its_first_and_last_kilobyte():
    content = bytes(range(33, 133)) * 100
    row = magika.features(content)
    assert bytes(row.astype(np.uint8)) == content[:1024] + content[-1024:]


def test_white_space_beyond_the_first_block_is_not_skipped():
    assert (magika.features(b" " * 5000 + b"x" * 5000)[:1024] == 256).all()


@pytest.mark.parametrize("size", [0, 10, 4095, 4096, 4097, 8191, 8192, 9000])
def test_of_a_file_only_its_first_and_last_block_count(tmp_path, size):
    content = bytes(33 + index % 89 for index in range(size))
    (tmp_path / "file").write_bytes(content)
    edges = magika._edges(tmp_path / "file")
    assert len(edges) <= 2 * 4096
    np.testing.assert_array_equal(magika.features(edges), magika.features(content))


def test_an_empty_file_is_all_padding():
    assert (magika.features(b"") == 256).all()


def test_a_page_is_cropped_in_the_middle_and_normalised_in_the_order_blue_green_red():
    image = Image.new("RGB", (300, 600), (255, 0, 0))
    row = document_orientation.prepare(image)
    assert row.shape == (3, 224, 224)
    assert row.dtype == np.float32
    expected = [(0 - 0.485) / 0.229, (0 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    np.testing.assert_allclose(row[:, 100, 100], expected, rtol=1e-5)


def test_a_page_that_is_not_square_is_cropped_to_its_middle():
    ramp = np.linspace(0, 255, 512).astype(np.uint8)
    for pixels, axis in ((np.tile(ramp, (256, 1)), 2), (np.tile(ramp[:, None], (1, 256)), 1)):
        image = Image.fromarray(pixels).convert("RGB")
        row = document_orientation.prepare(image)
        values = (row[0] * 0.229 + 0.485) * 255
        line = values[:, 112] if axis == 1 else values[112]
        np.testing.assert_allclose(line, ramp[144:368], atol=2)


@pytest.mark.parametrize("text", ["Hello", "gypsy", "1"])
def test_a_line_of_text_stands_within_its_margins(text):
    image = text_recognition.line(text).convert("L").point(lambda value: 255 * (value < 250))
    left, top, right, bottom = image.getbbox()
    for margin in (left, top, image.width - right, image.height - bottom):
        assert 8 <= margin <= 16


def test_a_line_is_scaled_to_48_pixels_and_padded_with_zeros():
    row = text_recognition.prepare(Image.new("RGB", (200, 96), "white"))
    assert row.shape == (3, 48, 320)
    assert (row[:, :, :100] == 1).all()
    assert (row[:, :, 100:] == 0).all()


def test_a_line_that_is_too_long_is_squeezed():
    assert (text_recognition.prepare(Image.new("RGB", (5000, 48), "black")) == -1).all()


def test_repeated_steps_are_one_character_unless_a_blank_parts_them(repository):
    example = text_recognition.TextRecognition(repository / "text_recognition")
    characters = read_lines(repository / "text_recognition" / "characters.txt")
    path = [characters.index(name) for name in ("blank", "l", "l", "blank", "l", "o")]
    assert example.decide({"characters": np.eye(6625, dtype=np.float32)[path][None]}) == ["llo"]
