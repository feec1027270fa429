"""What all objects of a report have in common: lists that are made when they are read, and an error
for properties that pva of the SDK may have and this one does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

T = TypeVar("T")


class Facade:
    """Object of a report."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"{type(self).__name__} has no property {name!r}: docs/pva.md lists those that "
                "profiles of the simulated IPU have"
            )


class Listing(Sequence[T], Generic[T]):
    """A list whose elements are made when they are read.

    Args:
        length: Number of elements.
        make: Returns the element with an index.
    """

    def __init__(self, length: int, make: Callable[[int], T]) -> None:
        self._range = range(length)
        self._make = make

    def __len__(self) -> int:
        return len(self._range)

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._range)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        found: Any = self._range[index]
        return self._make(found) if isinstance(index, int) else [self._make(each) for each in found]
