"""Public scripts of TensorFlow for the IPU, run unchanged on this project.

    tests/conformance/tensorflow_scripts.py [--guide FOLDER] [--guide1 FOLDER] [--examples FOLDER]
        [--tutorials FOLDER] [--only PATTERN ...] [--json FILE] [--seconds SECONDS]

Nothing is downloaded. The folders are:

    --guide      the user guide's scripts, tensorflow/compiler/plugin/poplar/docs of
                 graphcore/tensorflow (r2.6/sdk-release-3.4)
    --guide1     the same of r1.15/sdk-release-3.4
    --examples   a checkout of graphcore/examples, tag v3.0.0
    --tutorials  a checkout of graphcore/tutorials, branch sdk-release-2.6

Each script runs in a copy of its folder, in a process of its own (tensorflow_script_process.py,
which replaces data sets by random numbers and says what else it stands in for). A script passes if
it exits with 0 and at least one program was compiled; scripts that only define functions are named
in the table. Exits with 1 if a script fails that is not listed as unsupported.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from report import make_console, make_table

PROCESS: Final = Path(__file__).with_name("tensorflow_script_process.py")
MAX_SECONDS: Final = 600
TRAINS: Final = "trains"
MACHINE_CODE: Final = "calls a library of machine code for the IPU"
UNSUPPORTED: Final[Mapping[str, str]] = {
    "custom_add_inplace": MACHINE_CODE,
    "tutorial_attributes_example": MACHINE_CODE,
    "tutorial_custom_codelet": MACHINE_CODE,
    "host_embedding_example": TRAINS,
    "ipu_estimator_example": TRAINS,
    "ipu_pipeline_estimator_example": TRAINS,
    "outfeed_iterator_example": TRAINS,
    "targeting_tf2_example3": TRAINS,
    "guide/pre_compile_example": TRAINS,
    "guide/pre_compile_example_runner": TRAINS,
    "docs_test_wrapper": "runs the other scripts",
    "examples/infer": MACHINE_CODE,
    "grouped_conv": "stock TensorFlow takes no dimension 1.0",
}
"""Scripts that inference on a simulated IPU does not include, or stock TensorFlow does not run."""
ONLY_DEFINES: Final = ("function_block1", "function_block2", "function_block3")
"""Scripts of the user guide that run nothing."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and how it is run."""

    checkout: str
    """Option that names its checkout."""
    path: str
    """Its path in the checkout."""
    arguments: str = ""
    folder: str = ""
    """Folder to copy and to run in, if it is not the script's."""
    stand_ins: tuple[str, ...] = ()
    """What the process stands in for, by the names of its table."""

    @property
    def name(self) -> str:
        """The name in the table."""
        return f"{self.checkout}/{Path(self.path).stem}"

    @property
    def unsupported(self) -> str:
        """Why the script does not run here, or nothing."""
        return UNSUPPORTED.get(self.name, UNSUPPORTED.get(Path(self.path).stem, ""))

    @property
    def compiles(self) -> bool:
        """Whether it has to compile a program."""
        return Path(self.path).stem not in ONLY_DEFINES


_TECH_NOTES: Final = "tech_notes_code"
_KERNELS: Final = "kernel_benchmarks/tensorflow"
PUBLIC: Final = (
    Script("tutorials", f"{_TECH_NOTES}/recompilation/tensorflow2/TF2_recompilation.py"),
    Script("tutorials", f"{_TECH_NOTES}/recompilation/tensorflow1/recompilation.py"),
    Script("tutorials", f"{_TECH_NOTES}/model_parallelism/tensorflow1_code/graph_sharding.py"),
    Script(
        "tutorials",
        f"{_TECH_NOTES}/model_parallelism/tensorflow1_code/inference_pipelining.py",
    ),
    *(
        Script("tutorials", f"{_TECH_NOTES}/model_parallelism/tensorflow2_code/{name}.py")
        for name in (
            "inference_pipelining",
            "inference_pipelining_sequential",
            "inference_pipelining_set_pipeline_stage",
        )
    ),
    Script(
        "tutorials",
        "feature_examples/tensorflow/sharding/simple_sharding.py",
        stand_ins=("tensorflow1",),
    ),
    *(
        Script(
            "tutorials",
            "feature_examples/tensorflow/connection_type/connection_type.py",
            f"--connection_type {kind}",
        )
        for kind in ("ALWAYS", "ON_DEMAND", "PRE_COMPILE", "NEVER")
    ),
    Script(
        "tutorials",
        "simple_applications/tensorflow/resnet18_inference/classify_images.py",
        "images",
        stand_ins=("tensorflow1", "resnet18"),
    ),
    Script(
        "tutorials",
        f"{_KERNELS}/grouped_conv.py",
        "--use-generated-data --block-repeats 2 --steps 1",
        ".",
        ("tensorflow1",),
    ),
    *(
        Script(
            "tutorials",
            f"{_KERNELS}/{name}.py",
            "--use-generated-data --steps 1",
            ".",
            ("tensorflow1",),
        )
        for name in ("gru", "lstm")
    ),
    Script(
        "examples",
        "ai_for_simulation/abc_covid_19/tensorflow2/ABC_IPU.py",
        "-n 5 -m 2 -b 100 -c 50 -t 1e9 -s 10 -r 1 -cn US",
    ),
    Script(
        "examples",
        "speech/fastspeech2/tensorflow2/infer.py",
        "--config config/fastspeech2.json --generated-data --steps-per-epoch 2 --epochs 2",
        stand_ins=("keras2",),
    ),
    Script(
        "examples",
        "vision/cnns/tensorflow1/inference/run_benchmark.py",
        "mobilenetv2 --data synthetic --device-iterations 2 --num-iterations 2",
        stand_ins=("keras2", "tensorflow1", "cnns"),
    ),
)
"""Public scripts of inference whose data can be generated."""


@dataclass(slots=True)
class Outcome:
    """What a script did."""

    name: str
    status: int | None
    """Its exit status; None if it took too long."""
    seconds: float
    compiled: int = 0
    loaded: int = 0
    runs: int = 0
    memory_mb: int = 0
    error: str = ""
    expected: str = field(default="")
    """Why it is not expected to run, or nothing."""

    @property
    def passed(self) -> bool:
        """Whether it ran."""
        return self.status == 0 and not self.error


def iter_guide(checkout: str, folder: Path) -> Iterator[Script]:
    """Yield the scripts of a user guide."""
    old = checkout == "guide1"
    for path in sorted(folder.glob("*.py")):
        yield Script(checkout, path.name, stand_ins=("tensorflow1",) if old else ())


def run_script(script: Script, checkout: Path, seconds: int) -> Outcome:
    """Run a script in a copy of its folder.

    Args:
        script: The script.
        checkout: Folder that its path begins in.
        seconds: Time limit.

    Returns:
        What it did.
    """
    folder = script.folder or str(Path(script.path).parent)
    with tempfile.TemporaryDirectory() as place:
        copy, figures = Path(place, "copy"), Path(place, "figures.json")
        shutil.copytree(checkout / folder, copy, ignore=shutil.ignore_patterns(".git"))
        path = Path(script.path).relative_to(folder)
        names = ",".join(script.stand_ins)
        command = [sys.executable, str(PROCESS), str(figures), names, str(path)]
        start = time.monotonic()
        try:
            process = subprocess.run(
                [*command, *script.arguments.split()],
                cwd=copy,
                env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
            status, lines = process.returncode, process.stderr.splitlines()
        except subprocess.TimeoutExpired:
            status, lines = None, [f"took more than {seconds} s"]
        outcome = Outcome(script.name, status, time.monotonic() - start)
        if figures.exists():
            for name, value in json.loads(figures.read_text()).items():
                setattr(outcome, name, value)
    outcome.expected = script.unsupported
    if status != 0:
        outcome.error = find_error(lines)
    elif script.compiles and not outcome.compiled:
        outcome.error = "compiled nothing"
    return outcome


def find_error(lines: list[str]) -> str:
    """Return the last line of a script's output that names an error, or its last line."""
    errors = [line for line in lines if line[:1].isalpha() and "Error" in line.split(":")[0]]
    return (errors or lines or ["no output"])[-1]


def iter_scripts(checkouts: Mapping[str, Path], patterns: list[str]) -> Iterator[Script]:
    """Yield the scripts of the checkouts that match a pattern."""
    guides = (
        iter_guide(name, checkouts[name]) for name in ("guide", "guide1") if name in checkouts
    )
    scripts = [script for guide in guides for script in guide]
    scripts += [script for script in PUBLIC if script.checkout in checkouts]
    for script in scripts:
        if any(fnmatch(script.name, pattern) for pattern in patterns):
            yield script


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("guide", "guide1", "examples", "tutorials"):
        parser.add_argument(f"--{name}", type=Path, help=f"folder of the scripts of {name}")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of names to run")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--seconds", type=int, default=MAX_SECONDS, help="time limit of a script")
    return parser.parse_args()


def main() -> int:
    """Run the scripts and print a table."""
    arguments = parse_arguments()
    checkouts = {
        name: getattr(arguments, name).resolve()
        for name in ("guide", "guide1", "examples", "tutorials")
        if getattr(arguments, name) is not None
    }
    console = make_console()
    columns = ("script", "status", "compiled", "runs", "seconds", "MB", "error")
    table, outcomes = make_table("Scripts of TensorFlow for the IPU", *columns), []
    for script in iter_scripts(checkouts, arguments.only):
        outcome = run_script(script, checkouts[script.checkout], arguments.seconds)
        outcomes.append(outcome)
        console.print(f"{'ok' if outcome.passed else 'failed'}: {outcome.name} {outcome.error}")
        table.add_row(
            f"{outcome.name} ({outcome.expected})" if outcome.expected else outcome.name,
            str(outcome.status),
            str(outcome.compiled + outcome.loaded),
            str(outcome.runs),
            f"{outcome.seconds:.0f}",
            str(outcome.memory_mb),
            outcome.error,
        )
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    expected = [outcome for outcome in outcomes if not outcome.expected]
    console.print(f"{sum(o.passed for o in expected)} of {len(expected)} scripts ran")
    return 0 if expected and all(outcome.passed for outcome in expected) else 1


if __name__ == "__main__":
    sys.exit(main())
