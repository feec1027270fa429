"""Sentence similarity: which sentences mean the same? Cosines of the embeddings of
paraphrase-MiniLM-L3-v2.

Text becomes word pieces as for BERT's uncased models: the algorithm of google-research/bert's
tokenization.py.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from popef._tools.arrays import Array

from .example import HALF_TOLERANCE, Case, Tensors, read_lines

# tokenization.py: WordpieceTokenizer's max_input_chars_per_word.
MAX_WORD_CHARACTERS = 200
# The blocks of CJK ideographs, which BERT takes as words of one character (tokenization.py:
# _is_chinese_char).
IDEOGRAPHS = (
    range(0x3400, 0x4DC0),
    range(0x4E00, 0xA000),
    range(0xF900, 0xFB00),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2B740),
    range(0x2B740, 0x2B820),
    range(0x2B820, 0x2CEB0),
    range(0x2F800, 0x2FA20),
)


class WordPiece:
    """Vocabulary and the rules to split text with it; safe to share between threads."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._ids = {piece: number for number, piece in enumerate(vocabulary)}

    def encode(self, text: str, length: int) -> list[int]:
        """Return `[CLS] pieces [SEP]` as numbers. Pieces beyond `length` are dropped; there is no
        padding."""
        pieces = [piece for word in iter_words(text) for piece in self._cut(word)]
        return [self._ids[piece] for piece in ("[CLS]", *pieces[: length - 2], "[SEP]")]

    def _cut(self, word: str) -> list[str]:
        """Split a word into the longest known piece that starts it, then the longest piece that
        continues it, and so on."""
        pieces: list[str] = []
        start = 0
        while start < len(word) <= MAX_WORD_CHARACTERS:
            mark = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if mark + word[start:end] in self._ids), None)
            if end is None:
                return ["[UNK]"]
            pieces.append(mark + word[start:end])
            start = end
        return pieces or ["[UNK]"]


def iter_words(text: str) -> Iterator[str]:
    """Yield words and single punctuation characters, in lower case and without accents."""
    plain = unicodedata.normalize("NFD", _clean(text).lower())
    word = ""
    for character in plain:
        if unicodedata.category(character) == "Mn":
            continue
        alone = _is_punctuation(character) or any(ord(character) in block for block in IDEOGRAPHS)
        if (alone or character.isspace()) and word:
            yield word
            word = ""
        if alone:
            yield character
        elif not character.isspace():
            word += character
    if word:
        yield word


def _clean(text: str) -> str:
    def is_kept(c: str) -> bool:
        return c in "\t\n\r" or not (c in "\0\ufffd" or unicodedata.category(c).startswith("C"))

    return "".join(" " if c.isspace() else c for c in filter(is_kept, text))


def _is_punctuation(character: str) -> bool:
    # Every ASCII sign counts, also those like $ and ^ that Unicode does not call punctuation.
    sign = character.isascii() and character.isprintable() and not character.isalnum()
    return (sign and character != " ") or unicodedata.category(character).startswith("P")


# The sequence length the model is compiled for, see recipe.json.
LENGTH = 64

GROUPS = {
    "a meal": (
        "How do I cook rice?",
        "What is the best way to prepare rice?",
        "My bicycle has a flat tyre.",
    ),
    "the weather": ("It is raining heavily.", "There is a downpour outside."),
    "a cat": (
        "The cat sleeps on the sofa.",
        "A kitten is napping on the couch.",
        "The parliament passed a new law.",
    ),
}


class SentenceSimilarity:
    """Demonstration with groups of sentences, some of which have the same meaning in other
    words."""

    model = "sentence_similarity"
    half_tolerance = HALF_TOLERANCE

    def __init__(self, directory: Path) -> None:
        self._word_piece = WordPiece(read_lines(directory / "vocab.txt"))

    def cases(self) -> list[Case]:
        """Return a request for each group of sentences."""
        groups = GROUPS.items()
        return [Case(title, self.inputs(sentences), sentences) for title, sentences in groups]

    def inputs(self, sentences: tuple[str, ...]) -> dict[str, Array]:
        """Return the model's inputs for some sentences: int64 [sentences, 64] each."""
        ids = np.zeros((len(sentences), LENGTH), np.int64)
        mask = np.zeros_like(ids)
        for row, sentence in enumerate(sentences):
            pieces = self._word_piece.encode(sentence, LENGTH)
            ids[row, : len(pieces)] = pieces
            mask[row, : len(pieces)] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def decide(self, _outputs: Tensors) -> list[str]:
        """Return an empty list: an embedding has no discrete answer, so its numbers are compared
        instead."""
        return []

    def describe(self, outputs: Tensors, case: Case) -> list[str]:
        """Describe the similarity of each two sentences of the group."""
        near = cosines(outputs["embedding"])
        texts = case.subjects
        return [
            f'"{texts[i]}" ~ "{texts[j]}": {near[i, j]:.2f}'
            for i, j in combinations(range(case.rows), 2)
        ]


def cosines(embedding: Array) -> Array:
    """Return the cosine between each two rows."""
    unit = embedding.astype(np.float64)
    unit = unit / np.linalg.norm(unit, axis=-1, keepdims=True)
    return np.asarray(unit @ unit.T)
