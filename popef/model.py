"""Models: the blobs of one executable, found by its name, and facts about the rows of its batch.

poprt finds these facts. A server needs them, without reading the executable, to decide if it may
join the rows of different requests. They are in an opaque blob beside the executable, which is
ours; files of other tools have none, and then nothing is known about their rows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

from .anchors import user_anchors
from .enums import TensorType
from .errors import PopefError
from .reader import ExecutableReader, FeedReader, OpaqueReader, Reader, TensorReader
from .source import Source
from .types import Anchor, Metadata
from .wire import WORD_BYTES

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
        self.executables = _by_name(
            (executable.name, executable) for executable in reader.executables()
        )
        self._metadata = _by_name((metadata.executable, metadata) for metadata in reader.metadata())
        self._opaque_blobs = _by_name((blob.executable, blob) for blob in reader.opaqueBlobs())
        self._tensors = _by_name((tensor.info.name, tensor) for tensor in reader.tensors())
        self._feeds = _by_name((feed.info.name, feed) for feed in reader.feeds())
        self._warn_of_strays()

    def choose(self, name: str | None) -> ExecutableReader:
        every = list(chain(*self.executables.values()))
        readers_of_name = every if name is None else self.executables.get(name, [])
        if len(readers_of_name) == 1:
            return readers_of_name[0]
        expected = "one executable" if name is None else f"one executable called {name!r}"
        advice = (
            "parse the file that holds it"
            if not readers_of_name
            else "name one, or parse each model on its own"
        )
        candidates = [candidate for candidate, readers in self.executables.items() for _ in readers]
        raise PopefError(
            f"model: expected {expected}, got {len(readers_of_name)} among "
            f"{_names(candidates)}; {advice}"
        )

    def bind(self, executable: ExecutableReader) -> Model:
        name = executable.name
        metadata = self._metadata.get(name, [])
        if len(metadata) != 1:
            candidates = _names(
                [candidate for candidate, blobs in self._metadata.items() for _ in blobs]
            )
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


def _by_name(named_items: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    items: dict[str, list[T]] = {}
    for name, item in named_items:
        items.setdefault(name, []).append(item)
    return items


def _data(
    model: str, kind: str, data: Mapping[str, list[AnyData]], anchors: Iterable[str]
) -> list[AnyData]:
    tensors = []
    for name in anchors:
        readers = data.get(name, [])
        if len(readers) > 1:
            places = " and ".join(reader.blob.label for reader in readers[:2])
            raise PopefError(
                f"model {model!r}: expected one {kind} {name!r}, got {places}; parse the files of "
                "one model only"
            )
        tensors += readers
    return sorted(tensors, key=lambda reader: (reader.blob.source.name, reader.blob.index))


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_MAX_SHOWN]) or "none"
    return shown if len(names) <= _MAX_SHOWN else f"{shown} and {len(names) - _MAX_SHOWN} more"


ROWS_BLOB = "simipu.rows"
"""Name of the opaque blob."""
_MAX_BYTES = 1 << 20
"""Maximum size of the JSON in an opaque blob: names of tensors need some KB."""
_FROZEN = "the files contain data of inputs, which can differ from row to row"
_UNKNOWN = "the file does not say that they are independent"


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Facts about the rows of one model.

    Args:
        dependence: why the rows of a batch are not proven to be independent, with the node's name;
            None if they are.
        batch_axes: the batch axis by anchor, for anchors whose batch axis is not the first.
    """

    dependence: str | None = _UNKNOWN
    batch_axes: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the payload of the blob, padded with blanks to whole words.

        The padding keeps the next blob of the file at a place where it can be mapped.
        """
        payload = json.dumps(
            {"dependence": self.dependence, "batch_axes": dict(self.batch_axes)}, sort_keys=True
        ).encode()
        return payload + b" " * (-len(payload) % WORD_BYTES)

    def with_frozen(self, shapes: Iterable[tuple[int, ...]]) -> RowFacts:
        """Return the facts of a model whose files hold the data of some inputs.

        `shapes` are those of the remaining inputs. Rows lie along the first axis if all shapes
        share its size. The effect of the data on the rows is found when the model is loaded.
        """
        return RowFacts(_FROZEN, {} if batch_size(shapes) else self.batch_axes)

    def axis(self, anchor: str) -> int:
        """Return the batch axis of an anchor's tensor."""
        return self.batch_axes.get(anchor, 0)


def read_rows(model: Model) -> RowFacts:
    """Return the facts that the files of a model give about its rows.

    Args:
        model: the model, whose reader must be open.

    Returns:
        The facts; "not known to be independent" if the files have none.

    Raises:
        PopefError: for a blob that does not have the form of `RowFacts.encode`.
    """  # noqa: DOC501  the ValueError is caught below
    blobs = [blob for blob in model.opaqueBlobs if blob.name == ROWS_BLOB]
    if not blobs:
        return RowFacts()
    blob = blobs[0]
    ranks = {anchor.name(): len(anchor.tensorInfo().shape()) for anchor in model.metadata.anchors()}
    try:
        if len(blobs) > 1 or blob.getAvailableReadSize() > _MAX_BYTES:
            raise ValueError(
                f"{len(blobs)} blobs, the first of {blob.getAvailableReadSize()} bytes"
            )
        return _decode(json.loads(bytes(blob.data())), ranks)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise PopefError(
            f"{blob.blob.label}: expected one JSON object of at most {_MAX_BYTES} bytes with "
            f"dependence (text or null) and batch_axes (axes by anchor), found {str(error)[:200]}; "
            "compile the model again with poprt"
        ) from error


def batch_size(shapes: Iterable[tuple[int, ...]], axes: Iterable[int] | None = None) -> int:
    """Return the compiled batch size: the size of all shapes along their batch axes.

    Args:
        shapes: the shapes of the tensors.
        axes: the batch axis of each shape; None means the first of each.

    Returns:
        The common size, or 0 if the sizes differ.

    Raises:
        ValueError: if there are not as many axes as shapes.

    Example:
        >>> import popef
        >>> popef.batch_size([(8, 3), (8, 1)]), popef.batch_size([(8, 3), (4, 1)])
        (8, 0)
    """
    placed = (
        [(shape, 0) for shape in shapes] if axes is None else list(zip(shapes, axes, strict=True))
    )
    sizes = {shape[axis] if shape else 0 for shape, axis in placed}
    return sizes.pop() if len(sizes) == 1 else 0


def _decode(document: dict[str, object], ranks: Mapping[str, int]) -> RowFacts:
    dependence, axes = document["dependence"], document["batch_axes"]
    if not isinstance(dependence, (str, type(None))) or not isinstance(axes, dict):
        raise TypeError(f"dependence {dependence!r}, batch_axes {axes!r}")
    for name, axis in axes.items():
        if type(axis) is not int or not 0 <= axis < ranks[name]:
            raise ValueError(f"axis {axis!r} for anchor {name!r}")
    return RowFacts(dependence, axes)
