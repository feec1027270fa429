"""A session's model: read, checked, lowered and compiled for a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike

import onnx
from poprt.compile import Executable

from popart.dataflow import DataFlow, InputShapeInfo
from popart.devices import DeviceInfo
from popart.errors import OutOfMemoryException, popart_exception
from popart.lowering import (
    EffectKind,
    Joined,
    LoweredModel,
    LoweringOptions,
    SplitWeight,
    drop_marks,
    has_collectives,
    join_replicas,
    lower,
)
from popart.models import read_model
from popart.options import checks as options_check
from popart.options.patterns import Patterns, check_replaced
from popart.options.session_options import SessionOptions
from popart.session import virtual_graphs
from popart.session.compilation import (
    Compiled,
    compile_model,
    compile_replicas,
    confirm,
    count_program_ipus,
    find_num_ipus,
)
from popart.session.ir_log import log_model
from popart.session.program import DeviceProgram, draws
from popart.session.replication import JointProgram, find_split_weights, take_first_group
from popart.session.weights import bring_weights_in, read_initializer
from popart.tensorinfo import TensorInfo
from popart.variables import ReplicaGrouping


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
    lowered: LoweredModel
    compiled: Compiled
    """Program of one replica, whose time and memory are modelled."""
    split: dict[str, ReplicaGrouping] = field(default_factory=dict)
    """Weights that differ between groups of replicas."""
    joined: Joined | None = None
    """Model of all replicas, if they depend on each other."""
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
        # The order is PopART's: where two things are wrong, scripts see the error of the first.
        model = read_model(source)
        options_check.check_engine_options(options)
        if not flow.nAnchors():
            raise popart_exception("User must specify an anchor tensor when doing inference.")
        options_check.check_options(options)
        num_ipus = find_num_ipus(options, device, model)
        split = find_split_weights(model, options.num_replicas)

        def check_graph() -> None:
            options_check.check_graph_options(options)
            virtual_graphs.check_placement(model, options, num_ipus)
            check_replaced(patterns, model)

        lowered = _lower(model, flow, shapes, options, split, check_graph)
        joined = _join(model, lowered, options, split)
        virtual_graphs.check_depth(model, options, flow.batchesPerStep())
        log_model(lowered.model)
        compiled = compile_model(
            lowered.model,
            [*flow.anchors(), *lowered.effects],
            options,
            device,
            _count_compiled_batches(model, options, flow.batchesPerStep()),
            count_program_ipus(model, options, num_ipus),
        )
        batches = flow.batchesPerStep()
        return cls(
            model, flow, options, device, batches, num_ipus, lowered, compiled, split, joined
        )

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

    def make_program(self) -> DeviceProgram | JointProgram:
        """Return the program that computes the replicas.

        Returns:
            The program.

        Raises:
            OutOfMemoryException: If the model does not fit into the device's memory.
            popart_exception: If the model of all replicas cannot be compiled.
        """
        executable = self.get_executable()
        if self.joined is None:
            return DeviceProgram(executable, {} if self.is_loaded else self.lowered.effects)
        outputs = [value.name for value in self.joined.model.graph.output]
        joint = compile_replicas(self.joined.model, outputs, self.compiled.options)
        return JointProgram(joint, self.joined, self.split, self.lowered.effects)

    def get_confirmed_executable(self) -> Executable:
        """Return the executable for a server, without effects.

        A server joins requests. A dry run therefore confirms that rows are independent.

        Returns:
            The executable.

        Raises:
            OutOfMemoryException: If the model does not fit into the device's memory.
        """
        executable = self.get_executable()
        if self.is_loaded:
            return executable
        if self._confirmed is None:
            self._confirmed = confirm(self.lowered.model, self.flow.anchors(), self.compiled)
        return self._confirmed

    def check_device(self) -> None:
        """Check what the real module checks when it makes the device's program.

        Raises:
            popart_exception: For IPUs and types that the device lacks.
        """
        virtual_graphs.check_virtual_graph_numbers(self.model, self.options, self.num_ipus)
        options_check.check_convolution_options(self.options, self.lowered)
        options_check.check_device_types(self.lowered, self.options)


def _lower(
    model: onnx.ModelProto,
    flow: DataFlow,
    shapes: InputShapeInfo,
    options: SessionOptions,
    split: dict[str, ReplicaGrouping],
    check_graph: Callable[[], None],
) -> LoweredModel:
    lowered = lower(
        bring_weights_in(take_first_group(model, split)),
        flow.anchors(),
        shapes.all(),
        LoweringOptions(
            constant_weights=options.constantWeights,
            strided_channel_grouping=options.groupNormStridedChannelGrouping,
            replicas=options.num_replicas,
            split_weights=split,
        ),
        check_graph,
    )
    updated = _find_updated(lowered)
    if options.num_replicas > 1 and updated:
        raise popart_exception(
            f"Weight '{updated}' is updated by runs (CopyVarUpdate), which needs a copy of it for "
            "each replica: replicatedGraphCount must be 1"
        )
    return lowered


def _join(
    model: onnx.ModelProto,
    lowered: LoweredModel,
    options: SessionOptions,
    split: dict[str, ReplicaGrouping],
) -> Joined | None:
    """Return the model of all replicas if they depend on each other, and let the lowered one be
    that of one replica."""
    if not split and not has_collectives(lowered.model.graph):
        return None
    weights = {
        tensor.name: SplitWeight(split[tensor.name], read_initializer(tensor))
        for tensor in model.graph.initializer
        if tensor.name in split and tensor.name in lowered.weights
    }
    broadcast = options_check.find_broadcast_inputs(model)
    joined = join_replicas(lowered.model, options.num_replicas, weights, broadcast)
    drop_marks(lowered.model.graph)
    return joined


def _find_updated(lowered: LoweredModel) -> str:
    effects = lowered.effects.values()
    return next((effect.target for effect in effects if effect.kind is EffectKind.UPDATE), "")


def _count_compiled_batches(model: onnx.ModelProto, options: SessionOptions, batches: int) -> int:
    """Return the number of batches that the compiler gets, which wants whole pipelines."""
    stages = max(1, virtual_graphs.count_stages(model)) if options.enablePipelining else 1
    return -(-batches // stages) * stages
