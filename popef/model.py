"""Models: the blobs of one executable, found by its name."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from .anchors import user_anchors
from .enums import TensorType
from .errors import PopefError
from .reader import ExecutableReader, FeedReader, OpaqueReader, Reader, TensorReader
from .source import Source
from .types import Anchor, Metadata

AnyData = TypeVar("AnyData", TensorReader, FeedReader)
T = TypeVar("T")
_Reader = TensorReader | FeedReader | OpaqueReader

_MAX_SHOWN = 10
"""Maximum number of names that an error lists."""

_log = logging.getLogger("popef")


@dataclass(frozen=True, slots=True)
class Model:
    """Everything that one model needs to run. Keep its reader open while payloads are still to be
    read.

    Args:
        executable: the executable.
        metadata: its metadata: anchors, programs and options.
        tensors: the data of its weights and frozen inputs.
        feeds: the data of its feeds.
        opaqueBlobs: further data that belong to it.
    """

    executable: ExecutableReader
    metadata: Metadata
    tensors: list[TensorReader]
    feeds: list[FeedReader]
    opaqueBlobs: list[OpaqueReader]

    def sources(self) -> list[Source]:
        """Return the files that hold the payloads, each once (our addition)."""
        blobs = [self.executable.blob]
        blobs += [
            reader.blob for reader in chain[_Reader](self.tensors, self.feeds, self.opaqueBlobs)
        ]
        return list(dict.fromkeys(blob.source for blob in blobs))

    def frozen_inputs(self) -> dict[str, TensorReader]:
        """Return the tensors of the frozen inputs by name.

        A frozen input is an input anchor of a main program whose data is in the files, so requests
        do not provide it (our addition; the real library's guide only names frozen inputs).
        """
        data = {str(tensor.info.name): tensor for tensor in self.tensors}
        names = [anchor.name for anchor in user_anchors(self.metadata, TensorType.INPUT)]
        return {name: data[name] for name in names if name in data}

    def user_anchors(self, kind: TensorType) -> list[Anchor]:
        """Return the anchors that callers of the main programs feed or fetch, without frozen inputs
        (our addition)."""
        frozen = self.frozen_inputs()
        return [anchor for anchor in user_anchors(self.metadata, kind) if anchor.name not in frozen]


class ModelBuilder:
    """Finder of the models among the blobs of a reader, from one file or several.

    Args:
        reader: the reader that has parsed the files.

    Example:
        >>> import popef
        >>> with popef.Reader() as reader:
        ...     reader.parseFile("model.popef")
        ...     model = popef.ModelBuilder(reader).createModel()
        ...     [str(anchor.name) for anchor in model.user_anchors(popef.TensorType.INPUT)]
        ['x']
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def createModel(self, name: str | None = None) -> Model:
        """Return the model of the executable called `name`, or of the only executable.

        Metadata and opaque blobs belong to it by the executable's name, tensors and feeds by the
        name of one of its anchors.

        Args:
            name: name of the executable; None if there is only one.

        Returns:
            The model.

        Raises:
            PopefError: with the candidates, if a part is missing or not unique.
        """
        parts = _Parts(self._reader)
        return parts.bind(parts.choose(name))

    def createModels(self) -> list[Model]:
        """Return the models of all executables.

        Returns:
            The models in file order.

        Raises:
            PopefError: as `createModel` does.
        """
        parts = _Parts(self._reader)
        return [parts.bind(parts.choose(name)) for name in parts.executables]


class _Parts:
    """Content of a reader, by the names that connect it."""

    def __init__(self, reader: Reader) -> None:
        self.executables = _by_name((each.name, each) for each in reader.executables())
        self._metadata = _by_name((each.executable, each) for each in reader.metadata())
        self._opaque_blobs = _by_name((each.executable, each) for each in reader.opaqueBlobs())
        self._tensors = _by_name((each.info.name, each) for each in reader.tensors())
        self._feeds = _by_name((each.info.name, each) for each in reader.feeds())
        self._warn_of_strays()

    def choose(self, name: str | None) -> ExecutableReader:
        found = (
            list(chain(*self.executables.values()))
            if name is None
            else self.executables.get(name, [])
        )
        if len(found) == 1:
            return found[0]
        wanted = "one executable" if name is None else f"one executable called {name!r}"
        advice = (
            "parse the file that holds it"
            if not found
            else "name one, or parse each model on its own"
        )
        candidates = [each for each, readers in self.executables.items() for _ in readers]
        raise PopefError(
            f"model: expected {wanted}, got {len(found)} among {_names(candidates)}; {advice}"
        )

    def bind(self, executable: ExecutableReader) -> Model:
        name = executable.name
        metadata = self._metadata.get(name, [])
        if len(metadata) != 1:
            candidates = _names([each for each, blobs in self._metadata.items() for _ in blobs])
            raise PopefError(
                f"model {name!r}: expected one metadata blob for it, got {len(metadata)} among "
                f"those for {candidates}; parse the files of one export together, each once"
            )
        anchors = dict.fromkeys(anchor.name for anchor in metadata[0].anchors)
        tensors, feeds = (
            _data(name, "tensor", self._tensors, anchors),
            _data(name, "feed", self._feeds, anchors),
        )
        return Model(executable, metadata[0], tensors, feeds, self._opaque_blobs.get(name, []))

    def _warn_of_strays(self) -> None:
        anchors = {
            anchor.name
            for blobs in self._metadata.values()
            for metadata in blobs
            for anchor in metadata.anchors
        }
        strays = [name for name in (*self._tensors, *self._feeds) if name not in anchors]
        if strays:
            _log.warning(
                "data for %s matches no anchor of any model and is ignored", _names(strays)
            )


def _by_name(named: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for name, each in named:
        found.setdefault(name, []).append(each)
    return found


def _data(
    model: str, kind: str, data: Mapping[str, list[AnyData]], anchors: Iterable[str]
) -> list[AnyData]:
    found = []
    for name in anchors:
        readers = data.get(name, [])
        if len(readers) > 1:
            places = " and ".join(reader.blob.label for reader in readers[:2])
            raise PopefError(
                f"model {model!r}: expected one {kind} {name!r}, got {places}; parse the files of "
                "one model only"
            )
        found += readers
    return sorted(found, key=lambda reader: (reader.blob.source.name, reader.blob.index))


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_MAX_SHOWN]) or "none"
    return shown if len(names) <= _MAX_SHOWN else f"{shown} and {len(names) - _MAX_SHOWN} more"
