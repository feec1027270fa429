"""A script that stands for a tritonserver that cannot serve.

Tests find Triton's reason in its output, and check that nothing waits in vain.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from poplar_triton.errors import LostServerError, ServerError
from poplar_triton.serving import log, server
from poplar_triton.serving.server import TritonServer
from waiting import PATIENCE_SECONDS

from popef._tools.stalls import count_ticks

HARMLESS = 'E1122 00:45:15.4 2 server.cc:2] "CudaDriverHelper has not been initialized."'
USAGE = "Usage: tritonserver [options]\n  --help\n\tPrint usage\n\nServer:\n  --id <string>\n"


@pytest.fixture
def start(repository, write_program, monkeypatch):
    """Return a function that starts a server of a shell script and returns its ServerError."""
    monkeypatch.setattr(log, "_GPU", Path("/none"))
    monkeypatch.setattr(server, "END_SECONDS", 0.2)
    monkeypatch.setattr(server, "STOP_UNREADY_SECONDS", 0.2)

    def begin(script: str, log: Path | None = None) -> ServerError:
        write_program(f"#!/bin/sh\n{script}\n")
        with pytest.raises(ServerError) as caught, TritonServer(repository, log=log):
            pass
        return caught.value

    return begin


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            f"printf '/x/tritonserver: unrecognized option --no\\n{USAGE}'; exit 1",
            "unrecognized option --no",
        ),
        (
            f"printf '{USAGE}Bad option: --a.\\nno argument for --a\\n'; exit 1",
            "Bad option: --a. no argument for --a",
        ),
        (
            "echo 'E1122 00:45:15.427976 23994 tritonserver.cc:2607] \"no cache\"'; exit 1",
            "no cache",
        ),
        (
            "echo 'E1122 00:45:15.4 2 server.cc:2] \"CudaDriverHelper has not been "
            "initialized.\"'; exit 1",
            "no reason given",
        ),
        ("echo 'error: creating server: Internal - no'; exit 1", "creating server: Internal - no"),
    ],
)
def test_the_error_says_tritons_own_reason(start, script, reason):
    assert str(start(script)) == f"tritonserver stopped with status 1 before it was ready: {reason}"


def test_a_server_that_hangs_after_a_fatal_error_is_not_waited_for(start):
    assert str(start("echo 'error: creating server: no'; exec sleep 60")) == (
        "tritonserver cannot serve, and hangs while stopping: creating server: no"
    )


def test_output_that_went_to_a_file_comes_with_the_error_and_is_escaped(start, tmp_path):
    error = start("printf 'one\\033[31m\\ntwo\\ttabs\\n'; exit 3", tmp_path / "log")
    assert (
        str(error)
        == "tritonserver stopped with status 3 before it was ready: no reason given; see "
        f"{tmp_path / 'log'}"
    )
    assert error.output_lines == (r"one\x1b[31m", "two     tabs")
    assert (tmp_path / "log").read_text().splitlines() == list(error.output_lines)


def test_output_on_stderr_is_escaped(start, capsys):
    start("printf 'one\\033[31m\\nrest'; exit 3")
    assert capsys.readouterr().err.splitlines() == [r"one\x1b[31m", "rest"]


def test_models_whose_folders_are_rejected_have_tritons_reason(tmp_path):
    """Triton lists them without a state."""
    said = """E1125 22:42:13.5 1 a.cc:1] "Poll failed for model directory 'a': unexpected name"
[libprotobuf ERROR a/text_format.cc:337] Error parsing text-format inference.ModelConfig: 3:16: no
E1125 22:42:13.5 1 a.cc:1] "Poll failed for model directory 'b': failed to read text proto"
E1125 22:42:13.5 1 a.cc:1] "failed to load model 'c': at least one version must be available"
E1125 22:42:13.5 1 a.cc:1] "failed to load 'd' version 1: Internal: broken"
"""
    output = log.ServerOutput(io.BytesIO(said.encode()), tmp_path / "log")
    output.join(PATIENCE_SECONDS)
    assert output.rejected_models == {
        "a": "unexpected name",
        "b": "failed to read text proto: 3:16: no",
        "c": "at least one version must be available",
    }


def test_the_end_of_each_models_last_load_is_noted(tmp_path):
    began = count_ticks()
    said = """I1128 08:54:17.511657 1 model_lifecycle.cc:839] "successfully loaded 'a model's'"
E1128 08:54:17.511657 1 model_lifecycle.cc:642] "failed to load 'b' version 1: Internal: broken"
"""
    output = log.ServerOutput(io.BytesIO(said.encode()), tmp_path / "log")
    output.join(PATIENCE_SECONDS)
    assert list(output.loaded_models) == ["a model's"]
    assert began <= output.loaded_models["a model's"] <= count_ticks()


def test_after_a_wrong_call_the_reason_is_shown_but_not_the_screens_of_options(start, capsys):
    start(
        f"printf '/x/tritonserver: unrecognized option --no\\n{USAGE}Bad option: --a.\\n'; exit 1"
    )
    assert capsys.readouterr().err.splitlines() == [
        "/x/tritonserver: unrecognized option --no",
        "Bad option: --a.",
    ]


def test_a_start_that_takes_too_long_names_the_models_that_still_load(
    repository, write_program, tmp_path
):
    place = "I1128 08:54:17.511657 1 model_lifecycle.cc:472]"
    failed = "E1128 08:54:19.1 1 model_lifecycle.cc:642]"
    lines = [
        *(f'{place} "loading: {name}:1"' for name in ("endless", "sound", "bad", "other:1")),
        f"""{place} "successfully loaded 'sound'\"""",
        f"""{failed} "failed to load 'bad' version 1: Internal: no file\"""",
    ]
    (tmp_path / "lines").write_text("\n".join(lines) + "\n")
    write_program(f"#!/bin/sh\ncat {tmp_path / 'lines'}\nexec sleep 60\n")
    words = r"was not ready after 1 s \(still loading: 'endless', 'other:1'\): "
    with (
        pytest.raises(LostServerError, match=words),
        TritonServer(repository, log=tmp_path / "log", start_seconds=1),
    ):
        pass
