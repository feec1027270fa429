"""Pages in a real Chromium, which `make browser-tools` installs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, open_browser
from onnx import TensorProto, helper
from report_pages import make_tile_page
from sample_models import make_model

_PROGRAMS = Path(__file__).parents[2] / ".cache" / "browser-tools" / "bin"


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(_PROGRAMS, tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="session")
def made_of_many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the page of 20,000 nodes with long names, and the document of its tiles."""
    kind, long = (TensorProto.FLOAT, ["n", 8]), "long_" * 50
    nodes = [
        helper.make_node("Tanh", [f"t{i}"], [f"t{i + 1}"], name=f"{long}node_{i}")
        for i in range(20_000)
    ]
    model = make_model(nodes, {"t0": kind}, {"t20000": kind}, {})
    return make_tile_page(model, tmp_path_factory.mktemp("many"))
