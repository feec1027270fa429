"""Base of the structures: equality, repr and text, all from the table of `schema.py`."""

from __future__ import annotations

from typing import Any, ClassVar

from .describe import json_text, tree
from .schema import Struct


class Record:
    """Base of the structures: equality, repr and text from the table. Instances are mutable and so not hashable."""

    __slots__ = ()
    SCHEMA: ClassVar[Struct]

    def values(self) -> dict[str, Any]:
        """The fields by name, nested structures as dicts; what `codec.encode` takes."""
        return {field.name: _plain(getattr(self, "_" + field.name)) for field in self.SCHEMA.fields}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record) or self.SCHEMA is not other.SCHEMA:
            return NotImplemented
        return all(getattr(self, "_" + field.name) == getattr(other, "_" + field.name) for field in self.SCHEMA.fields)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = (f"{field.name}={getattr(self, '_' + field.name)!r}" for field in self.SCHEMA.fields)
        return f"{type(self).__name__}({', '.join(fields)})"

    def __str__(self) -> str:
        """Cap'n Proto JSON, laid out as popef_dump prints it."""
        return json_text(tree(self.SCHEMA, self.values()))


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.values()
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
