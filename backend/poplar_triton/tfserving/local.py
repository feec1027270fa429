"""Models that this process computes: their versions are found in folders, loaded, watched and
closed.

Folders, files and parameters are the backend's own (triton_poplar), so a model is served here as on
Triton. Requests read tables that are replaced, never changed. A newer version is loaded before the
older one is closed.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from poprt.triton import read_config
from simipu import SimIpuError
from triton_poplar.errors import ModelConfigError
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState, complete_config
from triton_poplar.parameters import BackendState
from triton_poplar.server_start import NOT_TRIED, ServerStart
from triton_poplar.statistics import Statistics

from popef._tools.arrays import Array
from poplar_triton.serving.repository import MODEL_FILE
from poplar_triton.tfserving.batcher import RequestBatcher
from poplar_triton.tfserving.models import (
    Call,
    Code,
    ModelSpec,
    ServingError,
    Signature,
    VersionState,
    VersionStatus,
    make_spec,
    refuse,
)
from poplar_triton.tfserving.settings import (
    ModelSource,
    VersionPolicy,
    find_version,
    not_known,
    not_served,
)

LEAVE_SECONDS = 1.0
"""Time between the end of a version's service and its closing."""
_BACKENDS = ("", "poplar")
_ISOLATED = {"sim_isolation": {"string_value": "process"}}
_VERSION = re.compile("[0-9]{1,64}")
"""Pattern of a version's folder name. Leading zeros are allowed, as TensorFlow's exporters wrote
them."""
_MAX_VERSION = 2**63 - 1
"""Maximum version number of the protocol."""
_log = logging.getLogger(__name__)


class LocalServable:
    """Loaded version of a model."""

    def __init__(self, loaded: Loaded, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.signature = loaded.signature
        self.statistics = loaded.instance.statistics
        self._loaded = loaded
        self._batcher = RequestBatcher(loaded.instance, joins=loaded.joins)

    def predict(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], call: Call
    ) -> dict[str, Array]:
        loaded = self._loaded
        if loaded.max_batch_size:
            rows = max((len(array) for array in inputs.values()), default=0)
            if rows > loaded.max_batch_size:
                raise refuse(
                    f"inference request batch-size must be <= {loaded.max_batch_size} for "
                    f"{self.name!r}, found {rows}"
                )
        rows_of = loaded.reshape(inputs, loaded.reshaped)
        return loaded.reshape(self._batcher.compute(rows_of, outputs, call), loaded.dims)

    def read_statistics(self) -> Statistics:
        """Return what its instance has counted so far."""
        return self._loaded.instance.read_statistics()

    def close(self) -> None:
        """Close the version after all its requests are answered."""
        self._batcher.close()


@dataclass(frozen=True)
class Loaded:
    """Instance of a version and what its configuration says about requests.

    `reshaped` has the model's row shapes of inputs that clients send in other shapes. `dims` has
    the shapes of outputs that clients get in other shapes than the model's. In both `num_rows_axes`
    axes of the batch come first.
    """

    instance: ModelInstanceState
    signature: Signature
    max_batch_size: int
    joins: bool
    reshaped: Mapping[str, tuple[int, ...]]
    dims: Mapping[str, tuple[int, ...]]
    num_rows_axes: int

    def reshape(
        self, arrays: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, Array]:
        """Return the arrays, with the row shapes in `shapes` for those that are in it."""
        return {
            name: array.reshape((*array.shape[: self.num_rows_axes], *shapes[name]))
            if name in shapes
            else array
            for name, array in arrays.items()
        }


def load(
    source: ModelSource,
    folder: Path,
    processes: int,
    *,
    isolated: bool = False,
    start: ServerStart | None = None,
) -> Loaded:
    """Load a version. Raises ModelConfigError that names what is wrong with it.

    The cores are shared among `processes` processes. `isolated` computes in a child process, unless
    the model's `sim_isolation` says otherwise. `start` is the start of the server, if that is not
    over.
    """
    config = _read_config(source)
    if config.get("backend", "") not in _BACKENDS:
        raise ModelConfigError(
            f"model {source.name!r} is for the backend {config['backend']!r}; expected poplar: "
            "serve it with Triton, see --triton"
        )
    config["instance_group"] = [{"count": processes}]
    if isolated:
        config["parameters"] = {**_ISOLATED, **config.get("parameters", {})}
    config.update(complete_config(config, folder))
    state = ModelState(config, folder, BackendState(start=start))
    state.validate()
    instance = ModelInstanceState(state, source.name)
    batched = (-1,) if state.max_batch_size else ()
    inputs, outputs = config.get("input", []), config.get("output", [])
    specs = [
        {
            entry["name"]: make_spec(
                tensors[entry["name"]].dtype,
                (*batched, *_sizes(entry["dims"])),
                is_batched=bool(batched),
                is_scalar="reshape" in entry and not entry["reshape"].get("shape"),
            )
            for entry in entries
        }
        for entries, tensors in ((inputs, state.inputs), (outputs, state.outputs))
    ]
    optional = frozenset(entry["name"] for entry in inputs if entry.get("optional"))
    return Loaded(
        instance,
        Signature(specs[0], specs[1], optional),
        state.max_batch_size,
        "dynamic_batching" in config,
        {
            entry["name"]: _sizes(entry["reshape"].get("shape", ()))
            for entry in inputs
            if "reshape" in entry
        },
        {
            entry["name"]: _sizes(entry["dims"])
            for entry in outputs
            if "reshape" in entry and not specs[1][entry["name"]].num_ones
        },
        len(batched),
    )


class LocalModels:
    """Models from folders (see Models). One thread calls `refresh`; any thread may call the other
    methods."""

    def __init__(
        self,
        sources: Sequence[ModelSource],
        processes: int = 1,
        retries: Retries | None = None,
        *,
        isolated: bool = False,
        start: ServerStart | None = None,
    ) -> None:
        self._start = start
        self._processes = processes
        self._isolated = isolated
        self._retries = retries or Retries()
        self._models = {source.name: _ServedModel(source) for source in sources}
        self._closing: list[threading.Thread] = []

    def find(self, spec: ModelSpec, _: Call) -> LocalServable:
        model = self._models.get(spec.name)
        if model is None:
            raise not_served(spec, spec.version)
        version = find_version(spec, model.source.labels)
        servable = model.newest() if version is None else model.served.get(version)
        if servable is None:
            raise not_served(spec, version)
        return servable

    def list_versions(self, spec: ModelSpec, _: Call) -> list[VersionStatus]:
        model = self._models.get(spec.name)
        if model is None:
            raise not_known(spec, spec.version)
        version = find_version(spec, model.source.labels)
        statuses = [
            status
            for number, status in sorted(model.statuses.items(), reverse=True)
            if version in (None, number)
        ]
        if not statuses:
            raise not_known(spec, version)
        return statuses

    def refresh(self) -> None:
        """Update the served versions from the folders: load new ones, then close those that are no
        longer to be served."""
        for model in self._models.values():
            self._refresh(model)
        self._start = None  # only the first loads hold up the start

    def iter_statistics(self) -> Iterator[tuple[str, list[Statistics]]]:
        """Yield what all versions of each model have counted in this process, including closed
        ones."""
        for name, model in self._models.items():
            for servable in model.served.values():
                servable.read_statistics()
            yield name, list(model.statistics)

    @property
    def failures(self) -> list[tuple[str, VersionStatus]]:
        """Versions that did not load."""
        return [
            (name, status)
            for name, model in self._models.items()
            for status in model.statuses.values()
            if status.state is VersionState.END and status.code is not Code.OK
        ]

    @property
    def absences(self) -> list[tuple[str, str]]:
        """Models without any version, and why."""
        return [
            (name, model.complaint or f"no version folder, such as 1, in {model.source.folder}")
            for name, model in self._models.items()
            if not model.statuses
        ]

    def check_labels(self) -> None:
        """Raise ServingError for a label of a version that is not served."""
        for name, model in self._models.items():
            for label, version in model.source.labels.items():
                if version not in model.served:
                    raise ServingError(
                        Code.FAILED_PRECONDITION,
                        f"label {label!r} of model {name!r} is for version {version}, which is not "
                        f"served; expected one of {sorted(model.served)}, or "
                        "--allow_version_labels_for_unavailable_models",
                    )

    def close(self) -> None:
        """Close all models after their requests are answered."""
        for model in self._models.values():
            for version in model.served:
                self._give_up(model, version, after_seconds=0)
        for thread in self._closing:
            thread.join()

    def _refresh(self, model: _ServedModel) -> None:
        try:
            versions, policy = _look_into(model.source)
        except (OSError, SimIpuError) as error:
            # A folder that cannot be read now may still have models.
            model.complain(str(error))
            return
        chosen = policy.choose(versions)
        for version in sorted(chosen - model.served.keys()):
            if self._retries.allow(model, version):
                self._load(model, version, versions[version])
        # Until a wanted version loads, an older version is better than none.
        if not chosen or chosen & model.served.keys():
            for version in model.served.keys() - chosen:
                self._give_up(model, version, LEAVE_SECONDS)
        for version in model.statuses.keys() - chosen - model.served.keys():
            if version not in versions:
                model.forget(version)
                self._retries.forget(model, version)

    def _load(self, model: _ServedModel, version: int, folder: Path) -> None:
        model.note(VersionStatus(version, VersionState.LOADING))
        try:
            loaded = load(
                model.source, folder, self._processes, isolated=self._isolated, start=self._start
            )
            servable = LocalServable(loaded, model.source.name, version)
        except Exception as error:  # noqa: BLE001  whatever it is, the other models are served
            what = str(error) if isinstance(error, (ModelConfigError, SimIpuError)) else repr(error)
            model.complain(f"version {version} does not load: {what}")
            model.note(VersionStatus(version, VersionState.END, Code.INVALID_ARGUMENT, what))
            if NOT_TRIED in what:
                self._retries.forget(model, version)  # the start was over: it is loaded next
        else:
            self._retries.forget(model, version)
            model.statistics.append(servable.statistics)
            model.served = {**model.served, version: servable}
            model.note(VersionStatus(version, VersionState.AVAILABLE))
            _log.info("model %r version %d is served", model.source.name, version)

    def _give_up(self, model: _ServedModel, version: int, after_seconds: float) -> None:
        """Stop serving a version, and close it after its requests are answered, including those
        that have found it but not yet started."""
        servable = model.served[version]
        model.served = {
            number: served for number, served in model.served.items() if number != version
        }
        model.note(VersionStatus(version, VersionState.UNLOADING))
        servable.read_statistics()  # what it answers from now on is counted when it is closed

        def close() -> None:
            time.sleep(after_seconds)
            servable.close()
            model.note_end(version)
            _log.info("model %r version %d is unloaded", model.source.name, version)

        thread = threading.Thread(target=close, name=f"close {model.source.name}", daemon=True)
        self._closing = [*(closing for closing in self._closing if closing.is_alive()), thread]
        thread.start()


@dataclass(slots=True)
class Retries:
    """Limits of retries for a version that did not load: how often, and after how many seconds;
    below 0 means at once."""

    most: int = 5
    seconds: float = 60.0
    _failed: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)

    def allow(self, model: _ServedModel, version: int) -> bool:
        """Return whether to load a version now, and count the attempt."""
        key = model.source.name, version
        now = time.monotonic()
        count, next_time = self._failed.get(key, (0, float("-inf")))
        if count > self.most or now < next_time:
            return False
        self._failed[key] = count + 1, now + self.seconds
        return True

    def forget(self, model: _ServedModel, version: int) -> None:
        """Forget the failures of a version that has loaded or is gone. A version in its place
        starts a new count."""
        self._failed.pop((model.source.name, version), None)


@dataclass(slots=True)
class _ServedModel:
    """State of a model. Tables are replaced, never changed, because other threads read them."""

    source: ModelSource
    served: Mapping[int, LocalServable] = field(default_factory=dict)
    statuses: Mapping[int, VersionStatus] = field(default_factory=dict)
    statistics: list[Statistics] = field(default_factory=list)
    """Statistics of all versions that were ever served."""
    complaint: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def newest(self) -> LocalServable | None:
        """Return the newest of the versions that are served."""
        served = self.served
        return served[max(served)] if served else None

    def note(self, status: VersionStatus) -> None:
        """Record the current state of a version."""
        with self._lock:
            self.statuses = {**self.statuses, status.version: status}

    def note_end(self, version: int) -> None:
        """Record that an unloaded version is closed. It may have been loaded again, or forgotten,
        meanwhile."""
        with self._lock:
            status = self.statuses.get(version)
            if status is not None and status.state is VersionState.UNLOADING:
                self.statuses = {**self.statuses, version: VersionStatus(version, VersionState.END)}

    def complain(self, text: str) -> None:
        """Log a complaint, once for the same text."""
        if text != self.complaint:
            self.complaint = text
            _log.warning("model %r: %s", self.source.name, text)

    def forget(self, version: int) -> None:
        """Forget a version whose folder is gone."""
        with self._lock:
            self.statuses = {
                number: status for number, status in self.statuses.items() if number != version
            }


def _look_into(source: ModelSource) -> tuple[Mapping[int, Path], VersionPolicy]:
    """Return the folders of the existing versions, and the policy that chooses which are served. If
    one version has several folders, the one with the fewest zeros counts."""
    folders = {
        int(entry.name): entry
        for entry in sorted(source.folder.iterdir(), key=lambda entry: -len(entry.name))
        if _VERSION.fullmatch(entry.name) and int(entry.name) <= _MAX_VERSION and entry.is_dir()
    }
    return folders, source.policy or _read_policy(source)


def _read_config(source: ModelSource) -> dict[str, Any]:
    """Return the configuration of a model in Triton's JSON form, or only its name if it has
    none."""
    file = source.folder / MODEL_FILE
    if not file.is_file():
        return {"name": source.name}
    config = MessageToDict(read_config(file), preserving_proto_field_name=True)
    return {**config, "name": source.name}


def _read_policy(source: ModelSource) -> VersionPolicy:
    """Return the configured version policy. The default is the newest version, as in Triton."""
    policy = _read_config(source).get("version_policy", {})
    if "all" in policy:
        return VersionPolicy(latest=None)
    if "specific" in policy:
        return VersionPolicy(
            specific=frozenset(int(number) for number in policy["specific"].get("versions", ()))
        )
    return VersionPolicy(latest=int(policy.get("latest", {}).get("num_versions", 1)))


def _sizes(words: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in words)
