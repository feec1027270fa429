"""Tests of damaged payloads of executables: each runs or is rejected with one of our errors, in
time, and never returns values that it does not contain."""

from __future__ import annotations

from random import Random

import pytest
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from payload_fuzzing import check_payload, iter_damaged, mutate_payload, seed_payloads

EXAMPLES = examples(150)


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 19), st.integers(0, (1 << 32) - 1))
def test_damaged_payloads_are_run_or_refused(which: int, seed: int) -> None:
    seeds = seed_payloads()
    check_payload(mutate_payload(seeds[which % len(seeds)], Random(seed)))


@pytest.mark.parametrize("which", range(20))
def test_the_payloads_that_it_begins_with_give_answers(which: int) -> None:
    seeds = seed_payloads()
    assert check_payload(seeds[which % len(seeds)]) == "answers"


@pytest.mark.slow
def test_a_child_comes_to_the_same() -> None:
    for payload in iter_damaged(0, 8):
        assert check_payload(payload, isolated=True) == check_payload(payload)
