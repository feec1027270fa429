"""Time that TensorFlow for the IPU adds: to TensorFlow's import, and to a call.

Import: seconds until `from tensorflow.python import ipu` returns, beside `import tensorflow` alone,
each in a process of its own.

Calls: rounds of calls of a compiled session, of TensorFlow's session with a Python function that
does nothing, and of `ModelRunner.execute` on the file that the computation was cached in, in one
process. Microseconds are those of the processor. Goals are those of issue 51.

Run this script with an interpreter that has TensorFlow and the distribution tensorflow-ipu.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import report
from children import run_child
from rounds import Goal

IMPORT_GOAL = Goal(0.3, at_most=True)
"""Seconds beyond those of TensorFlow's import."""
CALL_GOAL = Goal(200, at_most=True)
"""Microseconds of a call beyond those of the runner and of TensorFlow's own call."""
LIMIT_SECONDS = 300.0
CALLS = 300
_TIMED = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"


def time_import(statement: str) -> float:
    """Return the seconds that a statement takes in a new process."""
    run = run_child([sys.executable, "-c", _TIMED.format(statement)], LIMIT_SECONDS)
    if run.status != 0:
        raise SystemExit(f"benchmarks: {statement}: status {run.status}: {run.errors[-500:]}")
    return float(run.output.splitlines()[-1])


def compare_imports(rounds: int) -> list[tuple[float, float]]:
    """Return seconds of both imports, a pair a round."""
    both = "import tensorflow; from tensorflow.python import ipu"
    return [(time_import(both), time_import("import tensorflow")) for _ in range(rounds)]


def compare_calls(rounds: int) -> list[tuple[float, float, float]]:
    """Return microseconds of a compiled session, of an empty one, and of the runner, for each
    round."""
    tf: Any = importlib.import_module("tensorflow").compat.v1
    ipu: Any = importlib.import_module("tensorflow.python.ipu")
    runner: Any = importlib.import_module("model_runtime").ModelRunner
    tf.disable_v2_behavior()
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.configure_ipu_system()
    source = tf.placeholder(tf.float32, [4, 16], name="source")

    def compute(value: Any) -> Any:
        weight = tf.get_variable("weight", [16, 32], use_resource=True)
        return value @ weight + tf.get_variable("bias", [32], use_resource=True)

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        [result] = ipu.ipu_compiler.compile(compute, [source])
    nothing = tf.numpy_function(lambda value: value, [source], tf.float32)
    data = np.ones([4, 16], np.float32)
    with tempfile.TemporaryDirectory() as name, tf.Session() as session:
        os.environ["TF_POPLAR_FLAGS"] = f"--executable_cache_path={name}"
        session.run(tf.global_variables_initializer())
        session.run(result, {source: data})
        weights = Path(name, "weights.popef")
        ipu.utils.export_variables_from_live_session(session, str(weights))
        files = [str(next(Path(name).glob("*.poplar_exec"))), str(weights)]
        with runner(files) as loaded:
            inputs = {"source": data}
            loaded.execute(inputs)
            return [
                (
                    _time_calls(lambda: session.run(result, {source: data})),
                    _time_calls(lambda: session.run(nothing, {source: data})),
                    _time_calls(lambda: loaded.execute(inputs)),
                )
                for _ in range(rounds)
            ]


def _time_calls(call: Callable[[], object]) -> float:
    start = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - start) / CALLS * 1e6


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=5, help="(default %(default)s)")
    parser.add_argument("--call-rounds", type=int, default=15, help="(default %(default)s)")
    options, _ = parser.parse_known_args()
    console = report.make_console()
    calls = compare_calls(options.call_rounds)
    table = report.make_table(
        f"Product of 4 x 16 and 16 x 32: processor's us of a call, medians of "
        f"{options.call_rounds} rounds",
        *("session", "empty session", "ModelRunner", "difference", "goal"),
    )
    further = [ours - empty - runner for ours, empty, runner in calls]
    table.add_row(
        *(f"{statistics.median(times):.0f}" for times in zip(*calls, strict=True)),
        report.describe_ratio(further, CALL_GOAL),
        report.describe_goal(further, CALL_GOAL),
    )
    console.print(table)
    imports = compare_imports(options.rounds)
    table = report.make_table(
        f"Import: seconds, medians of {options.rounds} rounds",
        *("with ipu", "TensorFlow", "difference", "goal"),
    )
    further = [ours - theirs for ours, theirs in imports]
    table.add_row(
        *(f"{statistics.median(times):.2f}" for times in zip(*imports, strict=True)),
        report.describe_ratio(further, IMPORT_GOAL),
        report.describe_goal(further, IMPORT_GOAL),
    )
    console.print(table)


if __name__ == "__main__":
    main()
