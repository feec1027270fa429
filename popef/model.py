"""Model and ModelBuilder: the blobs that belong together, bound by the executable's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from popef.errors import PopefError
from popef.reader import ExecutableReader, FeedReader, OpaqueReader, Reader, TensorReader
from popef.types import Metadata

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Model:
    """One executable with its metadata, its opaque blobs, and the tensor data and feeds of its anchors."""

    executable: ExecutableReader
    metadata: Metadata
    tensors: tuple[TensorReader, ...]
    feeds: tuple[FeedReader, ...]
    opaques: tuple[OpaqueReader, ...]


class ModelBuilder:
    """Binds the blobs of a reader to models."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def createModel(self, name: str | None = None) -> Model:
        """The model of the executable `name`, or of the only one.

        Raises PopefError, listing the candidates, when there is none, more than one, or no single metadata for it.
        """
        executables = [e for e in self._reader.executables() if name is None or e.name == name]
        executable = _only(executables, [e.name for e in executables or self._reader.executables()], "executable", name)
        every = self._reader.metadata()
        bound = [m for m in every if m.executable() == executable.name]
        metadata = _only(bound, [m.executable() for m in bound or every], "metadata for executable", executable.name)
        anchors = {anchor.name() for anchor in metadata.anchors()}
        return Model(
            executable,
            metadata,
            tuple(tensor for tensor in self._reader.tensors() if tensor.info.name() in anchors),
            tuple(feed for feed in self._reader.feeds() if feed.info.name() in anchors),
            tuple(opaque for opaque in self._reader.opaqueBlobs() if opaque.executable == executable.name),
        )


def _only(candidates: Sequence[T], names: Sequence[str], what: str, name: str | None) -> T:
    if len(candidates) == 1:
        return candidates[0]
    wanted = what if name is None else f"{what} {name!r}"
    found = ", ".join(repr(candidate) for candidate in names) or "none"
    if candidates:
        raise PopefError(f"expected one {wanted}, found {len(candidates)}: {found}; name one, or split the files")
    raise PopefError(f"expected one {wanted}, found none; there are: {found}")
