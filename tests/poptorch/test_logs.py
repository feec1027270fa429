"""Log lines, the IR and the progress bar that a compilation leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import popart  # noqa: E402
import poptorch  # noqa: E402
from poprt.compile import compiler  # noqa: E402


@pytest.fixture
def traced() -> Iterator[None]:
    poptorch.setLogLevel("TRACE")
    yield
    poptorch.setLogLevel("WARN")


class Scaled(torch.nn.Module):  # type: ignore[misc] # torch may be absent
    """A Linear with a memory proportion, and a buffer that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.count += 1
        return poptorch.set_available_memory(self.fc(x), 0.3) * 2


@pytest.mark.usefixtures("traced")
def test_the_graph_is_logged_with_memory_proportions_and_typed_weights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    poptorch.inferenceModel(Scaled()).compile(torch.ones(2, 5, 4))
    text = capsys.readouterr().err
    lines = text.partition("Graph before lowering to PopART:\n")[2].splitlines()
    product = next(index for index, line in enumerate(lines) if "popart::matmul[" in line)
    assert any("set_available_memory[" in line for line in lines[product:])
    assert "Float(3, strides=[1], requires_grad=1, device=ipu:0) -> fc.bias" in text
    assert "Float(1, strides=[1], requires_grad=0, device=ipu:0) -> count" in text


@pytest.mark.parametrize("dtype", ["half", "float"])
def test_the_ir_has_the_type_of_partial_sums(dtype: str) -> None:
    options = poptorch.Options()
    options.Precision.setPartialsType(getattr(torch, dtype))
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Conv1d(8, 2, 1))
    model = poptorch.inferenceModel(module, options)
    model.compile(torch.ones(1, 8, 8))
    operators = json.loads(model._debugGetPopartIR())["maingraph"]
    found = {each["type"]: each["attributes"] for each in operators}
    assert found["MatMul"]["partialsType"] == f"MatMulPartialsType::{dtype.upper()}"
    assert found["Conv"]["partialsType[0]"] == dtype


def test_only_results_whose_input_has_no_other_reader_are_in_place() -> None:
    def forward(x: Any, y: Any) -> Any:
        return torch.relu(x) + x, torch.tanh(y)

    model = poptorch.inferenceModel(forward)
    model.compile(torch.ones(2), torch.ones(2))
    names = [each["name"] for each in json.loads(model._debugGetPopartIR())["maingraph"]]
    in_place = {name for name in names if name.endswith(":InPlace")}
    assert "Relu" in names
    assert {"Add:InPlace", "Tanh:InPlace"} & in_place


@pytest.mark.parametrize("enabled", [True, False])
def test_the_log_says_who_chose_the_ipu_model(
    enabled: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    poptorch.setLogLevel("INFO")
    model = poptorch.inferenceModel(torch.nn.ReLU(), poptorch.Options().useIpuModel(enabled))
    model.compile(torch.ones(1))
    poptorch.setLogLevel("WARN")
    chosen = "Enabled" if enabled else "Disabled"
    assert f"From the user configuration: Ipu model: {chosen}" in capsys.readouterr().err


def test_popart_logs_a_model_in_its_own_form(capsys: pytest.CaptureFixture[str]) -> None:
    popart.getLogger().setLevel("TRACE")
    try:
        poptorch.inferenceModel(torch.nn.Linear(2, 2))(torch.ones(1, 2))
    finally:
        popart.getLogger().setLevel("WARN")
    found = {tuple(line.split()[1:4:2]) for line in capsys.readouterr().err.splitlines()}
    assert {("popart:ir", "D:"), ("popart:devicex", "T:"), ("popart:session", "T:")} <= found


def test_a_uniform_draw_in_place_has_its_bounds() -> None:
    model = poptorch.inferenceModel(lambda x: (x + 0).uniform_(2, 3))
    drawn = model(torch.zeros(1000))
    assert 2 <= drawn.min() < drawn.max() <= 3
    assert abs(drawn.mean() - 2.5) < 0.1


def test_a_compilation_shows_its_progress_unless_the_option_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disabled_bars: list[bool] = []
    original = compiler.show_progress

    def show_progress(title: str, steps: int, *, disabled: bool) -> Any:
        disabled_bars.append(disabled)
        return original(title, steps, disabled=disabled)

    monkeypatch.setattr(compiler, "show_progress", show_progress)
    poptorch.inferenceModel(torch.nn.Linear(3, 3)).compile(torch.ones(1, 3))
    quiet = poptorch.Options().showCompilationProgressBar(False)
    poptorch.inferenceModel(torch.nn.Linear(3, 3), quiet).compile(torch.ones(1, 3))
    assert disabled_bars == [False, True]
