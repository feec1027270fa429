"""Every pass on random graphs: answers stay what they are in ONNX Runtime without optimisers.

    python -m random_graphs.passes COUNT [--first SEED] [--name PASS]

A pass may refuse a graph with a compile error. What a pass does to types and borders its case in
`pass_cases` says.
"""

from __future__ import annotations

import argparse
import io
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import onnx
from onnxgraph import find_opset
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel
from oracles import unoptimised_session
from pass_cases import CASES
from poprt.passes import get_pass, get_registered_passes
from simipu import SimIpuError
from simipu.numerics.lowering import OLDEST_OPSET, lower

from random_graphs import Drawn, draw
from random_graphs.drawing import Array
from random_graphs.judging import (
    CRASHES,
    DIFFERS,
    EQUAL,
    HALF_BOUND,
    HALF_FACTOR,
    REFUSED,
    SKIPPED,
    Outcome,
)

BOUND = 1e-4
_BEFORE = ("remove_initializer_from_input", "settle_bodies")
"""Passes that run before all others, which rely on them."""
NARROWING = frozenset(
    ("float_to_half", "float_to_mixed", "float_to_fp8", "float_to_int8", "double_to_float")
)


def find_passes() -> list[str]:
    """Return the passes that change or check any graph, made without arguments, except users' and
    refused ones."""
    found = get_registered_passes()
    return sorted(
        name
        for name, made in found.items()
        if made.__module__.startswith("poprt.")
        and not made.info.refusal
        and not _asks_otherwise(name)
    )


def _asks_otherwise(name: str) -> bool:
    return name in CASES and bool(CASES[name].asked_otherwise)


def _arguments(name: str, seed: int) -> Mapping[str, Any]:
    if name == "convert_version":
        return {"version": OLDEST_OPSET + seed % (onnx.defs.onnx_opset_version() - OLDEST_OPSET)}
    return {}


def judge_pass(name: str, drawn: Drawn, seed: int) -> Outcome:
    """Run a pass on a graph, and the graphs before and after it."""
    names = list(drawn.outputs)
    model = onnx.ModelProto()
    model.CopyFrom(drawn.model)
    try:
        for each in _BEFORE:
            model = get_pass(each)(model)
        if "half" in name and find_opset(model, OLDEST_OPSET) < OLDEST_OPSET:
            model = get_pass("convert_version", OLDEST_OPSET)(model)
        before = model.SerializeToString(deterministic=True)
        try:
            made = get_pass(name, **_arguments(name, seed))
        except TypeError:
            return Outcome(SKIPPED, "it needs arguments")
        with redirect_stdout(io.StringIO()):  # some tell of the model
            changed = made(model)
        if changed.SerializeToString(deterministic=True) == before:
            return Outcome(EQUAL)
        kept = [value.name for value in changed.graph.output if value.name in names]
        found = _compute(changed, drawn.feeds, kept)
    except NoKernel as error:
        return Outcome(SKIPPED, str(error))  # ONNX Runtime has no kernel for the resulting opset
    except SimIpuError as error:
        return Outcome(REFUSED, " ".join(str(error).split())[:200])
    except Exception as error:  # noqa: BLE001  whatever a pass raises is an outcome
        return Outcome(CRASHES, f"{type(error).__name__}: {' '.join(str(error).split())}"[:300])
    expected = unoptimised_session(drawn.model).run(kept, dict(drawn.feeds))
    return _compare(
        name, drawn, dict(zip(kept, expected, strict=True)), dict(zip(kept, found, strict=True))
    )


def _compute(model: onnx.ModelProto, feeds: Mapping[str, Array], names: list[str]) -> list[Array]:
    session = unoptimised_session(lower(model, None))
    fed = {}
    for value in session.get_inputs():
        kind = value.type.removeprefix("tensor(").rstrip(")")
        kind = {"float": "float32", "double": "float64"}.get(kind, kind)
        fed[value.name] = np.asarray(feeds[value.name]).astype(kind)
    found: list[Array] = session.run(names, fed)
    return found


def _compare(
    name: str, drawn: Drawn, expected: Mapping[str, Array], found: Mapping[str, Array]
) -> Outcome:
    narrows = "half" in name or "bits" in name or name in NARROWING
    for output, wanted in expected.items():
        tensor, value = drawn.outputs[output], found[output]
        if value.shape != wanted.shape:
            return Outcome(DIFFERS, f"{output!r} has shape {value.shape}, expected {wanted.shape}")
        if narrows and tensor.unsteady:
            continue
        real, true = value.astype(np.float64), wanted.astype(np.float64)
        largest = max(1.0, float(np.abs(true).max(initial=0)))
        bound = 0.0 if wanted.dtype.kind != "f" else BOUND * largest
        if narrows:
            moved = np.abs(tensor.half.astype(np.float64) - tensor.value.astype(np.float64))
            bound = HALF_FACTOR * float(moved.max(initial=0)) + HALF_BOUND * largest
        if not np.allclose(real, true, rtol=0, atol=bound, equal_nan=True):
            error = float(np.nanmax(np.abs(real - true))) / largest
            return Outcome(DIFFERS, f"{output!r} is off by {error:.2g} of the largest")
    return Outcome(EQUAL)


def judge_passes(seeds: range, names: list[str]) -> Iterator[tuple[int, str, Outcome]]:
    """Yield the outcome of each pass on the graph of each seed."""
    for seed in seeds:
        drawn = draw(seed)
        for name in names:
            yield seed, name, judge_pass(name, drawn, seed)


def main() -> int:
    """Judge the passes; return 1 if a pass changed an answer, or crashed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("count", type=int, help="number of graphs")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--name", action="append", help="a pass (default: all)")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    outcomes: Counter[str] = Counter()
    start, names = time.monotonic(), given.name or find_passes()
    for seed, name, outcome in judge_passes(range(given.first, given.first + given.count), names):
        outcomes[outcome.word] += 1
        if outcome.word in (DIFFERS, CRASHES):
            print(f"seed {seed}, pass {name}: {outcome.word}: {outcome.why}", flush=True)
    counted = ", ".join(f"{word} {count}" for word, count in sorted(outcomes.items()))
    print(
        f"{len(names)} passes on {given.count} graphs: {counted}; {time.monotonic() - start:.0f} s"
    )
    return int(outcomes[DIFFERS] + outcomes[CRASHES] > 0)


if __name__ == "__main__":
    sys.exit(main())
