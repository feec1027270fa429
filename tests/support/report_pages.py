"""Models whose reports are opened in a browser, and how to open one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from browser import Browser
from onnx import TensorProto, helper
from sample_models import make_model

HOSTILE = (
    "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed=1'>&lt;b&gt;${x}"
)
DRAWN = """const charts = [...document.querySelectorAll(".chart")];
    return document.getElementById("method") && charts.length > 0 && charts.every((each) => each.dataset.drawn && each.querySelector("svg"))
    && [...document.querySelectorAll("canvas.canvas")].every((each) => each.dataset.drawn);"""


def chain(names: list[str], width: int = 64) -> onnx.ModelProto:
    """Return a model of products one after another, each followed by a Tanh."""
    held = {f"w{i}": np.full((width, width), 0.01 * (i + 1), np.float32) for i in range(len(names))}
    nodes = []
    for i, name in enumerate(names):
        nodes.append(helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"m{i}"], name=name))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"t{i + 1}"], name=f"tanh_{i}"))
    shape = (TensorProto.FLOAT, ["n", width])
    return make_model(nodes, {"t0": shape}, {f"t{len(names)}": shape}, held)


def show(browser: Browser, page: Path, scheme: str = "light", width: int = 1280) -> None:
    browser.prefer(scheme)
    browser.resize(width, 1000)
    browser.open("about:blank")
    browser.read_console()
    browser.read_requests()
    browser.open(page.as_uri())
    browser.wait_for(DRAWN)
