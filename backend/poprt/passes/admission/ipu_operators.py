"""Attributes that the IPU's own compiler refuses, and operators that it lacks. The table of
operators says which ones it has.

What compiles here is another question (whatever ONNX Runtime computes); `docs/operators.md` shows
both side by side. An operator that PopART has in its opsets 6 to 11 counts as supported in newer
opsets. Newer opsets mostly change where axes and limits are given, which PopRT's conversion to
opset 11 corrects.

Source: [P] github.com/graphcore/popart at d2f20d78, the last public commit (11 September 2023).

The form of a node is the number of inputs and outputs of its operator, and the types of its
attributes. Code that runs after the check of forms need not check nodes itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import AttributeProto, defs
from onnxgraph import CHIP_DOMAIN, STANDARD_DOMAINS, iter_nodes
from simipu import CompileError
from simipu.operators import IPU_COPY, Family, find_operator, names_where

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
    **{
        (name, attribute): ()
        for name in names_where(lambda entry: entry.family is Family.RECURRENT)
        for attribute in ("activation_alpha", "activation_beta", "clip")
    },
    ("GRU", "activations"): (),
    ("GRU", "input_forget"): (0,),
    ("LSTM", "input_forget"): (0,),
    **{
        (name, "seed"): ()
        for name in names_where(lambda entry: entry.is_random and bool(entry.sdk))
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
    for entry in node.attribute:
        accepted = ACCEPTED.get((node.op_type, entry.name))
        if accepted is None:
            continue
        value = onnx.helper.get_attribute_value(entry)
        values = value if isinstance(value, Sequence) and not isinstance(value, bytes) else [value]
        if not accepted or any(one not in accepted for one in values):
            refused.append(entry.name)
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


_MANY = 2**31 - 1
"""Number without a bound, as ONNX's schemas write it."""
_KINDS = {number: name.lower() for name, number in AttributeProto.AttributeType.items()}


@dataclass(frozen=True, slots=True)
class OperatorForm:
    """Form of an operator: bounds of the numbers of inputs and outputs, and types of attributes.

    Types are the numbers of AttributeProto.
    """

    inputs: tuple[int, int]
    outputs: tuple[int, int] = (1, 1)
    single: tuple[int, ...] = ()
    """Inputs that may not be omitted."""
    attributes: Mapping[str, int] = field(default_factory=dict)
    required: frozenset[str] = frozenset()

    def find_fault(self, node: onnx.NodeProto) -> str | None:
        """Return a description of the node's fault, or None."""
        for what, count, (least, most) in (
            ("input", len(node.input), self.inputs),
            ("output", len(node.output), self.outputs),
        ):
            if not least <= count <= most:
                expected = (
                    f"{least}"
                    if least == most
                    else f"{least} to {most}"
                    if most < _MANY
                    else f"{least} or more"
                )
                return f"expected {expected} {what}s, found {count}"
        missing = next(
            (place for place in self.single if place < len(node.input) and not node.input[place]),
            None,
        )
        if missing is not None:
            return f"its input {missing} may not be left out"
        kinds = {entry.name: entry.type for entry in node.attribute}
        lacking = sorted(self.required - kinds.keys())
        if lacking:
            return f"it lacks the attribute {lacking[0]!r}"
        for name, kind in kinds.items():
            if kind != self.attributes.get(name, kind):
                expected, kind_name = _KINDS[self.attributes[name]], _KINDS.get(kind, str(kind))
                return f"its attribute {name!r} has to be of type {expected}, found {kind_name}"
        return None


_I, _F, _IS, _S = (
    AttributeProto.INT,
    AttributeProto.FLOAT,
    AttributeProto.INTS,
    AttributeProto.STRING,
)
_NORM = {"epsilon": _F, "num_groups": _I, "stable_algo": _I}
_PLAIN = OperatorForm((1, 1))
_MAPPED = {
    "fwd_grain_size": _I,
    "bwd_grain_size": _I,
    "fwd_after_matmul": _I,
    "bwd_after_matmul": _I,
    "debug_str": _S,
}
"""Attributes that tell the real chip where to place tensors; they have no effect here."""
_PACKED = {"max_valid_num": _I}
"""Attributes of packing operators. They also have `segment_max_size`, which is one number or
several."""
CHIP_FORMS: Mapping[str, OperatorForm] = {
    "AttentionMask": OperatorForm((2, 2), attributes={"dataType": _S}),
    "CastToUint8WithoutShapeInfer": OperatorForm(
        (2, 2), single=(0, 1), attributes={"fp8Format": _S}
    ),
    "ErfV2": _PLAIN,
    "FP8MatMulWithoutShapeInfer": OperatorForm(
        (4, 4),
        single=(0, 1, 2, 3),
        attributes={"fp8FormatLHS": _S, "fp8FormatRHS": _S, "dataType": _S},
    ),
    "FastNorm": OperatorForm((3, 3), single=(0, 1, 2), attributes=_NORM),
    "Gelu": OperatorForm((1, 1), attributes={"approximate": _S}),
    "GroupNormalization": OperatorForm(
        (3, 3), (1, 3), (0, 1, 2), _NORM, frozenset(("num_groups",))
    ),
    "HCSR": OperatorForm(
        (1, 1), (1, _MANY), attributes={"shape": _IS}, required=frozenset(("shape",))
    ),
    "Int4ToHalf": OperatorForm(
        (2, 3), single=(0, 1), attributes={"axis": _I, "remap": _I, "dataType": _S}
    ),
    "IsInfV2": OperatorForm((1, 1), attributes={"detect_negative": _I, "detect_positive": _I}),
    "KVCache": OperatorForm(
        (2, 3),
        single=(0, 1),
        attributes={"max_len": _I, "step_len": _I, "sequence_axis": _I, "fp8": _I, "debug_str": _S},
        required=frozenset(("max_len",)),
    ),
    "LeakyRelu": OperatorForm((1, 1), attributes={"alpha": _F}),
    "MaskCompress": OperatorForm((2, 2), single=(0, 1), attributes={"axis": _I}),
    "NormCE": OperatorForm((3, 3), single=(0, 1, 2), attributes={**_NORM, **_MAPPED}),
    "NotZero": _PLAIN,
    "PrintTileMapping": _PLAIN,
    "Remap": _PLAIN,
    "Repack": OperatorForm(
        (2, 2),
        single=(0, 1),
        attributes={**_PACKED, "batch_size": _I, "sequence_length": _I},
        required=frozenset(("max_valid_num", "segment_max_size", "batch_size", "sequence_length")),
    ),
    "RoundV2": _PLAIN,
    "SoftmaxV2": OperatorForm((1, 1), attributes={"axis": _I}),
    "SoftmaxV3": OperatorForm((1, 1), attributes={"axis": _I, "stable_mode": _I}),
    "Unpack": OperatorForm(
        (2, 2),
        single=(0, 1),
        attributes=_PACKED,
        required=frozenset(("max_valid_num", "segment_max_size")),
    ),
    "WhereV2": OperatorForm((3, 3), single=(0, 1, 2)),
    IPU_COPY: _PLAIN,
}
"""Forms of the operators of the chip's own compiler."""


class Forms:
    """Forms of the operators of one opset, each looked up once."""

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._known: dict[tuple[str, str], OperatorForm | None] = {}

    def check(self, node: onnx.NodeProto) -> None:
        """Raise CompileError if a node does not have its operator's form.

        User-defined operators always pass.
        """
        key = (node.domain, node.op_type)
        if key not in self._known:
            self._known[key] = self._find(node)
        form = self._known[key]
        fault = form.find_fault(node) if form is not None else None
        if fault is not None:
            name = node.name or next(iter(node.output), "")
            raise CompileError(f"node {name!r} ({node.op_type}): {fault}; export the model again")

    def _find(self, node: onnx.NodeProto) -> OperatorForm | None:
        if node.domain == CHIP_DOMAIN:
            return CHIP_FORMS.get(node.op_type)
        if node.domain not in STANDARD_DOMAINS or not defs.has(node.op_type):
            return None
        try:
            return _read(defs.get_schema(node.op_type, self._opset))
        except defs.SchemaError:
            since = min(
                s.since_version
                for s in defs.get_all_schemas_with_history()
                if s.name == node.op_type
            )
            raise CompileError(
                f"node {node.name!r}: operator {node.op_type} is there from opset {since} on, and "
                f"the model is of opset {self._opset}; export the model again"
            ) from None


def _read(schema: defs.OpSchema) -> OperatorForm:
    single = defs.OpSchema.FormalParameterOption.Single
    kinds = {name: str(entry.type).rpartition(".")[2] for name, entry in schema.attributes.items()}
    return OperatorForm(
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        tuple(place for place, parameter in enumerate(schema.inputs) if parameter.option == single),
        {name: AttributeProto.AttributeType.Value(kind) for name, kind in kinds.items()},
        frozenset(name for name, entry in schema.attributes.items() if entry.required),
    )
