"""Run the cases of all methods, and print a row for each method.

    cd tests/support && python -m popart_methods.running [--only PATTERN ...] [--show N]

The status is 1 if a result is wrong, or an exception escapes that is none of PopART's.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch

from popart import graphcore
from popart.builder import opsets

from popart_methods.cases import VERSIONS, Case, iter_runs

FAMILIES = (
    "elementwise",
    "reductions",
    "shapes",
    "choices",
    "windows",
    "layers",
    "losses",
    "own",
)
OUTCOMES = ("right", "refused", "wrong", "escaped", "no witness")


def iter_cases(families: Iterable[str] = FAMILIES) -> Iterator[Case]:
    """Yield all cases, or those of some modules."""
    for family in families:
        yield from importlib.import_module(f"popart_methods.{family}").iter_cases()


def list_methods() -> list[str]:
    """Return the names of all methods."""
    names = {name for version in VERSIONS for name in opsets.find_methods(version)}
    return [
        *(f"aiOnnx.{name}" for name in sorted(names)),
        *(f"aiGraphcore.{name}" for name in sorted(graphcore.METHODS)),
    ]


def print_table(counts: dict[str, Counter[str]], methods: Iterable[str]) -> None:
    """Print a row for each method: numbers of cases, and of each outcome."""
    print(f"{'method':40} {'cases':>6} " + " ".join(f"{each:>10}" for each in OUTCOMES))
    total: Counter[str] = Counter()
    for method in methods:
        found = counts.get(method, Counter())
        total += found
        numbers = " ".join(f"{found[each]:10}" for each in OUTCOMES)
        print(f"{method:40} {sum(found.values()):6} {numbers}")
    print(f"{'all':40} {sum(total.values()):6} " + " ".join(f"{total[e]:10}" for e in OUTCOMES))


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of methods")
    parser.add_argument("--families", nargs="+", default=FAMILIES, help="modules of cases")
    parser.add_argument("--show", type=int, default=5, help="cases shown of each kind and method")
    parser.add_argument("--refused", action="store_true", help="show what is refused, too")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    cases = [
        c
        for c in iter_cases(options.families)
        if any(fnmatch(c.method, like) for like in options.only)
    ]
    refused: dict[str, Counter[str]] = defaultdict(Counter)
    for case, outcome, text in iter_runs(cases):
        counts[case.method][outcome] += 1
        if outcome == "refused":
            refused[case.method][text[:220]] += 1
        elif outcome != "right" and counts[case.method][outcome] <= options.show:
            print(f"{case.method}: {outcome}: {case.label}: {text[:300]}")
    if options.refused:
        for method, texts in refused.items():
            for text, number in texts.most_common(options.show):
                print(f"{method}: refused {number}: {text}")
    print_table(
        counts,
        [name for name in list_methods() if any(fnmatch(name, like) for like in options.only)],
    )
    return int(any(found["wrong"] or found["escaped"] for found in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
