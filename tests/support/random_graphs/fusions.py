"""Every optimiser of ONNX Runtime on graphs around its pattern: answers stay those of a session
without optimisers.

    python -m random_graphs.fusions COUNT [--first SEED] [--family NAME] [--bare]

With `--bare` ONNX Runtime alone is judged: material for docs/upstream.md.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import numpy as np
import onnx
import onnxruntime
from oracles import unoptimised_session
from simipu import ORT_ERRORS, GraphOptions, Lowered, SimIpuError, lower_model, make_graph
from simipu.numerics import find_unsafe_optimisers

from random_graphs import Drawn, finish, patterns, quantised, rewrites
from random_graphs.drawing import MAX_RANK, Array, Drawing, UnfitError
from random_graphs.judging import (
    CRASHES,
    DIFFERS,
    EQUAL,
    FAILS,
    FLOAT_BOUND,
    WRONG,
    Outcome,
    describe,
)
from random_graphs.running import Judge, Judged, answer_with

OPTIMISERS: Mapping[str, str] = {
    "AttentionFusion": "encoder",
    "BiasGeluFusion": "gelu",
    "BiasSkipLayerNormFusion": "biased norm",
    "CommonSubexpressionElimination": "same",
    "ConstantFolding": "same",
    "ConstantSharing": "same",
    "ConvActivationFusion": "conv",
    "ConvAddActivationFusion": "conv",
    "DynamicQuantizeMatMulFusion": "integers",
    "DoubleQDQPairsRemover": "pair",
    "EmbedLayerNormFusion": "encoder",
    "EnsureUniqueDQForNodeUnit": "quantised",
    "FastGeluFusion": "fast gelu",
    "GatherSliceToSplitFusion": "gathered",
    "GatherToSliceFusion": "gathered",
    "GeluFusionL1": "gelu",
    "GeluFusionL2": "gelu",
    "GemmActivationFusion": "gemm",
    "Level2_RuleBasedTransformer": "quantised",
    "LayerNormFusionL1": "layer norm",
    "LayerNormFusionL2": "layer norm",
    "Level1_RuleBasedTransformer": "conv",
    "MatMulAddFusion": "matmul add",
    "MatMulIntegerToFloatFusion": "integers",
    "MatMulNBitsFusion": "blocked weight",
    "MatMulScaleFusion": "matmul scale",
    "MatmulTransposeFusion": "matmul transpose",
    "NchwcTransformer": "blocked layout",
    "NhwcTransformer": "quantised convolution",
    "QDQFinalCleanupTransformer": "pair",
    "QDQPropagationTransformer": "quantised moves",
    "QDQS8ToU8Transformer": "quantised",
    "QDQSelectorActionTransformer": "quantised",
    "QuickGeluFusion": "quick gelu",
    "RemoveDuplicateCastTransformer": "cast",
    "ReshapeFusion": "reshape",
    "SimplifiedLayerNormFusion": "simplified layer norm",
    "SkipLayerNormFusion": "skip norm",
    "SliceConcatToSpaceToDepthFusion": "blocks",
    "TransposeOptimizer": "transposed",
    "TransposeOptimizer_CPUExecutionProvider": "turned pool",
    "WeightBiasQuantization": "quantised",
    "WhereDummyDq": "quantised",
}
"""ONNX Runtime's optimisers, with the family of graphs around their pattern. The rules of the first
level have families of their own: conv, clipped, denied, gemm, matmul norm, nothing, quotient; the
one of LabelEncoder has none, because that operator is rejected. The attention, embedding and swiglu
families show what the optimisers leave."""
NOT_TRIED: Mapping[str, str] = {
    **dict.fromkeys(
        "BiasDropoutFusion BiasSoftmaxFusion GroupQueryAttentionFusion SwiGluFusion".split(),
        "looks only at nodes of GPUs",
    ),
    "MatMulActivationFusion": "looks only at nodes of DirectML",
    "MemcpyTransformer": "adds copies between the memories of two processors",
    "CastFloat16Transformer": "is no choice: a session without optimisers has it, too",
    "FuseFp16InitializerToFp32NodeTransformer": "of halves, which only casts of a computed graph read",
    "FreeDimensionOverrideTransformer": "acts on an option of the session that is never set",
    "GroupQueryAttentionPreNormFusion": "of com.microsoft.GroupQueryAttention, which is rejected",
}
"""The others, with the reason why none can change a computed graph."""
FAMILIES = {**patterns.FAMILIES, **rewrites.FAMILIES, **quantised.FAMILIES}
OPSETS = (7, 9, 11, 12, 13, 14, 16, 17, 18, 20, 21)
_MAX_TRIES = 60
_BARE = "bare "


class _PatternDrawing(Drawing):
    """A drawing in which numbers may be infinite, or none."""

    def _check(self, value: Any) -> None:
        if not isinstance(value, np.ndarray) or value.ndim > MAX_RANK or not value.size:
            raise UnfitError("no tensor, or too many axes")


def draw_pattern(family: str, seed: int) -> Drawn:
    """Draw a graph of a family; the same seed gives the same graph."""
    for attempt in range(_MAX_TRIES):
        rng = np.random.default_rng([seed, attempt, *family.encode()])
        drawing = _PatternDrawing(rng, int(rng.choice(OPSETS)), int(rng.integers(1, 5)))
        drawing.max_inputs = 8
        try:
            FAMILIES[family](drawing)
            drawn = finish(drawing)
        except (UnfitError, ValueError):  # numpy's, of shapes that do not broadcast
            continue
        if drawing.chance(0.3):
            _open_sizes(drawn.model.graph)
        return drawn
    raise UnfitError(f"no graph of the family {family!r} for seed {seed}")


def _open_sizes(graph: onnx.GraphProto) -> None:
    """Leave the first size of each input open: ONNX Runtime computes what depends on known sizes
    only before it looks for patterns."""
    for value in (*graph.input, *graph.output):
        for place, dim in enumerate(value.type.tensor_type.shape.dim):
            if place == 0:
                dim.dim_param = f"{value.name}_size"


def judge_pattern(drawn: Drawn, *, bare: bool = False, without: Sequence[str] = ()) -> Outcome:
    """Judge a graph as it is served, or with `bare` as ONNX Runtime alone computes it, without the
    optimisers called `without`."""
    names = list(drawn.outputs)
    expected = unoptimised_session(drawn.model).run(names, dict(drawn.feeds))
    try:
        if bare:
            graph = _open_bare(drawn, without)
            answers = graph.run(names, dict(drawn.feeds))
        else:
            lowered, weights = lower_model(drawn.model, {}, None)
            left_out = find_unsafe_optimisers(lowered, weights)
            held = Lowered(lowered.SerializeToString(), weights, left_out=left_out)
            whole = make_graph(held, GraphOptions(1), "of a pattern")
            answers = whole.run(names, dict(drawn.feeds))
    except (SimIpuError, *ORT_ERRORS) as error:
        return Outcome(FAILS, describe(error))
    except Exception as error:  # noqa: BLE001  whatever is no error of ours is an outcome
        return Outcome(CRASHES, describe(error))
    for name, answer, value in zip(names, answers, expected, strict=True):
        if fault := _find_difference(np.asarray(answer), value):
            return Outcome(DIFFERS, f"{name!r} {fault}")
    return Outcome(EQUAL)


def _open_bare(drawn: Drawn, without: Sequence[str]) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    # As computed graphs have it: the default rounds operands to 8 bits.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return onnxruntime.InferenceSession(
        drawn.model.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=list(without),
    )


def _find_difference(answer: Array, expected: Array) -> str:
    if answer.shape != expected.shape:
        return f"has shape {answer.shape}, expected {expected.shape}"
    if expected.dtype.kind != "f":
        return "" if np.array_equal(answer, expected) else "has other whole numbers"
    real, true = answer.astype(np.float64), expected.astype(np.float64)
    largest = max(1.0, float(np.abs(true[np.isfinite(true)]).max(initial=0)))
    bound = FLOAT_BOUND * largest * (64 if expected.dtype == np.float16 else 1)
    if np.allclose(real, true, rtol=0, atol=bound, equal_nan=True):
        return ""
    with np.errstate(all="ignore"):
        error = np.nanmax(np.abs(real - true), initial=0) / largest
    return f"is off by {error:.2g} of the largest, or infinite or no number elsewhere"


@contextmanager
def _caught_log() -> Iterator[list[str]]:
    """Catch what native code writes to standard error."""
    lines: list[str] = []
    kept = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            log.seek(0)
            lines.extend(log.read().decode(errors="replace").splitlines())


def find_changes(drawn: Drawn) -> dict[str, bool]:
    """Return ONNX Runtime's optimisers, each with whether it changes the graph; rules are one
    optimiser of a level."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 0, 1
    with _caught_log() as lines, suppress(*ORT_ERRORS):
        onnxruntime.InferenceSession(
            drawn.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    found: dict[str, bool] = {}
    for line in lines:
        if match := re.search(r"GraphTransformer (\w+) modified: (\d)", line):
            name, changed = match.groups()
            found[name] = found.get(name, False) or changed == "1"
    return found


def answer() -> None:
    """Judge the graphs requested on standard input; the main function of the child."""
    logging.disable(logging.CRITICAL)
    answer_with(
        lambda seed, words: draw_pattern(words.removeprefix(_BARE), seed),
        lambda drawn, words: judge_pattern(drawn, bare=words.startswith(_BARE)),
    )


def judge_family(family: str, seeds: range, *, bare: bool = False) -> Iterator[Judged]:
    """Judge the graphs of a family in a child process."""
    with closing(Judge(module="random_graphs.fusions")) as judge_child:
        for seed in seeds:
            yield judge_child.ask(seed, _BARE * bare + family)


def main() -> int:
    """Judge the graphs of each family; return 1 if any graph was judged wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("count", type=int, help="number of graphs of a family")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="default: each")
    parser.add_argument("--bare", action="store_true", help="judge ONNX Runtime alone")
    given = parser.parse_args()
    start, num_wrong = time.monotonic(), 0
    for family in given.family or FAMILIES:
        outcomes = Counter[str]()
        seeds = range(given.first, given.first + given.count)
        for judged in judge_family(family, seeds, bare=given.bare):
            outcomes[judged.word] += 1
            if judged.word in WRONG:
                num_wrong += 1
                print(f"{family}, seed {judged.seed}: {judged.word}: {judged.why}", flush=True)
        print(family, *(f"{word} {count}" for word, count in sorted(outcomes.items())), flush=True)
    print(f"{num_wrong} wrong; {time.monotonic() - start:.0f} s")
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
