"""Reports of sessions: pva's objects, and the profiles that autoReport options ask for."""

from __future__ import annotations

import json

import numpy as np
import popart
import pva
import pytest

VARIABLE = "POPLAR_ENGINE_OPTIONS"
X = "x"


def make_session(*, replicas=1, name="inference", **engine):
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [8, 16]), X)
    w = builder.addInitializedInputTensor(np.ones((16, 32), np.float32), "w")
    y = builder.aiOnnx.relu([builder.aiOnnx.matmul([x, w])])
    options = popart.SessionOptions()
    if replicas > 1:
        options.enableReplicatedGraphs = True
        options.replicatedGraphCount = replicas
    for key, value in engine.items():
        options.engineOptions[key.replace("_", ".")] = value
    device = popart.DeviceManager().createIpuModelDevice({"numIPUs": replicas})
    flow = popart.DataFlow(1, [y])
    return popart.InferenceSession(
        builder.getModelProto(), flow, device, userOptions=options, name=name
    )


def run(session, *names):
    anchors = session.initAnchorArrays()
    for name in names:
        session.run(popart.PyStepIO({X: np.ones((8, 16), np.float32)}, anchors), name)


def test_a_report_needs_a_prepared_session():
    with pytest.raises(popart.popart_exception) as caught:
        make_session().getReport()
    assert caught.value.args[0].endswith(
        "Session must have been prepared before a report can be fetched"
    )


def test_a_report_is_one_of_pva():
    session = make_session()
    session.prepareDevice()
    report = session.getReport()
    assert isinstance(report, pva.Report)
    target = report.compilation.target
    assert target.architecture == pva.IPU.Architecture.Ipu2
    assert target.totalMemory == target.numTiles * target.bytesPerTile > 0
    assert sum(tile.memory.total.excludingGaps for tile in report.compilation.tiles) > 16 * 32 * 4
    vertices = [v.type.name for each in report.compilation.computeSets for v in each.vertices]
    assert vertices == ["product", "Relu float"]


def test_a_report_has_the_first_two_runs_with_their_names():
    session = make_session()
    session.prepareDevice()
    execution = session.getReport().execution
    assert (execution.runs, len(execution.steps), execution.totalCycles.total) == ([], 0, 0)
    run(session, "Test message")
    first = session.getReport().execution
    assert first.runs[0].name == "Test message"
    run(session, "second", "third")
    execution = session.getReport().execution
    assert [each.name for each in execution.runs] == ["Test message", "second"]
    assert execution.totalCycles.total == 2 * first.totalCycles.total > 0
    assert len(execution.steps) == 2 * len(first.steps)


def test_a_report_counts_the_tiles_of_all_replicas():
    session = make_session(replicas=2)
    session.prepareDevice()
    compilation = session.getReport().compilation
    assert (compilation.target.numReplicas, compilation.target.numIPUs) == (2, 2)
    assert len(compilation.tiles) == compilation.target.tilesPerReplica


def test_autoreport_options_write_profiles(tmp_path):
    engine = {"autoReport_directory": str(tmp_path / "reports"), "autoReport_all": "true"}
    session = make_session(**engine)
    session.prepareDevice()
    report = pva.openReport(tmp_path / "reports" / "inference" / "profile.pop")
    profile = json.loads((tmp_path / "reports" / "inference" / "profile.json").read_text())
    assert report.execution.totalCycles.total == profile["total_cycles"]
    make_session(name="other", **engine).prepareDevice()
    assert (tmp_path / "reports" / "other" / "profile.pop").is_file()


def test_no_profile_is_written_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_session().prepareDevice()
    make_session(autoReport_all="false").prepareDevice()
    assert not list(tmp_path.iterdir())


def test_the_environment_overrides_the_folder(tmp_path, monkeypatch):
    asked = {"autoReport.outputGraphProfile": True, "autoReport.directory": str(tmp_path / "here")}
    monkeypatch.setenv(VARIABLE, json.dumps(asked))
    make_session(autoReport_directory=str(tmp_path / "there")).prepareDevice()
    assert (tmp_path / "here" / "inference" / "profile.pop").is_file()
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("text", ["autoReport.all", "[1]", '{"autoReport.all": {"true": 1}}'])
def test_an_environment_that_is_no_object_of_texts_is_an_error(text, monkeypatch):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(popart.popart_exception, match=f"{VARIABLE}: expected a JSON object"):
        make_session().prepareDevice()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(popart.popart_exception, match=r"profile\.json cannot be written: "):
        make_session(autoReport_directory=str(file), autoReport_all="true").prepareDevice()
