"""Measuring this machine: limits of the child process, its spoilt results, and energy counters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from poplar_triton.compare import machine
from poplar_triton.compare.machine import Effort, Feeds, find_cpu, measure
from poplar_triton.compare.stopwatch import read_joules, subtract_joules
from poplar_triton.compare.systems import Point, System
from sample_models import make_model

F = TensorProto.FLOAT
ENOUGH = 0.3
"""Seconds for a batch size: no call of so small a model takes that long."""
START = "from poplar_triton.compare import stopwatch; "


def model_of(batch: int, *, given: int | str = "n") -> onnx.ModelProto:
    """Return y = tanh(x) with a batch size; `given` is that of the declared input."""
    shapes = {"x": (F, [given if batch == 0 else batch, 4])}
    return make_model([helper.make_node("Tanh", ["x"], ["y"])], shapes, {"y": (F, [None, 4])}, {})


def run(folder: Path, sizes=(1, 2), seconds: float = ENOUGH, given: int | str = "n") -> System:
    """Measure the model of `model_of` at these batch sizes."""
    onnx.save(model_of(0, given=given), folder / "model.onnx")
    feeds = Feeds(folder, {"x": F})
    for size in sizes:
        feeds.add(size, model_of(size))
    return measure(find_cpu(), folder / "model.onnx", feeds, Effort(seconds, 1), folder)


def test_each_batch_size_is_measured(tmp_path):
    system = run(tmp_path)
    assert [point.batch_size for point in system.points] == [1, 2]
    assert not system.missing


def test_a_batch_size_that_fails_has_the_reason_and_the_others_their_figures(tmp_path):
    system = run(tmp_path, (1, 2, 3), given=2)
    assert [point.batch_size for point in system.points] == [2]
    assert set(system.missing) == {1, 3}
    assert all("ONNX Runtime cannot run it" in why for why in system.missing.values())


def test_a_crash_keeps_the_batch_sizes_before_it(tmp_path, monkeypatch):
    crash = "real = stopwatch._try_batch; stopwatch._try_batch = lambda s, b, *a: " + (
        "real(s, b, *a) if b['size'] < 2 else __import__('os').abort(); stopwatch.main()"
    )
    monkeypatch.setattr(machine, "_CODE", START + crash)
    system = run(tmp_path)
    assert [point.batch_size for point in system.points] == [1]
    assert system.missing == {2: "ONNX Runtime crashed (SIGABRT)"}


@pytest.mark.slow
def test_a_call_that_does_not_end_is_ended_with_an_error(tmp_path, monkeypatch):
    sleep = "stopwatch._try_batch = lambda *a: __import__('time').sleep(600); stopwatch.main()"
    monkeypatch.setattr(machine, "_CODE", START + sleep)
    monkeypatch.setattr(machine, "_START_SECONDS", 4.0)
    system = run(tmp_path)
    assert not system.points
    assert "it took more than 6 s in all; --seconds raises the limit" in system.reason


def test_larger_batches_than_one_that_is_too_slow_are_not_tried(tmp_path, monkeypatch):
    slow = "stopwatch._measure = lambda *a: dict(calls=1, total_seconds=9, median_seconds=9, "
    slow += "p10_seconds=9, p90_seconds=9, joules=None); stopwatch.main()"
    monkeypatch.setattr(machine, "_CODE", START + slow)
    system = run(tmp_path, (1, 2, 4), seconds=0.01)
    assert [point.batch_size for point in system.points] == [1]
    assert set(system.missing) == {2, 4}
    assert "a call of batch 1 takes longer than 0.01 s" in system.missing[4]


def test_a_damaged_model_is_a_reason_and_no_crash(tmp_path):
    feeds = Feeds(tmp_path, {"x": F})
    feeds.add(1, model_of(1))
    (tmp_path / "model.onnx").write_bytes(b"\x08" * 100)
    system = measure(find_cpu(), tmp_path / "model.onnx", feeds, Effort(0.01, 1), tmp_path)
    assert "ONNX Runtime cannot load the model" in system.reason


def test_inputs_have_the_types_of_the_given_model(tmp_path):
    feeds = Feeds(tmp_path, {"x": TensorProto.DOUBLE})
    feeds.add(3, model_of(3))
    (batch,) = feeds.describe()
    values = np.load(batch["inputs"]["x"])
    assert (values.dtype, values.shape) == (np.float64, (3, 4))


def zone(folder: Path, number: int, name: str, microjoules: int) -> None:
    made = folder / f"intel-rapl:{number}"
    made.mkdir(exist_ok=True)
    (made / "name").write_text(f"{name}\n")
    (made / "energy_uj").write_text(f"{microjoules}\n")
    (made / "max_energy_range_uj").write_text("100000000\n")


def test_the_energy_of_all_packages_is_summed_and_a_counter_may_start_again(tmp_path):
    zone(tmp_path, 0, "package-0", 90_000_000)
    zone(tmp_path, 1, "package-1", 5_000_000)
    zone(tmp_path, 2, "psys", 7)
    before = read_joules(tmp_path)
    zone(tmp_path, 0, "package-0", 10_000_000)
    zone(tmp_path, 1, "package-1", 6_000_000)
    assert subtract_joules(before, read_joules(tmp_path)) == pytest.approx(20 + 1)


@pytest.mark.parametrize("fault", ["no folder", "no counter", "no number"])
def test_energy_that_cannot_be_read_is_unknown(tmp_path, fault):
    if fault != "no folder":
        zone(tmp_path, 0, "package-0", 1)
        file = tmp_path / "intel-rapl:0" / "energy_uj"
        file.write_text("x") if fault == "no number" else file.unlink()
    assert read_joules(tmp_path) is None
    assert subtract_joules(None, None) is None


def test_energy_of_the_cpu_is_that_of_the_counters(tmp_path, monkeypatch):
    """A counter that stands still: the measured energy is known, and 0."""
    zone(tmp_path, 0, "package-0", 1)
    monkeypatch.setattr(machine, "RAPL", tmp_path)
    system = run(tmp_path)
    assert [point.joules_per_sample for point in system.points] == [0, 0]
    assert system.find_energy(system.points[0]).how.startswith("measured by RAPL")


def test_a_limit_holds_for_nine_of_ten_measured_calls():
    from poplar_triton.compare.systems import Spread

    point = Point(1, 0.010, 100.0, spread=Spread(10, 0.009, 0.020))
    system = System("cpu", "CPU", "measured", [point])
    assert system.find_best(0.015) is None
    assert system.find_best(0.020) is point
