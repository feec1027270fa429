"""State of a file, by which a program sees whether it opens the same file again."""

from __future__ import annotations

import os
from typing import NamedTuple


class FileState(NamedTuple):
    """State of a file, from the system. It differs if another file has taken the path, or if the
    file was written to."""

    device: int
    number: int
    size: int
    modified_ns: int
    changed_ns: int
    """Time of the last change of the bytes, the name, the rights or the other times: no program can
    set it."""

    @classmethod
    def of(cls, file: int | str | os.PathLike[str]) -> FileState:
        """Return the state of an open file, or of the file at a path. Raises OSError."""
        facts = os.stat(file)
        return cls(facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)

    def __str__(self) -> str:
        return f"{self.size} bytes, modified at {self.modified_ns / 1e9:.3f}"
