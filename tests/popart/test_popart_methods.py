"""A part of the sweep over all methods of the Builder; `make popart-methods` runs the whole."""

from __future__ import annotations

from collections import defaultdict

import pytest
from popart_methods.cases import Case, iter_runs
from popart_methods.running import iter_cases, list_methods

MAX_CASES = 6
"""Number of cases of each method that are run here."""


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = defaultdict(list)
    for case in iter_cases():
        found[case.method].append(case)
    return found


def test_every_method_has_cases(cases):
    assert set(cases) == set(list_methods())


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_methods_are_right_or_refuse_with_an_error_of_popart(cases, part):
    for method in sorted(cases)[part::8]:
        # Evenly spread, so that the first and the last, and those of each kind, are among them.
        step = max(1, (len(cases[method]) - 1) // (MAX_CASES - 1))
        chosen = cases[method][::step][: MAX_CASES + 1]
        outcomes = [
            (case.label, outcome, text)
            for case, outcome, text in iter_runs(chosen)
            if outcome in ("wrong", "escaped")
        ]
        assert not outcomes, method
