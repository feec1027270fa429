"""Judge many random graphs in a child process: one that crashes or hangs is an outcome, and another
child goes on.

    python -m random_graphs.running COUNT [--first SEED] [--json FILE]

prints how many came to what, and every one that is wrong; the status is 1 if any is.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from waiting import PATIENCE_SECONDS

from random_graphs import Drawn, draw
from random_graphs.judging import CRASHES, EQUAL, PRECISIONS, WRONG, Outcome, judge

_MAX_TOLD = 400


@dataclass(frozen=True, slots=True)
class Judged:
    """A graph, by its seed, and its outcome."""

    seed: int
    precision: str
    word: str
    why: str
    opset: int = 0
    operators: tuple[str, ...] = ()


class Judge:
    """A child process that judges one graph at a time: the function `answer` of a module reads
    seeds and precisions, or what the module has instead of those."""

    def __init__(
        self, limit_seconds: float = PATIENCE_SECONDS, module: str = "random_graphs.running"
    ) -> None:
        self._limit_seconds, self._module = limit_seconds, module
        self._start()

    def ask(self, seed: int, precision: str) -> Judged:
        """Judge a graph. A child that dies or takes too long is replaced."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(f"{seed} {precision}\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            return self._replace(seed, precision, "the child process is not there")
        if not select.select([self._child.stdout], [], [], self._limit_seconds)[0]:
            return self._replace(seed, precision, f"takes longer than {self._limit_seconds:g} s")
        line = self._child.stdout.readline()
        if not line:
            return self._replace(seed, precision, f"ends its process (status {self._child.wait()})")
        found = json.loads(line)
        return Judged(**{**found, "operators": tuple(found["operators"])})

    def close(self) -> None:
        """End the child."""
        self._child.kill()
        self._child.communicate()

    def _start(self) -> None:
        paths = [str(Path(__file__).parents[1]), *(path for path in sys.path if path)]
        self._child = subprocess.Popen(
            [sys.executable, "-c", f"from {self._module} import answer; answer()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def _replace(self, seed: int, precision: str, why: str) -> Judged:
        self.close()
        self._start()
        return Judged(seed, precision, CRASHES, why)


def answer() -> None:
    """Judge the graphs requested on standard input; the main function of the child."""
    answer_with(lambda seed, _: draw(seed), judge)


def answer_with(
    draw_one: Callable[[int, str], Drawn], judge_one: Callable[[Drawn, str], Outcome]
) -> None:
    """Draw and judge the graphs requested on standard input."""
    # Keep the output of libraries out of the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        seed, precision = line.rstrip("\n").split(" ", 1)
        drawn = draw_one(int(seed), precision)
        found = judge_one(drawn, precision)
        opset = drawn.model.opset_import[0].version
        operators = tuple(sorted({node.op_type for node in drawn.model.graph.node}))
        told = Judged(int(seed), precision, found.word, found.why, opset, operators)
        answers.write(json.dumps(asdict(told)) + "\n")
        answers.flush()


def judge_all(seeds: Iterable[int], precisions: Iterable[str] = PRECISIONS) -> Iterator[Judged]:
    """Judge the graphs of all seeds in each precision."""
    wanted = tuple(precisions)
    with closing(Judge()) as judge_child:
        for seed in seeds:
            for precision in wanted:
                yield judge_child.ask(seed, precision)


def main() -> int:
    """Judge the graphs; return 1 if any graph was judged wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("count", type=int, help="number of graphs")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--precision", choices=PRECISIONS, action="append", help="default: each")
    parser.add_argument("--json", type=Path, help="a file for every outcome, one a line")
    given = parser.parse_args()
    outcomes: Counter[tuple[str, str]] = Counter()
    operators, opsets = set[str](), set[int]()
    start, wrong = time.monotonic(), 0
    lines = given.json.open("w", encoding="utf-8") if given.json else None
    for judged in judge_all(
        range(given.first, given.first + given.count), given.precision or PRECISIONS
    ):
        outcomes[judged.precision, judged.word] += 1
        if judged.word == EQUAL:
            operators.update(judged.operators)
            opsets.add(judged.opset)
        if lines:
            lines.write(json.dumps(asdict(judged)) + "\n")
            lines.flush()
        if judged.word in WRONG:
            wrong += 1
            if wrong <= _MAX_TOLD:
                print(
                    f"seed {judged.seed} in {judged.precision}: {judged.word}: {judged.why}",
                    flush=True,
                )
    for (precision, word), count in sorted(outcomes.items()):
        print(f"{precision} {word:10} {count:6}")
    print(
        f"{len(operators)} operators and opsets {min(opsets, default=0)} to "
        f"{max(opsets, default=0)} among "
        f"those equal; {wrong} wrong; {time.monotonic() - start:.0f} s"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
