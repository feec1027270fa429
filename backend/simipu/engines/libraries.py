"""Custom-operator libraries of ONNX Runtime: operators in a domain of their own, in a user's C or
C++.

A library is named by the person who compiles or serves a model (`--custom_ort_library`,
`sim_custom_ops`, `register_library`), never by a file that is loaded. It is code: it runs with the
rights of the process, and can end it. Its kernels compute in float: a model in half passes its
halves widened to float, and rounds the results.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OperatorLibrary:
    """A library file with the domain of its operators.

    cycles_per_element: cycles of a tile on the real chip for each element of a result; 0 uses a
    guess.
    """

    domain: str
    path: str
    cycles_per_element: float = 0.0

    @staticmethod
    def parse(text: str) -> OperatorLibrary:
        """Parse DOMAIN=FILE or DOMAIN=FILE,CYCLES. Raises ValueError with the expected format."""
        domain, equals, rest = text.strip().partition("=")
        file, comma, cycles = rest.rpartition(",")
        if not (equals and domain and rest) or (comma and not file):
            raise ValueError(f"DOMAIN=FILE or DOMAIN=FILE,CYCLES, found {text!r}")
        try:
            number = float(cycles) if comma else 0.0
        except ValueError:
            raise ValueError(f"a number of cycles behind the comma, found {cycles!r}") from None
        if not 0 <= number < float("inf"):
            raise ValueError(f"cycles of 0 or more, found {cycles!r}")
        return OperatorLibrary(domain, file if comma else rest, number)


LIBRARIES: dict[str, OperatorLibrary] = {}
"""Libraries of this process, by domain; `library_operators` registers them."""


def registered_libraries() -> tuple[OperatorLibrary, ...]:
    """Return the libraries of this process."""
    return tuple(LIBRARIES.values())


def is_library_domain(domain: str) -> bool:
    """Return whether a library of this process has the operators of `domain`."""
    return domain in LIBRARIES
