"""Resources of the compiler for a large model: BERT-large to fp16, by the real command, in a
separate process.

It reports seconds, processor seconds, and the peak of resident memory over the size of the ONNX
file, which is mapped and counts as far as it was read. Weights are random, so that half differs
from float and the compiler searches for the cause: by far the longest case of a compilation.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from pathlib import Path

import report
import weighted
from children import run_child
from rounds import Goal, parse_options

SECONDS, MEMORY = Goal(20.0, at_most=True), Goal(1.5, at_most=True)
LIMIT_SECONDS = 600.0
PARTIALS = ("half", "float")


def _processor_seconds() -> float:
    """Return the processor time of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    options = parse_options(parser, quick_rounds=1)
    console = report.make_console()
    columns = ("partials", "seconds", "processor's", "goal", "peak / file", "goal")
    table = report.make_table(f"BERT-large to fp16, medians of {options.rounds}", *columns)
    with tempfile.TemporaryDirectory() as name:
        file = weighted.write_bert_large(Path(name, "model"))
        command = [sys.executable, "-m", "poprt", "--input_model", str(file), "--precision", "fp16"]
        command += ["--export_popef", "--output_dir", str(Path(name, "out"))]
        for partials in PARTIALS:
            words = [*command, "--compiler_options", f"partials_type={partials}"]
            runs, busy = [], []
            for _ in range(options.rounds):
                before = _processor_seconds()
                runs.append(run_child(words, LIMIT_SECONDS))
                busy.append(_processor_seconds() - before)
            for run in runs:
                if run.status != 0:
                    raise SystemExit(f"benchmarks: poprt: status {run.status}: {run.errors[-500:]}")
            seconds = [run.seconds for run in runs]
            sizes = [run.peak_bytes / file.stat().st_size for run in runs]
            table.add_row(
                *(partials, report.describe_ratio(seconds), report.describe_ratio(busy)),
                report.describe_goal(seconds, SECONDS),
                *(report.describe_ratio(sizes, MEMORY), report.describe_goal(sizes, MEMORY)),
            )
    report.show(console, {"compiling": table}, options.docs)


if __name__ == "__main__":
    main()
