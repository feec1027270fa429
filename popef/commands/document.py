"""Generator of the tables of FORMAT.md, from the tables that the code uses.

`python -m popef.commands.document` rewrites the tables between the markers of the file. A test
compares the file with them.
"""

from __future__ import annotations

import dataclasses
import io
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from ..enums import ITEM_BYTES, BlobType, DataType, TensorType, enumerant
from ..errors import Limits, Rule, Severity
from ..record import WORD_BITS, Field, Storage, Struct
from ..types import STRUCTURE_OF_BLOB, STRUCTURES, TensorDataInfo, TensorInfo
from ..writer import Writer
from .words import describe_words_of

DOCUMENT = Path(__file__).parents[1] / "FORMAT.md"


def document(text: str) -> str:
    """Return `text` with the content between each pair of markers replaced by the table of that
    name."""
    for name, table in TABLES.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(pattern, partial(_fill, table()), text, flags=re.DOTALL)
        assert count == 1, name
    return text


def _fill(text: str, match: re.Match[str]) -> str:
    return match[1] + text + match[2]


def _table(*columns: str, rows: Iterable[tuple[object, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)


def _structures() -> str:
    return "\n".join(_structure(kind.SCHEMA) for kind in STRUCTURES)


def _structure(structure: Struct) -> str:
    (data, pointers), (long_data, long_pointers) = structure.short, structure.long
    size = f"{data} data words, {pointers} pointers"
    if (data, pointers) != (long_data, long_pointers):
        size += f"; the long form {long_data} and {long_pointers}"
    rows = []
    for ordinal, field in enumerate(structure.fields):
        meaning = ("*Inferred.* " if field.inferred else "") + (field.__doc__ or "")
        rows.append((ordinal, f"`{field.name}`", _type(field), _where(field), meaning))
    table = _table("ordinal", "field", "type", "where", "meaning", rows=rows)
    return f"**{structure.name}** ({size})\n\n{table}"


def _type(field: Field[Any, Any]) -> str:
    if field.enum is not None:
        return f"u16 {field.enum.__name__}"
    if field.record is not None:
        name = field.record.__name__
        return name if field.kind is Storage.STRUCT else f"list of {name}"
    return "integers" if field.kind is Storage.SIZES else field.kind.label


def _where(field: Field[Any, Any]) -> str:
    if not field.kind.bits:
        return f"pointer {field.slot}"
    width, (word, first) = field.kind.bits, field.place
    if width == WORD_BITS:
        return f"word {word}"
    return f"word {word}, bit{f's {first} to {first + width - 1}' if width > 1 else f' {first}'}"


def _enumerations() -> str:
    blobs = [(int(kind), enumerant(kind), STRUCTURE_OF_BLOB[kind].__name__) for kind in BlobType]
    data = [(int(kind), enumerant(kind), ITEM_BYTES[kind]) for kind in DataType]
    tensors = [(int(kind), enumerant(kind)) for kind in TensorType]
    tables = (
        _table("ordinal", "BlobType", "structure that follows", rows=blobs),
        _table("ordinal", "DataType", "bytes of an element", rows=data),
        _table("ordinal", "TensorType", rows=tensors),
    )
    return "\n".join(tables)


def _rules(severity: Severity) -> str:
    rules = (rule for rule in Rule if rule.severity is severity)
    return "".join(f"- **{rule}**: {rule.text}\n" for rule in rules)


def _limits() -> str:
    limits = dataclasses.fields(Limits)
    rows = [(f"`{limit.name}`", f"{limit.default:,}", limit.metadata["doc"]) for limit in limits]
    return _table("limit", "default", "of what", rows=rows)


def _example() -> str:
    sink = io.BytesIO()
    with Writer(sink) as writer:
        info = TensorDataInfo(
            name="bias", tensorInfo=TensorInfo(shape=(2, 1), dataType=DataType.F16)
        )
        with writer.createTensorData(info) as blob:
            blob.write(bytes.fromhex("003c00c0"))
    return "```\n" + "\n".join(describe_words_of(sink.getvalue())) + "\n```\n"


TABLES: dict[str, Callable[[], str]] = {
    "structures": _structures,
    "enumerations": _enumerations,
    "rules": lambda: _rules(Severity.ERROR),
    "recommendations": lambda: _rules(Severity.WARNING),
    "limits": _limits,
    "example": _example,
}


def main() -> int:
    """Write the tables into FORMAT.md."""
    DOCUMENT.write_text(document(DOCUMENT.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
