"""Sentence similarity: which sentences mean the same? Cosines of the embeddings of
paraphrase-MiniLM-L3-v2."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np

from popef._tools.arrays import Array

from .example import HALF_TOLERANCE, Case, Tensors, read_lines
from .wordpiece import WordPiece

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
        return [
            Case(title, self.inputs(sentences), sentences) for title, sentences in GROUPS.items()
        ]

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
