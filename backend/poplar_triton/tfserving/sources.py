"""Sources of served models: the folder of each, its versions to serve, and their labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from popef._tools.text import MAX_NAME_CHARACTERS, escape
from poplar_triton.tfserving.errors import Code, ServingError
from poplar_triton.tfserving.models import ModelSpec


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Policy that chooses which of the existing versions are served: the newest `latest`, those in
    `specific`, or with neither all of them."""

    latest: int | None = 1
    specific: frozenset[int] = frozenset()

    def choose(self, versions: Iterable[int]) -> set[int]:
        """Return the versions to serve."""
        found = sorted(versions, reverse=True)
        if self.specific:
            return set(self.specific.intersection(found))
        return set(found if self.latest is None else found[: self.latest])


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Source of a model. `folder` holds a folder for each version, named by its number. `policy`
    None means that of its config.pbtxt, or the newest version. `labels` are other names of
    versions."""

    name: str
    folder: Path
    policy: VersionPolicy | None = None
    labels: Mapping[str, int] = field(default_factory=dict)


def find_version(spec: ModelSpec, labels: Mapping[str, int]) -> int | None:
    """Return the version that a request names, by number or by label, or None for the newest.
    Raises ServingError for an unknown label."""
    if spec.label is None:
        return spec.version
    version = labels.get(spec.label)
    if version is None:
        raise ServingError(
            Code.INVALID_ARGUMENT,
            f"Unrecognized servable version label: {escape(spec.label, MAX_NAME_CHARACTERS)}",
        )
    return version


def not_served(spec: ModelSpec, version: int | None) -> ServingError:
    """Return the error of a request for a model, or a version of it, that is not served."""
    name = escape(spec.name, MAX_NAME_CHARACTERS)
    which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
    return ServingError(Code.NOT_FOUND, f"Servable not found for request: {which}")


def not_known(spec: ModelSpec, version: int | None) -> ServingError:
    """Return the error of a status request for a model that has no versions, or not this one."""
    which = "any versions" if version is None else f"version {version}"
    return ServingError(
        Code.NOT_FOUND, f"Could not find {which} of model {escape(spec.name, MAX_NAME_CHARACTERS)}"
    )
