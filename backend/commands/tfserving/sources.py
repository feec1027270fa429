"""Where a served model comes from: its folder, which versions of it, and what they are also called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from commands.tfserving.errors import Code, ServingError
from commands.tfserving.models import ModelSpec
from popef.text import MOST_NAME_CHARACTERS, escape


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which of the versions that are there are served: the newest so many, those in `specific`, or with
    neither all of them."""

    latest: int | None = 1
    specific: frozenset[int] = frozenset()

    def choose(self, versions: Iterable[int]) -> set[int]:
        """Those to be served."""
        found = sorted(versions, reverse=True)
        if self.specific:
            return set(self.specific.intersection(found))
        return set(found if self.latest is None else found[: self.latest])


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model: `folder` holds a folder for each version, named by its number. `policy` None: what its
    config.pbtxt says, or the newest version. `labels` are other names of versions."""

    name: str
    folder: Path
    policy: VersionPolicy | None = None
    labels: Mapping[str, int] = field(default_factory=dict)


def find_version(spec: ModelSpec, labels: Mapping[str, int]) -> int | None:
    """The version that a request asks for, by number or by label; None for the newest. ServingError for a
    label that there is not."""
    if spec.label is None:
        return spec.version
    version = labels.get(spec.label)
    if version is None:
        raise ServingError(
            Code.INVALID_ARGUMENT,
            f"Unrecognized servable version label: {escape(spec.label, MOST_NAME_CHARACTERS)}",
        )
    return version


def not_served(spec: ModelSpec, version: int | None) -> ServingError:
    """The error of a request for a model, or a version of it, that is not served."""
    name = escape(spec.name, MOST_NAME_CHARACTERS)
    which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
    return ServingError(Code.NOT_FOUND, f"Servable not found for request: {which}")


def not_known(spec: ModelSpec, version: int | None) -> ServingError:
    """The error of a question how a model's versions stand that has none, or not this one."""
    which = "any versions" if version is None else f"version {version}"
    return ServingError(
        Code.NOT_FOUND, f"Could not find {which} of model {escape(spec.name, MOST_NAME_CHARACTERS)}"
    )
