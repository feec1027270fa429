"""Accelerators: what can compute an fp32 graph instead of ONNX Runtime's CPU kernels, one entry
each, with the options that a user may set. Names and options are those of Triton's own
configuration for its onnxruntime backend (`optimization.execution_accelerators`).

This module imports no engine: configurations are read where ONNX Runtime must not be loaded.
`accelerated` opens the graphs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from popef._tools.options import (
    Kind,
    MismatchError,
    Option,
    Wording,
    make_table,
    quote,
    read_values,
    whole_number,
    word_of,
)
from popef._tools.text import did_you_mean
from simipu.errors import AcceleratorError

MAX_OPTION_CHARACTERS = 4095
"""Maximum length of an option's value: that of a path."""
_MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class AcceleratorOption(Option):
    """An option of an accelerator; its kind reads a user's text into the engine's own text."""

    target: str = ""
    """The engine's own name for it; "" if it is the same."""


def _number(least: int, most: int) -> Kind:
    number = whole_number(least, most)
    return Kind(number.name, lambda text: str(number.read(text)))


def _same(words: str) -> Kind:
    return word_of({word: word for word in words.split()})


def _read_text(text: str) -> str:
    stripped = text.strip()
    if not 0 < len(stripped) <= MAX_OPTION_CHARACTERS or not stripped.isprintable():
        raise MismatchError(
            f"a text of 1 to {MAX_OPTION_CHARACTERS} characters without control characters"
        )
    return stripped


def _list_options(kinds: Mapping[str, Kind]) -> Mapping[str, AcceleratorOption]:
    """Return the options of names, several of which share a kind; NAME:TARGET has another name in
    the engine."""
    split = [(word.partition(":"), kind) for names, kind in kinds.items() for word in names.split()]
    return make_table(
        *(AcceleratorOption(name, kind=kind, target=target) for (name, _, target), kind in split)
    )


_FLAG = word_of({"0": "0", "1": "1", "false": "0", "true": "1"})
_DEVICE = _number(0, 1023)
_COUNT, _BYTES = _number(0, 1 << 31), _number(0, (1 << 63) - 1)
_TEXT = Kind("text", _read_text)
_WORDING = Wording(
    AcceleratorError,
    "accelerator {owner!r}, parameter {name!r}{why}",
    AcceleratorError,
    "accelerator {owner!r} has no parameter {quoted}; it has {known}{hint}",
)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An engine: the package that has it, the extra of poplar-triton that installs it, its provider
    in ONNX Runtime (if it is one), whether it runs on a GPU, and its options by name."""

    package: str
    extra: str
    options: Mapping[str, AcceleratorOption]
    provider: str = ""
    on_gpu: bool = False


ACCELERATORS: Mapping[str, Accelerator] = {
    "openvino": Accelerator(
        package="openvino",
        extra="openvino",
        options=_list_options(
            {
                "num_of_threads:INFERENCE_NUM_THREADS": _number(1, _MAX_THREADS),
                "precision:INFERENCE_PRECISION_HINT": word_of(
                    {"FP32": "f32", "FP16": "f16", "BF16": "bf16"}
                ),
            }
        ),
    ),
    "cuda": Accelerator(
        package="onnxruntime-gpu",
        extra="gpu",
        provider="CUDAExecutionProvider",
        on_gpu=True,
        options=_list_options(
            {
                "device_id": _DEVICE,
                "gpu_mem_limit": _BYTES,
                "arena_extend_strategy": word_of(
                    {
                        "kNextPowerOfTwo": "kNextPowerOfTwo",
                        "kSameAsRequested": "kSameAsRequested",
                        "0": "kNextPowerOfTwo",
                        "1": "kSameAsRequested",
                    }
                ),
                "cudnn_conv_algo_search": word_of(
                    {
                        "EXHAUSTIVE": "EXHAUSTIVE",
                        "HEURISTIC": "HEURISTIC",
                        "DEFAULT": "DEFAULT",
                        "0": "EXHAUSTIVE",
                        "1": "HEURISTIC",
                        "2": "DEFAULT",
                    }
                ),
                "do_copy_in_default_stream cudnn_conv_use_max_workspace cudnn_conv1d_pad_to_nc1d "
                "enable_cuda_graph enable_skip_layer_norm_strict_mode use_tf32 prefer_nhwc "
                "use_ep_level_unified_stream tunable_op_enable tunable_op_tuning_enable": _FLAG,
            }
        ),
    ),
    "tensorrt": Accelerator(
        package="onnxruntime-gpu",
        extra="gpu",
        provider="TensorrtExecutionProvider",
        on_gpu=True,
        options=_list_options(
            {
                "device_id": _DEVICE,
                "precision_mode": _same("FP32 FP16 INT8"),
                "max_workspace_size_bytes:trt_max_workspace_size": _BYTES,
                "int8_calibration_table_name:trt_int8_calibration_table_name": _TEXT,
                "int8_use_native_calibration_table:trt_int8_use_native_calibration_table": _FLAG,
                "trt_auxiliary_streams": _number(-1, 1024),
                "trt_dla_enable trt_engine_cache_enable trt_dump_subgraphs "
                "trt_force_sequential_engine_build trt_context_memory_sharing_enable "
                "trt_layer_norm_fp32_fallback trt_timing_cache_enable trt_force_timing_cache "
                "trt_detailed_build_log trt_build_heuristics_enable trt_sparsity_enable "
                "trt_cuda_graph_enable trt_dump_ep_context_model": _FLAG,
                "trt_max_partition_iterations trt_min_subgraph_size trt_dla_core "
                "trt_builder_optimization_level trt_ep_context_embed_mode": _COUNT,
                "trt_engine_cache_path trt_engine_cache_prefix trt_timing_cache_path "
                "trt_tactic_sources trt_profile_min_shapes trt_profile_max_shapes "
                "trt_profile_opt_shapes trt_ep_context_file_path": _TEXT,
            }
        ),
    ),
}
"""Accelerators by name. The options of cuda and tensorrt are those that the README of Triton's
onnxruntime backend and ONNX Runtime's documentation list, without those that load plug-ins."""

_PRECISION_MODE = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}
"""Options of TensorRT's provider for each value of precision_mode."""


@dataclass(frozen=True, slots=True)
class ChosenAccelerator:
    """An accelerator that a user chose, with its parsed options."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def entry(self) -> Accelerator:
        """Entry in the table."""
        return ACCELERATORS[self.name]

    def settings(self) -> dict[str, str]:
        """Return the engine's own options, by its own names."""
        texts = dict(self.options)
        settings = dict(_PRECISION_MODE.get(texts.pop("precision_mode", ""), {}))
        settings.update(
            (self.entry.options[name].target or name, text) for name, text in texts.items()
        )
        return settings


def choose_accelerator(
    name: str, options: Mapping[str, str], *, on_gpu: bool | None = None
) -> ChosenAccelerator:
    """Return an accelerator by name with options as a user wrote them; `on_gpu` restricts it to
    those of a GPU, or to those of the CPU. Raises AcceleratorError for an unknown name or option,
    and for a bad value."""
    entries = {
        entry_name: entry
        for entry_name, entry in ACCELERATORS.items()
        if on_gpu is None or entry.on_gpu is on_gpu
    }
    entry = entries.get(name.lower())
    if entry is None:
        where = "" if on_gpu is None else f" of the {'GPU' if on_gpu else 'CPU'}"
        raise AcceleratorError(
            f"accelerator {quote(name)} is not known; the accelerators{where} are "
            f"{', '.join(entries)}{did_you_mean(name.lower(), entries)}"
        )
    return ChosenAccelerator(name.lower(), read_values(entry.options, options, _WORDING, name))


def describe_first(chosen: Sequence[ChosenAccelerator]) -> str:
    """Return what messages call the first of these accelerators, which computes what it can."""
    return f"accelerator {chosen[0].name!r}"


def uses_openvino(chosen: Sequence[ChosenAccelerator]) -> bool:
    """Return whether these accelerators are that of the CPU."""
    return bool(chosen) and not chosen[0].entry.on_gpu


def join_names(kernels: Iterable[str]) -> str:
    """Return the names of what computes several graphs, without repetitions."""
    return ",".join(dict.fromkeys(name for kernel in kernels for name in kernel.split(",") if name))


def describe_engines(chosen: Sequence[ChosenAccelerator]) -> str:
    """Return the engines that load a graph of these accelerators in a child process first, with
    their versions: those of the CPU."""
    packages = [accelerator.entry.package for accelerator in chosen if not accelerator.entry.on_gpu]
    if not packages:
        return ""
    # Imported here: it takes 2 MiB, and few models have accelerators.
    from importlib import metadata

    try:
        return " ".join(f"{package} {metadata.version(package)}" for package in packages)
    except metadata.PackageNotFoundError:  # opening the graph says so
        return ""


class OpenVinoUse:
    """Use of OpenVINO by this process. Its threads do not survive a fork, and its library waits for
    them for ever: in a fork of a process that has started it, a new process computes."""

    is_started = False
    is_fork = False

    @classmethod
    def note_fork(cls) -> None:
        """Note in a forked child whether its parent had started OpenVINO."""
        cls.is_fork = cls.is_started


os.register_at_fork(after_in_child=OpenVinoUse.note_fork)
