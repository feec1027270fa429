"""pva on profiles that the profile command writes: its figures are those of the profile."""

from __future__ import annotations

import json

import onnx
import pva
import pytest
from poplar_triton import cli
from sample_models import linear_model


@pytest.fixture
def profile_model(tmp_path, capsys):
    """Return a function that profiles a model: it returns the report, and the profile's JSON."""

    def profile(model, *options):
        onnx.save(model, tmp_path / "model.onnx")
        file = tmp_path / "profile.pop"
        command = ["profile", str(tmp_path / "model.onnx"), "--batch_size", "4", "--json"]
        assert cli.main([*command, "--tiles", str(file), *options]) == 0
        return pva.openReport(file), json.loads(capsys.readouterr().out)

    return profile


def count_busy_cycles(profile):
    """Return the cycles of all tiles together in which they do not wait."""
    return sum(cycles for cause, cycles in profile["by_cause"].items() if cause != "idle")


OPTIONS = [[], ["--target", "bow", "--precision", "fp16"], ["--num_io_tiles", "32"]]


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_cycles_are_those_of_the_profile(profile_model, options):
    report, profile = profile_model(linear_model(), *options)
    steps = report.execution.steps
    assert report.execution.totalCycles.total == profile["total_cycles"]
    nodes = [step for step in steps if not step.program.type.name.startswith("StreamCopy")]
    assert sum(step.ipus[0].cycles for step in nodes) == profile["cycles"]
    assert sum(sum(step.cyclesByTile) for step in steps) == count_busy_cycles(profile)


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_memory_sums_up(profile_model, options):
    report, profile = profile_model(linear_model(), *options)
    compilation = report.compilation
    tiles = list(compilation.tiles)
    assert len(tiles) == compilation.target.numTiles == compilation.target.tilesPerIpu
    assert compilation.target.bytesPerTile == profile["tile_bytes"]
    always = sum(tile.memory.alwaysLiveBytes for tile in tiles)
    assert always == sum(each.size for each in compilation.alwaysLiveVariables)
    for step in compilation.livenessProgramSteps:
        live = step.notAlwaysLiveMemory
        assert sum(each.size for each in live.variables) == live.bytes
    kept = {each.name: each.size for each in compilation.alwaysLiveVariables}
    width = 2 if "fp16" in options else 4
    assert kept["w"] == 4 * 3 * width
    assert any(tile.memory.category.vertexCode.total for tile in tiles)


@pytest.mark.parametrize(
    ("name", "architecture", "clock_hz"),
    [("mk1", 1, 1_600_000_000), ("mk2", 2, 1_330_000_000), ("bow", 2, 1_850_000_000)],
)
def test_the_chip_is_the_one_of_the_profile(profile_model, name, architecture, clock_hz):
    report, _ = profile_model(linear_model(), "--target", name)
    target = report.compilation.target
    assert target.architecture == pva.IPU.Architecture(architecture)
    assert target.clockFrequency == clock_hz


def test_two_ipus_exchange_with_each_other(profile_model):
    report, profile = profile_model(linear_model(), "--num_ipus", "2")
    copies = [
        step
        for step in report.execution.steps
        if step.program.type == pva.Program.Type.GlobalExchange
    ]
    assert copies
    assert all(sum(ipu.dataIn for ipu in step.ipus) > 0 for step in copies)
    assert sum(sum(step.cyclesByTile) for step in report.execution.steps) == count_busy_cycles(
        profile
    )
    sent = [[ipu.dataOut for ipu in step.ipus] for step in copies]
    assert sent == [[ipu.dataIn for ipu in reversed(step.ipus)] for step in copies]
    assert len(report.compilation.ipus) == report.compilation.target.numIPUs == 2


def test_the_replicas_share_the_profile(profile_model):
    report, _ = profile_model(linear_model(), "--replication_factor", "2")
    assert report.compilation.target.numReplicas == 2
    assert report.compilation.target.numTiles == 2 * len(report.compilation.tiles)


def test_the_result_of_json_is_no_profile_with_tiles(profile_model, tmp_path):
    _, profile = profile_model(linear_model())
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(profile))
    with pytest.raises(pva.Error, match="--tiles writes, found the result of profile --json"):
        pva.openReport(file)
