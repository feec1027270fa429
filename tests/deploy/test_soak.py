"""Long trouble on two servers of mixed models, three rounds, and more until SOAK_MINUTES are over."""

from __future__ import annotations

import os

import pytest
from fleet.soak import run_soak

MINUTES = float(os.environ.get("SOAK_MINUTES", "0"))


@pytest.mark.timeout(60 * MINUTES + 1500)
def test_trouble_gives_no_wrong_answer_costs_nothing_unexplained_and_leaves_nothing(
    tools, tmp_path, capsys
):
    def tell(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    soak = run_soak(tools, tmp_path, MINUTES, tell)
    tell(soak.describe())
    assert soak.wrongs == []
    assert soak.unexplained_losses == []
    assert soak.starved_floods == []
    assert soak.growth == []
    assert soak.left_overs == []
