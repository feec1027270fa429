"""The table of a bulk run: the journal NAME.jsonl and the table NAME.csv that is made of it.

NAME.jsonl grows by one line per case, so that an interrupted run can continue. After the last case
both are rewritten in the order of the cases. So they are the same however the work was done.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from popef._tools.staging import Staging
from popef._tools.text import escape
from poplar_triton.errors import CommandError
from poplar_triton.profile.cases import ModelCase


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Result of a case: a profile in the form of `profile --json`, or the reason why there is
    none."""

    profile: Mapping[str, Any] | None
    error: str | None
    warnings: Sequence[str] = ()


_COLUMNS = (
    "target",
    "batch_size",
    "precision",
    "cycles",
    "latency_seconds",
    "seconds_per_batch",
    "samples_per_second",
    "host_seconds",
    "peak_tile_bytes",
    "tile_bytes",
    "fits",
    "partials_type",
)
"""Columns of the CSV file between the model and the error; the names are those of `profile
--json`."""
_SUFFIXES = (".csv", ".jsonl")
_ADVICE = "choose another --output, or remove the file to start again"


class Journal:
    """Rows by the keys of their cases, each written to disk as soon as it is known. Made by
    `open_journal`."""

    def __init__(self, stream: BinaryIO, name: Path) -> None:
        self.files = Path(f"{name}.jsonl"), Path(f"{name}.csv")
        self._stream = stream
        self._places: dict[str, tuple[int, int, bool]] = {}
        self._read()

    def add(self, case: ModelCase, result: CaseResult) -> None:
        """Append the row of a case."""
        key = case.key
        line = json.dumps({"key": key, **case.describe(), **asdict(result)}).encode() + b"\n"
        start = self._stream.seek(0, os.SEEK_END)
        self._stream.write(line)
        self._stream.flush()
        self._places[key] = start, len(line), result.error is not None

    def has(self, case: ModelCase, *, retrying: bool) -> bool:
        """Return whether the case is done: the journal has its row, and the row is not an error to
        retry."""
        place = self._places.get(case.key)
        return place is not None and not (retrying and place[2])

    def require_only(self, cases: Iterable[ModelCase]) -> None:
        """Raise CommandError if there are rows of other cases, which would be lost."""
        if foreign := self._places.keys() - {case.key for case in cases}:
            row = self._get(min(foreign))
            raise CommandError(
                f"{escape(self.files[0])}: expected rows of the models and settings of this "
                f"command, found {len(foreign)} others, such as {escape(row.get('model'), 200)} "
                f"by version {escape(row.get('version'), 50)}; {_ADVICE}"
            )

    def finish(self, cases: Iterable[ModelCase]) -> int:
        """Write both files completely, in the order of the cases, which all have their rows. Return
        the number of errors."""
        keys = [case.key for case in cases]
        with Staging() as staging:
            lines = staging.open(self.files[0])
            table = staging.open(self.files[1])
            table.write(_encode_cells(("model", *_COLUMNS, "error")))
            for key in keys:
                lines.write(self._get_line(key))
                table.write(_encode_cells(_cells(self._get(key))))
        return sum(self._places[key][2] for key in keys)

    def _get_line(self, key: str) -> bytes:
        start, size, _ = self._places[key]
        self._stream.seek(start)
        return self._stream.read(size)

    def _get(self, key: str) -> dict[str, Any]:
        row: dict[str, Any] = json.loads(self._get_line(key))
        return row

    def _read(self) -> None:
        """Read the existing rows. An incomplete last line was being written when a run was
        interrupted."""
        start = 0
        for number, line in enumerate(self._stream, 1):
            if not line.endswith(b"\n"):
                break
            key, failed = self._parse(number, line)
            self._places[key] = start, len(line), failed
            start += len(line)
        self._stream.truncate(start)

    def _parse(self, number: int, line: bytes) -> tuple[str, bool]:
        try:
            row = json.loads(line)
            return str(row["key"]), row["error"] is not None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CommandError(
                f"{escape(self.files[0])}, line {number}: expected a row of a profile, found "
                f"{escape(repr(line[:100]))}; {_ADVICE}"
            ) from error


@contextmanager
def open_journal(output: Path) -> Iterator[Journal]:
    """Open and lock the journal NAME.jsonl of the output NAME, NAME.csv or NAME.jsonl.

    Raises CommandError if another process has it open, and for a file that is not a journal.
    """
    name = output.with_suffix("") if output.suffix in _SUFFIXES else output
    file = Path(f"{name}.jsonl")
    while True:
        with file.open("a+b") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandError(
                    f"{escape(file)}: another run writes into it; wait for it, or choose another "
                    "--output"
                ) from None
            except OSError:  # a file system without locks
                pass
            if os.path.samestat(os.fstat(stream.fileno()), file.stat()):
                stream.seek(0)
                yield Journal(stream, name)
                return


def _cells(row: Mapping[str, Any]) -> list[object]:
    """Return a line of the table. The line of a failed case has the requested settings."""
    values = row["profile"] or row["settings"]
    return [row["model"], *(values.get(column) for column in _COLUMNS), row["error"]]


def _encode_cells(cells: Iterable[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(
        "" if cell is None else escape(cell) for cell in cells
    )
    return text.getvalue().encode()
