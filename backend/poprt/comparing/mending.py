"""Search for the types of operators that must stay in float for a model in half to be right.

First those are kept that the first differing nodes blame, round by round. Where that is not enough,
all operators are, and half of them, a quarter and so on: the fewest that are right. Then each type
that is not needed is left out again. All this is done on the batch that is worst; at last the
choice is checked on all of them, and the search goes on with those that it does not hold for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from onnxgraph import infer_shapes
from simipu import CompileError, LoadError, RunError, count_all_operations

from popef._tools.arrays import Array
from popef._tools.console import quieted
from poprt.comparing.divergence import MAX_NAMED, Divergence, find_divergences
from poprt.comparing.outputs import LIMIT, Comparer, Comparison
from poprt.comparing.sides import Feeds, Renarrow, Side

MAX_ROUNDS = 6
"""Maximum number of times that operators are added to those that stay in float."""
MIN_TRIALS, MAX_TRIALS = 6, 60
"""Bounds of the number of choices of operators that are tried."""
MAX_OPERATIONS = 25 * 10**10
"""Maximum number of multiply-adds of all choices, if there are more than `MIN_TRIALS`: 8 s on two
cores. The number of choices does not depend on how busy a machine is, so the advice does not,
either."""
_TRIALS_PER_ROUND = 10
"""Number of choices that may be tried for each further round: to find the nodes that differ takes
as long as several choices."""
MAX_SECONDS_TO_MEND, MAX_SECONDS_TO_PRUNE = 20.0, 8.0
"""Time after which no further choice is tried on slow machines: until one is right, and to leave
types out of it."""
_MARGIN = 0.5
"""Share of the limit within which a choice must be, if possible: there are other inputs."""
_MAX_BATCHES = 3
"""Maximum number of batches on which choices are tried."""
_FAILURES = (CompileError, LoadError, RunError)
Types = frozenset[str]


def explain(
    half: Side,
    whole: Side,
    batches: Sequence[Feeds],
    outputs: Sequence[Sequence[Array]],
    worst: int,
    renarrow: Renarrow | None,
) -> str:
    """Return a message about outputs that differ: the first nodes, and what to do.

    `outputs` are those of `whole` for each of the first batches; the differences are largest in
    batch number `worst`.
    """
    divergences = find_divergences(half, whole, batches[worst])
    descriptions = "; ".join(divergence.describe() for divergence in divergences[:MAX_NAMED])
    message = (
        f"They first differ at {descriptions}"
        if divergences
        else "No single node causes it: errors add up"
    )
    if renarrow is None:
        return (
            f"{message}. Keep such operators in float with fp16_skip_op_types, or the model in fp32"
        )
    search = FloatSearch(whole, batches[: len(outputs)], outputs, [worst], renarrow)
    # The options of these conversions are not the user's.
    with quieted("poprt"):
        types = search.run(divergences)
    return f"{message}. {search.describe(types)}"


@dataclass(slots=True)
class FloatSearch:
    """Choices of operators that were tried, and how far their outputs are off.

    `outputs` are those of `whole` for each of `batches`. Choices are tried on the batches of the
    numbers `tried_on`; `renarrow` makes the half side of a choice.
    """

    whole: Side
    batches: Sequence[Feeds]
    outputs: Sequence[Sequence[Array]]
    tried_on: list[int]
    renarrow: Renarrow
    _tried: dict[Types, Comparison | None] = field(default_factory=dict)
    _sides: dict[Types, Side] = field(default_factory=dict)
    _limit: float = _MARGIN * LIMIT
    _num_tried: int = 0
    _max_tried: int = field(init=False)
    _last_seconds: float = 0.0
    _end: float = 0.0
    _start: float = field(default_factory=time.monotonic)
    _failure: str = ""

    def __post_init__(self) -> None:
        affordable = MAX_OPERATIONS // max(1, count_all_operations(infer_shapes(self.whole.model)))
        self._max_tried = min(MAX_TRIALS, max(MIN_TRIALS, affordable))

    def run(self, divergences: Sequence[Divergence]) -> Types | None:
        """Return the types of operators to keep in float; None if no choice that was tried is
        right."""
        there = frozenset(node.op_type for node in self.whole.model.graph.node) - {"Cast"}
        self._end = time.monotonic() + MAX_SECONDS_TO_MEND
        blamed: list[str] = []
        while True:
            right = self._find(divergences, blamed, there)
            if right is None:
                return None
            types = self._prune(right)
            another = self._check(types)
            if another is None:
                return types
            if another in self.tried_on or len(self.tried_on) == _MAX_BATCHES:
                return right if self._check(right) is None else None
            self.tried_on.append(another)
            self._tried.clear()
            divergences, blamed = [], sorted(right)

    def _find(
        self, divergences: Sequence[Divergence], blamed: list[str], there: Types
    ) -> Types | None:
        """Return a choice that is right, within half of the limit if there is one."""
        for limit in (_MARGIN * LIMIT, LIMIT):
            self._limit = limit
            if blamed and self._try(frozenset(blamed)):
                return frozenset(blamed)
            right, more = self._follow(divergences, blamed, there)
            if right is None:
                right = self._halve([*more, *sorted(there - set(more))])
            if right is not None:
                return right
        return None

    def _check(self, types: Types) -> int | None:
        """Compare on all batches; return the number of one for which a choice is wrong, if any."""
        if len(self.tried_on) == len(self.batches):  # it was right on them
            return None
        try:
            side = self._sides.get(types) or self.renarrow(types)
            comparer, results = Comparer.of(side.model), side.run(self.batches)
            errors = [comparer.add(*pair) for pair in zip(results, self.outputs, strict=False)]
        except _FAILURES as error:
            self._failure = self._failure or str(error)
            return self.tried_on[0]
        self._tried[types] = result = comparer.result("")
        return max(range(len(errors)), key=lambda i: errors[i]) if result.is_bad else None

    def describe(self, types: Types | None) -> str:
        """Return what to do: an option and its error, or how far the search has gone."""
        computed = {choice: result for choice, result in self._tried.items() if result is not None}
        if types is not None:
            return (
                f"{_option(types)} brings the error to {computed[types].error:.2g} "
                "(--fp16_skip_op_names takes single nodes)"
            )
        if not computed:
            return (
                f"No choice of operators kept in float could be tried: {self._failure or 'no time'}"
                "; keep the model in fp32, or name operators yourself with --fp16_skip_op_types"
            )
        best = min(computed, key=lambda each: (_badness(computed[each]), len(each)))
        seconds = time.monotonic() - self._start
        tried = f"{len(computed)} {'choices' if len(computed) > 1 else 'choice'}"
        there = frozenset(node.op_type for node in self.whole.model.graph.node) - {"Cast"}
        text = (
            f"None of {tried} of operators kept in float that were tried in {seconds:.0f} s brings "
            f"the error below {LIMIT:g}"
        )
        if there in computed:
            return (
                f"{text}, not even all of them ({_tell(computed[there])}): half cannot hold the "
                "inputs, the weights or the outputs; keep the model in fp32"
            )
        return (
            f"{text}; the best was {_option(best)} with {_tell(computed[best])}. Compile with "
            "it and more operators, each compilation searches on from there, or keep the model in "
            "fp32"
        )

    def _try(self, types: Types) -> bool:
        """Return whether a choice is right; False for one that is not tried because of time."""
        if types not in self._tried:
            start = time.monotonic()
            is_late = bool(self._num_tried) and start + self._last_seconds > self._end
            if is_late or self._num_tried >= self._max_tried:
                return False
            self._tried[types] = self._compare(types)
            self._num_tried += 1
            self._last_seconds = time.monotonic() - start
        result = self._tried[types]
        return result is not None and not result.is_bad and result.error <= self._limit

    def _compare(self, types: Types) -> Comparison | None:
        try:
            half = self.renarrow(types)
            comparer = Comparer.of(half.model)
            results = half.run([self.batches[i] for i in self.tried_on])
            for ours, i in zip(results, self.tried_on, strict=False):
                comparer.add(ours, self.outputs[i])
        except _FAILURES as error:
            self._failure = self._failure or str(error)
            return None
        self._sides = {types: half}
        return comparer.result("")

    def _follow(
        self, divergences: Sequence[Divergence], blamed: list[str], there: Types
    ) -> tuple[Types | None, list[str]]:
        """Keep the blamed operators in float, then those that differ first with these, and so on.

        Returns the choice that is right, if there is one, and all that were blamed, in order.
        """
        num_rounds = min(MAX_ROUNDS, 1 + self._max_tried // _TRIALS_PER_ROUND)
        for number in range(1, num_rounds + 1):
            more = [
                name for divergence in divergences for name in divergence.blamed if name in there
            ]
            if set(more) <= set(blamed):
                break
            blamed = list(dict.fromkeys([*blamed, *more]))
            types = frozenset(blamed)
            if self._try(types):
                return types, blamed
            is_late = time.monotonic() + self._last_seconds > self._end
            if number == num_rounds or types not in self._sides or is_late:
                break
            feeds = self.batches[self.tried_on[0]]
            try:
                divergences = find_divergences(self._sides[types], self.whole, feeds)
            except _FAILURES:
                break
        return None, blamed

    def _halve(self, order: Sequence[str]) -> Types | None:
        """Return a short beginning of `order` that is right, by bisection; None if all of it is
        not."""
        wrong, right = 0, len(order)
        if not self._try(frozenset(order)):
            return None
        while right - wrong > 1:
            middle = (wrong + right) // 2
            if self._try(frozenset(order[:middle])):
                right = middle
            else:
                wrong = middle
        return frozenset(order[:right])

    def _prune(self, types: Types) -> Types:
        """Leave out the types that need not stay in float, as far as time allows."""
        self._end = time.monotonic() + MAX_SECONDS_TO_PRUNE
        for group in _iter_groups(sorted(types)):
            fewer = types - group
            if fewer and fewer != types and self._try(fewer):
                types = fewer
        return types


def _iter_groups(names: Sequence[str]) -> Iterable[Types]:
    """Yield groups of names: quarters of many, then each alone."""
    size = len(names) // 4
    if size > 1:
        yield from (frozenset(names[i : i + size]) for i in range(0, len(names), size))
    yield from (frozenset((name,)) for name in names)


def _option(types: Iterable[str]) -> str:
    return f"--fp16_skip_op_types {','.join(sorted(types))}"


def _tell(comparison: Comparison) -> str:
    """Return what is wrong with a choice."""
    parts = [f"{comparison.error:.2g}"]
    parts += [f"{comparison.lost} values lost"] if comparison.lost else []
    parts += [f"{comparison.misled} labels wrong"] if comparison.misled else []
    return ", ".join(parts)


def _badness(comparison: Comparison) -> tuple[int, int, float]:
    return comparison.lost, comparison.misled, comparison.error
