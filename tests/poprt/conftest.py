"""Fixture of the tests that register passes."""

import pytest
from poprt.passes import base_pass


@pytest.fixture
def registry(monkeypatch):
    """Remove the passes that a test registers after the test."""
    monkeypatch.setattr(base_pass, "_PASSES", dict(base_pass._PASSES))
