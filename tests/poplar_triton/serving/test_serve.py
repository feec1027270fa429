"""`poplar-triton serve`, `demo`, `build` and `install`: output, passed options and exit status."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import model_runtime
import pytest
from poplar_triton import cli, doctor, recipes
from poplar_triton.demo import runner
from poplar_triton.errors import RecipeError
from poplar_triton.serving import command, installation, server
from poplar_triton.serving.command import make_server
from poplar_triton.serving.supervisor import OnDeadStub, Supervisor
from waiting import PATIENCE_SECONDS

from popef._tools.console import UsageError

PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Simulate a machine that meets all prerequisites, and restore signal handlers afterwards."""
    monkeypatch.setattr(doctor, "require", lambda: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def read_lines(text):
    """Return the supervisor's lines without their times; each line must have one."""
    return [re.fullmatch(r"poplar-triton: \S+T\S+Z (.*)", line)[1] for line in text.splitlines()]


def serve(repository: Path, *arguments: str) -> int:
    return cli.main(["serve", str(repository), *PORTS, *arguments])


def test_serve_says_where_and_what_and_stops_in_order_at_an_interrupt(repository, play, capsys):
    for name in ("mine", "a_bad_one", "others"):
        (repository / name).mkdir(exist_ok=True)
        (repository / name / "config.pbtxt").touch()
    index = [
        {"name": "a_bad_one", "state": "UNAVAILABLE", "reason": "why"},
        {"name": "mine", "state": "READY"},
    ]
    config = {"input": [{"name": "x", "data_type": "TYPE_INT32", "dims": ["2"]}]}
    called = play(index=("200 OK", json.dumps(index)), config=config, interrupts=signal.SIGINT)
    assert serve(repository, "--", "--log-verbose=0") == 0
    arguments = called()["arguments"]
    assert arguments[-1] == "--log-verbose=0"
    http, grpc, metrics = (argument.partition("=")[2] for argument in arguments[3:6])
    out, err = capsys.readouterr()
    assert read_lines(err) == ["model 'a_bad_one' is not served: why"]
    assert out.splitlines() == [
        "",
        f"HTTP     http://127.0.0.1:{http}",
        f"gRPC     127.0.0.1:{grpc}",
        f"metrics  http://127.0.0.1:{metrics}/metrics",
        f"Try: curl -s http://127.0.0.1:{http}/v2/models/mine/infer -d "
        """'{"inputs": [{"name": "x", "datatype": "INT32", "shape": [2], "data": [0, 0]}]}'""",
        "Ctrl-C stops the server.",
        "",
        "stopping",
    ]


@pytest.mark.parametrize(
    ("index", "arguments"),
    [
        ([{"name": "a", "state": "UNAVAILABLE"}], ()),
        ([{"name": "a", "state": "READY"}], ("--", "--http-restricted-api=inference:k=v")),
    ],
)
def test_without_a_model_that_anyone_can_ask_no_request_is_printed(
    repository, play, capsys, index, arguments
):
    play(index=("200 OK", json.dumps(index)), interrupts=signal.SIGTERM)
    assert serve(repository, *arguments) == 0
    assert "Try" not in capsys.readouterr().out


def test_a_server_that_does_not_report_its_models_is_warned_of(repository, play, capsys):
    play(index=("403 Forbidden", ""), interrupts=signal.SIGTERM)
    assert serve(repository) == 0
    out, err = capsys.readouterr()
    assert "Try" not in out
    (line,) = read_lines(err)
    assert line.startswith("warning: tritonserver does not report its models (")
    assert line.endswith("); see its output")


def test_the_exit_status_of_a_stopped_server_is_reported_and_is_no_error(repository, play, capsys):
    """Triton never exits normally while there is a dead instance."""
    play(status=7, interrupts=signal.SIGTERM)
    assert serve(repository) == 0
    assert read_lines(capsys.readouterr().err) == ["warning: tritonserver ended with status 7"]


def test_with_log_format_json_each_line_is_an_object(repository, play, capsys):
    says = "I1123 15:37:31.928525 1 main.cc:1] started"
    play(status=7, interrupts=signal.SIGTERM, says=says)
    assert serve(repository, "--log-format", "json") == 0
    found = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["program"], each["level"], each["message"]) for each in found] == [
        ("tritonserver", "info", says),
        ("poplar-triton", "warning", "tritonserver ended with status 7"),
    ]


@pytest.mark.parametrize("status", [0, 7])
def test_a_server_that_ends_by_itself_is_an_error(repository, play, capsys, status):
    play(ends=True, status=status)
    assert serve(repository) == 1
    assert read_lines(capsys.readouterr().err) == [f"tritonserver ended by itself, status {status}"]


def test_before_the_server_is_ready_an_interrupt_is_status_130(
    repository, write_program, monkeypatch, capsys
):
    write_program("#!/bin/sh\nkill -TERM $PPID\nexec sleep 60\n")
    assert serve(repository) == 130
    assert capsys.readouterr() == ("", "")


def test_the_ports_are_those_of_the_options(monkeypatch, repository):
    made = []
    monkeypatch.setattr(
        command, "TritonServer", lambda *arguments, **options: made.append((arguments, options))
    )
    parser = cli.make_parser()
    for words, ports in (
        (["serve"], (8000, 8001, 8002)),
        (["demo"], (0, 0, 0)),
        (["demo", "--grpc-port", "65535"], (0, 65535, 0)),
    ):
        options = parser.parse_args([words[0], str(repository), *words[1:]])
        options.triton_options = []
        make_server(options)
        _, given = made.pop()
        assert (given["http_port"], given["grpc_port"], given["metrics_port"]) == ports


@pytest.mark.parametrize("option", ["--http-port=1", "--grpc-port", "--metrics-port=9"])
def test_ports_after_the_two_dashes_are_a_wrong_call(repository, option, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["serve", str(repository), "--", option])
    assert end.value.code == 2
    name = option.partition("=")[0]
    assert f"{name}: expected before the --, found after it" in capsys.readouterr().err


@pytest.fixture
def examples(repository, monkeypatch):
    """Add an example to the repository, replace `run`, and return what `run` received."""
    (repository / "magika" / "1").mkdir(parents=True)
    (repository / "magika" / "labels.txt").write_text("python")
    shown = SimpleNamespace(equal=True, arguments=())

    def run(*arguments, **options):
        shown.arguments, shown.options = arguments, options
        return shown.equal

    monkeypatch.setattr(runner, "run", run)
    return shown


@pytest.mark.parametrize(
    ("equal", "status", "expected"), [(True, 0, 0), (False, 0, 1), (True, 7, 1)]
)
def test_a_demo_is_fine_when_all_is_equal_and_the_server_ended_well(
    repository, play, examples, equal, status, expected
):
    called = play(status=status)
    examples.equal = equal
    assert cli.main(["demo", str(repository)]) == expected
    http, grpc = (argument.partition("=")[2] for argument in called()["arguments"][3:5])
    assert examples.arguments[:3] == (f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", repository)
    assert (repository.parent / ".cache" / "demo-tritonserver.log").is_file(), "the output is kept"


def test_a_demo_without_an_example_is_an_error(repository, capsys):
    assert cli.main(["demo", str(repository)]) == 1
    assert capsys.readouterr().err.endswith("expected one of the example models, found none\n")


def test_the_modelled_time_of_rows_is_that_of_whole_runs(monkeypatch, tmp_path):
    opened = []

    def session(path):
        opened.append(path)
        return SimpleNamespace(rows_per_run=4, seconds=0.5)

    monkeypatch.setattr(model_runtime, "Session", session)
    seconds = cli._ipu_seconds(tmp_path)
    assert [seconds("m", rows) for rows in (1, 4, 5, 8, 9)] == [0.5, 0.5, 1.0, 1.0, 1.5]
    assert opened == [tmp_path / "m" / "1" / "executable.popef"]


def test_an_interrupt_that_python_swallows_is_taken_up_later():
    """Python drops an exception that a signal handler raises in a weak reference's callback."""
    interrupt = server.Interrupt()
    assert not interrupt.pause(0)
    with suppress(KeyboardInterrupt):
        interrupt._take()
    for take in (interrupt.check, lambda: interrupt.pause(0)):
        with pytest.raises(KeyboardInterrupt):
            take()


def test_build_hands_its_options_on(repository, monkeypatch, capsys):
    assert cli.main(["build", str(repository)]) == 1
    assert (
        "expected model folders with a recipe.json, found none; nothing to build"
        in capsys.readouterr().err
    )
    asked = []
    monkeypatch.setattr(recipes, "read_recipes", lambda _: ["one"])
    monkeypatch.setattr(
        recipes, "build", lambda *arguments, **options: asked.append((arguments, options))
    )
    assert cli.main(["build", str(repository)]) == 0
    assert cli.main(["build", str(repository), "--only", "a", "b", "--force"]) == 0
    for (arguments, options), force, only in zip(
        asked, (False, True), (None, ["a", "b"]), strict=True
    ):
        assert arguments == (repository,)
        assert (options["force"], options["only"]) == (force, only)


def test_a_failed_build_shows_the_programs_output_before_the_reason(
    repository, monkeypatch, capsys
):
    def fail(*_, **__):
        raise RecipeError("mine: pip failed: no network", ["first", "second"])

    monkeypatch.setattr(recipes, "read_recipes", lambda _: ["one"])
    monkeypatch.setattr(recipes, "build", fail)
    assert cli.main(["build", str(repository)]) == 1
    assert (
        capsys.readouterr().err
        == "first\nsecond\npoplar-triton: error: mine: pip failed: no network\n"
    )


def test_install_copies_the_backend_beside_the_python_backend(tmp_path, capsys):
    (tmp_path / "python").mkdir()
    assert cli.main(["install", str(tmp_path)]) == 1
    assert "found no python/libtriton_python.so in it" in capsys.readouterr().err
    assert not (tmp_path / "poplar").exists()
    (tmp_path / "python" / "libtriton_python.so").touch()
    for _ in range(2):  # it replaces an earlier one
        assert cli.main(["install", str(tmp_path)]) == 0
        assert capsys.readouterr().out == f"wrote {tmp_path / 'poplar' / 'model.py'}\n"
        assert "class TritonPythonModel" in (tmp_path / "poplar" / "model.py").read_text()
        (tmp_path / "poplar" / "model.py").write_text("an earlier one")


def triton_options(repository, *words):
    """Return the options that `serve` would pass to tritonserver."""
    own, after = (
        (words[: words.index("--")], words[words.index("--") + 1 :])
        if "--" in words
        else (words, ())
    )
    options = cli.make_parser().parse_args(["serve", str(repository), *own])
    return command._allow_reload(list(after), OnDeadStub(options.on_dead_stub))


def test_a_reload_needs_explicit_control_which_only_the_supervisor_has(repository):
    assert triton_options(repository) == []
    mode, load, http, grpc = triton_options(repository, "--on-dead-stub", "reload")
    assert (mode, load) == ("--model-control-mode=explicit", "--load-model=*")
    name, _, secret = http.rpartition("=")
    assert name == "--http-restricted-api=model-repository:poplar-supervisor"
    assert grpc == f"--grpc-restricted-protocol=model-repository:poplar-supervisor={secret}"
    assert len(secret) == 32
    assert secret not in triton_options(repository, "--on-dead-stub", "reload")[2], (
        "another one each time"
    )


def test_a_chosen_mode_or_key_is_kept(repository):
    reload = ("--on-dead-stub", "reload", "--")
    explicit = "--model-control-mode=explicit"
    assert triton_options(repository, *reload, explicit) == [explicit]
    own = "--http-restricted-api=health,model-repository:mine=x"
    options = triton_options(repository, *reload, own)
    assert [option for option in options if option.startswith("--http-restricted-api")] == [own]
    with pytest.raises(
        UsageError, match="expected --model-control-mode=explicit after the --, found poll"
    ):
        triton_options(repository, *reload, "--model-control-mode", "poll")


@pytest.mark.parametrize("store", ["s3://bucket/models", "gs://bucket", "as://account/container"])
def test_a_store_goes_through_as_it_is(triton, play, store, capsys):
    called = play(interrupts=signal.SIGTERM)
    assert cli.main(["serve", store, *PORTS]) == 0
    assert called()["arguments"][0] == f"--model-repository={store}"
    assert "Try" not in capsys.readouterr().out


def test_another_server_is_started_with_its_own_backends(
    repository, play, triton, tmp_path, monkeypatch
):
    monkeypatch.setattr(installation, "find_triton", lambda: pytest.fail("the wheel is not needed"))
    called = play(interrupts=signal.SIGTERM)
    program = str(triton / "bin" / "tritonserver")
    (triton / "backends" / "other").mkdir()
    assert serve(repository, "--server", program) == 0
    backends = Path(called()["arguments"][1].partition("=")[2])
    assert backends.parent != triton, "links, as the poplar backend is not installed there"
    (triton / "backends" / "poplar").mkdir()
    (triton / "backends" / "poplar" / "model.py").touch()
    assert serve(repository, "--server", program) == 0
    assert called()["arguments"][1] == f"--backend-directory={triton / 'backends'}"


def test_a_script_that_calls_tritonserver_gets_the_wheels_backends(
    repository, play, triton, tmp_path
):
    called = play(interrupts=signal.SIGTERM)
    script = tmp_path / "mine" / "start"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{triton}/bin/tritonserver" "$@"\n')
    script.chmod(0o755)
    assert serve(repository, "--server", str(script)) == 0
    assert called()["arguments"][1].startswith("--backend-directory=")


def test_how_long_a_start_may_take_is_an_option(repository, write_program, capsys, monkeypatch):
    monkeypatch.setattr(server, "STOP_UNREADY_SECONDS", 0.1)
    write_program("#!/bin/sh\nexec sleep 60\n")
    assert serve(repository, "--start-seconds", "1") == 1
    assert "tritonserver was not ready after 1 s" in capsys.readouterr().err


def test_a_server_that_is_no_program_is_an_error(repository, tmp_path, capsys):
    (tmp_path / "none").touch()
    assert serve(repository, "--server", str(tmp_path / "none")) == 1
    assert "--server " in (err := capsys.readouterr().err)
    assert "expected a program to run, found none" in err


def test_the_health_port_is_named_and_answers_while_it_serves(
    repository, play, capsys, monkeypatch
):
    play()
    answers = []

    def look(supervised):
        (line,) = (
            line for line in capsys.readouterr().out.splitlines() if line.startswith("health")
        )
        url = line.split()[1].replace("/ready", "/live")
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            answers.append(answer.read())
        supervised.ask_to_stop()
        return True

    monkeypatch.setattr(Supervisor, "_scan", look)
    assert serve(repository, "--health-port", "0") == 0
    assert answers == [b"live\n"]


LARGE = (
    "numpy",
    "onnx",
    "onnxruntime",
    "grpc",
    "google.protobuf",
    "rich",
    "popef.public",
    "simipu.public",
)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the embedded server has no stub for it")
def test_the_supervisor_holds_nothing_that_computes_or_reads_models(tmp_path):
    """Those modules once cost the supervisor 98 MiB of memory."""
    output, errors = run_and_find_large(["serve", str(tmp_path / "none")])
    assert (output, "No such file" in errors) == ("[]", True)


def test_the_list_of_commands_imports_nothing_that_computes_or_reads_models():
    output, errors = run_and_find_large(["--help"])
    assert ("tfserving" in output, output.splitlines()[-1], errors) == (True, "[]", "")


def run_and_find_large(words):
    """Run the command in a process of its own. Return its output, with the large modules that it
    imported in the last line, and its errors."""
    program = (
        "import sys; from poplar_triton.cli import main\n"
        f"try: main({words})\n"
        f"finally: print([name for name in {LARGE} if name in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    return ended.stdout.strip(), ended.stderr


@pytest.mark.parametrize("first", ["serve", "tfserving", "profile", "doctor", "--help", "nothing"])
def test_a_command_is_found_whatever_is_imported_for_it(first, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([first, "--help"])
    assert ended.value.code == (2 if first == "nothing" else 0)
    captured = capsys.readouterr()
    names = ("serve", "tfserving", "demo", "build", "profile", "install", "doctor")
    shown = [name for name in names if f"{name}" in captured.out + captured.err]
    assert shown == list(names) if first.startswith(("--", "nothing")) else first in shown


def test_canaries_need_http(repository, capsys):
    with pytest.raises(SystemExit, match="2"):
        serve(repository, "--canary-seconds", "5", "--", "--allow-http=false")
    assert (
        "--canary-seconds: requires Triton's HTTP, found --allow-http=false"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("index", "line"),
    [
        ([], "models   none is served"),
        ([{"name": "a"}], "models   none is served"),
        ([{"name": "a", "state": "READY"}], None),
    ],
)
def test_a_server_without_models_reports_it(repository, play, capsys, index, line):
    play(index=("200 OK", json.dumps(index)), interrupts=signal.SIGTERM)
    assert serve(repository) == 0
    out = capsys.readouterr().out.splitlines()
    assert [each for each in out if each.startswith("models")] == ([line] if line else [])


def test_models_whose_folders_triton_rejects_are_named_with_its_reason(repository, play, capsys):
    """Triton lists the first one without a state, and the second one not at all."""
    says = """E1125 22:42:13.5 1 a.cc:1] "Poll failed for model directory 'a': unexpected name"
E1125 22:42:13.5 1 a.cc:1] "failed to load model 'b': at least one version must be available"
"""
    index = [{"name": "a"}, {"name": "c"}]
    play(index=("200 OK", json.dumps(index)), says=says, interrupts=signal.SIGTERM)
    assert serve(repository) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "is not served" in line]
    assert read_lines("\n".join(told)) == [
        "model 'a' is not served: unexpected name",
        "model 'b' is not served: at least one version must be available",
    ]
