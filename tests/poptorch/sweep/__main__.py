"""Prints the table of the sweep: python -m tests.poptorch.sweep [PATTERN ...] [--causes N]."""

from __future__ import annotations

import argparse
from fnmatch import fnmatch

from tests.poptorch.sweep.operators import OPERATORS, is_known
from tests.poptorch.sweep.running import ALLOWED, ESCAPED, REFUSED, RIGHT, WRONG, count, run

KNOWN = "known"
"""Differs, for a reason that operators.KNOWN has."""


def main() -> int:
    """Run the sweep; return 1 if a result is wrong or an exception escapes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", default=["*"], metavar="PATTERN")
    parser.add_argument("--causes", type=int, default=3, help="causes shown for each operator")
    options = parser.parse_args()
    columns = (RIGHT, REFUSED, ALLOWED, KNOWN, WRONG, ESCAPED)
    total = dict.fromkeys(("cases", *columns), 0)
    print(f"{'operator':<36} {'cases':>6} " + " ".join(f"{name:>8}" for name in columns))
    for name, make in OPERATORS.items():
        if not any(fnmatch(name, pattern) for pattern in options.patterns):
            continue
        outcomes = [
            (case, KNOWN if outcome == WRONG and is_known(name, case.name) else outcome, cause)
            for case, outcome, cause in run(list(make()))
        ]
        found = count(outcomes)
        total["cases"] += len(outcomes)
        for column in columns:
            total[column] += found[column]
        numbers = " ".join(f"{found[column]:>8}" for column in columns)
        print(f"{name:<36} {len(outcomes):>6} {numbers}", flush=True)
        for kind in (ESCAPED, WRONG, REFUSED):
            causes = [each for each in outcomes if each[1] == kind]
            for case, _, cause in causes[: options.causes]:
                print(f"    {kind}: {case.name}: {cause.strip()[:300]!r}", flush=True)
    numbers = " ".join(f"{total[column]:>8}" for column in columns)
    print(f"{'total':<36} {total['cases']:>6} {numbers}")
    return int(bool(total[WRONG] or total[ESCAPED]))


if __name__ == "__main__":
    raise SystemExit(main())
