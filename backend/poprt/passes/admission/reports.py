"""Passes that report facts about a model and do not change it, and passes of the real tool that are
unsupported here, each with the reason."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

import onnx
from onnx import TensorProto
from onnxgraph import STANDARD_DOMAINS, count_bytes, find_inputs, iter_graphs, iter_nodes

from poprt.rewrite.base import ImmutablePass, Stage, refuse_pass, register
from poprt.rewrite.explanations import describe_shape


class _ReportPass(ImmutablePass):
    """Base class of reports, which write to the standard output or to the log."""

    def __init__(self, use_print: bool = True) -> None:
        self._use_print = use_print

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Write the report and return the model unchanged."""
        for line in self.describe(model):
            if self._use_print:
                sys.stdout.write(f"{line}\n")
            else:
                self.logger.info("%s", line)
        return model

    def describe(self, model: onnx.ModelProto) -> Iterator[str]:
        """Yield the lines of the report."""
        raise NotImplementedError


@register("model_overview", stage=Stage.CHECKS)
class ModelOverview(_ReportPass):
    """Say what a model consists of: format, opsets, inputs, outputs, weights, and how many of which
    operator."""

    def describe(self, model: onnx.ModelProto) -> Iterator[str]:
        """Yield the lines of the overview."""
        opsets = ", ".join(
            f"{entry.domain or 'ai.onnx'} {entry.version}" for entry in model.opset_import
        )
        yield f"Model {model.graph.name!r}: IR version {model.ir_version}, opset {opsets}"
        for kind, values in (("Input", find_inputs(model.graph)), ("Output", model.graph.output)):
            for value in values:
                yield f"{kind} {value.name}: {_type_name(value)} {describe_shape(value)}"
        weights = [tensor for graph in iter_graphs(model.graph) for tensor in graph.initializer]
        yield (
            f"Initializers: {len(weights)}, "
            f"{sum(max(0, count_bytes(weight)) for weight in weights)} bytes"
        )
        operators = Counter(map(_operator_name, iter_nodes(model.graph)))
        yield f"Nodes: {sum(operators.values())}"
        for name, count in sorted(operators.items(), key=lambda entry: (-entry[1], entry[0])):
            yield f"  {name}: {count}"


@register("model_io_info_stat", stage=Stage.INTERFACE)
class ModelIoInfoStat(_ReportPass):
    """Say how many inputs and how many outputs of a model are of which type and shape."""

    def describe(self, model: onnx.ModelProto) -> Iterator[str]:
        """Yield the lines, the most frequent first."""
        for kind, values in (
            ("Inputs", find_inputs(model.graph)),
            ("Outputs", list(model.graph.output)),
        ):
            yield f"{kind}: {len(values)}"
            counts = Counter(
                f"dtype - {_type_name(value)}, shape - {describe_shape(value)}" for value in values
            )
            for text, count in counts.most_common():
                yield f"  {count} x {text}"


def _type_name(value: onnx.ValueInfoProto) -> str:
    element = value.type.tensor_type.elem_type
    if not value.type.HasField("tensor_type") or element not in TensorProto.DataType.values():
        return "unknown"
    return TensorProto.DataType.Name(element).lower()


def _operator_name(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in STANDARD_DOMAINS else f"{node.domain}.{node.op_type}"


_UNKNOWN = "what it looks for, or what it makes of it, is not public"

for _name in (
    "batchnorm_workaround",
    "cumsum_workaround",
    "expand_if",
    "float_to_mixed",
    "merge_variant_if",
    "trace_folding",
):
    refuse_pass(_name, _UNKNOWN)
refuse_pass("compress_pattern", _UNKNOWN, stage=Stage.CHIP, option="enable_compress_pattern")
