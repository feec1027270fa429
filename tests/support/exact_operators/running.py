"""Judge the cases of exact arithmetic in child processes: one that crashes is an outcome.

    python -m exact_operators.running [FAMILY ...] [--step N] [--precision fp16]

prints how many cases of each family came to what, and every one that is wrong or refused; the status
is 1 if any is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

from random_graphs.judging import EQUAL, WRONG, Outcome
from random_graphs.running import Judge, Judged, answer_with

from exact_operators.families import FAMILIES
from exact_operators.forms import Case, judge

_drawn: dict[str, tuple[Iterator[Case], list[Case]]] = {}


def _draw(number: int, words: str) -> Case:
    family, _ = words.split()
    cases, seen = _drawn.setdefault(family, (FAMILIES[family](), []))
    seen.extend(itertools.islice(cases, number + 1 - len(seen)))
    return seen[number]


def _judge(case: Any, words: str) -> Outcome:
    return judge(case, words.split()[1])


def answer() -> None:
    """Judge the cases requested on standard input; the main function of the child."""
    answer_with(cast("Any", _draw), _judge)


def judge_family(
    family: str, step: int = 1, precision: str = "fp32"
) -> Iterator[tuple[str, Judged]]:
    """Yield the name and the outcome of every `step`th case of a family."""
    with closing(Judge(module="exact_operators.running")) as judge_child:
        for number, case in enumerate(FAMILIES[family]()):
            if number % step == 0:
                yield case.name, judge_child.ask(number, f"{family} {precision}")


def main() -> int:
    """Judge the cases; return 1 if any is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", help=f"default: {' '.join(FAMILIES)}"
    )
    parser.add_argument("--step", type=int, default=1, help="judge every one of so many cases")
    parser.add_argument("--precision", choices=("fp32", "fp16"), default="fp32")
    options = parser.parse_args()
    wrong = 0
    for family in options.families or FAMILIES:
        counts = Counter[str]()
        for name, judged in judge_family(family, options.step, options.precision):
            counts[judged.word] += 1
            wrong += judged.word in WRONG
            if judged.word != EQUAL:
                print(f"{family} {judged.seed}: {name}: {judged.word}: {judged.why}", flush=True)
        print(
            f"{family:14} "
            + ", ".join(f"{count} {word}" for word, count in sorted(counts.items())),
            flush=True,
        )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
