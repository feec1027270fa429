"""Pages in a real Chromium, which `make browser-tools` installs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, open_browser

_PROGRAMS = Path(__file__).parents[2] / ".cache" / "browser-tools" / "bin"


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(_PROGRAMS, tmp_path_factory.mktemp("browser")) as opened:
        yield opened
