"""OpenVINO's package, which is optional, without its telemetry: imported here before anything else
imports it.

OpenVINO sends usage data to Intel unless the user refuses, and for that writes a file in the home
directory, which a sandboxed process cannot. Without the package `openvino_telemetry` it sends none.
"""

from __future__ import annotations

import sys
from typing import Any, cast

sys.modules.setdefault("openvino_telemetry", cast("Any", None))

import openvino  # noqa: E402

__all__ = ["openvino"]
