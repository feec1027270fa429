"""A session's model: read, checked, lowered and compiled for a device."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike

import onnx
from poprt.compile import Executable

from popart import options_check, virtual_graphs
from popart.compilation import (
    Compiled,
    compile_model,
    confirm,
    count_program_ipus,
    find_num_ipus,
)
from popart.dataflow import DataFlow, InputShapeInfo
from popart.devices import DeviceInfo
from popart.errors import OutOfMemoryException, popart_exception
from popart.lowering import EffectKind, Lowered, LoweringOptions, lower
from popart.models import read_model
from popart.options import SessionOptions
from popart.patterns import Patterns, check_replaced
from popart.program import draws
from popart.tensorinfo import TensorInfo
from popart.weights import bring_weights_in, locate_weights


@dataclass(slots=True)
class Ir:
    """A model that is ready for a device, with the settings that it was made for."""

    model: onnx.ModelProto
    """Model as the builder made it."""
    flow: DataFlow
    options: SessionOptions
    device: DeviceInfo
    batches: int
    """Number of batches of a step."""
    num_ipus: int
    """Number of IPUs of a replica."""
    lowered: Lowered
    compiled: Compiled
    is_loaded: bool = False
    """Whether the executable is that of a file."""
    _confirmed: Executable | None = field(default=None)

    @classmethod
    def make(
        cls,
        source: bytes | str | PathLike[str],
        flow: DataFlow,
        device: DeviceInfo,
        shapes: InputShapeInfo,
        patterns: Patterns,
        options: SessionOptions,
    ) -> Ir:
        """Check, lower and compile a model.

        Args:
            source: The model: an ONNX file, or its bytes.
            flow: Number of batches of a step, and the anchors.
            device: The device.
            shapes: Types and shapes of inputs that the model leaves open.
            patterns: Patterns; operators that need a disabled one are rejected.
            options: The options.

        Returns:
            The compiled model.

        Raises:
            popart_exception: If the model, the options or the anchors are wrong.
        """
        if not flow.nAnchors():
            raise popart_exception("User must specify an anchor tensor when doing inference.")
        model = read_model(source)
        locate_weights(model, source)
        options_check.check_options(options, model)
        check_replaced(patterns, model)
        num_ipus = find_num_ipus(options, device, model)
        virtual_graphs.check_placement(model, options, num_ipus)
        lowered = _lower(model, flow, shapes, options)
        virtual_graphs.check_depth(model, options, flow.batchesPerStep())
        compiled = compile_model(
            lowered.model,
            [*flow.anchors(), *lowered.effects],
            options,
            device,
            _count_compiled_batches(model, options, flow.batchesPerStep()),
            count_program_ipus(model, options, num_ipus),
        )
        return cls(model, flow, options, device, flow.batchesPerStep(), num_ipus, lowered, compiled)

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return self.options.num_replicas

    @property
    def is_random(self) -> bool:
        """Whether an operator draws."""
        return draws(self.lowered.model.graph)

    @property
    def updated_weight(self) -> str:
        """A weight that runs update; "" if there is none."""
        return _find_updated(self.lowered)

    def get_info(self, name: str) -> TensorInfo:
        """Return the type and shape of a tensor.

        Args:
            name: Id of a tensor of the main graph.

        Returns:
            Its type and shape.

        Raises:
            popart_exception: If there is no such tensor.
        """
        if name not in self.lowered.tensors:
            raise popart_exception(f"No Ir tensor with id {name}")
        return self.lowered.tensors[name]

    def get_executable(self) -> Executable:
        """Return the executable.

        Returns:
            The executable.

        Raises:
            OutOfMemoryException: If the model does not fit into the device's memory.
        """
        if self.compiled.executable is None:
            error = self.compiled.out_of_memory
            raise OutOfMemoryException(str(error), summaryReport=str(error)) from error
        return self.compiled.executable

    def get_confirmed_executable(self) -> Executable:
        """Return the executable for a server, without effects.

        A server joins requests. A dry run therefore confirms that rows are independent.

        Returns:
            The executable.

        Raises:
            OutOfMemoryException: If the model does not fit into the device's memory.
        """
        given = self.get_executable()
        if self.is_loaded:
            return given
        if self._confirmed is None:
            self._confirmed = confirm(self.lowered.model, self.flow.anchors(), self.compiled)
        return self._confirmed

    def check_device(self) -> None:
        """Check what the real module checks when it makes the device's program.

        Raises:
            popart_exception: For IPUs and types that the device lacks.
        """
        virtual_graphs.check_virtual_graph_numbers(self.model, self.options, self.num_ipus)
        options_check.check_poplar_options(self.options, self.lowered)
        options_check.check_device_types(self.lowered, self.options)


def _lower(
    model: onnx.ModelProto, flow: DataFlow, shapes: InputShapeInfo, options: SessionOptions
) -> Lowered:
    lowered = lower(
        bring_weights_in(model),
        flow.anchors(),
        shapes.all(),
        LoweringOptions(
            constant_weights=options.constantWeights,
            strided_channel_grouping=options.groupNormStridedChannelGrouping,
        ),
    )
    updated = _find_updated(lowered)
    if options.num_replicas > 1 and updated:
        raise popart_exception(
            f"Weight '{updated}' is updated by runs (CopyVarUpdate), which needs a copy of it for "
            "each replica: replicatedGraphCount must be 1"
        )
    return lowered


def _find_updated(lowered: Lowered) -> str:
    effects = lowered.effects.values()
    return next((each.target for each in effects if each.kind is EffectKind.UPDATE), "")


def _count_compiled_batches(model: onnx.ModelProto, options: SessionOptions, batches: int) -> int:
    """Return the number of batches that the compiler gets, which wants whole pipelines."""
    stages = max(1, virtual_graphs.count_stages(model)) if options.enablePipelining else 1
    return -(-batches // stages) * stages
