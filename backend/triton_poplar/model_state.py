"""ModelState: one model of the repository, with its configuration, files and tensors; and the
completion of a configuration from them. Each instance is a process of its own and shares none of
this.

Only headers and metadata are read here, in pure Python, because Triton runs this in a process whose
death would hang the server.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import popef
from popef._tools.file_state import FileState
from popef._tools.text import name_file
from triton_poplar.accelerators import read_accelerators
from triton_poplar.errors import ModelConfigError
from triton_poplar.parameters import MAX_DELAY_SECONDS, BackendState, Parameters, parse_parameters
from triton_poplar.tensors import (
    Tensor,
    check_config_tensors,
    make_tensor,
    open_empty,
    read_name_map,
)

if TYPE_CHECKING:
    from model_runtime import FusedRequests


UNBOUNDED_MICROSECONDS = 24 * 60 * 60 * 10**6
"""One day, longer than any request waits."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Limits of how long a request may wait, from `default_queue_policy` of a configuration. Here
    they apply to requests that wait in the backend, after Triton's own queue."""

    default_us: int = UNBOUNDED_MICROSECONDS
    allows_override: bool = True

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> QueuePolicy:
        """Read the policy of a configuration.

        Without a policy a request's own timeout counts. A policy that delays requests sets no
        limit. Policies of priority levels set none here, because the backend does not know a
        request's level.
        """
        batching = config.get("dynamic_batching") or {}
        policy = batching.get("default_queue_policy") or {}
        if (
            batching.get("priority_queue_policy")
            or policy.get("timeout_action", "REJECT") != "REJECT"
        ):
            return cls(allows_override=False)
        if not policy:
            return cls()
        default_us = int(policy.get("default_timeout_microseconds", 0))
        return cls(default_us or UNBOUNDED_MICROSECONDS, bool(policy.get("allow_timeout_override")))

    def find_timeout_ns(self, asked_us: int) -> int:
        """Return the bound for a request whose own timeout is `asked_us` (0: none)."""
        shorter = self.allows_override and 0 < asked_us < self.default_us
        return 1000 * (asked_us if shorter else self.default_us)


class ModelState:
    """Files and parameters of a model, read and checked.

    `config` is Triton's model configuration (JSON form), `version_folder` the folder of the loaded
    version, `gpu` the number of the GPU of an instance that is on one. `file_states` are the states
    that the PopEF files must have, if another process has opened them before. Raises
    ModelConfigError that names what is wrong, where, what was expected and found.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        version_folder: Path,
        backend: BackendState | None = None,
        gpu: int | None = None,
        file_states: Sequence[FileState | None] | None = None,
    ) -> None:
        self.backend = backend or BackendState()
        self.accelerators = read_accelerators(config, gpu)
        self.name = str(config.get("name") or version_folder.parent.name)
        self.version = version_folder.name
        self.version_folder = version_folder
        self.parameters: Parameters = parse_parameters(config)
        self.executable_files = self._find_files(
            "executable_path", "executable.popef", required=True
        )
        self.weights_files = self._find_files("weights_path", "weights.popef", required=False)
        self.name_map_file = next(
            iter(self._find_files("name_map_file_path", "name_map.json", required=False)), None
        )
        self.graph_file = next(iter(self._find_files("sim_graph_path", "", required=False)), None)
        self.max_batch_size = int(config.get("max_batch_size", 0))
        self.queue_policy = QueuePolicy.of(config)
        self.max_wait_ns = self.queue_policy.find_timeout_ns(0)
        """Limit for a request without a timeout."""
        self.config = config
        self.is_cached = bool(config.get("response_cache", {}).get("enable"))
        """Whether Triton caches the responses, if the server has a cache."""
        self._instance_groups = list(config.get("instance_group", []))
        self.models: tuple[popef.FusedModel, ...] = ()
        """Models of a fused model; each request is for one of them."""
        self._expected_states = file_states
        model = self.load_model()
        self.executable_name = model.executable.name
        """Name of the executable that is loaded, of those in the files."""
        self._read_tensors(model)

    def validate(self) -> None:
        """Check that config.pbtxt and the PopEF file agree (ValidateModelConfig of the guide)."""
        if self.config.get("model_transaction_policy", {}).get("decoupled"):
            raise ModelConfigError(
                f"model {self.name!r}: config.pbtxt sets decoupled: true, but every request has "
                "exactly one response; remove model_transaction_policy"
            )
        batch = self.total_batch_size if self.holds_batch else 0
        for entry in self.config.get("input", []):
            if self._friendly_frozen.get(entry["name"]):
                raise ModelConfigError(
                    f"config.pbtxt lists input {entry['name']!r}, but the PopEF files contain "
                    f"its data (anchor {self._friendly_frozen[entry['name']]!r}), so no request "
                    "can set it; remove the input"
                )
        names_hint = (
            f"; these are the names in {self.name_map_file}"
            if self.name_map_file is not None
            else "; these are the names in the file, because there is no name_map.json in the "
            "version folder and no parameter name_map_file_path"
        )
        for kind, tensors in (("input", self.inputs), ("output", self.outputs)):
            entries = self.config.get(kind, [])
            check_config_tensors(kind, entries, tensors, batch, self.wraps_rows, names_hint)

    @property
    def holds_inputs(self) -> bool:
        """Whether the files have the values of inputs, so that no request brings them."""
        return bool(self._friendly_frozen)

    @property
    def holds_batch(self) -> bool:
        """Whether requests and dims hold the model's batch: max_batch_size 0, and a model that has
        one."""
        return bool(self.batch_size) and not self.max_batch_size

    def load_model(self) -> popef.Model:
        """Return a new popef Model with the executable, its metadata and its weights bound. Each
        instance calls this once."""
        files = [*self.executable_files, *self.weights_files]
        try:
            reader = popef.Reader()
            for file in files:
                reader.parseFile(file)
            self._check_states([*reader.fileStates(), *self._find_graph_states()])
            return popef.ModelBuilder(reader).createModel(self._choose_executable(reader))
        except (popef.PopefError, OSError) as error:
            names = " and ".join(str(file) for file in files)
            where = "" if any(str(file) in str(error) for file in files) else f", {names}"
            raise ModelConfigError(f"model {self.name!r}{where}: {error}") from error

    @property
    def file_states(self) -> Sequence[FileState | None]:
        """States of the executable's files, the weights' files and the graph's file when they were
        first opened."""
        return self._expected_states or ()

    def check_graph_file(self) -> None:
        """Raise ModelConfigError if the graph's file was replaced since the first load."""
        with suppress(OSError):
            if self._find_graph_states() == list(self.file_states[-1:]):
                return
        raise self._files_exchanged()

    def _find_graph_states(self) -> list[FileState]:
        return [] if self.graph_file is None else [FileState.of(self.graph_file)]

    def _check_states(self, states: Sequence[FileState | None]) -> None:
        """Raise ModelConfigError unless the files are those that were opened before: they have
        shown in a child process that they load within limits, and others have not."""
        if self._expected_states is None:
            self._expected_states = states
        if list(states) != list(self._expected_states):
            raise self._files_exchanged()

    def _files_exchanged(self) -> ModelConfigError:
        files = [*self.executable_files, *self.weights_files, self.graph_file]
        names = " and ".join(str(file) for file in files if file is not None)
        return ModelConfigError(
            f"model {self.name!r}: expected the files as they were when the load began, found that "
            f"one was exchanged or written to ({names}); load the model again"
        )

    @cached_property
    def fused_requests(self) -> FusedRequests | None:
        """Completion of requests to a fused model; None for another model."""
        # Imported late: the process that completes configurations must not load ONNX Runtime.
        from model_runtime import FusedRequests

        return FusedRequests.of(self._metadata)

    @property
    def num_threads(self) -> int:
        """Number of threads for one instance: sim_threads, or the usable cores shared among the
        instances."""
        cores = len(os.sched_getaffinity(0))
        return self.parameters.sim_threads or max(1, cores // self.instance_count)

    @property
    def instance_count(self) -> int:
        """Number of instances in the configuration."""
        return sum(_count_instances(group) for group in self._instance_groups) or 1

    def instance_id(self, instance_name: str) -> int:
        """Return the number of an instance, counted through the instance groups. Triton names
        instances GROUP_0, GROUP_1 and so on."""
        before = 0
        for group in self._instance_groups:
            name, _, number = instance_name.rpartition("_")
            if name == group.get("name") and number.isdecimal():
                return before + int(number)
            before += _count_instances(group)
        return 0

    def execution_delay_seconds(self, instance_id: int) -> float:
        """Return how long an instance waits before it processes the requests of a call. Only tests
        set this delay. Raises ModelConfigError for more than a day."""
        multiplier = max(self.parameters.instance_wise_delay_multiplier * instance_id, 1)
        seconds = multiplier * self.parameters.execute_delay_ms / 1000
        if seconds > MAX_DELAY_SECONDS:
            raise ModelConfigError(
                f"model {self.name!r}: parameters execute_delay_ms and "
                "instance_wise_delay_multiplier: expected a delay of at most "
                f"{MAX_DELAY_SECONDS} s for each instance, found {seconds:g} s for instance "
                f"{instance_id}; reduce one of them"
            )
        return seconds

    def creation_delay(self) -> None:
        """Wait before an instance is created. Only tests set this delay."""
        time.sleep(self.parameters.creation_delay_sec)

    def _choose_executable(self, reader: popef.Reader) -> str | None:
        """Return executable_name, or among several executables the one with the model's name."""
        if self.parameters.executable_name:
            return self.parameters.executable_name
        names = [executable.name for executable in reader.executables()]
        return self.name if len(names) > 1 and self.name in names else None

    def _read_tensors(self, model: popef.Model) -> None:
        metadata = self._metadata = model.metadata
        self.models = popef.fused_models(metadata)
        inputs = model.user_anchors(popef.TensorType.INPUT)
        outputs = model.user_anchors(popef.TensorType.OUTPUT)
        if not outputs:
            raise ModelConfigError(
                f"{self.executable_files[0]} has no output anchors for its main program; a "
                "served model requires at least one"
            )
        fixed = model.frozen_inputs()
        frozen = [anchor for anchor in metadata.anchors() if anchor.name() in fixed]
        self.names = read_name_map(self.name_map_file, [*inputs, *outputs, *frozen])
        self._friendly_frozen = {self.names[name]: name for name in fixed}
        shapes = {
            anchor.name(): popef.replica_shape(metadata, anchor) for anchor in (*inputs, *outputs)
        }
        try:
            rows = popef.read_rows(model)
        except popef.PopefError as error:
            raise ModelConfigError(f"model {self.name!r}: {error}") from error
        self.rows = rows.with_frozen(shapes.values()) if frozen else rows
        axes = [self.rows.axis(name) for name in shapes]
        self.batch_size = popef.batch_size(shapes.values(), axes) if inputs else 0
        replicas = max(1, metadata.replicationFactor())
        self.total_batch_size = self.batch_size * replicas * max(1, metadata.deviceIterations())
        """Maximum number of rows in one run; 0 without a batch."""
        self.wraps_rows = not self.max_batch_size and not self.batch_size
        """Whether a request is one row without a batch dimension: max_batch_size 0 and a model
        without a batch."""
        self.inputs = self._make_tensors(inputs, shapes)
        self.outputs = self._make_tensors(outputs, shapes)

    def _make_tensors(
        self, anchors: list[popef.Anchor], shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, Tensor]:
        tensors = {}
        for anchor in anchors:
            name = anchor.name()
            friendly, shape, axis = self.names[name], shapes[name], self.rows.axis(name)
            if self.batch_size:
                shape = (*shape[:axis], *shape[axis + 1 :])
            tensors[friendly] = make_tensor(anchor, friendly, shape, axis)
        return tensors

    def _find_files(self, parameter: str, default: str, *, required: bool) -> list[Path]:
        """Return the files that a parameter names, separated by commas. Without the parameter,
        return the file of the default name if it exists."""
        text = getattr(self.parameters, parameter)
        if not text:
            file = self._find_file(default) if default else None
            if file is None and required:
                raise self._file_not_found(parameter, default)
            return [file] if file else []
        # A file may have a comma in its name.
        path = self._find_file(text)
        if path is not None:
            return [path]
        files = []
        for name in text.split(","):
            file = self._find_file(name.strip())
            if file is None:
                raise self._file_not_found(parameter, name.strip())
            files.append(file)
        return files

    def _folders(self) -> tuple[Path, Path]:
        return self.version_folder, self.version_folder.parent

    def _find_file(self, name: str) -> Path | None:
        """Return the file of that name, or None. A relative path is resolved against the version
        folder, then against the model folder."""
        # Not Path.is_file, which raises for a path that is too long.
        name = name_file(name)
        return next(
            (folder / name for folder in self._folders() if os.path.isfile(folder / name)), None
        )

    def _file_not_found(self, parameter: str, name: str) -> ModelConfigError:
        looked = " or ".join(dict.fromkeys(str(folder / name) for folder in self._folders()))
        return ModelConfigError(
            f"model {self.name!r}: file {name!r} (parameter {parameter}) does not exist; looked "
            f"for {looked}"
        )


def _count_instances(group: Mapping[str, Any]) -> int:
    return max(1, int(group.get("count", 1)))


BATCHES_PER_REQUEST = 1_000
"""Factor of the guide's example: max_batch_size is 1000 times the compiled batch. The backend
splits and joins requests."""
MAX_BATCH_SIZE = 2**31 - 1
"""Maximum of max_batch_size, which is an int32."""
_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def complete_config(config: Mapping[str, Any], version_folder: Path) -> dict[str, Any]:
    """Return the entries that `config` (Triton's JSON form) lacks: max_batch_size,
    dynamic_batching, input, output.

    If the configuration has neither inputs nor outputs, and the rows of the compiled batch are
    proven to be independent, the model gets a max_batch_size unless it has one. It also gets an
    empty dynamic_batching unless it names a scheduler. If the rows are not proven to be
    independent, or lie along another axis than the first, dims hold the batch. Raises
    ModelConfigError if the model's files are invalid.
    """
    state = ModelState(config, version_folder)
    untouched = not config.get("input") and not config.get("output")
    max_batch_size = state.max_batch_size
    proven = state.rows.dependence is None
    has_rows = proven and state.batch_size and not state.rows.batch_axes
    if untouched and has_rows and not max_batch_size:
        max_batch_size = min(state.total_batch_size * BATCHES_PER_REQUEST, MAX_BATCH_SIZE)
    added: dict[str, Any] = {"max_batch_size": max_batch_size}
    if max_batch_size and not any(name in config for name in _SCHEDULERS):
        added["dynamic_batching"] = {}
    batch = state.total_batch_size if state.batch_size and not max_batch_size else 0
    if batch and proven and state.rows.batch_axes:
        batch = -1
    for kind, tensors in (("input", state.inputs), ("output", state.outputs)):
        if not config.get(kind):
            added[kind] = [
                _describe(tensor, batch, bool(max_batch_size)) for tensor in tensors.values()
            ]
    if state.models:  # a request brings the inputs of one of them
        for entry in added.get("input", []):
            entry["optional"] = True
    return added


def _describe(tensor: Tensor, batch: int, batched: bool) -> dict[str, Any]:
    dims = tensor.dims(batch) if batch else open_empty(tensor.shape) or [1]
    entry: dict[str, Any] = {"name": tensor.name, "data_type": tensor.triton_type, "dims": dims}
    # Triton has scalars in batches only; without a batch a scalar is a tensor of one element.
    if batched and not tensor.shape:
        entry["reshape"] = {"shape": []}
    return entry
