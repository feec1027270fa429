"""The harness that runs PopART's own tests, on tests written here."""

import pytest
from conformance_popart import SUITE, find_target, make_words
from upstream_tests import (
    End,
    ListedFile,
    Run,
    count_share,
    find_files,
    list_causes,
    run_file,
    sum_cases,
)

TESTS = """
import os
import numpy as np, onnx, popart, pytest

def test_passes():
    assert onnx.mapping.NP_TYPE_TO_TENSOR_TYPE[np.dtype("float32")] == 1

def test_fails():
    raise ValueError("three\\nlines\\nlong")

@pytest.mark.skip
def test_is_skipped():
    pass

def test_trains():
    with pytest.raises(popart.popart_exception):
        popart.TrainingSession(b"", None, "", None, None)

def test_optimizes():
    assert popart.SGD({}) is None

def test_runs_on_the_chip():
    assert os.environ["TEST_TARGET"] == "Hw"
"""
CONFTEST = """
import pytest

def pytest_addoption(parser):
    parser.addoption("--device-type", default="Cpu")

@pytest.fixture(autouse=True)
def set_test_device(request, monkeypatch):
    monkeypatch.setenv("TEST_TARGET", request.config.getoption("--device-type"))
"""


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout" / "tests" / "integration"
    folder.mkdir(parents=True)
    (folder.parent / "conftest.py").write_text(CONFTEST)
    (folder / "CMakeLists.txt").write_text("add_popart_py_unit_test(some_test VARIANTS Hw)\n")
    (folder / "some_test.py").write_text(TESTS)
    (folder / "broken_test.py").write_text("import nothing_of_this_name\ndef test_a(): pass\n")
    (folder / "helper.py").write_text("number = 1\n")
    return tmp_path / "checkout"


@pytest.mark.slow
def test_each_outcome_of_a_case_is_distinguished(checkout, tmp_path):
    (file,) = find_files(SUITE, checkout, None, ["some"])
    result = run_file(file, Run(SUITE, checkout, tmp_path, 300))
    assert (result.passed, result.training, result.skipped) == (2, 2, 1)
    assert [(case.name, case.error) for case in result.failures] == [
        ("test_fails", "ValueError: three")
    ]


@pytest.mark.slow
def test_all_cases_of_a_file_that_cannot_be_imported_fail_with_the_reason(checkout, tmp_path):
    file = ListedFile("tests/integration/broken_test.py", 5)
    result = run_file(file, Run(SUITE, checkout, tmp_path, 300))
    assert (result.passed, len(result.failures)) == (0, 5)
    assert all("nothing_of_this_name" in case.error for case in result.failures)


def test_cases_that_a_killed_process_did_not_reach_fail():
    cases = [{"name": "a", "outcome": "passed", "error": "", "training": False}]
    result = sum_cases(ListedFile("x", 3), cases, End(-9, "", 60.0))
    assert (result.passed, result.inference) == (1, 3)
    assert [case.error for case in result.failures] == ["killed after 60 s"] * 2


def test_a_process_that_fails_before_its_first_case_is_no_success():
    result = sum_cases(ListedFile("x", 2), [], End(1, "ImportError: nothing", 1.0))
    assert (result.passed, result.inference) == (0, 2)


def test_errors_that_differ_in_numbers_and_names_are_one_cause():
    cases = [
        {"name": str(n), "outcome": "failed", "error": f"node '{n}': size {n}", "training": False}
        for n in range(3)
    ]
    (cause,) = list_causes([sum_cases(ListedFile("a/x.py"), cases, End(1, "", 1.0))])
    assert cause == ("node '0': size 0", 3, ["x.py"])


def test_files_without_tests_are_left_out_and_missing_ones_are_named(checkout, tmp_path):
    paths = [file.path for file in find_files(SUITE, checkout, None, ["*"])]
    assert paths == ["tests/integration/broken_test.py", "tests/integration/some_test.py"]
    listed = tmp_path / "list.txt"
    listed.write_text("tests/integration/some_test.py\t4\n")
    assert find_files(SUITE, checkout, listed, ["*"]) == [ListedFile(paths[1], 4)]
    listed.write_text("tests/integration/gone.py\n")
    with pytest.raises(SystemExit, match=r"lacks 1 files of .*, first tests/integration/gone\.py"):
        find_files(SUITE, checkout, listed, ["*"])
    with pytest.raises(SystemExit, match="not a checkout of graphcore/popart"):
        find_files(SUITE, tmp_path, None, ["*"])


def test_the_share_counts_inference_cases_only():
    cases = [
        {"name": "a", "outcome": "passed", "error": "", "training": False},
        {"name": "b", "outcome": "failed", "error": "", "training": True},
        {"name": "c", "outcome": "skipped", "error": "", "training": False},
    ]
    result = sum_cases(ListedFile("x"), cases, End(0, "", 1.0))
    assert count_share([result]) == 100


BUILD = """
# add_popart_py_unit_test(commented_test VARIANTS Hw)
add_popart_py_unit_test(plain_test)
add_popart_py_unit_test(model_test VARIANTS "IpuModel2") # also on "Hw" later
add_popart_py_unit_test(chip_test VARIANTS Cpu IpuModel2 Hw)
add_popart_py_unit_test(rack_test MATCHEXPR "test_a or test_b"
  VARIANTS "${HW_EXCLUDE_C600}")
add_popart_py_unit_test(parts_test MATCHEXPR test_a)
add_popart_py_unit_test(parts_test MATCHEXPR test_b VARIANTS IpuModel2)
add_popart_py_unit_test(idle_test VARIANTS Hw PROPERTIES DISABLED TRUE)
"""


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("plain", "Cpu"),
        ("model", "IpuModel2"),
        ("chip", "Hw"),
        ("rack", "Hw"),
        ("parts", "IpuModel2"),
        ("commented", "Cpu"),
        ("unlisted", "Cpu"),
    ],
)
def test_files_run_on_the_device_that_the_build_file_names(tmp_path, name, device):
    (tmp_path / "CMakeLists.txt").write_text(BUILD)
    file = tmp_path / f"{name}_test.py"
    assert make_words(file) == ("--device-type", device)
    assert not find_target(file).is_disabled


def test_files_that_the_build_file_disables_are_left_out(checkout):
    folder = checkout / "tests" / "integration"
    (folder / "CMakeLists.txt").write_text(BUILD)
    (folder / "idle_test.py").write_text("def test_a(): pass\n")
    names = [file.path.rpartition("/")[2] for file in find_files(SUITE, checkout, None, ["*"])]
    assert names == ["broken_test.py", "some_test.py"]
