"""What tritonserver's options mean for the supervisor."""

from __future__ import annotations

import pytest
from poplar_triton.serving import options


def test_the_last_value_counts_in_both_spellings():
    words = ["--a=1", "--b", "2", "--a", "3", "--c"]
    assert options.find_option(words, "--a") == "3"
    assert options.find_all(words, "--a") == ["1", "3"]
    assert options.find_option(words, "--b") == "2"
    assert options.find_option(words, "--c") == ""
    assert options.find_option(words, "--d") is None


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ([], 30),
        (["--exit-timeout-secs=5"], 5),
        (["--exit-timeout-secs", "0"], 0),
        (["--exit-timeout-secs=x"], 30),
    ],
)
def test_the_time_to_exit_is_tritons_unless_it_is_given(words, seconds):
    assert options.find_exit_seconds(words) == seconds


def test_the_keys_of_restricted_apis_are_sent_along():
    words = [
        "--http-restricted-api=health,metadata:key=a=b",
        "--http-restricted-api",
        "model-repository:other=c",
        "--http-restricted-api=nonsense",
        "--grpc-restricted-protocol=health:Key=d",
    ]
    assert options.make_http_headers(words) == {"key": "a=b", "other": "c"}
    assert options.make_grpc_headers(words) == {"triton-grpc-protocol-key": "d"}


def test_paths_in_options_are_those_of_the_users_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path)
    assert options.make_absolute(
        [
            "--log-file=logs/a.log",
            "--model-repository",
            "../more",
            "--model-repository=s3://bucket/models",
            "--trace-config=triton,file=trace.json",
            "--trace-config",
            "level=TIMESTAMPS",
            "--backend-config=tensorrt,plugins=a.so;/b.so",
            "--backend-config=poplar,sim_ipu_version=c600",
            "--log-verbose=1",
            "--load-model=m",
            "--grpc-server-key",
            "",
            "--cache-directory",
        ]
    ) == [
        f"--log-file={here}/logs/a.log",
        "--model-repository",
        str(tmp_path.parent / "more"),
        "--model-repository=s3://bucket/models",
        f"--trace-config=triton,file={here}/trace.json",
        "--trace-config",
        "level=TIMESTAMPS",
        f"--backend-config=tensorrt,plugins={here}/a.so;/b.so",
        "--backend-config=poplar,sim_ipu_version=c600",
        "--log-verbose=1",
        "--load-model=m",
        "--grpc-server-key",
        "",
        "--cache-directory",
    ]


def test_paths_in_environment_variables_are_those_of_the_users_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    environment = {"PATH": "bin:/usr/bin:", "PYTHONPATH": ":lib", "TMPDIR": "tmp", "HOME": "/root"}
    assert options.make_variables_absolute({**environment, "OTHER": "bin"}) == {
        "PATH": f"{tmp_path}/bin:/usr/bin:",
        "PYTHONPATH": f":{tmp_path}/lib",
        "TMPDIR": f"{tmp_path}/tmp",
        "HOME": "/root",
        "OTHER": "bin",
    }
