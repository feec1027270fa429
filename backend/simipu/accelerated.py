"""Opens graphs on accelerators: OpenVINO, and the GPU providers of ONNX Runtime.

An accelerator computes fp32 graphs. What it cannot compute as the CPU kernels do is rejected when
the graph is loaded, with the node: results that are rounded as on the chip, operators that it
lacks, indices that it would not check, and memory that it would not limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import TensorProto
from onnxgraph import infer_shapes, iter_graphs, iter_nodes, set_shape

from popef._tools.arrays import Array
from simipu.accelerators import ACCELERATORS, ChosenAccelerator, OpenVinoUse
from simipu.computed import (
    CPU_PROVIDER,
    ORT_ERRORS,
    ComputedGraph,
    GraphOptions,
    Lowered,
    OrtGraph,
    Provider,
    Weights,
    inline_weights,
)
from simipu.demand import bound_bytes
from simipu.errors import AcceleratorError, LoadMemoryError, RunError
from simipu.executable import Program
from simipu.libraries import is_library_domain
from simipu.numerics import QUARTERS, KernelUse, Numerics
from simipu.numerics.bodies import find_chosen
from simipu.operators import operator_of
from simipu.program_graphs import lower_program, read_graph

_EXACT = (
    "half and fp8 are rounded as on the chip, which only the CPU kernels do; use sim_numerics "
    '"fast", compile the model with --precision fp32, or remove the accelerator'
)


def open_accelerated(
    program: Program,
    weights: Weights,
    options: GraphOptions,
    numerics: Numerics | None,
    label: str,
    *,
    is_confined: bool,
) -> ComputedGraph:
    """Return the graph of a MAIN program on the accelerators in `options`; `label` names the
    program in messages. `is_confined`: this is a child process with limited memory and no access to
    devices.

    Raises AcceleratorError for an accelerator that is not installed or cannot compute the graph,
    LoadError for a damaged graph, LoadMemoryError for one that exceeds the limit in `options`.
    """
    first = options.accelerators[0]
    name = first.name
    title = f"program {label}: accelerator {name!r}"
    if first.entry.on_gpu and is_confined:
        raise AcceleratorError(
            f"{title}: a child process of sim_isolation has no access to a GPU; use sim_isolation "
            '"none"'
        )
    model = read_graph(program)
    inferred = infer_shapes(model)
    fault = find_fault(model, inferred, numerics, options)
    if fault:
        raise AcceleratorError(f"{title}: {fault}")
    if not is_confined and not first.entry.on_gpu:
        _check_memory(program, model, options, title)
    lowered = lower_program(program, weights, options, numerics, KernelUse.NONE)
    if first.entry.on_gpu:
        graph = _open_on_gpu(lowered, options, title)
    else:
        graph = _open_openvino(lowered, options, title)
    return GuardedGraph(graph, lowered.index_faults) if lowered.index_faults else graph


def find_fault(
    model: onnx.ModelProto,
    inferred: onnx.ModelProto,
    numerics: Numerics | None,
    options: GraphOptions,
) -> str:
    """Return why no accelerator can compute a graph as the CPU kernels do, or ""; `inferred` is the
    graph with its shapes and types."""
    if numerics is not None and (narrow := _find_narrow(inferred)):
        return f"{narrow} computes in half or fp8: {_EXACT}"
    if numerics is not None and numerics.raises:
        return "debug.floatPointOpException needs the CPU kernels, which check every result"
    if not options.prepack:
        return 'it always repacks weights; remove sim_prepack "false"'
    constants = find_chosen(model.graph)
    for node in iter_nodes(model.graph):
        if is_library_domain(node.domain):
            return f"it has no custom operators ({_title(node)}); remove the accelerator"
        place = operator_of(node).unguarded_indices
        if place is not None and node.input[place] not in constants:
            return (
                f"it does not check the indices of {_title(node)}, which are computed at run time; "
                "remove the accelerator"
            )
    return ""


def _title(node: onnx.NodeProto) -> str:
    return f"{node.op_type} (node {node.name or next(iter(node.output), '')!r})"


def _find_narrow(inferred: onnx.ModelProto) -> str:
    """Return the first node with a tensor of half or fp8, or ""."""
    for graph in iter_graphs(inferred.graph):
        infos = (*graph.input, *graph.value_info, *graph.output)
        types = {info.name: info.type.tensor_type.elem_type for info in infos}
        types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
        for node in graph.node:
            if any(types.get(name) in _NARROW for name in (*node.input, *node.output)):
                return _title(node)
    return ""


_NARROW = frozenset((TensorProto.FLOAT16, *QUARTERS))


def _check_memory(
    program: Program, model: onnx.ModelProto, options: GraphOptions, title: str
) -> None:
    """Raise LoadMemoryError unless all tensors of a run together are within the limit: OpenVINO has
    no limit of its own."""
    shapes = {stream.tensor: stream.shape for stream in program.streams}
    sized = onnx.ModelProto()
    sized.CopyFrom(model)
    for info in (*sized.graph.input, *sized.graph.output):
        if info.name in shapes:
            set_shape(info, shapes[info.name])
    num_bytes = bound_bytes(infer_shapes(sized))
    if num_bytes is None:
        reason = "a tensor has a size that only the run determines"
    elif num_bytes > options.memory_bytes:
        reason = f"its tensors take {num_bytes} bytes"
    else:
        return
    raise LoadMemoryError(
        f"{title} cannot limit the memory of a run to {options.memory_bytes} bytes "
        f'(sim_memory_mib): {reason}; use sim_isolation "process", whose limit is the child '
        "process's, or remove the accelerator"
    )


def _open_openvino(lowered: Lowered, options: GraphOptions, title: str) -> ComputedGraph:
    if not lowered.fold:
        raise AcceleratorError(
            f"{title}: constants of the graph take longer to compute than loading may take; remove "
            "the accelerator"
        )
    try:
        from simipu.openvino_graph import OpenVinoGraph
    except ImportError as error:
        raise _not_installed("openvino", str(error)) from error
    OpenVinoUse.is_started = True
    return OpenVinoGraph(lowered, options, title)


def _not_installed(name: str, reason: str) -> AcceleratorError:
    entry = ACCELERATORS[name]
    return AcceleratorError(
        f"accelerator {name!r} needs the package {entry.package}, which cannot be used here "
        f"({reason}); install it with pip install 'poplar-triton[{entry.extra}]'"
    )


def _open_on_gpu(lowered: Lowered, options: GraphOptions, title: str) -> ComputedGraph:
    """Open the graph in ONNX Runtime. CUDA is added behind TensorRT, as Triton's onnxruntime
    backend does."""
    chosen = list(options.accelerators)
    if "cuda" not in [each.name for each in chosen]:
        device = {"device_id": chosen[0].options.get("device_id", "0")}
        chosen.append(ChosenAccelerator("cuda", device))
    providers = [_make_provider(each, options) for each in chosen]
    names = [each.entry.provider for each in chosen]
    if options.falls_back:
        providers.append(CPU_PROVIDER)
    if not lowered.weights:
        inlined = lowered
    else:
        inlined = Lowered(inline_weights(lowered).SerializeToString(), {}, lowered.fold)
    entries = {} if options.falls_back else {"session.disable_cpu_ep_fallback": "1"}
    missing = sorted(set(names) - set(onnxruntime_providers()))
    if missing:
        raise _not_installed(chosen[0].name, f"ONNX Runtime has no {missing[0]}")
    try:
        graph = OrtGraph(
            inlined.model, {}, options, fold=inlined.fold, providers=providers, entries=entries
        )
    except ORT_ERRORS as error:
        raise AcceleratorError(f"{title}: ONNX Runtime cannot load the graph: {error}") from error
    if names[0] not in graph.providers:
        raise _not_installed(chosen[0].name, f"{names[0]} did not start: see the server's log")
    return graph


def onnxruntime_providers() -> Sequence[str]:
    """Return the providers that the installed ONNX Runtime has."""
    import onnxruntime

    found: list[str] = onnxruntime.get_available_providers()
    return found


def _make_provider(chosen: ChosenAccelerator, options: GraphOptions) -> Provider:
    settings = dict[str, str]()
    if chosen.name == "cuda":
        # TensorFloat-32 has 10 bits of mantissa; answers are promised in fp32.
        settings = {"use_tf32": "0", "gpu_mem_limit": str(options.memory_bytes)}
    return chosen.entry.provider, settings | chosen.settings()


class GuardedGraph:
    """A graph whose indices were brought into range, with outputs that show which were not: such a
    run fails."""

    def __init__(self, graph: ComputedGraph, faults: Mapping[str, str]) -> None:
        self._graph, self._faults = graph, faults

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Compute the outputs called `names`. Raises RunError for an index outside of its
        tensor."""
        results = self._graph.run([*names, *self._faults], feeds)
        for title, value in zip(self._faults.values(), results[len(names) :], strict=True):
            if value[0] > 0:
                raise RunError(f"{title}: an index is outside of the tensor that it selects from")
        return results[: len(names)]

    def cancel(self) -> None:
        """Cancel the run in flight."""
        self._graph.cancel()

    def close(self) -> None:
        """Release the graph."""
        self._graph.close()
