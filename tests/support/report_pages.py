"""Models whose reports are opened in a browser, and how to open one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from browser import Browser
from onnx import TensorProto, helper
from poplar_triton.profile.report import Content, make_report
from poplar_triton.profile.source import Estimator, ProfileSettings, open_source
from poprt.performance import tiles_of
from sample_models import make_model

HOSTILE = (
    "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed=1'>&lt;b&gt;${x}"
)
DRAWN = """return document.getElementById("method")
    && [...document.querySelectorAll("canvas, .curves")].every((each) => each.dataset.drawn);"""


def chain(names: list[str], width: int = 64) -> onnx.ModelProto:
    """Return a model of products one after another, each followed by a Tanh."""
    weights = {
        f"w{i}": np.full((width, width), 0.01 * (i + 1), np.float32) for i in range(len(names))
    }
    nodes = []
    for i, name in enumerate(names):
        nodes.append(helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"m{i}"], name=name))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"t{i + 1}"], name=f"tanh_{i}"))
    shape = (TensorProto.FLOAT, ["n", width])
    return make_model(nodes, {"t0": shape}, {f"t{len(names)}": shape}, weights)


def make_tile_page(
    model: onnx.ModelProto, folder: Path, **settings: Any
) -> tuple[Path, dict[str, Any]]:
    """Return the page of a model's profile, without advice, and the document of its tiles."""
    onnx.save(model, folder / "model.onnx")
    profile = Estimator(open_source(folder / "model.onnx")).profile(
        ProfileSettings("c600", 4, "fp16", **settings)
    )
    tiles = tiles_of(profile).as_json()
    page = folder / "report.html"
    page.write_text(make_report(Content(profile, tiles=tiles)), encoding="utf-8")
    return page, tiles


def show(browser: Browser, page: Path, scheme: str = "light", width: int = 1280) -> None:
    browser.prefer(scheme)
    browser.resize(width, 1000)
    browser.open("about:blank")
    browser.read_console()
    browser.read_requests()
    browser.open(page.as_uri())
    browser.wait_for(DRAWN)
