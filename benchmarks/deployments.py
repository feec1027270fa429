"""Losses of two servers behind HAProxy and Envoy, over HTTP and gRPC, under faults and updates.

The servers are killed, restarted or updated, or lose a process: each case several times, in a
table. `make deploy-tools` gets the programs. All four ways are used at once, by 16 clients each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import report
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from fleet import cases
from fleet.cases import CASES, Fleet, Report, run_fleet
from fleet.models import PLAIN, write_version
from fleet.repositories import LocalRepository, Store, fill
from fleet.tools import find_tools

Case = Callable[[], Report]


def list_local_cases(fleet: Fleet, new: Path) -> Mapping[str, Case]:
    """Return the cases of a repository in a folder."""
    local_cases: dict[str, Case] = {name: partial(case, fleet) for name, case in CASES.items()}
    return {**local_cases, "update and back": partial(cases.update, fleet, new)}


def list_store_cases(fleet: Fleet, store: Store, new: Path) -> Mapping[str, Case]:
    """Return the cases of a repository in S3."""
    return {
        "S3: update and back": partial(cases.update, fleet, new),
        "S3: store away": partial(cases.lose_store, fleet, store),
        "S3: kill -9 of a stub, store away": partial(cases.heal_without_store, fleet, store),
    }


def iter_groups(folder: Path, wanted: str) -> Iterator[Mapping[str, Case]]:
    """Yield the cases of each pair of servers in turn; a pair runs while its cases are in use."""
    tools = find_tools()
    new = write_version(folder / PLAIN.name, PLAIN, cases.NEW_VERSION)
    for name in ("folder", "s3"):
        if wanted not in ("all", name):
            continue
        (folder / name).mkdir()
        with ExitStack() as running:
            if name == "folder":
                local = LocalRepository(folder / name / "models")
                fill(local, [PLAIN])
                yield list_local_cases(
                    running.enter_context(run_fleet(tools, folder / name, local)), new
                )
            else:
                store = running.enter_context(Store(tools, folder / name))
                fill(store, [PLAIN])
                fleet = running.enter_context(run_fleet(tools, folder / name, store))
                yield list_store_cases(fleet, store, new)


def print_report(name: str, found: list[Report], console: Console) -> None:
    """Print a row for each way, with its lost and sent requests in each run, and the other figures
    below."""
    table = report.make_table(
        name,
        "way",
        *(f"run {number}: lost/sent" for number in range(1, len(found) + 1)),
        "wrong",
        "most of a client",
        "longest answer, s",
    )
    names = [way.name for way in found[0].tallies]
    for way in names:
        tallies = [next(t for w, t in report.tallies.items() if w.name == way) for report in found]
        table.add_row(
            way,
            *(f"{len(tally.losses)}/{tally.sent}" for tally in tallies),
            str(sum(len(tally.wrongs) for tally in tallies)),
            str(max(tally.most_lost_by_a_client for tally in tallies)),
            f"{max(tally.longest_seconds for tally in tallies):.2f}",
        )
    console.print(table)
    for figure in found[0].figures:
        console.print(f"{figure}: {', '.join(f'{report.figures[figure]:.2f}' for report in found)}")


def main() -> None:
    """Run the cases, and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=3, help="of each case (default: %(default)s)")
    parser.add_argument(
        "--repository",
        choices=("all", "folder", "s3"),
        default="all",
        help="whose cases (default: all)",
    )
    options = parser.parse_args()
    console = report.make_console()
    with tempfile.TemporaryDirectory() as folder:
        for group in iter_groups(Path(folder), options.repository):
            for name, case in group.items():
                print_report(name, [case() for _ in range(options.runs)], console)


if __name__ == "__main__":
    main()
