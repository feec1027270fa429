"""Tests that the package imports each public name at its first use."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
from waiting import PATIENCE_SECONDS

import popef
from popef import public
from popef._tools.lazy import _find_modules

PROGRAM = """
import sys, popef
assert "numpy" not in sys.modules
from popef._tools.text import escape
assert "numpy" not in sys.modules and "popef.public" not in sys.modules
assert popef.DataType.__module__ == "popef.enums"
assert "popef.writer" not in sys.modules and "popef.public" not in sys.modules
assert popef.scan.Blob.__name__ == "Blob"
assert not hasattr(popef, "Nothing")
from popef import *
assert Reader is popef.Reader and "Reader" in vars(popef)
"""


def test_a_small_module_brings_no_numpy_and_the_rest_comes_on_demand():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=PATIENCE_SECONDS)


def test_the_public_names_are_seen():
    assert popef.__all__ == public.__all__
    assert set(public.__all__) <= set(dir(popef))


@pytest.mark.parametrize("name", ["nothing", "__nothing__"])
def test_a_name_that_is_not_there_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=f"module 'popef' has no attribute '{name}'"):
        getattr(popef, name)


@pytest.mark.parametrize(
    "package",
    "popef poprt poprt.cli model_runtime simipu simipu.operators simipu.numerics".split(),
)
def test_each_public_name_is_imported_from_its_own_module(package):
    public = importlib.import_module(f"{package}.public")
    modules = _find_modules(package)
    for name in set(public.__all__) - modules.keys():
        assert importlib.util.find_spec(f"{package}.{name}"), name
    for name, module in modules.items():
        assert getattr(importlib.import_module(module, package), name) is getattr(public, name)


STAND_IN = """
import sys, threading
from popef._tools.lazy import stand_in
stand_in("asyncio", iscoroutine="asyncio.coroutines")
import asyncio
assert not asyncio.iscoroutine(3) and not asyncio.coroutines.iscoroutine(3)
assert "asyncio.events" not in sys.modules
missing = []
def use():
    if not callable(asyncio.run):
        missing.append("run")
threads = [threading.Thread(target=use) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not missing and sys.modules["asyncio"] is asyncio
async def answer():
    await asyncio.sleep(0)
    return 42
assert asyncio.run(answer()) == 42 and asyncio.iscoroutine(coroutine := answer())
coroutine.close()
assert not hasattr(asyncio, "nothing")
before = vars(asyncio).copy()
stand_in("asyncio", iscoroutine="asyncio.coroutines")
assert vars(asyncio) == before
"""
OTHER_USES = ["from asyncio import Queue", "import asyncio.subprocess", "from asyncio import *"]


@pytest.mark.parametrize("use", ["", *OTHER_USES])
def test_the_rest_of_a_package_is_imported_when_it_is_used(use):
    program = STAND_IN.replace("missing = []", f"missing = []\n{use}")
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_SECONDS)


MESSAGES = """
import sys
from popef._tools.lazy import leave_out_protobuf
leave_out_protobuf()
import onnx
from google.protobuf.internal import api_implementation
assert api_implementation.Type() == "{type}"
model = onnx.helper.make_model(onnx.helper.make_graph([], "graph", [], []))
assert onnx.ModelProto.FromString(model.SerializeToString()) == model
import calendar
from google.protobuf import json_format, text_format, timestamp_pb2
assert "timegm" not in vars(calendar)
assert timestamp_pb2.Timestamp(seconds=3).ToJsonString() == "1970-01-01T00:00:03Z"
from google.protobuf.internal import python_message
used = [module.__name__ for module in (json_format, text_format) if "Parse" in vars(module)]
assert ("GeneratedProtocolMessageType" in vars(python_message)) == ("{type}" == "python")
assert "{type}" == "python" or not used
for module in (json_format, text_format):
    text = module.MessageToJson(model) if module is json_format else module.MessageToString(model)
    assert module.Parse(text, onnx.ModelProto()) == model
"""


@pytest.mark.parametrize("implementation", ["upb", "python"])
def test_protobuf_reads_messages_without_the_parts_that_are_not_used(implementation):
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation}
    subprocess.run(
        [sys.executable, "-c", MESSAGES.format(type=implementation)],
        check=True,
        env=environment,
        timeout=PATIENCE_SECONDS,
    )
