"""Where blobs are written to, one at a time: a path or a binary file object, whether it can seek or not.

Knows no kinds of blobs: `writer.py` says what is in them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from typing import BinaryIO, Protocol

from .errors import PopefError
from .staging import StagedFile

_SPOOL_BYTES = 16 << 20
"""Payload kept in memory, before it goes to a temporary file, when the file cannot seek."""


class Part(Protocol):
    """What is being written; beginning another one closes it."""

    def close(self) -> None:
        """Finish it."""


class Sink:
    """One file that is being written, and the part of it that is not finished yet.

    An error spoils it: what was begun stays unfinished, and a path stays as it was.
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
        # A file in append mode says that it seeks, and then writes at its end all the same.
        self._patches = self._stream.seekable() and "a" not in str(getattr(self._stream, "mode", ""))
        self._spool: BinaryIO | None = None

    def begin(self, part: Part | None) -> None:
        """Make `part` the one that is being written; the one before is closed."""
        if self._closed:
            raise PopefError("writer: expected an open writer, got a closed one; make a new Writer")
        self._finish_part()
        self._part = part

    def is_writing(self, part: Part) -> bool:
        """Whether the part is begun and not finished."""
        return self._part is part

    def require(self, part: Part) -> None:
        """Raise PopefError unless `part` is the one that is being written."""
        if self._part is not part:
            raise PopefError(
                "write: expected the blob begun last, got a finished one; write to one blob at a time"
            )

    def finish(self) -> None:
        """The part that is being written is whole."""
        self._part = None

    def put_head(self, head: bytes, *, final: bool) -> int:
        """Write the head of a blob; gives where, for `replace_head`, unless it is `final`.

        Where nothing can be written over, a head that is not final waits, and the payload with it.
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
        """Append to the payload."""
        (self._spool or self._stream).write(data)

    def replace_head(self, start: int, head: bytes) -> None:
        """Write the final head of the blob that begins at `start`, which is finished with it."""
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
        """Append whole blobs as they are; an error spoils the file."""
        self.begin(None)
        try:
            for chunk in chunks:
                self._stream.write(chunk)
        except BaseException:
            self.spoil()
            raise

    def make_spool(self) -> BinaryIO:
        """A temporary file, where the file itself is going to be if that is known: there is room for it."""
        folder = os.path.dirname(self._staged.target) if self._staged is not None else None
        return tempfile.SpooledTemporaryFile(_SPOOL_BYTES, dir=folder)  # type: ignore[return-value]

    def spoil(self) -> None:
        """The file is wrong, and will not appear."""
        self._spoiled, self._part = True, None

    def close(self) -> None:
        """Finish the part being written and let the file appear; does nothing the second time.

        Raises PopefError when an earlier error spoiled the file, which then does not appear.
        """
        if self._closed:
            return
        try:
            self._finish_part()
            if self._spoiled:
                raise PopefError(
                    "close: expected a file without errors, got one an error spoiled; write it again"
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
        """Give up: a path stays as it was; what went into a file object stays there."""
        self._closed, self._part = True, None
        if self._staged is not None:
            self._staged.discard()

    def _finish_part(self) -> None:
        if self._part is not None:
            self._part.close()
