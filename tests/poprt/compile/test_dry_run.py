"""Tests of the dry run: errors of a server appear at compile time, and wrong row rules are
found."""

import dataclasses
import logging

import numpy as np
import pytest
from onnx import TensorProto, helper
from poprt import Compiler, CompilerOptions, Converter
from poprt.comparing import rows as row_comparison
from poprt.compile import dry_run
from poprt.compile.converter import MFConverter
from poprt.triton.config import make_config
from sample_models import make_model
from simipu import CompileError, DeviceLostError, Engine, LoadError, RunError
from simipu.operators import operator_of
from simipu.rows import proof

F, I32 = TensorProto.FLOAT, TensorProto.INT32
ROWS = {"x": (F, ["n", 6])}


def chain(operator="CumSum", batch=4, precision="fp32", **attributes):
    """Return the model x -> Exp -> e -> operator along the rows -> s -> Add -> y."""
    weights = {"axis": np.int64(0), "one": np.float32(1)}
    taken = ["e", "axis"] if operator == "CumSum" else ["e"]
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node(operator, taken, ["s"], name="culprit", **attributes),
        helper.make_node("Add", ["s", "one"], ["y"]),
    ]
    model = make_model(nodes, ROWS, {"y": (F, ["n", 6])}, weights)
    return Converter(batch_size=batch, precision=precision).convert(model)


@pytest.fixture
def lie(monkeypatch):
    """Return a function that declares the rows of one type of operator independent."""

    def tell(op_type):
        def find(node):
            entry = operator_of(node)
            if node.op_type != op_type:
                return entry
            return dataclasses.replace(
                entry, rows=lambda asked: [asked.only_rows()] * len(asked.results)
            )

        monkeypatch.setattr(proof, "operator_of", find)

    return tell


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(
    ("operator", "attributes"),
    [("CumSum", {}), ("Softmax", {"axis": 0}), ("LpNormalization", {"axis": 0})],
)
def test_a_wrong_row_rule_is_found_by_running(operator, attributes, precision, lie, caplog):
    lie(operator)
    with caplog.at_level(logging.WARNING, "poprt"):
        compiled = Compiler.compile(chain(operator, precision=precision, **attributes))
    found = f"tensor 's' of node 'culprit' ({operator}) differs by"
    assert found in (compiled.rows.dependence or "")
    assert found in caplog.text
    assert (
        f"a row rule is wrong: it says that the rows of tensor 's' (operator {operator})"
        in caplog.text
    )
    config = make_config("m", compiled, {})
    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [4, 6]


@pytest.mark.parametrize("batch", [2, 3, 4, 33])
def test_every_size_of_batch_is_confirmed(batch, lie):
    assert Compiler.compile(chain("Exp", batch)).rows.dependence is None
    lie("CumSum")
    assert "culprit" in Compiler.compile(chain(batch=batch)).rows.dependence


def test_rows_of_whole_numbers_are_told_apart(lie):
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["y"], name="culprit")]
    model = make_model(nodes, {"x": (I32, ["n", 3])}, {"y": (I32, ["n", 3])}, {"axis": np.int64(0)})
    lie("CumSum")
    assert "culprit" in Compiler.compile(Converter(batch_size=3).convert(model)).rows.dependence


def test_rows_are_run_in_other_places_beside_other_rows_and_in_parts():
    seen = []

    def compute(arrays):
        seen.append(arrays[0].tolist())
        return [arrays[0]]

    rows, others = [np.arange(4.0)], [np.arange(10.0, 14.0)]
    whole = row_comparison.Batch(rows, rows, seconds=0)
    assert row_comparison.measure_rows(compute, whole, others) == [0.0]
    assert seen[0] == [3, 11, 1, 13]
    assert seen[1:] == [[0], [1], [2], [3], [0, 1], [1, 2], [2, 3], [0, 1, 2], [1, 2, 3]]


def test_a_last_bit_that_decides_once_makes_no_rows_dependent(monkeypatch):
    measure, calls = dry_run.measure_rows, []

    def differ_once(*arguments):
        calls.append(arguments)
        return [np.inf] if len(calls) == 1 else measure(*arguments)

    monkeypatch.setattr(dry_run, "measure_rows", differ_once)
    assert Compiler.compile(chain("Relu")).rows.dependence is None
    assert len(calls) == 2


@pytest.mark.parametrize("failure", [LoadError, RunError])
def test_a_model_that_fails_its_dry_run_is_rejected(failure, monkeypatch):
    def fail(*_arguments, **_options):
        raise failure("the graph is odd")

    model = chain("Relu")
    monkeypatch.setattr(Engine, "load" if failure is LoadError else "compute", fail)
    with pytest.raises(CompileError, match=r"does not (load|run): the graph is odd"):
        Compiler.compile(model)
    Compiler.compile(model, None, CompilerOptions(skip_dry_run=True))


def test_an_executable_is_the_same_with_and_without_its_dry_run():
    model = chain("Relu")
    one, other = (
        Compiler.compile(model, None, CompilerOptions(skip_dry_run=skip)) for skip in (False, True)
    )
    assert one.executable == other.executable


def test_values_of_the_user_are_run_where_made_up_ones_are_refused(monkeypatch):
    seen = []
    compute = Engine.compute

    def refuse(engine, index, values, *rest, **options):
        seen.append(values[0])
        if (values[0] != 7).any():
            raise RunError(f"only sevens are taken, found {values[0].flat[0]}")
        return compute(engine, index, values, *rest, **options)

    monkeypatch.setattr(Engine, "compute", refuse)
    Compiler.compile(chain("Relu"), calibration_data={"x": np.full((4, 6), 7, np.float32)})
    assert any((values == 7).all() for values in seen)
    with pytest.raises(
        CompileError, match=r"does not run: only sevens are taken.*--data_preprocess"
    ):
        Compiler.compile(chain("Relu"))


def test_calibration_data_are_not_advised_where_every_input_fails_alike(monkeypatch):
    def fail(*_words, **_options):
        raise RunError("the shape is inconsistent")

    monkeypatch.setattr(Engine, "compute", fail)
    with pytest.raises(CompileError, match=r"does not run: the shape is inconsistent$"):
        Compiler.compile(chain("Relu"))


def test_calibration_data_are_not_advised_where_a_model_ends_its_process(monkeypatch):
    def end(*_words, **_options):
        raise DeviceLostError("the process ended with SIGSEGV")

    monkeypatch.setattr(Engine, "compute", end)
    with pytest.raises(CompileError, match=r"does not run: the process ended with SIGSEGV$"):
        Compiler.compile(chain("Relu"))


def product():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = make_model(nodes, ROWS, {"y": (F, ["n", 300])}, {"w": np.ones((6, 300), np.float32)})
    return Converter(batch_size=2).convert(model)


@pytest.mark.parametrize(
    ("limit", "size", "what"), [("WEIGHT", 7199, "weights"), ("INPUT", 47, "inputs")]
)
def test_models_too_large_to_run_are_named(limit, size, what, monkeypatch, caplog):
    monkeypatch.setattr(dry_run, f"MAX_{limit}_BYTES", size)
    monkeypatch.setattr(Engine, "load", lambda *_: pytest.fail("it was loaded"))
    Compiler.compile(product())
    assert f"compiled without a dry run: its {what} take" in caplog.text


def test_each_model_of_a_fused_one_is_run(monkeypatch):
    ran = []
    compute = Engine.compute

    def watch(engine, index, values, *rest, **options):
        ran.append(int(values[0].item()))
        return compute(engine, index, values, *rest, **options)

    monkeypatch.setattr(Engine, "compute", watch)
    fused = MFConverter().convert([chain("Relu"), chain("Tanh", batch=2)])
    Compiler.compile(fused)
    assert ran == [0, 1]


def test_streamed_weights_are_loaded_first():
    compiled = Compiler.compile(product(), None, CompilerOptions(constant_weights=False))
    assert "w" in compiled.weights
