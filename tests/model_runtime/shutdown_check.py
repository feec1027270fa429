"""Run the exit scripts many times over, as forks and as interpreters of their own.

Usage: python tests/model_runtime/shutdown_check.py.

Every script must end as it should; a hang that happens once in a hundred times is found only here.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from poprt import Compiler, CompilerOptions, Converter

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from sample_models import linear_model, loop_model, write_handmade
from shutdown_scripts import SCRIPTS, Ended, Script, Zygote, run_script

Run = Callable[[Script], Ended]


def write_files(folder: Path) -> list[str]:
    """Write the two models of the scripts and return their paths."""
    linear, loop = folder / "linear.popef", folder / "loop.popef"
    Compiler.compile(
        Converter(batch_size=4).convert(linear_model()), None, CompilerOptions()
    ).export(linear, folder / "weights.popef")
    write_handmade(loop, loop_model())
    return [str(linear), str(loop)]


def check(run: Run, names: Iterable[str], jobs: int) -> list[str]:
    """Run the script of each name once and return the faults found."""

    def find_fault(name: str) -> str | None:
        fault = run(SCRIPTS[name]).find_fault(SCRIPTS[name])
        return fault and f"{name}: {fault}"

    with ThreadPoolExecutor(jobs) as pool:
        return [fault for fault in pool.map(find_fault, names) if fault]


def main() -> int:
    """Report for both ways and return 1 if a script did not end as it should."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--count", type=int, default=1000, help="how many scripts, each way")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that runs them")
    arguments = parser.parse_args()
    idle: SimpleQueue[Zygote] = SimpleQueue()
    for _ in range(arguments.jobs):
        idle.put(Zygote(arguments.python))

    def fork(script: Script) -> Ended:
        zygote = idle.get()
        try:
            return zygote.run(script, files)
        finally:
            idle.put(zygote)

    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder))
        ways: dict[str, Run] = {
            "forks": fork,
            "interpreters": lambda script: run_script(script, files, arguments.python),
        }
        failed = 0
        for way, run in ways.items():
            began = time.monotonic()
            faults = check(
                run, itertools.islice(itertools.cycle(SCRIPTS), arguments.count), arguments.jobs
            )
            failed += len(faults)
            seconds = time.monotonic() - began
            print(
                f"{way}: {arguments.count - len(faults)} of {arguments.count} ended as they "
                f"should, {seconds:.0f} s",
                *faults,
                sep="\n  ",
            )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
