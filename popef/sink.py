"""Destination of blobs, written one at a time: a path or a binary file object, seekable or not.

Knows no kinds of blobs; `writer.py` defines their content.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from typing import BinaryIO, Protocol

from ._tools.staging import StagedFile
from .errors import PopefError

_SPOOL_BYTES = 16 << 20
"""Payload bytes kept in memory, before a temporary file is used, if the file cannot seek."""


class Part(Protocol):
    """Part of a file that is being written; beginning another part closes it."""

    def close(self) -> None:
        """Finish the part."""


class Sink:
    """One file that is being written, and its unfinished part.

    After an error the unfinished part stays unfinished, and a path stays unchanged.
    """

    def __init__(self, file: str | os.PathLike[str] | BinaryIO) -> None:
        self._part: Part | None = None
        self._spoiled = self._closed = False
        self._staged: StagedFile | None = None
        self._stream: BinaryIO
        if isinstance(file, (str, os.PathLike)):
            self._staged = StagedFile(file)
            self._stream = self._staged.stream
        else:
            self._stream = file
        # A file in append mode claims to be seekable, but always writes at its end.
        self._patches = self._stream.seekable() and "a" not in str(
            getattr(self._stream, "mode", "")
        )
        self._spool: BinaryIO | None = None

    def begin(self, part: Part | None) -> None:
        """Close the current part and make `part` the current one."""
        if self._closed:
            raise PopefError(
                "writer: expected an open writer, got a closed one; create a new Writer"
            )
        self._finish_part()
        self._part = part

    def is_writing(self, part: Part) -> bool:
        """Return whether the part is begun and not finished."""
        return self._part is part

    def require(self, part: Part) -> None:
        """Raise PopefError unless `part` is the one that is being written."""
        if self._part is not part:
            raise PopefError(
                "write: expected the current blob, got a finished one; write to one blob at a time"
            )

    def finish(self) -> None:
        """Mark the current part as complete."""
        self._part = None

    def put_head(self, head: bytes, *, final: bool) -> int:
        """Write the head of a blob; return its place for `replace_head`, or 0 if the head is
        `final`.

        If the file cannot be patched, a head that is not final waits, and the payload with it.
        """
        if final:
            self._stream.write(head)
            return 0
        if self._patches:
            start = self._stream.tell()
            self._stream.write(head)
            return start
        self._spool = self.make_spool()
        return 0

    def put(self, data: bytes | memoryview) -> None:
        """Append `data` to the payload."""
        (self._spool or self._stream).write(data)

    def replace_head(self, start: int, head: bytes) -> None:
        """Write the final head of the blob that begins at `start`, and finish the blob."""
        self.finish()
        if self._spool is not None:
            self._stream.write(head)
            self._spool.seek(0)
            shutil.copyfileobj(self._spool, self._stream)
            self._spool.close()
            self._spool = None
            return
        end = self._stream.tell()
        self._stream.seek(start)
        self._stream.write(head)
        self._stream.seek(end)

    def copy(self, chunks: Iterable[bytes]) -> None:
        """Append whole blobs unchanged; an error spoils the file."""
        self.begin(None)
        try:
            for chunk in chunks:
                self._stream.write(chunk)
        except BaseException:
            self.spoil()
            raise

    def make_spool(self) -> BinaryIO:
        """Return a temporary file, in the target's folder if that is known, because there is room
        for the data."""
        folder = os.path.dirname(self._staged.target) if self._staged is not None else None
        return tempfile.SpooledTemporaryFile(_SPOOL_BYTES, dir=folder)  # type: ignore[return-value]

    def spoil(self) -> None:
        """Mark the file as wrong, so that it will not appear."""
        self._spoiled, self._part = True, None

    def close(self) -> None:
        """Finish the current part and make the file appear; do nothing on the second call.

        Raises PopefError if an earlier error spoiled the file, which then does not appear.
        """
        if self._closed:
            return
        try:
            self._finish_part()
            if self._spoiled:
                raise PopefError(
                    "close: expected a file without errors, but a previous write failed; write it "
                    "again"
                )
            if self._staged is None:
                self._stream.flush()
            else:
                self._staged.finish()
                self._staged.commit()
        except BaseException:
            self.discard()
            raise
        self._closed = True

    def discard(self) -> None:
        """Cancel: a path stays unchanged; data already in a file object stays there."""
        self._closed, self._part = True, None
        if self._staged is not None:
            self._staged.discard()

    def _finish_part(self) -> None:
        if self._part is not None:
            self._part.close()
