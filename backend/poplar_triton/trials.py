"""Trials of a search: candidates are tried one after the other, each once, while a budget lasts.

`poplar-triton profile --suggest` tries options of a compilation, within a number of profiles;
`poplar-triton tune` tries configurations of a server, within a time. What is tried next, and what
is best, they say.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

Candidate = TypeVar("Candidate")
Result = TypeVar("Result")


@dataclass(slots=True)
class Attempt(Generic[Candidate, Result]):
    """Candidate that was tried; without a result the reason why there is none."""

    candidate: Candidate
    result: Result | None = None
    reason: str = ""


class Trials(Generic[Candidate, Result]):
    """Candidates that were tried, in order. `attempt` returns the result of one, or raises `error`.

    `limit` is the number of attempts and `deadline` the time, of `time.monotonic`, after which no
    other candidate is tried; the first one always is. `known` are results from elsewhere.
    """

    def __init__(
        self,
        attempt: Callable[[Candidate], Result],
        error: type[Exception],
        *,
        limit: float = math.inf,
        deadline: float = math.inf,
        known: Iterable[tuple[Candidate, Result]] = (),
    ) -> None:
        self._attempt, self._error = attempt, error
        self.made = [Attempt(*pair) for pair in known]
        self._last, self._deadline = len(self.made) + limit, deadline

    @property
    def is_spent(self) -> bool:
        """Whether the budget is spent."""
        is_over = len(self.made) >= self._last or time.monotonic() > self._deadline
        return bool(self.made) and is_over

    def run(self, candidate: Candidate) -> Attempt[Candidate, Result] | None:
        """Return the trial of a candidate, which is made unless it was before; None if the budget
        is spent."""
        # Not by hash: settings of a profile hold mappings.
        trial = next((trial for trial in self.made if trial.candidate == candidate), None)
        if trial is None and not self.is_spent:
            trial = Attempt(candidate)
            self.made.append(trial)
            try:
                trial.result = self._attempt(candidate)
            except self._error as error:
                trial.reason = str(error)
        return trial
