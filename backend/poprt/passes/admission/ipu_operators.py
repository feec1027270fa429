"""Attributes that the IPU's own compiler refuses, and operators that it lacks. The table of
operators says which ones it has.

What compiles here is another question (whatever ONNX Runtime computes); `docs/operators.md` shows
both side by side. An operator that PopART has in its opsets 6 to 11 counts as supported in newer
opsets. Newer opsets mostly change where axes and limits are given, which PopRT's conversion to
opset 11 corrects.

Source: [P] github.com/graphcore/popart at d2f20d78, the last public commit (11 September 2023).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnxgraph import iter_nodes
from onnxgraph.nodes import STANDARD_DOMAINS
from simipu.operators import find_operator

PARTLY: Mapping[str, str] = {
    "NonZero": "only PopRT's replace_nonzero, where exactly one element is not zero",
}
"""Operators that PopRT replaces under conditions that a graph does not show; they count as
missing."""

ACCEPTED: Mapping[tuple[str, str], tuple[Any, ...]] = {
    ("AveragePool", "count_include_pad"): (0,),
    ("Constant", "sparse_value"): (),
    ("ConvTranspose", "dilations"): (1,),
    ("MaxPool", "dilations"): (1,),
    ("MaxPool", "storage_order"): (0,),
    ("Resize", "coordinate_transformation_mode"): (
        b"half_pixel",
        b"pytorch_half_pixel",
        b"align_corners",
        b"asymmetric",
    ),
    ("Resize", "exclude_outside"): (0,),
    ("TopK", "sorted"): (1,),
    ("LSTM", "direction"): (b"forward",),
    **{(name, "activation_alpha"): () for name in ("GRU", "LSTM", "RNN")},
    **{(name, "activation_beta"): () for name in ("GRU", "LSTM", "RNN")},
    **{(name, "clip"): () for name in ("GRU", "LSTM", "RNN")},
    ("GRU", "activations"): (),
    **{(name, "input_forget"): (0,) for name in ("GRU", "LSTM")},
    **{
        (name, "seed"): ()
        for name in ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
    },
}
"""[P] Attributes that PopART accepts with some values only. Each value of a list must be accepted;
an empty tuple means that no value is.

Source: the errors of
willow/src/op/{averagepool,convtranspose,gru,lstm,maxpool,randombase,resize,rnn}.cpp,
popx/op/{resizex,topkx}.cpp and onnxpasses/nodepatterns/constfoldops.cpp.
"""


def find_refused_attributes(node: onnx.NodeProto) -> list[str]:
    """Return the attributes of a node whose values PopART does not accept."""
    refused = []
    for each in node.attribute:
        accepted = ACCEPTED.get((node.op_type, each.name))
        if accepted is None:
            continue
        value = onnx.helper.get_attribute_value(each)
        values = value if isinstance(value, Sequence) and not isinstance(value, bytes) else [value]
        if not accepted or any(one not in accepted for one in values):
            refused.append(each.name)
    return refused


def is_implemented(op_type: str) -> bool:
    """Return whether the IPU's compiler supports that standard operator, directly or rewritten."""
    return bool(find_operator(op_type).sdk)


def describe_missing(graph: onnx.GraphProto) -> str:
    """Return the standard operators that the IPU's compiler lacks, each with its first node; "" if
    there is none.

    Operators in bodies are included. Example: "MatMulInteger (node 'a' and 3 more), GatherND (node
    'b')".
    """
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for node in iter_nodes(graph):
        if node.domain in STANDARD_DOMAINS and not is_implemented(node.op_type):
            counts[node.op_type] += 1
            first.setdefault(node.op_type, node.name)
    more = {
        op_type: f" and {count - 1} more" if count > 1 else "" for op_type, count in counts.items()
    }
    return ", ".join(f"{op_type} (node {name!r}{more[op_type]})" for op_type, name in first.items())
