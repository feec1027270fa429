"""Tests of the trials of a search: what is tried, how often, and until when."""

import math
import time

import pytest
from poplar_triton.trials import Trials


def attempt(number):
    if number < 0:
        raise ValueError(f"{number} is negative")
    return math.sqrt(number)


def test_candidates_are_tried_once_and_failures_have_a_reason():
    trials = Trials(attempt, ValueError)
    assert trials.run(4).result == 2
    assert trials.run(-1).reason == "-1 is negative"
    assert trials.run(4) is trials.run(4)
    assert [trial.candidate for trial in trials.made] == [4, -1]


def test_other_errors_are_raised():
    with pytest.raises(ValueError, match="-1 is negative"):
        Trials(attempt, KeyError).run(-1)


def test_a_limit_counts_attempts_but_not_known_results():
    trials = Trials(attempt, ValueError, limit=2, known=[(9, 3.0)])
    assert trials.run(9).result == 3
    assert [trials.run(number) is None for number in (-1, 4, 16)] == [False, False, True]
    assert trials.is_spent
    assert trials.run(4).result == 2


def test_the_first_candidate_is_tried_even_after_the_deadline():
    trials = Trials(attempt, ValueError, deadline=time.monotonic() - 1)
    assert trials.run(4).result == 2
    assert trials.run(9) is None
