"""Description of a compiled computation: its feeds, arguments, results and settings.

Names and handles are those of the real stack, so that its tools and guides fit our files:

    infeed_F.K, outfeed_F.K   tensor K of a feed; F counts infeeds and outfeeds together, from 1
    P.K                       handle of argument P
    out_P.K                   handle of result P
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import numpy as np

_ARGUMENTS: Final = "XLA_Args/"
_CAPTURED: Final = "XLA_Args/_arg_"
_CAPTURED_NAME: Final = re.compile(r"(.*)_[0-9]+_[0-9]+/_[0-9]+", re.DOTALL)
UNHASHED: Final = "UNHASHED_EXECUTABLE"
"""Name of an executable that was compiled without a hash."""


class EntryKind(Enum):
    """What an argument or a result of a computation is."""

    STREAMED = "streamed"
    """A value that each run gets or returns."""
    VARIABLE = "variable"
    """A variable that is only read: it is loaded once."""
    MODIFIED_VARIABLE = "modified variable"
    """A variable that is read and assigned."""
    INITIALIZED_VARIABLE = "initialized variable"
    """A variable that is only assigned; a result."""


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """A tensor of one transfer: its name in the executable, its shape and type."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class FeedDescription:
    """A queue of the computation."""

    tensors: tuple[TensorDescription, ...]
    """Tensors of one element; their names are `infeed_F.K` or `outfeed_F.K`."""
    prefetch_depth: int = 0
    get_last: bool = False
    """Whether an outfeed keeps only its last element."""
    optimise_latency: bool = False

    @property
    def feed_id(self) -> str:
        """The number of the feed, F of its tensors' names."""
        return self.tensors[0].name.partition("_")[2].partition(".")[0] if self.tensors else ""


@dataclass(frozen=True, slots=True)
class EntryDescription:
    """An argument or a result of the computation.

    `name` is XLA's, such as `XLA_Args/d1/bias`. The tensor of a variable has the name under which
    its value is exported.
    """

    name: str
    tensor: TensorDescription
    kind: EntryKind = EntryKind.STREAMED


@dataclass(frozen=True, slots=True)
class ExecutableDescription:
    """A compiled computation as its PopEF file describes it."""

    infeeds: tuple[FeedDescription, ...] = ()
    outfeeds: tuple[FeedDescription, ...] = ()
    inputs: tuple[EntryDescription, ...] = ()
    """Arguments, in the order of the parameters of the computation."""
    outputs: tuple[EntryDescription, ...] = ()
    """Results: values first, then assigned variables."""
    replicas: int = 1
    num_ipus: int = 1
    """IPUs of all replicas together."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the engine."""
    can_stall: bool = False
    """Whether a run may wait for more data: pipelines and I/O tiles do."""
    name: str = UNHASHED
    """Name of the executable: the hash of the computation."""
    state: tuple[TensorDescription, ...] = ()
    """Other tensors that the executable exchanges with the host: what loops carry."""

    def find_handles(self) -> dict[str, str]:
        """Return the handle of each tensor of the executable, by its name there."""
        handles = {tensor.name: tensor.name for tensor in self.iter_fed()}
        handles |= {tensor.name: tensor.name for tensor in self.state}
        handles |= {entry.tensor.name: f"{i}.0" for i, entry in enumerate(self.inputs)}
        handles |= {entry.tensor.name: f"out_{i}.0" for i, entry in enumerate(self.outputs)}
        return handles

    def iter_fed(self) -> Iterable[TensorDescription]:
        """Yield the tensors of infeeds, then those of outfeeds."""
        for feed in (*self.infeeds, *self.outfeeds):
            yield from feed.tensors


def name_feed(kind: str, number: int, place: int) -> str:
    """Return the name of a feed's tensor.

    Args:
        kind: "infeed" or "outfeed".
        number: Number of the feed, which counts infeeds and outfeeds together, from 1.
        place: Place of the tensor in the flattened element, from 0.

    Returns:
        The name, such as `infeed_1.0`.
    """
    return f"{kind}_{number}.{place}"


def unmangle_name(name: str) -> str:
    """Return the name that users see of an argument's name in XLA.

    Args:
        name: XLA's name, such as `XLA_Args/d1/bias`.

    Returns:
        The name without XLA's prefix, and without the numbers of captured arguments.
    """
    if name.startswith(_CAPTURED):
        rest = name[len(_CAPTURED) :]
        match = _CAPTURED_NAME.fullmatch(rest)
        return match[1] if match else rest
    return name.removeprefix(_ARGUMENTS)


def number_duplicates(names: Sequence[str]) -> list[str]:
    """Return names of which none occurs twice: a repeated name gets a number at its end."""
    totals, counts = Counter(names), Counter[str]()
    numbered = []
    for name in names:
        if totals[name] > 1:
            numbered.append(f"{name}{counts[name]}")
            counts[name] += 1
        else:
            numbered.append(name)
    return numbered
