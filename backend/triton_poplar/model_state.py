"""ModelState: one model of the repository: its configuration, files, tensors. Shared by nothing: each
instance is a process.

Only headers and metadata are read here, in pure Python: Triton runs this in a process whose death would hang
the server.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import popef
from triton_poplar.backend_state import BackendState
from triton_poplar.errors import ModelConfigError
from triton_poplar.parameters import MOST_DELAY_SECONDS, Parameters, parse_parameters
from triton_poplar.tensors import Tensor, check_config_tensors, make_tensor, read_name_map

if TYPE_CHECKING:
    from model_runtime.fusion import FusedRequests


class ModelState:
    """A model's files and parameters, read and checked.

    `config` is Triton's model configuration (JSON form), `version_folder` the folder of the version that is
    loaded. Raises ModelConfigError naming what is wrong, where, what was expected and found.
    """

    def __init__(
        self, config: Mapping[str, Any], version_folder: Path, backend: BackendState | None = None
    ) -> None:
        self.backend = backend or BackendState()
        self.name = str(config.get("name") or version_folder.parent.name)
        self.version = version_folder.name
        self.version_folder = version_folder
        self.parameters: Parameters = parse_parameters(config)
        self.executable_files = self._find("executable_path", "executable.popef", required=True)
        self.weights_files = self._find("weights_path", "weights.popef", required=False)
        self.name_map_file = next(
            iter(self._find("name_map_file_path", "name_map.json", required=False)), None
        )
        self.graph_file = next(iter(self._find("sim_graph_path", "", required=False)), None)
        self.max_batch_size = int(config.get("max_batch_size", 0))
        self._config = config
        self._instance_groups = list(config.get("instance_group", []))
        self.models: tuple[popef.FusedModel, ...] = ()
        """Those of a fused model, of which a request is for one."""
        self._read_tensors(self.load_model())

    def validate(self) -> None:
        """ValidateModelConfig of the guide: afterwards config.pbtxt and PopEF agree."""
        if self._config.get("model_transaction_policy", {}).get("decoupled"):
            raise ModelConfigError(
                f"model {self.name!r}: config.pbtxt says decoupled: true, but every request has exactly one "
                "answer; leave model_transaction_policy out"
            )
        batch = self.total_batch_size if self.holds_batch else 0
        for entry in self._config.get("input", []):
            if self._friendly_frozen.get(entry["name"]):
                raise ModelConfigError(
                    f"config.pbtxt has input {entry['name']!r}, whose data the PopEF files hold (anchor "
                    f"{self._friendly_frozen[entry['name']]!r}): no request brings it; leave it out"
                )
        check_config_tensors("input", self._config.get("input", []), self.inputs, batch, self.wraps_rows)
        check_config_tensors("output", self._config.get("output", []), self.outputs, batch, self.wraps_rows)

    @property
    def holds_batch(self) -> bool:
        """Whether requests and dims hold the model's batch: max_batch_size 0, and a model that has one."""
        return bool(self.batch_size) and not self.max_batch_size

    def load_model(self) -> popef.Model:
        """A new popef Model: the executable, its metadata and its weights, bound. One per instance."""
        files = [*self.executable_files, *self.weights_files]
        try:
            reader = popef.Reader()
            for file in files:
                reader.parseFile(file)
            return popef.ModelBuilder(reader).createModel(self._choose_executable(reader))
        except (popef.PopefError, OSError) as error:
            named = " and ".join(str(file) for file in files)
            raise ModelConfigError(f"model {self.name!r}, {named}: {error}") from error

    @cached_property
    def fused_requests(self) -> FusedRequests | None:
        """What completes requests to a fused model; None for another one."""
        # Not at the top of the file: the process that completes configurations has to do without ONNX
        # Runtime.
        from model_runtime.fusion import FusedRequests

        return FusedRequests.of(self._metadata)

    @property
    def num_threads(self) -> int:
        """Threads for one instance: sim_threads, or the usable cores shared out among the instances."""
        cores = len(os.sched_getaffinity(0))
        return self.parameters.sim_threads or max(1, cores // self.instance_count)

    @property
    def instance_count(self) -> int:
        """How many instances the configuration asks for."""
        return sum(_count(group) for group in self._instance_groups) or 1

    def instance_id(self, instance_name: str) -> int:
        """The number of an instance, counted through the instance groups; Triton names them GROUP_0, GROUP_1
        and so on."""
        before = 0
        for group in self._instance_groups:
            name, _, number = instance_name.rpartition("_")
            if name == group.get("name") and number.isdecimal():
                return before + int(number)
            before += _count(group)
        return 0

    def execution_delay_seconds(self, instance_id: int) -> float:
        """For tests: how long an instance waits before it processes the requests of a call. ModelConfigError
        for over a day."""
        multiplier = max(self.parameters.instance_wise_delay_multiplier * instance_id, 1)
        seconds = multiplier * self.parameters.execute_delay_ms / 1000
        if seconds > MOST_DELAY_SECONDS:
            raise ModelConfigError(
                f"model {self.name!r}: parameters execute_delay_ms and instance_wise_delay_multiplier: "
                f"expected a wait of at most {MOST_DELAY_SECONDS} s for each instance, found {seconds:g} s "
                f"for instance {instance_id}; lower one"
            )
        return seconds

    def creation_delay(self) -> None:
        """For tests: wait before an instance is created."""
        time.sleep(self.parameters.creation_delay_sec)

    def _choose_executable(self, reader: popef.Reader) -> str | None:
        """executable_name, or among several the one called like the model."""
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
                f"{self.executable_files[0]} has no output anchors for its main program; a served model "
                "needs at least one"
            )
        fixed = model.frozen_inputs()
        frozen = [anchor for anchor in metadata.anchors() if anchor.name() in fixed]
        self.names = read_name_map(self.name_map_file, [*inputs, *outputs, *frozen])
        self._friendly_frozen = {self.names[name]: name for name in fixed}
        shapes = {anchor.name(): popef.replica_shape(metadata, anchor) for anchor in (*inputs, *outputs)}
        try:
            rows = popef.read_rows(model)
        except popef.PopefError as error:
            raise ModelConfigError(f"model {self.name!r}: {error}") from error
        self.rows = rows.with_frozen(shapes.values()) if frozen else rows
        axes = [self.rows.axis(name) for name in shapes]
        self.batch_size = popef.batch_size(shapes.values(), axes) if inputs else 0
        replicas, iterations = max(1, metadata.replicationFactor()), max(1, metadata.deviceIterations())
        self.total_batch_size = self.batch_size * replicas * iterations
        """Rows that one run has place for; 0 without a batch."""
        self.wraps_rows = not self.max_batch_size and not self.batch_size
        """Whether a request is one row without a batch dimension: max_batch_size 0 and a model without a
        batch."""
        self.inputs = self._index(inputs, shapes)
        self.outputs = self._index(outputs, shapes)

    def _index(self, anchors: list[popef.Anchor], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        tensors = {}
        for anchor in anchors:
            friendly, shape, axis = (
                self.names[anchor.name()],
                shapes[anchor.name()],
                self.rows.axis(anchor.name()),
            )
            if self.batch_size:
                shape = (*shape[:axis], *shape[axis + 1 :])
            tensors[friendly] = make_tensor(anchor, friendly, shape, axis)
        return tensors

    def _find(self, parameter: str, default: str, *, required: bool) -> list[Path]:
        """The files that a parameter names, commas between them, or the one of the default name, if there is
        one."""
        given = getattr(self.parameters, parameter)
        if not given:
            file = self._find_file(default) if default else None
            if file is None and required:
                raise self._missing(parameter, default)
            return [file] if file else []
        # A file may have a comma in its name.
        whole = self._find_file(given)
        if whole is not None:
            return [whole]
        files = []
        for name in given.split(","):
            file = self._find_file(name.strip())
            if file is None:
                raise self._missing(parameter, name.strip())
            files.append(file)
        return files

    def _folders(self) -> tuple[Path, Path]:
        return self.version_folder, self.version_folder.parent

    def _find_file(self, name: str) -> Path | None:
        """A relative path is taken from the version folder, then from the model folder."""
        # Not Path.is_file, which raises for a path that is too long.
        return next((folder / name for folder in self._folders() if os.path.isfile(folder / name)), None)

    def _missing(self, parameter: str, name: str) -> ModelConfigError:
        looked = " or ".join(dict.fromkeys(str(folder / name) for folder in self._folders()))
        return ModelConfigError(
            f"model {self.name!r}: file {name!r} (parameter {parameter}) does not exist; looked for {looked}"
        )


def _count(group: Mapping[str, Any]) -> int:
    return max(1, int(group.get("count", 1)))
