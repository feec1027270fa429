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
from pathlib import Path

from poprt import Compiler, CompilerOptions, Converter

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from sample_models import linear_model, loop_model, write_handmade
from shutdown_scripts import SCRIPTS, find_faults, fork_scripts, run_scripts


def write_files(folder: Path) -> list[str]:
    """Write the two models of the scripts and return their paths."""
    linear, loop = folder / "linear.popef", folder / "loop.popef"
    Compiler.compile(
        Converter(batch_size=4).convert(linear_model()), None, CompilerOptions()
    ).export(linear, folder / "weights.popef")
    write_handmade(loop, loop_model())
    return [str(linear), str(loop)]


def main() -> int:
    """Report for both ways and return 1 if a script did not end as it should."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--count", type=int, default=1000, help="how many scripts, each way")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that runs them")
    arguments = parser.parse_args()
    names = list(itertools.islice(itertools.cycle(SCRIPTS), arguments.count))
    scripts = [SCRIPTS[name] for name in names]
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder))
        failed = 0
        for way, run in {"forks": fork_scripts, "interpreters": run_scripts}.items():
            began = time.monotonic()
            faults = find_faults(names, run(scripts, files, arguments.jobs, arguments.python))
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
