"""ModelState: one model of the repository: its configuration, files, tensors. Shared by nothing: each instance is a process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_runtime.session import user_anchors

import popef
from triton_poplar.errors import ModelConfigError
from triton_poplar.parameters import Parameters, parse_parameters
from triton_poplar.tensors import Tensor, check_config_tensors, make_tensor, read_name_map


class ModelState:
    """A validated model. Constructing it is ValidateModelConfig of the guide: afterwards everything agrees.

    `config` is Triton's model configuration (JSON form), `version_folder` the folder of the version that is loaded.
    Raises ModelConfigError naming what is wrong, where, what was expected and found.
    """

    def __init__(self, config: Mapping[str, Any], version_folder: Path) -> None:
        self.name = str(config.get("name") or version_folder.parent.name)
        self.version_folder = version_folder
        self.parameters: Parameters = parse_parameters(config)
        self.executable_file = self._find("executable_path", "executable.popef", required=True)
        self.weights_file = self._find("weights_path", "weights.popef", required=False)
        self.name_map_file = self._find("name_map_file_path", "name_map.json", required=False)
        self.max_batch_size = int(config.get("max_batch_size", 0))
        self.instance_count = _count_instances(config)
        self._read_tensors(self.load_model().metadata)
        leading = (self.batch_size,) if self.batch_size and not self.max_batch_size else ()
        check_config_tensors("input", config.get("input", []), self.inputs, leading, self.wraps_rows)
        check_config_tensors("output", config.get("output", []), self.outputs, leading, self.wraps_rows)

    def load_model(self) -> popef.Model:
        """A new popef Model: the executable, its metadata and its weights, bound. One per instance."""
        files = [file for file in (self.executable_file, self.weights_file) if file is not None]
        try:
            reader = popef.Reader()
            for file in files:
                reader.parseFile(file)
            return popef.ModelBuilder(reader).createModel()
        except popef.PopefError as error:
            named = " and ".join(str(file) for file in files)
            raise ModelConfigError(f"model {self.name!r}, {named}: {error}") from error

    @property
    def wraps_rows(self) -> bool:
        """Whether a request is one row without a batch dimension: max_batch_size 0 and a model without a batch."""
        return not self.max_batch_size and not self.batch_size

    @property
    def num_threads(self) -> int:
        """Threads for one instance: sim_threads, or the usable cores shared out among the instances."""
        cores = len(os.sched_getaffinity(0))
        return self.parameters.sim_threads or max(1, cores // self.instance_count)

    def _read_tensors(self, metadata: popef.Metadata) -> None:
        inputs = user_anchors(metadata, popef.TensorType.INPUT)
        outputs = user_anchors(metadata, popef.TensorType.OUTPUT)
        if not inputs or not outputs:
            raise ModelConfigError(
                f"{self.executable_file} has {len(inputs)} input and {len(outputs)} output anchors for its main program; "
                "a served model needs at least one of each"
            )
        names = read_name_map(self.name_map_file, [*inputs, *outputs])
        leading = {tuple(anchor.tensorInfo().shape()[:1]) for anchor in (*inputs, *outputs)}
        batch = leading.pop() if len(leading) == 1 else ()
        self.batch_size = batch[0] if batch else 0
        self.inputs = self._index(inputs, names)
        self.outputs = self._index(outputs, names)

    def _index(self, anchors: list[popef.Anchor], names: dict[str, str]) -> dict[str, Tensor]:
        tensors = [make_tensor(anchor, names[anchor.name()], bool(self.batch_size)) for anchor in anchors]
        return {tensor.name: tensor for tensor in tensors}

    def _find(self, parameter: str, default: str, *, required: bool) -> Path | None:
        """The file that a parameter names, or the default name: in the version folder, then in the model folder."""
        given = getattr(self.parameters, parameter)
        folders = (self.version_folder, self.version_folder.parent)
        candidates = [folder / (given or default) for folder in folders]
        for candidate in candidates:
            if candidate.is_file():
                return candidate
        if given or required:
            looked = " or ".join(dict.fromkeys(str(candidate) for candidate in candidates))
            raise ModelConfigError(
                f"model {self.name!r}: file {given or default!r} (parameter {parameter}) does not exist; looked for {looked}"
            )
        return None


def _count_instances(config: Mapping[str, Any]) -> int:
    return sum(max(1, int(group.get("count", 1))) for group in config.get("instance_group", [])) or 1
