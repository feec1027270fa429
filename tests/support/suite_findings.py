"""Known differences in cases of ONNX's backend test-suite, and the reasons why others are rejected.

A case that differs without being listed here is an error of the project's. One that is listed may
pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch

from suite_runs import Outcome, Status

_WRONG = (Status.DIFFERS, Status.FAILED, Status.CRASHED)


@dataclass(frozen=True, slots=True)
class Finding:
    """Cases that differ for one reason.

    `cases` are patterns of names; `precision` is the only one in which they may differ, "" for
    both. Where a `bound` is given, they differ by no more than that of the largest expected value.
    """

    cases: str
    reason: str
    precision: str = ""
    bound: float = 0.0


FINDINGS = (
    Finding(
        "test_dft* test_stft*",
        "sums of a Fourier transform in float are off by some 1e-7 of the largest; the suite "
        "expects zeros to 1e-7 in all",
        bound=1e-5,
    ),
    Finding(
        "test_training_dropout* test_bernoulli*",
        "random numbers: the suite has those of its own generator",
    ),
    Finding(
        "test_operator_add_broadcast test_operator_add_size1_* test_operator_addconstant",
        "doubles become floats, and the suite's are beyond the range of those",
    ),
    Finding(
        "test_resize_downsample_scales_linear_align_corners "
        "test_resize_downsample_scales_cubic_align_corners",
        "the suite's own: it aligns corners with the size before it is rounded down, ONNX Runtime "
        "with the one that the result has",
    ),
    Finding(
        "test_maxunpool_export_with_output_shape",
        "the suite's own: it spreads the places, which are of the smaller output, as those of the "
        "larger",
    ),
    Finding(
        "test_attention_4d_with_past_and_present_qk_matmul_bias_*_mask_causal",
        "ONNX Runtime writes the lowest float, not -inf, for masked places into the output of "
        "scores",
    ),
    Finding(
        "test_cast_FLOAT_to_FLOAT16 test_cast*_DOUBLE_to_FLOAT16* test_castlike_FLOAT_to_FLOAT16* "
        "test_mod_float_edge_cases_fmod_0_*",
        "infinity becomes 65504: half saturates on the chip",
    ),
    Finding(
        "test_attention_24_qk_matmul_output_mode3_softmax_precision_expanded",
        "masks of -inf become -65504 in half, so a row that is masked everywhere is no NaN to be "
        "replaced",
    ),
    Finding(
        "test_reduce_prod_* test_reduce_log_sum_empty_set*",
        "a result beyond 65504: half saturates on the chip",
        "fp16",
    ),
    Finding(
        "test_reduce_log_sum_exp_*_expanded",
        "exponentials, written one by one in the graph, go beyond 65504: half saturates on the "
        "chip",
        "fp16",
    ),
    Finding(
        "test_dynamicquantizelinear*",
        "a scale in half moves a quotient over the border between two steps",
        "fp16",
    ),
    Finding(
        "test_softmax_large_number* test_logsoftmax_large_number*",
        "inputs of 10,000 and more, of which half has every eighth",
        "fp16",
    ),
)


def find_reason(name: str, precision: str, outcome: Outcome) -> str:
    """Return why a case that differs does, or "" where no reason is known."""
    for finding in FINDINGS:
        if (
            any(fnmatch(name, pattern) for pattern in finding.cases.split())
            and finding.precision in ("", precision)
            and (not finding.bound or outcome.error <= finding.bound)
        ):
            return finding.reason
    return ""


_REFUSALS = (
    (r"has type (\w+), which the IPU lacks", "a type that the IPU lacks: {}"),
    (r"which is for tensors inside of a model", "8-bit floats as an input or output"),
    (
        r"is a (?:sequence|optional);|sequence_type|optional_type|Sequence",
        "sequences and optional values",
    ),
    (r"operator (ai\.onnx\.[\w.]+)\.\w+ is not supported", "operators of {}"),
    (r"reads the bits of", "bits of types of 64 bits"),
    (r"depends on the data|not known at compile time", "a shape that depends on data"),
    (r"Could not find an implementation for (\w+)", "ONNX Runtime has no kernel: {}"),
    (r"Scan of opset 8", "a Scan of opset 8 in half"),
    (r"does not run|does not load|cannot load the model", "ONNX Runtime does not compute it"),
)


def classify_refusal(message: str) -> str:
    """Return the kind of reason for which a model was refused; the message itself where it is of no
    kind."""
    for pattern, reason in _REFUSALS:
        match = re.search(pattern, message)
        if match:
            return reason.format(*match.groups())
    return " ".join(message.split())


def find_unnamed(results: Iterable[tuple[str, str, Outcome]]) -> list[str]:
    """Return the faults: cases that differ for no known reason, fail or crash, with their outcomes.

    `results` has names, precisions and outcomes.
    """
    return [
        f"{name} in {precision}: {outcome.status.value}: {outcome.found}"
        for name, precision, outcome in results
        if outcome.status in _WRONG and not find_reason(name, precision, outcome)
    ]
