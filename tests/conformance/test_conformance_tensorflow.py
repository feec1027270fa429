"""The harness that runs Graphcore's TensorFlow tests, on cases written here; without TensorFlow."""

import unittest

import pytest
from conformance_tensorflow import (
    RepositoryFile,
    compare_record,
    merge_case,
    merge_modes,
    parse_files,
    stage_files,
)
from report_stubs import NEUTRAL, is_neutral, shadow_builtins, watch_asserts
from tensorflow_compat import run_main_block
from training_scan import scan_file
from upstream_tests import End, ListedFile

FILE = RepositoryFile("graphcore/tensorflow", ListedFile("a/some_test.py", 3))
SOURCE = """
def minimizes(): optimizer.minimize(loss)
def net(): return tf.gradients(1, 2)

class SomeTest:
    def _build(self): return net()
    def test_a(self): self._build()
    def test_b(self): opt = GradientDescentOptimizer(0.1)
    def test_c(self):
        def minimizes(): pass
    def test_d(self): pipeline(optimizer_function=None)
    def test_e(self): pipeline(optimizer_function=f)
    def testBackwardPass(self): pass
    def helper(self): pass
class OtherTest:
    def test_a(self): pass
"""


def make_case(name, outcome, error="", *, training=False):
    return {"name": name, "outcome": outcome, "error": error, "training": training}


def test_cases_train_if_what_they_name_trains(tmp_path):
    file = tmp_path / "some_test.py"
    file.write_text(SOURCE)
    reasons = {(case.owner, case.name): case.reason for case in scan_file(file)}
    assert reasons == {
        ("SomeTest", "test_a"): "gradients",
        ("SomeTest", "test_b"): "",
        ("SomeTest", "test_c"): "",
        ("SomeTest", "test_d"): "",
        ("SomeTest", "test_e"): "optimizer_function",
        ("SomeTest", "testBackwardPass"): "testBackwardPass",
        ("OtherTest", "test_a"): "",
    }


@pytest.mark.parametrize(
    ("outcomes", "merged"),
    [
        (("passed", "passed"), "passed"),
        (("skipped", "passed"), "passed"),
        (("passed", "skipped"), "passed"),
        (("skipped", "skipped"), "skipped"),
        (("passed", "failed"), "failed"),
        (("failed", "skipped"), "failed"),
    ],
)
def test_a_case_passes_if_it_passes_in_a_mode_and_fails_in_none(outcomes, merged):
    modes = dict(zip(("hardware", "model"), outcomes, strict=True))
    cases = {mode: make_case("a", word, "E" * (word == "failed")) for mode, word in modes.items()}
    result = merge_case(cases)
    assert result["outcome"] == merged
    assert bool(result["error"]) == (merged == "failed")


def test_cases_that_a_mode_did_not_reach_fail():
    some = [make_case("a", "passed"), make_case("a", "passed"), make_case("b", "failed", "E")]
    outcomes = {"hardware": (some, End(1, "", 1.0)), "model": (some[:1], End(-9, "", 60.0))}
    result = merge_modes(FILE, outcomes).result
    assert (result.passed, len(result.failures)) == (2, 2)
    assert result.failures[1].error == "killed after 61 s"
    assert result.failures[0].error == "hardware: E"


def test_cases_that_train_in_a_mode_are_not_counted():
    cases = [make_case("a", "failed", "E", training=True)], End(1, "", 1.0)
    result = merge_modes(FILE, {"hardware": cases}).result
    assert (result.inference, result.training) == (0, 1)


def test_a_record_names_the_cases_whose_outcome_changed():
    merged = merge_modes(FILE, {"model": ([make_case("a", "passed")], End(0, "", 1.0))})
    record = {"files": [{"path": FILE.file.path, "cases": [make_case("a", "failed", "E")]}]}
    assert compare_record([merged], record) == ["a/some_test.py::a: failed, now passed "]
    record["files"][0]["cases"][0]["outcome"] = "passed"
    assert compare_record([merged], record) == []


def test_files_are_listed_with_their_repository_and_copied_out_of_their_packages(tmp_path):
    files = parse_files("graphcore/tensorflow, a/some_test.py, 3\ngraphcore/keras, b.py\n", ["*"])
    assert files == [FILE, RepositoryFile("graphcore/keras", ListedFile("b.py"))]
    assert parse_files("graphcore/tensorflow, a/some_test.py, 3\n", ["other"]) == []
    checkout = tmp_path / "checkout"
    (checkout / "a").mkdir(parents=True)
    (checkout / "a" / "__init__.py").touch()
    (checkout / "a" / "some_test.py").touch()
    checkouts = {"graphcore/tensorflow": checkout, "graphcore/keras": checkout}
    stages = stage_files([FILE], checkouts, tmp_path / "stages")
    assert [path.name for path in (stages[FILE.repository] / "a").iterdir()] == ["some_test.py"]
    with pytest.raises(SystemExit, match=r"lacks b\.py"):
        stage_files(files, checkouts, tmp_path / "stages")


class Watched(unittest.TestCase):
    def assertSame(self, first, second):
        assert first == second


watch_asserts(Watched)


def test_asserts_about_reports_are_skipped_and_others_are_not():
    case = Watched()
    case.assertSame(NEUTRAL.compilation.tiles[0].memory + 3, 7)
    case.assertSame(max(tile.memory for tile in NEUTRAL.tiles), 7)
    case.assertSame([1, NEUTRAL.x], 7)
    case.assertSame(NEUTRAL.x < 3, second=False)
    with pytest.raises(AssertionError):
        case.assertSame(1, 2)
    assert not is_neutral([1, "a", None])


def test_the_length_of_a_part_of_a_report_is_neutral_in_a_test_file():
    module = type(unittest)("some_test")
    exec("def count(x): return len(x)", vars(module))
    shadow_builtins(module)
    assert is_neutral(module.count(NEUTRAL.steps))
    assert module.count([1, 2]) == 2


MAIN = """
done = []
if __name__ == "__main__":
    done.append("prepared")
    test.main()
"""


def test_what_a_file_does_as_a_program_is_done_without_the_tests(tmp_path):
    file = tmp_path / "some_test.py"
    file.write_text(MAIN)
    names = {"done": []}
    run_main_block(file, names)
    assert names["done"] == ["prepared"]
