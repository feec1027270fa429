"""What a report says of a run: its programs in order, with their modelled cycles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final, NoReturn

from pva.document import Document
from pva.errors import NotModelled, NotModelledError
from pva.facade import Facade, Listing
from pva.programs import NO_STEP, Program, ProgramType

_LEAVES: Final = (
    ProgramType.Sync,
    ProgramType.DoExchange,
    ProgramType.GlobalExchange,
    ProgramType.OnTileExecute,
    ProgramType.StreamCopyBegin,
    ProgramType.StreamCopyMid,
    ProgramType.StreamCopyEnd,
)
"""Types of programs that run; the others hold them."""
_BUSIEST: Final = "the cost model knows the busiest tile of a step, not the others"


class CycleRange(Facade):
    """Earliest and latest cycle of the tiles: a modelled step begins and ends on all at once."""

    def __init__(self, cycle: int) -> None:
        self.min = cycle
        self.max = cycle


class CycleInterval(Facade):
    """First cycle of a step, and the first behind it."""

    def __init__(self, start: int, end: int) -> None:
        self.cyclesFrom = CycleRange(start)
        self.cyclesTo = CycleRange(end)


class StepOnIpu(Facade):
    """A step on one IPU of a replica; an IPU that is not at work has no cycles."""

    tileBalance = NotModelled(_BUSIEST)
    activeTileBalance = NotModelled(_BUSIEST)

    def __init__(self, step: ExecutionStep, document: Document, ipu: int) -> None:
        self._document = document
        self._program = step.program
        self._ipu = ipu
        self.activeTiles = len(step.program.find_tiles(ipu))
        """Tiles at work."""
        self.cycles = step.program.cycles if self.activeTiles else 0
        self.activeCycles = CycleInterval(step.start, step.start + self.cycles)

    @property
    def dataIn(self) -> int:
        """Bytes that come from the host, or from another IPU."""
        return self._count_bytes(incoming=True)

    @property
    def dataOut(self) -> int:
        """Bytes that go to the host, or to another IPU."""
        return self._count_bytes(incoming=False)

    def _count_bytes(self, *, incoming: bool) -> int:
        program, document = self._program, self._document
        if program.type is ProgramType.GlobalExchange:
            ends = document.steps.ipu if incoming else document.steps.sender
            is_end = ends[program.step] == self._ipu
            return document.steps.received_bytes[program.step] if is_end else 0
        if program.is_incoming is not incoming:
            return 0
        if document.num_ipus > 1:
            raise NotModelledError(
                f"the bytes of {program.name!r} on each of {document.num_ipus} IPUs are not known: "
                "a profile has their sum"
            )
        return program.num_bytes


class ExecutionStep(Facade):
    """A program that ran."""

    def __init__(self, document: Document, program: Program, start: int) -> None:
        self.program = program
        self.start = start
        """First cycle of the step in its run."""
        self._document = document

    @property
    def ipus(self) -> list[StepOnIpu]:
        """The step on each IPU of a replica."""
        return [StepOnIpu(self, self._document, ipu) for ipu in range(self._document.num_ipus)]

    @property
    def cyclesByTile(self) -> list[int]:
        """Modelled cycles of each tile: every tile at work is charged those of the busiest."""
        return self.program.list_cycles()


class Microseconds(Facade):
    """Modelled time of a run on the chip, with its transfers; the host's own work is not in it."""

    def __init__(self, end: float) -> None:
        self.start = 0.0
        self.end = end


class Run(Facade):
    """A run of the program; all runs have the same modelled steps."""

    def __init__(self, name: str, steps: Listing[ExecutionStep], microseconds: float) -> None:
        self.name = name
        self.steps = steps
        self.microseconds = Microseconds(microseconds)


class TotalCycles(Facade):
    """Modelled cycles of all runs."""

    def __init__(self, total: int) -> None:
        self.total = total


class ExecutionReport(Facade):
    """What a report says of the runs."""

    def __init__(self, document: Document, programs: list[Program]) -> None:
        self._document = document
        self._programs = programs

    def blocks(self, tile: int) -> NoReturn:
        """Raise an error: blocks are measured on the chip.

        Args:
            tile: The tile.

        Raises:
            NotModelledError: Always.
        """
        raise NotModelledError(
            f"ExecutionReport.blocks({tile}) is not known: lightweight profiling measures on the "
            "chip, and no chip has run the program"
        )

    @cached_property
    def steps(self) -> Listing[ExecutionStep]:
        """The programs of all runs."""
        one, runs = self._run_steps, len(self._document.runs)
        return Listing(len(one) * runs, lambda i: one[i % len(one)])

    @cached_property
    def _run_steps(self) -> Listing[ExecutionStep]:
        leaves = [program for program in self._programs if program.type in _LEAVES]
        starts = list(_iter_starts(leaves, overlapped=self._document.io_tiles > 0))
        return Listing(len(leaves), lambda i: ExecutionStep(self._document, leaves[i], starts[i]))

    @property
    def runs(self) -> list[Run]:
        """The runs."""
        document = self._document
        microseconds = 1e6 * document.total_cycles / document.clock_hz
        return [Run(name, self._run_steps, microseconds) for name in document.runs]

    @property
    def totalCycles(self) -> TotalCycles:
        """Modelled cycles of all runs, with transfers to and from the host."""
        return TotalCycles(self._document.total_cycles * len(self._document.runs))


def _iter_starts(leaves: list[Program], *, overlapped: bool) -> Iterator[int]:
    """Yield the first cycle of each program.

    They run one after the other. With I/O tiles the transfers, which are those of other batches,
    have a clock of their own.
    """
    clocks = [0, 0]
    for leaf in leaves:
        clock = 1 if overlapped and leaf.step == NO_STEP else 0
        yield clocks[clock]
        clocks[clock] += leaf.cycles
