"""Models: the blobs that belong together, bound by the executable's name."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .errors import PopefError
from .reader import ExecutableReader, FeedReader, OpaqueReader, Reader, TensorReader
from .types import Metadata

AnyData = TypeVar("AnyData", TensorReader, FeedReader)

_log = logging.getLogger("popef")


@dataclass(frozen=True, slots=True)
class Model:
    """Everything one model needs to run; keep the reader it came from open while payloads are still to be read."""

    executable: ExecutableReader
    metadata: Metadata
    tensors: list[TensorReader]
    feeds: list[FeedReader]
    opaqueBlobs: list[OpaqueReader]


class ModelBuilder:
    """Finds the models in what a reader has parsed, from one file or several."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def createModel(self, name: str | None = None) -> Model:
        """The model of the executable called `name`, or of the only one there is.

        Metadata and opaque blobs belong to it by the executable's name, tensors and feeds by the name of one of its
        anchors. Raises PopefError, naming the candidates, when something is missing or not unique.
        """
        model = self._bind(self._executable(name))
        self._warn_of_strays()
        return model

    def createModels(self) -> list[Model]:
        """The models of all executables, in file order; raises PopefError as `createModel` does."""
        models = [
            self._bind(self._executable(name)) for name in dict.fromkeys(each.name for each in self._reader.executables())
        ]
        self._warn_of_strays()
        return models

    def _bind(self, executable: ExecutableReader) -> Model:
        metadata = self._metadata(executable.name)
        anchors = {anchor.name for anchor in metadata.anchors}
        return Model(
            executable,
            metadata,
            _belonging(executable.name, "tensor", self._reader.tensors(), anchors),
            _belonging(executable.name, "feed", self._reader.feeds(), anchors),
            [opaque for opaque in self._reader.opaqueBlobs() if opaque.executable == executable.name],
        )

    def _executable(self, name: str | None) -> ExecutableReader:
        executables = self._reader.executables()
        found = [executable for executable in executables if name in (None, executable.name)]
        if len(found) == 1:
            return found[0]
        wanted = "one executable" if name is None else f"one executable called {name!r}"
        advice = "parse the file that holds it" if not found else "name one, or parse each model on its own"
        raise PopefError(
            f"model: expected {wanted}, got {len(found)} among {_names(each.name for each in executables)}; {advice}"
        )

    def _metadata(self, name: str) -> Metadata:
        metadata = self._reader.metadata()
        found = [each for each in metadata if each.executable == name]
        if len(found) == 1:
            return found[0]
        candidates = _names(each.executable for each in metadata)
        raise PopefError(
            f"model {name!r}: expected one metadata blob for it, got {len(found)} among those for {candidates}; "
            "parse the files of one export together, each once"
        )

    def _warn_of_strays(self) -> None:
        anchors = {anchor.name for metadata in self._reader.metadata() for anchor in metadata.anchors}
        names = [tensor.info.name for tensor in self._reader.tensors()] + [feed.info.name for feed in self._reader.feeds()]
        strays = [name for name in names if name not in anchors]
        if strays:
            _log.warning("data for %s fits no anchor of any model and is left out", _names(strays))


def _belonging(model: str, kind: str, data: Sequence[AnyData], anchors: Collection[str]) -> list[AnyData]:
    found: dict[str, AnyData] = {}
    for each in data:
        name = each.info.name
        if name in found:
            places = f"{found[name].blob.label} and {each.blob.label}"
            raise PopefError(f"model {model!r}: expected one {kind} {name!r}, got {places}; parse the files of one model only")
        if name in anchors:
            found[name] = each
    return list(found.values())


def _names(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(repr(name) for name in names[:10]) or "none"
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"
