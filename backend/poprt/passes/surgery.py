"""Passes that change what a model says of itself: its opset, the version of its format, its outputs, the
names of its nodes."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import onnx
from onnxgraph import change_without_weights, keep_outputs, name_nodes
from onnxgraph.weights import is_outlined
from simipu import CompileError

from poprt.passes.base_pass import Pass, Stage, register

MINIMUM_IR_VERSION = 8
"""ONNX IR 4 made initializers independent of inputs, on which every pass here relies; every supported ONNX
Runtime reads 8."""
MAXIMUM_IR_VERSION = 10
"""The newest that the oldest supported ONNX Runtime (1.18) reads; what came later describes things not
compiled here."""


@register(
    "convert_version",
    stage=Stage.INTERFACE,
    option="convert_version",
    takes={"version": "convert_version"},
    is_ours=True,
    depend=("admit",),
)
class ConvertVersion(Pass):
    """Write a model in another opset, by the converter of onnx; None: leave it."""

    def __init__(self, version: int | None = None) -> None:
        super().__init__()
        self._version = version

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The converter would carry weights to and fro: the large ones wait outside. Raises CompileError
        where it cannot go there."""
        if self._version is not None:
            outlined = {tensor.name for tensor in model.graph.initializer if is_outlined(tensor)}
            change_without_weights(model, outlined, partial(_convert, version=self._version))
        return model


def _convert(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    try:
        return onnx.version_converter.convert_version(model, version)
    except (onnx.version_converter.ConvertError, RuntimeError) as error:
        raise CompileError(
            f"the model cannot be converted to opset {version}: {' '.join(str(error).split())}"
        ) from error


@register("limit_ir_version", stage=Stage.INTERFACE, default=True, is_ours=True)
class LimitIrVersion(Pass):
    """Say that a model is written in a version of the format that all that comes after can read."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """From MINIMUM_IR_VERSION to MAXIMUM_IR_VERSION."""
        model.ir_version = min(max(model.ir_version, MINIMUM_IR_VERSION), MAXIMUM_IR_VERSION)
        return model


@register(
    "remove_outputs", stage=Stage.INTERFACE, option="remove_outputs", takes={"outputs": "remove_outputs"}
)
class RemoveOutputs(Pass):
    """Drop outputs; what only they need goes when constants are folded."""

    def __init__(self, outputs: Collection[str] = ()) -> None:
        super().__init__()
        self._outputs = frozenset(outputs)

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Raises CompileError for an output that the model lacks, and where none is left."""
        names = [value.name for value in model.graph.output]
        unknown = sorted(self._outputs - set(names))
        if unknown:
            raise CompileError(
                f"remove_outputs names {unknown[0]!r}; the model's outputs are {', '.join(names)}"
            )
        kept = [name for name in names if name not in self._outputs]
        if not kept:
            raise CompileError("remove_outputs leaves no output; keep at least one of " + ", ".join(names))
        keep_outputs(model.graph, kept)
        return model


@register("keep_outputs", stage=Stage.INTERFACE, is_ours=True, takes={"outputs": "outputs"})
class KeepOutputs(Pass):
    """Keep those outputs, in the order given; None: all."""

    def __init__(self, outputs: Collection[str] | None = None) -> None:
        super().__init__()
        self._outputs = outputs

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Raises CompileError for an output that the model lacks."""
        if self._outputs is not None:
            known = [value.name for value in model.graph.output]
            unknown = sorted(set(self._outputs) - set(known))
            if unknown:
                raise CompileError(
                    f"output {unknown[0]!r} is not one of the model's outputs: {', '.join(known)}"
                )
            keep_outputs(model.graph, self._outputs)
        return model


@register("name_nodes", stage=Stage.FOLDING, default=True, is_ours=True)
class NameNodes(Pass):
    """Name the unnamed nodes by what they make: reports and errors speak of nodes by name."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Names that are there stay, double ones too: the real tool's unique_name_for_nodes does more."""
        name_nodes(model.graph)
        return model
