"""`poplar-triton doctor` names what is missing, with remedies; nothing is served without it."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from poplar_triton import cli, doctor
from poplar_triton.doctor import MachineFinding
from poplar_triton.errors import ServerError
from poplar_triton.serving import installation

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def find(subject: str) -> MachineFinding:
    (found,) = (finding for finding in doctor.examine() if finding.subject == subject)
    return found


@pytest.fixture(autouse=True)
def machine(triton, monkeypatch):
    """Simulate a machine that meets all prerequisites; each test case breaks one of them."""
    (triton / "bin" / "tritonserver").touch()
    monkeypatch.setattr(doctor, "find_triton", lambda: triton)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.35"))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=64 << 8, f_frsize=4096))


def test_a_machine_that_has_all_needs_no_remedy(triton):
    findings = {finding.subject: finding for finding in doctor.examine()}
    assert not [finding for finding in findings.values() if finding.remedy]
    assert list(findings) == [
        "system",
        "tritonserver",
        "libpython",
        "/dev/shm",
        "backend",
        *("open files", "threads and processes", "address space", "file size"),
        "temporary folder",
        *("numpy", "protobuf", "onnx", "onnxruntime", "tritonclient", "prometheus-client"),
    ]
    assert findings["system"].found == "Linux x86_64, glibc 2.35"
    assert findings["tritonserver"].found == str(triton / "bin" / "tritonserver")
    assert findings["/dev/shm"].found == "64 MiB free"
    assert findings["backend"].found.endswith("poplar/model.py")
    assert findings["numpy"].found.startswith(__import__("numpy").__version__)
    doctor.require()


@pytest.mark.parametrize(
    ("libc", "fits"),
    [
        (("glibc", "2.35"), True),
        (("glibc", "2.35.1"), True),
        (("glibc", "2.4"), False),
        (("glibc", "2.34"), False),
        (("glibc", "3.0"), True),
        (("", ""), True),  # an unknown version is tried
    ],
)
def test_a_c_library_older_than_the_wheels_is_named_with_systems_that_have_a_newer_one(
    monkeypatch, libc, fits
):
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    found = find("system")
    assert found.found.endswith(f", {libc[0] or 'libc'} {libc[1] or 'unknown'}")
    assert found.remedy == (
        ""
        if fits
        else (
            "the embedded Triton server requires glibc 2.35 or newer: Ubuntu 22.04, Debian 12 or "
            "later"
        )
    )


@pytest.mark.parametrize(("system", "machine"), [("linux", "aarch64"), ("darwin", "x86_64")])
def test_another_system_or_machine_cannot_have_the_server(monkeypatch, system, machine):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert doctor._examine_system().remedy == "the embedded Triton server requires Linux on x86_64"


def test_without_a_server_its_libraries_are_not_looked_for(monkeypatch):
    def missing():
        raise ServerError("install it")

    monkeypatch.setattr(doctor, "find_triton", missing)
    assert find("tritonserver") == MachineFinding("tritonserver", "missing", "install it")
    assert find("libpython") == MachineFinding("libpython", "not checked: no server")


@pytest.fixture
def ldd(monkeypatch):
    """Return a function that sets the output of `ldd`; None means there is no ldd."""

    def say(text: str | None) -> None:
        def run(command, *, env, **_):
            assert command[0] == "ldd"
            assert command[1].endswith(f"{VERSION}/triton_python_backend_stub")
            assert env["LD_LIBRARY_PATH"].endswith("nvidia_pytriton.libs")
            if text is None:
                raise FileNotFoundError
            return SimpleNamespace(stdout=text)

        monkeypatch.setattr(subprocess, "run", run)

    return say


REMEDY = f"on Debian or Ubuntu `apt-get install libpython{VERSION}`"


def test_libraries_that_the_stub_lacks_are_named(ldd):
    ldd(
        "\tliba.so.1 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\tlibpython.so => not "
        "found\n"
    )
    found = find("libpython")
    assert found.found == "liba.so.1, libpython.so not found"
    assert found.remedy.startswith(REMEDY)
    ldd("\tlibc.so.6 => /lib/libc.so.6 (0x1)\n")
    assert find("libpython") == MachineFinding("libpython", "all libraries of the stub were found")


@pytest.mark.parametrize("library", ["libpython.so.1.0", None])
def test_without_ldd_the_systems_libpython_counts(ldd, monkeypatch, library):
    ldd(None)
    asked = []
    monkeypatch.setattr("ctypes.util.find_library", lambda name: asked.append(name) or library)
    found = find("libpython")
    assert asked == [f"python{VERSION}"]
    assert found.found == (library or f"libpython{VERSION}.so.1.0 not found")
    assert found.remedy.startswith(REMEDY) is (library is None)


def test_shared_memory_below_what_docker_gives_is_too_little(monkeypatch):
    monkeypatch.setattr(
        os, "statvfs", lambda _: SimpleNamespace(f_bavail=(64 << 8) - 1, f_frsize=4096)
    )
    assert find("/dev/shm") == MachineFinding(
        "/dev/shm", "63 MiB free", "enlarge it to at least 64 MiB (docker: --shm-size=1g)"
    )


def test_without_shared_memory_the_remedy_is_to_mount_some(monkeypatch):
    def fail(_):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "statvfs", fail)
    found = find("/dev/shm")
    assert found.found.endswith("No such file or directory")
    assert "mount a tmpfs there" in found.remedy


def test_a_package_and_a_backend_that_are_missing_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "PACKAGES", ("no-such-package",))
    monkeypatch.setattr(
        installation, "__file__", str(tmp_path / "poplar_triton" / "serving" / "installation.py")
    )
    assert find("no-such-package") == MachineFinding(
        "no-such-package", "missing", "pip install no-such-package"
    )
    path = tmp_path / "poplar" / "model.py"
    found = find("backend")
    assert found.remedy == f"the backend's model.py is missing at {path}; reinstall this project"


@pytest.fixture
def lacking(monkeypatch) -> Callable[[], None]:
    findings = [
        MachineFinding("a", "1"),
        MachineFinding("b", "none", "get b"),
        MachineFinding("c", "old", "get c"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda: findings)


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_nothing_is_served_without_what_is_needed(lacking, command, repository, capsys):
    (repository / "magika").mkdir()
    (repository / "magika" / "labels.txt").touch()
    assert cli.main([command, str(repository)]) == 1
    assert capsys.readouterr().err == "poplar-triton: error: b: none: get b; c: old: get c\n"


def test_the_findings_are_a_document_for_machines_and_a_table_for_people(
    lacking, capsys, monkeypatch
):
    monkeypatch.setattr(doctor, "examine_kernels", lambda: MachineFinding("kernels", "portable"))
    monkeypatch.setattr(
        doctor,
        "examine_package",
        lambda name: MachineFinding(name, "ours", optional="no torch" * (name == "poptorch")),
    )
    monkeypatch.setattr(doctor, "examine_tensorflow", lambda: MachineFinding("tf", "theirs"))
    assert cli.main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [
        {"subject": "a", "found": "1", "remedy": "", "optional": ""},
        {"subject": "b", "found": "none", "remedy": "get b", "optional": ""},
        {"subject": "c", "found": "old", "remedy": "get c", "optional": ""},
        {"subject": "kernels", "found": "portable", "remedy": "", "optional": ""},
        {"subject": "popart", "found": "ours", "remedy": "", "optional": ""},
        {"subject": "poptorch", "found": "ours", "remedy": "", "optional": "no torch"},
        {"subject": "popdist", "found": "ours", "remedy": "", "optional": ""},
        {"subject": "pva", "found": "ours", "remedy": "", "optional": ""},
        {"subject": "tf", "found": "theirs", "remedy": "", "optional": ""},
    ]
    assert cli.main(["doctor"]) == 1
    lines = [
        [word.strip() for word in line.split("│")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
    ]
    assert [line for line in lines if line] == [
        ["a", "1", "ok"],
        ["b", "none", "get b"],
        ["c", "old", "get c"],
        ["kernels", "portable", "ok"],
        ["popart", "ours", "ok"],
        ["poptorch", "ours", "no torch"],
        ["popdist", "ours", "ok"],
        ["pva", "ours", "ok"],
        ["tf", "theirs", "ok"],
    ]
    monkeypatch.setattr(doctor, "examine", lambda: [MachineFinding("a", "1")])
    assert cli.main(["doctor"]) == cli.main(["doctor", "--json"]) == 0


@pytest.mark.parametrize(
    ("choice", "found", "remedy"),
    [
        pytest.param("", r"avx512|avx2|portable|none: .*", "", marks=pytest.mark.slow),
        pytest.param("none", "none: SIMIPU_KERNELS is none", "", marks=pytest.mark.slow),
        pytest.param(
            "sse",
            "not checked",
            "environment variable SIMIPU_KERNELS: expected avx512, avx2, .*found 'sse'",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_doctor_reports_the_kernels_as_optional(choice, found, remedy):
    environment = {**os.environ, "SIMIPU_KERNELS": choice}
    command = [sys.executable, "-m", "poplar_triton.cli", "doctor", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    (kernels,) = (each for each in json.loads(done.stdout) if each["subject"] == "kernels")
    assert re.fullmatch(found, kernels["found"])
    assert re.fullmatch(remedy, kernels["remedy"])
    assert bool(kernels["optional"]) == kernels["found"].startswith("none")


ROOMS = Path(doctor.__file__).resolve().parents[1]
"""Folder of this project's popart, poptorch, popdist and pva."""


@pytest.fixture
def path_without_rooms(monkeypatch) -> list[str]:
    """Return a path for imports with neither the packages nor a distribution of them."""
    names = ("popart", *(f"{name}-*.dist-info" for name in ("popart", "poplar_triton")))
    rest = [path for path in sys.path if not any(any(Path(path).glob(name)) for name in names)]
    monkeypatch.setattr(sys, "path", rest)
    # An editable distribution has a finder of its own beside the path.
    finders = [each for each in sys.meta_path if "__editable__" not in repr(each)]
    monkeypatch.setattr(sys, "meta_path", finders)
    monkeypatch.setattr(doctor, "_find_import_error", lambda _: "")
    return rest


def install(folder: Path, name: str, version: str, package: str, *, origin: str = "") -> Path:
    """Write what pip writes for a distribution; return the file of its package."""
    information = folder / f"{name}-{version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (information / "top_level.txt").write_text(f"{package}\n")
    doctor._map_packages.cache_clear()  # a process of the command sees no installation
    if origin:
        (information / "direct_url.json").write_text(json.dumps({"url": origin}))
        return Path(origin.removeprefix("file://"), package, "__init__.py")
    (folder / package).mkdir(exist_ok=True)
    (folder / package / "__init__.py").touch()
    return folder / package / "__init__.py"


@pytest.mark.parametrize("package", doctor.SDK_PACKAGES)
@pytest.mark.parametrize("sdk_first", [True, False])
def test_it_says_which_package_shadows_the_other_when_an_sdk_is_enabled(
    tmp_path, path_without_rooms, sdk_first, package
):
    own = ROOMS / package / "__init__.py"
    sdk = install(tmp_path, package, "3.3.0+7858", package)
    folders = [str(tmp_path), str(ROOMS)]
    path_without_rooms[:0] = folders if sdk_first else folders[::-1]
    sdk_found, own_found = f"{sdk} ({package} 3.3.0+7858)", f"{own} (of no distribution)"
    assert doctor.examine_package(package) == MachineFinding(
        package, f"{sdk_found}; it shadows {own}" if sdk_first else f"{own_found}; it shadows {sdk}"
    )


@pytest.mark.parametrize("package", doctor.SDK_PACKAGES)
def test_it_names_only_its_own_package_where_there_is_no_sdk(path_without_rooms, package):
    path_without_rooms.append(str(ROOMS))
    own = ROOMS / package / "__init__.py"
    assert own.is_file()
    assert doctor.examine_package(package) == MachineFinding(package, f"{own} (of no distribution)")


def test_it_names_the_distribution_of_an_editable_installation(tmp_path, path_without_rooms):
    own = install(tmp_path, "popart", "3.4.0+sim.0.2.0", "popart", origin=ROOMS.as_uri())
    path_without_rooms[:0] = [str(tmp_path), str(ROOMS)]
    found = doctor.examine_package("popart")
    assert found == MachineFinding("popart", f"{own} (popart 3.4.0+sim.0.2.0)")


def test_two_distributions_with_the_same_package_have_to_be_uninstalled(
    tmp_path, path_without_rooms
):
    install(tmp_path, "poptorch", "3.3.0+7858", "poptorch")
    install(tmp_path, "poplar_triton", "0.1.0", "poptorch")
    path_without_rooms.insert(0, str(tmp_path))
    found = doctor.examine_package("poptorch")
    assert found.remedy.endswith(
        "pip uninstall poplar_triton poptorch, then install the one that you need"
    )


def test_a_package_that_is_nowhere_is_reported_without_a_remedy(path_without_rooms, monkeypatch):
    monkeypatch.setattr(doctor, "_ROOMS", Path("/nowhere"))
    assert doctor.examine_package("popdist") == MachineFinding(
        "popdist", "not installed", optional="optional"
    )


@pytest.mark.parametrize(
    ("source", "optional"),
    [
        ("", ""),
        (
            "raise ImportError('poptorch needs torch:\\n pip install torch')",
            "optional: its import fails: ImportError: poptorch needs torch: pip install torch",
        ),
        ("import os; os._exit(3)", "optional: its import fails: status 3"),
        ("import sys; print('noise', file=sys.stderr); 1 / 0", ".*ZeroDivisionError: .*"),
    ],
)
def test_a_package_whose_import_fails_is_not_called_ok(tmp_path, monkeypatch, source, optional):
    package = install(tmp_path, "poptorch", "3.4.0", "poptorch")
    package.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = doctor.examine_package("poptorch")
    assert found.found.startswith(str(package))
    assert re.fullmatch(optional, found.optional)
    assert not found.remedy, "a server does not need it"
    assert found.advice == (found.optional or "ok")


def install_tensorflow(folder: Path, version: str, ipu: str = "") -> Path:
    """Write a TensorFlow, with a package `tensorflow.python.ipu` of its own if `ipu` has its text."""
    install(folder, "tensorflow", version, "tensorflow")
    package = folder / "tensorflow" / "python" / "ipu"
    if ipu:
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(ipu)
    return package / "__init__.py"


def test_a_real_sdks_tensorflow_is_named_with_its_version(tmp_path, path_without_rooms):
    file = install_tensorflow(tmp_path, "2.6.3+gc3.4.0", "from tensorflow.python.ipu import config")
    path_without_rooms[:] = [str(tmp_path)]
    expected = f"{file} (Graphcore's tensorflow 2.6.3+gc3.4.0)"
    assert doctor.examine_tensorflow() == MachineFinding("tensorflow.python.ipu", expected)


def test_our_tensorflow_beside_a_real_sdks_has_to_be_uninstalled(tmp_path, path_without_rooms):
    file = install_tensorflow(
        tmp_path, "1.15.5+gc3.4.0", "from tensorflow.python.ipu import config"
    )
    install(tmp_path, "tensorflow_ipu", "3.4.0+sim.0.2.0", "tensorflow_ipu")
    path_without_rooms[:] = [str(tmp_path)]
    finding = doctor.examine_tensorflow()
    assert finding.found == (
        f"{file} (Graphcore's tensorflow 1.15.5+gc3.4.0); it shadows tensorflow_ipu 3.4.0+sim.0.2.0"
    )
    assert finding.remedy == "pip uninstall tensorflow_ipu, or install it in another environment"


def test_our_wheel_beside_a_stock_tensorflow_is_named(tmp_path, path_without_rooms):
    file = install_tensorflow(tmp_path, "2.21.0", "import tensorflow_ipu")
    install(tmp_path, "tensorflow_ipu", "3.4.0+sim.0.2.0", "tensorflow_ipu")
    path_without_rooms[:] = [str(tmp_path)]
    expected = f"{file} (tensorflow_ipu 3.4.0+sim.0.2.0)"
    assert doctor.examine_tensorflow() == MachineFinding("tensorflow.python.ipu", expected)


def test_tensorflow_for_the_ipu_without_tensorflow_says_so(tmp_path, path_without_rooms):
    path_without_rooms[:] = [str(tmp_path)]
    assert doctor.examine_tensorflow().found == "not installed"
    install(tmp_path, "tensorflow_ipu", "3.4.0+sim.0.2.0", "tensorflow_ipu")
    finding = doctor.examine_tensorflow()
    assert finding.found == "installed without TensorFlow"
    assert finding.optional == "optional: requires TensorFlow: pip install 'tensorflow-cpu>=2.21'"
