"""Programs of a report: the tree, its leaves in the order in which they run, and their visitors.

Each node of the graph becomes up to three programs, in the order in which the chip runs them:

    Sync ── DoExchange ── OnTileExecute        and for a copy between IPUs:  Sync ── GlobalExchange

Each holds the cycles of all supersteps of the node. A transfer to or from the host is a triple
StreamCopyBegin, StreamCopyMid, StreamCopyEnd, of which the middle has the cycles.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from functools import cached_property
from typing import Final

from pva.document import Document, Part
from pva.errors import NotModelled
from pva.facade import Facade

NO_STEP: Final = -1
"""Step of a program that is no node of the graph."""
_IPU_COPY: Final = "IpuCopy"
_LOOPS: Final = ("Loop", "Scan")
"""Types of steps that repeat their bodies. A profile's file names types only, and may be read where
the table of operators is not installed."""
_EXECUTE: Final = "Execute"
_STREAM_COPY: Final = "StreamCopy"
_INCOMING: Final = "host to device"
_PLACE: Final = "the cost model knows the code of an operator type, not of a program"


class ProgramType(IntEnum):
    """Types of programs; a profile has none of the last four, which scripts compare with."""

    Sequence = 0
    Repeat = 1
    If = 2
    Sync = 3
    DoExchange = 4
    GlobalExchange = 5
    OnTileExecute = 6
    StreamCopyBegin = 7
    StreamCopyMid = 8
    StreamCopyEnd = 9
    Call = 10
    OnEveryTileSwitch = 11
    Sans = 12
    SyncAns = 13


class ProgramVisitor:
    """Base class of visitors: `program.accept(visitor)` calls the method of the program's type."""

    def visitSequence(self, program: Program) -> None:
        """Visit programs that run one after the other."""

    def visitRepeat(self, program: Program) -> None:
        """Visit a loop."""

    def visitIf(self, program: Program) -> None:
        """Visit a condition."""

    def visitSync(self, program: Program) -> None:
        """Visit the syncs of a node."""

    def visitDoExchange(self, program: Program) -> None:
        """Visit the exchanges of a node."""

    def visitGlobalExchange(self, program: Program) -> None:
        """Visit a copy between IPUs."""

    def visitOnTileExecute(self, program: OnTileExecute) -> None:
        """Visit the compute sets of a node."""

    def visitStreamCopyBegin(self, program: Program) -> None:
        """Visit the begin of a transfer to or from the host."""

    def visitStreamCopyMid(self, program: Program) -> None:
        """Visit a transfer to or from the host."""

    def visitStreamCopyEnd(self, program: Program) -> None:
        """Visit the end of a transfer to or from the host."""


class VertexType(Facade):
    """Type of vertices; a node that runs several in turn has one type with all their names."""

    size = NotModelled("the cost model has a tile's vertex state, not that of a type")

    def __init__(self, name: str) -> None:
        self.name = name


class Vertex(Facade):
    """The vertices of one type in a compute set."""

    countByTile = NotModelled("the cost model counts the cycles of workers, not vertices")

    def __init__(self, name: str) -> None:
        self.type = VertexType(name)


class ComputeSet(Facade):
    """The compute sets of a node, together."""

    def __init__(self, document: Document, program: Program) -> None:
        self.name = program.name
        self._vertex = document.steps.vertex[program.step]
        self._program = program

    @property
    def vertices(self) -> list[Vertex]:
        """Vertices by type."""
        return [Vertex(self._vertex)] if self._vertex else []

    @property
    def estimatedCyclesByTile(self) -> list[int]:
        """Modelled cycles of each tile: every tile at work is charged those of the busiest."""
        return self._program.list_cycles()


class Program(Facade):
    """A program. All figures are modelled."""

    Type = ProgramType
    codeBytesByTile = NotModelled(_PLACE)
    controlCodeByTile = NotModelled(_PLACE)

    def __init__(
        self,
        document: Document,
        number: int,
        type: ProgramType,
        name: str,
        step: int = NO_STEP,
        cycles: int = 0,
        num_bytes: int = 0,
    ) -> None:
        self.type = type
        self.name = name
        self.children: list[Program] = []
        self.step = step
        """Index of the node in the profile's columns; NO_STEP for none."""
        self.cycles = cycles
        """Modelled cycles of the program itself, without those inside it."""
        self.num_bytes = num_bytes
        """Bytes of a transfer to or from the host."""
        self._document = document
        self._id = number

    @property
    def is_incoming(self) -> bool | None:
        """Whether the program is a transfer from the host; None if it is no transfer."""
        return self.name == _INCOMING if self.num_bytes else None

    def find_tiles(self, ipu: int) -> range:
        """Return the tiles of an IPU that take part: nodes work on an IPU's first tiles, syncs on
        all that compute, and transfers on the I/O tiles, which are the last, if there are any.

        Args:
            ipu: The IPU of the replica.

        Returns:
            Numbers of tiles within the IPU.
        """
        document, step = self._document, self.step
        tiles, io_tiles = document.tiles_per_ipu, document.io_tiles
        if step == NO_STEP:
            return range(tiles - io_tiles if io_tiles else 0, tiles)
        if ipu not in (document.steps.ipu[step], document.steps.sender[step]):
            return range(0)
        is_sync = self.type is ProgramType.Sync
        return range(tiles - io_tiles if is_sync else document.steps.tiles[step])

    def list_cycles(self) -> list[int]:
        """Return the modelled cycles of each tile of all IPUs.

        Returns:
            The cycles: every tile at work is charged those of the busiest.
        """
        tiles = self._document.tiles_per_ipu
        cycles = [0] * (self._document.num_ipus * tiles)
        for ipu in range(self._document.num_ipus):
            for tile in self.find_tiles(ipu):
                cycles[ipu * tiles + tile] = self.cycles
        return cycles

    def accept(self, visitor: ProgramVisitor) -> None:
        """Call the visitor's method for this type of program.

        Args:
            visitor: The visitor.
        """
        visit = getattr(visitor, f"visit{self.type.name}", None)
        if visit is not None:
            visit(self)


class DoExchange(Program):
    """The exchanges of a node."""

    @property
    def estimatedCyclesByTile(self) -> list[int]:
        """Modelled cycles of each tile: every tile at work is charged those of the busiest."""
        return self.list_cycles()


class OnTileExecute(Program):
    """The compute sets of a node."""

    @cached_property
    def computeset(self) -> ComputeSet:
        """The compute sets."""
        return ComputeSet(self._document, self)


def list_programs(document: Document) -> list[Program]:
    """Return all programs, each before those inside it."""
    tree = _Tree(document)
    tree.add_part(document.program)
    return tree.programs


class _Tree:
    """Makes the programs of a document."""

    def __init__(self, document: Document) -> None:
        self.programs: list[Program] = []
        self._document = document
        self._host_bytes = sum(_iter_transfers(document.program))
        self._done_bytes = 0
        """Bytes of the transfers that have been made."""

    def add_part(self, part: Part) -> Program:
        """Add the program of a part, and those inside it; return it."""
        loops = ProgramType.Repeat if part.kind in _LOOPS else ProgramType.Sequence
        kind = ProgramType.If if part.kind == "If" else loops
        program = self._add(Program, kind, part.name)
        after = part.first
        for child in part.children:
            program.children += self._add_nodes(after, child.first)
            if child.kind == _STREAM_COPY:
                program.children += self._add_transfer(child)
            elif child.kind == _EXECUTE:
                program.children += self._add_nodes(child.first, child.last + 1)
            else:
                program.children.append(self.add_part(child))
            after = child.last + 1
        program.children += self._add_nodes(after, part.last + 1)
        return program

    def _add(
        self,
        of: type[Program],
        type: ProgramType,
        name: str,
        step: int = NO_STEP,
        cycles: int = 0,
        num_bytes: int = 0,
    ) -> Program:
        program = of(self._document, len(self.programs), type, name, step, cycles, num_bytes)
        self.programs.append(program)
        return program

    def _add_transfer(self, part: Part) -> Iterator[Program]:
        # The transfers share the host's cycles by their bytes, to the last cycle.
        before = self._share(self._done_bytes)
        self._done_bytes += part.num_bytes
        cycles, size = self._share(self._done_bytes) - before, part.num_bytes
        yield self._add(Program, ProgramType.StreamCopyBegin, part.name)
        yield self._add(
            Program, ProgramType.StreamCopyMid, part.name, cycles=cycles, num_bytes=size
        )
        yield self._add(Program, ProgramType.StreamCopyEnd, part.name)

    def _share(self, num_bytes: int) -> int:
        return self._document.host_cycles * num_bytes // self._host_bytes if num_bytes else 0

    def _add_nodes(self, first: int, end: int) -> Iterator[Program]:
        """Add and yield the programs of steps; a view has none."""
        steps = self._document.steps
        for step in range(first, end):
            name, exchange = steps.name[step], steps.exchange[step]
            if steps.sync[step]:
                yield self._add(Program, ProgramType.Sync, name, step, steps.sync[step])
            if exchange and steps.type[step] == _IPU_COPY:
                yield self._add(Program, ProgramType.GlobalExchange, name, step, exchange)
            elif exchange:
                yield self._add(DoExchange, ProgramType.DoExchange, name, step, exchange)
            if steps.compute[step]:
                compute = steps.compute[step]
                yield self._add(OnTileExecute, ProgramType.OnTileExecute, name, step, compute)


def _iter_transfers(part: Part) -> Iterator[int]:
    yield part.num_bytes
    for child in part.children:
        yield from _iter_transfers(child)
