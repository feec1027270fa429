"""pva as public scripts use it, on a profile whose figures are known by hand."""

from __future__ import annotations

from collections import defaultdict

import pop_files
import pva
import pytest
from pva import pva_core

Types = pva.Program.Type


@pytest.fixture
def report(tmp_path) -> pva.Report:
    return pva.openReport(str(pop_files.write_profile(tmp_path)))


@pytest.fixture
def one_ipu(tmp_path) -> pva.Report:
    """Return a report of a profile whose nodes all run on one IPU."""
    document = pop_files.make_profile()
    document["num_ipus"] = 1
    del document["memory"][1], document["cycles"][1]
    for table in ("steps", "variables"):
        document[table]["ipu"] = [0] * len(document[table]["ipu"])
    return pva.openReport(pop_files.write_profile(tmp_path, document))


def test_it_names_the_chip(report):
    target = report.compilation.target
    assert target.architecture == pva.IPU.Architecture.Ipu2
    assert target.type == pva.Target.Type.IpuModel
    assert (target.numIPUs, target.numTiles, target.numReplicas) == (6, 24, 3)
    assert (target.ipusPerReplica, target.tilesPerReplica, target.tilesPerIpu) == (2, 8, 4)
    assert (target.bytesPerTile, target.bytesPerIPU) == (1000, 4000)
    assert (target.memoryPerReplica, target.totalMemory) == (8000, 24000)
    assert target.clockFrequency == 1_000_000


def test_it_says_that_no_real_poplar_wrote_it(report):
    assert report.poplarVersion.string.startswith("3.4.0 (poplar-triton")
    assert (report.version.major, report.version.isUnstableFormat) == (1, False)


def test_memory_of_the_tiles(report):
    tiles = report.compilation.tiles
    assert [tile.memory.total.includingGaps for tile in tiles] == [600, 600, 500, 1100] + [100] * 4
    assert max(tile.memory.total.excludingGaps for tile in tiles) == 1100
    assert [tile.memory.notAlwaysLiveBytes for tile in tiles] == [400] * 4 + [50] * 4
    assert tiles[2].memory.alwaysLiveBytes == 100
    assert tiles[-1].memory.alwaysLiveBytes == 50
    assert len(tiles[1:3]) == 2
    with pytest.raises(IndexError):
        tiles[8]


def test_which_ipu_is_out_of_memory(report):
    over = [
        sum(tile.memory.overflowed.excludingGaps for tile in ipu.tiles)
        for ipu in report.compilation.ipus
    ]
    assert over == [100, 0]


def test_memory_by_category(report):
    category = report.compilation.ipus[1].tiles[3].memory.category
    assert category.vertexCode.total == 20
    assert category.vertexInstanceState.total == 5
    assert category.controlCode.total == 3
    assert category.internalExchangeCode.total == category.stack.total == 0


def test_variables_that_are_always_live(report):
    found = {each.name: each.size for each in report.compilation.alwaysLiveVariables}
    code = {"vertexCode": 20 * 8, "vertexInstanceState": 5 * 8, "controlCode": 3 * 8}
    assert found == {"w": 640, "one": 4, **code}


def test_the_step_with_the_highest_liveness(report):
    peak = max(
        report.compilation.livenessProgramSteps, key=lambda step: step.notAlwaysLiveMemory.bytes
    )
    assert (peak.program.name, peak.notAlwaysLiveMemory.bytes) == ("multiply", 900)
    assert {each.name: each.size for each in peak.notAlwaysLiveMemory.variables} == {
        "x": 300,
        "product": 512,
    }


def test_liveness_of_an_ipu_that_waits_is_that_of_its_variables(report):
    (copy,) = (
        step
        for step in report.compilation.livenessProgramSteps
        if step.program.type == Types.GlobalExchange
    )
    assert copy.notAlwaysLiveMemoryForIpu(1).bytes == 30
    assert copy.notAlwaysLiveMemoryForIpu(0).bytes == 512  # sum
    assert copy.notAlwaysLiveMemory.bytes == 542
    with pytest.raises(IndexError, match="an IPU from 0 to 1, found 2"):
        copy.notAlwaysLiveMemoryForIpu(2)


def test_compute_sets_with_their_vertices(report):
    sets = report.compilation.computeSets
    assert report.compilation.graph.numComputeSets == len(sets) == 3
    assert [(each.name, [v.type.name for v in each.vertices]) for each in sets] == [
        ("multiply", ["product"]),
        ("add", ["Add half"]),
        ("activate", ["Relu half"]),
    ]
    assert sets[0].estimatedCyclesByTile == [70, 70, 70, 0, 0, 0, 0, 0]
    assert sets[2].estimatedCyclesByTile == [0, 0, 0, 0, 20, 0, 0, 0]


def test_the_tree_of_programs(report):
    main = report.compilation.programs[0]
    assert [each.type.name for each in main.children] == [
        *("StreamCopyBegin", "StreamCopyMid", "StreamCopyEnd"),
        *("Sync", "DoExchange", "OnTileExecute"),
        "Repeat",
        *("Sync", "GlobalExchange", "Sync", "OnTileExecute"),
        *("StreamCopyBegin", "StreamCopyMid", "StreamCopyEnd"),
    ]
    (loop,) = (each for each in main.children if each.type == Types.Repeat)
    assert [(each.type.name, each.name) for each in loop.children] == [
        ("Sync", "loop"),
        ("OnTileExecute", "add"),
    ]
    assert [each._id for each in report.compilation.programs] == list(range(17))


def test_the_cycles_of_all_steps(report):
    steps = report.execution.steps
    end = pop_files.STEP_CYCLES + pop_files.HOST_CYCLES
    assert sum(step.ipus[0].cycles for step in steps) == 120 + 50 + 80  # without activate
    assert sum(step.program.cycles for step in steps) == report.execution.totalCycles.total == end
    starts = [step.ipus[0].activeCycles.cyclesFrom.max for step in steps]
    assert starts == sorted(starts)
    assert steps[-1].ipus[0].activeCycles.cyclesTo.max == end


def test_a_copy_between_ipus_occupies_both_and_other_nodes_their_own(report):
    (copy,) = (step for step in report.execution.steps if step.program.type == Types.GlobalExchange)
    assert [ipu.cycles for ipu in copy.ipus] == [40, 40]
    assert [ipu.activeTiles for ipu in copy.ipus] == [4, 4]
    assert [(ipu.dataIn, ipu.dataOut) for ipu in copy.ipus] == [(0, 512), (512, 0)]
    assert copy.cyclesByTile == [40] * 8
    (last,) = (
        step
        for step in report.execution.steps
        if step.program.step == 5 and step.program.type == Types.OnTileExecute
    )
    assert [ipu.cycles for ipu in last.ipus] == [0, 20]
    assert last.cyclesByTile == [0, 0, 0, 0, 20, 0, 0, 0]


def test_transfers_share_the_cycles_of_the_host_by_their_bytes(one_ipu):
    middle = [s for s in one_ipu.execution.steps if s.program.type == Types.StreamCopyMid]
    found = [
        (ipu.cycles, ipu.dataIn, ipu.dataOut, ipu.activeTiles)
        for step in middle
        for ipu in step.ipus
    ]
    assert found == [(60, 300, 0, 4), (20, 0, 100, 4)]
    assert middle[0].cyclesByTile == [60] * 4


def test_transfers_of_io_tiles_have_a_clock_of_their_own(tmp_path):
    document = pop_files.make_profile() | {"io_tiles": 1}
    report = pva.openReport(pop_files.write_profile(tmp_path, document))
    starts = {
        (step.program.type.name, step.program.name): step.start for step in report.execution.steps
    }
    assert starts["StreamCopyMid", "host to device"] == starts["Sync", "multiply"] == 0
    assert starts["StreamCopyMid", "device to host"] == 60
    (first, *_) = (s for s in report.execution.steps if s.program.type == Types.StreamCopyMid)
    assert first.cyclesByTile == [0, 0, 0, 60] * 2
    assert [ipu.activeTiles for ipu in first.ipus] == [1, 1]


def test_runs_have_names_and_times(report):
    (run,) = report.execution.runs
    assert run.name == ""
    assert run.microseconds.end - run.microseconds.start == pytest.approx(280)
    assert len(run.steps) == len(report.execution.steps)


def test_a_visitor_sees_each_program_by_its_type(report):
    class Visitor(pva.ProgramVisitor):
        def __init__(self):
            super().__init__()
            self.seen = defaultdict(list)

        def visitOnTileExecute(self, program):
            self.seen["compute"].append((program.name, len(program.computeset.vertices)))

        def visitStreamCopyMid(self, program):
            self.seen["copies"].append(program.name)

    visitor = Visitor()
    for step in report.execution.steps:
        step.program.accept(visitor)
    assert visitor.seen == {
        "compute": [("multiply", 1), ("add", 1), ("activate", 1)],
        "copies": ["host to device", "device to host"],
    }


def test_the_base_visitor_has_a_method_for_every_type_that_a_profile_has(report):
    for program in report.compilation.programs:
        assert hasattr(pva.ProgramVisitor, f"visit{program.type.name}")
        program.accept(pva.ProgramVisitor())


def test_cycles_of_a_layer_without_and_with_the_run(report):
    modelled = 0
    for step in report.compilation.livenessProgramSteps:
        program = step.program
        if program.type == pva.Program.Type.DoExchange:
            modelled += max(program.estimatedCyclesByTile)
        elif program.type == pva.Program.Type.OnTileExecute:
            modelled += max(program.computeset.estimatedCyclesByTile)
    wanted = (Types.DoExchange, Types.OnTileExecute)
    ran = [s for s in report.execution.runs[0].steps if s.program.type in wanted]
    assert modelled == sum(ipu.cycles for step in ran for ipu in step.ipus) == 125


@pytest.mark.parametrize(
    ("read", "property"),
    [
        (lambda r: r.compilation.loweredVariables, "CompilationReport.loweredVariables"),
        (lambda r: r.compilation.tiles[0].memory.vertices, "TileMemory.vertices"),
        (lambda r: r.compilation.tiles[0].memory.category.constant, "Categories.constant"),
        (lambda r: r.compilation.programs[0].codeBytesByTile, "Program.codeBytesByTile"),
        (lambda r: r.compilation.programs[4].controlCodeByTile, "Program.controlCodeByTile"),
        (lambda r: r.compilation.computeSets[0].vertices[0].countByTile, "Vertex.countByTile"),
        (lambda r: r.compilation.computeSets[0].vertices[0].type.size, "VertexType.size"),
        (
            lambda r: r.compilation.livenessProgramSteps[0].notAlwaysLiveMemoryForTile(0),
            r"LivenessStep.notAlwaysLiveMemoryForTile\(0\)",
        ),
        (lambda r: r.execution.steps[0].ipus[0].tileBalance, "StepOnIpu.tileBalance"),
        (lambda r: r.execution.blocks(0), r"ExecutionReport.blocks\(0\)"),
        (lambda r: r.execution.steps[1].ipus[0].dataIn, "the bytes of 'host to device'"),
        (lambda r: pva.OperationAnalysis(r), "OperationAnalysis"),
        (lambda r: pva.openTrace("a.pvti"), "a.pvti"),
    ],
)
def test_properties_that_are_not_modelled_are_an_error_with_the_reason(report, read, property):
    with pytest.raises(pva.NotModelledError, match=f"^{property}.*not") as caught:
        read(report)
    assert ": " in str(caught.value)
    assert isinstance(caught.value, RuntimeError)


def test_a_property_that_does_not_exist_is_an_attribute_error_that_names_the_list(report):
    with pytest.raises(AttributeError, match=r"Target has no property 'numtiles': docs/pva\.md"):
        _ = report.compilation.target.numtiles
    assert not hasattr(report.compilation.tiles[0].memory, "used")


def test_the_module_of_the_extension_has_the_same_classes():
    assert all(getattr(pva_core, name) for name in pva_core.__all__)
    assert pva_core.Program.Type.StreamCopyMid is pva.Program.Type.StreamCopyMid
    assert "OnTileExecute" in pva.Program.Type.__members__


def test_a_report_can_be_opened_with_a_debug_file(tmp_path):
    file = pop_files.write_profile(tmp_path)
    again = pva.openReport(str(file), str(tmp_path / "debug.cbor"))
    assert again.execution.totalCycles.total == 280
