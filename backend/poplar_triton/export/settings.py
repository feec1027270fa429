"""Configuration of an exported model for a stock backend of Triton: what stays, what changes, and
what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from poprt.triton import ModelConfig, new_config
from triton_poplar.parameters import OWN_PARAMETERS

from popef._tools.text import escape
from poplar_triton.errors import ExportError
from poplar_triton.export.source import ExportSource

ONNXRUNTIME, OPENVINO, ONNX = "onnxruntime", "openvino", "onnx"
BACKENDS = (ONNXRUNTIME, OPENVINO)
_KEPT = (
    "metric_tags optimization instance_group model_warmup response_cache dynamic_batching "
    "sequence_batching"
).split()
"""Fields of a configuration that mean the same for every backend."""
_REPLACED = "name backend max_batch_size input output parameters".split()
_THREADS = {ONNXRUNTIME: "intra_op_thread_count", OPENVINO: "INFERENCE_NUM_THREADS"}
"""Parameter of a backend that sets the number of threads of an instance."""
_ORT_PARAMETERS = frozenset(
    (
        "intra_op_thread_count inter_op_thread_count execution_mode enable_mem_arena "
        "enable_mem_pattern memory.enable_memory_arena_shrinkage"
    ).split()
)
"""Parameters that the onnxruntime backend documents."""
_REASONS = {
    "timeout_ns": "the delay of Triton's own batcher is "
    "dynamic_batching.max_queue_delay_microseconds",
    "sim_index_check": "the exported graph checks indices as it says",
    "sim_numerics": "--numerics says how the exported graph rounds",
}
_OWN = "only the backend poplar has it"
_KIND_CPU = 2
"""Value of KIND_CPU in Triton's protocol."""


@dataclass(slots=True)
class ExportedConfig:
    """Configuration for a backend, the differences from the original, and files that it names."""

    config: ModelConfig
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    """Files of the model folder to copy, by their path in it."""


def make_settings(
    source: ExportSource, name: str, backend: str, max_batch_size: int | None
) -> ExportedConfig:
    """Return the configuration of the model called `name` for a backend, with at most
    `max_batch_size` rows in a call (None: as today).

    Raises ExportError for a file that does not lie in the model's folder.
    """
    original = source.config
    settings = ExportedConfig(new_config(name=name, backend=backend))
    config = settings.config
    config.max_batch_size = _find_batch_size(source, backend, max_batch_size)
    holds_rows = bool(original.max_batch_size) and not config.max_batch_size
    entries = {entry.name: entry for entry in (*original.input, *original.output)}
    for tensors, ports in ((config.input, source.inputs), (config.output, source.outputs)):
        for port in ports:
            dims = port.wire_shape if holds_rows else port.dims
            tensors.add(name=port.name, data_type=entries[port.name].data_type, dims=dims)
    for entry in config.output:
        entry.label_filename = entries[entry.name].label_filename
    _keep_fields(settings, original, holds_rows=holds_rows)
    _add_parameters(settings, source, backend)
    _adapt(settings, source, backend, holds_rows=holds_rows)
    settings.files = dict(_find_files(config, source.folder))
    if name != source.name:
        settings.notes.append(
            f"clients call the model {source.name!r} today; the exported folder is called {name!r}"
        )
    return settings


def _find_batch_size(source: ExportSource, backend: str, requested: int | None) -> int:
    """Return max_batch_size. The openvino backend computes exactly that many rows in a call, so
    there the batch is an axis of any size in dims. A graph of whole batches has it in dims, too."""
    today = int(source.config.max_batch_size)
    if backend == OPENVINO or not source.is_open:
        return 0
    return min(today, requested or today)


def _keep_fields(settings: ExportedConfig, original: ModelConfig, *, holds_rows: bool) -> None:
    for descriptor, value in original.ListFields():
        name = descriptor.name
        if name in _REPLACED:
            continue
        if name not in _KEPT:
            settings.left_out.append(f"{name}: the exported folder does not need it")
        elif name == "dynamic_batching" and holds_rows:
            settings.left_out.append(
                "dynamic_batching: with the batch in dims, Triton passes on each request alone"
            )
        elif hasattr(value, "add"):
            getattr(settings.config, name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(settings.config, name).CopyFrom(value)
        else:
            getattr(settings.config, name).update(value)


def _add_parameters(settings: ExportedConfig, source: ExportSource, backend: str) -> None:
    own = OWN_PARAMETERS - _ORT_PARAMETERS
    for name, value in sorted(source.parameters.items()):
        if name == "sim_threads" and value.strip() not in ("", "0"):
            settings.config.parameters[_THREADS[backend]].string_value = value
            settings.notes.append(f"parameter sim_threads is {_THREADS[backend]} there")
        elif name in own or (name in _ORT_PARAMETERS and backend != ONNXRUNTIME):
            reason = _OWN if name in own else "only the backend onnxruntime has it"
            settings.left_out.append(f"parameter {name}: {_REASONS.get(name, reason)}")
        else:
            settings.config.parameters[name].string_value = value


def _adapt(
    settings: ExportedConfig, source: ExportSource, backend: str, *, holds_rows: bool
) -> None:
    """Adapt fields whose meaning depends on the backend or on where the rows lie."""
    config = settings.config
    if backend == OPENVINO:
        if config.HasField("optimization"):
            config.ClearField("optimization")
            settings.left_out.append("optimization: the backend openvino has none")
        for group in config.instance_group:
            if group.kind != _KIND_CPU:
                group.kind = _KIND_CPU
                del group.gpus[:]
                settings.notes.append("instance_group: KIND_CPU; see the backend's TARGET_DEVICE")
    if config.max_batch_size:
        settings.notes.append(
            f"a call computes up to max_batch_size {config.max_batch_size} rows at once, where "
            f"this backend computed {source.session.rows_per_run}; --max_batch_size lowers the "
            "memory that it may take"
        )
    if holds_rows:
        rows = "any number of rows" if source.is_open else f"{source.program.batch_size} rows"
        settings.notes.append(f"max_batch_size 0: each request is computed alone, with {rows}")
        for warm_up in config.model_warmup:
            _widen(warm_up, None if source.is_open else source.program.batch_size)


def _widen(warm_up: ModelConfig, fixed_rows: int | None) -> None:
    """Put the rows of a warm-up request into its dims. Data of a file are those of one row."""
    has_file = any(source.input_data_file for source in warm_up.inputs.values())
    rows = fixed_rows or (1 if has_file else max(1, warm_up.batch_size))
    warm_up.batch_size = 1
    for source in warm_up.inputs.values():
        dims = [rows, *source.dims]
        del source.dims[:]
        source.dims.extend(dims)


def _find_files(config: ModelConfig, folder: Path | None) -> Iterator[tuple[str, Path]]:
    names = [output.label_filename for output in config.output if output.label_filename]
    names += [
        f"warmup/{source.input_data_file}"
        for warm_up in config.model_warmup
        for source in warm_up.inputs.values()
        if source.input_data_file
    ]
    for name in dict.fromkeys(names):
        file = None if folder is None else (folder / name).resolve()
        if folder is None or file is None or not file.is_relative_to(folder.resolve()):
            raise ExportError(f"{escape(name)}: expected a file inside the model's folder")
        if not file.is_file():
            raise ExportError(f"{escape(file)}: config.pbtxt names this file, which does not exist")
        yield name, file
