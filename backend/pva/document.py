"""Reading of `profile.pop`, the JSON document of `poplar-triton profile --tiles`.

A profile is input from strangers: its size, numbers and tree are bounded, and every index in it is
checked before anything uses it.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from pva.errors import Error

VERSION: Final = 1
"""Version of the document that this module reads."""
MAX_BYTES: Final = 64 << 20
MAX_STEPS: Final = 250_000
MAX_DEPTH: Final = 32
MAX_TILES_PER_IPU: Final = 4096
MAX_IPUS: Final = 256
MAX_NUMBER: Final = 1 << 53
"""Larger numbers are not exact in JSON."""
_CAUSES: Final = ("compute", "exchange", "sync", "host", "idle")
IPU_VERSIONS: Final = (1, 2, 21)
"""Generations of the chip, as PopEF's metadata has them."""
_SQLITE: Final = b"SQLite format 3\0"
_COMMAND: Final = "`poplar-triton profile MODEL --tiles profile.pop`"
_MAX_SHOWN: Final = 60

_PERMANENT: Final = ("weight", "constant", "handed on")
"""Kinds of variables that are always alive."""

Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Runs:
    """A number for each tile of an IPU: neighbouring tiles with the same one share an entry."""

    ends: tuple[int, ...]
    values: tuple[int, ...]

    def __getitem__(self, tile: int) -> int:
        return self.values[bisect_right(self.ends, tile)]

    @property
    def total(self) -> int:
        """Sum over all tiles."""
        starts = (0, *self.ends)
        return sum(
            (end - start) * value
            for start, end, value in zip(starts, self.ends, self.values, strict=False)
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the tiles of an IPU at its peak: of all categories, and of each."""

    tiles: Runs
    categories: dict[str, Runs]


@dataclass(frozen=True, slots=True)
class Steps:
    """Columns of the nodes, in the order in which they run."""

    name: tuple[str, ...]
    type: tuple[str, ...]
    vertex: tuple[str, ...]
    ipu: tuple[int, ...]
    sender: tuple[int, ...]
    """IPU that a copy between IPUs comes from; -1 for other nodes."""
    sync: tuple[int, ...]
    exchange: tuple[int, ...]
    compute: tuple[int, ...]
    tiles: tuple[int, ...]
    live_bytes: tuple[int, ...]
    received_bytes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True, slots=True)
class Variables:
    """Columns of the tensors on the chip."""

    name: tuple[str, ...]
    permanent: Flags
    """Whether the tensor is always alive."""
    bytes: Integers
    ipu: Integers
    first: Integers
    last: Integers


@dataclass(frozen=True, slots=True)
class Part:
    """Part of the program; `first` is greater than `last` where it has no steps of its own."""

    kind: str
    name: str
    first: int
    last: int
    num_bytes: int
    children: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """Content of a profile, checked."""

    model: str
    ipu_version: int
    replication_factor: int
    num_ipus: int
    tiles_per_ipu: int
    io_tiles: int
    tile_bytes: int
    clock_hz: int
    memory: tuple[Memory, ...]
    steps: Steps
    variables: Variables
    host_cycles: int
    """Cycles of the transfers to and from the host."""
    total_cycles: int
    program: Part
    runs: tuple[str, ...] = field(default=("",))
    """Names of the runs."""


def read_document(path: str | os.PathLike[str]) -> Document:
    """Return the content of a profile.

    Args:
        path: The file.

    Returns:
        Its content.

    Raises:
        Error: If it cannot be read, is no such file, or is not valid.
    """
    file = Path(path)
    if file.exists() and not file.is_file():  # a pipe would be waited for
        raise Error(f"{file}: expected the file of a profile, found a folder, a pipe or a device")
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise Error(f"{file}: the profile cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise Error(
            f"{file}: expected a profile of at most {MAX_BYTES >> 20} MiB, found a larger one"
        )
    if data.startswith(_SQLITE):
        raise Error(
            f"{file} is a profile of Graphcore's SDK (an SQLite database). Open it with the pva of "
            f"that SDK or with PopVision Graph Analyser; this pva reads what {_COMMAND} writes"
        )
    try:
        content = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Error(
            f"{file}: expected the JSON that {_COMMAND} writes, found other content: "
            f"{error or type(error).__name__}"
        ) from error
    return parse_document(content, str(file))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def parse_document(document: Any, title: str) -> Document:
    """Return the content of a profile's JSON document.

    Args:
        document: The document, as `json.loads` returns it.
        title: Name of the document for errors.

    Returns:
        Its content.

    Raises:
        Error: If it is not valid.
    """
    top = _Table(document, title)
    if "steps" not in top.values and "by_operator" in top.values:
        top.refuse(
            "steps", "the figures of tiles, which --tiles writes", "the result of profile --json"
        )
    top.number("version", VERSION, VERSION)
    num_ipus = top.number("num_ipus", 1, MAX_IPUS)
    tiles = top.number("tiles_per_ipu", 1, MAX_TILES_PER_IPU)
    steps = _parse_steps(top.table("steps"), num_ipus, tiles)
    # The causes of each tile sum to the run's cycles. Where there are I/O tiles, which are the last
    # ones, only they transfer.
    causes = [
        {name: _parse_runs(table, name, tiles)[tiles - 1] for name in _CAUSES}
        for table in top.tables("cycles", num_ipus)
    ]
    return Document(
        model=top.text("model"),
        ipu_version=_parse_version(top),
        replication_factor=top.number("replication_factor", 1, MAX_NUMBER),
        num_ipus=num_ipus,
        tiles_per_ipu=tiles,
        io_tiles=top.number("io_tiles", 0, tiles),
        tile_bytes=top.number("tile_bytes", 1, MAX_NUMBER),
        clock_hz=top.number("clock_hz", 1, MAX_NUMBER),
        memory=tuple(_parse_memory(table, tiles) for table in top.tables("memory", num_ipus)),
        steps=steps,
        variables=_parse_variables(top.table("variables"), num_ipus, len(steps)),
        host_cycles=max(cause["host"] for cause in causes),
        total_cycles=max(sum(cause.values()) for cause in causes),
        program=_parse_part(top.table("program"), 0, len(steps) - 1, 0),
    )


def _parse_version(top: _Table) -> int:
    version = top.number("ipu_version", 0, MAX_NUMBER)
    if version not in IPU_VERSIONS:
        top.refuse("ipu_version", f"one of {', '.join(map(str, IPU_VERSIONS))}", version)
    return version


class _Table:
    """A JSON object with its place in the document for errors."""

    def __init__(self, values: Any, place: str) -> None:
        self.place = place
        if not isinstance(values, dict):
            _refuse(place, "a JSON object", values)
        self.values: dict[str, Any] = values

    def refuse(self, key: str, expected: str, value: Any) -> NoReturn:
        _refuse(f"{self.place}: {key}", expected, value)

    def get(self, key: str) -> Any:
        if key not in self.values:
            raise Error(f"{self.place}: expected the key {key!r}, which is missing")
        return self.values[key]

    def text(self, key: str) -> str:
        value = self.get(key)
        return value if isinstance(value, str) else self.refuse(key, "a text", value)

    def number(self, key: str, low: int, high: int) -> int:
        value = self.get(key)
        if type(value) is not int or not low <= value <= high:
            self.refuse(key, f"a whole number from {low} to {high}", value)
        return value

    def items(self, key: str) -> list[Any]:
        value = self.get(key)
        return value if isinstance(value, list) else self.refuse(key, "a list", value)

    def table(self, key: str) -> _Table:
        return _Table(self.get(key), f"{self.place}: {key}")

    def tables(self, key: str, length: int | None = None) -> list[_Table]:
        items = self.items(key)
        if length is not None and len(items) != length:
            self.refuse(key, f"{length} entries, one of each IPU", f"{len(items)}")
        return [_Table(item, f"{self.place}: {key}[{i}]") for i, item in enumerate(items)]

    def texts(self, key: str, length: int | None = None) -> tuple[str, ...]:
        values = self._column(key, length)
        for value in values:
            if not isinstance(value, str):
                self.refuse(key, "a list of texts", value)
        return tuple(values)

    def numbers(self, key: str, length: int, low: int, high: int) -> tuple[int, ...]:
        values = self._column(key, length)
        for value in values:
            if type(value) is not int or not low <= value <= high:
                self.refuse(key, f"whole numbers from {low} to {high}", value)
        return tuple(values)

    def choices(self, key: str, length: int, of: Sequence[str], low: int = 0) -> tuple[str, ...]:
        """Return the names that a column of indices refers to; "" for -1, if `low` allows it."""
        return tuple(
            of[number] if number >= 0 else ""
            for number in self.numbers(key, length, low, len(of) - 1)
        )

    def _column(self, key: str, length: int | None) -> list[Any]:
        items = self.items(key)
        if length is not None and len(items) != length:
            self.refuse(key, f"{length} entries, as in the other columns", f"{len(items)}")
        return items


def _refuse(place: str, expected: str, value: Any) -> NoReturn:
    text = value if isinstance(value, str) else json.dumps(value)
    shown = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
    raise Error(f"{place}: expected {expected}, found {shown}")


def _parse_runs(table: _Table, key: str, tiles: int) -> Runs:
    pairs = table.items(key)
    for pair in pairs:
        if not _is_pair(pair):
            table.refuse(key, "pairs of a number of tiles and a value", pair)
    ends = tuple(accumulate(count for count, _ in pairs))
    if (ends[-1] if ends else 0) != tiles:
        table.refuse(key, f"values of {tiles} tiles", f"{ends[-1] if ends else 0} tiles")
    return Runs(ends, tuple(value for _, value in pairs))


def _is_pair(pair: Any) -> bool:
    if not isinstance(pair, list) or [type(item) for item in pair] != [int, int]:
        return False
    count, value = pair
    return count in range(1, MAX_TILES_PER_IPU + 1) and value in range(MAX_NUMBER + 1)


def _parse_memory(table: _Table, tiles: int) -> Memory:
    categories = {
        category.text("name"): _parse_runs(category, "tiles", tiles)
        for category in table.tables("categories")
    }
    return Memory(_parse_runs(table, "tiles", tiles), categories)


def _parse_steps(table: _Table, num_ipus: int, tiles: int) -> Steps:
    names = table.texts("name")
    length = len(names)
    if length > MAX_STEPS:
        table.refuse("name", f"at most {MAX_STEPS:,} steps", f"{length:,}")

    def numbers(key: str) -> tuple[int, ...]:
        return table.numbers(key, length, 0, MAX_NUMBER)

    return Steps(
        name=names,
        type=table.choices("type", length, table.texts("types")),
        vertex=table.choices("vertex", length, table.texts("vertex_types"), low=-1),
        ipu=table.numbers("ipu", length, 0, num_ipus - 1),
        sender=table.numbers("sender", length, -1, num_ipus - 1),
        sync=numbers("sync"),
        exchange=numbers("exchange"),
        compute=numbers("compute"),
        tiles=table.numbers("tiles", length, 0, tiles),
        live_bytes=numbers("live_bytes"),
        received_bytes=numbers("received_bytes"),
    )


def _parse_variables(table: _Table, num_ipus: int, num_steps: int) -> Variables:
    names = table.texts("name")
    length = len(names)

    def numbers(key: str, low: int, high: int) -> Integers:
        return np.array(table.numbers(key, length, low, high), dtype=np.int64)

    return Variables(
        name=names,
        permanent=np.isin(table.choices("kind", length, table.texts("kinds")), _PERMANENT),
        bytes=numbers("bytes", 0, MAX_NUMBER),
        ipu=numbers("ipu", 0, num_ipus - 1),
        first=numbers("first", -1, num_steps),
        last=numbers("last", -1, num_steps),
    )


def _parse_part(table: _Table, low: int, high: int, depth: int) -> Part:
    """Return a part of the program whose steps are within `low` to `high`."""
    if depth > MAX_DEPTH:
        table.refuse("children", f"at most {MAX_DEPTH} levels", "more")
    first, last = low, low - 1
    if table.get("first") is not None:
        first = table.number("first", low, high)
        last = table.number("last", first, high)
    children: list[Part] = []
    after = first
    for entry in table.tables("children"):
        child = _parse_part(entry, after, last, depth + 1)
        after = max(after, child.last + 1)
        children.append(child)
    num_bytes = table.number("bytes", 0, MAX_NUMBER) if "bytes" in table.values else 0
    return Part(table.text("kind"), table.text("name"), first, last, num_bytes, tuple(children))
