"""Capture of a module as an ONNX model: torch.export, then torch's exporter, then names.

Inputs are called `input`, `input/1`, ... in flattened order. Weights are initializers under the
names of the module's parameters. Buffers that forward changes are inputs under their own names,
with an output for the new value.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import torch
from onnxgraph import drop_initializers, replace_outputs
from popart import ReplicaGrouping
from popart.lowering import Joined, SplitWeight, drop_marks, has_collectives

from popef._tools.console import quieted
from poptorch.arguments import Arguments, rebuild
from poptorch.capture import bodies, cpu_tensors, grouping, popart_ir, popart_names, script_modules
from poptorch.capture.recording import Recorder, Recording
from poptorch.capture.replicas import join, one_replica
from poptorch.capture.rewriting import convert_around_weights, find_constants, rename_tensors
from poptorch.errors import Error
from poptorch.operators import overlap, popart_nodes
from poptorch.operators.placement import Placement
from poptorch.operators.tracing import Print
from poptorch.translations import aten as translations
from poptorch.translations import graph_text
from poptorch.translations.exporter import share_operators

_USER = "user."
"""Prefix of the names of the module's parameters in the recorder's."""
_HALVES = (torch.half, torch.bfloat16)
_VALUE_DEPENDENT = (
    "GuardOnDataDependentSymNode",
    "UserError",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
)


@dataclass(frozen=True, slots=True)
class ChangedTensor:
    """A tensor that forward changes in place.

    Attributes:
        input: Input of the graph that takes the old value.
        output: Output of the graph that holds the new value.
        buffer: Name of the module's buffer, or None for an input of the call.
        argument: Position among the flattened inputs, or None for a buffer.
    """

    input: str
    output: str
    buffer: str | None = None
    argument: int | None = None


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured module.

    Attributes:
        model: The ONNX model. It has no outputs if all results are constants.
        inputs: Names of the inputs that stand for the flattened tensors of the call.
        outputs: Name of the output of each tensor in the result, flattened. None for a constant.
        structure: What forward returned, with tensors of the capture in it.
        state: Tensors that forward changes in place.
        constants: Tensors of the result that depend on no input, by their position.
        prints: Tensors to print after each run, by output.
        program: torch.export's program, which a file holds as an archive.
        places: Places of the operators, by the tensors that they make.
        ir: The operators in PopART's types, as JSON.
        joined: The model of all replicas, if they depend on each other.
        groups: Groups of replicas by the parameters that differ between them.
    """

    model: onnx.ModelProto
    inputs: tuple[str, ...]
    outputs: tuple[str | None, ...]
    structure: Any
    state: tuple[ChangedTensor, ...]
    constants: dict[int, Any]
    prints: dict[str, Print]
    program: Any
    places: dict[str, Placement]
    ir: str
    joined: Joined | None = None
    groups: Mapping[str, ReplicaGrouping] = field(default_factory=dict)

    def rebuild(self, tensors: Sequence[Any]) -> Any:
        """Return the result of a call.

        Args:
            tensors: The tensors in it, flattened, constants among them.
        """
        return rebuild(self.structure, iter(tensors))


def capture(
    model: Callable[..., Any],
    arguments: Arguments,
    has_namescope: bool = True,
    has_strided_groups: bool = False,
    replicas: int = 1,
    split: Mapping[str, SplitWeight] | None = None,
) -> Captured:
    """Capture a module, or any other function of tensors.

    Args:
        model: The module or function. It is called once, with tensors that hold no values.
        arguments: Arguments of that call, with the shapes that are compiled.
        has_namescope: Whether operators are named after the modules that they stand in.
        has_strided_groups: Whether GroupNorm's groups are every n-th channel, as PopART's option
            groupNormStridedChannelGrouping has it.
        replicas: Number of replicas that collectives join.
        split: Parameters that differ between replicas.

    Returns:
        The model and what is needed to call it like the module.

    Raises:
        Error: If forward depends on the values of tensors, or has an operator without translation.
    """
    is_narrow = not _has_doubles(model)
    tensors = [_take_tensor(name, tensor, is_narrow) for name, tensor in arguments.iter_tensors()]
    split = split or {}
    # Tensors that are made in inference mode count no versions, by which the recorder sees what
    # forward changes in place.
    with (
        _quiet(),
        _unchecked_distributions(),
        torch.no_grad(),
        torch.inference_mode(False),
        one_replica(model, split),
    ):
        captured = script_modules.convert(model, arguments, tensors)
        recorder = Recorder(captured, arguments, has_strided_groups)
        exported_program = _export(recorder, tensors)
        cpu_tensors.check_devices(exported_program)
        exported, program = _to_onnx(translations.decompose(exported_program))
    marked = popart_names.find_places(program)
    scopes = popart_names.find_scopes(program)
    graph = exported.graph
    # Scatters are grouped by what torch's exporter has noted, which name_operators drops.
    popart_nodes.drop_copies(graph)
    grouping.group_scatters(graph, marked)
    places = popart_names.name_operators(graph, marked, scopes, has_namescope)
    overlap.check(graph, recorder.recording.outputs)
    popart_nodes.move_hints(graph)
    operators = popart_names.list_operators(graph)
    graph_text.log_graph("Graph before lowering to PopART:", graph, operators)
    popart_nodes.drop_hints(exported)
    return _finish(exported, recorder, len(tensors), exported_program, places, (replicas, split))


def _has_doubles(model: Any) -> bool:
    """Return whether a module holds tensors in double, which operators read beside the inputs."""
    owner = getattr(model, "__self__", model)
    if not isinstance(owner, torch.nn.Module):
        return False
    return any(tensor.dtype is torch.double for tensor in (*owner.parameters(), *owner.buffers()))


def _take_tensor(name: str, tensor: Any, is_narrow: bool) -> Any:
    """Return a plain tensor of the values; raise Error if the IPU has no such type.

    Doubles are narrowed as on the IPU, so that a module in float takes them.
    """
    if tensor.dtype not in translations.INPUT_TYPES:
        raise Error(f"Unsupported input type {tensor.dtype} of {name}")
    if not tensor.numel():
        raise Error(f"Zero-sized tensors are unsupported (Got shape {list(tensor.shape)}): {name}")
    with torch.inference_mode(False):
        plain = tensor.detach().clone(memory_format=torch.contiguous_format)
        return plain.float() if is_narrow and plain.dtype is torch.double else plain


def _export(recorder: Recorder, tensors: Sequence[Any]) -> Any:
    """Return torch.export's program; exceptions of the user's code are raised as they are."""
    training = recorder.user.training if hasattr(recorder, "user") else False
    recorder.training = training
    try:
        with torch.fx.traceback.preserve_node_meta():  # the marks of operators' places
            # Not strict: forward runs as Python code, so that the recorder's modes see each call.
            return torch.export.export(recorder, tuple(tensors), strict=False)
    except Exception as error:
        if type(error).__name__ in _VALUE_DEPENDENT:
            raise Error(
                "forward depends on the value of a tensor, which is known at run time only: "
                f"{_first_line(error)}. Use torch.where or poptorch.cond instead of a branch, and "
                "shapes that are fixed"
            ) from error
        raise


def _to_onnx(program: Any) -> tuple[onnx.ModelProto, Any]:
    """Return the ONNX model, and the program of the operators that it was written from."""
    popart_names.drop_other_marks(program)
    _copy_half_results(program)
    try:
        with share_operators(), torch.fx.traceback.preserve_node_meta():
            onnx_program = torch.onnx.export(
                program,
                dynamo=True,
                optimize=False,
                verbose=False,
                opset_version=translations.OPSET,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise Error(f"the model cannot be exported to ONNX: {_first_line(cause)}") from error
    return onnx_program.model_proto, onnx_program.exported_program


def _copy_half_results(program: Any) -> None:
    """Return copies of results in half, which `name_operators` drops again.

    torch's exporter computes some operators in float and casts their results to half. Its outputs
    stay those before the casts (docs/upstream.md).
    """
    graph = program.graph
    output = graph.output_node()
    results = list(output.args[0])
    for place, (node, spec) in enumerate(
        zip(results, program.graph_signature.output_specs, strict=True)
    ):
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if node.op != "call_function" or getattr(value, "dtype", None) not in _HALVES:
            continue
        with graph.inserting_before(output):
            copy = graph.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta = dict(node.meta)
        results[place] = copy
        spec.arg = torch.export.graph_signature.TensorArgument(name=copy.name)
    output.args = (tuple(results),)
    program.graph_module.recompile()


def _finish(
    model: onnx.ModelProto,
    recorder: Recorder,
    num_inputs: int,
    program: Any,
    places: dict[str, Placement],
    replication: tuple[int, Mapping[str, SplitWeight]],
) -> Captured:
    """Name inputs, outputs and weights, and turn changed buffers into inputs."""
    recording: Recording = recorder.recording
    graph = model.graph
    translations.narrow_floats(model)
    ir = popart_ir.serialize(graph)
    replicas, split = replication
    # PopART's nodes first: they are looked for in the main graph only.
    popart_nodes.lower_nodes(model, replicas)
    bodies.lower_marks(model)
    _separate_outputs(graph)
    inputs = ["input" if not index else f"input/{index}" for index in range(num_inputs)]
    renamed = dict(zip((value.name for value in graph.input), inputs, strict=True))
    weights = _find_weights(graph, recorder)
    rename_tensors(graph, renamed | weights)
    _move_state(graph, recording.buffers)
    graph_text.log_weights(graph, inputs, _find_trained(recorder))
    names = [value.name for value in graph.output]
    results, rest = names[: recording.outputs], iter(names[recording.outputs :])
    state = [ChangedTensor(path, next(rest), buffer=path) for path in recording.buffers]
    state += [
        ChangedTensor(inputs[index], next(rest), argument=index) for index in recording.inputs
    ]
    prints = {next(rest): printed for printed in recording.prints}
    attributes = list(rest)
    constants = find_constants(model, [*results, *attributes], set(weights.values()))
    _change_attributes(recording.attributes, [constants.get(name) for name in attributes])
    unused = {*constants, *attributes}
    outputs = [value for value in graph.output if value.name not in unused]
    replace_outputs(graph, outputs)
    joined = None
    if outputs:
        streamed = set(weights.values()) - set(recording.buffers)
        if split or has_collectives(graph):
            joined = join(model, streamed, split, replicas)
            drop_marks(graph)
        model = convert_around_weights(model, streamed)
    return Captured(
        model,
        tuple(inputs),
        tuple(None if name in constants else name for name in results),
        recording.result,
        tuple(state),
        {
            index: translations.narrow(torch.from_numpy(np.array(constants[name])))
            for index, name in enumerate(results)
            if name in constants
        },
        prints,
        program,
        places,
        ir,
        joined,
        {name: weight.groups for name, weight in split.items()},
    )


def _change_attributes(tensors: Sequence[Any], values: Sequence[Any]) -> None:
    """Give tensors of the user's module that are no buffers the values that forward gave them.

    A value that depends on an input is known at run time only: such a tensor stays as it was.
    """
    for tensor, value in zip(tensors, values, strict=True):
        if value is not None:
            tensor.copy_(torch.from_numpy(np.array(value)).reshape(tensor.shape))


def _find_weights(graph: onnx.GraphProto, recorder: Recorder) -> dict[str, str]:
    """Return the module's names of weights: without the recorder's prefix, tied ones by the first.

    torch's exporter calls a tied weight by the last of its names.
    """
    first: dict[int, str] = {}
    names = {}
    values = [
        *recorder.named_parameters(remove_duplicate=False),
        *recorder.named_buffers(remove_duplicate=False),
    ]
    for name, value in values:
        names[name] = first.setdefault(id(value), name).removeprefix(_USER)
    return {tensor.name: names[tensor.name] for tensor in graph.initializer if tensor.name in names}


def _find_trained(recorder: Recorder) -> set[str]:
    """Return the module's names of parameters that require a gradient."""
    parameters = recorder.named_parameters(remove_duplicate=False)
    return {name.removeprefix(_USER) for name, value in parameters if value.requires_grad}


def _move_state(graph: onnx.GraphProto, buffers: Sequence[str]) -> None:
    """Turn the initializers of changed buffers into inputs; the executor keeps their values."""
    by_name = {tensor.name: tensor for tensor in graph.initializer}
    for name in buffers:
        tensor = by_name[name]
        value = onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
        graph.input.append(value)
    drop_initializers(graph, buffers)


def _separate_outputs(graph: onnx.GraphProto) -> None:
    """Give each output a name of its own: one tensor may be returned several times."""
    names = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for index, output in enumerate(graph.output):
        if output.name in names:
            name = f"{output.name}/output{index}"
            graph.node.append(onnx.helper.make_node("Identity", [output.name], [name]))
            output.name = name
        names.add(output.name)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Let torch.distributions take arguments whose values are known at run time only."""
    checks = torch.distributions.Distribution._validate_args  # noqa: SLF001
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(checks)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch's exporters print and warn of: users cannot act on it."""
    with quieted("torch", logging.CRITICAL), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch|onnxscript|contextlib|copyreg")
        warnings.filterwarnings("ignore", message=".*assigned during export.*")
        yield
