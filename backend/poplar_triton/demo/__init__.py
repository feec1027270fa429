"""Demonstrations of the repository's example models: the server answers real files, sentences and
pictures."""

from __future__ import annotations

from pathlib import Path

from .document_orientation import DocumentOrientation
from .example import Case, Example
from .magika import Magika
from .sentence_similarity import SentenceSimilarity
from .text_recognition import TextRecognition

__all__ = ["Case", "Example", "examples"]


def examples(repository: Path) -> list[Example]:
    """Return the demonstrations whose model folders are in a repository."""
    examples: list[Example] = []
    for kind in (Magika, SentenceSimilarity, DocumentOrientation, TextRecognition):
        if (repository / kind.model).is_dir():
            examples.append(kind(repository / kind.model))
    return examples
