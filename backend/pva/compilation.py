"""What a report says of the compiled program: the chip, the memory of its tiles, and liveness."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from functools import cached_property
from typing import Final

import numpy as np

from pva.document import Document, Memory
from pva.errors import NotModelled, NotModelledError
from pva.facade import Facade, Listing
from pva.programs import NO_STEP, ComputeSet, OnTileExecute, Program, list_programs

_TEMPORARY: Final = ("live", "copies", "streams")
"""Categories of memory that are not always live; all others are."""
_CODE: Final = {
    "vertex code": "vertexCode",
    "vertex state": "vertexInstanceState",
    "internal exchange code": "internalExchangeCode",
    "control code": "controlCode",
    "host exchange code": "hostExchangeCode",
    "stack": "stack",
}
"""Categories of memory that are no tensors, with Poplar's names."""
_NO_LINKS = "the cost model does not count the code of copies between IPUs"
_NO_FIELDS = "the cost model counts all data of vertices as vertexInstanceState"
_WITH_WEIGHTS = "the cost model counts constants with the weights"


class Architecture(IntEnum):
    """Generations of the chip; a Bow has that of an Ipu2."""

    Ipu1 = 1
    Ipu2 = 2
    Ipu21 = 21


class IPU:
    """Facts about the chip."""

    Architecture = Architecture


class TargetType(IntEnum):
    """What a program runs on."""

    Ipu = 0
    IpuModel = 1
    Cpu = 2
    Unknown = 3


class Target(Facade):
    """The chips that the program is compiled for, those of all replicas together."""

    Type = TargetType

    def __init__(self, document: Document) -> None:
        replicas = document.replication_factor
        self.type = TargetType.IpuModel
        """Always that of a model of the IPU: no chip has run the program."""
        self.architecture = Architecture(document.ipu_version)
        self.numReplicas = replicas
        self.ipusPerReplica = document.num_ipus
        self.numIPUs = document.num_ipus * replicas
        self.tilesPerIpu = document.tiles_per_ipu
        self.tilesPerReplica = document.tiles_per_ipu * document.num_ipus
        self.numTiles = self.tilesPerReplica * replicas
        self.bytesPerTile = document.tile_bytes
        self.bytesPerIPU = document.tile_bytes * document.tiles_per_ipu
        self.memoryPerReplica = self.bytesPerIPU * document.num_ipus
        self.totalMemory = self.memoryPerReplica * replicas
        self.clockFrequency = document.clock_hz


class Gaps(Facade):
    """Bytes with and without gaps between variables; the cost model leaves none."""

    def __init__(self, num_bytes: int) -> None:
        self.includingGaps = num_bytes
        self.excludingGaps = num_bytes


class CategoryBytes(Facade):
    """Bytes of a category of memory."""

    interleaved = NotModelled("the cost model does not place variables in memory elements")
    nonInterleaved = NotModelled("the cost model does not place variables in memory elements")
    overflowed = NotModelled("the cost model does not place variables in memory elements")

    def __init__(self, total: int) -> None:
        self.total = total


class Categories(Facade):
    """Memory of a tile that holds no tensors, by category."""

    globalExchangeCode = NotModelled(_NO_LINKS)
    globalExchangePacketHeader = NotModelled(_NO_LINKS)
    vertexFieldData = NotModelled(_NO_FIELDS)
    vectorListDescriptor = NotModelled(_NO_FIELDS)
    copyDescriptor = NotModelled(_NO_FIELDS)
    constant = NotModelled(_WITH_WEIGHTS)

    def __init__(self, memory: Memory, tile: int) -> None:
        def read(name: str) -> CategoryBytes:
            runs = memory.categories.get(name)
            return CategoryBytes(0 if runs is None else runs[tile])

        self.vertexCode = read("vertex code")
        self.vertexInstanceState = read("vertex state")
        self.internalExchangeCode = read("internal exchange code")
        self.controlCode = read("control code")
        self.hostExchangeCode = read("host exchange code")
        self.stack = read("stack")


class TileMemory(Facade):
    """Memory of a tile while the node runs at which its IPU is fullest."""

    vertices = NotModelled("the cost model counts the code of all vertices on every tile")

    def __init__(self, document: Document, memory: Memory, tile: int) -> None:
        total = memory.tiles[tile]
        self._memory = memory
        self._tile = tile
        self.total = Gaps(total)
        self.overflowed = Gaps(max(0, total - document.tile_bytes))
        self.notAlwaysLiveBytes = sum(
            memory.categories[name][tile] for name in _TEMPORARY if name in memory.categories
        )
        self.alwaysLiveBytes = total - self.notAlwaysLiveBytes

    @property
    def category(self) -> Categories:
        """Memory by category."""
        return Categories(self._memory, self._tile)


class Tile(Facade):
    """A tile."""

    def __init__(self, document: Document, ipu: int, tile: int) -> None:
        self.memory = TileMemory(document, document.memory[ipu], tile)


class Ipu(Facade):
    """An IPU of a replica."""

    def __init__(self, document: Document, ipu: int) -> None:
        self.tiles = Listing(document.tiles_per_ipu, lambda tile: Tile(document, ipu, tile))


class Variable(Facade):
    """A tensor, or a category of code."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        """Bytes on all tiles."""


class Liveness(Facade):
    """What is alive during a program and not always."""

    def __init__(self, document: Document, num_bytes: int, step: int, ipu: int | None) -> None:
        self.bytes = num_bytes
        """Bytes of all tiles: the variables, and weights that a call copies."""
        self._document = document
        self._step = step
        self._ipu = ipu

    @property
    def variables(self) -> list[Variable]:
        """Tensors of the main graph that are alive."""
        columns = self._document.variables
        return [
            Variable(columns.name[i], int(columns.bytes[i]))
            for i in find_alive(self._document, self._step, self._ipu)
        ]


class LivenessStep(Facade):
    """A program with what is alive while it runs."""

    def __init__(self, document: Document, program: Program) -> None:
        self.program = program
        self._document = document

    @property
    def notAlwaysLiveMemory(self) -> Liveness:
        """What is alive on all IPUs of a replica."""
        ipus = range(self._document.num_ipus)
        num_bytes = sum(self.notAlwaysLiveMemoryForIpu(ipu).bytes for ipu in ipus)
        return Liveness(self._document, num_bytes, self.program.step, None)

    def notAlwaysLiveMemoryForIpu(self, ipu: int) -> Liveness:
        """Return what is alive on an IPU.

        Args:
            ipu: The IPU of the replica.

        Returns:
            Its bytes and variables.

        Raises:
            IndexError: If there is no such IPU.
        """
        document, step = self._document, self.program.step
        if ipu not in range(document.num_ipus):
            raise IndexError(f"expected an IPU from 0 to {document.num_ipus - 1}, found {ipu}")
        if document.steps.ipu[step] == ipu:
            return Liveness(document, document.steps.live_bytes[step], step, ipu)
        num_bytes = int(document.variables.bytes[find_alive(document, step, ipu)].sum())
        return Liveness(document, num_bytes, step, ipu)

    def notAlwaysLiveMemoryForTile(self, tile: int) -> Liveness:
        """Raise an error: liveness is known of IPUs only.

        Args:
            tile: The tile.

        Raises:
            NotModelledError: Always.
        """
        raise NotModelledError(
            f"LivenessStep.notAlwaysLiveMemoryForTile({tile}) is not known: the cost model has "
            "tiles at an IPU's peak only, in compilation.tiles"
        )


class Graph(Facade):
    """Numbers of the compiled graph."""

    numVertices = NotModelled("the cost model counts the cycles of workers, not vertices")
    numEdges = NotModelled("the cost model counts the cycles of workers, not vertices")

    def __init__(self, num_compute_sets: int, num_vars: int) -> None:
        self.numComputeSets = num_compute_sets
        """Compute sets in `computeSets`: one of each node that computes."""
        self.numVars = num_vars


class CompilationReport(Facade):
    """What a report says of the compiled program."""

    loweredVariables = NotModelled("the cost model maps whole tensors, not their parts")

    def __init__(self, document: Document) -> None:
        self._document = document

    @cached_property
    def target(self) -> Target:
        """The chips."""
        return Target(self._document)

    @cached_property
    def programs(self) -> list[Program]:
        """All programs, each before those inside it."""
        return list_programs(self._document)

    @cached_property
    def computeSets(self) -> list[ComputeSet]:
        """The compute sets, one of each node that computes."""
        return [
            program.computeset for program in self.programs if isinstance(program, OnTileExecute)
        ]

    @property
    def graph(self) -> Graph:
        """Numbers of the graph."""
        return Graph(len(self.computeSets), len(self._document.variables.name))

    @property
    def ipus(self) -> Listing[Ipu]:
        """The IPUs of a replica."""
        return Listing(self._document.num_ipus, lambda ipu: Ipu(self._document, ipu))

    @property
    def tiles(self) -> Listing[Tile]:
        """The tiles of all IPUs of a replica."""
        document, num_tiles = self._document, self._document.tiles_per_ipu
        return Listing(
            document.num_ipus * num_tiles,
            lambda tile: Tile(document, tile // num_tiles, tile % num_tiles),
        )

    @property
    def alwaysLiveVariables(self) -> list[Variable]:
        """Weights and other permanent tensors, then code by Poplar's names."""
        columns = self._document.variables
        variables = [
            Variable(name, int(size))
            for name, size, is_permanent in zip(
                columns.name, columns.bytes, columns.permanent, strict=True
            )
            if is_permanent
        ]
        code = Counter[str]()
        for memory in self._document.memory:
            for name, runs in memory.categories.items():
                if name in _CODE:
                    code[_CODE[name]] += runs.total
        return variables + [Variable(name, size) for name, size in code.items()]

    @cached_property
    def livenessProgramSteps(self) -> Listing[LivenessStep]:
        """The programs of nodes in order, with what is alive."""
        leaves = [program for program in self.programs if program.step != NO_STEP]
        return Listing(len(leaves), lambda i: LivenessStep(self._document, leaves[i]))


def find_alive(document: Document, step: int, ipu: int | None) -> list[int]:
    """Return the indices of the variables that are alive during a step and not always.

    Args:
        document: The profile.
        step: Index of the step.
        ipu: The IPU; None for all.

    Returns:
        Indices of the profile's variables.
    """
    columns = document.variables
    alive = (columns.first <= step) & (columns.last >= step) & ~columns.permanent
    if ipu is not None:
        alive &= columns.ipu == ipu
    indices: list[int] = np.flatnonzero(alive).tolist()
    return indices
