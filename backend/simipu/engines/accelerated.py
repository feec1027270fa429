"""Opens graphs on accelerators: OpenVINO, and the GPU providers of ONNX Runtime. `admission` says
which graphs these can compute, and lowers them. A graph is confirmed by a run before OpenVINO
computes it for clients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from popef._tools.arrays import Array
from simipu.accelerators import (
    ACCELERATORS,
    ChosenAccelerator,
    OpenVinoUse,
    describe_first,
)
from simipu.engines.computed import (
    CPU_PROVIDER,
    ORT_ERRORS,
    ComputedGraph,
    GraphOptions,
    Lowered,
    OrtGraph,
    Provider,
    inline_weights,
)
from simipu.errors import AcceleratorError, LoadError, RunError

_ROWS = 2
"""Number of rows of the run that confirms a graph for any number of them."""

_log = logging.getLogger("simipu")


def open_accelerated(lowered: Lowered, options: GraphOptions, label: str) -> ComputedGraph:
    """Return a graph on the accelerators in `options`; `label` names the program in messages.

    Raises AcceleratorError for an accelerator that is not installed or cannot compute the graph.
    """
    title = f"program {label}: {describe_first(options.accelerators)}"
    if options.accelerators[0].entry.on_gpu:
        graph = _open_on_gpu(lowered, options, title)
    else:
        graph = _open_openvino(lowered, options, title)
    return GuardedGraph(graph, lowered.index_faults) if lowered.index_faults else graph


def export_accelerated(graph: ComputedGraph, lowered: Lowered, max_bytes: int) -> Lowered:
    """Return what a later load opens: a graph as OpenVINO has compiled it, if its weights are
    within `max_bytes`, and others as they were lowered."""
    inner = graph.graph if isinstance(graph, GuardedGraph) else graph
    num_bytes = sum(value.nbytes for value in lowered.weights.values())
    if isinstance(inner, OrtGraph) or num_bytes > max_bytes:
        return lowered
    from simipu.engines.openvino_graph import OpenVinoGraph

    assert isinstance(inner, OpenVinoGraph)
    try:
        compiled = inner.export()
    except (RuntimeError, MemoryError) as error:
        _log.info("OpenVINO cannot export its compiled graph: %s", error)
        return lowered
    return replace(lowered, model=b"", weights={}, sources={}, compiled=compiled)


def _open_openvino(lowered: Lowered, options: GraphOptions, title: str) -> ComputedGraph:
    try:
        from simipu.engines.openvino_graph import OpenVinoGraph
    except ImportError as error:
        raise _not_installed("openvino", str(error)) from error
    OpenVinoUse.is_started = True
    if lowered.compiled:
        return OpenVinoGraph(lowered, options, title)
    feeds = _make_zeros(lowered)
    shapes = [value.shape for value in _run_plainly(lowered, feeds, options, title)]
    graph = OpenVinoGraph(lowered, options, title)
    try:
        results = graph.run(lowered.outputs, feeds)
    except RunError as error:
        raise AcceleratorError(f"{title}: the graph does not run on zeros: {error}") from error
    for name, shape, value in zip(lowered.outputs, shapes, results, strict=True):
        if value.shape != shape:
            raise AcceleratorError(
                f"{title}: output {name!r} has shape {value.shape}, expected {shape}, that of ONNX "
                "Runtime; remove the accelerator"
            )
    return graph


def _make_zeros(lowered: Lowered) -> dict[str, Array]:
    """Return inputs of a graph."""
    # Imported here: a process that imports compiled graphs does not need it.
    import onnx
    from onnx import helper

    feeds = dict[str, Array]()
    for info in onnx.load_model_from_string(lowered.model).graph.input:
        tensor = info.type.tensor_type
        shape = [_ROWS if dim.dim_param else dim.dim_value for dim in tensor.shape.dim]
        feeds[info.name] = np.zeros(shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return feeds


def _run_plainly(
    lowered: Lowered, feeds: Mapping[str, Array], options: GraphOptions, title: str
) -> list[Array]:
    """Return the outputs of a graph in ONNX Runtime. Raises AcceleratorError if it cannot compute
    them.

    ONNX Runtime checks the sizes of all operands and the values of all constants. OpenVINO checks
    few of them, and reads or writes beyond an operand that is too small. No later run has others:
    only the number of rows varies, of which they are proven not to depend (`admission`).
    """
    plain = replace(options, accelerators=(), prepack=False, optimise=False)
    try:
        graph = OrtGraph(lowered.model, lowered.weights, plain, fold=False)
        return graph.run([*lowered.outputs], feeds)
    except (*ORT_ERRORS, ort_errors.NotImplemented, RunError, LoadError) as error:
        raise AcceleratorError(
            f"{title}: the graph does not run on zeros in ONNX Runtime, which checks what OpenVINO "
            f"does not: {error}"
        ) from error


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
    if "cuda" not in [accelerator.name for accelerator in chosen]:
        device = {"device_id": chosen[0].options.get("device_id", "0")}
        chosen.append(ChosenAccelerator("cuda", device))
    providers = [_make_provider(accelerator, options) for accelerator in chosen]
    names = [accelerator.entry.provider for accelerator in chosen]
    if options.falls_back:
        providers.append(CPU_PROVIDER)
    if not lowered.weights:
        inlined = lowered
    else:
        inlined = replace(
            lowered, model=inline_weights(lowered).SerializeToString(), weights={}, sources={}
        )
    # What the processor computes of quantized float products stays float, and saturates nowhere.
    entries = {"session.disable_quant_qdq": "1"}
    if not options.falls_back:
        entries["session.disable_cpu_ep_fallback"] = "1"
    missing = sorted(set(names) - set(onnxruntime_providers()))
    if missing:
        raise _not_installed(chosen[0].name, f"ONNX Runtime has no {missing[0]}")
    try:
        graph = OrtGraph(
            inlined.model,
            {},
            options,
            fold=inlined.fold,
            left_out=inlined.left_out,
            providers=providers,
            entries=entries,
        )
    except ORT_ERRORS as error:
        raise AcceleratorError(f"{title}: ONNX Runtime cannot load the graph: {error}") from error
    if names[0] not in graph.providers:
        raise _not_installed(chosen[0].name, f"{names[0]} did not start: see the server's log")
    used_names = [
        accelerator.name for accelerator in chosen if accelerator.entry.provider in graph.providers
    ]
    graph.kernels = ",".join(used_names + ["cpu"] * options.falls_back)
    return graph


def onnxruntime_providers() -> Sequence[str]:
    """Return the providers that the installed ONNX Runtime has."""
    import onnxruntime

    providers: list[str] = onnxruntime.get_available_providers()
    return providers


def _make_provider(chosen: ChosenAccelerator, options: GraphOptions) -> Provider:
    settings = dict[str, str]()
    if chosen.name == "cuda":
        # TensorFloat-32 has 10 bits of mantissa; answers are promised in fp32.
        settings = {"use_tf32": "0", "gpu_mem_limit": str(options.memory_bytes)}
    return chosen.entry.provider, settings | chosen.settings()


class GuardedGraph:
    """A graph whose indices and lengths were brought into range, with outputs that show which were
    not: such a run fails."""

    def __init__(self, graph: ComputedGraph, faults: Mapping[str, str]) -> None:
        self.graph, self._faults = graph, faults
        self.kernels, self.reads_weights = graph.kernels, graph.reads_weights

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Compute the outputs called `names`. Raises RunError for an index or a length out
        of range."""
        results = self.graph.run([*names, *self._faults], feeds)
        for fault, value in zip(self._faults.values(), results[len(names) :], strict=True):
            if value[0] > 0:
                raise RunError(fault)
        return results[: len(names)]

    def cancel(self) -> None:
        """Cancel the run in flight."""
        self.graph.cancel()

    def end_run(self, is_unwanted: Callable[[], bool]) -> None:
        """End the run in flight if it is unwanted."""
        self.graph.end_run(is_unwanted)

    def close(self) -> None:
        """Release the graph."""
        self.graph.close()
