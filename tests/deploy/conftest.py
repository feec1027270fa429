"""Deployments of real parts: the programs of `make deploy-tools`, on 127.0.0.1."""

from __future__ import annotations

from importlib import util

import pytest
from fleet.tools import Tools, find_tools

# The fast tests collect this folder, too, without the packages that only it needs
# (`make .venv/deploy` installs them).
if util.find_spec("kubernetes_validate") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.deploy)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the soak: it takes as long as all others, which run beside it."""
    items.sort(key=lambda item: item.path.name != "test_soak.py")


@pytest.fixture(scope="session")
def tools() -> Tools:
    return find_tools()
