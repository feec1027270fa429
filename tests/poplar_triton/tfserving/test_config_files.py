"""TensorFlow Serving's configuration files: valid, wrong and hostile ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import text_format
from hypothesis import example, given
from hypothesis import strategies as st
from poplar_triton.tfserving import config_pb2
from poplar_triton.tfserving.config_files import (
    MAX_BYTES,
    ConfigFileError,
    MonitoringConfig,
    read_model_configs,
    read_monitoring_config,
    read_ssl_config,
)
from poplar_triton.tfserving.settings import METRICS_PATH, ModelSource, ServerTls, VersionPolicy

from popef._tools.text import escape

READERS = (read_model_configs, read_ssl_config, read_monitoring_config)
KEY = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
WHOLE = """
# What a real file may hold.
model_config_list {
  config {
    name: 'half'
    base_path: "/models/half"
    model_platform: "tensorflow"
    model_version_policy { specific { versions: 42 versions: 43 } }
    version_labels { key: 'stable' value: 42 }
    version_labels { key: 'canary' value: 43 }
    logging_config {
      log_collector_config { type: "tfrecord" filename_prefix: "/tmp/log" }
      sampling_config {
        sampling_rate: 0.1
        attributes: 3
        per_task_sampling_configs { dc: "aa" task_index: 0 sampling_rate: 1.0 }
      }
      custom_logging_config { type_url: "x/y" value: "z" }
    }
  },
  config: { name: 'old' base_path: '/old' model_type: TENSORFLOW }
  config: {
    name: 'every' base_path: '/every' model_platform: 'poplar' model_version_policy: { all: {} }
  }
  config: {
    name: 'two' base_path: '/two' model_platform: 'tensorflow'
    model_version_policy: { latest: { num_versions: 2 } }
  }
  config: {
    name: 'zero' base_path: '/zero' model_platform: 'tensorflow'
    model_version_policy: { latest: { num_versions: 0 } }
  }
}
"""


def write(folder: Path, text: str | bytes) -> Path:
    file = folder / "file.config"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def find_fault(read: Callable[[Path], object], file: Path) -> str:
    try:
        read(file)
    except ConfigFileError as error:
        return str(error)
    return ""


def one(fields: str) -> str:
    return f"model_config_list {{ config {{ {fields} }} }}"


def sound(fields: str = "", name: str = "m") -> str:
    return f"name: '{name}' base_path: '/m' model_platform: 'tensorflow' {fields}"


def test_all_that_a_file_of_models_may_hold_is_read(tmp_path: Path) -> None:
    assert read_model_configs(write(tmp_path, WHOLE)) == [
        ModelSource(
            "half",
            Path("/models/half"),
            VersionPolicy(None, frozenset({42, 43})),
            {"stable": 42, "canary": 43},
        ),
        ModelSource("old", Path("/old"), VersionPolicy(1)),
        ModelSource("every", Path("/every"), VersionPolicy(None)),
        ModelSource("two", Path("/two"), VersionPolicy(2)),
        ModelSource("zero", Path("/zero"), VersionPolicy(1)),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected model_config_list with a config for each model, found none"),
        ("model_config_list {}", "found none"),
        ("custom_model_config { type_url: 'x' }", "found custom_model_config"),
        (
            "model_config_list {\n config {\n nme: 'm' } }",
            'line 3: .*"ModelConfig" has no field named "nme"',
        ),
        ("model_config_list { config {\n name: 3 } }", "line 2: "),
        ("model_config_list {", "line 1: "),
        ("model_config_list { config { name: 'a' name: 'b' } }", "line 1: .*multiple"),
        ("{", "line 1: "),
        ('{"model_config_list": {}}', "line 1: "),
        (b"\xff\xfe", "text format, found: .*found UTF-16"),
        (one("base_path: '/m'"), "name of model 1: expected a name, found an empty one"),
        (
            one("name: '\\033[2J' base_path: '/m'"),
            "name of model 1: .*control characters, found .x1b",
        ),
        (one(f"name: '{'n' * 2000}' base_path: '/m'"), "at most 1024 characters, found 2000"),
        (
            one("name: 'm'"),
            "model 'm': base_path: expected the absolute path of a folder.*found ''",
        ),
        (one("name: 'm' base_path: 's3://m'"), "found 's3://m'"),
        (
            one("name: 'm' base_path: '/m\\000' model_platform: 'tensorflow'"),
            "base_path: .*control",
        ),
        (
            one("name: 'm' base_path: '/m'"),
            'model_platform: expected "tensorflow" or "poplar", found \'\'',
        ),
        (one("name: 'm' base_path: '/m' model_platform: 'tflite'"), "found 'tflite'"),
        (one(sound("model_type: TENSORFLOW")), "expected model_platform only, found model_type"),
        (one("name: 'm' base_path: '/m' model_type: OTHER"), "model_type: expected TENSORFLOW"),
        (one("name: 'm' base_path: '/m' model_type: 77"), "model_type: expected TENSORFLOW"),
        (
            f"model_config_list {{ config {{ {sound()} }} config {{ {sound()} }} }}",
            "found 'm' twice",
        ),
        (one(sound("model_version_policy { specific {} }")), "at least one version in specific"),
        (one(sound("model_version_policy { specific { versions: -1 } }")), "at least 0, found -1"),
        (one(sound("model_version_policy { latest { num_versions: -1 } }")), "line 1: "),
        (one(sound("version_labels { key: 'l' value: -7 }")), "at least 0, found -7"),
        (one(sound("version_labels { value: 7 }")), "version_labels: expected a name"),
        (
            one(
                sound(
                    "model_version_policy { specific { versions: 1 } } version_labels { key: 'l' "
                    "value: 2 }"
                )
            ),
            r"expected 'l' to be one of the versions in model_version_policy \(1\), found 2",
        ),
        (one(sound(f"version_labels {{ key: 'l' value: {'9' * 30} }}")), "line 1: "),
    ],
)
def test_a_wrong_file_of_models_is_refused(tmp_path: Path, text: str | bytes, said: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigFileError, match=said) as raised:
        read_model_configs(file)
    assert str(raised.value).startswith(str(file))
    assert "poplar_triton" not in str(raised.value)


def test_the_texts_of_certificates_are_read(tmp_path: Path) -> None:
    message = config_pb2.SSLConfig(server_key=KEY, server_cert=CERTIFICATE, custom_ca=CERTIFICATE)
    file = write(tmp_path, text_format.MessageToString(message))
    assert read_ssl_config(file) == ServerTls(KEY.encode(), CERTIFICATE.encode(), None)
    message.client_verify = True
    file = write(tmp_path, text_format.MessageToString(message))
    config = read_ssl_config(file)
    assert config == ServerTls(KEY.encode(), CERTIFICATE.encode(), CERTIFICATE.encode())
    assert "c2VjcmV0" not in repr(config)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "expected server_key, found none"),
        ({"server_key": KEY}, "expected server_cert, found none"),
        (
            {"server_key": "/etc/key.pem", "server_cert": CERTIFICATE},
            "server_key: expected the text itself",
        ),
        (
            {"server_key": KEY, "server_cert": CERTIFICATE, "custom_ca": "ca"},
            "custom_ca: expected the text",
        ),
        (
            {"server_key": KEY, "server_cert": CERTIFICATE, "client_verify": True},
            ("requires custom_ca"),
        ),
    ],
)
def test_certificates_that_are_wrong_are_refused(tmp_path: Path, fields: dict, said: str) -> None:
    file = write(tmp_path, text_format.MessageToString(config_pb2.SSLConfig(**fields)))
    with pytest.raises(ConfigFileError, match=said):
        read_ssl_config(file)


@pytest.mark.parametrize(
    "text",
    [
        "server_key: c2VjcmV0",
        "server_key: 'c2VjcmV0",
        "server_key: '-----BEGIN\nc2VjcmV0\n'",
        "c2VjcmV0: 1",
        b"server_key: '\xffc2VjcmV0'",
    ],
)
def test_errors_show_nothing_of_a_key(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(ConfigFileError) as raised:
        read_ssl_config(write(tmp_path, text))
    assert "c2VjcmV0" not in str(raised.value)
    assert raised.value.__suppress_context__


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("", MonitoringConfig(False, METRICS_PATH)),
        ("prometheus_config { enable: true }", MonitoringConfig(True, METRICS_PATH)),
        (
            "prometheus_config { enable: true, path: '/metrics' }",
            MonitoringConfig(True, "/metrics"),
        ),
    ],
)
def test_the_metrics_have_a_path(tmp_path: Path, text: str, config: MonitoringConfig) -> None:
    assert read_monitoring_config(write(tmp_path, text)) == config


@pytest.mark.parametrize("path", ["metrics", "/a\\nb", "/" + "a" * 2000])
def test_a_path_of_metrics_that_no_client_could_ask_for_is_refused(
    tmp_path: Path, path: str
) -> None:
    with pytest.raises(ConfigFileError, match=r"prometheus_config\.path: expected"):
        read_monitoring_config(write(tmp_path, f"prometheus_config {{ path: '{path}' }}"))


@pytest.mark.parametrize("read", READERS)
def test_only_regular_files_of_limited_size_are_read(read, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ConfigFileError, match="found a folder, a device or a pipe"):
            read(path)
    with pytest.raises(ConfigFileError, match=f"expected at most {MAX_BYTES} bytes, found more"):
        read(write(tmp_path, b"#" * (MAX_BYTES + 1)))


@pytest.mark.parametrize(
    "text",
    [
        "a{" * (MAX_BYTES // 2),
        "{" * MAX_BYTES,
        "[" * MAX_BYTES,
        "model_config_list{" * (MAX_BYTES // 20),
        "model_config_list{config{logging_config{custom_logging_config{"
        + "[a/google.protobuf.Any]{" * (MAX_BYTES // 30),
        pytest.param(
            "model_config_list{config{name:" + '"a"' * (MAX_BYTES // 4), marks=pytest.mark.slow
        ),
        "model_config_list{config{model_type:" + "9" * (MAX_BYTES // 2),
        "model_config_list{config{version_labels{value:" + "9" * (MAX_BYTES // 2),
        "model_config_list{config{logging_config{sampling_config{sampling_rate:"
        + "9" * (MAX_BYTES // 2),
        "model_config_list{config{name:'" + "\\x00" * (MAX_BYTES // 8),
        "\n" * (MAX_BYTES - 1) + "x",
        "#" * MAX_BYTES,
        "prometheus_config{path:'" + "a" * (MAX_BYTES // 2),
        pytest.param("server_key:" + "'a'" * (MAX_BYTES // 4), marks=pytest.mark.slow),
    ],
    ids=lambda text: text[:40],
)
@pytest.mark.parametrize("read", READERS)
def test_large_and_deep_files_end_in_an_error_or_a_configuration(
    read, tmp_path: Path, text: str
) -> None:
    assert len(find_fault(read, write(tmp_path, text))) < 2_000


TOKENS = st.sampled_from(
    [
        *(
            "model_config_list",
            "config",
            "name",
            "base_path",
            "model_platform",
            "version_labels",
            "key",
        ),
        *(
            "value",
            "model_version_policy",
            "specific",
            "versions",
            "latest",
            "all",
            "server_key",
            "path",
        ),
        *(
            "prometheus_config",
            "enable",
            "client_verify",
            "custom_model_config",
            "[x/y]",
            "model_type",
        ),
        *(
            "{",
            "}",
            "<",
            ">",
            ":",
            ",",
            ";",
            "[",
            "]",
            "'a'",
            "'/m'",
            "'tensorflow'",
            "1",
            "-1",
            "0x",
            "1e9",
        ),
        *(
            "true",
            "inf",
            "nan",
            "# c\n",
            "\n",
            "'\\377'",
            "'\\ud800'",
            "\0",
            "é",
            "\ufeff",
            "TENSORFLOW",
        ),
    ]
)


@given(st.lists(TOKENS, max_size=40).map(" ".join) | st.text() | st.binary())
@example("model_config_list { config { name: '\\377' } }")
@example("model_config_list { config { logging_config { custom_logging_config { [x/y] { } } } } }")
def test_any_file_ends_in_an_error_of_one_line_or_a_configuration(tmp_path_factory, text) -> None:
    file = write(
        tmp_path_factory.getbasetemp(),
        text.encode("utf-8", "replace") if isinstance(text, str) else text,
    )
    for read in READERS:
        fault = find_fault(read, file)
        assert fault == escape(fault)
