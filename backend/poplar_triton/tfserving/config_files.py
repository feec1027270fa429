"""TensorFlow Serving's configuration files: protobuf's text format, with the messages of
config.proto, read and checked as tensorflow_model_server does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from popef._tools.file_kinds import HEAD_BYTES, recognize
from popef._tools.text import decode_text, escape, find_name_fault
from poplar_triton.errors import CommandError
from poplar_triton.tfserving import config_pb2
from poplar_triton.tfserving.settings import METRICS_PATH, ModelSource, ServerTls, VersionPolicy

MAX_BYTES = 1 << 20
"""Maximum size of a file: some ten thousand models."""
PLATFORMS = ("tensorflow", "poplar")
"""Values that model_platform may have: the name in a file for TensorFlow Serving, and Triton's name
for this backend. Both mean the same, because only PopEF models are served."""
_PACKAGE = config_pb2.DESCRIPTOR.package
_PEM = re.compile(r"\s*-----BEGIN [A-Z0-9 ]+-----\s")


class ConfigFileError(CommandError):
    """Error of a configuration file with an invalid format."""


@dataclass(frozen=True, slots=True)
class MonitoringConfig:
    """Content of --monitoring_config_file: whether the REST port has a metrics page, and its
    path."""

    enabled: bool = False
    path: str = METRICS_PATH


def read_model_configs(file: Path) -> list[ModelSource]:
    """Return the models of a --model_config_file, at least one, each name once.

    If the file has no policy for a model, its newest version is served, whatever its config.pbtxt
    says.

    Raises ConfigFileError, in one line that names the file and the line or model, for a file that
    tensorflow_model_server would reject, for one without models, and for labels of versions that
    its model's policy excludes. Raises OSError for a file that cannot be read.
    """
    message = _read(file, config_pb2.ModelServerConfig())
    if message.HasField("custom_model_config"):
        raise _error(
            file, "expected model_config_list, found custom_model_config, which is not supported"
        )
    models: dict[str, ModelSource] = {}
    for config in message.model_config_list.config:
        if fault := find_name_fault(config.name):
            raise _error(file, f"name of model {len(models) + 1}: {fault}")
        if config.name in models:
            raise _error(file, f"expected every model once, found {_quote(config.name)} twice")
        if fault := _find_fault(config):
            raise _error(file, f"model {_quote(config.name)}: {fault}")
        models[config.name] = ModelSource(
            config.name, Path(config.base_path), _policy(config), dict(config.version_labels)
        )
    if not models:
        raise _error(file, "expected model_config_list with a config for each model, found none")
    return list(models.values())


def read_ssl_config(file: Path) -> ServerTls:
    """Return the content of an --ssl_config_file: texts in PEM, and whether clients must present
    certificates.

    Raises ConfigFileError, whose message shows nothing of the file's content, and OSError for a
    file that cannot be read.
    """
    message = _read(file, config_pb2.SSLConfig(), secret=True)
    for name in ("server_key", "server_cert", "custom_ca"):
        text = getattr(message, name)
        if not text and name != "custom_ca":
            raise _error(file, f"expected {name}, found none")
        if text and not _PEM.match(text):
            raise _error(
                file,
                f"{name}: expected the text itself in PEM (-----BEGIN ...), found a path or "
                "another text",
            )
    if message.client_verify and not message.custom_ca:
        raise _error(
            file, "client_verify: requires custom_ca, which verifies the clients, found none"
        )
    client_ca = message.custom_ca.encode() if message.client_verify else None
    return ServerTls(message.server_key.encode(), message.server_cert.encode(), client_ca)


def read_monitoring_config(file: Path) -> MonitoringConfig:
    """Return the content of a --monitoring_config_file. Raises ConfigFileError for an invalid file,
    and OSError for one that cannot be read."""
    config = _read(file, config_pb2.MonitoringConfig()).prometheus_config
    path = config.path or METRICS_PATH
    fault = find_name_fault(path)
    if fault is None and not path.startswith("/"):
        fault = f"expected a path that begins with /, found {_quote(path)}"
    if fault:
        raise _error(file, f"prometheus_config.path: {fault}")
    return MonitoringConfig(config.enable, path)


def _read(file: Path, message: Any, *, secret: bool = False) -> Any:
    """Parse the file into `message`, and return it. With `secret` errors quote nothing of the
    file."""
    if file.exists() and not file.is_file():
        raise _error(file, "expected a file, found a folder, a device or a pipe")
    with file.open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _error(file, f"expected at most {MAX_BYTES} bytes, found more")
    expected = f"expected TensorFlow Serving's {message.DESCRIPTOR.name} in protobuf's text format"
    try:
        return text_format.Parse(decode_text(data), message)
    except text_format.ParseError as error:
        line = error.GetLine()
        place = "" if line is None else f"line {line}: "
        reason = str(error).rpartition(" : ")[2] if line is None else str(error).partition(" : ")[2]
        description = "something else" if secret else reason.replace(f"{_PACKAGE}.", "")
        raise _error(file, f"{place}{expected}, found: {escape(description, 500)}") from (
            None if secret else error
        )
    except (ValueError, RecursionError) as error:
        kind = recognize(data[:HEAD_BYTES])
        is_known = kind is not None and "text" not in kind.name  # which shows its first line
        description = str(kind) if is_known else "bytes that are no text" if secret else str(error)
        raise _error(file, f"{expected}, found: {escape(description, 500)}") from (
            None if secret else error
        )


def _find_fault(config: Any) -> str | None:
    """Return what is wrong with a ModelConfig, apart from its name."""
    if not config.base_path.startswith("/"):
        return (
            "base_path: expected the absolute path of a folder that contains a folder per "
            f"version, found {_quote(config.base_path)}"
        )
    if fault := find_name_fault(config.base_path):
        return f"base_path: {fault}"
    return _find_platform_fault(config) or _find_version_fault(config)


def _find_platform_fault(config: Any) -> str | None:
    if config.model_type and config.model_platform:
        return "expected model_platform only, found model_type (deprecated) too"
    if config.model_type not in (config_pb2.MODEL_TYPE_UNSPECIFIED, config_pb2.TENSORFLOW):
        return "model_type: expected TENSORFLOW, found another"
    if not config.model_type and config.model_platform not in PLATFORMS:
        allowed = " or ".join(f'"{platform}"' for platform in PLATFORMS)
        return f"model_platform: expected {allowed}, found {_quote(config.model_platform)}"
    return None


def _find_version_fault(config: Any) -> str | None:
    chosen = config.model_version_policy
    if chosen.HasField("specific") and not chosen.specific.versions:
        return "model_version_policy: expected at least one version in specific, found none"
    for number in (*chosen.specific.versions, *config.version_labels.values()):
        if number < 0:
            return f"expected versions of at least 0, found {number}"
    for label, version in config.version_labels.items():
        if fault := find_name_fault(label):
            return f"version_labels: {fault}"
        if chosen.HasField("specific") and version not in chosen.specific.versions:
            served = ", ".join(map(str, chosen.specific.versions))
            return (
                f"version_labels: expected {_quote(label)} to be one of the versions in "
                f"model_version_policy ({escape(served, 200)}), found {version}"
            )
    return None


def _policy(config: Any) -> VersionPolicy:
    chosen = config.model_version_policy
    if chosen.HasField("specific"):
        return VersionPolicy(None, frozenset(chosen.specific.versions))
    if chosen.HasField("all"):
        return VersionPolicy(None)
    return VersionPolicy(max(chosen.latest.num_versions, 1))


def _quote(text: str) -> str:
    return escape(repr(text), 200)


def _error(file: Path, text: str) -> ConfigFileError:
    return ConfigFileError(escape(f"{file}: {text}"))
