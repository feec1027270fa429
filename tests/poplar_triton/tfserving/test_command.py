"""The options of `poplar-triton tfserving`: what they mean, and which are rejected."""

import re
import sys

import pytest
from poplar_triton import cli
from poplar_triton.errors import ServerError
from poplar_triton.serving.log import Log
from poplar_triton.tfserving import command
from poplar_triton.tfserving.config_files import ConfigFileError
from poplar_triton.tfserving.settings import ModelSource, ServerSettings, TritonTls, VersionPolicy

from popef._tools.arguments import Parser
from popef._tools.console import UsageError

KEY = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


@pytest.fixture
def folder(tmp_path):
    """Return a repository with two models, an empty folder and a file."""
    for name in ("b", "a"):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
    (tmp_path / "models" / "empty").mkdir()
    (tmp_path / "models" / "notes.txt").touch()
    return tmp_path / "models"


def parse(*words):
    parser = Parser(prog="tfserving")
    command.add_arguments(parser)
    return parser.parse_args(list(map(str, words)))


def read(*words):
    return command.read_settings(parse(*words))


def test_a_repository_is_served_with_the_documented_defaults(folder):
    settings = read(folder)
    assert settings == ServerSettings(
        sources=tuple(ModelSource(name, folder / name) for name in ("a", "b"))
    )
    assert (settings.grpc_port, settings.rest_port, settings.address) == (8500, 8501, "127.0.0.1")
    assert settings.metrics_path == "/monitoring/prometheus/metrics"
    assert (settings.rest_seconds, settings.load_retries, settings.load_retry_seconds) == (
        30,
        5,
        60,
    )
    assert settings.names == ["a", "b"]


def test_one_model_is_served_under_its_name(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert read("--model_base_path", "a").sources == (ModelSource("default", folder / "a"),)
    settings = read("--model_name", "mine", "--model_base_path", folder / "a")
    assert settings.sources == (ModelSource("mine", folder / "a"),)


def test_a_model_config_file_names_models_policies_and_labels(folder, tmp_path):
    file = tmp_path / "models.config"
    file.write_text(
        f'model_config_list {{ config {{ name: "m" base_path: "{folder / "a"}" model_platform: '
        '"tensorflow" '
        'model_version_policy { specific { versions: 3 } } version_labels { key: "stable" value: 3 '
        "} } }"
    )
    policy = VersionPolicy(specific=frozenset({3}))
    source = ModelSource("m", folder / "a", policy, {"stable": 3})
    assert read("--model_config_file", file).sources[0].labels == {"stable": 3}
    assert read("--model_config_file", file).sources[0].policy.choose([2, 3]) == policy.choose(
        [2, 3]
    )
    settings = read("--triton", "host:8001", "--model_config_file", file)
    assert (settings.triton, settings.names) == ("host:8001", [source.name])
    assert read("--triton", "host:8001").sources == ()


def test_every_option_is_a_setting(folder, tmp_path):
    for name in ("root", "key", "chain"):
        (tmp_path / name).write_text(name)
    settings = read(
        *(
            "--port",
            1,
            "--rest_api_port",
            0,
            "--address",
            "::1",
            "--processes",
            3,
            "--drain-seconds",
            4,
        ),
        *(
            "--rest_api_timeout_in_ms",
            1500,
            "--file_system_poll_wait_seconds",
            0,
            "--max_num_load_retries",
            0,
        ),
        *(
            "--load_retry_interval_micros",
            -1,
            "--grpc_channel_arguments",
            "grpc.a=-7,b=x=y,,c=",
            folder,
        ),
        *("--rest_api_enable_cors_support", "--enable_serialization_as_tensor_content=true"),
        *(
            "--allow_version_labels_for_unavailable_models=1",
            "--enable_grpc_healthcheck_service=false",
        ),
        *("--isolate-models", "--max-connections-per-address=9"),
    )
    assert settings == ServerSettings(
        sources=read(folder).sources,
        address="::1",
        grpc_port=1,
        rest_port=0,
        processes=3,
        as_content=True,
        channel_arguments={"grpc.a": -7, "b": "x=y", "c": ""},
        rest_seconds=1.5,
        cors=True,
        poll_seconds=0,
        load_retries=0,
        load_retry_seconds=-1e-6,
        loose_labels=True,
        isolate_models=True,
        rest_connections_per_address=9,
        drain_seconds=4,
    )
    files = (
        "--triton_root_certificates=root --triton_private_key=key --triton_certificate_chain=chain"
    ).split()
    words = [
        f"{name}={tmp_path / file}" for name, _, file in (word.partition("=") for word in files)
    ]
    settings = read("--triton", "host:8001", "--triton_ssl", *words)
    assert settings.triton_tls == TritonTls(b"root", b"key", b"chain")
    assert read("--triton", "host:8001", "--triton_ssl").triton_tls == TritonTls()
    assert read("--triton", "host:8001", "--triton_ssl=false").triton_tls is None


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("prometheus_config { enable: true }", "/monitoring/prometheus/metrics"),
        ('prometheus_config { enable: true path: "/metrics" }', "/metrics"),
        ("prometheus_config { enable: false }", ""),
        ("", ""),
    ],
)
def test_the_page_of_metrics_is_where_its_file_says(folder, tmp_path, text, path):
    (tmp_path / "monitoring").write_text(text)
    assert read(folder, "--monitoring_config_file", tmp_path / "monitoring").metrics_path == path


def test_certificates_are_read_and_kept_to_oneself(folder, tmp_path):
    (tmp_path / "ssl").write_text(f"server_key: {KEY!r} server_cert: {CERTIFICATE!r}")
    settings = read(folder, "--ssl_config_file", tmp_path / "ssl")
    assert settings.tls.key.decode() == KEY
    assert "c2VjcmV0" not in repr(settings)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            [],
            "expected one of MODEL_REPOSITORY, --model_config_file, --model_base_path and "
            "--triton, found 0",
        ),
        (["MODELS", "--model_base_path", "x"], "found 2"),
        (
            ["MODELS", "--model_name", "a"],
            "--model_name requires --model_base_path, the folder of the one model to serve; "
            "MODEL_REPOSITORY serves all",
        ),
        (["MODELS", "--model_config_file", "x", "--model_base_path", "x"], "found 3"),
        (
            ["MODELS", "--triton", "host:1"],
            ("--triton: cannot be combined with local models, only with"),
        ),
        (
            ["--model_base_path", "x", "--triton", "host:1"],
            ("--triton: cannot be combined with local models, only with"),
        ),
        (
            ["--model_base_path", "x", "--model_name", "a\nb"],
            "--model_name: expected a name without control",
        ),
        (
            ["MODELS", "--port", "0", "--rest_api_port", "0"],
            "expected --port or --rest_api_port, found 0 for both",
        ),
        (
            ["MODELS", "--rest_api_port", "8500"],
            "--rest_api_port: expected another port than --port, found 8500",
        ),
        (["MODELS", "--triton_private_key", "FILE"], "--triton_private_key requires --triton_ssl"),
        (
            ["--triton", "h:1", "--triton_root_certificates", "FILE"],
            "--triton_root_certificates requires --triton_ssl",
        ),
        (
            ["--triton", "h:1", "--triton_ssl", "--triton_private_key", "FILE"],
            (
                "--triton_private_key and --triton_certificate_chain are required together, found "
                "one of them"
            ),
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(folder, tmp_path, words, reason):
    (tmp_path / "file").touch()
    given = {"MODELS": folder, "FILE": tmp_path / "file"}
    with pytest.raises(UsageError, match=re.escape(reason)):
        read(*(given.get(word, word) for word in words))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--port", "65536"], "expected a whole number from 0 to 65535, found '65536'"),
        (["--port", "x"], "argument --port"),
        (["--processes", "0"], "expected a whole number from 1 to 256"),
        (["--rest_api_timeout_in_ms", "0"], "expected a whole number from 1"),
        (["--max_num_load_retries", "-1"], "expected a whole number from 0"),
        (
            ["--load_retry_interval_micros", "1" + "0" * 400],
            "expected a whole number from -86400000000",
        ),
        (["--rest_api_enable_cors_support=yes"], "expected true or false, found 'yes'"),
        (["--grpc_channel_arguments", "a"], "expected NAME=VALUE, found 'a'"),
        (["--grpc_channel_arguments", "=1"], "expected NAME=VALUE, found '=1'"),
        (
            ["--grpc_channel_arguments", f"a={2**31}"],
            f"expected a 32-bit number for a, found {2**31}",
        ),
        (["--grpc_channel_arguments", f"a=-{2**40}"], "expected a 32-bit number for a"),
        (["--grpc_channel_arguments", "a=" + "9" * 5000], "argument --grpc_channel_arguments"),
        (["--rest_api_tim", "5"], "unknown option '--rest_api_tim'"),
    ],
)
def test_values_that_are_none_are_refused(folder, capsys, words, reason):
    with pytest.raises(SystemExit) as ended:
        parse(folder, *words)
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def test_files_and_folders_that_are_not_there_or_not_right_are_named(folder, tmp_path):
    with pytest.raises(ServerError, match="expected a folder of model folders, found a file"):
        read(__file__)
    with pytest.raises(ServerError, match="model repository /nowhere: no such folder"):
        read("/nowhere")
    with pytest.raises(ServerError, match=r"no models in .*empty"):
        read(folder / "empty")
    with pytest.raises(ServerError, match="looks like a model folder; serve its parent"):
        read(folder / "a")
    (tmp_path / "wrong").write_text("what?")
    for option in ("--model_config_file", "--monitoring_config_file", "--ssl_config_file"):
        models = [] if option == "--model_config_file" else [folder]
        with pytest.raises(ConfigFileError, match="wrong"):
            read(*models, option, tmp_path / "wrong")
        with pytest.raises(FileNotFoundError, match="nowhere"):
            read(*models, option, "/nowhere")


@pytest.mark.parametrize("name", ["\udcff", "new\nline", "\x1b[31m"])
def test_folders_whose_names_are_unfit_for_models_are_refused(folder, name):
    (folder / name / "1").mkdir(parents=True)
    with pytest.raises(
        ServerError, match=r"expected a name without control characters, .*; rename the folder"
    ) as refusal:
        read(folder)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("package", ["grpc", "aiohttp"])
def test_a_package_that_is_not_there_is_named_with_what_installs_it(folder, monkeypatch, package):
    find = command.importlib.util.find_spec
    monkeypatch.setattr(
        command.importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    words = re.escape(
        f"tfserving requires the package {package}, which is not installed; `pip install "
        "'poplar-triton"
    )
    with pytest.raises(ServerError, match=words):
        command.run(parse(folder))


def test_wrong_calls_of_the_command_end_in_one_line(folder, capsys):
    for words, status in (([], 2), ([str(folder), "--triton", "host:1"], 2), (["/nowhere"], 1)):
        with pytest.raises(SystemExit) as ended:
            sys.exit(cli.main(["tfserving", *words]))
        assert ended.value.code == status
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("sources", "path"),
    [((), "/v1/models"), ((ModelSource("b", "/b"), ModelSource("a", "/a")), "/v1/models/a")],
)
def test_the_first_lines_name_no_model_that_is_not_served(capsys, sources, path):
    with Log() as log:
        command._introduce(ServerSettings(sources, rest_port=8501, grpc_port=0), None, log)
    assert f"http://127.0.0.1:8501{path}\n" in capsys.readouterr().out
